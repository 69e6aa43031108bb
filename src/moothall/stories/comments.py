"""What people say while councils work, and of what these made: the same behind every door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import maxsize

from moothall.domain.identity import Principal
from moothall.domain.ids import check_id
from moothall.domain.outcome import Outcome, Result
from moothall.domain.plan import LineComment
from moothall.errors import InvalidRequest, Refused
from moothall.ports import Deliberations
from moothall.stories.board import Board
from moothall.stories.diffs import DiffLine, read_diff
from moothall.stories.story_state import StoryState


@dataclass(frozen=True, slots=True)
class Spot:
    """A line of a candidate's diff: its number in its file, from 1, as it is after the diff; of a
    `removed` one, as it was. Without a task it is the last check of the story as a whole, without a
    rank its best candidate.
    """

    path: str
    line: int
    removed: bool = False
    task_id: str = ""
    rank: int = 0


def may_act(who: Principal) -> bool:
    """Whether somebody may do more than look at a council."""
    return bool(who.operator or who.roles)


def check_role(who: Principal) -> None:
    """Raise `Refused` for who may only look."""
    if not may_act(who):
        raise Refused("this needs an operator, or one of the roles po, qa, architect")


async def steer(
    deliberations: Deliberations, task_id: str, message: str, who: Principal, *, key: str
) -> None:
    """Tell the seats of a council something, once for each `key`. Raises `Refused`, and what
    `Deliberations.steer` does.
    """
    check_role(who)
    await deliberations.steer(check_id(task_id, "task_id"), message, who, key=key)


async def pause(
    deliberations: Deliberations, task_id: str, who: Principal, *, paused: bool
) -> bool:
    """Let a council wait from the next turn on, or go on; return whether that changes anything.
    Raises `Refused`, and what `Deliberations.pause` does.
    """
    check_role(who)
    return await deliberations.pause(check_id(task_id, "task_id"), who, paused=paused)


async def remark(
    board: Board,
    deliberations: Deliberations,
    story_id: str,
    text: str,
    who: Principal,
    *,
    place: Spot,
    key: str,
) -> None:
    """Say something of a line of what was built for a story. Raises `NotFound`, and
    `InvalidRequest` where its diff has no such line.
    """
    card = await board.card(story_id, who)
    outcome = await deliberations.result(
        check_id(place.task_id or _check_task(card), "task_id"), who
    )
    if outcome.story_id != card.story.id:
        raise InvalidRequest(f"task {outcome.task_id} is not of story {card.story.id}")
    await remark_on(board, outcome, _find(outcome, place), text, who, key=key)


async def remark_on(
    board: Board, outcome: Outcome, line: DiffLine, text: str, who: Principal, *, key: str
) -> None:
    """Say something of a line that stands in a diff of this outcome. Raises `NotFound`,
    `InvalidRequest`.
    """
    on = LineComment(outcome.task_id, line.path, line.number, line.text, "")
    await board.comment(outcome.story_id, text, who, key=key, on=on)


def _check_task(card: StoryState) -> str:
    """Return the task that brought a story together last."""
    if card.check is None or not (task_id := str(card.check.data.get("task_id") or "")):
        raise InvalidRequest(
            f"story {card.story.id} was not checked as a whole yet: name the task whose diff you "
            "mean"
        )
    return task_id


def _find(outcome: Outcome, place: Spot) -> DiffLine:
    result = _candidate(outcome.results, place.rank)
    if result is None:
        raise InvalidRequest(
            f"task {outcome.task_id} has no candidate {place.rank or 1}; it has "
            f"{len(outcome.results)}"
        )
    lines = [line for line in read_diff(result.diff, maxsize) if line.kind != "place"]
    for line in lines:
        if (line.path, line.number, line.kind == "removed") == (
            place.path,
            place.line,
            place.removed,
        ):
            return line
    there = sorted({line.path for line in lines})
    said = f"there is no such {'removed ' if place.removed else ''}line"
    if place.path not in there:
        raise InvalidRequest(
            f"{said}: the diff changes {', '.join(path[:80] for path in there[:5]) or 'nothing'}"
        )
    numbers = [
        line.number
        for line in lines
        if line.path == place.path and (line.kind == "removed") == place.removed
    ]
    shown = (
        f"it shows {min(numbers)} to {max(numbers)}, and not all between"
        if numbers
        else "it removes none there"
    )
    raise InvalidRequest(f"{said} {place.line} of that file in the diff; {shown}")


def _candidate(results: Sequence[Result], rank: int) -> Result | None:
    return next((result for result in results if result.rank == (rank or 1)), None)
