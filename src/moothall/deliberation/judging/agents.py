"""Agents that look for evidence beside the seats: the same tools, gateway and limits as a seat, and
no proposal.
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

WIDE = 16_000
"""Tokens of a window from which on a model is taken to judge tests and to work with tools."""
REPLY_TOKENS = 4096
"""The least that a reply of such an agent may take: it may think before it answers."""
TURNS = 20
"""Replies of one of them, where the request allows as many."""
SHARE = 0.5
"""The share of the time that is left which one of them may take."""
_WORKSPACES = 3
_LEAST_SECONDS = 15.0

Prepare = Callable[[Workspace], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class AgentTask:
    """One agent's work. `seat`: who it is in call ids; `head`: its first messages; `turns`: the
    numbers of its replies; `where`: as <phase>/<round>; `workspace`: what its workspace is called
    beside; `prepare`: what is done there first; `patch`: what it begins with.
    """

    seat: str
    head: tuple[Message, ...]
    tools: SeatTools
    examine: Examine
    turns: range
    where: str
    until: datetime
    workspace: str = ""
    patch: str = ""
    prepare: Prepare | None = None
    may_answer: bool = False
    recorded: bool = True


def tools_of(setup: SeatSetup) -> SeatTools | None:
    """Return the tools of an agent that writes tests; None for models that call none natively, or
    are small.
    """
    tools = setup.tools
    if tools is None or setup.llm.context_tokens < WIDE:
        return None
    return tools if tools.offers(BASH) or tools.offers(WRITE) else None


def share_of_time(council: DeliberationContext, share: float) -> datetime | None:
    """Return until when an agent may work: a share of the time that is left; None if that is too
    little.
    """
    left = seconds_until(council.deadline)
    if left < _LEAST_SECONDS:
        return None
    return datetime.now(UTC) + timedelta(seconds=left * share)


async def run_agent(council: DeliberationContext, task: AgentTask) -> str:
    """Let an agent work until it submits or its turns, time or budget end; return its last words.

    A lost workspace is opened again, and the same replies are used. Raises what ended the agent
    without any change or answer.
    """
    prepared, d = council.prepared, council.deliberation
    if prepared is None:
        raise AssertionError("agents with tools work on a repository")
    setup = council.setup_of(task.seat)
    llm = setup.llm.model_copy(update={"max_tokens": max(setup.llm.max_tokens, REPLY_TOKENS)})
    chat = ToolChat(
        d.task_id,
        task.seat,
        task.head,
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
    called = workspace_name(d.task_id, task.seat, *filter(None, [task.workspace]))
    restore = loop.checkpoint()
    for lost in range(1, _WORKSPACES + 1):
        try:
            async with council.dependencies.workspaces.open(
                prepared, called, patch=task.patch
            ) as workspace:
                if task.prepare is not None:
                    await task.prepare(workspace)
                context = council.call_context_for(task.seat, workspace, task.until)
                turn = TurnContext(context, council.dependencies.gateway)
                place = CheckedWorkspace(turn, prepared, frozenset(), d.description)
                attempt = await loop.run_attempt(place, task.where, task.turns)
                return attempt.draft.content if attempt.draft is not None else ""
        except (WorkspaceFailed, SandboxUnavailable) as error:
            if lost == _WORKSPACES:
                raise
            log.warning(
                "workspace lost; its turns are done again", workspace=called, reason=error.message
            )
            restore()
    raise AssertionError("unreachable")


async def report(
    council: DeliberationContext,
    agent: str,
    message: str,
    *,
    ordinal: str = "",
    cases: Sequence[JudgedCase] = (),
    **more: str | bool,
) -> None:
    """Publish what an agent found, once for each `ordinal`."""
    spent = (
        Usage() if agent in council.deliberation.seats else council.model.usage_of(agent)
    )  # a seat's own work is told as its own
    said = Report(agent, message, cases=tuple(cases), usage=spent)
    await council.events.publish(
        EventType.EVIDENCE_REPORTED,
        ordinal or agent,
        report=dump(replace(said, **more)),  # type: ignore[arg-type]
    )
