"""Checks and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from moothall.domain.budget import Usage
from moothall.domain.tool import ToolUsage


class Verdict(StrEnum):
    """The verdict of a check. `missing` means that it did not run, and never counts as passed."""

    PASSED = "passed"
    FAILED = "failed"
    ERRORED = "errored"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A run of a check. `cases` maps a test's id, as its runner prints it, to passed | failed |
    errored | skipped.

    `status` is the tool status: success if the command ended by itself, whatever the result.
    `details` maps failed cases to their output (a traceback), cut to length. `durations` are
    milliseconds by case, if the runner reports them. `findings` are those of a linter or type
    checker, one line each, without line numbers. `usage` is the run's resource usage. `contended`:
    it had to wait for cores.
    """

    check: str
    verdict: Verdict
    cases: Mapping[str, str] = field(default_factory=dict)
    output: str = ""
    duration_ms: int = 0
    exit_code: int = 0
    status: str = "success"
    details: Mapping[str, str] = field(default_factory=dict)
    durations: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    usage: ToolUsage = ToolUsage()
    contended: bool = False


FAILED_OUTCOMES = frozenset({"failed", "errored"})
SECRETS = "secrets"
OWN_TESTS = "own tests"
"""The name of the evidence of a seat's own tests: passed if they fail on the base and pass on its
candidate, three times each.
"""


CONTRADICTION = "contradiction"
"""The name of the evidence that a seat's own tests contradict the task, as found by a reader of the
task's text: always failed.
"""


TEST_WRITER, TIE_BREAKER = "test-writer", "tie-breaker"
"""The names of the agents that only write tests, as authors of tests and in call ids."""
REVIEWER = "reviewer"
"""The name of the agent that reviews a given change."""
COMPARISON = "comparison"
"""The reviewer name of comparisons by summaries; no seat has it."""
SUPERSEDED = "superseded tests"
"""The name of the evidence that an answer breaks tests which expect what the task asks to change:
`shown` names them.
"""
ALREADY_DONE = "already done"
"""The name of the evidence that the task is already done: passed if the claim holds."""
UNBELIEVED = "unbelieved"
"""The status of a run whose report is not trusted; the first line of its output tells why."""
CANARY = "canary"
"""The name of the evidence that a runner reports a test that must fail: missing if no such test
could be placed.
"""
EDITED_TESTS = "edited tests"
"""The name of the evidence that a judged change fails existing tests which it edits or deletes, and
no others: always failed, `shown` names them.
"""
UNNOTICED = "unnoticed lines"
"""The name of the evidence about parts of a judged change without which no test fails: `look` names
them, `passed` and `failed` count the parts that tests notice and those that they do not.
"""
HIDDEN, HIDDEN_CASE = "hidden", "hidden:"
"""The prefixes of checks of hidden tests, and of the names of their cases."""


class EvidenceLevel(StrEnum):
    """How well a candidate is supported, best level first; docs/evidence.md has examples."""

    PROVEN = "proven"
    """A test of the repository, or of the caller, failed on the base and passes."""
    REPRODUCED = "reproduced"
    """A test by another author in the deliberation failed on the base and passes."""
    SELF_TESTED = "self_tested"
    """Only a test by the candidate's author failed on the base and passes."""
    UNPROVEN = "unproven"

    @property
    def words(self) -> str:
        """The level as text: `self-tested`."""
        return self.value.replace("_", "-")

    @property
    def meaning(self) -> str:
        """What the level says about a candidate, as the end of a sentence."""
        return _MEANINGS[self]

    @property
    def independent(self) -> bool:
        """Whether a test by another author supports the candidate."""
        return self in {EvidenceLevel.PROVEN, EvidenceLevel.REPRODUCED}


_MEANINGS: Mapping[EvidenceLevel, str] = {
    EvidenceLevel.PROVEN: "a test of the repository failed before and passes now",
    EvidenceLevel.REPRODUCED: "a test by another author failed before and passes now",
    EvidenceLevel.SELF_TESTED: "only a test by its own author failed before and passes now",
    EvidenceLevel.UNPROVEN: "no test that failed before passes now",
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """The recorded result of a check for a proposal; `proven` as in docs/evidence.md.

    `failed` counts all failed cases, `before` those of them that failed on the base. `red` names
    what counts against the proposal (new failures, new findings), `red_before` what failed on the
    base and still does, `flaky` what differs between runs; each has the first few. `why` tells what
    stopped a check that did not finish. `look` are lines of the proposal that a person should look
    at; they decide nothing. `shown` are cases of seats' tests that fail on the base and pass.
    """

    check: str
    verdict: Verdict
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    duration_ms: int = 0
    output: str = ""
    proven: bool = False
    before: int = 0
    red: tuple[str, ...] = ()
    red_before: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()
    why: str = ""
    look: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgedCase:
    """The judgement on a case of an agent's tests: `counts`, or why it does not."""

    case: str
    state: str


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an agent that is not a seat, possibly empty. `agent`: its name. `candidate`:
    the only answer concerned. `message`: one line for people. `cases`: the judgement on each of its
    tests. `diff`: these tests. `missing`: a review that was not given.
    """

    agent: str
    message: str
    candidate: str = ""
    cases: tuple[JudgedCase, ...] = ()
    diff: str = ""
    missing: bool = False
    usage: Usage = Usage()
