"""Checks and what they showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from moothall.domain.budget import Usage
from moothall.domain.tool import ToolUsage


class Verdict(StrEnum):
    """What a check said. `missing` (it did not run) never counts as passed."""

    PASSED = "passed"
    FAILED = "failed"
    ERRORED = "errored"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One run of one check. `cases` maps a test's id, as its runner prints it, to passed | failed |
    errored | skipped.

    `status` is the tool status (success when the command ran to its end, whatever it said).
    `details` says of red cases what they printed (a traceback), cut to length; `durations` is
    milliseconds by case, where the runner tells; `findings` are what a linter or type checker
    found, one line each, without line numbers; `usage` is what it took.
    `contended`: it had to wait for cores.
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


RED = frozenset({"failed", "errored"})
SECRETS = "secrets"
OWN_TESTS = "own tests"
"""The name of the evidence of a seat's own tests: passed if they fail on the base and pass on its
candidate, three times each.
"""


CONTRADICTION = "contradiction"
"""The name of the evidence that a seat's own tests contradict the task, as a reader of the task's
text finds: always failed.
"""


TEST_WRITER, TIE_BREAKER = "test-writer", "tie-breaker"
"""The names of the agents that write tests and propose nothing, as authors of these and in call
ids.
"""
SUPERSEDED = "superseded tests"
"""The name of the evidence that an answer breaks tests which expect what the task asks to change:
`shown` names them.
"""
ALREADY_DONE = "already done"
"""The name of the evidence that the task is already done: passed if the claim holds."""
UNBELIEVED = "unbelieved"
"""The status of a run whose report is not believed; the first line of its output says why."""
CANARY = "canary"
"""The name of the evidence that a runner reports a test that must fail: missing if no such test
could be placed.
"""
HIDDEN, HIDDEN_CASE = "hidden", "hidden:"
"""What checks of hidden tests, and the names of their cases, begin with."""


class EvidenceLevel(StrEnum):
    """How well a candidate is supported; docs/evidence.md has an example of each. The first is the
    best.
    """

    PROVEN = "proven"
    """A test of the repository, or of the caller, failed on the base and passes."""
    REPRODUCED = "reproduced"
    """A test that somebody else in the deliberation wrote failed on the base and passes."""
    SELF_TESTED = "self_tested"
    """Only a test by its own author does."""
    UNPROVEN = "unproven"

    @property
    def words(self) -> str:
        """The level for people: `self-tested`."""
        return self.value.replace("_", "-")

    @property
    def independent(self) -> bool:
        """Whether a test shows it that its author did not write."""
        return self in {EvidenceLevel.PROVEN, EvidenceLevel.REPRODUCED}


@dataclass(frozen=True, slots=True)
class Evidence:
    """The recorded result of a check for a proposal; `proven` as in docs/evidence.md.

    `failed` counts all red cases, `before` those of them that were red on the base; `red` names
    what stands against the proposal (new red cases, new findings), `red_before` what was red on the
    base and still is, `flaky` what differs from run to run: of each the first few. `why` says what
    stopped a check that did not run to its end. `look` are lines of the proposal that a person
    should look at; they decide nothing. `shown` are cases of seats' tests that fail on the base and
    pass.
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
    """What became of a case of an agent's tests: `counts`, or why it does not."""

    case: str
    state: str


@dataclass(frozen=True, slots=True)
class Report:
    """What an agent beside the seats found, or that it found nothing. `agent`: who; `candidate`:
    the only answer that it concerns;
    `message`: one line for people; `cases`: of its tests, what became of each; `diff`: these tests.
    `missing`: it is a review that there is not.
    """

    agent: str
    message: str
    candidate: str = ""
    cases: tuple[JudgedCase, ...] = ()
    diff: str = ""
    missing: bool = False
    usage: Usage = Usage()
