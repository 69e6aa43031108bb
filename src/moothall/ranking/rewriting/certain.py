"""What of a test of Python is sure to run, and what it uses. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from moothall.ranking.rewriting.find import Function, inner

_SWALLOWS = re.compile(
    r"raises|suppress|warns|ignor|expect|xfail|skip|catch|retry|exception|fail|error|swallow|tolerat", re.IGNORECASE
)


def fails(stmt: ast.If) -> bool:
    """Whether a test ends there, red."""
    match stmt.body[-1]:
        case ast.Raise(exc=exc) if exc is not None:
            return "Skip" not in ast.dump(exc)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="fail"))):
            return True
    return False


def certain(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that a test which passes runs for certain."""
    for stmt in body:
        if isinstance(stmt, ast.Return | ast.Raise):
            return
        yield stmt
        if isinstance(stmt, ast.With | ast.AsyncWith):
            plain = all(
                isinstance(item.context_expr, ast.Call) and not _SWALLOWS.search(ast.dump(item.context_expr.func))
                for item in stmt.items
            )
            if plain:
                yield from certain(stmt.body)
        if any(isinstance(node, ast.Return) for node in inner(stmt)):
            return


def parameters(function: Function) -> frozenset[str]:
    """The arguments that `parametrize` gives it."""
    found: set[str] = set()
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) and mark.func.attr == "parametrize" and mark.args:
            try:
                said = ast.literal_eval(mark.args[0])
            except (ValueError, SyntaxError):
                continue
            found |= set(re.split(r"[,\s]+", said)) if isinstance(said, str) else {str(each) for each in said}
    return frozenset(found)


def uses(function: Function, name: str) -> int:
    """How often a name stands in the body of a function."""
    return sum(isinstance(node, ast.Name) and node.id == name for stmt in function.body for node in ast.walk(stmt))


def calls(node: ast.expr) -> bool:
    """Whether something is called in it."""
    return any(isinstance(each, ast.Call | ast.Await) for each in ast.walk(node))
