"""A client for any OpenAI-compatible chat server.

Responses are always streamed, so that silence, a lost connection and an endless response are
detected. An attempt that failed for a temporary reason is repeated after a growing delay. If all
attempts fail, the client raises `ModelUnavailable`; it never makes up a reply.
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
from moothall.llm import server_errors
from moothall.llm.capabilities import Capabilities, is_overflow, read_window
from moothall.llm.pool import ConnectionPool, open_pool
from moothall.llm.reply_parts import split_calls, split_thinking
from moothall.llm.requests import (
    JSON,
    Dialect,
    ServerMetrics,
    chat_body,
    count_usage,
    encode,
    read_metrics,
    without_nulls,
)
from moothall.llm.responses_api import ResponsesReply, responses_body
from moothall.llm.server_errors import Failed, ListedModel, Rejected, read_models, translate_refusal
from moothall.llm.stream import BrokenStream, ChatResponseReader, PartialReply, WholeResponseReader
from moothall.llm.windows import FETCH_SECONDS, find_window

T = TypeVar("T")
log = telemetry.get_logger(__name__)

_LIST_BYTES = 4_000_000
_METRICS_BYTES = 4_000_000
_METRICS_SECONDS = 10.0
_NAMES_SHOWN = 500
_OK, _NOT_FOUND = 200, 404
_REFUSAL_STATUSES = frozenset({400, 404, 405, 413, 415, 422, 500, 501})
"""Statuses of refusals that may name a part of the request."""
_PROBE_ID = "-/-/probe/0.0"
_PROBE_TOKENS = (4096, 16_384)
"""Limits of the attempts of a probe: a reasoning model may fill the first before it answers."""
_LOCAL_PROBE_TOKENS = (32,)
_PROBE_SECONDS = 600.0
_QUESTION = "Is water wet?"
_PROBE_SCHEMA = {
    "type": "object",
    "properties": {"wet": {"type": "boolean"}},
    "required": ["wet"],
    "additionalProperties": False,
}
_FINISH_REASONS = {
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "end_turn": "stop",
    "eos": "stop",
}
"""Finish reasons of other APIs, translated to those of chat completions."""
_ALTERNATIVES_SCHEMA = {
    "anyOf": [
        _PROBE_SCHEMA,
        {**_PROBE_SCHEMA, "properties": {"unsure": {"type": "boolean"}}, "required": ["unsure"]},
    ],
}
"""A schema with alternatives at the root, like the schemas of turns."""
_SYSTEM = Message("system", "You answer questions.")
_RETRY_SECONDS = 0.5
_MAX_REPLY_BYTES = 4_000_000


class OpenAIModel:
    """Implements `ChatModel`. Created by `open_model`; belongs to one event loop.

    retry_seconds: the first delay before a call is repeated; it doubles, up to 30. max_reply_bytes:
    a longer reply is refused.
    """

    def __init__(
        self,
        settings: LlmSettings,
        pool: ConnectionPool,
        *,
        retry_seconds: float = _RETRY_SECONDS,
        max_reply_bytes: int = _MAX_REPLY_BYTES,
    ) -> None:
        self._settings = settings
        self._retry_seconds, self._max_reply_bytes = retry_seconds, max_reply_bytes
        self._pool = pool
        self._url = pool.url
        self._base_url = str(pool.url)
        self._chat_url, self._responses_url = (
            pool.url / "chat/completions",
            pool.url / "responses",
        )
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._setup_lock = asyncio.Lock()
        self._model = ""
        self._dialect = Dialect(settings)
        self._capabilities = Capabilities()
        self._apply_settings()
        self._window_searched = False

    def _apply_settings(self) -> None:
        """Set the capabilities that the settings fix."""
        if self._settings.reply != "auto":
            self._capabilities.reply_mode = self._settings.reply
        if self._settings.api != "auto":
            self._capabilities.api, self._capabilities.api_fixed = self._settings.api, True

    @property
    def url(self) -> str:
        """The server's root, without a key."""
        return self._base_url

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities found so far."""
        return self._capabilities

    async def chat(
        self,
        request: ChatRequest,
        on_text: Callable[[str], None] | None = None,
        *,
        owns_work: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Return the complete reply, which may be empty. `on_text` receives each new piece of text,
        including reasoning in the text; after an interrupted stream the reply starts again.
        `owns_work` is called before each attempt; if it returns False, the call is cancelled.

        Raises `ModelUnavailable` if all retries failed, `ContextOverflow` if the conversation is
        longer than the window, `ModelReplyInvalid` for a response that is not a reply,
        `DeadlineExceeded`, and `ConfigurationError` for a wrong model name, key or URL.
        """
        remaining = seconds_until(request.deadline)
        if remaining <= 0:
            raise DeadlineExceeded(
                f"the deadline of model call {request.call_id} had passed before it began"
            )
        until = self._loop.time() + remaining
        try:
            model = self._model or await self._model_name(request.call_id, request.deadline, until)
            return await self._call_server(request, model, until, on_text, owns_work)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"model call {request.call_id} to {self._url} was not answered by its deadline"
            ) from error
        except Rejected as error:
            raise self._translate_error(error) from error

    async def _call_server(
        self,
        request: ChatRequest,
        model: str,
        until: float | None,
        on_text: Callable[[str], None] | None = None,
        owns_work: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Send a request in the form that this server accepts. After a refusal that names a part of
        the request, send it without that part. If reasoning filled the reply, repeat the request
        once with a higher limit.
        """
        body = chat_body(request, model) | self._dialect.additions(request)
        if self._settings.reasoning_effort:
            body["reasoning_effort"] = self._settings.reasoning_effort
        deadline = None if until is None else request.deadline
        reply_limit, usage = 0, Usage()
        while True:
            reasoning_tokens = self._capabilities.reasoning_tokens
            max_tokens = request.max_tokens + reasoning_tokens
            adapted = self._capabilities.adapt({**body, "max_tokens": max_tokens})
            sent_body = self._capabilities.limit_reply(adapted, reply_limit)
            try:
                attempt = functools.partial(
                    self._send_once, sent_body, request.call_id, until, on_text, owns_work
                )
                reply = await self._retry_until(request.call_id, deadline, until, attempt)
            except Rejected as error:
                self._learn_from_refusal(
                    error,
                    adapted,
                    is_schema_probe=request.call_id == _PROBE_ID and request.schema is not None,
                )
                available = (
                    0
                    if reply_limit
                    else self._capabilities.available_reply_tokens(error, sent_body)
                )
                if (
                    not available
                    and self._capabilities.adapt({**body, "max_tokens": max_tokens}) == adapted
                ):
                    raise
                reply_limit = available or reply_limit
                continue
            usage += reply.usage
            if (
                _is_filled_by_reasoning(reply)
                and request.call_id != _PROBE_ID
                and self._capabilities.add_reasoning_tokens(reasoning_tokens)
            ):
                continue
            return self._restore_schema(request, replace(reply, usage=usage))

    def _learn_from_refusal(
        self, error: Rejected, sent_body: Mapping[str, Any], *, is_schema_probe: bool
    ) -> None:
        """Record what a refusal says about the request. Raise it again if it says nothing, or if it
        answers a probe of schemas.
        """
        if error.status not in _REFUSAL_STATUSES:
            raise error
        self._capabilities.learn_from_refusal(error, sent_body)
        if is_schema_probe and self._capabilities.schema == "none":
            raise error

    def _restore_schema(self, request: ChatRequest, reply: ChatReply) -> ChatReply:
        """Return a reply in the schema of the request."""
        if request.schema and self._capabilities.schema == "strict":
            reply = replace(reply, text=without_nulls(reply.text))
        if request.schema and reply.finish_reason == "length":
            self._dialect.check_whitespace(reply.text)
        return reply

    async def server_metrics(self) -> ServerMetrics | None:
        """Return the metrics of a vLLM server; None for other servers. Raises what `chat`
        raises.
        """
        try:
            await self._model_name("-/-/figures/0.0")
            if not self._dialect.is_vllm:
                return None
            reader = WholeResponseReader(self._base_url, _METRICS_BYTES)
            await self._exchange_request(
                "GET", self._url.with_path("/metrics"), reader, self._loop.time() + _METRICS_SECONDS
            )
        except Failed as failure:
            raise ModelUnavailable(
                f"{self._url.with_path('/metrics')}: {failure.reason}"
            ) from failure
        except TimeoutError as error:
            raise ModelUnavailable(
                f"{self._url.with_path('/metrics')} did not answer within {_METRICS_SECONDS:g} s"
            ) from error
        except Rejected as error:
            raise self._translate_error(error) from error
        metrics = read_metrics(reader.body.decode(errors="replace"))
        self._dialect.check_metrics(metrics)
        return metrics

    async def reply_mode(self) -> ReplyMode:
        """Return how the model makes tool calls (tools, json or blocks): the mode in the settings,
        or under `auto` the mode that a probe finds.
        """
        if self._capabilities.reply_mode is None:
            model = await self._model_name(_PROBE_ID)
            async with self._setup_lock:
                if self._capabilities.reply_mode is None:
                    self._capabilities.reply_mode = await self._probe_mode(model)
                    log.info(
                        "reply mode detected",
                        mode=self._capabilities.reply_mode,
                        url=str(self._url),
                    )
        return self._capabilities.reply_mode

    async def describe(self) -> ModelDescription:
        """Return the model's name, reply mode and window. Raises what `reply_mode` raises."""
        mode = await self.reply_mode()
        await self._model_name(_PROBE_ID)
        async with self._setup_lock:
            if (
                not self._window_searched
                and not self._capabilities.window
                and not self._capabilities.is_local
            ):
                self._window_searched = True
                self._capabilities.window, self._capabilities.window_source = await find_window(
                    self._fetch_json, self._url, self._model
                )
        capabilities = self._capabilities
        source = (
            "the settings of the local model"
            if capabilities.is_local
            else capabilities.window_source
        )
        return ModelDescription(
            self._model,
            mode,
            capabilities.api,
            capabilities.window,
            source,
            capabilities.max_reply_tokens,
        )

    async def examine(self) -> list[str]:
        """Return the server's capabilities as lines for people, after probing what no call has
        shown yet. Raises what `reply_mode` raises.
        """
        description = await self.describe()
        try:
            if self._capabilities.obeys_schema is None and not self._capabilities.is_local:
                await self._probe_schema(self._model, _ALTERNATIVES_SCHEMA)
            if description.reply == "blocks":  # no earlier probe was answered
                await self._send_probe(self._model, Message("user", _QUESTION))
        except Rejected as error:
            raise self._translate_error(error) from error
        return self._capabilities.describe()

    async def _fetch_json(self, method: str, url: URL, body: dict[str, Any] | None) -> Any:
        """Return the JSON value at a URL outside the API, or None. Only some kinds of servers have
        such a URL.
        """
        reader = WholeResponseReader(self._base_url, _LIST_BYTES)
        raw = encode(body) if body is not None else b""
        try:
            until = self._loop.time() + FETCH_SECONDS
            await self._pool.request(
                method, url, reader, until=until, body=raw, headers=JSON if raw else None
            )
            return json.loads(reader.body) if reader.status == _OK else None
        except (Failed, TimeoutError, ModelReplyInvalid, ValueError, RecursionError):
            return None

    async def _probe_mode(self, model: str) -> ReplyMode:
        """Return the best reply mode that the model supports."""
        try:
            if not self._capabilities.is_local:
                self._capabilities.tools = await self._probe_tools(model)
                if self._capabilities.tools:
                    return "tools"
            return "json" if await self._probe_schema(model) else "blocks"
        except Rejected as error:
            raise self._translate_error(error) from error

    async def _probe_tools(self, model: str) -> bool:
        """Return whether the model calls a tool. The result is also True if the server accepts
        tools but reasoning fills the reply.
        """
        tool = FunctionTool("answer", "Answer the question.", _PROBE_SCHEMA)
        message = Message("user", f"{_QUESTION} Call the tool `answer` with the answer.")
        reply = await self._send_probe(model, message, tools=(tool,))
        return reply is not None and (
            bool(reply.calls) or (reply.finish_reason == "length" and not reply.text.strip())
        )

    async def _probe_schema(self, model: str, schema: Mapping[str, Any] = _PROBE_SCHEMA) -> bool:
        """Return whether the server obeys a schema. The model replies to this question with a JSON
        object only if the server constrains the reply.
        """
        message = Message("user", f"{_QUESTION} Answer yes or no.")
        reply = await self._send_probe(model, message, schema=ReplySchema("probe", schema))
        self._capabilities.obeys_schema = (
            reply is not None
            and self._capabilities.schema != "none"
            and reply.text.lstrip().startswith("{")
        )
        return self._capabilities.obeys_schema

    async def _send_probe(self, model: str, message: Message, **options: Any) -> ChatReply | None:
        """Return the reply to a probe, None if the server refuses it. A truncated reply proves
        nothing, so the probe is repeated with more tokens.
        """
        reply = None
        for tokens in _LOCAL_PROBE_TOKENS if self._capabilities.is_local else _PROBE_TOKENS:
            deadline = datetime.now(UTC) + timedelta(seconds=_PROBE_SECONDS)
            try:
                messages = (message,) if self._capabilities.is_local else (_SYSTEM, message)
                reply = await self._call_server(
                    ChatRequest(_PROBE_ID, messages, tokens, deadline, **options), model, None
                )
            except ModelReplyInvalid:
                return None
            except Rejected as error:
                if error.status not in _REFUSAL_STATUSES:
                    raise
                if error.status == _NOT_FOUND and not options.get("tools"):
                    raise
                log.info("the model server refused the probe", reason=error.message)
                return None
            if reply.calls or reply.finish_reason != "length" or reply.text.strip():
                return reply
        return reply

    async def _model_name(
        self, call_id: str, deadline: datetime | None = None, until: float | None = None
    ) -> str:
        async with asyncio.timeout_at(until), self._setup_lock:
            if not self._model:
                self._model = await self._choose_model(call_id, deadline, until)
        return self._model

    async def _choose_model(
        self, call_id: str, deadline: datetime | None, until: float | None
    ) -> str:
        configured = self._settings.model
        try:
            served_models = await self._retry_until(call_id, deadline, until, self._list_models)
        except Rejected as error:
            if configured and error.status in {400, 404, 405, 501}:
                return configured  # the server has no list; the first call shows a wrong name
            raise self._translate_error(error) from error
        if configured and configured not in served_models:
            raise ConfigurationError(
                f"{self._url} has no model {configured!r}; it has: "
                f"{', '.join(served_models)[:_NAMES_SHOWN] or 'none'} (MOOTHALL_LLM__MODEL)"
            )
        if not served_models:
            raise ConfigurationError(
                f"{self._url} lists no models; name one with MOOTHALL_LLM__MODEL"
            )
        name = configured or next(iter(served_models))
        self._dialect = Dialect(self._settings, [served_models[name].owner])
        capabilities = self._capabilities
        capabilities.model, capabilities.owner, capabilities.window = (
            name,
            served_models[name].owner,
            served_models[name].window,
        )
        capabilities.window_source = "the server's list of models" if capabilities.window else ""
        return name

    async def _list_models(self) -> dict[str, ListedModel]:
        """Return the models by name."""
        reader = WholeResponseReader(self._base_url, _LIST_BYTES)
        await self._exchange_request("GET", self._url / "models", reader, None)
        try:
            return read_models(reader.body)
        except ValueError as error:
            raise ConfigurationError(
                f"{self._url}/models returned {one_line(reader.content_type)}, not a list of "
                "models; set MOOTHALL_LLM__BASE_URL to the root of an OpenAI-compatible API, which "
                "usually ends with /v1"
            ) from error

    async def _send_once(
        self,
        body: dict[str, Any],
        call_id: str,
        until: float | None,
        on_text: Callable[[str], None] | None,
        owns_work: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Send the request once."""
        if owns_work is not None and not owns_work():
            raise asyncio.CancelledError
        started_at = time.monotonic()
        by_responses = self._capabilities.api == "responses"
        partial_reply = ResponsesReply() if by_responses else PartialReply()
        reader = ChatResponseReader(self._base_url, self._max_reply_bytes, on_text, partial_reply)
        headers = JSON | {"X-Request-Id": call_id} | telemetry.headers()
        url = self._responses_url if by_responses else self._chat_url
        payload = (
            responses_body(body, int(body.get(self._capabilities.limit_name) or 0))
            if by_responses
            else body
        )
        await self._exchange_request(
            "POST", url, reader, until, body=encode(payload), headers=headers, owns_work=owns_work
        )
        return self._read_reply(reader, body, call_id, started_at)

    def _read_reply(
        self, reader: ChatResponseReader, body: dict[str, Any], call_id: str, started_at: float
    ) -> ChatReply:
        """Return the complete reply, which may be empty. Raise `Failed` if it was cut off."""
        partial = reader.reply
        text, refusal = "".join(partial.text), "".join(partial.refusal)
        finish_reason = _FINISH_REASONS.get(partial.finish_reason.lower(), partial.finish_reason)
        if not finish_reason:
            if not reader.is_stream and not (text or refusal or partial.calls.calls):
                raise ModelReplyInvalid(
                    f"{self._url} answered with JSON that holds no reply: "
                    f"{one_line(reader.body.decode(errors='replace'))}"
                )
            if not partial.done and reader.is_stream:
                raise Failed(
                    f"the response was cut off after {len(text)} characters: no finish_reason"
                )
            finish_reason = "tool_calls" if partial.calls.calls else "stop"
        thinking, text = split_thinking(text)
        if body.get("tools") and not partial.calls.calls:
            written_calls, text = split_calls(text, body["tools"])
            partial.calls.read(written_calls, complete=True)
            self._capabilities.writes_calls_as_text |= bool(written_calls)
        calls = partial.calls.finish(call_id)
        if refusal and not text.strip() and not calls:
            text, finish_reason = refusal, "refusal"
        self._dialect.check_usage(partial.usage)
        reasoning = partial.reasoning_fields() | ({"think": thinking} if thinking.strip() else {})
        self._capabilities.record_reply(
            partial.usage,
            reasoning,
            has_no_answer=finish_reason == "stop" and not text.strip() and not calls,
        )
        prompt_chars = sum(len(str(message.get("content") or "")) for message in body["messages"])
        return ChatReply(
            text,
            finish_reason,
            count_usage(partial.usage, prompt_chars, partial.size, self._settings),
            partial.model or body["model"],
            round((time.monotonic() - started_at) * 1000),
            calls=calls,
            reasoning=json.dumps(reasoning, ensure_ascii=False) if reasoning else "",
            digits=tuple(partial.digits),
            earlier_digits=tuple(partial.earlier_digits),
        )

    async def _exchange_request(
        self,
        method: str,
        url: URL,
        reader: WholeResponseReader,
        until: float | None,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        owns_work: Callable[[], bool] | None = None,
    ) -> None:
        """Send one request, limited by `call_seconds`, and translate its errors.

        Raises `TimeoutError` at `until`, a time of the loop, if that comes first.
        """
        limit = self._loop.time() + self._settings.call_seconds
        earliest = limit if until is None else min(limit, until)
        try:
            await self._pool.request(
                method, url, reader, until=earliest, body=body, headers=headers, owns_work=owns_work
            )
        except BrokenStream as failure:
            if failure.permanent:
                error = failure.error
                raise Rejected(
                    error.status, error.message, text=error.text, param=error.param, code=error.code
                ) from failure
            raise Failed(failure.reason) from failure
        except TimeoutError as timeout:
            if earliest != limit:
                raise
            raise DeadlineExceeded(
                f"{self._url} did not finish its response within {self._settings.call_seconds:g} s "
                "(MOOTHALL_LLM__CALL_SECONDS)"
            ) from timeout
        reader.raise_refusal()

    async def _retry_until(
        self,
        call_id: str,
        deadline: datetime | None,
        until: float | None,
        attempt: Callable[[], Awaitable[T]],
    ) -> T:
        """Repeat `attempt` until it succeeds, the retries are used up or the deadline would pass
        during the delay. `until` is the deadline in the loop's time. Raises `TimeoutError` if no
        slot was free until then.
        """
        for attempts in itertools.count(1):
            if self._slots.locked():
                async with asyncio.timeout_at(until):
                    await self._slots.acquire()
            else:
                await self._slots.acquire()
            try:
                return await attempt()
            except Failed as failure:
                if attempts > self._settings.retries:
                    failed = "failed" if attempts == 1 else f"failed {attempts} times, last"
                    raise ModelUnavailable(
                        f"{self._url} {failed}: {failure.reason}",
                        failure.retry_after,
                    ) from failure
                delay = server_errors.delay_before(
                    attempts, call_id, self._retry_seconds, failure.retry_after
                )
                if failure.at_once and attempts == 1:
                    delay = 0.0
                if deadline and delay >= seconds_until(deadline):
                    raise DeadlineExceeded(
                        f"model call {call_id}: {self._url} failed {attempts} times "
                        f"({failure.reason}), and no attempt is possible before its deadline"
                    ) from failure
                telemetry.metrics.MODEL_RETRIES.add()
                log.warning(
                    "model call failed, trying again",
                    call_id=call_id,
                    reason=failure.reason,
                    attempts=attempts,
                    delay=round(delay, 2),
                )
            finally:
                self._slots.release()
            await asyncio.sleep(delay)
        raise AssertionError  # pragma: no cover - count() does not end

    def _translate_error(self, error: Rejected) -> ConfigurationError | ModelReplyInvalid:
        if is_overflow(error):
            return ContextOverflow(
                f"the conversation is longer than the window of model {self._model} at "
                f"{self._url}: HTTP {error.status}: {error.message}; set "
                "MOOTHALL_LLM__CONTEXT_TOKENS to the server's window",
                read_window(error.text),
            )
        return translate_refusal(error, str(self._url), self._model or self._settings.model)


def _is_filled_by_reasoning(reply: ChatReply) -> bool:
    """Return whether reasoning reached the reply's limit, so that there is no answer."""
    return reply.finish_reason == "length" and not reply.text.strip() and not reply.calls


@asynccontextmanager
async def open_model(
    settings: LlmSettings,
    base_url: str,
    *,
    retry_seconds: float = _RETRY_SECONDS,
    max_reply_bytes: int = _MAX_REPLY_BYTES,
) -> AsyncIterator[OpenAIModel]:
    """Open a client for the server at `base_url`. Raises `ConfigurationError` for an invalid URL;
    sends no request yet.
    """
    async with open_pool(settings, base_url) as pool:
        yield OpenAIModel(
            settings, pool, retry_seconds=retry_seconds, max_reply_bytes=max_reply_bytes
        )
