"""Integration of winners: their commits are merged and checked on a clean checkout. Delivery of
an approved story by the merge policy of its repository, or by a person's request to merge it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from moothall.domain.event import Event, EventType
from moothall.domain.ids import Principal, TaskId
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.repository import MergeResult
from moothall.domain.task import Constraints, DeliberationRequest, RepositoryRef
from moothall.domain.text import one_line
from moothall.errors import MergeConflict, MoothallError, Permanent, Temporary
from moothall.ports import Deliberations, DeliverCommit
from moothall.stories.story_state import COMPLETED, FAILED, StoryState
from moothall.telemetry import get_logger
from moothall.telemetry.tracing import write

# Integration of winners: their commits are merged and checked on a clean checkout. If two conflict,
# a council resolves it.


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
    deliberations: Deliberations, request: DeliberationRequest, principal: Principal
) -> Outcome:
    """Submit a deliberation and wait for its end, retrying through outages. Record one that cannot
    start as failed.
    """
    while True:
        try:
            deliberation = await deliberations.submit(request, principal)
            return await deliberations.wait(deliberation.own_id, principal)
        except Temporary as error:
            # A quota may be raised before it is due again.
            await asyncio.sleep(min(error.retry_after or _RETRY_SECONDS, _MAX_RETRY_SECONDS))
        except Permanent as error:
            log.warning(
                "a deliberation could not be submitted",
                task_id=request.task_id,
                reason=error.message,
            )
            await refuse(deliberations, request, error, principal)
            return Outcome(
                request.task_id,
                DeliberationStatus.FAILED,
                role=request.role,
                error_message=error.message,
            )


async def refuse(
    deliberations: Deliberations,
    request: DeliberationRequest,
    reason: Permanent,
    principal: Principal,
) -> None:
    """Record why a task cannot start, retrying through outages."""
    while True:
        try:
            return await deliberations.refuse(request, reason, principal)
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
    principal: Principal,
) -> Outcome:
    """Merge commits and return the deliberation that ended it: its winner holds the work of all, or
    it says why they could not be merged. `name` is the task id of the first attempt.
    """
    attempt = await run_deliberation(deliberations, merge_request(name, commits, target), principal)
    if not _has_conflict(attempt) or len(commits) < 2:  # noqa: PLR2004 - two can disagree
        return attempt
    merged = commits[0]
    for index, commit in enumerate(commits[1:], 1):
        step = await run_deliberation(
            deliberations, merge_request(f"{name}-{index}", (merged, commit), target), principal
        )
        if _has_conflict(step):
            step = await run_deliberation(
                deliberations,
                _conflict_request(f"{name}-{index}-c", merged, commit, step, target),
                principal,
            )
        if not step.commit_sha:
            return step
        merged = step.commit_sha
    return await run_deliberation(
        deliberations, merge_request(f"{name}-all", (merged,), target), principal
    )


def merge_task_ids(name: str, count: int) -> tuple[TaskId, ...]:
    """Return the ids of all deliberations that `merge_commits` may start for `count` commits."""
    steps = (f"{name}-{index}{suffix}" for index in range(1, count) for suffix in ("", "-c"))
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


# Delivery of an approved story by the merge policy of its repository, or by a person's request to
# merge it. If the base has moved, the two are merged and checked again first; if they do not merge,
# the story is built once more.


_MAX_ATTEMPTS = 5  # for a base that keeps moving
_CONFLICT_TEXT = (
    "The branch that this is for has moved on, and the approved change does not go together with "
    "it. {reason}"
)
_DIFF_TEXT = (
    "\n\nThe approved change, which is to be made on what the branch is now, keeping what both "
    "are for:\n{diff}"
)


async def land(
    deliberations: Deliberations,
    land_: DeliverCommit,
    card: StoryState,
    history: Sequence[Event],
    chars: int,
) -> Event | None:
    """Deliver an approved story's commit and return the event that records it. Return None if there
    is no commit. An open request to merge comes before the policy. `chars` limits the description
    of a failure.
    """
    story, entered = card.story, card.entered
    source = card.delivery if card.merge_request else card.check
    commit = str(source.data.get("commit_sha") or "") if source else ""
    if story.repository is None or source is None or entered is None or not commit:
        return None
    branch, principal = str(source.data.get("branch") or ""), Principal("planner", entered.tenant)
    tasks = task_ids(history)
    final_result = MergeResult("left", branch, commit, why="its base moves all the time")
    for _ in range(_MAX_ATTEMPTS):
        try:
            result = await land_(
                story.repository,
                commit,
                branch,
                message(card, tasks),
                entered.tenant,
                merge=card.merge_request is not None,
            )
        except Temporary:
            raise
        except MoothallError as error:
            result = MergeResult("left", branch, commit, why=error.message)
        if result.status != "moved":
            final_result = result
            break
        onto = RepositoryRef(id=story.repository.id, url=story.repository.url, ref=result.tip)
        plan_id = str(card.plan.data.get("plan_id", "")) if card.plan else ""
        target = IntegrationTarget(
            onto, story.id, plan_id, story.title or story.id, Constraints(requirements=story.ac)
        )
        merged = await run_deliberation(
            deliberations,
            merge_request(f"{story.id}-on-{result.tip[:12]}", (commit,), target),
            principal,
        )
        if not merged.commit_sha:
            return _failure_event(card, merged, result, chars)
        commit, branch = merged.commit_sha, merged.branch or branch
        tasks = (*tasks, TaskId(merged.task_id))
    data = {
        "status": final_result.status,
        "branch": final_result.branch,
        "commit_sha": final_result.commit_sha,
        "start": "",
        "why": final_result.why,
    }
    return _delivery_event(card, data)


def _failure_event(card: StoryState, merged: Outcome, moved: MergeResult, chars: int) -> Event:
    """Return the event that records that a change and its base do not merge: the conflict or the
    failed check, and the commit to repair it on.
    """
    merged_sha = next((result.commit_sha for result in merged.results if result.commit_sha), "")
    reason = _CONFLICT_TEXT.format(reason=failure_reason(merged))
    if not merged_sha:
        reason += _DIFF_TEXT.format(diff=moved.diff)
    return _delivery_event(
        card,
        {
            "status": FAILED,
            "branch": moved.branch,
            "commit_sha": "",
            "start": merged_sha or moved.tip,
            "why": reason[: chars // 2],
        },
    )


def _delivery_event(card: StoryState, data: dict[str, str]) -> Event:
    event_data = {"story_id": card.story.id, "moved": card.moved, **data}
    tenant = card.entered.tenant if card.entered else "local"
    cause = card.merge_request.id if card.merge_request else card.moved
    return write(
        EventType.STORY_DELIVERED,
        card.story.id,
        event_data,
        ordinal=cause,
        causationid=cause,
        tenant=tenant,
    )


def task_ids(history: Sequence[Event]) -> tuple[TaskId, ...]:
    """Return the deliberations that a story's result comes from, since its design: those with a
    winner, and the checks of the whole.
    """
    ids: list[TaskId] = []
    for event in history:
        tasks = event.data.get("tasks")
        if event.type is EventType.STORY_TRANSITIONED and event.data.get("to_state") == "design":
            ids = []
        elif event.type is EventType.PLAN_FINISHED and isinstance(tasks, dict):
            ids += [
                TaskId(str(name))
                for name, status in tasks.items()
                if str(status).lower() == COMPLETED
            ]
        elif event.type is EventType.STORY_CHECKED and event.data.get("task_id"):
            ids.append(TaskId(str(event.data["task_id"])))
    return tuple(dict.fromkeys(ids))


def message(card: StoryState, tasks: Sequence[TaskId]) -> str:
    """Return the message of the merge commit: the story, the deliberations that it comes from, and
    who approved it.
    """
    entered = card.entered.data if card.entered else {}
    title = one_line(card.story.title, 72) or card.story.id
    lines = [
        f"Story: {card.story.id}",
        *(f"Deliberation: {name}" for name in tasks),
        f"Approved-by: {entered.get('actor')}",
    ]
    if card.merge_request is not None:
        lines.append(f"Merged-by: {card.merge_request.data.get('actor')}")
    return f"Merge story: {title}\n\n" + "\n".join(lines) + "\n"
