"""Distinguishing inputs: where no test tells candidates apart, all of them run on the same inputs, and those that behave the same
stand together.

What a candidate does is what its own code says in its own sandbox: it can lie about itself, and about no other.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TypeGuard

from moothall.config import LimitSettings
from moothall.council.facts import Facts
from moothall.council.judging.calls import LANGUAGES, calls, changed_names, language
from moothall.council.judging.runs import TEXT_LIMIT, FreshRuns
from moothall.council.prompting.excerpt import looks_like_test
from moothall.domain.evidence import INPUTS, Evidence, Verdict
from moothall.domain.ids import digest
from moothall.domain.proposal import Proposal
from moothall.ranking.inputs.calls import Input
from moothall.ranking.syntax.diffs import file_diffs

_FILES, _FUNCTIONS, _TESTS = 3, 4, 20
"""Changed files and functions that are run, and files of tests that are read for calls."""
_CHARS = 400  # of one outcome
_SECONDS = 0.5  # of computing, one call; ten times that on the clock, so that a busy machine changes no outcome
_UNSTEADY = "differs from run to run"
_CRASHES = (
    "RangeError",
    "ReferenceError",
    "AttributeError",
    "IndexError",
    "KeyError",
    "NameError",
    "RecursionError",
    "TypeError",
    "UnboundLocalError",
    "ZeroDivisionError",
    "panic",
)


@dataclass(frozen=True, slots=True)
class ProbedInput:
    """An input with the file that defines its function, and what the base's docstring says comes of it, where it says so."""

    path: str
    given: Input
    said: str = ""


@dataclass(frozen=True, slots=True)
class _Told:
    """What came of the inputs: `outcomes` and `seats` by diff, of those that ran; `steady` and `apart` are places in `asked`."""

    asked: Sequence[ProbedInput]
    steady: Sequence[int]
    apart: Sequence[int]
    outcomes: Mapping[str, Sequence[str]]
    seats: Mapping[str, AbstractSet[str]]

    def evidence(self, diff: str) -> Evidence:
        """Return what speaks for and against one of them."""
        mine = self.outcomes.get(diff)
        if mine is None:
            return Evidence(
                INPUTS, Verdict.ERRORED, failed=1, why="it could not be run on inputs that others were run on", behaviour="-"
            )
        return Evidence(
            INPUTS,
            Verdict.PASSED,
            passed=self._with_most(mine),
            failed=self._against(mine),
            why=self._why(mine),
            behaviour=self._behaviour(mine),
        )

    def _behaviour(self, said: Sequence[str]) -> str:
        return digest(*(said[at] for at in self.apart))

    def _why(self, mine: Sequence[str]) -> str:
        """Name the shortest input that tells it from the most seats that do otherwise."""
        behaving: dict[str, set[str]] = {}
        for diff, said in self.outcomes.items():
            behaving.setdefault(self._behaviour(said), set()).update(self.seats[diff])
        others = [said for said in self.outcomes.values() if self._behaviour(said) != self._behaviour(mine)]
        if not others:
            return f"all that could be run do the same on {len(self.steady)} inputs"
        other = max(others, key=lambda said: (len(behaving[self._behaviour(said)]), self._behaviour(said)))
        at = min((at for at in self.apart if mine[at] != other[at]), key=lambda at: (len(self.asked[at].given.call), at))
        return f"on {self.asked[at].given.call} it {mine[at]}, another {other[at]}"

    def _with_most(self, mine: Sequence[str]) -> int:
        """Count the inputs on which no other outcome is that of more seats: wrong answers are rarely wrong on the same ones."""
        found = 0
        for at in self.steady:
            seats: dict[str, set[str]] = {}
            for diff, said in self.outcomes.items():
                seats.setdefault(said[at], set()).update(self.seats[diff])
            found += mine[at] != _UNSTEADY and len(seats[mine[at]]) == max(map(len, seats.values()))
        return found

    def _against(self, mine: Sequence[str]) -> int:
        """Count the docstring's own examples that it breaks, and one more where it crashes on what as many seats return a value for.

        As many, so that one who swallows every error outweighs nobody.
        """
        broken = sum(bool(self.asked[at].said) and not _holds(mine[at], self.asked[at].said) for at in self.steady)
        return broken + any(_crashes(mine[at]) and self._is_spared_by_most(at) for at in self.steady)

    def _is_spared_by_most(self, at: int) -> bool:
        """Whether at least as many seats return a value for an input as crash on it."""
        returning = {seat for diff, said in self.outcomes.items() if _returns(said[at]) for seat in self.seats[diff]}
        crashing = {seat for diff, said in self.outcomes.items() if _crashes(said[at]) for seat in self.seats[diff]}
        return len(returning) >= max(1, len(crashing))


@dataclass(frozen=True, slots=True)
class DistinguishingInputs:
    """Tells the candidates of one deliberation apart by what they do."""

    runs: FreshRuns
    facts: Facts
    limits: LimitSettings

    async def functions(self, proposals: Sequence[Proposal]) -> tuple[str, ...]:
        """Return the names of what the candidates make differently and what could be run."""
        return tuple(dict.fromkeys([name for *_, names in await self._changed_files(proposals) for name in names]))

    async def compare(self, proposals: Sequence[Proposal], written: Sequence[str] = ()) -> Mapping[str, Evidence]:
        """Return by candidate what it did, published; {} where there is nothing to run, nothing that could be, or nothing that tells
        them apart. `written`: code that calls what they changed, which is read as tests are, and first.
        """
        diffs = {item.diff: item for item in proposals}
        asked = await self._what_to_call(tuple(diffs.values()), written) if self.limits.inputs and len(diffs) > 1 else ()
        if not asked:
            return {}
        begun = datetime.now(UTC)
        async with asyncio.TaskGroup() as group:
            tasks = {diff: group.create_task(self._outcomes(diff, asked)) for diff in diffs}
        outcomes = {diff: task.result() for diff, task in tasks.items()}
        ran = {diff: said for diff, said in outcomes.items() if said}
        # What differs from run to run is no evidence where it does so for all: for one alone it is what that one does, or it could hide
        # what it does otherwise. What cannot be run is evidence where others could be.
        steady = [at for at in range(len(asked)) if any(said[at] != _UNSTEADY for said in ran.values())]
        apart = [at for at in steady if len({said[at] for said in ran.values()}) > 1]
        if not ran or (len(ran) == len(outcomes) and not apart):
            return {}
        took = round((datetime.now(UTC) - begun).total_seconds() * 1000)
        told = _Told(asked, steady, apart, ran, {diff: {item.seat for item in proposals if item.diff == diff} for diff in ran})
        evidence = {item.candidate: replace(told.evidence(item.diff), duration_ms=took) for item in proposals}
        for item in proposals:
            await self.facts.show(item, evidence[item.candidate])
        return evidence

    async def _changed_files(self, proposals: Sequence[Proposal]) -> list[tuple[str, str, list[str], tuple[str, ...]]]:
        """Return of changed files the path, the text on the base and with each candidate, and the names of what differs."""
        patches = [
            {
                part.path: part
                for part in file_diffs(self.runs.exact(item.diff))
                if language(part.path) and not looks_like_test(part.path)
            }
            for item in proposals
        ]
        found = []
        for path in sorted({path for parts in patches for path in parts})[:_FILES]:
            base = await self._text(path)
            texts = [parts[path].apply(base) if path in parts else base for parts in patches]
            found.append((path, base, texts, changed_names(path, base, texts)[:_FUNCTIONS]))
        return found

    async def _what_to_call(self, proposals: Sequence[Proposal], written: Sequence[str]) -> tuple[ProbedInput, ...]:
        """Return what to call: functions that the candidates make differently, on inputs from docstrings, tests and variants."""
        found: list[ProbedInput] = []
        for path, base, texts, names in await self._changed_files(proposals):
            for name in names:
                sources = [*written, *await self._tests(name, path)]
                made = calls(path, name, base, texts, sources, most=self.limits.inputs)
                found += [ProbedInput(path, item, said) for item, said in made.items()]
        return tuple(found)

    async def _tests(self, name: str, home: str) -> list[str]:
        """Return the files of the base's tests that speak of a name; those come first that are called as its own file is."""
        stem = PurePosixPath(home).stem
        endings = LANGUAGES[language(home)]
        tests = [path for path in self.runs.prepared.files if path.endswith(endings) and looks_like_test(path)]
        read = [await self._text(path) for path in sorted(tests, key=lambda path: (stem not in path, path))[:_TESTS]]
        return [text for text in read if name in text]

    async def _text(self, path: str) -> str:
        text = await self.runs.text(path)
        return text if len(text) < TEXT_LIMIT else ""

    async def _outcomes(self, diff: str, asked: Sequence[ProbedInput]) -> tuple[str, ...]:
        """Return what came of each, `_UNSTEADY` where two processes gave two answers; () where it could not be run."""
        found: dict[int, str] = {}
        for code, endings in LANGUAGES.items():
            places = [at for at, item in enumerate(asked) if item.path.endswith(endings)]
            if not places:
                continue
            given = [asked[at] for at in places]
            block = {
                "asked": [[item.path, item.given.function, item.given.arguments, item.given.then] for item in given],
                "seconds": _SECONDS,
                "chars": _CHARS,
            }
            first, second = await self.runs.code(
                code, block, 2, "inputs", endings[0][1:], digest(diff)[:12], diff=diff, seconds=self.limits.inputs_seconds
            )
            if not (_is_told(first, len(given)) and _is_told(second, len(given))):
                return ()
            told = [one if one == other else _UNSTEADY for one, other in zip(first, second, strict=True)]
            found |= dict(zip(places, told, strict=True))
        return tuple(found[at] for at in range(len(asked)))


def _is_told(value: object, count: int) -> TypeGuard[list[str]]:
    """Whether it has the form of outcomes; what a candidate's process says is checked like anything from outside."""
    return (
        isinstance(value, list)
        and len(value) == count
        and all(isinstance(item, str) and 0 < len(item) <= _CHARS for item in value)
    )


def _crashes(outcome: str) -> bool:
    return outcome.rpartition(", then ")[2].removeprefix("raises ") in _CRASHES


def _returns(outcome: str) -> bool:
    return outcome.startswith("returns ") and not _crashes(outcome)


def _holds(outcome: str, said: str) -> bool:
    value = outcome.removeprefix("returns ").partition(" and makes its arguments ")[0]
    try:
        return bool(ast.literal_eval(value) == ast.literal_eval(said))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return value == said
