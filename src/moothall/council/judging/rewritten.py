"""Tests of a counter-proof in other words, and what became of them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from moothall.domain.evidence import CheckRun
from moothall.errors import WorkspaceFailed
from moothall.ranking.assess import HIT_LIMIT


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The tests in one kind of other words: files, and by check the cases that a verdict is expected of. `shown`: what the disk has of them
    where the runner alone knows them, in place of the tests as they were.
    """

    files: Mapping[str, str]
    cases: Mapping[str, tuple[str, ...]]
    shown: Mapping[str, str] = field(default_factory=dict)

    def results(self, runs: Mapping[str, CheckRun]) -> list[tuple[str, str]]:
        """The cases of which a verdict is expected, with what became of them; empty where nothing was told, or only that time ran out."""

        def became(run: CheckRun, case: str) -> str:
            return "" if HIT_LIMIT in run.details.get(case, "") else run.cases.get(case, "")

        return [(case, became(runs[check], case)) for check, cases in self.cases.items() for case in cases]

    def told(self, runs: Mapping[str, CheckRun]) -> list[tuple[str, str]]:
        """The same of a run in which something has to turn red: what was not run at all did not. Raises `WorkspaceFailed`."""
        found = self.results(runs)
        if found and not any(result for _, result in found):
            why = next((said for run in runs.values() if (said := _complaint(run))), "")
            raise WorkspaceFailed(f"none of its tests was told of{': ' if why else ''}{why}")
        return found


def _complaint(run: CheckRun) -> str:
    """The first line of what it printed where it was ended, and where it built nothing the first that names an error."""
    for line in run.output.splitlines():
        if line.strip() and (run.status != "success" or re.search(r"(?i)\berror\b", line)):
            return line.strip()[:200]
    return ""


Run = Callable[[str, Rewritten], Coroutine[Any, Any, Mapping[str, CheckRun]]]
"""Runs the cases of a kind in a workspace of that name."""
Rewriting = Callable[..., Awaitable[Rewritten]]
"""Puts cases in other words: of a kind, and in a form."""
