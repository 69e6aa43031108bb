"""Where a test of Python is written in its file: the function that is run by its name. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

Target = tuple[str, ...]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_functions(tree: ast.Module, target: Target) -> Iterator[Function]:
    """The function that a test's names lead to; where its class only inherits it, that of the class above in the same file."""
    body: Sequence[ast.stmt] = tree.body
    holders: Sequence[ast.ClassDef] = ()
    for name in target[:-1]:
        found = _last(ast.ClassDef, body, name)
        if found is None:
            return
        holders = _line(found, tree)
        body = found.body
    for holder in holders or (tree,):
        if any(_binds(node, target[-1]) for node in scope(holder)):
            function = _last(Function, holder.body, target[-1])
            if function is not None and not (holders and _is_never_run(tree, function, holders)):
                yield function
            return


def _last(kind: Any, body: Sequence[ast.stmt], name: str) -> Any:
    """What a name stands for at the end of a body, if it was made there and is of that kind."""
    found = [node for node in body if isinstance(node, kind) and node.name == name]
    other = any(_binds(node, name) for node in scope(ast.Module([*body], [])) if node not in found)
    return found[-1] if found and not other else None


def _line(holder: ast.ClassDef, tree: ast.Module) -> list[ast.ClassDef]:
    """A class and those of the same file that it inherits from, in the order in which Python asks them."""
    named: dict[str, list[ast.ClassDef]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            named.setdefault(node.name, []).append(node)
    made: dict[str, type] = {}
    nodes: dict[type, ast.ClassDef] = {}

    def make(node: ast.ClassDef) -> type:
        made[node.name] = object  # should it be below itself
        above = [base.id for base in node.bases if isinstance(base, ast.Name) and len(named.get(base.id, ())) == 1]
        bases = [made.get(name) or make(named[name][0]) for name in above]
        made[node.name] = kind = type("", tuple(dict.fromkeys(bases)) or (object,), {})
        nodes[kind] = node
        return kind

    try:
        return [nodes[kind] for kind in make(holder).__mro__ if kind in nodes]
    except (TypeError, RecursionError):
        return [holder]


def _is_never_run(tree: ast.Module, function: Function, holders: Sequence[ast.ClassDef]) -> bool:
    """Whether it is a coroutine or a generator of unittest's plain case, which makes it and leaves it at that."""
    own = isinstance(function, ast.AsyncFunctionDef) or any(
        isinstance(node, ast.Yield | ast.YieldFrom) for node in inner(function)
    )
    if not own or function.decorator_list:
        return False
    taken = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "unittest"]
    cases = {"unittest.TestCase"} | {name.asname or name.name for node in taken for name in node.names if name.name == "TestCase"}
    return any(ast.unparse(base) in cases for holder in holders for base in holder.bases)


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a statement gives a name to something."""
    match node:
        case ast.Name(id=bound, ctx=ast.Store()) | ast.ClassDef(name=bound):
            return bound == name
        case ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound):
            return bound == name
        case ast.alias(name=imported, asname=bound):
            return (bound or imported) == name
    return False


def scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what stands in a scope, and of those within it the head alone."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield from scope(child)


def inner(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what belongs to a function itself, and not to one within it."""
    return (child for child in scope(node) if not isinstance(child, Function | ast.Lambda | ast.ClassDef))
