"""A review by an agent with a shell, in a workspace that holds the change. What it changes there is
thrown away.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.agents import WIDE, AgentTask, run_agent, share_of_time
from moothall.deliberation.prompts import evidence_prompt
from moothall.deliberation.prompts.prompts import ROLES
from moothall.deliberation.prompts.reply import ReadReview, read_review
from moothall.deliberation.prompts.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.deliberation.prompts.variants import MalformedReplyError
from moothall.deliberation.seat_tools import UnusableCallError, read_arguments
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, FunctionCall
from moothall.domain.repository import Patch
from moothall.errors import DeadlineExceeded, ModelReplyInvalid

_TURNS = 10
_SHARE = 0.6
_NUMBERED = 100
"""What the numbers of a review's turns begin with: those of a reviewer's reviews are told apart by
it.
"""


@dataclass(frozen=True, slots=True)
class ReviewOrder:
    """What is reviewed: the diff as it is shown and as it applies, what checks said, and the
    criteria. `number`: of the reviewer's reviews.
    """

    reviewer: str
    where: str
    number: int
    diff: str
    exact: str
    evidence: str
    wanted: Sequence[str]


def reviews_with_tools(council: DeliberationContext, reviewer: str) -> bool:
    """Whether a reviewer gets a workspace and a shell."""
    setup = council.setup_of(reviewer)
    return (
        council.dependencies.evidence.review_tools
        and council.prepared is not None
        and setup.tools is not None
        and setup.tools.has_shell
        and setup.llm.context_tokens >= WIDE
    )


async def review_with_tools(council: DeliberationContext, order: ReviewOrder) -> ReadReview:
    """Return a review. Raises `MoothallError` if there is none."""
    setup, until = council.setup_of(order.reviewer), share_of_time(council, _SHARE)
    if setup.tools is None:
        raise AssertionError("this reviewer has no tools")
    if until is None:
        raise DeadlineExceeded("there was no time left")
    room = int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
    turns = min(_TURNS, setup.max_turns)
    found: list[ReadReview] = []

    async def examine(
        call: FunctionCall, commit: Callable[[], Awaitable[Patch]]
    ) -> tuple[str, bool]:
        del commit
        try:
            found.append(_read(json.dumps(read_arguments(call)), len(order.wanted)))
        except (UnusableCallError, MalformedReplyError) as error:
            return f"That is no review: {error}", False
        return "Handed in.", True

    first = order.number * _NUMBERED + 1
    task = AgentTask(
        seat=order.reviewer,
        head=evidence_prompt.reviewer_prompt(
            setup.shared,
            clip(readable_diff(order.diff), room),
            evidence=clip(order.evidence, room // 3),
            wanted=order.wanted,
            role=ROLES[council.deliberation.reviewer] if council.deliberation.reviewer else "",
            turns=turns,
        ),
        tools=setup.tools.with_submit(evidence_prompt.submit_review(len(order.wanted))),
        examine=examine,
        turns=range(first, first + turns),
        where=order.where,
        until=until,
        workspace=f"review-{order.where.replace('/', '-')}-{order.number}",
        patch=order.exact,
        may_answer=True,
        recorded=False,
    )
    said = await run_agent(council, task)
    if found:
        return found[-1]
    try:
        return _read(said, len(order.wanted))
    except MalformedReplyError as error:
        raise ModelReplyInvalid(f"its last reply is no review: {error}") from error


def _read(text: str, criteria: int) -> ReadReview:
    """Read a review, with what it says of the task, of what breaks and of the tests as its
    comment.
    """
    read = read_review(ChatReply(text, "stop", Usage()), criteria)
    try:
        said = json.loads(text)
    except ValueError:
        return read
    parts = [
        f"{label}{value.strip()}"
        for label, name in (
            ("", "does_the_task"),
            ("Breaks: ", "breaks"),
            ("Serves the tests: ", "serves_tests"),
        )
        if isinstance(value := said.get(name), str) and value.strip()
    ]
    return ReadReview(read.score, read.met, read.unmet, read.comment or "\n".join(parts)[:1000])
