"""Python's tests in other words; see `rewrite`. Text is put in at places that the syntax tree names, and nothing else is touched. Pure."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from moothall.ranking.rewriting.certain import calls, certain, fails, parameters, uses
from moothall.ranking.rewriting.find import Function, Target, find_functions, inner
from moothall.ranking.rewriting.near import ask_near
from moothall.ranking.rewriting.other import HELPERS
from moothall.ranking.rewriting.other import other as other_value
from moothall.ranking.rewriting.unlike import (
    Unlike,
    approximate,
    begins,
    close,
    denied,
    far,
    is_literal,
    is_rest,
    make_unlike,
    no_instance,
)

_Edit = tuple[int, int, bytes]
_SIMPLE = (ast.Assert, ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete, ast.Pass, ast.Import, ast.ImportFrom)
_EQUAL = frozenset(
    {"assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSetEqual"}
) | {
    *("assertSequenceEqual", "assertMultiLineEqual", "assertCountEqual", "assertAlmostEqual"),
}
_OPPOSITE = {
    "assertTrue": "assertFalse",
    "assertIn": "assertNotIn",
    "assertIs": "assertIsNot",
    "assertIsNone": "assertIsNotNone",
    "assertIsInstance": "assertNotIsInstance",
    "assertNotEqual": "assertEqual",
    "assertRegex": "assertNotRegex",
    "assertGreater": "assertLessEqual",
    "assertLess": "assertGreaterEqual",
}
_COMPARED: Mapping[str, ast.cmpop] = {
    "assertIn": ast.In(),
    "assertLess": ast.Lt(),
    "assertLessEqual": ast.LtE(),
    "assertGreater": ast.Gt(),
    "assertGreaterEqual": ast.GtE(),
}
_DENIED: Mapping[str, ast.cmpop] = {"assertNotIn": ast.NotIn(), "assertNotEqual": ast.NotEq()}
_OPPOSITE |= {other: name for name, other in _OPPOSITE.items() if name != "assertNotEqual"}
_RAISES = frozenset({"raises", "assertRaises", "assertRaisesRegex", "assertRaisesRegexp"})
_WARNS = frozenset({"warns", "assertWarns", "assertWarnsRegex", "deprecated_call"})
FURTHER = 7
"""How much more a number differs where a test is put in other words again."""
_LOOSE = re.compile(r"\bANY\b|dirty_equals|\bIs[A-Z]\w*|\bAny\w*\(")


def rewrite_python(
    text: str, targets: AbstractSet[Target], kind: str, *, word: str, name: str, number: int, form: str = ""
) -> tuple[str, frozenset[Target]]:
    """Return a test file with some of its tests in other words, and which could be; see `rewrite.rewrite`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text, frozenset()
    writer = _Writer(text, word, name, number, form)
    done: set[Target] = set()
    for target in sorted(targets):
        for function in find_functions(tree, target):
            edits = writer.expect(function) if kind == "expect" else writer.body(function)
            if edits:
                writer.edits += edits
                done.add(target)
    made = writer.text()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(made, "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text, frozenset()
    return made, frozenset(done)


def _on_its_line(function: Function) -> bool:
    """Whether a body that begins on the line of its `def` has nothing that another statement can be put before on that line."""
    first = function.body[0]
    return first.lineno == function.lineno and not isinstance(first, (*_SIMPLE, ast.Return))


class _Writer:
    """Collects what is put in where, and does it from the end."""

    def __init__(self, text: str, word: str, name: str, number: int, form: str) -> None:
        self._source = text.encode()
        self._word, self._name, self._chosen = word, name, number
        self._number = number + FURTHER if form else number
        self._form = form
        self._plain, self._sure, self._still = form == "plain", form == "sure", form == "still"
        self._lines: list[int] = [0]
        for line in self._source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self.edits: list[_Edit] = []

    def text(self) -> str:
        """Return the file as it is now. It has the helpers whatever they are for, so that their names tell nothing."""
        made = self._source
        for start, end, new in sorted(set(self.edits), reverse=True):
            made = made[:start] + new + made[end:]
        helpers = (
            HELPERS.format(name=self._name, number=self._number, word=self._word, made="unlike" if self._plain else "alike")
            if self.edits
            else ""
        )
        return made.decode() + helpers

    def _start(self, node: Any) -> int:
        return self._lines[int(node.lineno) - 1] + int(node.col_offset)

    def _end(self, node: Any) -> int:
        return self._lines[int(node.end_lineno) - 1] + int(node.end_col_offset)

    def _segment(self, node: ast.AST) -> bytes:
        return self._source[self._start(node) : self._end(node)]

    def _indent(self, stmt: ast.stmt) -> bytes:
        return self._source[self._lines[stmt.lineno - 1] : self._start(stmt)]

    def body(self, function: Function) -> list[_Edit]:
        """Something at its beginning and, wherever it ends, that this is so, or is not."""
        own = list(inner(function))
        if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own):
            return []
        stmts = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
        if not stmts or isinstance(stmts[-1], ast.Raise) or _on_its_line(function):
            return []
        if any(isinstance(node, ast.Name) and node.id in {"locals", "vars"} for node in own):
            return []  # it would see the name that is added
        begin = f'{self._name} = len("{self._word}")'.encode()
        check = b"pass" if self._still else f"assert {self._name} == {self._number}".encode()
        edits = [self._before(stmts[0], begin)]
        edits += [(self._start(node), self._start(node), check + b"; ") for node in own if isinstance(node, ast.Return)]
        if not isinstance(stmts[-1], ast.Return):
            edits.append(self._after(stmts[-1], stmts[0], check))
        return edits

    def _before(self, stmt: ast.stmt, text: bytes) -> _Edit:
        if isinstance(stmt, (*_SIMPLE, ast.Return)):
            return self._start(stmt), self._start(stmt), text + b"; "
        marks = getattr(stmt, "decorator_list", ())
        at = self._lines[(marks[0] if marks else stmt).lineno - 1]
        return at, at, self._indent(stmt) + text + b"\n"

    def _after(self, stmt: ast.stmt, first: ast.stmt, text: bytes) -> _Edit:
        if isinstance(stmt, _SIMPLE):
            return self._end(stmt), self._end(stmt), b"; " + text
        line = stmt.end_lineno or stmt.lineno
        at = self._lines[line]
        new = self._indent(first) + text + b"\n"
        return at, at, new if self._source[:at].endswith(b"\n") else b"\n" + new

    def expect(self, function: Function) -> list[_Edit]:
        """Another value for one thing that is expected for certain: behind nothing that could end the test before, or swallow it.

        One alone, so that no other turns the test red in its place; a value that is compared rather than anything else.
        """
        if self._form in {"every", "near"}:
            edit = self._edit_any if self._form == "every" else self._edit_near
            return [each for node in ast.walk(function) for each in edit(node)]
        found: tuple[list[list[_Edit]], list[list[_Edit]]] = ([], [])
        bound = parameters(function)
        for stmt in certain(function.body):
            match stmt:
                case ast.Assert(test=test):
                    found[not _is_equality(test)].append(self._edit_assert(test, function, bound))
                case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attr) as func, args=args) as call):
                    found[attr not in _EQUAL].append(self._edit_call(call, func, attr, args))
                case ast.With(items=items) | ast.AsyncWith(items=items):
                    found[1].extend(self._edit_raises(item.context_expr) for item in items)
                case ast.If(test=test, orelse=[]) if fails(stmt):
                    found[1].append(self._unfailing(test))
        for some in found:
            if edits := [edit for edit in some if edit]:
                return edits[self._chosen % len(edits)]
        return []

    def _edit_any(self, node: ast.AST) -> list[_Edit]:
        """Another value for what is expected there, whether it is sure to run or not."""
        match node:
            case ast.Assert(test=test) if not isinstance(test, ast.Constant):
                return self._edit_assert(test, None, frozenset())
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attr) as func, args=args) as call):
                return self._edit_call(call, func, attr, args)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                return [edit for item in items for edit in self._edit_raises(item.context_expr)]
        return []

    def _edit_near(self, node: ast.AST) -> list[_Edit]:
        """That what is found there is not what is near to the expected, too."""
        asked = ask_near(node, f"{self._name}_near", self._segment)
        return [(self._start(first), self._end(last), text) for first, last, text in asked] + (
            [(self._end(node.func) - len(node.func.attr), self._end(node.func), b"assertFalse")]
            if asked and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            else []
        )

    def _unfailing(self, test: ast.expr) -> list[_Edit]:
        """Another value in what has a test fail where it holds: `abs(x - 180) > 0.01`, of which what is no number is no more."""
        match test:
            case ast.Compare(
                left=ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(op=ast.Sub(), left=left, right=right)]),
                ops=[ast.Gt() | ast.GtE()],
                comparators=[room],
            ):
                return self._put(far(left, right, room, self._number))
            case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[right]):
                return self._equal(left, right)
        return []

    def _edit_assert(self, test: ast.expr, function: Function | None, bound: AbstractSet[str]) -> list[_Edit]:
        if _LOOSE.search(self._segment(test).decode(errors="replace")):
            return []
        opposite = [(self._start(test), self._end(test), b"not (" + self._segment(test) + b")")]
        edits = self._unlike(test, function, bound)
        if self._plain and edits and not _is_equality(test):
            return []
        return edits or ([] if self._sure else opposite)

    def _unlike(self, test: ast.expr, function: Function | None = None, bound: AbstractSet[str] = frozenset()) -> list[_Edit]:
        """Another value for what something is compared with, so that what held does not; nothing where that is not certain."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._unfailing(operand)
            case ast.BoolOp(op=ast.And(), values=values):
                return next((edits for value in values if (edits := self._unlike(value, function, bound))), [])
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                return self._equal(left, right, function, bound)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compared(test, op, left, right)
            case ast.Call():
                return self._tested(test)
        return []

    def _compared(self, test: ast.expr, op: ast.cmpop, left: ast.expr, right: ast.expr) -> list[_Edit]:
        if asked := denied(op, left, right, self._name, self._segment):
            return [(self._start(test), self._end(test), asked)]
        other = make_unlike(op, left, right, self._number, self._segment)
        cut = (self._start(test), self._end(test)) != (self._start(left), self._end(right))  # in the middle of brackets
        return [] if cut and other and other.first is not other.last else self._put(other)

    def _tested(self, test: ast.Call) -> list[_Edit]:
        match test:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="math" | "cmath" | "np" | "numpy"), attr="isclose") | ast.Name(id="isclose"),
                args=[_, side],
                keywords=[],
            ):
                return self._put(close(side, self._number))
            case ast.Call(func=ast.Attribute(value=owner, attr="startswith" | "endswith"), args=[side], keywords=[]):
                return self._put(begins(owner, side))
            case ast.Call(func=ast.Name(id="isinstance"), args=[side, kind], keywords=[]):
                return self._put(no_instance(side, kind))
        return []

    def _put(self, unlike: Unlike | None) -> list[_Edit]:
        return [(self._start(unlike.first), self._end(unlike.last), unlike.text)] if unlike else []

    def _equal(
        self, left: ast.expr, right: ast.expr, function: Function | None = None, bound: AbstractSet[str] = frozenset()
    ) -> list[_Edit]:
        for side, other in ((right, left), (left, right)):
            if is_literal(side) and not is_literal(other):
                if self._sure and is_rest(other, side):
                    return []  # an operator that gives the same for all
                return [(self._start(side), self._end(side), self._other_literal(side))]
        for side in (right, left):
            if function is None or not isinstance(side, ast.Name) or _on_its_line(function):
                continue
            if side.id in bound and uses(function, side.id) == 1:
                rebound = f"{side.id} = {self._name}_other({side.id})".encode()
                stmts = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
                return [self._before(stmts[0], rebound)]
        near = [side for side in (right, left) if b"approx(" in self._segment(side)]
        if near and not self._plain and (far := approximate(near[0], self._number)):
            return self._put(far)
        # What is compared with the one may be near to more.
        side = near[0] if near else left if calls(right) and not calls(left) else right
        if is_literal(left) and is_literal(right):
            return []
        made = "unlike" if near else "other"
        return [(self._start(side), self._end(side), f"{self._name}_{made}(".encode() + self._segment(side) + b")")]

    def _other_literal(self, node: ast.expr) -> bytes:
        """Other words for a literal, of the same kind."""
        value = ast.literal_eval(node)
        try:
            made = repr(other_value(value, self._word, self._number))
            if ast.literal_eval(made) != value:
                return made.encode()
        except (ValueError, SyntaxError):
            pass
        return f"{self._name}_other(".encode() + self._segment(node) + b")"

    def _edit_call(self, call: ast.Call, func: ast.Attribute, attr: str, args: Sequence[ast.expr]) -> list[_Edit]:
        if any(isinstance(arg, ast.Starred) for arg in args) or _LOOSE.search(self._segment(call).decode(errors="replace")):
            return []
        if attr in _EQUAL and len(args) > 1:
            loose = "Almost" in attr and (bool(args[2:]) or any(word.arg in {"places", "delta"} for word in call.keywords))
            return [] if loose else self._equal(args[0], args[1])
        if edits := self._otherwise(func, attr, args):
            return edits if not self._plain or (attr == "assertTrue" and _is_equality(args[0])) else []
        if attr == "assertFalse" and (edits := self._unfailing(args[0]) if args else []):
            return edits
        if attr in _OPPOSITE and not self._sure:
            end = self._end(func)
            return [(end - len(attr), end, _OPPOSITE[attr].encode())]
        return self._edit_raises(call) if len(args) > 1 else []

    def _otherwise(self, func: ast.Attribute, attr: str, args: Sequence[ast.expr]) -> list[_Edit]:
        """Something else for what is asserted in other ways than that two are equal."""
        if attr == "assertTrue" and args:
            return self._unlike(args[0])
        if len(args) < 2:  # noqa: PLR2004 - what was found, and what is expected
            return []
        first, second = args[:2]
        if attr in _DENIED and (asked := denied(_DENIED[attr], first, second, self._name, self._segment)):
            at = self._end(func)
            return [(at - len(attr), at, b"assertTrue"), (self._start(first), self._end(second), asked)]
        if attr == "assertIsInstance":
            return self._put(no_instance(first, second))
        other = make_unlike(_COMPARED[attr], first, second, self._number, self._segment) if attr in _COMPARED else None
        between = other is not None and other.first is not other.last  # the number is the first argument
        return self._put(Unlike(first, first, b'float("nan")') if between else other)

    def _edit_raises(self, call: ast.expr) -> list[_Edit]:
        if not (isinstance(call, ast.Call) and call.args and not isinstance(call.args[0], ast.Starred)):
            return []
        name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
        kind = "error" if name in _RAISES else "warning" if name in _WARNS else ""
        first = call.args[0]
        return [(self._start(first), self._end(first), f"{self._name}_{kind}".encode())] if kind else []


def _is_equality(test: ast.expr) -> bool:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(map(_is_equality, test.values))
    return isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)
