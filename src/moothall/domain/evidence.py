"""Checks and what they showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from moothall.domain.tool import ToolUsage


class Verdict(StrEnum):
    """What a check said. `missing` (it did not run) never counts as passed."""

    PASSED = "passed"
    FAILED = "failed"
    ERRORED = "errored"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One run of one check. `cases` maps a test's id, as its runner prints it, to passed | failed | errored | skipped.

    `status` is the tool status (success when the command ran to its end, whatever it said). `details` says of red cases what
    they printed (a traceback), cut to length; `durations` is milliseconds by case, where the runner tells; `findings` are what
    a linter or type checker found, one line each, without line numbers; `usage` is what it took.
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
COUNTER = "counter proof"
"""The name of the evidence that a counter-proof gives; no check can have it.

Failed: the verdict is forged. Errored: it could not be made, and nothing is proven. Missing: nothing could be rewritten.
"""


APART = "two processes"
"""The name of the evidence that the proving tests give with the code in another process; no check can have it.

Passed: the proof is stronger. Missing: the two could not be told apart, which says nothing.
"""


INPUTS = "inputs"
"""The name of the evidence that distinguishing inputs give; no check can have it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The recorded result of a check for a proposal; `proven` as in docs/architecture.md.

    `failed` counts all red cases, `before` those of them that were red on the base; `red` names what stands against the
    proposal (new red cases, new findings), `red_before` what was red on the base and still is, `flaky` what differs from
    run to run: of each the first few. `why` says what stopped a check that did not run to its end, or what a counter-proof
    came to. `look` are lines of the proposal that reach for what judges it: a person should look. `behaviour`,
    of distinguishing inputs alone, is equal where the same came of all of them; `failed` counts there what speaks against it, `passed` on how many it does
    what most seats do.
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
    behaviour: str = ""
