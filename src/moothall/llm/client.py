"""A client for any OpenAI-compatible chat server.

Answers are always streamed: that is how silence, a cut line and an answer without end are noticed.
An attempt that failed for a reason that may go away is made again after a growing delay; what is
left
when the attempts are used up is `ModelUnavailable`, never an invented answer.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from yarl import URL

from moothall import telemetry
from moothall.concurrency import seconds_until
from moothall.config import LlmSettings
from moothall.domain.budget import Usage
from moothall.domain.chat import (
    ChatReply,
    ChatRequest,
    FunctionTool,
    Message,
    ModelDescription,
    ReplyMode,
    ReplySchema,
)
from moothall.domain.text import one_line
from moothall.errors import (
    ConfigurationError,
    ContextOverflow,
    DeadlineExceeded,
    ModelReplyInvalid,
    ModelUnavailable,
)
from moothall.llm import retry
from moothall.llm.capabilities import Capabilities, is_overflow, read_window
from moothall.llm.dialect import Dialect, ServerFigures, read_figures
from moothall.llm.markup import split_calls
from moothall.llm.pool import ConnectionPool, open_pool
from moothall.llm.requests import JSON, body_of, count_usage, encode
from moothall.llm.response_readers import ChatResponseReader, WholeResponseReader
from moothall.llm.responses_api import ResponsesReply, responses_body
from moothall.llm.retry import Failed, Rejected, translate_refusal
from moothall.llm.schemas import without_nulls
from moothall.llm.server_errors import ListedModel, read_models
from moothall.llm.stream import BrokenStream, PartialReply
from moothall.llm.thinking import split_thinking
from moothall.llm.windows import FETCH_SECONDS, find_window

T = TypeVar("T")
log = telemetry.get_logger(__name__)

_LIST_BYTES = 4_000_000
_METRICS_BYTES = 4_000_000
_METRICS_SECONDS = 10.0
_NAMES_SHOWN = 500
_GOOD, _NOT_FOUND = 200, 404
_REFUSALS = frozenset({400, 404, 405, 413, 415, 422, 500, 501})
"""Statuses of refusals that may name a part of the call."""
_PROBE_ID = "-/-/probe/0.0"
_PROBE_TOKENS = (4096, 16_384)
"""A reasoning model thinks before it answers; a reply that was cut is asked for again with more."""
_LOCAL_PROBE_TOKENS = (32,)
_PROBE_SECONDS = 600.0
_QUESTION = "Is water wet?"
_PROBE_SCHEMA = {
    "type": "object",
    "properties": {"wet": {"type": "boolean"}},
    "required": ["wet"],
    "additionalProperties": False,
}
_FINISHES = {
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "end_turn": "stop",
    "eos": "stop",
}
"""How gateways name the ends of replies, in the words of chat completions."""
_ALTERNATIVES = {
    "anyOf": [
        _PROBE_SCHEMA,
        {**_PROBE_SCHEMA, "properties": {"unsure": {"type": "boolean"}}, "required": ["unsure"]},
    ],
}
"""Alternatives at the root, as the schemas of turns have them."""
_SYSTEM = Message("system", "You answer questions.")


class OpenAIModel:
    """The port `ChatModel`. Made by `open_model`; belongs to one event loop."""

    def __init__(self, settings: LlmSettings, pool: ConnectionPool) -> None:
        self._settings = settings
        self._pool = pool
        self._url = pool.url
        self._place = str(pool.url)
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._asking = asyncio.Lock()
        self._model = ""
        self._dialect = Dialect(settings)
        self._known = Capabilities()
        self._set_up()
        self._searched = False

    def _set_up(self) -> None:
        """Take over what the settings say."""
        if self._settings.reply != "auto":
            self._known.reply = self._settings.reply
        if self._settings.api != "auto":
            self._known.api, self._known.api_fixed = self._settings.api, True

    @property
    def url(self) -> str:
        """The server's root, without a key."""
        return self._place

    @property
    def capabilities(self) -> Capabilities:
        """What is known of the server so far."""
        return self._known

    async def chat(
        self,
        request: ChatRequest,
        on_text: Callable[[str], None] | None = None,
        *,
        ours: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Return the whole reply, possibly an empty one. `on_text` is given each new piece of text,
        reasoning in the text included; after a cut stream the reply begins anew. `ours` must agree
        before each attempt.

        Raises `ModelUnavailable` once retries are used up, `ContextOverflow` if the conversation is
        longer than the window, `ModelReplyInvalid` for an answer that is no reply,
        `DeadlineExceeded`, and `ConfigurationError` for a wrong model name, key or URL.
        """
        left = seconds_until(request.deadline)
        if left <= 0:
            raise DeadlineExceeded(
                f"the deadline of model call {request.call_id} had passed before it began"
            )
        until = self._loop.time() + left
        try:
            model = self._model or await self._model_name(request.call_id, request.deadline, until)
            return await self._call(request, model, until, on_text, ours)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"model call {request.call_id} to {self._url} was not answered by its deadline"
            ) from error
        except Rejected as error:
            raise self._translate(error) from error

    async def _call(
        self,
        request: ChatRequest,
        model: str,
        until: float | None,
        on_text: Callable[[str], None] | None = None,
        ours: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Make a call as this server takes it; after a refusal that names a part of it, without
        that part. A reply that was filled by reasoning is asked for again with more room, once.
        """
        body = body_of(request, model) | self._dialect.additions(request)
        if self._settings.reasoning_effort:
            body["reasoning_effort"] = self._settings.reasoning_effort
        limit = request.max_tokens + self._settings.reasoning_tokens
        deadline = None if until is None else request.deadline
        room, spent = 0, Usage()
        while True:
            given = self._known.reasoning_room
            adapted = self._known.adapt({**body, "max_tokens": limit + given})
            sent = self._known.limited(adapted, room)
            try:
                attempt = functools.partial(self._ask, sent, request.call_id, until, on_text, ours)
                reply = await self._retry(request.call_id, deadline, until, attempt)
            except Rejected as error:
                self._learn(
                    error,
                    adapted,
                    probed=request.call_id == _PROBE_ID and request.schema is not None,
                )
                left = 0 if room else self._known.room(error, sent)
                if not left and self._known.adapt({**body, "max_tokens": limit + given}) == adapted:
                    raise
                room = left or room
                continue
            spent += reply.usage
            if (
                _thought_only(reply)
                and request.call_id != _PROBE_ID
                and self._known.give_room(given)
            ):
                continue
            return self._finish(request, replace(reply, usage=spent))

    def _learn(self, error: Rejected, sent: Mapping[str, Any], *, probed: bool) -> None:
        """Note what a refusal says about the call. Raises it again if it says nothing, or if it
        answers a probe of schemas.
        """
        if error.status not in _REFUSALS:
            raise error
        self._known.learn(error, sent)
        if probed and self._known.schema == "none":
            raise error

    def _finish(self, request: ChatRequest, reply: ChatReply) -> ChatReply:
        """Return a reply in our schema."""
        if request.schema and self._known.schema == "strict":
            reply = replace(reply, text=without_nulls(reply.text))
        if request.schema and reply.finish_reason == "length":
            self._dialect.notice_blanks(reply.text)
        return reply

    async def figures(self) -> ServerFigures | None:
        """Return vLLM's own figures; None where the server is no vLLM. Raises what `chat`
        raises.
        """
        try:
            await self._model_name("-/-/figures/0.0")
            if not self._dialect.is_vllm:
                return None
            taken = WholeResponseReader(self._place, _METRICS_BYTES)
            await self._exchange(
                "GET", self._url.with_path("/metrics"), taken, self._loop.time() + _METRICS_SECONDS
            )
        except Failed as failure:
            raise ModelUnavailable(
                f"{self._url.with_path('/metrics')}: {failure.reason}"
            ) from failure
        except TimeoutError as error:
            raise ModelUnavailable(
                f"{self._url.with_path('/metrics')} said nothing for {_METRICS_SECONDS:g} s"
            ) from error
        except Rejected as error:
            raise self._translate(error) from error
        figures = read_figures(taken.body.decode(errors="replace"))
        self._dialect.notice_missing(figures)
        return figures

    async def reply_mode(self) -> ReplyMode:
        """Return how the model is asked for tool calls: what the operator chose; under `auto` what
        one probe finds: tools, json or blocks.
        """
        if self._known.reply is None:
            model = await self._model_name(_PROBE_ID)
            async with self._asking:
                if self._known.reply is None:
                    self._known.reply = await self._probe(model)
                    log.info("reply mode found out", mode=self._known.reply, url=str(self._url))
        return self._known.reply

    async def describe(self) -> ModelDescription:
        """Return the model's name, reply mode and window. Raises what `reply_mode` raises."""
        mode = await self.reply_mode()
        await self._model_name(_PROBE_ID)
        async with self._asking:
            if not self._searched and not self._known.window and not self._known.is_local:
                self._searched = True
                self._known.window, self._known.window_source = await find_window(
                    self._look, self._url, self._model
                )
        known = self._known
        source = "the settings of the local model" if known.is_local else known.window_source
        return ModelDescription(
            self._model, mode, known.api, known.window, source, known.most_tokens
        )

    async def examine(self) -> list[str]:
        """Return all that is known of the server in plain lines, after trying what no call has
        tried yet. Raises what `reply_mode` raises.
        """
        about = await self.describe()
        try:
            if self._known.obeys is None and not self._known.is_local:
                await self._probe_schema(self._model, _ALTERNATIVES)
            if about.reply == "blocks":  # no probe of what it takes came through
                await self._ask_probe(self._model, Message("user", _QUESTION))
        except Rejected as error:
            raise self._translate(error) from error
        return self._known.lines()

    async def _look(self, method: str, url: URL, body: dict[str, Any] | None) -> Any:
        """Return what a path beside the API answers, or None. It may be the path of
        another server.
        """
        taken = WholeResponseReader(self._place, _LIST_BYTES)
        raw = encode(body) if body is not None else b""
        try:
            until = self._loop.time() + FETCH_SECONDS
            await self._pool.ask(
                method, url, taken, until=until, body=raw, headers=JSON if raw else None
            )
            return json.loads(taken.body) if taken.status == _GOOD else None
        except (Failed, TimeoutError, ModelReplyInvalid, ValueError, RecursionError):
            return None

    async def _probe(self, model: str) -> ReplyMode:
        """Return the best way of replying that the model shows."""
        try:
            if not self._known.is_local:
                self._known.tools = await self._probe_tools(model)
                if self._known.tools:
                    return "tools"
            return "json" if await self._probe_schema(model) else "blocks"
        except Rejected as error:
            raise self._translate(error) from error

    async def _probe_tools(self, model: str) -> bool:
        """Return whether the model calls a tool. A server that takes tools, and whose model thinks
        too long to show it, is believed.
        """
        tool = FunctionTool("answer", "Answer the question.", _PROBE_SCHEMA)
        message = Message("user", f"{_QUESTION} Call the tool `answer` with the answer.")
        reply = await self._ask_probe(model, message, tools=(tool,))
        return reply is not None and (
            bool(reply.calls) or (reply.finish_reason == "length" and not reply.text.strip())
        )

    async def _probe_schema(self, model: str, schema: Mapping[str, Any] = _PROBE_SCHEMA) -> bool:
        """Return whether the server obeys a schema: only a constrained reply to this question is a
        JSON object.
        """
        message = Message("user", f"{_QUESTION} Answer yes or no.")
        reply = await self._ask_probe(model, message, schema=ReplySchema("probe", schema))
        self._known.obeys = (
            reply is not None
            and self._known.schema != "none"
            and reply.text.lstrip().startswith("{")
        )
        return self._known.obeys

    async def _ask_probe(self, model: str, message: Message, **how: Any) -> ChatReply | None:
        """Return the reply to a probe, None if the server refuses it. A reply that was cut says
        nothing: it is asked for again with more tokens.
        """
        reply = None
        for tokens in _LOCAL_PROBE_TOKENS if self._known.is_local else _PROBE_TOKENS:
            deadline = datetime.now(UTC) + timedelta(seconds=_PROBE_SECONDS)
            try:
                messages = (message,) if self._known.is_local else (_SYSTEM, message)
                reply = await self._call(
                    ChatRequest(_PROBE_ID, messages, tokens, deadline, **how), model, None
                )
            except ModelReplyInvalid:
                return None
            except Rejected as error:
                if error.status not in _REFUSALS:
                    raise
                if error.status == _NOT_FOUND and not how.get("tools"):
                    raise
                log.info("the model server refuses the probe", said=error.message)
                return None
            if reply.calls or reply.finish_reason != "length" or reply.text.strip():
                return reply
        return reply

    async def _model_name(
        self, call_id: str, deadline: datetime | None = None, until: float | None = None
    ) -> str:
        async with asyncio.timeout_at(until), self._asking:
            if not self._model:
                self._model = await self._choose_model(call_id, deadline, until)
        return self._model

    async def _choose_model(
        self, call_id: str, deadline: datetime | None, until: float | None
    ) -> str:
        wanted = self._settings.model
        try:
            listed = await self._retry(call_id, deadline, until, self._list_models)
        except Rejected as error:
            if wanted and error.status in {400, 404, 405, 501}:
                return wanted  # a server that keeps no list; a wrong name shows at the first call
            raise self._translate(error) from error
        if wanted and wanted not in listed:
            raise ConfigurationError(
                f"{self._url} has no model {wanted!r}; it has: "
                f"{', '.join(listed)[:_NAMES_SHOWN] or 'none'} (MOOTHALL_LLM__MODEL)"
            )
        if not listed:
            raise ConfigurationError(
                f"{self._url} lists no models; name one with MOOTHALL_LLM__MODEL"
            )
        name = wanted or next(iter(listed))
        self._dialect = Dialect(self._settings, [listed[name].owner])
        known = self._known
        known.model, known.owner, known.window = name, listed[name].owner, listed[name].window
        known.window_source = "the server's list of models" if known.window else ""
        return name

    async def _list_models(self) -> dict[str, ListedModel]:
        """Return the models by name."""
        taken = WholeResponseReader(self._place, _LIST_BYTES)
        await self._exchange("GET", self._url / "models", taken, None)
        try:
            return read_models(taken.body)
        except ValueError as error:
            raise ConfigurationError(
                f"{self._url}/models answered with {one_line(taken.kind)}, not with a list of "
                "models; MOOTHALL_LLM__BASE_URL names an OpenAI-compatible root and usually ends "
                "with /v1"
            ) from error

    async def _ask(
        self,
        body: dict[str, Any],
        call_id: str,
        until: float | None,
        on_text: Callable[[str], None] | None,
        ours: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Make one attempt."""
        if ours is not None and not ours():
            raise asyncio.CancelledError
        started = time.monotonic()
        by_responses = self._known.api == "responses"
        assembly = ResponsesReply() if by_responses else PartialReply()
        taken = ChatResponseReader(self._place, self._settings.max_reply_bytes, on_text, assembly)
        named = JSON | {"X-Request-Id": call_id} | telemetry.headers()
        url = self._url / ("responses" if by_responses else "chat/completions")
        wire = (
            responses_body(body, int(body.get(self._known.limit_name) or 0))
            if by_responses
            else body
        )
        await self._exchange("POST", url, taken, until, body=encode(wire), headers=named, ours=ours)
        return self._read_reply(taken, body, call_id, started)

    def _read_reply(
        self, taken: ChatResponseReader, body: dict[str, Any], call_id: str, started: float
    ) -> ChatReply:
        """Return a complete reply, possibly an empty one. Raises `Failed` where it was cut."""
        assembly = taken.assembly
        text, refusal = "".join(assembly.text), "".join(assembly.refusal)
        finish_reason = _FINISHES.get(assembly.finish_reason.lower(), assembly.finish_reason)
        if not finish_reason:
            if not taken.streams and not (text or refusal or assembly.calls.calls):
                raise ModelReplyInvalid(
                    f"{self._url} answered with JSON that holds no reply: "
                    f"{one_line(taken.body.decode(errors='replace'))}"
                )
            if not assembly.done and taken.streams:
                raise Failed(f"the answer was cut after {len(text)} characters: no finish_reason")
            finish_reason = "tool_calls" if assembly.calls.calls else "stop"
        thought, text = split_thinking(text)
        if body.get("tools") and not assembly.calls.calls:
            written, text = split_calls(text, body["tools"])
            assembly.calls.read(written, whole=True)
            self._known.writes_calls = self._known.writes_calls or bool(written)
        calls = assembly.calls.finish(call_id)
        if refusal and not text.strip() and not calls:
            text, finish_reason = refusal, "refusal"
        self._dialect.notice(assembly.usage)
        reasoning = assembly.reasoning_fields() | ({"think": thought} if thought.strip() else {})
        self._known.notice(
            assembly.usage,
            reasoning,
            whole=finish_reason == "stop" and not text.strip() and not calls,
        )
        prompt_chars = sum(len(str(message.get("content") or "")) for message in body["messages"])
        return ChatReply(
            text,
            finish_reason,
            count_usage(assembly.usage, prompt_chars, assembly.size, self._settings),
            assembly.model or body["model"],
            round((time.monotonic() - started) * 1000),
            calls=calls,
            reasoning=json.dumps(reasoning, ensure_ascii=False) if reasoning else "",
            digits=tuple(assembly.digits),
            earlier_digits=tuple(assembly.earlier_digits),
        )

    async def _exchange(
        self,
        method: str,
        url: URL,
        taken: WholeResponseReader,
        until: float | None,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        ours: Callable[[], bool] | None = None,
    ) -> None:
        """Make one exchange, bounded by `call_seconds`; return where it succeeded, and translate
        what may go wrong in it.

        Raises `TimeoutError` at `until`, a time of the loop, where that comes first.
        """
        limit = self._loop.time() + self._settings.call_seconds
        first = limit if until is None else min(limit, until)
        try:
            await self._pool.ask(
                method, url, taken, until=first, body=body, headers=headers, ours=ours
            )
        except BrokenStream as error:
            if error.permanent:
                told = error.error
                raise Rejected(
                    told.status, told.message, text=told.text, param=told.param, code=told.code
                ) from error
            raise Failed(error.reason) from error
        except TimeoutError as error:
            if first != limit:
                raise
            raise DeadlineExceeded(
                f"{self._url} did not finish its answer within {self._settings.call_seconds:g} s "
                "(MOOTHALL_LLM__CALL_SECONDS)"
            ) from error
        taken.raise_refusal()

    async def _retry(
        self,
        call_id: str,
        deadline: datetime | None,
        until: float | None,
        attempt: Callable[[], Awaitable[T]],
    ) -> T:
        """Attempt until it works, the retries are used up or the deadline would pass in waiting.
        `until` is the deadline in the loop's time: `TimeoutError` where there was no place until
        then.
        """
        for tried in itertools.count(1):
            if self._slots.locked():
                async with asyncio.timeout_at(until):
                    await self._slots.acquire()
            else:
                await self._slots.acquire()
            try:
                return await attempt()
            except Failed as failure:
                if tried > self._settings.retries:
                    raise ModelUnavailable(
                        f"{self._url} failed {tried} times, the last time with: {failure.reason}",
                        failure.retry_after,
                    ) from failure
                delay = retry.delay_before(
                    tried, call_id, self._settings.retry_seconds, failure.retry_after
                )
                if failure.at_once and tried == 1:
                    delay = 0.0
                if deadline and delay >= seconds_until(deadline):
                    raise DeadlineExceeded(
                        f"model call {call_id}: {self._url} failed {tried} times "
                        f"({failure.reason}), and its deadline comes before another attempt could"
                    ) from failure
                telemetry.metrics.MODEL_RETRIES.add()
                log.warning(
                    "model call failed, trying again",
                    call_id=call_id,
                    reason=failure.reason,
                    tried=tried,
                    delay=round(delay, 2),
                )
            finally:
                self._slots.release()
            await asyncio.sleep(delay)
        raise AssertionError  # pragma: no cover - count() does not end

    def _translate(self, error: Rejected) -> ConfigurationError | ModelReplyInvalid:
        if is_overflow(error):
            return ContextOverflow(
                f"the conversation is longer than the window of model {self._model} at "
                f"{self._url}: HTTP {error.status}: {error.message}; set "
                "MOOTHALL_LLM__CONTEXT_TOKENS to the server's window",
                read_window(error.text),
            )
        return translate_refusal(error, str(self._url), self._model or self._settings.model)


def _thought_only(reply: ChatReply) -> bool:
    """Return whether the model's reasoning filled the limit of the reply."""
    return reply.finish_reason == "length" and not reply.text.strip() and not reply.calls


@asynccontextmanager
async def open_model(settings: LlmSettings, base_url: str) -> AsyncIterator[OpenAIModel]:
    """Open a client for the server at `base_url`. Raises `ConfigurationError` for what is no URL;
    calls nobody yet.
    """
    async with open_pool(settings, base_url) as pool:
        yield OpenAIModel(settings, pool)
