"""Find a model's context window if the list of models omits it. llama.cpp, LM Studio and Ollama
have paths of their own for it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from yarl import URL

from moothall.config.known_models import SOURCE, find_model
from moothall.llm.server_errors import read_count, window_of

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
        known = find_model(str(url), model)
        return (min(known.window, _MAX_KNOWN_WINDOW), SOURCE) if known else (0, "")
    props = await fetch("GET", url.with_path("/props"), None)
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    if isinstance(settings, dict) and (window := read_count(settings.get("n_ctx"))):
        return window, "/props of llama.cpp"
    listed = await fetch("GET", url.with_path("/api/v0/models"), None)
    for entry in _dicts(listed, "data"):
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
            for entry in _dicts(running, "models")
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


def _dicts(value: object, name: str) -> list[dict[str, Any]]:
    items = value.get(name) if isinstance(value, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
