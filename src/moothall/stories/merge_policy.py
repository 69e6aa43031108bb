"""What approval does with a story's result: what the repository's policy says. Where the base
moved, the two are brought together and checked again before; where they don't go together, the
story is built once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from moothall.domain.event import Event, EventType
from moothall.domain.identity import Principal
from moothall.domain.outcome import Outcome
from moothall.domain.repository import MergeResult
from moothall.domain.task import Constraints, RepositoryRef
from moothall.domain.text import one_line
from moothall.errors import MoothallError, Temporary
from moothall.ports import Deliberations, Land
from moothall.stories.integration import IntegrationTarget, ask, merge_request, why_not
from moothall.stories.story_state import COMPLETED, FAILED, StoryState
from moothall.telemetry.events import write

_ROUNDS = 5  # with a base that moves all the time
_MOVED = (
    "The branch that this is for has moved on, and the approved change does not go together with "
    "it. {said}"
)
_SHOWN = (
    "\n\nThe approved change, which is to be made on what the branch is now, keeping what both "
    "are for:\n{diff}"
)


async def land(
    deliberations: Deliberations,
    land_: Land,
    card: StoryState,
    history: Sequence[Event],
    chars: int,
) -> Event | None:
    """Return what became of an approved story's commit; None where it has none. `chars` bounds what
    is told of a failure.
    """
    story, check, entered = card.story, card.check, card.entered
    commit = str(check.data.get("commit_sha") or "") if check else ""
    if story.repository is None or check is None or entered is None or not commit:
        return None
    branch, who = str(check.data.get("branch") or ""), Principal("planner", entered.tenant)
    tasks = task_ids(history)
    landed, whole = MergeResult("left", branch, commit, why="its base moves all the time"), None
    for _ in range(_ROUNDS):
        try:
            now = await land_(
                story.repository, commit, branch, message(card, tasks), entered.tenant
            )
        except Temporary:
            raise
        except MoothallError as error:
            now = MergeResult("left", branch, commit, why=error.message)
        if now.status != "moved":
            landed = now
            break
        onto = RepositoryRef(id=story.repository.id, url=story.repository.url, ref=now.tip)
        plan_id = str(card.plan.data.get("plan_id", "")) if card.plan else ""
        aim = IntegrationTarget(
            onto, story.id, plan_id, story.title or story.id, Constraints(requirements=story.ac)
        )
        whole = await ask(
            deliberations, merge_request(f"{story.id}-on-{now.tip[:12]}", (commit,), aim), who
        )
        if not whole.commit_sha:
            return _failure_event(card, whole, now, chars)
        commit, branch = whole.commit_sha, whole.branch or branch
        tasks = (*tasks, whole.task_id)
    data = {
        "status": landed.status,
        "branch": landed.branch,
        "commit_sha": landed.commit_sha,
        "start": "",
        "why": landed.why,
    }
    return _delivery_event(card, data)


def _failure_event(card: StoryState, whole: Outcome, moved: MergeResult, chars: int) -> Event:
    """Return that a change and its base do not go together: what disagrees, or what was red, and
    where it is mended.
    """
    tried = next((result.commit_sha for result in whole.results if result.commit_sha), "")
    why = _MOVED.format(said=why_not(whole))
    if not tried:
        why += _SHOWN.format(diff=moved.diff)
    return _delivery_event(
        card,
        {
            "status": FAILED,
            "branch": moved.branch,
            "commit_sha": "",
            "start": tried or moved.tip,
            "why": why[: chars // 2],
        },
    )


def _delivery_event(card: StoryState, data: dict[str, str]) -> Event:
    said = {"story_id": card.story.id, "moved": card.moved, **data}
    tenant = card.entered.tenant if card.entered else "local"
    return write(
        EventType.STORY_DELIVERED,
        card.story.id,
        said,
        ordinal=card.moved,
        causationid=card.moved,
        tenant=tenant,
    )


def task_ids(history: Sequence[Event]) -> tuple[str, ...]:
    """Return the deliberations that a story's result comes from, since its design: those that won,
    and the check of the whole.
    """
    found: list[str] = []
    for event in history:
        tasks = event.data.get("tasks")
        if event.type is EventType.STORY_TRANSITIONED and event.data.get("to_state") == "design":
            found = []
        elif event.type is EventType.PLAN_FINISHED and isinstance(tasks, dict):
            found += [str(name) for name, said in tasks.items() if str(said).lower() == COMPLETED]
        elif event.type is EventType.STORY_CHECKED and event.data.get("task_id"):
            found.append(str(event.data["task_id"]))
    return tuple(dict.fromkeys(found))


def message(card: StoryState, tasks: Sequence[str]) -> str:
    """Return what the merge says: the story, the deliberations that it comes from, and who approved
    it.
    """
    entered = card.entered.data if card.entered else {}
    title = one_line(card.story.title, 72) or card.story.id
    lines = [
        f"Story: {card.story.id}",
        *(f"Deliberation: {name}" for name in tasks),
        f"Approved-by: {entered.get('actor')}",
    ]
    return f"Merge story: {title}\n\n" + "\n".join(lines) + "\n"
