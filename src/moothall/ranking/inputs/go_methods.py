"""Inputs for the methods of Go's types, by their words: what tests do with an instance, in the types that it takes. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from moothall.ranking.inputs.calls import LONG, Arguments, Input, differing_names
from moothall.ranking.inputs.go import go_parameters, plain_kind, plain_lists, spell_go
from moothall.ranking.inputs.instances import Made, find_instances, with_variants
from moothall.ranking.syntax.brackets import closings
from moothall.ranking.syntax.normal import code_of

_METHOD = re.compile(r"(?m)^func \((?:\w+ )?\*?(?P<type>\w+)\) (?P<name>\w+)\((?P<given>[^()]*)\)(?P<result>[^{}\n]*)\{$")
_MAKER = re.compile(
    r"(?m)^func (?P<name>\w+)\((?P<given>[^()]*)\) (?P<result>\*?(?P<type>\w+)|\(\*?(?P<unsure>\w+), error\)) \{$"
)
_FIELD = r"(?:\w+: *)?(?:-?\d+(?:\.\d+)?|true|false|\"(?:\\.|[^\"\\\n])*\")"
"""Of a composite literal, a field that is written plainly."""

Signature = tuple[tuple[str, ...], str]
"""The types of what is given, and what is returned, as it is written."""


@dataclass(frozen=True, slots=True)
class GoSteps(Input):
    """What is done with an instance: `arguments` is what makes it and whether that may fail, `then` the calls, and whether what each returns
    is told.
    """

    @property
    def call(self) -> str:
        """As a person would write it."""
        made, _ = ast.literal_eval(self.arguments)
        return "; ".join([f"it := {made}", *(f"it.{step}" for step, _ in ast.literal_eval(self.then))])


@dataclass(slots=True)
class _Type:
    """By name its methods and what makes one; the words of all."""

    methods: dict[str, Signature] = field(default_factory=dict)
    makers: dict[str, Signature] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)


def changed_go_types(base: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the types whose methods differ among the texts, and that are made alike in all."""

    def read(text: str) -> dict[str, tuple[Mapping[str, Signature], str]]:
        return {name: (found.makers, "\0".join(sorted(found.words))) for name, found in _types(text).items() if found.methods}

    return differing_names(read(base), [read(text) for text in texts])


def go_steps(name: str, sources: Iterable[str], texts: Sequence[str], most: int) -> tuple[Input, ...]:
    """Return at most `most` inputs for a type of which all texts have methods: what the sources do with one, then variants."""
    found = [_types(text)[name] for text in texts]
    methods = dict(set.intersection(*(set(each.methods.items()) for each in found)))
    makers = found[0].makers
    shown = (
        made
        for source in sources
        for pattern in _makers(name, makers)
        for made in find_instances(plain_lists(source), pattern, ".go")
    )
    made = dict.fromkeys(item for one in with_variants(shown) if (item := _spell(name, one, makers, methods)))
    return tuple(item for item in made if len(item.arguments) + len(item.then) <= LONG)[:most]


def _makers(name: str, makers: Iterable[str]) -> Iterator[re.Pattern[str]]:
    """Yield what an instance is made by: a function, a literal, a declaration."""
    kind = rf"(?:\w+\.)?{re.escape(name)}"
    if named := "|".join(map(re.escape, makers)):
        yield re.compile(rf"(?:\b(?P<it>\w+)(?:, *\w+)? *:?= *)?\b(?:\w+\.)?(?P<how>{named})\(")
    yield re.compile(rf"\b(?P<it>\w+) *:?= *(?P<how>&?{kind}\{{(?:{_FIELD}(?:, *{_FIELD})*)?\}})")
    yield re.compile(rf"\bvar (?P<it>\w+) (?P<how>{kind})\n")


def _spell(name: str, made: Made, makers: Mapping[str, Signature], methods: Mapping[str, Signature]) -> Input | None:
    """Return what is done in Go's words, up to what does not fit the types; None where nothing is left."""
    first, steps = made.script
    how = re.sub(r"^(&?)\w+\.", r"\1", made.how)
    if how in makers:
        maker, unsure = _spell_call(how, first, makers[how][0]), "error" in makers[how][1]
    else:
        maker, unsure = how if how.endswith("}") else f"*new({how})", False
    calls = []
    for step, given, named in steps:
        known = methods.get(step)
        call = _spell_call(step, (given or (), named or {}), known[0]) if known else ""
        if known is None or not call:
            break
        calls.append((call, bool(known[1]) and name not in known[1]))
    return GoSteps(name, repr((maker, unsure)), repr(tuple(calls))) if maker and calls else None


def _spell_call(name: str, given: Arguments, types: Sequence[str]) -> str:
    """Return a call, nothing where what is given does not fit the types."""
    spelt = [plain_kind(kind) and spell_go(value, kind) for value, kind in zip(given[0], types, strict=False)]
    return f"{name}({', '.join(spelt)})" if len(given[0]) == len(types) and all(spelt) else ""


def _types(text: str) -> dict[str, _Type]:
    found, ends = dict[str, _Type](), closings(text, "script")
    for pattern in (_METHOD, _MAKER):
        for match in pattern.finditer(text):
            if end := ends.get(match.end() - 1, 0):
                kind = found.setdefault(match["type"] or match["unsure"], _Type())
                into = kind.methods if pattern is _METHOD else kind.makers
                into[match["name"]] = (tuple(each for _, each in go_parameters(match["given"])), match["result"].strip())
                kind.words.append(code_of("_.go", text[match.start() : end]))
    return found
