"""Runs a harness in a workspace with one prompt: an agent that speaks the Agent Client Protocol,
or a command that takes the prompt as an argument. The trusted side of a harness's connection:
its protocol messages and its model requests, over the lines of `ports.Workspace.converse`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any, Final, cast

import acp
from acp.client.connection import ClientSideConnection
from acp.exceptions import RequestError
from acp.helpers import text_block
from acp.schema import ClientCapabilities, Implementation, InitializeResponse
from pydantic import ValidationError

from moothall.domain.chat import AnswerModel, HarnessReport, HarnessTask
from moothall.domain.codec import describe_errors, list_of, mapping_of, text_of
from moothall.domain.text import encodable
from moothall.errors import MoothallError, WorkspaceFailed
from moothall.harnesses import model_api
from moothall.harnesses.chat_api import write_error
from moothall.ports import Workspace
from moothall.telemetry import get_logger

# The trusted side of a harness's connection: its protocol messages and its model requests, over the
# lines of `ports.Workspace.converse`. All input is hostile.


_FIRST_HOLD_SECONDS, _LONGEST_HOLD_SECONDS = 0.05, 1.0
_MAX_PARALLEL_REQUESTS = 16
_TOO_MANY = json.dumps(
    write_error("rate_limit_exceeded", f"at most {_MAX_PARALLEL_REQUESTS} requests run at once")
)
_MAX_OUTPUT_CHARS = 4_000
_LINES_PER_STEP = 1_000
"""After so many lines, others get a turn on the event loop."""
_UPDATE, _PERMISSION = "session/update", "session/request_permission"
_METHOD_NOT_FOUND = {"error": {"code": -32601, "message": "Method not found"}}


class HarnessExchange:
    """Passes messages between a harness and the connection of its client, whose transport it is,
    and handles the program's lines. Belongs to one event loop.

    client: answers the program's own messages. None: lines are the program's output, and its input
    is empty. failed: the error that ends the work. exit_reason: why the program ended by itself, ''
    as long as it has not.
    """

    def __init__(
        self,
        model: str,
        ask_model: AnswerModel,
        group: asyncio.TaskGroup,
        client: HarnessClient | None = None,
    ) -> None:
        self._model, self._ask_model, self._group, self._client = model, ask_model, group, client
        self._output = ""
        self._incoming: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._outgoing: list[dict[str, Any]] = [] if client else [{"close": True}]
        self._changed = asyncio.Event()
        self._requests: set[asyncio.Task[None]] = set()
        self._awaited: set[int] = set()
        self._hold_seconds = _FIRST_HOLD_SECONDS
        self._closed = False
        self.failed: MoothallError | None = None
        self.exit_reason = ""

    @property
    def output(self) -> str:
        """The last part of the program's output."""
        return encodable(self._output.strip())

    async def __call__(self, lines: Sequence[str]) -> Sequence[str] | None:
        """Process the messages from inside, and return those to send there. See `converse`."""
        for number, line in enumerate(lines, start=1):
            if self._closed:
                return None
            self._receive_event(line)
            if number % _LINES_PER_STEP == 0:
                await asyncio.sleep(0)
        if lines:
            self._hold_seconds = _FIRST_HOLD_SECONDS
        if self._speaks_next and not self._outgoing and not self._closed:
            # Nothing is known to happen inside, so wait here; but look again after a while.
            self._changed.clear()
            try:
                async with asyncio.timeout(self._hold_seconds):
                    await self._changed.wait()
            except TimeoutError:
                self._hold_seconds = min(2 * self._hold_seconds, _LONGEST_HOLD_SECONDS)
        if self._closed or self.failed is not None:
            return None
        outgoing, self._outgoing = self._outgoing, []
        poll_request = [{"again": True}] if self._speaks_next else []
        return [json.dumps(item) for item in (*outgoing, *poll_request)]

    @property
    def _speaks_next(self) -> bool:
        """Whether this side has something to answer or to ask."""
        return bool(self._requests or (self._client and not self._awaited))

    def _receive_event(self, line: str) -> None:
        event = _read_object(line)
        if "ended" in event:
            self.exit_reason = str(event["ended"])
            self.end()
        elif "request" in event:
            if len(self._requests) >= _MAX_PARALLEL_REQUESTS:
                self._reply(event["request"], model_api.HttpReply(429, _TOO_MANY))
                return
            task = self._group.create_task(self._answer(event), name="harness-model")
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
        elif self._client is None:
            self._output = f"{self._output}{event.get('line')}\n"[-_MAX_OUTPUT_CHARS:]
        else:
            self._receive_message(self._client, _read_object(text_of(event.get("line"))))

    def _receive_message(self, client: HarnessClient, message: Mapping[str, Any]) -> None:
        """Pass on an awaited reply, and have the client handle an update or a request. Others are
        dropped.

        The connection handles replies only: it starts a task for each message, and logs each error
        with its traceback.
        """
        method, number = message.get("method"), message.get("id")
        params = mapping_of(message.get("params"))
        if method == _UPDATE:
            client.receive_update(mapping_of(params.get("update")))
        elif method is not None and isinstance(number, int | str):
            answer = client.decide(params) if method == _PERMISSION else _METHOD_NOT_FOUND
            line = json.dumps({"jsonrpc": "2.0", "id": number, **answer})
            self._outgoing.append({"line": line})
        elif isinstance(number, int) and number in self._awaited:
            self._awaited.discard(number)
            reply: dict[str, Any] = {"id": number, "result": message.get("result")}
            if "error" in message:
                reason = text_of(mapping_of(message["error"]).get("message"))
                reply = {"id": number, "error": {"message": reason or "an error without a message"}}
            self._incoming.put_nowait(reply)

    async def _answer(self, event: dict[str, Any]) -> None:
        try:
            reply = await model_api.answer(
                str(event.get("method")),
                str(event.get("path")),
                str(event.get("body")),
                self._model,
                self._ask_model,
            )
        except MoothallError as error:
            self.failed = self.failed or error
            self.end()
            return
        self._reply(event["request"], reply)

    def _reply(self, number: Any, reply: model_api.HttpReply) -> None:
        self._outgoing.append(
            {"reply": number, "status": reply.status, "type": reply.type, "content": reply.content}
        )
        self._changed.set()

    def end(self) -> None:
        """End the connection; the client's pending calls fail, and model calls are cancelled."""
        self._closed = True
        for task in self._requests - {asyncio.current_task()}:
            task.cancel()
        self._incoming.put_nowait(None)
        self._changed.set()

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message of the client."""
        if "id" in message:
            self._awaited.add(message["id"])
        self._outgoing.append({"line": json.dumps(message)})
        self._changed.set()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message for the client, None at the end."""
        return await self._incoming.get()

    async def close(self) -> None:
        """End the program."""
        self.end()


def _read_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# Runs a harness in a workspace with one prompt: an agent that speaks the Agent Client Protocol, or
# a command that takes the prompt as an argument.


log = get_logger(__name__)

_FOLDER = "/workspace"
_MAX_BYTES = 256_000_000
"""The most that a harness may print and request, together."""
_MAX_TEXT_CHARS, _MAX_REASON_CHARS = 20_000, 2_000
_CANCEL_SECONDS = 10.0  # time to stop after it was asked to
_END_SECONDS = 5.0  # time to end after its connection was closed
_NOT_STARTED, _OUT_OF_TIME = "the harness did not start", "its time limit was reached"
_PROMPT, _MODEL = "{prompt}", "{model}"
_ENDED_WELL = "it ended with exit code 0"
_READING = frozenset({"read", "search", "think", "fetch", "switch_mode", "other", ""})
_EXECUTING = "execute"


class HarnessClient:
    """Answers what a harness asks, and collects what it says after its last tool call. Fields of
    the wrong type are treated as missing.
    """

    def __init__(self, task: HarnessTask) -> None:
        self._task = task
        self.text = ""

    def receive_update(self, update: Mapping[str, Any]) -> None:
        """Read an update of the session."""
        kind = update.get("sessionUpdate")
        if kind == "tool_call":
            self.text = ""
        elif kind == "agent_message_chunk":
            text = text_of(mapping_of(update.get("content")).get("text"))
            self.text = f"{self.text}{text}"[:_MAX_TEXT_CHARS]

    def decide(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a request for a permission."""
        kind = text_of(mapping_of(params.get("toolCall")).get("kind"))
        may = self._task.may_execute if kind == _EXECUTING else self._task.may_write
        is_allowed = may or kind in _READING
        option_kinds = (
            ("allow_once", "allow_always") if is_allowed else ("reject_once", "reject_always")
        )
        options = [mapping_of(option) for option in list_of(params.get("options"))]
        for name in option_kinds:
            for option in options:
                if option.get("kind") == name:
                    option_id = text_of(option.get("optionId"))
                    return {"result": {"outcome": {"outcome": "selected", "optionId": option_id}}}
        return {"result": {"outcome": {"outcome": "cancelled"}}}


async def run_harness(
    workspace: Workspace, task: HarnessTask, ask_model: AnswerModel
) -> HarnessReport:
    """Run a harness with one prompt; its changes to files stay in the workspace.

    Raises `WorkspaceFailed` if it does not speak the protocol, fails, or ends before its answer,
    and the error of a model call that ended the work.
    """
    is_command = any(_PROMPT in word for word in task.argv)
    client = None if is_command else HarnessClient(task)
    report, problem = None, ""
    async with asyncio.TaskGroup() as group:
        exchange = HarnessExchange(task.model, ask_model, group, client)
        program = group.create_task(_run_program(workspace, task, exchange), name="harness")
        try:
            if client is None:
                report = await _wait_for_end(exchange, program, task.seconds)
            else:
                report = await _prompt(exchange, task, client)
        except ValidationError as error:
            problem = f"it does not speak the Agent Client Protocol: {describe_errors(error)}"
        except (RequestError, ConnectionError) as error:
            problem = str(error)[:_MAX_REASON_CHARS]
        finally:
            exchange.end()
        # A program can prevent its own end, for example by stopping the process that relays it.
        await asyncio.wait([program], timeout=_END_SECONDS)
        program.cancel()
    if exchange.failed is not None:
        raise exchange.failed
    if report is None:
        ended = "" if program.cancelled() else program.result()
        reason = encodable(ended or problem)
        raise WorkspaceFailed(
            f"{task.argv[0]}: {reason}. Its program has to be in /usr or in a folder of "
            "sandbox.toolchains"
            if "cannot be run" in reason
            else f"{task.argv[0]}: {reason}"
        )
    return report


async def _run_program(workspace: Workspace, task: HarnessTask, exchange: HarnessExchange) -> str:
    """Run the program to its end, and return why it ended."""
    try:
        return await workspace.converse(
            tuple(
                word.replace(_MODEL, task.model).replace(_PROMPT, task.prompt) for word in task.argv
            ),
            exchange,
            seconds=task.seconds + 2 * _CANCEL_SECONDS,
            max_bytes=_MAX_BYTES,
            keep_changes=True,
            variables=_variables(task),
        )
    except MoothallError as error:  # raised by the caller, and not in an exception group
        exchange.failed = exchange.failed or error
        return ""
    finally:
        exchange.end()


async def _wait_for_end(
    exchange: HarnessExchange, program: asyncio.Task[str], seconds: float
) -> HarnessReport | None:
    """Return the output of a command that ended well or had to be stopped, otherwise None."""
    finished, _ = await asyncio.wait([program], timeout=seconds)
    if finished and exchange.exit_reason != _ENDED_WELL:
        return None
    return HarnessReport(exchange.output, stopped="" if finished else _OUT_OF_TIME)


async def _prompt(
    exchange: HarnessExchange, task: HarnessTask, client: HarnessClient
) -> HarnessReport:
    # The exchange answers the program's messages, so the connection's own client has no methods.
    connection = ClientSideConnection(cast("Any", object()), exchange)
    try:
        async with asyncio.timeout(min(task.seconds, 120.0)):
            started = await connection.initialize(
                acp.PROTOCOL_VERSION,
                client_capabilities=ClientCapabilities(),
                client_info=Implementation(name="moothall", title="Moothall", version="1"),
            )
            session = await connection.new_session(cwd=_FOLDER, mcp_servers=[])
    except TimeoutError as error:
        raise ConnectionError(_NOT_STARTED) from error
    prompting = asyncio.ensure_future(
        connection.prompt(session_id=session.session_id, prompt=[text_block(task.prompt)])
    )
    # If this is cancelled, nobody else reads its error.
    prompting.add_done_callback(lambda future: future.cancelled() or future.exception())
    stopped = ""
    finished, _ = await asyncio.wait([prompting], timeout=task.seconds)
    if not finished:
        stopped = _OUT_OF_TIME
        with suppress(RequestError, ConnectionError):
            await connection.cancel(session_id=session.session_id)
        await asyncio.wait([prompting], timeout=_CANCEL_SECONDS)
    if prompting.done():
        response = prompting.result()
        if response.stop_reason != "end_turn":
            stopped = stopped or f"it stopped: {response.stop_reason}"
    else:
        prompting.cancel()
    await connection.close()
    return HarnessReport(encodable(client.text.strip()), _agent_name(started), stopped)


def _agent_name(started: InitializeResponse) -> str:
    info = started.agent_info
    return encodable(f"{info.name} {info.version}")[:100] if info is not None else ""


def _variables(task: HarnessTask) -> dict[str, str]:
    """Return the environment of a harness: how it finds its model server, which needs no key."""
    url = "http://127.0.0.1:{port}/v1"
    variables = {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_BASE": url,
        "OPENAI_API_KEY": "none",
        "OPENAI_MODEL": task.model,
        "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": task.model,
    }
    if create := _VARIABLES_BY_PROGRAM.get(PurePath(task.argv[0]).name):
        variables |= create(task, url)
    return {**variables, **dict(task.variables)}


def _opencode_variables(task: HarnessTask, url: str) -> dict[str, str]:
    model = {"name": task.model, "limit": {"context": task.window, "output": task.max_tokens}}
    config = {
        "provider": {
            "moothall": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Moothall",
                "options": {"baseURL": url, "apiKey": "none"},
                "models": {task.model: model},
            }
        },
        "model": f"moothall/{task.model}",
        "small_model": f"moothall/{task.model}",
        "autoupdate": False,
        "share": "disabled",
    }
    return {
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }


def _mini_variables(task: HarnessTask, url: str) -> dict[str, str]:
    del url  # it reads OpenAI's variables
    return {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_MODEL_NAME": f"openai/{task.model}",
        "MSWEA_SILENT_STARTUP": "1",
    }


def _claude_variables(task: HarnessTask, url: str) -> dict[str, str]:
    del url  # it reads Anthropic's variables
    return {
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": task.model,  # for its small questions
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(task.max_tokens),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",  # it asks no permissions, although its user is root there
    }


_VARIABLES_BY_PROGRAM: Final = {
    "opencode": _opencode_variables,
    "mini": _mini_variables,
    "claude": _claude_variables,
    "claude-agent-acp": _claude_variables,
}
"""Harnesses that need more than the usual variables, by the name of their program."""
