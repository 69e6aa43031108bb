"""What tests and docstrings do with the instances of a class, as inputs: made with literals, then one call after the other. Pure."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, zip_longest
from typing import Any

from moothall.ranking.inputs.calls import (
    LONG,
    SEEDS,
    Arguments,
    Input,
    arguments_by_annotation,
    arguments_of,
    maker_parameters,
    parse,
    variants,
)
from moothall.ranking.syntax.folding import last_name

Step = tuple[str, tuple[Any, ...] | None, dict[str, Any] | None]
Script = tuple[Arguments, tuple[Step, ...]]
STEPS = 12  # with one instance
_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)
_SET_UP = frozenset({"setUp", "asyncSetUp", "setup_method", "setup"})
_SPECIAL = {"len": "__len__", "str": "__str__", "repr": "__repr__", "bool": "__bool__", "list": "__iter__", "iter": "__iter__"}
_READ = frozenset({"property", "cached_property"})


def scripts(name: str, sources: Iterable[str], text: str, most: int) -> tuple[Input, ...]:
    """Return at most `most` inputs for a class: what the sources do with it, then variants; by annotation where they do nothing.

    `text` is the file that defines it.
    """
    node = next((item for item in parse(text).body if isinstance(item, ast.ClassDef) and item.name == name), None)
    if node is None:
        return ()
    read = {
        item.name for item in node.body if isinstance(item, ast.FunctionDef) and _READ & set(map(last_name, item.decorator_list))
    }
    shown = chain.from_iterable(_Scope.all(source, name, read) for source in sources)
    seeds = list({repr(script): script for script in shown if script[1]}.values())[:SEEDS] or list(_by_annotation(node))[:SEEDS]
    made = chain(seeds, (item for row in zip_longest(*map(changed_scripts, seeds)) for item in row if item is not None))
    found = dict.fromkeys(Input(name, repr(first), repr(steps)) for first, steps in made)
    return tuple(item for item in found if len(item.arguments) + len(item.then) <= LONG)[:most]


def find_dialogues(text: str) -> Iterator[str]:
    """Yield what the docstrings of a Python file show as a dialogue, each as the text of a module."""
    for node in ast.walk(parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node)
            if said and ">>>" in said:
                try:
                    yield "".join(example.source for example in doctest.DocTestParser().get_examples(said))
                except ValueError:
                    continue  # a prompt without its blank


class _Scope:
    """One function or module: the instances that it names, and what it does with each."""

    def __init__(self, name: str, read: set[str], made: Mapping[str, Arguments]) -> None:
        self._name, self._read = name, read
        self._open: dict[str, tuple[Arguments, list[Step]]] = {key: (first, []) for key, first in made.items()}
        self._done: list[Script] = []

    @classmethod
    def all(cls, text: str, name: str, read: set[str]) -> Iterator[Script]:
        """Yield what each scope of a file does with instances of a class."""
        tree = parse(text)
        scopes = [node for node in ast.walk(tree) if isinstance(node, _SCOPES)]
        shared: dict[str, Arguments] = {}
        for scope in scopes:
            if isinstance(scope, ast.Module):
                continue
            if scope.name in _SET_UP or "fixture" in set(map(last_name, scope.decorator_list)):
                shared |= cls(name, read, {}).read_fixtures(scope)
        for scope in scopes:
            takes = {item.arg for item in scope.args.args} if not isinstance(scope, ast.Module) else set()
            yield from cls(name, read, {key: first for key, first in shared.items() if "." in key or key in takes}).of(scope)

    def read_fixtures(self, scope: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Arguments]:
        """What a fixture gives under its own name, or a set-up puts on `self`."""
        found: dict[str, Arguments] = {}
        for node in _own(scope):
            key = scope.name if isinstance(node, ast.Return) else _target(node)
            if key and (made := self._read_call(node.value)):  # type: ignore[attr-defined]  # both have one
                found[key] = made
        return found

    def of(self, scope: ast.AST) -> list[Script]:
        """Return what it does with each."""
        for node in sorted(_own(scope), key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0)):  # type: ignore[attr-defined]  # all have
            if key := _target(node):
                self._end(key)
                if made := self._read_call(node.value):  # type: ignore[attr-defined]  # an assignment
                    self._open[key] = (made, [])
            else:
                self._take(node)
        for key in list(self._open):
            self._end(key)
        return self._done

    def _take(self, node: ast.AST) -> None:
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=attr)):
                self._step(owner, attr, arguments_of(ast.unparse(node)))
            case ast.Call(func=ast.Name(id=name), args=[owner]) if name in _SPECIAL:
                self._step(owner, _SPECIAL[name], ((), {}))
            case ast.Attribute(value=owner, attr=attr, ctx=ast.Load()) if attr in self._read:
                self._step(owner, attr, None, reads=True)
            case ast.Subscript(value=owner, slice=index, ctx=ast.Load()):
                self._step(owner, "__getitem__", arguments_of(f"_({ast.unparse(index)})"))
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[owner]):
                self._step(owner, "__contains__", arguments_of(f"_({ast.unparse(left)})"))

    def _step(self, owner: ast.expr, name: str, given: Arguments | None, *, reads: bool = False) -> None:
        key = ast.unparse(owner)
        if (known := self._open.get(key)) is not None:
            if given is None and not reads:
                self._end(key)  # what is not known of it makes what follows another
            elif len(known[1]) < STEPS:
                known[1].append((name, *(given or (None, None))))
        elif (made := self._read_call(owner)) and (given is not None or reads):
            self._done.append((made, ((name, *(given or (None, None))),)))

    def _end(self, key: str) -> None:
        if known := self._open.pop(key, None):
            self._done.append((known[0], tuple(known[1])))

    def _read_call(self, node: ast.AST | None) -> Arguments | None:
        return arguments_of(ast.unparse(node)) if isinstance(node, ast.Call) and last_name(node.func) == self._name else None


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope that are not those of one within it."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if hasattr(child, "end_lineno"):
            yield child
        yield from _own(child)


def _target(node: ast.AST) -> str:
    match node:
        case ast.Assign(targets=[ast.Name() | ast.Attribute(value=ast.Name(id="self")) as target]):
            return ast.unparse(target)
    return ""


def _by_annotation(node: ast.ClassDef) -> Iterator[Script]:
    maker = maker_parameters(node)
    firsts = list(arguments_by_annotation(maker, bound=True)) if maker is not None else [((), {})]
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_") and firsts:
            for place, given in enumerate(arguments_by_annotation(item.args, bound=True)):
                yield firsts[place % len(firsts)], ((item.name, *given),)


def changed_scripts(seed: Script) -> Iterator[Script]:
    """Yield the last step with other arguments or twice, the instance made otherwise, and without the first step."""
    first, steps = seed
    name, given, named = steps[-1]
    last: Iterable[Arguments] = variants((given, named)) if given is not None and named is not None else ()
    changed = ((first, (*steps[:-1], (name, *other))) for other in last)
    made = ((other, steps) for other in variants(first))
    more: list[Script] = [(first, (*steps, steps[-1])), *([(first, steps[1:])] if steps[1:] else [])]
    yield from (item for row in zip_longest(changed, made, more) for item in row if item is not None)
