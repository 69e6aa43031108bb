"""Checks in fresh workspaces, on the trusted side: each run has a checkout of its own, of which
nothing is left.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from moothall.deliberation.instrumentation import watch_check
from moothall.deliberation.judging.hidden import HiddenTests, renamed
from moothall.domain.evidence import HIDDEN, HIDDEN_CASE, CheckRun
from moothall.domain.ids import digest
from moothall.domain.repository import Prepared
from moothall.domain.task import Deliberation
from moothall.errors import NotFound, PatchRefused, SandboxUnavailable, WorkspaceFailed
from moothall.ports import NOTHING, ReadFile, Workspace, Workspaces
from moothall.ranking.contention import as_errored, hit_limit_under_load
from moothall.telemetry import get_logger

log = get_logger(__name__)

TEXT_LIMIT = 1_000_000
"""Characters of a file of the base, from which on it is not read."""
_TRIES = 3  # an executor may be killed under a check
_NAME = 63


def workspace_name(task_id: str, *parts: str) -> str:
    """Return an id for a workspace: readable where it is short, and the same on a second run."""
    name = "-".join((task_id, *parts))
    return name if len(name) <= _NAME else f"{name[: _NAME - 13]}-{digest(name)[:12]}"


@dataclass(frozen=True, slots=True)
class CheckRuns:
    """What checks came to, by name; what did not run is not there. `refused`: the patch does not
    apply; `why`: what went wrong.
    """

    runs: Mapping[str, CheckRun]
    refused: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class CleanCheckoutRunner:
    """Runs checks of one deliberation on its base, at most as many at once as `places` has."""

    d: Deliberation
    prepared: Prepared
    workspaces: Workspaces
    read_file: ReadFile
    places: asyncio.Semaphore
    hidden: HiddenTests = field(default_factory=HiddenTests)
    _exact: dict[str, str] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)

    def remember(self, diff: str, exact: str) -> None:
        """Note what a diff was before it was freed of secrets: that is what applies."""
        self._exact[diff] = exact

    def exact(self, diff: str) -> str:
        """Return a diff as it applies."""
        return self._exact.get(diff, diff)

    async def run(
        self,
        checks: Mapping[str, Sequence[str]],
        *name: str,
        diff: str = "",
        extra: str = "",
        judged: bool = True,
        paths: Sequence[str] = (),
        label: str = "",
        append: Mapping[str, str] = NOTHING,
    ) -> CheckRuns:
        """Run checks (name: the cases to narrow it to, none for all) in a workspace called `name`;
        `paths` narrows to test files.

        The rest is as `Workspaces.open` has it. `label` names the check in metrics and traces. A
        check that hit a time limit on a busy machine is run again alone, in a fresh workspace,
        since the first run may have left files that steer the test runner. Hidden tests have a
        workspace of their own.
        """
        how: dict[str, Any] = {
            "diff": diff,
            "extra": extra,
            "judged": judged,
            "paths": paths,
            "label": label,
            "append": append,
        }
        of_hidden = {check: cases for check, cases in checks.items() if check in self.hidden.paths}
        others = {check: cases for check, cases in checks.items() if check not in of_hidden}
        found = await self._run(others, *name, **how) if others or not checks else CheckRuns({})
        if not of_hidden or found.refused:
            return found
        more = await self._run(of_hidden, *name, HIDDEN, files=self.hidden.files, **how)
        return CheckRuns({**found.runs, **more.runs}, more.refused, found.why or more.why)

    async def _run(
        self,
        checks: Mapping[str, Sequence[str]],
        *name: str,
        diff: str,
        extra: str,
        judged: bool,
        paths: Sequence[str],
        label: str,
        append: Mapping[str, str],
        files: Mapping[str, str] = NOTHING,
    ) -> CheckRuns:
        async def run(some: Mapping[str, Sequence[str]], *, alone: bool) -> CheckRuns:
            called = workspace_name(self.d.task_id, *name, *(("alone",) if alone else ()))
            opening = functools.partial(
                self.workspaces.open,
                self.prepared,
                called,
                patch=self.exact(diff),
                extra=self.exact(extra),
                judged=judged,
                files=files,
                append=append,
            )

            async def check(workspace: Workspace, check: str) -> CheckRun:
                with watch_check(label or check, called) as noted:
                    ran = await workspace.check(
                        check,
                        paths=self.hidden.paths.get(check, paths),
                        cases=[case.removeprefix(HIDDEN_CASE) for case in some[check]],
                        deadline=self.d.deadline,
                        alone=alone,
                    )
                    return renamed(noted(ran)) if check in self.hidden.paths else noted(ran)

            return await self._run_in(opening, some, check)

        first = await run(checks, alone=False)
        base = self.prepared.runs
        busy = [
            check for check, ran in first.runs.items() if hit_limit_under_load(ran, base.get(check))
        ]
        if not busy:
            return first
        log.info(
            "checks hit limits of time on a busy machine; they are run again alone", checks=busy
        )
        again = (await run({check: checks[check] for check in busy}, alone=True)).runs
        told = {check: again.get(check, first.runs[check]) for check in busy}
        told |= {
            check: as_errored(ran, base.get(check))
            for check, ran in told.items()
            if hit_limit_under_load(ran, base.get(check))
        }
        return replace(first, runs={**first.runs, **told})

    async def _run_in(
        self,
        opening: Callable[[], AbstractAsyncContextManager[Workspace]],
        checks: Iterable[str],
        run_check: Callable[[Workspace, str], Awaitable[CheckRun]],
    ) -> CheckRuns:
        """Run checks in a workspace, and in another one if its executor is lost."""
        runs: dict[str, CheckRun] = {}
        why = ""
        for _ in range(_TRIES):
            try:
                async with self.places, opening() as workspace:
                    for check in checks:
                        runs[check] = await run_check(workspace, check)
                return CheckRuns(runs)
            except PatchRefused as error:
                return CheckRuns(runs, refused=True, why=error.message)
            except (WorkspaceFailed, SandboxUnavailable) as error:
                why = error.message
        return CheckRuns(runs, why=why)

    async def read(self, path: str) -> str:
        """Return a text file of the base. Raises `NotFound`."""
        return await self.read_file(self.prepared.base, path, TEXT_LIMIT)

    async def text(self, path: str) -> str:
        """Return a text file of the base, which is read once; '' where there is none."""
        if path not in self._texts:
            text = ""
            with suppress(NotFound):
                text = await self.read(path)
            self._texts[path] = text  # only now: others read beside, and may not take it for empty
        return self._texts[path]
