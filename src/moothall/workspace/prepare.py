"""Preparation of a base: its checkout, its set-up, and one run of its checks on the untouched code.

Each part is created once and stored: the checkout and the history by commit, the environment by
lock file, and the runs by both.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from moothall.config import WorkspaceSections
from moothall.domain import codec
from moothall.domain.evidence import CheckRun
from moothall.domain.repository import Base, Prepared
from moothall.errors import InvalidRequest, RepositoryError
from moothall.ranking import diagnose
from moothall.ranking.assess import differing_cases, unmatched_cases
from moothall.ranking.failures import as_errored, hit_limit_under_load, stopped_cases
from moothall.repositories.checkout import Progress, change_owner, check_out
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.history import NAME as HISTORY_NAME
from moothall.repositories.history import export_history
from moothall.sandbox.spawn import sandbox_uid
from moothall.workspace.environments import Environments, temporary_sibling
from moothall.workspace.executor_client import remove_tree
from moothall.workspace.layout import prepared_key
from moothall.workspace.limits import limit
from moothall.workspace.toolchains import choose
from moothall.workspace.workspace import OverlayWorkspaces

_FLAKY_SECONDS = 60.0
"""Faster checks run twice on the base; cases with different results are flaky."""
_HISTORY_COMMITS = 10_000
"""The newest commits that git shows in the shell of a workspace."""
_TIMEOUT_MEMORY_SECONDS = 3600.0
"""How long a timeout of a check on the untouched base is remembered."""


class Preparer:
    """A preparer of bases on this machine."""

    def __init__(
        self,
        settings: WorkspaceSections,
        clones: Callable[[str], TrustedClone],
        workspaces: OverlayWorkspaces,
        *,
        timeout_memory_seconds: float = _TIMEOUT_MEMORY_SECONDS,
        history_commits: int = _HISTORY_COMMITS,
    ) -> None:
        self._settings = settings
        self._clones = clones
        self._workspaces = workspaces
        self._timeout_memory_seconds = timeout_memory_seconds
        self._history_commits = history_commits
        self._layout = workspaces.pool.layout
        self._environments = Environments(settings, workspaces.pool)

    async def prepare(self, base: Base, on_progress: Progress | None = None) -> Prepared:
        """Return `base` prepared; stored parts are reused. Raises `RepositoryError`,
        `SandboxUnavailable`.
        """
        report_progress = on_progress or (lambda _: None)
        base = replace(base, image=self._settings.image_of(base.repository, base.origin))
        key = prepared_key(base)
        async with self._layout.lock(key):
            stored = await asyncio.to_thread(self._read_stored, base, key, report_progress)
            clone = self._clones(base.repository)
            if stored:
                await self._export_history(clone, base, key, report_progress)
                return stored
            files = await clone.files(base.sha)
            if not self._layout.tree(key).is_dir():
                report_progress(f"checking out {base.sha[:12]}")
                await self._check_out(clone, base, key, report_progress)
            await self._export_history(clone, base, key, report_progress)
            await self._environments.ensure(base, key, clone, report_progress)
            notes = () if base.image else choose(base.profile.needs).notes
            prepared = Prepared(base, key, files, notes=notes)
            prepared = await self._run_checks(prepared, report_progress)
            # A program that is missing now may be installed next time.
            faulty_checks = {row.check for row in diagnose(prepared).faults}
            if all(
                (run.check not in faulty_checks and _is_conclusive(run))
                or self._hits_limit_again(prepared, run)
                for run in prepared.runs.values()
            ):
                await asyncio.to_thread(
                    _write_json, self._layout.prepared_file(key), codec.dump(prepared)
                )
            return prepared

    def _read_stored(self, base: Base, key: str, report_progress: Progress) -> Prepared | None:
        document = self._layout.prepared_file(key)
        try:
            prepared = codec.load(Prepared, json.loads(document.read_text(encoding="utf-8")))
            age = time.time() - document.stat().st_mtime
        except (FileNotFoundError, ValueError, InvalidRequest):
            return None  # missing or incomplete
        place = self._layout.executor_setup(base, key)
        complete = all(
            path.is_dir() for path in (*place.tree, *((place.env,) if place.env else ()))
        )
        inconclusive = [run for run in prepared.runs.values() if not _is_conclusive(run)]
        if not complete or (inconclusive and age > self._timeout_memory_seconds):
            return None
        if any(
            not self._hits_limit_again(replace(prepared, base=base), run) for run in inconclusive
        ):
            return None  # it may have more time now
        for run in inconclusive:
            report_progress(
                f"{run.check} hit its limit {age / 60:.0f} minutes ago and is not run again yet"
            )
        if not inconclusive:
            os.utime(document)  # `prune` removes the least recently used ones
        return replace(prepared, base=base)

    def _hits_limit_again(self, prepared: Prepared, run: CheckRun) -> bool:
        """Return whether a check that hit its limit without results would have no more time now."""
        current_limit = limit(self._settings.workspace, replace(prepared, runs={}), run.check)
        return run.status == "timeout" and run.duration_ms >= 1000 * current_limit.seconds

    async def _check_out(
        self, clone: TrustedClone, base: Base, key: str, report_progress: Progress
    ) -> None:
        final = self._layout.tree(key)
        temporary = await temporary_sibling(final)
        try:
            await check_out(clone, base, temporary, self._settings, report_progress)
            temporary.rename(final)
        finally:
            await remove_tree(temporary)

    async def _export_history(
        self, clone: TrustedClone, base: Base, key: str, report_progress: Progress
    ) -> None:
        """Write the git directory for shells on `base` if it does not exist. Workspaces also work
        without it.
        """
        final, settings = self._layout.history(key), self._settings.workspace
        if await asyncio.to_thread(final.is_dir):
            return
        temporary = await temporary_sibling(final)
        try:
            is_truncated = await export_history(
                GitRunner(self._settings.data_dir / "repos"),
                clone,
                base.sha,
                temporary / HISTORY_NAME,
                self._layout.tree(key),
                commits=self._history_commits,
                seconds=settings.check_seconds,
                max_bytes=settings.max_repository_bytes,
            )
            await asyncio.to_thread(change_owner, temporary, sandbox_uid())
            await asyncio.to_thread(temporary.rename, final)
        except RepositoryError as error:
            report_progress(f"git shows no history in workspaces: {error.message}")
        else:
            if is_truncated:
                report_progress(
                    f"git shows the newest {self._history_commits} commits in workspaces"
                )
        finally:
            await remove_tree(temporary)

    async def _run_checks(self, prepared: Prepared, report_progress: Progress) -> Prepared:
        """Run the checks on the untouched base, twice if that is cheap: cases that differ are
        flaky.
        """
        runs: dict[str, CheckRun] = {}
        flaky: set[str] = set()
        for name in prepared.base.profile.checks:
            report_progress(f"running {name} on the untouched base")
            run = runs[name] = await self._run_check(prepared, name)
            if hit_limit_under_load(run):
                flaky |= {*stopped_cases(run)}
            if (
                run.status == "success"
                and not run.findings
                and run.duration_ms < 1000 * _FLAKY_SECONDS
            ):
                report_progress(
                    f"running {name} on the untouched base again, to find cases that differ "
                    "between runs"
                )
                # The second run has the limits that follow from the first, so a case that hangs
                # takes less time.
                second_run = await self._run_check(replace(prepared, runs={name: run}), name)
                flaky |= differing_cases(run, second_run) | unmatched_cases(run, second_run)
        return replace(prepared, runs=runs, flaky=tuple(sorted(flaky)))

    async def _run_check(self, prepared: Prepared, name: str) -> CheckRun:
        async with self._workspaces.open(prepared, "base") as workspace:
            run = await workspace.check(name)
        if not hit_limit_under_load(run):
            return run
        async with self._workspaces.open(prepared, "base") as workspace:
            run = await workspace.check(name, alone=True)
        return as_errored(run) if hit_limit_under_load(run) else run


def _is_conclusive(run: CheckRun) -> bool:
    return run.status == "success" or (bool(run.cases) and not hit_limit_under_load(run))


def _write_json(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    temporary.write_text(json.dumps(document), encoding="utf-8")
    temporary.rename(path)
