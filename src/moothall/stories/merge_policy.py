"""Delivery of an approved story by the merge policy of its repository, or by a person's request to
merge it. If the base has moved, the two are merged and checked again first; if they do not merge,
the story is built once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from moothall.domain.event import Event, EventType
from moothall.domain.identity import Principal
from moothall.domain.ids import TaskId
from moothall.domain.outcome import Outcome
from moothall.domain.repository import MergeResult
from moothall.domain.task import Constraints, RepositoryRef
from moothall.domain.text import one_line
from moothall.errors import MoothallError, Temporary
from moothall.ports import Deliberations, DeliverCommit
from moothall.stories.integration import (
    IntegrationTarget,
    failure_reason,
    merge_request,
    run_deliberation,
)
from moothall.stories.story_state import COMPLETED, FAILED, StoryState
from moothall.telemetry.events import write

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
    branch, who = str(source.data.get("branch") or ""), Principal("planner", entered.tenant)
    tasks = task_ids(history)
    final_result, merged = (
        MergeResult("left", branch, commit, why="its base moves all the time"),
        None,
    )
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
            deliberations, merge_request(f"{story.id}-on-{result.tip[:12]}", (commit,), target), who
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
