"""The ranges in which Node's packages say versions ('^18 || >=20.1'). Pure."""

from __future__ import annotations

import re

_TERM = re.compile(r"(>=|<=|>|<|=|\^|~)?\s*v?(\d+|[xX*])(?:\.(\d+|[xX*]))?(?:\.(\d+|[xX*]))?[-+\w.]*")
_Version = tuple[int, ...]


def satisfies(version: _Version, text: str) -> bool:
    """Whether a version of three numbers lies in a range; one that cannot be read holds every version."""
    whole = (*version, 0, 0, 0)[:3]
    return not text.strip() or any(_holds(whole, part) for part in text.split("||"))


def _holds(version: _Version, text: str) -> bool:
    between = re.fullmatch(r"\s*(\S+)\s+-\s+(\S+)\s*", text)
    terms = _TERM.findall(f">={between[1]} <={between[2]}" if between else text)
    return all(low <= version < high for low, high in (_bounds(*term) for term in terms))


def _bounds(operator: str, *words: str) -> tuple[_Version, _Version]:
    numbers = []
    for word in words:
        if not word.isdigit():
            break
        numbers.append(int(word))
    low, top = (*numbers, 0, 0, 0)[:3], (10**9, 0, 0)
    after = (*numbers[:-1], numbers[-1] + 1, 0, 0, 0)[:3] if numbers else top  # the first that no longer begins so
    if operator == "^" and numbers:
        at = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
        return low, (*numbers[:at], numbers[at] + 1, 0, 0)[:3]
    if operator == "~" and len(numbers) > 1:
        return low, (numbers[0], numbers[1] + 1, 0)
    bounds = {">=": (low, top), ">": (after, top), "<": ((0, 0, 0), low), "<=": ((0, 0, 0), after)}
    return bounds.get(operator, (low, after))
