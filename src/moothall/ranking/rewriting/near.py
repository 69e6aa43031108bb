"""Whether what a Python test compares with what it expects is equal, or close, to what lies beside that, too. Pure.

A type may say that it is equal to all texts of Roman letters, to all lists of the same sum, or to all of its kind with the same currency. It
follows a test that expects something quite different, and is no answer all the same.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from moothall.ranking.rewriting.certain import calls
from moothall.ranking.rewriting.unlike import is_literal, number_of

_EQUAL = frozenset(
    {"assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSequenceEqual"}
)
_CLOSE = 1e-7  # of `assertAlmostEqual`
HELPER = """

def {name}_near(found, wanted, room=None):
    beside = {name}_beside(wanted)
    return any(found == each if room is None else abs(found - each) <= room for each in beside)


def {name}_beside(value, depth=0):
    kind = type(value)
    if kind in (bool, int, float) and value - value == 0:
        yield from (each for each in (value + 1, value - 1, value + {number}, -value, value / 2) if each != value)
    elif kind in (str, bytes):
        yield from (each for each in (value[::-1], value[1:], value + value[:1], value.swapcase()) if each != value)
    elif kind in (list, tuple):
        yield from (each for each in (value[::-1], value[1:], value + value[:1]) if each != value)
        for at, each in enumerate(value[:9] if depth < 3 else ()):
            yield from (value[:at] + kind([other]) + value[at + 1 :] for other in {name}_beside(each, depth + 1))
    elif kind is dict:
        for key, each in value.items() if depth < 3 else ():
            yield from ({{**value, key: other}} for other in {name}_beside(each, depth + 1))
    elif depth < 3 and not isinstance(value, (type, BaseException)) and not callable(value):
        for key, each in dict(getattr(value, "__dict__", ())).items():
            for other in {name}_beside(each, depth + 1):
                made = object.__new__(kind)
                for name, said in {{**value.__dict__, key: other}}.items():
                    object.__setattr__(made, name, said)
                yield made
"""
"""What is put behind a test file: the values beside one are those of the same shape, of objects those of which one attribute differs."""


def ask_near(node: ast.AST, name: str, segment: Callable[[ast.expr], bytes]) -> Sequence[tuple[ast.expr, ast.expr, bytes]]:
    """Return what to write, from which node to which, so that a comparison of `node` fails if what lies beside is equal, too.

    `name`: how the helper is called; of a call what is asserted is false now.
    """

    def ask(left: ast.expr, right: ast.expr, room: float | None = None) -> bytes:
        turned = is_literal(left) or (calls(right) and not calls(left))
        found, wanted = (right, left) if turned else (left, right)
        return f"{name}(".encode() + segment(found) + b", " + segment(wanted) + f", {room})".encode()

    match node:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) as test):
            return [] if b"approx(" in segment(test) else [(test, test, b"not " + ask(left, right))]
        case ast.Compare(
            left=ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(op=ast.Sub(), left=left, right=right)]),
            ops=[op],
            comparators=[room],
        ):
            within, small = isinstance(op, ast.Lt | ast.LtE), number_of(room)
            return [] if small is None or small >= 1 else [(node, node, b"not " * within + ask(left, right, small))]
        case ast.Call(func=ast.Attribute(attr=attr), args=[left, right, *more]):
            if attr in _EQUAL or (attr == "assertAlmostEqual" and not more and not node.keywords):
                return [(left, right, ask(left, right, None if attr in _EQUAL else _CLOSE))]
    return []
