"""Agents that search for evidence beside the seats. They have the tools, gateway and limits of a
seat, and propose nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from moothall.concurrency import seconds_until
from moothall.deliberation.code_blocks import TurnContext
from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.clean_runs import workspace_name
from moothall.deliberation.local_checks import CheckedWorkspace
from moothall.deliberation.seat_setup import SeatSetup
from moothall.deliberation.seat_tools import BASH, WRITE, SeatTools
from moothall.deliberation.tool_chat import ToolChat
from moothall.deliberation.tool_loop import Examine, ToolLoop
from moothall.domain.budget import Usage
from moothall.domain.chat import Message
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import JudgedCase, Report
from moothall.errors import SandboxUnavailable, WorkspaceFailed
from moothall.ports import Workspace
from moothall.telemetry import get_logger

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
    seconds_left = seconds_until(council.deadline)
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
        council.dependencies.limits,
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
