"""Other values for what a Python test compares with in other ways than by `==`: what held for certain does not hold with them. Pure.

A value that is equal to all, below all, in all or near to all stays where it was: that is what it is found out by.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass

_LARGE = 1e15  # a little more makes another number of any that is smaller
_RELATIVE = 0.3  # of what is expected; a number that is twice as large is farther away
_NOTHING = b'float("nan")'
_LARGEST = frozenset({"object", "Hashable", "Any", "Protocol"})
"""What all that there is may be an instance of."""
_TURNED = {ast.Lt: b" > ", ast.LtE: b" >= ", ast.Gt: b" < ", ast.GtE: b" <= "}


@dataclass(frozen=True, slots=True)
class Unlike:
    """From where to where in the tree something else stands."""

    first: ast.expr
    last: ast.expr
    text: bytes


def make_unlike(
    op: ast.cmpop, left: ast.expr, right: ast.expr, number: int, segment: Callable[[ast.expr], bytes]
) -> Unlike | None:
    """Return what to write in place of one side of a comparison, None where nothing is certain. `segment`: how a node is written."""
    if isinstance(op, ast.In):
        return _within(left, right, segment)
    if type(op) not in _TURNED:
        return None
    match left:
        case ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(op=ast.Sub(), left=one, right=other)]):
            return far(one, other, right, number) if isinstance(op, ast.Lt | ast.LtE) else None
    if number_of(right) is not None:
        return Unlike(right, right, _NOTHING)
    if number_of(left) is None:
        return None
    return Unlike(left, right, b"(" + segment(right) + b")" + _TURNED[type(op)] + _NOTHING)  # so that it is asked itself


def close(side: ast.expr, number: int) -> Unlike | None:
    """Return what is not close to a number that is written."""
    value = number_of(side)
    return None if value is None else _put(side, value + abs(value) + number)


def approximate(node: ast.expr, number: int) -> Unlike | None:
    """Return what is not near to a number that `approx` is given, None where nothing is certain."""
    match node:
        case ast.Call(func=ast.Name(id="approx") | ast.Attribute(attr="approx"), args=[side, *more], keywords=keywords):
            given = dict(zip(("rel", "abs"), more, strict=False)) | {str(word.arg): word.value for word in keywords}
            value, room = number_of(side), {name: number_of(each) for name, each in given.items()}
            rel, within = room.pop("rel", 0.0), room.pop("abs", 0.0)
            if value is not None and rel is not None and within is not None and not room and abs(rel) < _RELATIVE:
                return _put(side, value + abs(value) + 3 * math.ceil(abs(within)) + number)
    return None


def denied(op: ast.cmpop, left: ast.expr, right: ast.expr, name: str, segment: Callable[[ast.expr], bytes]) -> bytes | None:
    """Return what does not hold in place of `left != right` and `left not in right`, asked of the same value; None where something else
    stands between them. `name`: how the helpers' names begin.
    """
    if isinstance(op, ast.NotEq) and segment(left) != segment(right):  # what is asked of itself may be no number
        return f"{name}_differs(".encode() + segment(right if is_literal(left) else left) + b")"
    if isinstance(op, ast.NotIn) and not is_literal(right):
        return f"{name}_lacks(".encode() + segment(right) + b")"
    return None


def no_instance(side: ast.expr, kind: ast.expr) -> Unlike | None:
    """Return what is no instance of anything else than `object`."""
    if any(
        isinstance(each, ast.Name | ast.Attribute) and _LARGEST & {getattr(each, "id", ""), getattr(each, "attr", "")}
        for each in ast.walk(kind)
    ):
        return None
    return Unlike(side, side, b"object()")


def begins(owner: ast.expr, side: ast.expr) -> Unlike | None:
    """Return what a text does not begin or end with."""
    if is_literal(owner) or not isinstance(side, ast.Constant) or not isinstance(side.value, str | bytes):
        return None
    return Unlike(side, side, b'"\\0unlike"' if isinstance(side.value, str) else b'b"\\0unlike"')


def _within(left: ast.expr, right: ast.expr, segment: Callable[[ast.expr], bytes]) -> Unlike | None:
    if isinstance(right, ast.List | ast.Tuple | ast.Set) and not is_literal(left):
        return Unlike(right, right, b"[object() for _ in (" + segment(right) + b",)[0]]")
    if isinstance(left, ast.Constant) and isinstance(left.value, str) and not is_literal(right):
        return Unlike(left, left, b'"\\0unlike"')
    return None


def far(one: ast.expr, other: ast.expr, right: ast.expr, number: int) -> Unlike | None:
    """Of `abs(x - 180) < 0.01` what x is not near to; a whole number stays one, so that it asks what it is taken from."""
    side = other if number_of(other) is not None else one
    value, room = number_of(side), number_of(right)
    if value is None or room is None:
        return None
    far = value + 3 * math.ceil(abs(room)) + number
    return _put(side, far) if far - value > 2 * abs(room) else None


def _put(node: ast.expr, value: float) -> Unlike:
    return Unlike(node, node, repr(value).encode())


def number_of(node: ast.expr) -> float | None:
    """Return what a number that is written says."""
    value: object = ast.literal_eval(node) if is_literal(node) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) < _LARGE else None


def is_literal(node: ast.expr) -> bool:
    """Whether a node is written as a plain value."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def is_rest(found: ast.expr, wanted: ast.expr) -> bool:
    """Whether 0 or 1 is expected of what an operator makes of a number that is written: `discount(200, 10) - 180 == 0`."""
    if isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and len(found.args) == 1:
        found = found.args[0]  # abs, round
    sides = (found.left, found.right) if isinstance(found, ast.BinOp) else ()
    return number_of(wanted) in {0, 1} and any(number_of(side) is not None for side in sides)
