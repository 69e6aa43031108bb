"""Agents that search for evidence beside the seats, among them reviewers with a shell. They have
the tools, gateway and limits of seats.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from moothall.concurrency import seconds_until
from moothall.deliberation.code_blocks import TurnContext
from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.conversation import ToolChat
from moothall.deliberation.judging.clean_runs import workspace_name
from moothall.deliberation.local_checks import CheckedWorkspace
from moothall.deliberation.prompts import evidence_prompt
from moothall.deliberation.prompts.prompts import ROLES
from moothall.deliberation.prompts.reply import ReadReview, read_review
from moothall.deliberation.prompts.text_calls import MalformedReplyError
from moothall.deliberation.seat_setup import (
    BASH,
    WRITE,
    SeatSetup,
    SeatTools,
    UnusableCallError,
    read_arguments,
)
from moothall.deliberation.tool_loop import Examine, ToolLoop
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, FunctionCall, Message
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import JudgedCase, Report
from moothall.domain.repository import Patch
from moothall.domain.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.errors import DeadlineExceeded, ModelReplyInvalid, SandboxUnavailable, WorkspaceFailed
from moothall.ports import Workspace
from moothall.telemetry import get_logger

# Agents that search for evidence beside the seats. They have the tools, gateway and limits of a
# seat, and propose nothing.


log = get_logger(__name__)

MIN_CONTEXT_TOKENS = 16_000
"""The context window, in tokens, that a model needs to judge tests and to work with tools."""
MIN_REPLY_TOKENS = 4096
"""The lowest token limit of an agent's reply, since it may think before it answers."""
MAX_TURNS = 20
"""The turns of an agent, if the request allows as many."""
TIME_SHARE = 0.5
"""The share of the remaining time that an agent may take."""
_MAX_WORKSPACES = 3
_MIN_SECONDS = 15.0

PrepareWorkspace = Callable[[Workspace], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class AgentTask:
    """The task of one agent.

    seat: the agent's name in call ids.
    messages: the first messages of its conversation.
    turns: the numbers of its replies.
    step: the part of its call ids after the name, as <phase>/<round>.
    workspace: a suffix of its workspace id.
    patch: the patch that its workspace starts with.
    prepare: runs first in each workspace.
    """

    seat: str
    messages: tuple[Message, ...]
    tools: SeatTools
    examine: Examine
    turns: range
    step: str
    deadline: datetime
    workspace: str = ""
    patch: str = ""
    prepare: PrepareWorkspace | None = None
    may_answer: bool = False
    recorded: bool = True


def select_tools(setup: SeatSetup) -> SeatTools | None:
    """Return the tools of an agent that writes tests.

    Return None if its model is small or cannot call tools natively.
    """
    tools = setup.tools
    if tools is None or setup.llm.context_tokens < MIN_CONTEXT_TOKENS:
        return None
    return tools if tools.offers(BASH) or tools.offers(WRITE) else None


def agent_deadline(council: DeliberationContext, share: float) -> datetime | None:
    """Return the deadline of an agent that may take a share of the remaining time.

    Return None if too little time remains.
    """
    seconds_left = seconds_until(council.deadlines.end)
    if seconds_left < _MIN_SECONDS:
        return None
    return datetime.now(UTC) + timedelta(seconds=seconds_left * share)


async def run_agent(council: DeliberationContext, task: AgentTask) -> str:
    """Run an agent until it submits, or until its turns, time or budget end; return its last
    message.

    If its workspace is lost, a new one is opened and the same replies are replayed. Raises the
    error that ended the agent without a change or an answer.
    """
    prepared, d = council.prepared, council.deliberation
    if prepared is None:
        raise AssertionError("agents with tools require a repository")
    setup = council.setup_of(task.seat)
    llm = setup.llm.model_copy(update={"max_tokens": max(setup.llm.max_tokens, MIN_REPLY_TOKENS)})
    chat = ToolChat(
        d.task_id,
        task.seat,
        task.messages,
        model=council.model,
        llm=llm,
        tools=task.tools.offered,
        temperature=0.0,
        seed=d.seed,
    )
    loop = ToolLoop(
        chat,
        task.tools,
        events=council.events,
        role=d.role,
        may_answer=task.may_answer,
        examine=task.examine,
        published=task.recorded,
    )
    workspace_id = workspace_name(d.task_id, task.seat, *filter(None, [task.workspace]))
    restore = loop.checkpoint()
    for number in range(1, _MAX_WORKSPACES + 1):
        try:
            async with council.dependencies.workspaces.open(
                prepared, workspace_id, patch=task.patch
            ) as workspace:
                if task.prepare is not None:
                    await task.prepare(workspace)
                context = council.call_context_for(task.seat, workspace, task.deadline)
                turn = TurnContext(context, council.dependencies.gateway)
                checked_workspace = CheckedWorkspace(turn, prepared, frozenset(), d.description)
                attempt = await loop.run_attempt(checked_workspace, task.step, task.turns)
                return attempt.draft.content if attempt.draft is not None else ""
        except (WorkspaceFailed, SandboxUnavailable) as error:
            if number == _MAX_WORKSPACES:
                raise
            log.warning(
                "workspace lost; its turns are repeated",
                workspace=workspace_id,
                reason=error.message,
            )
            restore()
    raise AssertionError("unreachable")


async def publish_report(
    council: DeliberationContext,
    agent: str,
    message: str,
    *,
    ordinal: str = "",
    cases: Sequence[JudgedCase] = (),
    **extra: str | bool,
) -> None:
    """Publish a finding of an agent, once for each `ordinal`."""
    # The usage of a seat is part of its own outcome.
    usage = Usage() if agent in council.deliberation.seats else council.model.usage_of(agent)
    finding = Report(agent, message, cases=tuple(cases), usage=usage)
    await council.events.publish(
        EventType.EVIDENCE_REPORTED,
        ordinal or agent,
        report=dump(replace(finding, **extra)),  # type: ignore[arg-type]
    )


# Reviews by an agent with a shell, in a workspace that holds the change. The reviewer's own changes
# are discarded.


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
        "reviewers" in council.dependencies.rules.evidence.agents
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
