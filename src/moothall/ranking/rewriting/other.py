"""Other values than those that a Python test expects: of literals, and of what it comes to when it runs. Pure."""

from __future__ import annotations

from typing import Any

from moothall.ranking.rewriting.near import HELPER

HELPERS = (
    """

class {name}_error(Exception):
    pass


class {name}_warning(Warning):
    pass


def {name}_other(value, depth=0):
    kind = type(value)
    if kind is bool:
        return not value
    if kind is int:
        return value + {number}
    if kind is float and value - value == 0 and value + {number} != value:
        return value + {number}
    if kind is str:
        return value + "{word}"
    if kind is bytes:
        return value + b"{word}"
    if kind in (list, tuple, set, frozenset) and value and depth < 9:
        return kind([{name}_other(each, depth + 1) for each in value])
    if kind is dict and value and depth < 9:
        return {{key: {name}_other(each, depth + 1) for key, each in value.items()}}
    return {name}_{made}(value, depth)


def {name}_unlike(value, depth=0):
    return object()


def {name}_differs(value):
    return value != value


def {name}_lacks(value):
    for kind in (str, bytes):
        if isinstance(value, kind):
            return kind.__getitem__(value, slice(None)) not in value
    for kind in (dict, list, tuple, set, frozenset):
        if isinstance(value, kind):
            for each in kind.__iter__(value):
                return each not in value
    return False


def {name}_alike(value, depth):
    kind = type(value)
    if depth > 3 or isinstance(value, (type, BaseException)) or callable(value) or "approx" in kind.__name__.lower():
        return object()
    try:
        if kind.__module__ in ("decimal", "_decimal", "fractions"):
            return value + {number}
        made = object.__new__(kind)
        known = dict(getattr(value, "__dict__", ()))
        for each in kind.__mro__:
            slots = each.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, slot):
                    known[slot] = getattr(value, slot)
        for key, each in known.items():
            plain = type(each) in (bool, int, float, str, bytes, list, tuple, set, frozenset, dict)
            own = hasattr(each, "__dict__") or any("__slots__" in one.__dict__ for one in type(each).__mro__)
            if plain or (own and not callable(each) and type(each).__name__ != "module"):
                each = {name}_other(each, depth + 1)
            object.__setattr__(made, key, each)
        return made
    except Exception:
        return object()
"""
    + HELPER
)
"""What is put behind a test file. `made` says what becomes of a value whose type says itself what it is equal to: `unlike`, something that
is equal to nothing, or `alike`, one of the same type with other attributes, from which a type that is equal to all of its kind is told.
`differs` and `lacks` ask whether a value is another than itself, and whether it lacks what it holds."""


def other(value: Any, word: str, number: int) -> Any:
    """Return another value of the same kind than a literal."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float | complex):
        return value + number
    if isinstance(value, dict):
        return {key: other(each, word, number) for key, each in value.items()} or {word: number}
    if isinstance(value, list | tuple | set):
        return type(value)([other(each, word, number) for each in value] or [word])
    if isinstance(value, str):
        return value + word
    return value + word.encode() if isinstance(value, bytes) else word
