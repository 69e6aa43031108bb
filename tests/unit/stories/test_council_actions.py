"""Comments on lines and messages to seats, for every API; an in-memory deliberation service and
bus.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL, Principal
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.plan import LineComment
from moothall.domain.task import DeliberationRequest
from moothall.errors import InvalidRequest, NotFound, Refused
from moothall.stories.board import Board
from moothall.stories.coach import StoryDraft
from moothall.stories.council_actions import Spot, remark, steer
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus
from support.deliberation_service import MemoryDeliberations

DIFF = "--- a/u.py\n+++ b/u.py\n@@ -1,2 +1,2 @@\n same\n-old\n+new\n"
OTHER = "--- a/v.py\n+++ b/v.py\n@@ -0,0 +1 @@\n+only\n"


class App:
    """A story with a decided task, and a user who comments on it."""

    def __init__(self) -> None:
        self.bus, self.deliberations = MemoryBus(), MemoryDeliberations()
        self.board, self.story = Board(self.bus), ""

    async def built(self, task_id: str = "task-1") -> None:
        self.story = (await self.board.create(StoryDraft("Greet", "", ()), LOCAL, key="1")).story.id
        await self.deliberations.submit(DeliberationRequest("do it", "dev", task_id=task_id), LOCAL)
        results = tuple(
            Result(
                rank,
                f"agent-dev-00{rank}",
                "dev",
                0.5,
                (),
                passed_gates=True,
                proven=True,
                diff=diff,
            )
            for rank, diff in ((1, DIFF), (2, OTHER))
        )
        await self.deliberations.decide(
            Outcome(task_id, DeliberationStatus.COMPLETED, story_id=self.story, results=results)
        )

    async def comment(self, place: Spot, text: str = "Not so.", key: str = "k") -> None:
        await remark(self.board, self.deliberations, self.story, text, LOCAL, place=place, key=key)

    async def remarks(self) -> tuple[LineComment, ...]:
        return (await self.board.card(self.story, LOCAL)).remarks


@pytest.fixture
async def app() -> App:
    new_app = App()
    await new_app.built()
    return new_app


async def test_a_line_is_identified_by_file_and_number_before_or_after_the_change(app: App) -> None:
    for key, place in enumerate(
        (
            Spot("u.py", 2, task_id="task-1"),
            Spot("u.py", 2, True, "task-1"),
            Spot("v.py", 1, task_id="task-1", rank=2),
        )
    ):
        await app.comment(place, key=str(key))
    await app.comment(Spot("u.py", 2, task_id="task-1"), key="0")  # sent twice, stored once
    assert [(comment.path, comment.line, comment.quoted) for comment in await app.remarks()] == [
        ("u.py", 2, "+new"),
        ("u.py", 2, "-old"),
        ("v.py", 1, "+only"),
    ]


async def test_without_a_task_a_comment_refers_to_the_last_check_of_the_whole_story(
    app: App,
) -> None:
    with pytest.raises(InvalidRequest, match="was not checked as a whole yet: name the task"):
        await app.comment(Spot("u.py", 2))
    data = {"story_id": app.story, "status": "passed", "task_id": "task-1", "moved": ""}
    await app.bus.publish(write(EventType.STORY_CHECKED, app.story, data))
    await app.comment(Spot("u.py", 2))
    assert [comment.task_id for comment in await app.remarks()] == ["task-1"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (Spot("x.py", 1), "the diff changes u.py"),
        (Spot("u.py", 9), "no such line 9 of that file in the diff; it shows 1 to 2"),
        (
            Spot("u.py", 1, removed=True),
            "no such removed line 1 of that file in the diff; it shows 2 to 2",
        ),
        (Spot("v.py", 1, removed=True, rank=2), "it removes none there"),
        (Spot("u.py", 2, rank=3), "has no candidate 3; it has 2"),
        (Spot("u.py", -1, rank=-1), "has no candidate -1"),
    ],
)
async def test_an_invalid_line_of_the_diff_is_refused_with_a_message(
    app: App, place: Spot, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await app.comment(replace(place, task_id="task-1"))
    assert await app.remarks() == ()


async def test_foreign_stories_and_tasks_are_not_found_and_a_task_of_another_story_is_refused(
    app: App,
) -> None:
    eve = Principal("eve", "elsewhere")
    with pytest.raises(NotFound):
        await remark(
            app.board,
            app.deliberations,
            app.story,
            "x",
            eve,
            place=Spot("u.py", 2, task_id="task-1"),
            key="k",
        )
    with pytest.raises(NotFound):
        await app.comment(Spot("u.py", 2, task_id="task-9"))
    app.story = (await app.board.create(StoryDraft("Another", "", ()), LOCAL, key="2")).story.id
    with pytest.raises(InvalidRequest, match="task task-1 is not of story"):
        await app.comment(Spot("u.py", 2, task_id="task-1"))


async def test_only_people_with_a_role_steer_seats(app: App) -> None:
    with pytest.raises(Refused, match="an operator, or one of the roles po, qa, architect"):
        await steer(app.deliberations, "task-1", "Hurry.", Principal("eve", LOCAL.tenant), key="k")
    await steer(app.deliberations, "task-1", "Hurry.", LOCAL, key="k")
    with pytest.raises(InvalidRequest, match="task_id"):
        await steer(app.deliberations, "task 1!", "Hurry.", LOCAL, key="k")
