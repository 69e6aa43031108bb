"""Preparation of the base of a deliberation, and the progress events of it."""

from __future__ import annotations

import asyncio
import glob
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from moothall import telemetry
from moothall.deliberation.judging.hidden import with_hidden_checks
from moothall.domain.event import EventType
from moothall.domain.evidence import FAILED_OUTCOMES, HIDDEN
from moothall.domain.ids import digest
from moothall.domain.repository import Base, Prepared, with_checks
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.errors import (
    MoothallError,
    NothingToJudge,
    RepositoryError,
    SandboxUnavailable,
    WorkspaceFailed,
)
from moothall.orchestrator.request_planning import fail_seats, fetch_hidden
from moothall.ports import Bus, Repositories
from moothall.ranking import diagnose
from moothall.ranking.criteria import format_cases
from moothall.ranking.test_cases import find_test_file
from moothall.telemetry.tracing import write_of

log = telemetry.get_logger(__name__)

_MAX_TRIES = 3
_MIN_FAILING_CASES = 4  # with fewer, no tests are held back


async def prepare(
    bus: Bus, repositories: Repositories, deliberation: Deliberation, held_out: float = 0.0
) -> Prepared | None:
    """Return the prepared base of a deliberation, without hidden tests; None if the deliberation is
    about text.

    `held_out` is the share of failing cases to hide. Raises `NothingToJudge`, and the errors of
    `repositories`.
    """
    if deliberation.repository is None or deliberation.base_sha is None:
        return None
    ref = RepositoryRef(id=deliberation.repository.id, ref=deliberation.base_sha)
    base = with_checks(
        await repositories.resolve(ref, tenant=deliberation.tenant), deliberation.checks
    )
    hidden_tests = await fetch_hidden(bus.bucket(HIDDEN), deliberation.hidden)
    steps: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        group.create_task(_publish_progress(bus, deliberation, steps))

        def report_progress(step: str) -> None:
            loop.call_soon_threadsafe(steps.put_nowait, step)

        try:
            prepared = await _prepare_base(repositories, base, report_progress)
            if paths := select_held_out_files(prepared, held_out):
                report_progress(
                    f"holding {', '.join(paths)} back from the seats (evidence.held_out)"
                )
                prepared = await _prepare_base(
                    repositories, hide_files(base, paths), report_progress
                )
            prepared = replace(prepared, hidden={**prepared.hidden, **hidden_tests})
            if unused := with_hidden_checks(prepared)[1].unused:
                report_progress(
                    f"No check runs these hidden tests: {format_cases(unused)}. Add one for their "
                    "folder to .moothall.toml."
                )
            diagnosis = diagnose(prepared)
            report_progress(diagnosis.line)
        finally:
            loop.call_soon(steps.put_nowait, None)  # after all steps
    if diagnosis.text and not prepared.hidden:
        raise NothingToJudge(diagnosis.text)
    return prepared


def select_held_out_files(prepared: Prepared, share: float) -> tuple[str, ...]:
    """Return test files with about the given share of the failing cases; none if fewer than four
    cases fail. At least one file with failing cases stays visible.
    """
    failing = [
        case
        for run in prepared.runs.values()
        for case, outcome in run.cases.items()
        if outcome in FAILED_OUTCOMES
    ]
    counts = Counter(
        find_test_file(case, prepared.files) for case in failing if case not in prepared.flaky
    )
    del counts[""]
    if not share or counts.total() < _MIN_FAILING_CASES:
        return ()
    selected: list[str] = []
    for path in sorted(counts, key=digest)[:-1]:
        if sum(counts[file] for file in (*selected, path)) <= share * counts.total():
            selected.append(path)
    return tuple(sorted(selected))


def hide_files(base: Base, paths: Sequence[str]) -> Base:
    """Return the base with a profile that hides these files and no others. Special characters in
    their names are escaped.
    """
    hidden = (*base.profile.hidden, *(f"/{glob.escape(path)}" for path in paths))
    return replace(base, profile=replace(base.profile, hidden=hidden))


async def _prepare_base(
    repositories: Repositories, base: Base, report_progress: Callable[[str], None]
) -> Prepared:
    """Prepare the base. Try again if the executor dies."""
    for number in range(1, _MAX_TRIES + 1):
        try:
            return await repositories.prepare(base, report_progress)
        except (WorkspaceFailed, SandboxUnavailable) as error:
            if number == _MAX_TRIES:
                raise
            log.warning(
                "the executor died during preparation; trying again",
                sha=base.sha[:12],
                reason=error.message,
            )
    raise AssertionError("unreachable")


async def _publish_progress(
    bus: Bus, deliberation: Deliberation, steps: asyncio.Queue[str | None]
) -> None:
    number = 0
    while (step := await steps.get()) is not None:
        number += 1
        ordinal = f"prepare-{number}-{step}"
        await publish_step(bus, deliberation, "preparation", step, ordinal=ordinal)


async def publish_step(
    bus: Bus, deliberation: Deliberation, workstream: str, step: str, *, ordinal: str
) -> None:
    """Publish what a deliberation does when no seat works. Raises `BusUnavailable`."""
    data = {
        "agent_id": deliberation.task_id,
        "task_id": deliberation.task_id,
        "workstream": workstream,
        "progress": 0.0,
        "current_task": step,
        "metrics": {},
    }
    await bus.publish(
        write_of(deliberation, EventType.AGENT_PROGRESS, data, ordinal=ordinal, source="host")
    )


async def fail_all_seats(bus: Bus, deliberation: Deliberation, error: MoothallError) -> None:
    """Fail all seats of a deliberation whose repository cannot be prepared."""
    log.warning(
        "preparation failed", task_id=deliberation.task_id, code=error.code, reason=error.message
    )
    await fail_seats(bus, deliberation, error.code, error.message, "host")


def first_error(group: BaseExceptionGroup[MoothallError | OSError]) -> MoothallError:
    """Return the first error of a group, with a message for users."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MoothallError):
        return error
    return RepositoryError(
        f"the repository cannot be prepared: {error}; is the disk full? Free some, or set "
        "MOOTHALL_DATA_DIR"
    )
