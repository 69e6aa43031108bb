"""Find a model's window where the list of models does not tell it: llama.cpp, LM Studio and Ollama
have paths of their own for it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from yarl import URL

from moothall.llm.server_errors import read_count, window_of

Look = Callable[[str, URL, dict[str, Any] | None], Awaitable[Any]]
LOOK_SECONDS = 5.0
_OLLAMA_WINDOW = 4096
"""What Ollama gives a model of which nobody said more; longer prompts lose their beginning without
an error.
"""
_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)", re.MULTILINE)


async def find_window(look: Look, url: URL, model: str) -> tuple[int, str]:
    """Return the window and where it comes from; (0, "") if no path tells it. Hosted servers
    (https) have none of these paths.
    """
    if url.scheme == "https":
        return 0, ""
    props = await look("GET", url.with_path("/props"), None)
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    if isinstance(settings, dict) and (window := read_count(settings.get("n_ctx"))):
        return window, "/props of llama.cpp"
    listed = await look("GET", url.with_path("/api/v0/models"), None)
    for one in _dicts(listed, "data"):
        if one.get("id") == model and (window := window_of(one)):
            return window, "/api/v0/models of LM Studio"
    if (
        isinstance(version := await look("GET", url.with_path("/api/version"), None), dict)
        and "version" in version
    ):
        return await _ollama_window(look, url, model)
    return 0, ""


async def _ollama_window(look: Look, url: URL, model: str) -> tuple[int, str]:
    """Return the window that Ollama gives the model: of the loaded one, of its parameters, or the
    default, and never more than it was trained for.
    """
    shown = await look("POST", url.with_path("/api/show"), {"model": model})
    shown = shown if isinstance(shown, dict) else {}
    about = shown.get("model_info")
    trained = next(
        (
            read_count(value)
            for name, value in (about if isinstance(about, dict) else {}).items()
            if str(name).endswith(".context_length")
        ),
        0,
    )
    running = await look("GET", url.with_path("/api/ps"), None)
    loaded = next(
        (
            read_count(one.get("context_length"))
            for one in _dicts(running, "models")
            if model in {one.get("name"), one.get("model")}
        ),
        0,
    )
    set_by = _NUM_CTX.search(str(shown.get("parameters") or ""))
    given = loaded or (int(set_by[1][:9]) if set_by else _OLLAMA_WINDOW)
    source = (
        "/api/ps of Ollama"
        if loaded
        else "/api/show of Ollama"
        if set_by
        else "Ollama's default; set OLLAMA_CONTEXT_LENGTH for more"
    )
    return (min(given, trained) if trained else given), source


def _dicts(value: object, name: str) -> list[dict[str, Any]]:
    items = value.get(name) if isinstance(value, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
