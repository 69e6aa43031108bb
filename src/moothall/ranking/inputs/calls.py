"""Inputs that may tell answers apart: calls that docstring and tests show, and variants of these. Pure, and the same each time.

For functions and classes at the top level of Python files; what a call gives must be literals. Nothing is evaluated here but literals.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
LONG = 500  # characters of one input as Python spells it
SEEDS = 12  # calls that are shown, of which variants are made
_BIG = 10_000  # a number or a length beyond which no variant is made
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "int": (0, 1, 2, 7, -1),
    "float": (0.0, 1.5, -2.0),
    "bool": (True, False),
    "str": ("", "a", "aba", "Hello, world"),
    "list": ([], [1], [2, 1, 2], [3, 1, 2]),
    "list[int]": ([], [1], [2, 1, 2], [3, 1, 2]),
    "list[float]": ([], [1.0], [2.5, 1.0, 2.5]),
    "list[str]": ([], ["a"], ["b", "a", "b"]),
    "tuple": ((), (1,), (2, 1, 2)),
    "set": (set(), {1}, {1, 2, 3}),
    "dict": ({}, {"a": 1}, {"a": 1, "b": 2}),
}
"""Values for an annotated parameter of which no call is shown."""


@dataclass(frozen=True, slots=True)
class Input:
    """A call of a function or a class: `arguments` is a pair (positional, by name), as Python spells it. `then` are the steps that are taken
    with what a class made, spelt alike: tuples of a method and its pair, whose parts are None where it is only read.
    """

    function: str
    arguments: str
    then: str = "()"

    @property
    def call(self) -> str:
        """As a person would write it."""
        made, steps = f"{self.function}({_spell(*ast.literal_eval(self.arguments))})", ast.literal_eval(self.then)
        if len(steps) == 1:
            return f"{made}.{_step(*steps[0])}"
        return "; ".join([f"it = {made}", *(f"it.{_step(*step)}" for step in steps)]) if steps else made


def _spell(given: tuple[Any, ...], named: Mapping[str, Any]) -> str:
    return ", ".join([*map(repr, given), *(f"{name}={value!r}" for name, value in named.items())])


def _step(name: str, given: tuple[Any, ...] | None, named: Mapping[str, Any] | None) -> str:
    return name if given is None or named is None else f"{name}({_spell(given, named)})"


def changed_functions(base: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the functions and classes at the top level that all texts define with the same parameters, and that differ among them."""

    def read(text: str) -> dict[str, tuple[Any, str]]:
        return {name: (_parameters(node), ast.dump(node)) for name, node in _definitions(text).items()}

    return differing_names(read(base), [read(text) for text in texts])


def differing_names(known: Mapping[str, tuple[Any, str]], found: Sequence[Mapping[str, tuple[Any, str]]]) -> tuple[str, ...]:
    """Return the names that all of `found` have with the same parameters and with other words, in the first one's order. By name stand
    what has to be the same, and the words; `known` is the base's, whose words count where it has the name.
    """
    names = [name for name in (found[0] if found else {}) if all(name in each for each in found)]
    return tuple(
        name
        for name in names
        if len({repr(each[name][0]) for each in found}) == 1
        and len({each[name][1] for each in found} | ({known[name][1]} if name in known else set())) > 1
    )


def inputs(function: str, shown: Iterable[str], text: str, most: int) -> tuple[Input, ...]:
    """Return at most `most` inputs: the calls that are `shown`, then variants of them in turn; by annotation where none is.

    `shown` are calls as they are spelt, `text` the file that defines the function.
    """
    seeds = [found for call in shown if (found := arguments_of(call)) is not None][:SEEDS] or list(_by_annotation(function, text))
    made = chain(seeds, (item for row in zip_longest(*map(variants, seeds)) for item in row if item is not None))
    spelt = dict.fromkeys(repr(item) for item in made)
    return tuple(Input(function, item) for item in spelt if len(item) <= LONG)[:most]


def calls_of(text: str, function: str) -> Iterator[str]:
    """Yield the calls of a function that a file of tests makes with literals."""
    for node in ast.walk(parse(text)):
        if isinstance(node, ast.Call) and function in {getattr(node.func, "id", ""), getattr(node.func, "attr", "")}:
            call = f"{function}({', '.join(map(ast.unparse, [*node.args, *node.keywords]))})"
            if arguments_of(call) is not None:
                yield call


def parse(text: str) -> ast.Module:
    """Return the tree of a Python file, an empty one where it is none."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definitions(text: str) -> dict[str, Defined]:
    """By name, what may be called. Of one that is defined twice the last is there."""
    return {node.name: node for node in parse(text).body if isinstance(node, Defined)}


def maker_parameters(node: Defined | None) -> ast.arguments | None:
    """Return the parameters of a function, or of what makes an instance of a class that says how."""
    if isinstance(node, ast.ClassDef):
        makers = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
        return makers[-1].args if makers else None
    return node.args if node is not None else None


def _parameters(node: Defined) -> str:
    found = maker_parameters(node)
    return f"{type(node) is ast.ClassDef} {ast.dump(found) if found is not None else ''}"


def arguments_of(call: str) -> Arguments | None:
    """Return what a call gives, None where that is more than literals."""
    try:
        node = ast.parse(call, mode="eval").body
        if not isinstance(node, ast.Call) or any(item.arg is None for item in node.keywords):
            return None
        return tuple(map(ast.literal_eval, node.args)), {str(item.arg): ast.literal_eval(item.value) for item in node.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _by_annotation(function: str, text: str) -> Iterator[Arguments]:
    yield from arguments_by_annotation(maker_parameters(_definitions(text).get(function)))


def arguments_by_annotation(wanted: ast.arguments | None, *, bound: bool = False) -> Iterator[Arguments]:
    """Yield arguments for parameters, by their annotations, nothing where one says nothing. `bound`: the first is the instance."""
    if wanted is None or wanted.kwonlyargs or wanted.posonlyargs:
        return
    needed = wanted.args[bound : len(wanted.args) - len(wanted.defaults)]
    kinds = [ast.unparse(item.annotation).lower().replace("sequence", "list") if item.annotation else "" for item in needed]
    values = [_PLAIN.get(kind) or _PLAIN.get(kind.partition("[")[0], ()) for kind in kinds]
    if not all(values) or not (values or bound):
        return
    for place in range(max(map(len, values), default=1)):
        yield tuple(choices[min(place, len(choices) - 1)] for choices in values), {}


def variants(seed: Arguments) -> Iterator[Arguments]:
    """One argument after the other, changed; the others as they are."""
    given, named = seed
    rows = [[(*given[:at], other, *given[at + 1 :]) for other in _others(value)] for at, value in enumerate(given)]
    for row in zip_longest(*rows):
        yield from ((changed, named) for changed in row if changed is not None)
    for name, value in named.items():
        yield from ((given, {**named, name: other}) for other in _others(value))


def _others(value: Any) -> list[Any]:  # noqa: PLR0911 - one for each kind of literal
    """Values of the same kind, such as edges are made of."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [0, 1, -1, 2, value + 1, value - 1, -value, *([value * 10] if abs(value) < _BIG else [])]
    if isinstance(value, float):
        return [0.0, 1.0, -value, value / 2, value + 0.5]
    if isinstance(value, str):
        return ["", value[:1], value[::-1], value[: LONG // 4] * 2, value.swapcase(), f" {value} ", f"{value}é"]
    if isinstance(value, list | tuple):
        return [type(value)(other) for other in _sequences(list(value))]
    if isinstance(value, set):
        return [set(), *([value - {min(value, key=repr)}] if value else [])]
    if isinstance(value, dict):
        return [{}, *([dict(list(value.items())[1:])] if len(value) > 1 else [])]
    return []


def _sequences(value: list[Any]) -> Iterator[list[Any]]:
    yield []
    if not value:
        return
    yield value[:1]
    yield [value[0], *value]  # one twice
    yield value[::-1]
    yield [value[0]] * len(value)
    yield from ([other, *value[1:]] for other in _others(value[0])[:4])
    yield value[: _BIG // 100] * 2
    yield from ([*value, other] for other in _others(value[-1])[:4])
