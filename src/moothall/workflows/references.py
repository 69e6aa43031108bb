"""`${steps.read.output.content}` in arguments: what an earlier step gave. There is no expression
language.

A value that is one reference whole keeps its type; inside a text it is put in as text, and what is
no text as JSON. `$${` stands for `${`. Any other `${…}` is left as it is: it is a shell's, not
ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moothall.errors import InvalidRequest

_FOUND = re.compile(r"\$(\$)?\{(steps\.[^${}]*)\}")
_BEGUN = re.compile(r"(?<!\$)\$\{steps\.")
PARTS = ("output", "status", "error")
RIGHT = "${steps.<id>.output.<name>}, ${steps.<id>.status} or ${steps.<id>.error}"
_DEEPEST = 32
# put in the place of references, all in all: a short text could name a long output often
_MOST_CHARS = 4_000_000


@dataclass(frozen=True, slots=True)
class Reference:
    """Which step, which part of its result, and the keys or list places below that."""

    step: str
    part: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(("steps", self.step, self.part, *self.path))


def references(value: Any) -> Iterator[Reference]:
    """Yield all references in JSON data. Raises `InvalidRequest` for one that is begun and is
    none.
    """
    for text in _texts(value, 0):
        found = [match for match in _FOUND.finditer(text) if not match[1]]
        if len(_BEGUN.findall(text)) != len(found):
            raise InvalidRequest(
                f"{text[:80]!r} holds a reference that does not end; right is {RIGHT}"
            )
        for match in found:
            yield _read(match[2])


def fill_in(value: Any, look_up: Callable[[Reference], Any]) -> Any:
    """Return JSON data with what `look_up` gives in the place of each reference. Raises
    `InvalidRequest` where that is too much.
    """
    room = _MOST_CHARS

    def count(reference: Reference) -> Any:
        nonlocal room
        found = look_up(reference)
        room -= len(_text(found))
        if room < 0:
            raise InvalidRequest(
                f"${{{reference}}}: what is referred to has more than {_MOST_CHARS} characters in "
                "all"
            )
        return found

    return _fill(value, count)


def _fill(value: Any, look_up: Callable[[Reference], Any]) -> Any:
    if isinstance(value, str):
        whole = _FOUND.fullmatch(value)
        if whole and not whole[1]:
            return look_up(_read(whole[2]))
        return _FOUND.sub(
            lambda match: f"${{{match[2]}}}" if match[1] else _text(look_up(_read(match[2]))), value
        )
    if isinstance(value, Mapping):
        return {key: _fill(item, look_up) for key, item in value.items()}
    return [_fill(item, look_up) for item in value] if isinstance(value, list) else value


def find_in(result: Mapping[str, Any], reference: Reference) -> Any:
    """Return what a reference names in a step's result. Raises `InvalidRequest` that says what is
    there instead.
    """
    value: Any = result[reference.part]
    for place, name in enumerate(reference.path):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif (
            isinstance(value, list)
            and name.isdecimal()
            and len(name) < 7  # noqa: PLR2004 - digits
            and int(name) < len(value)
        ):
            value = value[int(name)]
        else:
            where = ".".join(("steps", reference.step, reference.part, *reference.path[:place]))
            raise InvalidRequest(f"${{{reference}}}: {where} {_shape(value)}")
    return value


def _shape(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"has {', '.join(map(str, list(value)[:20])) or 'nothing'}"
    return f"is a list of {len(value)}" if isinstance(value, list) else "is no object and no list"


def _read(text: str) -> Reference:
    _, step, *rest = text.split(".")
    if (
        not step
        or not rest
        or rest[0] not in PARTS
        or not all(rest)
        or (rest[0] != "output" and len(rest) > 1)
    ):
        raise InvalidRequest(f"${{{text[:80]}}} is no reference; right is {RIGHT}")
    return Reference(step, rest[0], tuple(rest[1:]))


def _texts(value: Any, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise InvalidRequest(f"arguments are nested deeper than {_DEEPEST}")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, depth + 1)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
