"""Distinguishing inputs: where no test tells candidates apart, all of them run on the same inputs, and those that behave the same
stand together.

What a candidate does is what its own code says in its own sandbox: it can lie about itself, and about no other.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TypeGuard

from moothall.config import Limits
from moothall.council.context import is_test
from moothall.council.examples import examples_of
from moothall.council.facts import Facts
from moothall.council.runs import TEXT_LIMIT, FreshRuns
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import INPUTS, Evidence, Verdict
from moothall.domain.ids import digest
from moothall.domain.proposal import Proposal
from moothall.errors import NotFound
from moothall.ranking.inputs import Input, calls_of, changed_functions, inputs
from moothall.ranking.patched import file_diffs

_FILES, _FUNCTIONS, _TESTS = 3, 4, 20
"""Changed files and functions that are run, and files of tests that are read for calls."""
_CHARS = 400  # of one outcome
_SECONDS = 0.5  # of computing, one call; ten times that on the clock, so that a busy machine changes no outcome
_UNSTEADY = "differs from run to run"
_CRASHES = (
    "AttributeError",
    "IndexError",
    "KeyError",
    "NameError",
    "RecursionError",
    "TypeError",
    "UnboundLocalError",
    "ZeroDivisionError",
)
_CODE = """
import ast, contextlib, importlib, io, itertools, os, re, signal, sys

class Late(BaseException):
    pass

def late(*_):
    raise Late

def limit(seconds):
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds)

def load(path):
    *folder, file = path.split("/")
    at = len(folder)
    while at and os.path.exists("/".join([*folder[:at], "__init__.py"])):
        at -= 1
    sys.path[:0] = ["/".join(folder[:at]) or ".", "."]
    return importlib.import_module(".".join([*folder[at:], file.removesuffix(".py")]).removesuffix(".__init__"))

def spell(value):
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(spell, value))) + "}"
    if hasattr(value, "__next__"):
        return spell(list(itertools.islice(value, 1000)))
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

def outcome(function, arguments):
    given, named = ast.literal_eval(arguments)
    limit(seconds)
    try:
        said = "returns " + spell(function(*given, **named))
        if repr((given, named)) != arguments:
            said += " and makes its arguments " + repr((*given, *named.values()))
    except Late:
        said = "comes to no end"
    except BaseException as error:
        said = "raises " + type(error).__name__
    finally:
        limit(0)
    return said[:chars]

signal.signal(signal.SIGPROF, late)
signal.signal(signal.SIGALRM, late)
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    modules = {path: load(path) for path in dict.fromkeys(path for path, _, _ in asked)}
    outcomes = [outcome(getattr(modules[path], name), arguments) for path, name, arguments in asked]
outcomes
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """An input with the file that defines its function, and what the base's docstring says comes of it, where it says so."""

    path: str
    given: Input
    said: str = ""


@dataclass(frozen=True, slots=True)
class _Told:
    """What came of the inputs: `outcomes` and `seats` by diff, of those that ran; `steady` and `apart` are places in `asked`."""

    asked: Sequence[Asked]
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
            passed=len(self.steady),
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
        at = min((at for at in self.apart if mine[at] != other[at]), key=lambda at: (len(self.asked[at].given.arguments), at))
        return f"on {self.asked[at].given.call} it {mine[at]}, another {other[at]}"

    def _against(self, mine: Sequence[str]) -> int:
        """Count the docstring's own examples that it breaks, and one more where it crashes on what as many seats return a value for.

        As many, so that one who swallows every error outweighs nobody.
        """
        broken = sum(bool(self.asked[at].said) and not _holds(mine[at], self.asked[at].said) for at in self.steady)
        return broken + any(_crashes(mine[at]) and self._is_spared_by_most(at) for at in self.steady)

    def _is_spared_by_most(self, at: int) -> bool:
        """Whether at least as many seats return a value for an input as crash on it."""
        returning = {seat for diff, said in self.outcomes.items() if said[at].startswith("returns ") for seat in self.seats[diff]}
        crashing = {seat for diff, said in self.outcomes.items() if _crashes(said[at]) for seat in self.seats[diff]}
        return len(returning) >= max(1, len(crashing))


@dataclass(frozen=True, slots=True)
class DistinguishingInputs:
    """Tells the candidates of one deliberation apart by what they do."""

    runs: FreshRuns
    facts: Facts
    limits: Limits
    _texts: dict[str, str] = field(default_factory=dict)

    async def compare(self, proposals: Sequence[Proposal]) -> Mapping[str, Evidence]:
        """Return by candidate what it did, published; {} where there is nothing to run, or nothing that could be."""
        diffs = {item.diff: item for item in proposals}
        asked = await self._asked(tuple(diffs.values())) if self.limits.inputs and len(diffs) > 1 else ()
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
            await self._publish(item, evidence[item.candidate])
        return evidence

    async def _publish(self, proposal: Proposal, evidence: Evidence) -> None:
        await self.facts.say(
            EventType.CHECK_FINISHED,
            f"{proposal.candidate}/{proposal.fingerprint}/check/{INPUTS}",
            seat=proposal.seat,
            candidate=proposal.candidate,
            fingerprint=proposal.fingerprint,
            evidence=dump(evidence),
        )

    async def _asked(self, proposals: Sequence[Proposal]) -> tuple[Asked, ...]:
        """Return what to call: functions that the candidates make differently, on inputs from docstrings, tests and variants."""
        changed = [
            {
                part.path: part
                for part in file_diffs(self.runs.exact(item.diff))
                if part.path.endswith(".py") and not is_test(part.path)
            }
            for item in proposals
        ]
        found: list[Asked] = []
        for path in sorted({path for parts in changed for path in parts})[:_FILES]:
            base = await self._text(path)
            texts = [parts[path].applied(base) if path in parts else base for parts in changed]
            for name in changed_functions(base, texts)[:_FUNCTIONS]:
                examples = dict(examples_of(base, name))
                said = {one.arguments: want for call, want in examples.items() for one in inputs(name, [call], "", 1)}
                made = inputs(name, [*examples, *await self._calls(name, path)], texts[0], self.limits.inputs)
                found += [Asked(path, item, said.get(item.arguments, "")) for item in made]
        return tuple(found)

    async def _calls(self, name: str, home: str) -> list[str]:
        """Return the calls of a function in the base's tests; those files are read first that are called as its own is."""
        stem = PurePosixPath(home).stem
        tests = [path for path in self.runs.prepared.files if path.endswith(".py") and is_test(path)]
        found: dict[str, None] = {}
        for path in sorted(tests, key=lambda path: (stem not in path, path))[:_TESTS]:
            text = await self._text(path)
            if name in text:
                found |= dict.fromkeys(calls_of(text, name))
        return list(found)

    async def _text(self, path: str) -> str:
        if path not in self._texts:
            self._texts[path] = ""
            with suppress(NotFound):
                text = await self.runs.read(path)
                self._texts[path] = text if len(text) < TEXT_LIMIT else ""
        return self._texts[path]

    async def _outcomes(self, diff: str, asked: Sequence[Asked]) -> tuple[str, ...]:
        """Return what came of each, `_UNSTEADY` where two processes gave two answers; () where it could not be run."""
        block = {
            "asked": [[item.path, item.given.function, item.given.arguments] for item in asked],
            "seconds": _SECONDS,
            "chars": _CHARS,
        }
        first, second = await self.runs.code(
            _CODE, block, 2, "inputs", digest(diff)[:12], diff=diff, seconds=self.limits.inputs_seconds
        )
        if not (_is_told(first, len(asked)) and _is_told(second, len(asked))):
            return ()
        return tuple(one if one == other else _UNSTEADY for one, other in zip(first, second, strict=True))


def _is_told(value: object, count: int) -> TypeGuard[list[str]]:
    """Whether it has the form of outcomes; what a candidate's process says is checked like anything from outside."""
    return (
        isinstance(value, list)
        and len(value) == count
        and all(isinstance(item, str) and 0 < len(item) <= _CHARS for item in value)
    )


def _crashes(outcome: str) -> bool:
    return outcome.removeprefix("raises ") in _CRASHES


def _holds(outcome: str, said: str) -> bool:
    value = outcome.removeprefix("returns ").partition(" and makes its arguments ")[0]
    try:
        return bool(ast.literal_eval(value) == ast.literal_eval(said))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return value == said
