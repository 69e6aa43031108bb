"""Integration of winners: their commits are merged and checked on a clean checkout. If two
conflict, a council resolves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from moothall.domain.identity import Principal
from moothall.domain.ids import TaskId
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import Constraints, DeliberationRequest, RepositoryRef
from moothall.errors import MergeConflict, Permanent, Temporary
from moothall.ports import Deliberations
from moothall.telemetry import get_logger

log = get_logger(__name__)

_MAX_RETRY_SECONDS = 60.0
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class IntegrationTarget:
    """The target of an integration: the base commit, the story, and the description for a council
    that resolves a conflict.
    """

    repository: RepositoryRef
    story_id: str
    plan_id: str
    description: str
    constraints: Constraints


async def run_deliberation(
    deliberations: Deliberations, request: DeliberationRequest, who: Principal
) -> Outcome:
    """Submit a deliberation and wait for its end, retrying through outages. Record one that cannot
    start as failed.
    """
    while True:
        try:
            deliberation = await deliberations.submit(request, who)
            return await deliberations.wait(deliberation.own_id, who)
        except Temporary as error:
            # A quota may be raised before it is due again.
            await asyncio.sleep(min(error.retry_after or _RETRY_SECONDS, _MAX_RETRY_SECONDS))
        except Permanent as error:
            log.warning(
                "a deliberation could not be submitted",
                task_id=request.task_id,
                reason=error.message,
            )
            await refuse(deliberations, request, error, who)
            return Outcome(
                request.task_id,
                DeliberationStatus.FAILED,
                role=request.role,
                error_message=error.message,
            )


async def refuse(
    deliberations: Deliberations, request: DeliberationRequest, reason: Permanent, who: Principal
) -> None:
    """Record why a task cannot start, retrying through outages."""
    while True:
        try:
            return await deliberations.refuse(request, reason, who)
        except Temporary as error:
            await asyncio.sleep(error.retry_after or _RETRY_SECONDS)
        except Permanent as error:
            log.warning(
                "a task that cannot start has no record",
                task_id=request.task_id,
                reason=error.message,
            )
            return None


async def merge_commits(
    deliberations: Deliberations,
    name: str,
    commits: Sequence[str],
    target: IntegrationTarget,
    who: Principal,
) -> Outcome:
    """Merge commits and return the deliberation that ended it: its winner holds the work of all, or
    it says why they could not be merged. `name` is the task id of the first attempt.
    """
    attempt = await run_deliberation(deliberations, merge_request(name, commits, target), who)
    if not _has_conflict(attempt) or len(commits) < 2:  # noqa: PLR2004 - two can disagree
        return attempt
    merged = commits[0]
    for index, commit in enumerate(commits[1:], 1):
        step = await run_deliberation(
            deliberations, merge_request(f"{name}-{index}", (merged, commit), target), who
        )
        if _has_conflict(step):
            step = await run_deliberation(
                deliberations,
                _conflict_request(f"{name}-{index}-c", merged, commit, step, target),
                who,
            )
        if not step.commit_sha:
            return step
        merged = step.commit_sha
    return await run_deliberation(
        deliberations, merge_request(f"{name}-all", (merged,), target), who
    )


def merge_task_ids(name: str, count: int) -> tuple[TaskId, ...]:
    """Return the ids of all deliberations that `merge_commits` may start for `count` commits."""
    steps = (f"{name}-{index}{end}" for index in range(1, count) for end in ("", "-c"))
    return tuple(map(TaskId, (name, *steps, f"{name}-all")))


def failure_reason(outcome: Outcome) -> str:
    """Return the reason why a deliberation has no winner, in a line or two."""
    reasons = outcome.results[0].reasons if outcome.results else ()
    messages = (
        outcome.error_message,
        *(seat.error_message for seat in outcome.seats),
        "; ".join(reasons),
    )
    return next((text for text in messages if text), f"it ended {outcome.status.value.lower()}")


def _has_conflict(outcome: Outcome) -> bool:
    return any(seat.error_code == MergeConflict.code for seat in outcome.seats)


def merge_request(
    task_id: str, commits: Sequence[str], target: IntegrationTarget
) -> DeliberationRequest:
    """Return the request to merge commits and check the result."""
    return DeliberationRequest(
        description=f"{target.description}\n\nWhat was done for this is brought together.",
        role="dev",
        task_id=task_id,
        repository=target.repository,
        protocol="single",
        story_id=target.story_id,
        plan_id=target.plan_id,
        origin="plan",
        merge=tuple(commits),
    )


def _conflict_request(
    task_id: str, merged: str, commit: str, step: Outcome, target: IntegrationTarget
) -> DeliberationRequest:
    """Return the request to a council to add the changes of `commit` to the work in `merged`. The
    conflict is its evidence.
    """
    conflict = next(
        seat.error_message for seat in step.seats if seat.error_code == MergeConflict.code
    )
    description = (
        "Two changes were made for this, and they disagree. The first is in the repository; "
        f"bring in what the second ({commit[:12]}) "
        f"does, and keep what both are for.\n\n{target.description}\n\n{conflict}"
    )
    return replace(
        merge_request(task_id, (), target),
        description=description,
        repository=replace(target.repository, ref=merged),
        protocol="",
        constraints=target.constraints,
    )
