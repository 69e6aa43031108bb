"""How many tokens a text has: the model server says it, where it has `/tokenize` as vLLM and
llama.cpp do; else it is estimated.
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

_SECONDS, _REST_SECONDS = 1.0, 60.0
_BYTES = 4_000_000
_KEPT = 2_000
_GOOD = 200


class _Counter:
    """Asks a server, which is left alone for a while where it does not say."""

    def __init__(self, pool: ConnectionPool, model: str) -> None:
        self._pool = pool
        self._url = pool.url.with_path("/tokenize")
        self._named = {"model": model} if model else {}
        self._loop = asyncio.get_running_loop()
        self._asked_from = 0.0
        self._known: LRUCache[str, int] = LRUCache(_KEPT)

    async def __call__(self, text: str) -> int:
        """Count the tokens of a text."""
        if not text:
            return 0
        if (found := self._known.get(text)) is not None:
            return found
        if self._loop.time() >= self._asked_from:
            try:
                found = self._known[text] = await self._ask(text)
            except (Failed, TimeoutError, ModelReplyInvalid, ValueError) as error:
                self._asked_from = self._loop.time() + _REST_SECONDS
                log.info(
                    "the model server counts no tokens; they are estimated",
                    url=str(self._url),
                    reason=str(error),
                )
            else:
                return found
        return most_tokens(text)

    async def _ask(self, text: str) -> int:
        """Raises `ValueError` and others where the server does not say."""
        taken = WholeResponseReader(str(self._url), _BYTES)
        # vLLM reads `prompt`, llama.cpp `content`.
        body = encode({**self._named, "prompt": text, "content": text, "add_special_tokens": False})
        await self._pool.ask(
            "POST", self._url, taken, until=self._loop.time() + _SECONDS, body=body, headers=JSON
        )
        if taken.status != _GOOD:
            raise ValueError(f"status {taken.status}")
        said = json.loads(taken.body)
        found = said.get("count", said.get("tokens")) if isinstance(said, dict) else None
        count = len(found) if isinstance(found, list) else found
        if not isinstance(count, int) or isinstance(count, bool) or count <= 0:
            raise ValueError("it says no number")
        return count


@asynccontextmanager
async def counting(settings: LlmSettings, base_url: str) -> AsyncIterator[CountTokens]:
    """Yield what counts tokens as the server at `base_url` does. Raises `ConfigurationError` for
    what is no URL; asks nobody yet.
    """
    async with open_pool(settings, base_url) as pool:
        yield _Counter(pool, settings.model)
