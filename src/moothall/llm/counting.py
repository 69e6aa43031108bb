"""Count the tokens of a text with `/tokenize` of vLLM and llama.cpp. Without it, estimate the
number.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cachetools import LRUCache

from moothall import telemetry
from moothall.config import LlmSettings
from moothall.deliberation.prompts.text import most_tokens
from moothall.errors import ModelReplyInvalid
from moothall.llm.pool import ConnectionPool, open_pool
from moothall.llm.requests import JSON, encode
from moothall.llm.response_readers import WholeResponseReader
from moothall.llm.retry import Failed
from moothall.ports import CountTokens

log = telemetry.get_logger(__name__)

_TIMEOUT_SECONDS, _PAUSE_SECONDS = 1.0, 60.0
_MAX_BYTES = 4_000_000
_MAX_CACHED = 2_000
_HTTP_OK = 200


class _TokenCounter:
    """Counts tokens with a server. After a failure the server is not used for a while."""

    def __init__(self, pool: ConnectionPool, model: str) -> None:
        self._pool = pool
        self._url = pool.url.with_path("/tokenize")
        self._model_field = {"model": model} if model else {}
        self._loop = asyncio.get_running_loop()
        self._paused_until = 0.0
        self._cache: LRUCache[str, int] = LRUCache(_MAX_CACHED)

    async def __call__(self, text: str) -> int:
        """Count the tokens of a text."""
        if not text:
            return 0
        if (count := self._cache.get(text)) is not None:
            return count
        if self._loop.time() >= self._paused_until:
            try:
                count = self._cache[text] = await self._request_count(text)
            except (Failed, TimeoutError, ModelReplyInvalid, ValueError) as error:
                self._paused_until = self._loop.time() + _PAUSE_SECONDS
                log.info(
                    "the model server did not count tokens; the number is estimated",
                    url=str(self._url),
                    reason=str(error),
                )
            else:
                return count
        return most_tokens(text)

    async def _request_count(self, text: str) -> int:
        """Return the server's count. Raises `ValueError` and others if it returns no count."""
        reader = WholeResponseReader(str(self._url), _MAX_BYTES)
        # vLLM reads `prompt`, llama.cpp `content`.
        body = encode(
            {**self._model_field, "prompt": text, "content": text, "add_special_tokens": False}
        )
        await self._pool.request(
            "POST",
            self._url,
            reader,
            until=self._loop.time() + _TIMEOUT_SECONDS,
            body=body,
            headers=JSON,
        )
        if reader.status != _HTTP_OK:
            raise ValueError(f"status {reader.status}")
        reply = json.loads(reader.body)
        value = reply.get("count", reply.get("tokens")) if isinstance(reply, dict) else None
        count = len(value) if isinstance(value, list) else value
        if not isinstance(count, int) or isinstance(count, bool) or count <= 0:
            raise ValueError("the response contains no count")
        return count


@asynccontextmanager
async def counting(settings: LlmSettings, base_url: str) -> AsyncIterator[CountTokens]:
    """Yield a function that counts tokens with the server at `base_url`. Raises
    `ConfigurationError` for an invalid URL; sends no request yet.
    """
    async with open_pool(settings, base_url) as pool:
        yield _TokenCounter(pool, settings.model)
