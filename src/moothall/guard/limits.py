"""How many calls at a time, how many in all, and how much output goes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from moothall.config import Guard
from moothall.domain.tool import ToolStatus
from moothall.guard.seat import Meter, Stopped

_DEEPEST = 20


def check_limits(meter: Meter, limits: Guard) -> None:
    """The seat may start another call just now; else `Stopped`."""
    if meter.in_flight >= limits.seat_in_flight:
        reason = f"{meter.in_flight} of your calls are still running and {limits.seat_in_flight} may; wait for one to end"
        raise Stopped(ToolStatus.RATE_LIMITED, reason)


def cut_output(output: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return `output` as it is where its JSON has at most `limit` bytes, else cut to about that.

    Long strings lose their middle (errors stand at the end, headings at the start), long lists and objects
    their tail; `truncated` is then true.
    """
    if _size(output) <= limit:
        return dict(output)
    room = limit
    while True:
        cut = {**_cut(output, room, 0), "truncated": True}
        # Escapes make JSON longer than its text: a second, narrower cut settles it.
        if _size(cut) <= limit + 200 or room < 16:  # noqa: PLR2004  # nothing is left to cut
            return cut
        room = room // 2


def _size(value: object) -> int:
    try:
        return len(json.dumps(value, ensure_ascii=False, default=str).encode())
    except (RecursionError, ValueError):  # too deep, or half a character
        return 1 << 60


def _cut(value: Any, room: int, depth: int) -> Any:
    if isinstance(value, str):
        return cut_text(value, room)
    if isinstance(value, (Mapping, list, tuple)) and depth >= _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return _cut_mapping(value, room, depth)
    if isinstance(value, (list, tuple)):
        items: list[Any] = []
        for item in value:
            if room <= 0:
                items.append(f"… {len(value) - len(items)} more left out")
                break
            items.append(_cut(item, room, depth + 1))
            room -= _size(items[-1]) + 2
        return items
    return value


def _cut_mapping(value: Mapping[str, Any], room: int, depth: int) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    # Small things first: a verdict or an exit code must not go because a long text stands before it.
    for key, item in sorted(value.items(), key=lambda pair: _size(pair[1])):
        if room <= 0:
            break
        kept[cut_text(str(key), 200)] = _cut(item, room, depth + 1)
        room -= len(str(key)) + _size(kept[cut_text(str(key), 200)]) + 4
    return {key: kept[key] for key in (cut_text(str(name), 200) for name in value) if key in kept}


def cut_text(text: str, limit: int) -> str:
    """Return at most about `limit` characters: the first third and the last two, and how many are missing."""
    text = clean(text)
    if len(text) <= limit:
        return text
    head, tail = limit // 3, limit - limit // 3
    return f"{text[:head]}\n… {len(text) - head - tail} characters left out …\n{text[len(text) - tail :]}"


def clean(text: str) -> str:
    """Return the text with halves of characters, which no encoding takes, as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
