"""Reviews by an agent with a shell, in a workspace that holds the change. The reviewer's own
changes are discarded.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.agents import (
    MIN_CONTEXT_TOKENS,
    AgentTask,
    agent_deadline,
    run_agent,
)
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

_MAX_TURNS = 10
_TIME_SHARE = 0.6
_TURN_NUMBERS = 100
"""The turn numbers reserved for each review, so that reviews of the same reviewer differ."""
_COMMENT_CHARS = 1000


@dataclass(frozen=True, slots=True)
class ToolReviewRequest:
    """A requested review.

    number: the number of the review among those of its reviewer.
    diff, unredacted: the diff without secrets to show, and as it is applied.
    evidence: the results of checks.
    """

    reviewer: str
    step: str
    number: int
    diff: str
    unredacted: str
    evidence: str
    criteria: Sequence[str]


def reviews_with_tools(council: DeliberationContext, reviewer: str) -> bool:
    """True if a reviewer gets a workspace and a shell."""
    setup = council.setup_of(reviewer)
    return (
        council.dependencies.evidence.review_tools
        and council.prepared is not None
        and setup.tools is not None
        and setup.tools.has_shell
        and setup.llm.context_tokens >= MIN_CONTEXT_TOKENS
    )


async def review_with_tools(council: DeliberationContext, request: ToolReviewRequest) -> ReadReview:
    """Return the review of an agent. Raises `MoothallError` if it gives none."""
    setup, deadline = council.setup_of(request.reviewer), agent_deadline(council, _TIME_SHARE)
    if setup.tools is None:
        raise AssertionError("this reviewer has no tools")
    if deadline is None:
        raise DeadlineExceeded("there was no time left")
    max_chars = int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
    turns = min(_MAX_TURNS, setup.max_turns)
    reviews: list[ReadReview] = []

    async def examine(
        call: FunctionCall, commit: Callable[[], Awaitable[Patch]]
    ) -> tuple[str, bool]:
        del commit
        try:
            reviews.append(_read_review(json.dumps(read_arguments(call)), len(request.criteria)))
        except (UnusableCallError, MalformedReplyError) as error:
            return f"That is no review: {error}", False
        return "Handed in.", True

    first_turn = request.number * _TURN_NUMBERS + 1
    task = AgentTask(
        seat=request.reviewer,
        messages=evidence_prompt.reviewer_prompt(
            setup.shared,
            clip(readable_diff(request.diff), max_chars),
            evidence=clip(request.evidence, max_chars // 3),
            requirements=request.criteria,
            role=ROLES[council.deliberation.reviewer] if council.deliberation.reviewer else "",
            turns=turns,
        ),
        tools=setup.tools.with_submit(evidence_prompt.submit_review(len(request.criteria))),
        examine=examine,
        turns=range(first_turn, first_turn + turns),
        step=request.step,
        deadline=deadline,
        workspace=f"review-{request.step.replace('/', '-')}-{request.number}",
        patch=request.unredacted,
        may_answer=True,
        recorded=False,
    )
    last_message = await run_agent(council, task)
    if reviews:
        return reviews[-1]
    try:
        return _read_review(last_message, len(request.criteria))
    except MalformedReplyError as error:
        raise ModelReplyInvalid(f"its last reply is no review: {error}") from error


def _read_review(text: str, criteria_count: int) -> ReadReview:
    """Read a review. Its statements about the task, breakage and the tests become the comment if
    there is none.
    """
    review = read_review(ChatReply(text, "stop", Usage()), criteria_count)
    try:
        data = json.loads(text)
    except ValueError:
        return review
    parts = [
        f"{label}{value.strip()}"
        for label, name in (
            ("", "does_the_task"),
            ("Breaks: ", "breaks"),
            ("Serves the tests: ", "serves_tests"),
        )
        if isinstance(value := data.get(name), str) and value.strip()
    ]
    return ReadReview(
        review.score, review.met, review.unmet, review.comment or "\n".join(parts)[:_COMMENT_CHARS]
    )
