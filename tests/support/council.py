"""A council with real components around a scripted model: real HTTP, gateway, audit, git and
pytest; an in-memory bus.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from moothall.authorization.audit import AuditLog
from moothall.authorization.gateway import ToolGateway
from moothall.collector.decide import decide
from moothall.collector.fold import fold
from moothall.config import (
    EvidenceSettings,
    LimitSettings,
    LlmSettings,
)
from moothall.deliberation.code_blocks import SUB_AGENT_LIMITS, SubAgentLimits
from moothall.deliberation.context import (
    Answerers,
    CouncilRules,
    Dependencies,
    PythonBlocks,
    RepositoryAccess,
    SeatLimits,
)
from moothall.deliberation.prompts.excerpts import RepoMapper
from moothall.deliberation.protocols import deliberate
from moothall.deliberation.recorded_model import Recording
from moothall.domain.codec import dump
from moothall.domain.event import Channel, Event, EventType
from moothall.domain.ids import seat_id
from moothall.domain.outcome import Outcome
from moothall.domain.repository import Prepared
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.domain.tool import BLOCK_LIMITS, BlockLimits
from moothall.llm.client import open_model
from moothall.ports import RunCode
from moothall.telemetry.tracing import write_of
from moothall.testing.bus import MemoryBus
from moothall.testing.model import Answer, ScriptedModel, phase_of, scripted_model, seat_of
from support.repos import SAMPLE, SOLUTION, Repo, make_repo
from support.workspace import TempWorkspaces

NO_AGENTS = EvidenceSettings(agents=())
TASK = "Add hello_world() function to src/utils.py"
ONE, TWO, THREE = (seat_id("dev", number) for number in (1, 2, 3))


def act(*calls: tuple[str, Mapping[str, Any]], thought: str = "work") -> str:
    """Return a turn of tool calls as JSON."""
    return json.dumps(
        {"thought": thought, "actions": [{"tool": tool, "args": args} for tool, args in calls]}
    )


def append(content: str = SOLUTION, path: str = "src/utils.py") -> str:
    """Return a turn that appends to a file."""
    return act(("files.append", {"path": path, "content": content}))


def code(text: str, thought: str = "loop") -> str:
    """Return a turn that is a block of Python."""
    return json.dumps({"thought": thought, "python": text})


def finish(text: str = "done") -> str:
    """Return a turn that ends the work."""
    return json.dumps({"thought": "enough", "finish": text})


def approaches(count: int) -> str:
    """Return a list of distinct approaches."""
    return json.dumps({"approaches": [f"way number {number}" for number in range(1, count + 1)]})


def review(score: int, quote: str = "hello_world", comment: str = "fine") -> str:
    """Return a review that finds the first criterion met."""
    return json.dumps(
        {"comment": comment, "met": [{"criterion": 1, "quote": quote}], "unmet": [], "score": score}
    )


@dataclass(slots=True)
class CouncilEnvironment:
    """The environment of a council; `run` lets it deliberate."""

    server: ScriptedModel
    bus: MemoryBus
    workspaces: TempWorkspaces
    prepared: Prepared
    parts: Dependencies
    runs: int = field(default=0)

    def deliberation(self, protocol: str = "vote", seats: int = 3, **fields: Any) -> Deliberation:
        """Return a deliberation of dev seats on the sample. With `repository=None` it is about
        text.
        """
        defaults: dict[str, Any] = {
            "task_id": "task-1",
            "description": TASK,
            "role": "dev",
            "protocol": protocol,
            "seats": tuple(seat_id("dev", number) for number in range(1, seats + 1)),
            "rounds": 1,
            "deadline": datetime.now(UTC) + timedelta(seconds=fields.pop("seconds", 60)),
            "max_turns": 4,
            "repository": RepositoryRef(id="sample"),
            "base_sha": self.prepared.base.sha,
        }
        return Deliberation(**(defaults | fields))

    async def run(self, d: Deliberation, recording: Recording | None = None) -> list[Event]:
        """Deliberate and return every event so far."""
        about = self.prepared if d.repository else None
        await deliberate(d, about, self.parts, recording or Recording())
        return await self.events()

    async def events(self) -> list[Event]:
        """Return the events of the log."""
        return [
            recorded.event
            async for recorded in self.bus.replay((Channel.RESULTS.all, Channel.TOOLS.all))
        ]


def of(events: list[Event], kind: EventType) -> list[Mapping[str, Any]]:
    """Return the data of the events of one kind, in order."""
    return [event.data for event in events if event.type == kind]


def outcomes(events: list[Event]) -> dict[str, str]:
    """Return seat → status, with the error code if there is one. Fails if a seat finished twice."""
    statuses: dict[str, str] = {}
    for data in of(events, EventType.SEAT_FINISHED):
        outcome = data["outcome"]
        if data["seat"] in statuses:
            raise AssertionError(f"{data['seat']} finished twice")
        statuses[data["seat"]] = " ".join(filter(None, (outcome["status"], outcome["error_code"])))
    return statuses


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


class Thinking:
    """A model whose first reply is unusable and waits for a signal; the second is the answer."""

    def __init__(self) -> None:
        self.calls = 0
        self.go_on = asyncio.Event()

    async def __call__(self, body: dict[str, Any], headers: Mapping[str, str]) -> Any:
        """Return the next reply."""
        del body, headers
        self.calls += 1
        if self.calls == 1:
            await self.go_on.wait()
            return "nothing of use"
        return finish("Bonjour")


async def forever() -> str:
    """Never answer."""
    await asyncio.Event().wait()
    return ""


def answer_with_approaches(work: Answer, *, plan: str = "") -> Answer:
    """Answer the request for approaches, and delegate the others to `work`."""

    def answer(body: dict[str, Any], headers: Mapping[str, str]) -> Any:
        if phase_of(headers) == "plan":
            count = body["response_format"]["json_schema"]["schema"]["properties"]["approaches"][
                "minItems"
            ]
            return plan or approaches(count)
        return work(body, headers)

    return answer


@asynccontextmanager
async def open_council(
    folder: Path,
    answer: Answer,
    *,
    files: Mapping[str, str | bytes] | None = None,
    limits: LimitSettings | None = None,
    evidence: EvidenceSettings | None = None,
    schemas: bool = True,
    tools: bool = False,
    run_code: RunCode | None = None,
    block_limits: BlockLimits = BLOCK_LIMITS,
    sub_agents: SubAgentLimits = SUB_AGENT_LIMITS,
    seat_limits: SeatLimits | None = None,
    **llm: Any,
) -> AsyncIterator[CouncilEnvironment]:
    """Open a council in `folder`.

    Args:
        run_code: runs Python within `block_limits`.
        tools: the model calls tools natively.
        evidence: the agents beside the seats; none without it.
        llm: settings of the model.
    """
    repo: Repo = await asyncio.to_thread(make_repo, folder / "repo", dict(files or SAMPLE))
    workspaces = TempWorkspaces(repo, folder / "workspaces")
    workspaces.root.mkdir()
    bus = MemoryBus()
    async with (
        scripted_model(answer, schemas=schemas, tools=tools) as server,
        open_model(
            settings := LlmSettings(
                **{
                    "retries": 0,
                    "approaches": "on",
                    "functions": "off",
                    "seats_in_turn": "off",
                    **llm,
                }
            ),
            server.base_url,
        ) as model,
        AuditLog(folder / "data", "host-1") as audit,
    ):
        gateway = ToolGateway(audit, bus.publish)
        prepared = await workspaces.prepare()
        parts = Dependencies(
            answerers=Answerers(model, settings),
            gateway=gateway,
            workspaces=workspaces,
            repositories=RepositoryAccess(workspaces.read, RepoMapper(workspaces)),
            log=bus,
            rules=CouncilRules(
                limits or LimitSettings(patience=0),
                evidence or NO_AGENTS,
                seat_limits or SeatLimits(),
            ),
            python=PythonBlocks(run_code, block_limits, sub_agents),
        )
        yield CouncilEnvironment(server, bus, workspaces, prepared, parts)


def by_seat(**texts: Any) -> Any:
    """Reply by the seat's number (one, two, three). `review` replies to reviews, `revise` to
    revisions, `inputs` to requests for test inputs.
    """

    def answer(_body: Any, headers: Any) -> Any:
        phase = phase_of(headers)
        if phase == "verify" and seat_of(headers) == "-":
            return texts.get("inputs", review(7))
        if phase in {"critique", "verify"}:
            return texts.get("review", review(7))
        if phase == "revise" and "revise" in texts:
            return texts["revise"]
        reply = texts[{ONE: "one", TWO: "two", THREE: "three"}[seat_of(headers)]]
        return reply() if callable(reply) else reply

    return answer_with_approaches(answer)


def verdicts(events: list[Event]) -> dict[tuple[str, str], str]:
    """Return the verdict of each check on each candidate."""
    return {
        (data["candidate"], data["evidence"]["check"]): data["evidence"]["verdict"]
        for data in of(events, EventType.CHECK_FINISHED)
    }


def outcome_from(d: Deliberation, events: list[Event]) -> Outcome:
    """Return the collector's decision on a deliberation's events."""
    argument_names = write_of(
        d, EventType.DELIBERATION_REQUESTED, dump(d), time=d.deadline.replace(year=2020).isoformat()
    )
    state = None
    for event in (
        argument_names,
        *(
            event
            for event in events
            if event.type.startswith(("moothall.seat", "moothall.check", "moothall.delib"))
        ),
    ):
        state = fold(state, event)
    assert state is not None
    return decide(state)
