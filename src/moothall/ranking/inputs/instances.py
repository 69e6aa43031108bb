"""What tests in Go and JavaScript do with an instance of a type: made with literals, then one call after the other. Pure; see `steps`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

from moothall.ranking.inputs.calls import LONG, SEEDS, Arguments, arguments_of
from moothall.ranking.inputs.script import read_arguments
from moothall.ranking.inputs.steps import STEPS, Script, Step, changed_scripts
from moothall.ranking.syntax.statements import block_end

_LONGEST = 20_000  # characters of a block that are read
_NOTHING: Arguments = ((), {})


@dataclass(frozen=True, slots=True)
class Made:
    """How an instance is made, as it is written without what it is given, and what is done with it."""

    how: str
    script: Script


def find_instances(text: str, maker: re.Pattern[str], ending: str, read: Collection[str] = ()) -> Iterator[Made]:
    """Yield what a test file does with the instances that a pattern finds. Its groups are `it`, the name that one has (none: it is used where
    it is made), and `how`; it ends behind the bracket that what is given stands in, if any. `read`: what is read without a call.
    """
    for match in maker.finditer(text):
        first, at = _parse_arguments(text, match.end()) if match[0].endswith("(") else (_NOTHING, match.end())
        if first is None:
            continue
        if match["it"]:
            rest = text[at : at + _LONGEST]
            steps = _steps(rest[: block_end(ending, rest, 0)], match["it"], read)
        else:
            steps = _steps(f"it{text[at : at + LONG]}", "it", read)[:1] if text[at : at + 1] == "." else ()
        if steps:
            yield Made(match["how"], (first, steps))


def with_variants(shown: Iterable[Made]) -> Iterator[Made]:
    """Yield what is shown, then variants of it in turn."""
    seeds = list({repr(made): made for made in shown}.values())[:SEEDS]
    rows = zip_longest(*([Made(made.how, other) for other in changed_scripts(made.script)] for made in seeds))
    yield from chain(seeds, (item for row in rows for item in row if item is not None))


def _parse_arguments(text: str, at: int) -> tuple[Arguments | None, int]:
    """Return what is given within a bracket, None where that is more than literals; and where it ends."""
    said, end = read_arguments(text, at)
    return (arguments_of(f"_({said})") if said is not None else None), end


def _steps(text: str, it: str, read: Collection[str]) -> tuple[Step, ...]:
    """Return what is done with one of this name, up to what is not known of it: that makes what follows another."""
    found: list[Step] = []
    for match in re.finditer(rf"(?<![\w$.]){re.escape(it)}(?:\.(?P<name>[\w$]+)(?P<call>\()?|\s*:?=(?![=>]))", text):
        given = _parse_arguments(text, match.end())[0] if match["call"] else None
        if (given is None and match["name"] not in read) or len(found) == STEPS:
            if match["call"] or not match["name"]:
                break
            continue
        found.append((match["name"], *(given or (None, None))))
    return tuple(found)
