"""A model's context window if the list of models omits it, and the tokens of a text."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from cachetools import LRUCache
from yarl import URL

from moothall import telemetry
from moothall.config import LlmSettings
from moothall.config.models import SOURCE, find_model
from moothall.domain.text import most_tokens
from moothall.errors import ModelReplyInvalid
from moothall.llm.pool import ConnectionPool, open_pool
from moothall.llm.requests import JSON, encode
from moothall.llm.server_errors import Failed, read_count, window_of
from moothall.llm.stream import WholeResponseReader
from moothall.ports import CountTokens

# Find a model's context window if the list of models omits it. llama.cpp, LM Studio and Ollama have
# paths of their own for it.


Fetch = Callable[[str, URL, dict[str, Any] | None], Awaitable[Any]]
FETCH_SECONDS = 5.0
_MAX_KNOWN_WINDOW = 200_000
"""The limit for windows from the table, because longer prompts use up the tokens of a deliberation
within a few turns. `llm.context_tokens` overrides it.
"""
_OLLAMA_DEFAULT_WINDOW = 4096
"""The window that Ollama uses by default; longer prompts lose their beginning without an error."""
_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)", re.MULTILINE)


async def find_window(fetch: Fetch, url: URL, model: str) -> tuple[int, str]:
    """Return the window and its source; (0, "") if no path contains it. Hosted servers (https) have
    none of these paths; their windows come from the table of known models.
    """
    if url.scheme == "https":
        listed_model = find_model(str(url), model)
        return (min(listed_model.window, _MAX_KNOWN_WINDOW), SOURCE) if listed_model else (0, "")
    props = await fetch("GET", url.with_path("/props"), None)
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    if isinstance(settings, dict) and (window := read_count(settings.get("n_ctx"))):
        return window, "/props of llama.cpp"
    models = await fetch("GET", url.with_path("/api/v0/models"), None)
    for entry in _read_dicts(models, "data"):
        if entry.get("id") == model and (window := window_of(entry)):
            return window, "/api/v0/models of LM Studio"
    if (
        isinstance(version := await fetch("GET", url.with_path("/api/version"), None), dict)
        and "version" in version
    ):
        return await _ollama_window(fetch, url, model)
    return 0, ""


async def _ollama_window(fetch: Fetch, url: URL, model: str) -> tuple[int, str]:
    """Return the window that Ollama uses for the model: that of the loaded model, that in its
    parameters, or the default, but never more than the model was trained for.
    """
    details = await fetch("POST", url.with_path("/api/show"), {"model": model})
    details = details if isinstance(details, dict) else {}
    info = details.get("model_info")
    max_window = next(
        (
            read_count(value)
            for name, value in (info if isinstance(info, dict) else {}).items()
            if str(name).endswith(".context_length")
        ),
        0,
    )
    running = await fetch("GET", url.with_path("/api/ps"), None)
    loaded = next(
        (
            read_count(entry.get("context_length"))
            for entry in _read_dicts(running, "models")
            if model in {entry.get("name"), entry.get("model")}
        ),
        0,
    )
    parameter = _NUM_CTX.search(str(details.get("parameters") or ""))
    window = loaded or (int(parameter[1][:9]) if parameter else _OLLAMA_DEFAULT_WINDOW)
    source = (
        "/api/ps of Ollama"
        if loaded
        else "/api/show of Ollama"
        if parameter
        else "Ollama's default; set OLLAMA_CONTEXT_LENGTH for more"
    )
    return (min(window, max_window) if max_window else window), source


def _read_dicts(value: object, name: str) -> list[dict[str, Any]]:
    items = value.get(name) if isinstance(value, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


# Count the tokens of a text with `/tokenize` of vLLM and llama.cpp. Without it, estimate the
# number.


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
