"""Check runs on clean checkouts. Each run has its own workspace, which is deleted afterwards."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from moothall.deliberation.event_writer import watch_check
from moothall.deliberation.judging.hidden import HiddenTests, hide_cases
from moothall.domain.evidence import HIDDEN, HIDDEN_CASE, CheckRun
from moothall.domain.ids import TaskKey, digest
from moothall.domain.repository import Prepared
from moothall.domain.task import Deliberation
from moothall.errors import NotFound, PatchRefused, SandboxUnavailable, WorkspaceFailed
from moothall.ports import NOTHING, ReadFile, Workspace, Workspaces
from moothall.ranking.failures import as_errored, hit_limit_under_load
from moothall.telemetry import get_logger

log = get_logger(__name__)

TEXT_LIMIT = 1_000_000
"""Characters of the largest base file that is read."""
_MAX_ATTEMPTS = 3  # an executor may be killed during a check
_MAX_NAME_CHARS = 63


def workspace_name(task_key: TaskKey, *parts: str) -> str:
    """Return a workspace id that is readable if it is short, and the same in every run."""
    name = "-".join((task_key, *parts))
    return (
        name
        if len(name) <= _MAX_NAME_CHARS
        else f"{name[: _MAX_NAME_CHARS - 13]}-{digest(name)[:12]}"
    )


@dataclass(frozen=True, slots=True)
class CheckRuns:
    """The results of checks by name, without checks that did not run.

    refused: the patch does not apply.
    failure: the reason of a failure.
    """

    runs: Mapping[str, CheckRun]
    refused: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True)
class CleanCheckoutRunner:
    """Runs the checks of one deliberation on its base.

    slots: limits the number of workspaces in use.
    """

    d: Deliberation
    prepared: Prepared
    workspaces: Workspaces
    read_file: ReadFile
    slots: asyncio.Semaphore
    hidden: HiddenTests = field(default_factory=HiddenTests)
    _unredacted: dict[str, str] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)

    def store_unredacted(self, diff: str, unredacted: str) -> None:
        """Store a diff as it was before secrets were removed from it, so that it can be applied."""
        self._unredacted[diff] = unredacted

    def unredact(self, diff: str) -> str:
        """Return a diff as it was before secrets were removed from it."""
        return self._unredacted.get(diff, diff)

    async def run_checks(
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
        """Run checks in a new workspace named after `name`.

        checks: by check the cases to run; () for all.
        paths: the test files to run; () for all.
        label: the name of the check in metrics and traces.

        The other arguments are those of `Workspaces.open`. A check that hits a time limit on a busy
        machine runs again alone, in a fresh workspace, since the first run may have left files that
        change the behaviour of the test runner. Hidden tests run in a separate workspace.
        """
        options: dict[str, Any] = {
            "diff": diff,
            "extra": extra,
            "judged": judged,
            "paths": paths,
            "label": label,
            "append": append,
        }
        hidden_checks = {
            check: cases for check, cases in checks.items() if check in self.hidden.paths
        }
        visible_checks = {
            check: cases for check, cases in checks.items() if check not in hidden_checks
        }
        visible_runs = (
            await self._run_in_fresh_workspaces(visible_checks, *name, **options)
            if visible_checks or not checks
            else CheckRuns({})
        )
        if not hidden_checks or visible_runs.refused:
            return visible_runs
        hidden_runs = await self._run_in_fresh_workspaces(
            hidden_checks, *name, HIDDEN, files=self.hidden.files, **options
        )
        return CheckRuns(
            {**visible_runs.runs, **hidden_runs.runs},
            hidden_runs.refused,
            visible_runs.failure or hidden_runs.failure,
        )

    async def _run_in_fresh_workspaces(
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
        async def run_once(
            cases_by_check: Mapping[str, Sequence[str]], *, alone: bool
        ) -> CheckRuns:
            workspace_id = workspace_name(self.d.task_id, *name, *(("alone",) if alone else ()))
            open_workspace = functools.partial(
                self.workspaces.open,
                self.prepared,
                workspace_id,
                patch=self.unredact(diff),
                extra=self.unredact(extra),
                judged=judged,
                files=files,
                append=append,
            )

            async def run_check(workspace: Workspace, check: str) -> CheckRun:
                with watch_check(label or check, workspace_id) as record_run:
                    run = await workspace.check(
                        check,
                        paths=self.hidden.paths.get(check, paths),
                        cases=[case.removeprefix(HIDDEN_CASE) for case in cases_by_check[check]],
                        deadline=self.d.deadline,
                        alone=alone,
                    )
                    return (
                        hide_cases(record_run(run))
                        if check in self.hidden.paths
                        else record_run(run)
                    )

            return await self._run_with_retries(open_workspace, cases_by_check, run_check)

        first_runs = await run_once(checks, alone=False)
        base_runs = self.prepared.runs
        contended = [
            check
            for check, run in first_runs.runs.items()
            if hit_limit_under_load(run, base_runs.get(check))
        ]
        if not contended:
            return first_runs
        log.info("checks hit time limits on a busy machine and run again alone", checks=contended)
        alone_runs = (
            await run_once({check: checks[check] for check in contended}, alone=True)
        ).runs
        repeated = {check: alone_runs.get(check, first_runs.runs[check]) for check in contended}
        runs = {**first_runs.runs, **self._without_verdicts_under_load(repeated)}
        return replace(first_runs, runs=runs)

    def _without_verdicts_under_load(self, runs: Mapping[str, CheckRun]) -> Mapping[str, CheckRun]:
        """Return runs; those that hit a time limit under load become errored."""
        base_runs = self.prepared.runs
        return {
            check: as_errored(run, base_runs.get(check))
            if hit_limit_under_load(run, base_runs.get(check))
            else run
            for check, run in runs.items()
        }

    async def _run_with_retries(
        self,
        open_workspace: Callable[[], AbstractAsyncContextManager[Workspace]],
        checks: Iterable[str],
        run_check: Callable[[Workspace, str], Awaitable[CheckRun]],
    ) -> CheckRuns:
        """Run checks in a workspace, and again in a new one if its executor is lost."""
        runs: dict[str, CheckRun] = {}
        failure = ""
        for _ in range(_MAX_ATTEMPTS):
            try:
                async with self.slots, open_workspace() as workspace:
                    for check in checks:
                        runs[check] = await run_check(workspace, check)
                return CheckRuns(runs)
            except PatchRefused as error:
                return CheckRuns(runs, refused=True, failure=error.message)
            except (WorkspaceFailed, SandboxUnavailable) as error:
                failure = error.message
        return CheckRuns(runs, failure=failure)

    async def read_base_file(self, path: str) -> str:
        """Return a text file of the base. Raises `NotFound`."""
        return await self.read_file(self.prepared.base, path, TEXT_LIMIT)

    async def read_base_text(self, path: str) -> str:
        """Return a text file of the base, or ''. Each file is read once."""
        if path not in self._texts:
            text = ""
            with suppress(NotFound):
                text = await self.read_base_file(path)
            # Set only now: a concurrent caller must not read '' before the file is read.
            self._texts[path] = text
        return self._texts[path]
