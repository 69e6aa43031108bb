"""Small bugs that a script can put into a function: an inverted operator, an off-by-one number, a
missing return.

    for fault in faults("src/sums.py", text): fault.broken(text)

Pure. Python is parsed (ast); C, Go, Rust and JavaScript are read token by token, without comments,
strings and patterns.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SUMMED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
}
_SWAPS = (
    (" == ", " != "),
    (" != ", " == "),
    (" === ", " !== "),
    (" !== ", " === "),
    (" < ", " >= "),
    (" >= ", " < "),
    (" > ", " <= "),
    (" <= ", " > "),
    (" && ", " || "),
    (" || ", " && "),
    (" + ", " - "),
    (" - ", " + "),
    (" += ", " -= "),
    (" true", " false"),
    (" false", " true"),
    ("if !", "if "),
    ("if (!", "if ("),
)
# Text that a token-by-token reading must skip. A slash begins a pattern if no value can stand
# before it.
_COMMENT, _DOUBLE, _SINGLE = r"//[^\n]*|/\*.*?\*/", r'"(?:\\.|[^"\\\n])*"', r"'(?:\\.|[^'\\\n])*'"
_PATTERN = (
    r"(?:(?<=[(,=:\[!&|?{};+])|(?<=return)) ?/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/"
)
_SKIPPED = {
    ".c": (_COMMENT, _DOUBLE, _SINGLE, r"(?m:^[ \t]*\#[^\n]*)"),
    ".go": (_COMMENT, _DOUBLE, "`[^`]*`", _SINGLE),
    ".rs": (_COMMENT, r'b?r(#*)".*?"\1', r'b?"(?:\\.|[^"\\])*"', r"b?'(?:\\[^\n']+|[^'\\\n])'"),
    ".js": (_COMMENT, _DOUBLE, r"`(?:\\.|[^`\\])*`", _SINGLE, _PATTERN),
}
_LIKE = {".mjs": ".js", ".cjs": ".js", ".ts": ".js", ".mts": ".js"}
_FUNCTIONS = {
    ".c": re.compile(r"^(?:[A-Za-z_][\w \t*]*[ \t*])?(\w+)\s*\([^;{}]*\)\s*\{", re.MULTILINE),
    ".go": re.compile(r"^func (?:\([^)]*\) )?(\w+)", re.MULTILINE),
    ".rs": re.compile(r"\bfn (\w+)"),
    ".js": re.compile(
        r"\bfunction\s*\*?\s*(\w+)"
        r"|\b(\w+)\s*[=:]\s*(?:async\s*)?(?:function\b|\([^()]*\)\s*=>|\w+\s*=>)"
        # a method of a class or an object
        r"|^[ "
        r"\t]+(?:(?:async|static|get|set)\s+|\*\s*)*(?!(?:if|for|while|switch|catch|with|function)\b)(\w+)\s*\([^()]*\)\s*\{",
        re.MULTILINE,
    ),
}
_RUST_TESTS = re.compile(r"#\[cfg\((?:all\()?test\b[^\n]*\n(?:\s*(?:#|//)[^\n]*\n)*\s*mod \w+ \{")
_RUST_TEST = re.compile(r"#\[test\]\s+(?:#\[[^\n]*\s+)*(?:pub )?fn (\w+)")
_INSIDE = re.compile(r"(?m)^(?:[ \t]|$)")


@dataclass(frozen=True, slots=True)
class Fault:
    """One change: the characters from `start` to `end` of a file become `new`, inside `function`
    (its name, or empty).
    """

    path: str
    start: int
    end: int
    new: str
    kind: str
    function: str

    def broken(self, text: str) -> str:
        """Return the file's text with this fault."""
        return text[: self.start] + self.new + text[self.end :]


def mutable(path: str) -> bool:
    """True if the language of a file is supported and its path is that of library code."""
    pure = PurePosixPath(path)
    suffix = _LIKE.get(pure.suffix, pure.suffix)
    aside = {
        "docs",
        "doc",
        "examples",
        "example",
        "benches",
        "benchmarks",
        "bench",
        "benchmark",
        "fuzz",
        "tasks",
        "scripts",
        "ci",
        "dist",
    }
    if path.endswith((".d.ts", ".d.mts")):
        return False  # only types
    return suffix in {".py", *_SKIPPED} and not aside & set(pure.parts) and not _aside(pure)


def _aside(path: PurePosixPath) -> bool:
    return (
        path.name in {"setup.py", "noxfile.py", "build.rs", "conftest.py", "doc.go"}
        or ".min." in path.name
    )


def faults(path: str, text: str) -> list[Fault]:
    """Return every fault known for a file, in text order; none if it cannot be parsed."""
    suffix = PurePosixPath(path).suffix
    candidates = (
        _python(path, text) if suffix == ".py" else _words(path, text, _LIKE.get(suffix, suffix))
    )
    return sorted(candidates, key=lambda fault: (fault.start, fault.end, fault.new))


def _python(path: str, text: str) -> Iterator[Fault]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    starts = [0]
    for row in text.split("\n"):
        starts.append(starts[-1] + len(row) + 1)
    rows = [row.encode() for row in text.split("\n")]

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(rows[line - 1][:column].decode(errors="ignore"))

    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in (
            descendant for statement in function.body for descendant in _own_nodes(statement)
        ):
            for kind, changed in _mutations(node):
                if (
                    isinstance(node, ast.expr | ast.stmt)
                    and node.end_lineno
                    and node.end_col_offset is not None
                ):
                    start, end = (
                        offset(node.lineno, node.col_offset),
                        offset(node.end_lineno, node.end_col_offset),
                    )
                    yield Fault(path, start, end, changed, kind, function.name)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and its descendants except nested functions, annotations and f-strings (whose
    positions are wrong before Python 3.12).
    """
    if isinstance(
        node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr | ast.AnnAssign
    ):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _own_nodes(child)


def _mutations(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare(ops=[operator], left=left, comparators=comparators) if (
            type(operator) in _COMPARED
        ):
            yield (
                "comparison",
                f"({ast.unparse(ast.Compare(left, [_COMPARED[type(operator)]()], comparators))})",
            )
        case ast.BoolOp(op=operator, values=values):
            negated = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and/or", f"({ast.unparse(ast.BoolOp(negated, values))})"
        case ast.BinOp(op=operator, left=left, right=right) if type(operator) in _SUMMED:
            yield (
                "arithmetic",
                f"({ast.unparse(ast.BinOp(left, _SUMMED[type(operator)](), right))})",
            )
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield "constant", str(not value)
        case ast.Constant(value=int(number)):
            yield "off by one", f"({number + 1})"
        case ast.Return(value=ast.expr() as value) if not (
            isinstance(value, ast.Constant) and value.value is None
        ):
            yield "return", "return None"


def _words(path: str, text: str, suffix: str) -> Iterator[Fault]:
    if suffix == ".rs" and (inner := _RUST_TESTS.search(text)):
        text = text[: inner.start()]
    bare = re.sub(
        "|".join(_SKIPPED[suffix]),
        lambda match: re.sub(r"[^\n]", "\0", match[0]),
        text,
        flags=re.DOTALL,
    )
    heads = [
        (match.start(), next(name for name in match.groups() if name))
        for match in _FUNCTIONS[suffix].finditer(bare)
    ]
    tests = set(_RUST_TEST.findall(bare)) if suffix == ".rs" else set()
    for old, new in _SWAPS:
        for match in re.finditer(re.escape(old), bare):
            if (name := _enclosing_function(bare, heads, match.start())) and name not in tests:
                yield Fault(path, match.start(), match.end(), new, old.strip(), name)
    for match in re.finditer(r"(?<=[ (\[])\d{1,6}(?=[ )\];,\n])", bare):
        if (name := _enclosing_function(bare, heads, match.start())) and name not in tests:
            yield Fault(
                path, match.start(), match.end(), str(int(match[0]) + 1), "off by one", name
            )


def _enclosing_function(bare: str, heads: list[tuple[int, str]], at: int) -> str:
    """Return the last function that begins before a position whose line is indented like a body, or
    nothing.
    """
    line = bare.rfind("\n", 0, at) + 1
    if not _INSIDE.match(bare[line : line + 1]):
        return ""
    return next((name for start, name in reversed(heads) if start < line), "")
