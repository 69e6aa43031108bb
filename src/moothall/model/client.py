"""A client for any OpenAI-compatible chat server.

Answers are always streamed: that is how silence, a cut line and an answer without end are noticed.
An attempt that failed for a reason that may go away is made again after a growing delay; what is left
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
from datetime import datetime
from typing import Any, TypeVar

from yarl import URL

from moothall import telemetry
from moothall.aio import seconds_until
from moothall.config import LlmSettings
from moothall.domain.chat import ChatReply, ChatRequest, ReplyMode
from moothall.domain.text import one_line
from moothall.errors import ConfigurationError, DeadlineExceeded, ModelReplyInvalid, ModelUnavailable
from moothall.model import retry
from moothall.model.bodies import JSON, STREAMED, body_of, count_usage, encode
from moothall.model.dialect import Dialect, ServerFigures, read_figures
from moothall.model.pool import ConnectionPool, open_pool
from moothall.model.retry import Failed, Rejected, translate_refusal
from moothall.model.said import read_models
from moothall.model.stream import BrokenStream
from moothall.model.takers import ChatTaker, WholeTaker

T = TypeVar("T")
log = telemetry.get_logger(__name__)

_LIST_BYTES = 4_000_000
_METRICS_BYTES = 4_000_000
_METRICS_SECONDS = 10.0
_NAMES_SHOWN = 500
_UNPROCESSABLE = frozenset({400, 422})
_PROBE = {
    "type": "object",
    "properties": {"wet": {"type": "boolean"}},
    "required": ["wet"],
    "additionalProperties": False,
}


class OpenAIModel:
    """The port `ChatModel`. Made by `open_model`; belongs to one event loop."""

    def __init__(self, settings: LlmSettings, pool: ConnectionPool) -> None:
        self._settings = settings
        self._pool = pool
        self._url = pool.url
        self._chat_url = pool.url / "chat/completions"
        self._place = str(pool.url)
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._asking = asyncio.Lock()
        self._model = ""
        self._dialect = Dialect(settings)
        self._mode: ReplyMode | None = None if settings.reply == "auto" else settings.reply

    @property
    def url(self) -> str:
        """The server's root, without a key."""
        return self._place

    async def chat(
        self, request: ChatRequest, on_text: Callable[[str], None] | None = None, *, ours: Callable[[], bool] | None = None
    ) -> ChatReply:
        """Return the whole answer. `on_text` is given each new piece of text; after a cut stream the answer
        is said again from its beginning. Before each attempt `ours` must agree.

        Raises `ModelUnavailable` once retries are used up, `ModelReplyInvalid` for an answer that is none,
        `DeadlineExceeded`, and `ConfigurationError` for a wrong model name, key or URL.
        """
        left = seconds_until(request.deadline)
        if left <= 0:
            raise DeadlineExceeded(f"the deadline of model call {request.call_id} had passed before it began")
        until = self._loop.time() + left
        try:
            model = self._model or await self._model_name(request.call_id, request.deadline, until)
            return await self._in_dialect(request, body_of(request, model), until, on_text, ours)
        except TimeoutError as error:
            raise DeadlineExceeded(f"model call {request.call_id} to {self._url} was not answered by its deadline") from error
        except Rejected as error:
            raise self._translate(error) from error

    async def _in_dialect(
        self,
        request: ChatRequest,
        body: dict[str, Any],
        until: float,
        on_text: Callable[[str], None] | None,
        ours: Callable[[], bool] | None,
    ) -> ChatReply:
        """Make the call with what this server understands beyond the common; without, where it refuses that."""
        while True:
            more = self._dialect.additions(request)
            try:
                attempt = functools.partial(self._ask, {**body, **more}, request.call_id, until, on_text, ours)
                reply = await self._retry(request.call_id, request.deadline, until, attempt)
            except Rejected as error:
                if error.status not in _UNPROCESSABLE or not self._dialect.unlearn(error.message, more):
                    raise
                continue
            if request.schema and reply.finish_reason == "length":
                self._dialect.notice_blanks(reply.text)
            return reply

    async def figures(self) -> ServerFigures | None:
        """Return vLLM's own figures; None where the server is no vLLM. Raises what `chat` raises."""
        try:
            await self._model_name("-/-/figures/0.0")
            if not self._dialect.is_vllm:
                return None
            taken = WholeTaker(self._place, _METRICS_BYTES)
            await self._exchange("GET", self._url.with_path("/metrics"), taken, self._loop.time() + _METRICS_SECONDS)
        except Failed as failure:
            raise ModelUnavailable(f"{self._url.with_path('/metrics')}: {failure.reason}") from failure
        except TimeoutError as error:
            raise ModelUnavailable(f"{self._url.with_path('/metrics')} said nothing for {_METRICS_SECONDS:g} s") from error
        except Rejected as error:
            raise self._translate(error) from error
        figures = read_figures(taken.body.decode(errors="replace"))
        self._dialect.notice_missing(figures)
        return figures

    async def reply_mode(self) -> ReplyMode:
        """Return what the operator chose; under `auto` ask the server once: json if it obeys a schema, else blocks."""
        if self._mode is None:
            model = await self._model_name("-/-/probe/0.0")
            async with self._asking:
                if self._mode is None:
                    self._mode = await self._probe(model)
                    log.info("reply mode found out", mode=self._mode, url=str(self._url))
        return self._mode

    async def _probe(self, model: str) -> ReplyMode:
        """Ask something that only a constrained reply answers with a JSON object."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Is water wet? Answer yes or no."}],
            "max_tokens": 32,
            "temperature": 0.0,
            "response_format": {"type": "json_schema", "json_schema": {"name": "probe", "strict": True, "schema": _PROBE}},
            **STREAMED,
        }
        try:
            reply = await self._retry("-/-/probe/0.0", None, None, lambda: self._ask(body, "-/-/probe/0.0", None, None))
        except Rejected as error:
            if error.status in {*_UNPROCESSABLE, 415, 501}:
                return "blocks"
            raise self._translate(error) from error
        except ModelReplyInvalid:
            return "blocks"
        return "json" if reply.text.lstrip().startswith("{") else "blocks"

    async def _model_name(self, call_id: str, deadline: datetime | None = None, until: float | None = None) -> str:
        async with asyncio.timeout_at(until), self._asking:
            if not self._model:
                self._model = await self._choose_model(call_id, deadline, until)
        return self._model

    async def _choose_model(self, call_id: str, deadline: datetime | None, until: float | None) -> str:
        wanted = self._settings.model
        try:
            listed = await self._retry(call_id, deadline, until, self._list_models)
        except Rejected as error:
            if wanted and error.status in {404, 405, 501}:
                return wanted  # a server that keeps no list; a wrong name shows at the first call
            raise self._translate(error) from error
        if wanted and wanted not in listed:
            raise ConfigurationError(
                f"{self._url} has no model {wanted!r}; it has: {', '.join(listed)[:_NAMES_SHOWN] or 'none'} (MOOTHALL_LLM__MODEL)"
            )
        if not listed:
            raise ConfigurationError(f"{self._url} lists no models; name one with MOOTHALL_LLM__MODEL")
        name = wanted or next(iter(listed))
        self._dialect = Dialect(self._settings, [listed[name]])
        return name

    async def _list_models(self) -> dict[str, str]:
        """Return the models and their owners."""
        taken = WholeTaker(self._place, _LIST_BYTES)
        await self._exchange("GET", self._url / "models", taken, None)
        try:
            return read_models(taken.body)
        except ValueError as error:
            raise ConfigurationError(
                f"{self._url}/models answered with {one_line(taken.kind)}, not with a list of models; "
                "MOOTHALL_LLM__BASE_URL names an OpenAI-compatible root and usually ends with /v1"
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
        taken = ChatTaker(self._place, self._settings.max_reply_bytes, on_text)
        named = JSON | {"X-Request-Id": call_id} | telemetry.headers()
        await self._exchange("POST", self._chat_url, taken, until, body=encode(body), headers=named, ours=ours)
        return self._read_reply(taken, body, call_id, started)

    def _read_reply(self, taken: ChatTaker, body: dict[str, Any], call_id: str, started: float) -> ChatReply:
        """Return a complete reply, possibly an empty one. Raises `Failed` where it was cut."""
        assembly = taken.assembly
        text, refusal = "".join(assembly.text), "".join(assembly.refusal)
        calls = assembly.calls.finish(call_id)
        finish_reason = assembly.finish_reason
        if not finish_reason:
            raise Failed(f"the answer was cut after {len(text)} characters: no finish_reason")
        if refusal and not text.strip() and not calls:
            text, finish_reason = refusal, "refusal"
        self._dialect.notice(assembly.usage)
        reasoning = assembly.reasoning.fields() | ({"extras": extras} if (extras := assembly.calls.extras) else {})
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
        )

    async def _exchange(
        self,
        method: str,
        url: URL,
        taken: WholeTaker,
        until: float | None,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        ours: Callable[[], bool] | None = None,
    ) -> None:
        """Make one exchange, bounded by `call_seconds`; return where it succeeded, and translate what may go wrong in it.

        Raises `TimeoutError` at `until`, a time of the loop, where that comes first.
        """
        limit = self._loop.time() + self._settings.call_seconds
        first = limit if until is None else min(limit, until)
        try:
            await self._pool.ask(method, url, taken, until=first, body=body, headers=headers, ours=ours)
        except BrokenStream as error:
            if error.permanent:
                raise ModelReplyInvalid(f"{self._url}: {error.reason}") from error
            raise Failed(error.reason) from error
        except TimeoutError as error:
            if first != limit:
                raise
            raise DeadlineExceeded(
                f"{self._url} did not finish its answer within {self._settings.call_seconds:g} s (MOOTHALL_LLM__CALL_SECONDS)"
            ) from error
        taken.raise_refusal()

    async def _retry(
        self, call_id: str, deadline: datetime | None, until: float | None, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        """Attempt until it works, the retries are used up or the deadline would pass in waiting. `until` is the deadline in the
        loop's time: `TimeoutError` where there was no place until then.
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
                        f"{self._url} failed {tried} times, the last time with: {failure.reason}", failure.retry_after
                    ) from failure
                delay = retry.delay_before(tried, call_id, self._settings.retry_seconds, failure.retry_after)
                if failure.at_once and tried == 1:
                    delay = 0.0
                if deadline and delay >= seconds_until(deadline):
                    raise DeadlineExceeded(
                        f"model call {call_id}: {self._url} failed {tried} times ({failure.reason}), and its deadline "
                        f"comes before another attempt could"
                    ) from failure
                telemetry.metrics.MODEL_RETRIES.add()
                log.warning(
                    "model call failed, trying again", call_id=call_id, reason=failure.reason, tried=tried, delay=round(delay, 2)
                )
            finally:
                self._slots.release()
            await asyncio.sleep(delay)
        raise AssertionError  # pragma: no cover - count() does not end

    def _translate(self, error: Rejected) -> ConfigurationError | ModelReplyInvalid:
        return translate_refusal(error, str(self._url), self._model or self._settings.model)


@asynccontextmanager
async def open_model(settings: LlmSettings, base_url: str) -> AsyncIterator[OpenAIModel]:
    """Open a client for the server at `base_url`. Raises `ConfigurationError` for what is no URL; calls nobody yet."""
    async with open_pool(settings, base_url) as pool:
        yield OpenAIModel(settings, pool)
