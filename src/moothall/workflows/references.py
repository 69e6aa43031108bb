"""References in arguments to the results of earlier steps, such as `${steps.read.output.content}`.
There is no expression language.

A value that is a single reference keeps its type; within a text, the result is inserted as text, or
as JSON if it is not text. `$${` is an escaped `${`. Any other `${…}` is left for a shell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moothall.errors import InvalidRequest

_REFERENCE = re.compile(r"\$(\$)?\{(steps\.[^${}]*)\}")
_REFERENCE_START = re.compile(r"(?<!\$)\$\{steps\.")
PARTS = ("output", "status", "error")
RIGHT = "${steps.<id>.output.<name>}, ${steps.<id>.status} or ${steps.<id>.error}"
_MAX_DEPTH = 32
# For all references together: a short text could refer to a long output many times.
_MAX_INSERTED_CHARS = 4_000_000


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a step: the part of its result, and the keys or list indexes below that."""

    step: str
    part: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(("steps", self.step, self.part, *self.path))


def references(value: Any) -> Iterator[Reference]:
    """Yield all references in JSON data. Raises `InvalidRequest` for an incomplete one."""
    for text in _texts(value, 0):
        matches = [match for match in _REFERENCE.finditer(text) if not match[1]]
        if len(_REFERENCE_START.findall(text)) != len(matches):
            raise InvalidRequest(
                f"{text[:80]!r} holds a reference that does not end; right is {RIGHT}"
            )
        for match in matches:
            yield _read(match[2])


def fill_in(value: Any, look_up: Callable[[Reference], Any]) -> Any:
    """Return JSON data with each reference replaced by what `look_up` returns. Raises
    `InvalidRequest` if that is too long.
    """
    chars_left = _MAX_INSERTED_CHARS

    def counted_look_up(reference: Reference) -> Any:
        nonlocal chars_left
        result = look_up(reference)
        chars_left -= len(_text(result))
        if chars_left < 0:
            raise InvalidRequest(
                f"${{{reference}}}: what is referred to has more than {_MAX_INSERTED_CHARS} "
                "characters in all"
            )
        return result

    return _fill(value, counted_look_up)


def _fill(value: Any, look_up: Callable[[Reference], Any]) -> Any:
    if isinstance(value, str):
        single_reference = _REFERENCE.fullmatch(value)
        if single_reference and not single_reference[1]:
            return look_up(_read(single_reference[2]))
        return _REFERENCE.sub(
            lambda match: f"${{{match[2]}}}" if match[1] else _text(look_up(_read(match[2]))), value
        )
    if isinstance(value, Mapping):
        return {key: _fill(item, look_up) for key, item in value.items()}
    return [_fill(item, look_up) for item in value] if isinstance(value, list) else value


def find_in(result: Mapping[str, Any], reference: Reference) -> Any:
    """Return the value that a reference names in a step's result. Raises `InvalidRequest` that says
    what is there instead.
    """
    value: Any = result[reference.part]
    for depth, name in enumerate(reference.path):
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
            where = ".".join(("steps", reference.step, reference.part, *reference.path[:depth]))
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
    if depth > _MAX_DEPTH:
        raise InvalidRequest(f"arguments are nested deeper than {_MAX_DEPTH}")
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
