"""Where the tests of a Python file stand, and what of them is sure to run. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

Target = tuple[str, ...]
Function = ast.FunctionDef | ast.AsyncFunctionDef
_SWALLOWS = re.compile(r"raises|suppress|warns|ignor|expect|xfail|skip|catch|retry", re.IGNORECASE)


def functions(tree: ast.Module, target: Target) -> Iterator[Function]:
    """The function that a test's names lead to; where its class only inherits it, that of the class above in the same file."""
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    body: Sequence[ast.stmt] = tree.body
    for name in target[:-1]:
        inner = next((node for node in body if isinstance(node, ast.ClassDef) and node.name == name), None)
        if inner is None:
            return
        body = inner.body
    waiting, seen = [body], 0
    while waiting and seen < len(classes) + 1:
        body, seen = waiting.pop(0), seen + 1
        found = [node for node in body if isinstance(node, Function) and node.name == target[-1]]
        if found:
            if not any(_binds(node, target[-1]) for node in _scope(ast.Module([*body], [])) if node not in found):
                yield found[-1]
            return
        holder = next((node for node in classes.values() if node.body is body), None)
        waiting += [
            classes[base.id].body
            for base in (holder.bases if holder else ())
            if isinstance(base, ast.Name) and base.id in classes
        ]


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a statement gives a name to something else: then that is what is run."""
    match node:
        case ast.Name(id=bound, ctx=ast.Store()) | ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound):
            return bound == name
        case ast.alias(name=imported, asname=bound):
            return (bound or imported) == name
    return False


def _scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what stands in a scope, and of those within it the head alone."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield from _scope(child)


def inner(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what belongs to a function itself, and not to one within it."""
    return (child for child in _scope(node) if not isinstance(child, Function | ast.Lambda | ast.ClassDef))


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
