"""What people with a role may do with a running council: steer it, pause it, and comment on lines
of its result. All APIs use these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moothall.domain.ids import Principal, TaskId, check_task_id
from moothall.domain.outcome import Outcome, Result
from moothall.domain.plan import LineComment
from moothall.errors import InvalidRequest, Refused
from moothall.ports import Deliberations
from moothall.stories.board import Board
from moothall.stories.diff_lines import DiffLine, read_diff
from moothall.stories.story_state import StoryState


@dataclass(frozen=True, slots=True)
class Spot:
    """A line of a candidate's diff.

    `line` is its number in the file after the change, from 1; for a `removed` line, its number
    before. Without a task, it is in the last check of the story as a whole. Without a rank, it is
    in the best candidate.
    """

    path: str
    line: int
    removed: bool = False
    task_id: str = ""
    rank: int = 0


def check_role(principal: Principal) -> None:
    """Raise `Refused` if the caller may only look."""
    if not principal.may_act:
        raise Refused("this needs an operator, or one of the roles po, qa, architect")


async def steer(
    deliberations: Deliberations, task_id: str, message: str, principal: Principal, *, key: str
) -> None:
    """Send a message to the seats of a council, once for each `key`. Raises `Refused`, and what
    `Deliberations.steer` raises.
    """
    check_role(principal)
    await deliberations.steer(check_task_id(task_id), message, principal, key=key)


async def pause(
    deliberations: Deliberations, task_id: str, principal: Principal, *, paused: bool
) -> bool:
    """Pause a council before its next turn, or resume it. Return whether that changes anything.
    Raises `Refused`, and what `Deliberations.pause` raises.
    """
    check_role(principal)
    return await deliberations.pause(check_task_id(task_id), principal, paused=paused)


async def remark(
    board: Board,
    deliberations: Deliberations,
    story_id: str,
    text: str,
    principal: Principal,
    *,
    place: Spot,
    key: str,
) -> None:
    """Comment on a line of a story's result. Raises `NotFound`, and `InvalidRequest` if
    its diff has no such line.
    """
    card = await board.card(story_id, principal)
    outcome = await deliberations.result(
        check_task_id(place.task_id or _check_task(card)), principal
    )
    if outcome.story_id != card.story.id:
        raise InvalidRequest(f"task {outcome.task_id} is not of story {card.story.id}")
    await remark_on(board, outcome, _find_line(outcome, place), text, principal, key=key)


async def remark_on(
    board: Board, outcome: Outcome, line: DiffLine, text: str, principal: Principal, *, key: str
) -> None:
    """Comment on a line in a diff of this outcome. Raises `NotFound`, `InvalidRequest`."""
    on = LineComment(TaskId(outcome.task_id), line.path, line.number, line.text, "")
    await board.comment(outcome.story_id, text, principal, key=key, line_comment=on)


def _check_task(card: StoryState) -> str:
    """Return the task of the last check of a story as a whole."""
    if card.check is None or not (task_id := str(card.check.data.get("task_id") or "")):
        raise InvalidRequest(
            f"story {card.story.id} was not checked as a whole yet: name the task whose diff you "
            "mean"
        )
    return task_id


def _find_line(outcome: Outcome, place: Spot) -> DiffLine:
    result = _candidate_of_rank(outcome.results, place.rank)
    if result is None:
        raise InvalidRequest(
            f"task {outcome.task_id} has no candidate {place.rank or 1}; it has "
            f"{len(outcome.results)}"
        )
    lines = [line for line in read_diff(result.diff) if line.kind != "place"]
    for line in lines:
        if (line.path, line.number, line.kind == "removed") == (
            place.path,
            place.line,
            place.removed,
        ):
            return line
    changed_paths = sorted({line.path for line in lines})
    reason = f"there is no such {'removed ' if place.removed else ''}line"
    if place.path not in changed_paths:
        raise InvalidRequest(
            f"{reason}: the diff changes "
            f"{', '.join(path[:80] for path in changed_paths[:5]) or 'nothing'}"
        )
    numbers = [
        line.number
        for line in lines
        if line.path == place.path and (line.kind == "removed") == place.removed
    ]
    range_text = (
        f"it shows {min(numbers)} to {max(numbers)}, and not all between"
        if numbers
        else "it removes none there"
    )
    raise InvalidRequest(f"{reason} {place.line} of that file in the diff; {range_text}")


def _candidate_of_rank(results: Sequence[Result], rank: int) -> Result | None:
    return next((result for result in results if result.rank == (rank or 1)), None)
