"""A client for any OpenAI-compatible chat server, over aiohttp.

Answers are always streamed: that is how silence, a cut line and an answer without end are noticed.
An attempt that failed for a reason that may go away is made again after a growing delay; what is left
when the attempts are used up is `ModelUnavailable`, never an invented answer.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import aiohttp
from yarl import URL

from moothall import telemetry
from moothall.config import Llm
from moothall.domain.chat import ChatReply, ChatRequest, ReplyMode
from moothall.errors import ConfigurationError, DeadlineExceeded, ModelReplyInvalid, ModelUnavailable
from moothall.model import retry
from moothall.model.attempts import Failed, Rejected, translated
from moothall.model.bodies import JSON, STREAMED, Guarded, body_of, encoded
from moothall.model.counting import count_usage
from moothall.model.dialect import Dialect
from moothall.model.figures import ServerFigures, read_figures
from moothall.model.said import error_message, plain, read_models
from moothall.model.session import open_session
from moothall.model.stream import Assembly, BrokenStream, EventReader

T = TypeVar("T")
log = telemetry.get_logger(__name__)

_STREAM_OVERHEAD = 32  # bytes of stream that a byte of text may cost: small chunks in large envelopes
_ERROR_BYTES = 65_536
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

    def __init__(self, settings: Llm, url: URL, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._url = url
        self._chat_url = url / "chat/completions"
        self._session = session
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._asking = asyncio.Lock()
        self._model = ""
        self._dialect = Dialect(settings)
        self._mode: ReplyMode | None = None if settings.reply == "auto" else settings.reply

    @property
    def url(self) -> str:
        """The server's root, without a key."""
        return str(self._url)

    async def chat(
        self, request: ChatRequest, on_text: Callable[[str], None] | None = None, *, ours: Callable[[], bool] | None = None
    ) -> ChatReply:
        """Return the whole answer. `on_text` is given each new piece of text; after a cut stream the answer
        is said again from its beginning. Before each attempt `ours` must agree.

        Raises `ModelUnavailable` once retries are used up, `ModelReplyInvalid` for an answer that is none,
        `DeadlineExceeded`, and `ConfigurationError` for a wrong model name, key or URL.
        """
        left = (request.deadline - datetime.now(UTC)).total_seconds()
        if left <= 0:
            raise DeadlineExceeded(f"the deadline of model call {request.call_id} had passed before it began")
        try:
            async with asyncio.timeout(left):
                model = await self._model_name(request.call_id, request.deadline)
                return await self._in_dialect(request, body_of(request, model), on_text, ours)
        except TimeoutError as error:
            raise DeadlineExceeded(f"model call {request.call_id} to {self._url} was not answered by its deadline") from error
        except Rejected as error:
            raise self._translated(error) from error

    async def _in_dialect(
        self,
        request: ChatRequest,
        body: dict[str, Any],
        on_text: Callable[[str], None] | None,
        ours: Callable[[], bool] | None,
    ) -> ChatReply:
        """Make the call with what this server understands beyond the common; without, where it refuses that."""
        while True:
            more = self._dialect.additions(request)
            try:
                attempt = functools.partial(self._ask, {**body, **more}, request.call_id, on_text, ours)
                reply = await self._retrying(request.call_id, request.deadline, attempt)
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
            async with asyncio.timeout(_METRICS_SECONDS), self._call("GET", self._url.with_path("/metrics")) as response:
                figures = read_figures((await self._read_whole(response, _METRICS_BYTES)).decode(errors="replace"))
                self._dialect.notice_missing(figures)
                return figures
        except Failed as failure:
            raise ModelUnavailable(f"{self._url.with_path('/metrics')}: {failure.reason}") from failure
        except TimeoutError as error:
            raise ModelUnavailable(f"{self._url.with_path('/metrics')} said nothing for {_METRICS_SECONDS:g} s") from error
        except Rejected as error:
            raise self._translated(error) from error

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
            reply = await self._retrying("-/-/probe/0.0", None, lambda: self._ask(body, "-/-/probe/0.0", None))
        except Rejected as error:
            if error.status in {*_UNPROCESSABLE, 415, 501}:
                return "blocks"
            raise self._translated(error) from error
        except ModelReplyInvalid:
            return "blocks"
        return "json" if reply.text.lstrip().startswith("{") else "blocks"

    async def _model_name(self, call_id: str, deadline: datetime | None = None) -> str:
        async with self._asking:
            if not self._model:
                self._model = await self._choose_model(call_id, deadline)
        return self._model

    async def _choose_model(self, call_id: str, deadline: datetime | None) -> str:
        wanted = self._settings.model
        try:
            listed = await self._retrying(call_id, deadline, self._list_models)
        except Rejected as error:
            if wanted and error.status in {404, 405, 501}:
                return wanted  # a server that keeps no list; a wrong name shows at the first call
            raise self._translated(error) from error
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
        async with self._call("GET", self._url / "models") as response:
            try:
                return read_models(await self._read_whole(response, _LIST_BYTES))
            except ValueError as error:
                raise ConfigurationError(
                    f"{self._url}/models answered with {plain(response.content_type)}, not with a list of models; "
                    "MOOTHALL_LLM__BASE_URL names an OpenAI-compatible root and usually ends with /v1"
                ) from error

    async def _ask(
        self,
        body: dict[str, Any],
        call_id: str,
        on_text: Callable[[str], None] | None,
        ours: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Make one attempt."""
        if ours is not None and not ours():
            raise asyncio.CancelledError
        started = time.monotonic()
        assembly = Assembly()
        named = JSON | {"X-Request-Id": call_id} | telemetry.headers()
        data = encoded(body) if ours is None else Guarded(encoded(body), ours)
        async with self._call("POST", self._chat_url, data=data, headers=named) as response:
            match response.content_type:
                case "text/event-stream":
                    await self._read_stream(response, assembly, on_text)
                case "application/json":  # a server that does not stream
                    said = assembly.take(
                        (await self._read_whole(response, self._settings.max_reply_bytes)).decode(errors="replace")
                    )
                    if on_text:
                        on_text(said)
                case other:
                    raise ModelReplyInvalid(
                        f"{self._url} answered with {plain(other)}, not with a chat stream; is MOOTHALL_LLM__BASE_URL right?"
                    )
        text = "".join(assembly.text)
        if not assembly.finish_reason:
            raise Failed(f"the answer was cut after {len(text)} characters: no finish_reason")
        if not text.strip():
            raise ModelReplyInvalid(
                f"model {body['model']} at {self._url} gave an empty answer (finish_reason {assembly.finish_reason})"
            )
        self._dialect.notice(assembly.usage)
        usage = count_usage(assembly.usage, body["messages"], assembly.text_bytes, self._settings)
        return ChatReply(text, assembly.finish_reason, usage, assembly.model, round((time.monotonic() - started) * 1000))

    @asynccontextmanager
    async def _call(self, method: str, url: URL, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open one exchange, bounded by `call_seconds`, and translate what may go wrong in it."""
        limit = self._settings.call_seconds
        try:
            async with (
                asyncio.timeout(limit) as bound,
                self._session.request(method, url, allow_redirects=False, **options) as response,
            ):
                await self._refuse(response)
                yield response
        except BrokenStream as error:
            if error.permanent:
                raise ModelReplyInvalid(f"{self._url}: {error.reason}") from error
            raise Failed(error.reason) from error
        except aiohttp.InvalidURL as error:
            raise ConfigurationError(f"{self._url} is not a URL that can be called") from error
        except aiohttp.ClientError as error:
            stale = isinstance(error, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError)
            at_once = stale and not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ServerTimeoutError)
            raise Failed(f"{type(error).__name__}: {error}", at_once=at_once) from error
        except TimeoutError as error:
            if bound.expired():
                raise DeadlineExceeded(
                    f"{self._url} did not finish its answer within {limit:g} s (MOOTHALL_LLM__CALL_SECONDS)"
                ) from error
            raise

    async def _refuse(self, response: aiohttp.ClientResponse) -> None:
        """Raise for every status but success."""
        status = response.status
        if encoding := response.headers.get("Content-Encoding", "").replace("identity", ""):
            # Never asked for, and a few kilobytes of it can be gigabytes: it is not unpacked.
            raise ModelReplyInvalid(f"{self._url} answered in the content encoding {plain(encoding)!r}, which nobody asked for")
        if status < 300:  # noqa: PLR2004 - HTTP success
            return
        said = error_message(await response.content.read(_ERROR_BYTES))
        if retry.is_retried(status):
            after = retry.read_retry_after(response.headers.get("Retry-After"), datetime.now(UTC))
            raise Failed(f"HTTP {status} {said}".rstrip(), retry_after=after)
        if "Location" in response.headers:
            said = f"redirects to {plain(response.headers['Location'])}"
        raise Rejected(status, said)

    async def _read_stream(
        self, response: aiohttp.ClientResponse, assembly: Assembly, on_text: Callable[[str], None] | None
    ) -> None:
        events, received = EventReader(), 0
        # Before the first piece a busy server may let us wait in its queue: only `call_seconds` bounds that.
        idle: float | None = None
        while not assembly.done:
            try:
                if idle is None:
                    piece = await response.content.readany()
                else:
                    async with asyncio.timeout(idle):
                        piece = await response.content.readany()
            except TimeoutError as error:
                if idle is None:
                    raise
                raise Failed(f"silence for {idle:g} s in the middle of an answer") from error
            received += len(piece)
            for data in events.feed(piece) if piece else events.end():
                said = assembly.take(data)
                if said and on_text:
                    on_text(said)
            self._bound(max(assembly.text_bytes, events.held, received // _STREAM_OVERHEAD), self._settings.max_reply_bytes)
            if not piece:
                return
            idle = self._settings.idle_seconds

    async def _read_whole(self, response: aiohttp.ClientResponse, limit: int) -> bytes:
        whole = bytearray()
        async for piece in response.content.iter_any():
            whole += piece
            self._bound(len(whole), limit)
        return bytes(whole)

    def _bound(self, size: int, limit: int) -> None:
        if size > limit:
            raise ModelReplyInvalid(
                f"{self._url} went on past {limit} bytes of answer (MOOTHALL_LLM__MAX_REPLY_BYTES); the call was ended"
            )

    async def _retrying(self, call_id: str, deadline: datetime | None, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempt until it works, the retries are used up or the deadline would pass in waiting."""
        for tried in itertools.count(1):
            try:
                async with self._slots:
                    return await attempt()
            except Failed as failure:
                if tried > self._settings.retries:
                    raise ModelUnavailable(
                        f"{self._url} failed {tried} times, the last time with: {failure.reason}", failure.retry_after
                    ) from failure
                delay = retry.delay_before(tried, call_id, self._settings.retry_seconds, failure.retry_after)
                if failure.at_once and tried == 1:
                    delay = 0.0
                if deadline and delay >= (deadline - datetime.now(UTC)).total_seconds():
                    raise DeadlineExceeded(
                        f"model call {call_id}: {self._url} failed {tried} times ({failure.reason}), and its deadline "
                        f"comes before another attempt could"
                    ) from failure
                telemetry.metrics.MODEL_RETRIES.add()
                log.warning(
                    "model call failed, trying again", call_id=call_id, reason=failure.reason, tried=tried, delay=round(delay, 2)
                )
            await asyncio.sleep(delay)
        raise AssertionError  # pragma: no cover - count() does not end

    def _translated(self, error: Rejected) -> ConfigurationError | ModelReplyInvalid:
        return translated(error, str(self._url), self._model or self._settings.model)


@asynccontextmanager
async def open_model(settings: Llm, base_url: str) -> AsyncIterator[OpenAIModel]:
    """Open a client for the server at `base_url`. Raises `ConfigurationError` for what is no URL; calls nobody yet."""
    async with open_session(settings, base_url) as (url, session):
        yield OpenAIModel(settings, url, session)
