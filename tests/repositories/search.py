"""Search for faults that a repository's own tests detect, in the sandbox and environment of a
council.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

from moothall.app.command_repository import register
from moothall.app.workspaces import open_workspace_services
from moothall.config import Settings
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Prepared
from moothall.domain.tool import ToolCall, ToolStatus
from moothall.ports import Workspaces
from moothall.repositories.patch_rules import matches
from mutate import Fault, faults, mutable

_TRIES = 24
_LEAST_SECONDS = 20.0
_TIMES_LONGER = 5
_MOST = 0.5
"""The maximum share of passing cases that a fault may break: one that breaks everything is
found too easily.
"""


@dataclass(frozen=True, slots=True)
class Found:
    """Two faults in different places, the cases that fail by the first, and the duration of the
    search. `base` holds the runs of the released sources: the deciding checks, by name.

    A candidate that fixes `first` and inserts `second` would make cases fail that pass in the
    broken repository.
    """

    first: Fault
    second: Fault
    failed: frozenset[str]
    base: Mapping[str, CheckRun]
    tried: int
    setup_seconds: float
    check_seconds: float
    search_seconds: float


class NothingFound(LookupError):
    """A project is unusable: its tests do not run, or detect none of the faults that were tried."""


async def search(settings: Settings, folder: Path, seed: str) -> Found:
    """Set the repository up, run its tests, and try faults in an order given by `seed`. Raises
    `NothingFound`.
    """
    started = time.monotonic()
    async with open_workspace_services(settings) as services:
        base = await services.repositories.resolve(await register(settings, str(folder), "HEAD"))
        prepared = await services.repositories.prepare(base)
        ready = time.monotonic()
        runs = {
            name: run
            for name, run in prepared.runs.items()
            if name not in prepared.base.profile.advisory
        }
        if not any(_passed_cases(runs)):
            outputs = "; ".join(f"{name}: {run.output[-2000:]}" for name, run in runs.items())
            raise NothingFound(f"no case passes before: {outputs or 'no check'}")
        chosen: list[tuple[Fault, frozenset[str]]] = []
        tried = 0
        async for fault, failed in _announce(
            services.workspaces, prepared, runs, _interleaved_faults(folder, prepared, seed)
        ):
            tried += 1
            if failed and (
                not chosen
                or (_are_apart(fault, chosen[0][0]) and not _breaks_all(failed, chosen[0][1]))
            ):
                chosen.append((fault, failed))
            if len(chosen) == 2:
                break
        if len(chosen) < 2:
            raise NothingFound(f"of {tried} faults {len(chosen)} made a test fail")
    (first, failed), (second, _) = chosen
    checked = sum(run.duration_ms for run in runs.values()) / 1000
    return Found(
        first,
        second,
        failed,
        runs,
        tried,
        ready - started - checked,
        checked,
        time.monotonic() - ready,
    )


def _interleaved_faults(folder: Path, prepared: Prepared, seed: str) -> list[Fault]:
    """Return every fault of the sources, taking files in turn so that a long table does not
    dominate.
    """
    order = random.Random(seed)  # noqa: S311 - random choices of a test
    protected = prepared.base.profile.protected
    rows = []
    for path in prepared.files:
        if (
            mutable(path)
            and not matches(protected, path)
            and "test" not in path.lower()
            and "spec/" not in path
        ):
            file_faults = faults(
                path, (folder / path).read_text(encoding="utf-8", errors="replace")
            )
            order.shuffle(file_faults)
            rows.append(file_faults[:_TRIES])
    order.shuffle(rows)
    return [row[turn] for turn in range(_TRIES) for row in rows if turn < len(row)]


async def _announce(
    workspaces: Workspaces,
    prepared: Prepared,
    runs_before: Mapping[str, CheckRun],
    order: Sequence[Fault],
) -> AsyncIterator[tuple[Fault, frozenset[str]]]:
    folders = prepared.base.profile.folders
    for fault in islice(order, _TRIES):
        fast_runs = {
            name: run
            for name, run in runs_before.items()
            if fault.path.startswith(folders.get(name, ""))
        }
        seconds = max(
            _LEAST_SECONDS,
            _TIMES_LONGER * sum(run.duration_ms for run in fast_runs.values()) / 1000,
        )
        async with workspaces.open(prepared, "fault") as workspace:
            deadline = datetime.now(UTC) + timedelta(seconds=seconds)
            read = await workspace.call(
                ToolCall("read", "files.read", {"path": fault.path, "lines": 100_000}, deadline)
            )
            text = str(read.output.get("content", ""))
            if read.status is not ToolStatus.SUCCESS or read.output.get("truncated"):
                continue
            args: Mapping[str, str] = {"path": fault.path, "content": fault.broken(text)}
            write_result = await workspace.call(ToolCall("write", "files.write", args, deadline))
            if write_result.status is not ToolStatus.SUCCESS:
                continue
            runs_after = {
                name: await workspace.check(name, deadline=deadline) for name in fast_runs
            }
        yield fault, _broken_cases(fast_runs, runs_after)


def _are_apart(first: Fault, second: Fault) -> bool:
    return first.path != second.path or first.end <= second.start or second.end <= first.start


def _breaks_all(failed: frozenset[str], cases: frozenset[str]) -> bool:
    """True if the other fault also breaks all cases that one fault breaks, according to the
    cases. A check without cases gives no information.
    """
    return any("::" in case for case in failed) and failed <= cases


def _passed_cases(runs: Mapping[str, CheckRun]) -> frozenset[str]:
    """Return the passed cases, as check::case; a check without cases is one case under its own
    name.
    """
    cases = {
        f"{name}::{case}"
        for name, run in runs.items()
        for case, outcome in run.cases.items()
        if outcome == "passed"
    }
    return frozenset(
        cases
        | {name for name, run in runs.items() if not run.cases and run.verdict is Verdict.PASSED}
    )


def _broken_cases(before: Mapping[str, CheckRun], after: Mapping[str, CheckRun]) -> frozenset[str]:
    """Return the cases that fail because of a fault; none if it hung, or broke too much for a
    riddle.
    """
    if any(run.status != "success" for run in after.values()):
        return frozenset()
    passed = _passed_cases(before)
    broken = frozenset(case for case in passed if _has_failed(case, after))
    return broken if len(broken) <= max(1, _MOST * len(passed)) else frozenset()


def _has_failed(case: str, runs: Mapping[str, CheckRun]) -> bool:
    name, separator, inner = case.partition("::")
    run = runs[name]
    return (
        run.cases.get(inner) in {"failed", "errored"}
        if separator
        else run.verdict is Verdict.FAILED
    )
