"""Bringing winners together: commits are merged and judged on a clean checkout; where two disagree,
a council settles it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from moothall.domain.identity import Principal
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import Constraints, DeliberationRequest, RepositoryRef
from moothall.errors import MergeConflict, Permanent, Temporary
from moothall.ports import Deliberations
from moothall.telemetry import get_logger

log = get_logger(__name__)

_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class IntegrationTarget:
    """What winners are brought together for: onto which commit, for which story, and what a council
    that settles a conflict is told.
    """

    repository: RepositoryRef
    story_id: str
    plan_id: str
    description: str
    constraints: Constraints


async def ask(
    deliberations: Deliberations, request: DeliberationRequest, who: Principal
) -> Outcome:
    """Submit a deliberation and wait for its end, retrying through outages.

    Record one that cannot start as failed.
    """
    while True:
        try:
            await deliberations.submit(request, who)
            return await deliberations.wait(request.task_id, who)
        except Temporary as error:
            await asyncio.sleep(error.retry_after or _AGAIN_SECONDS)
        except Permanent as error:
            log.warning(
                "a council could not be asked", task_id=request.task_id, reason=error.message
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
            await asyncio.sleep(error.retry_after or _AGAIN_SECONDS)
        except Permanent as error:
            log.warning(
                "a task that cannot start has no record",
                task_id=request.task_id,
                reason=error.message,
            )
            return None


async def together(
    deliberations: Deliberations,
    name: str,
    commits: Sequence[str],
    aim: IntegrationTarget,
    who: Principal,
) -> Outcome:
    """Return how the deliberation ended that brought the commits together, or the one for whose
    sake it could not: the winner's commit has the work of all. `name` is the task id of the first.
    """
    whole = await ask(deliberations, merge_request(name, commits, aim), who)
    if not _disagree(whole) or len(commits) < 2:  # noqa: PLR2004 - two can disagree
        return whole
    held = commits[0]
    for number, commit in enumerate(commits[1:], 1):
        step = await ask(deliberations, merge_request(f"{name}-{number}", (held, commit), aim), who)
        if _disagree(step):
            step = await ask(
                deliberations, _settle(f"{name}-{number}-c", held, commit, step, aim), who
            )
        if not step.commit_sha:
            return step
        held = step.commit_sha
    return await ask(deliberations, merge_request(f"{name}-all", (held,), aim), who)


def why_not(end: Outcome) -> str:
    """Return why a deliberation has no winner, in a line or two."""
    reasons = end.results[0].reasons if end.results else ()
    said = (end.error_message, *(seat.error_message for seat in end.seats), "; ".join(reasons))
    return next((text for text in said if text), f"it ended {end.status.value.lower()}")


def _disagree(end: Outcome) -> bool:
    return any(seat.error_code == MergeConflict.code for seat in end.seats)


def merge_request(
    task_id: str, commits: Sequence[str], aim: IntegrationTarget
) -> DeliberationRequest:
    """Return the request that brings commits together and judges what they come to."""
    return DeliberationRequest(
        description=f"{aim.description}\n\nWhat was done for this is brought together.",
        role="dev",
        task_id=task_id,
        repository=aim.repository,
        protocol="single",
        story_id=aim.story_id,
        plan_id=aim.plan_id,
        origin="plan",
        merge=tuple(commits),
    )


def _settle(
    task_id: str, held: str, commit: str, step: Outcome, aim: IntegrationTarget
) -> DeliberationRequest:
    """Ask a council, on the one commit, for what the other did too. What disagrees is its
    evidence.
    """
    said = next(seat.error_message for seat in step.seats if seat.error_code == MergeConflict.code)
    told = (
        "Two changes were made for this, and they disagree. The first is in the repository; "
        f"bring in what the second ({commit[:12]}) "
        f"does, and keep what both are for.\n\n{aim.description}\n\n{said}"
    )
    return replace(
        merge_request(task_id, (), aim),
        description=told,
        repository=replace(aim.repository, ref=held),
        protocol="",
        constraints=aim.constraints,
    )
