"""Making the base of a deliberation ready, and telling how far that is."""

from __future__ import annotations

import asyncio
import glob
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from moothall import telemetry
from moothall.deliberation.judging.hidden import with_hidden_checks
from moothall.domain.event import EventType
from moothall.domain.evidence import HIDDEN, RED
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
from moothall.ranking.gates import format_cases
from moothall.ranking.test_cases import find_test_file
from moothall.telemetry.spans import write_of

log = telemetry.get_logger(__name__)

_PREPARATIONS = 3
_FEWEST = 4  # failing cases, from which on some are held back


async def prepare(
    bus: Bus, repositories: Repositories, deliberation: Deliberation, held_out: float = 0.0
) -> Prepared | None:
    """Return the base of a deliberation, ready to work on and without hidden tests; None for one
    about text.

    `held_out` is the share of failing cases to hide. Raises `NothingToJudge`, and what the
    repositories raise.
    """
    if deliberation.repository is None or deliberation.base_sha is None:
        return None
    ref = RepositoryRef(id=deliberation.repository.id, ref=deliberation.base_sha)
    base = with_checks(
        await repositories.resolve(ref, tenant=deliberation.tenant), deliberation.checks
    )
    given = await fetch_hidden(bus.bucket(HIDDEN), deliberation.hidden)
    steps: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        group.create_task(_publish_progress(bus, deliberation, steps))

        def report_progress(step: str) -> None:
            loop.call_soon_threadsafe(steps.put_nowait, step)

        try:
            prepared = await _prepare(repositories, base, report_progress)
            if held := files_to_hold(prepared, held_out):
                report_progress(
                    f"holding {', '.join(held)} back from the seats (evidence.held_out)"
                )
                prepared = await _prepare(repositories, hide_files(base, held), report_progress)
            prepared = replace(prepared, hidden={**prepared.hidden, **given})
            if unused := with_hidden_checks(prepared)[1].unused:
                report_progress(
                    f"No check runs these hidden tests: {format_cases(unused)}. Add one for their "
                    "folder to .moothall.toml."
                )
            found = diagnose(prepared)
            report_progress(found.line)
        finally:
            loop.call_soon(steps.put_nowait, None)  # after all that was told
    if found.text and not prepared.hidden:
        raise NothingToJudge(found.text)
    return prepared


def files_to_hold(prepared: Prepared, share: float) -> tuple[str, ...]:
    """Return test files whose failing cases are about this share of all that fail, if at least four
    do; one file of them always stays.
    """
    red = [
        case
        for run in prepared.runs.values()
        for case, outcome in run.cases.items()
        if outcome in RED
    ]
    counts = Counter(
        find_test_file(case, prepared.files) for case in red if case not in prepared.flaky
    )
    del counts[""]
    if not share or counts.total() < _FEWEST:
        return ()
    held: list[str] = []
    for path in sorted(counts, key=digest)[:-1]:
        if sum(counts[one] for one in (*held, path)) <= share * counts.total():
            held.append(path)
    return tuple(sorted(held))


def hide_files(base: Base, paths: Sequence[str]) -> Base:
    """Return the base with a profile that hides just these files, whatever characters their names
    have.
    """
    hidden = (*base.profile.hidden, *(f"/{glob.escape(path)}" for path in paths))
    return replace(base, profile=replace(base.profile, hidden=hidden))


async def _prepare(
    repositories: Repositories, base: Base, report_progress: Callable[[str], None]
) -> Prepared:
    """Prepare the base; an executor that dies under it costs another try, not the deliberation."""
    for lost in range(1, _PREPARATIONS + 1):
        try:
            return await repositories.prepare(base, report_progress)
        except (WorkspaceFailed, SandboxUnavailable) as error:
            if lost == _PREPARATIONS:
                raise
            log.warning(
                "preparation was cut short; trying again", sha=base.sha[:12], reason=error.message
            )
    raise AssertionError("unreachable")


async def _publish_progress(
    bus: Bus, deliberation: Deliberation, steps: asyncio.Queue[str | None]
) -> None:
    number = 0
    while (step := await steps.get()) is not None:
        number += 1
        data = {
            "agent_id": deliberation.task_id,
            "task_id": deliberation.task_id,
            "workstream": "preparation",
            "progress": 0.0,
            "current_task": step,
            "metrics": {},
        }
        await bus.publish(
            write_of(
                deliberation,
                EventType.AGENT_PROGRESS,
                data,
                ordinal=f"prepare-{number}-{step}",
                source="host",
            )
        )


async def give_up(bus: Bus, deliberation: Deliberation, error: MoothallError) -> None:
    """A repository that cannot be prepared fails every seat before it started."""
    log.warning(
        "preparation failed", task_id=deliberation.task_id, code=error.code, reason=error.message
    )
    await fail_seats(bus, deliberation, error.code, error.message, "host")


def first_of(group: BaseExceptionGroup[MoothallError | OSError]) -> MoothallError:
    """Return what went wrong first, in words for people."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MoothallError):
        return error
    return RepositoryError(
        f"the repository cannot be prepared: {error}; is the disk full? Free some, or set "
        "MOOTHALL_DATA_DIR"
    )
