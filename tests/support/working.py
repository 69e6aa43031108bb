"""Stories on the board and their executor, with an in-memory deliberation service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from moothall.config import LimitSettings
from moothall.domain.ids import LOCAL
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.proposal import SeatOutcome, SeatStatus
from moothall.domain.task import DeliberationRequest
from moothall.stories.board import Board
from moothall.stories.coach import StoryDraft
from moothall.stories.executor import StoryExecutor
from moothall.stories.planner import Planner
from moothall.stories.story_state import StoryState
from moothall.testing.bus import MemoryBus
from support.deliberation_service import Lands, MemoryDeliberations

DRAFT = StoryDraft(
    "Export invoices as CSV",
    "As a clerk, I want a month as CSV, so that I can book it.",
    ("Given a, when b, then c",) * 2,
)
A, B, C, D = ("abcd"[n] * 40 for n in range(4))


def proven_outcome(task_id: str, commit: str = "") -> Outcome:
    """Return the end of a deliberation with a proven winner, delivered as `commit`."""
    result = Result(1, "agent-dev-001", "dev", 1.0, ("proven",), True, True)
    branch = f"moothall/{task_id}" if commit else ""
    return Outcome(
        task_id,
        DeliberationStatus.COMPLETED,
        role="dev",
        winner_id=result.seat,
        results=(result,),
        commit_sha=commit,
        branch=branch,
    )


def conflict_outcome(task_id: str) -> Outcome:
    """Return the end of a merge of conflicting commits."""
    seat = SeatOutcome(
        "agent-dev-001",
        SeatStatus.FAILED,
        "MERGE_CONFLICT",
        "both sides changed the same lines: a.txt",
    )
    return Outcome(task_id, DeliberationStatus.COMPLETED, role="dev", seats=(seat,))


async def open_app() -> App:
    """Return a board with a story in its backlog."""
    bus = MemoryBus()
    app = App(bus, MemoryDeliberations(), Board(bus))
    app.story_id = (await app.board.create(DRAFT, LOCAL, key="1", repository="repo")).story.id
    return app


@dataclass
class App:
    """A board and the executor of its stories; `work` belongs to a process that may be
    restarted.
    """

    bus: MemoryBus
    deliberations: MemoryDeliberations
    board: Board
    story_id: str = ""
    architects: int = 0
    lands: Lands = field(default_factory=Lands)
    locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    @asynccontextmanager
    async def hold_story(self, name: str) -> AsyncIterator[None]:
        """Lock a story, so that one executor at a time works on it."""
        async with self.locks.setdefault(name, asyncio.Lock()):
            yield

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Execute stories until the block ends, as one process of several."""
        planner = Planner(self.bus, LimitSettings())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(
                StoryExecutor(
                    self.bus,
                    self.deliberations,
                    LimitSettings(),
                    planner,
                    self.lands,
                    architects=self.architects,
                    lock_step=self.hold_story,
                ).run()
            )
            try:
                yield
            finally:
                task.cancel()

    async def until(self, condition: Callable[[], Awaitable[object]]) -> None:
        """Wait for a condition."""
        async with asyncio.timeout(10):
            while not await condition():
                await asyncio.sleep(0.005)

    async def card(self) -> StoryState:
        """Return the current story."""
        return await self.board.card(self.story_id, LOCAL)

    async def wait_until(self, state: str, *facts: str) -> None:
        """Wait until the story is in a state with these facts."""

        async def has_state() -> bool:
            position = (await self.card()).position
            return position.state == state and position.facts >= set(facts)

        await self.until(has_state)

    async def wait_for_request(self, number: int) -> DeliberationRequest:
        """Return the `number`-th request, from 1."""

        async def is_requested() -> bool:
            return len(self.deliberations.task_ids()) >= number

        await self.until(is_requested)
        return self.deliberations.request(self.deliberations.task_ids()[number - 1])

    async def to_test(self) -> str:
        """Move the story from backlog to test, and return the id of its task."""
        await self.move("refine", "submit")
        await self.wait_until("design", "planned")
        await self.move("accept_design")
        task = await self.wait_for_request(1)
        await self.deliberations.decide(proven_outcome(task.task_id, A))
        await self.wait_until("test")
        return task.task_id

    async def move(self, *events: str, comment: str = "") -> None:
        """Move the story."""
        for event in events:
            await self.board.move(self.story_id, event, LOCAL, comment=comment)
