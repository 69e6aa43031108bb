"""The form in which a product owner edits tasks: its fields, accepted input and error messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL
from moothall.stories.planner import changeable
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus
from support.browsing import DRAFT, HOSTILE, SHOWN, Browser, Got, serving_page
from support.callers import OTHER, api_dependencies
from support.deliberation_service import MemoryDeliberations


@dataclass(frozen=True, slots=True)
class Story:
    """A signed-in browser, and a story whose tasks can be edited."""

    browser: Browser
    id: str

    async def read_page(self) -> str:
        response = await self.browser.get(f"/stories/{self.id}/plan")
        assert response.status == 200, response.text
        return response.text

    async def send(self, form: str, **fields: str) -> Got:
        named = {
            name.replace("_", "-") if name[-1].isdigit() else name: value
            for name, value in fields.items()
        }
        return await self.browser.send(f"/stories/{self.id}/plan", form=form, **named)

    async def plan(self) -> str:
        return changeable(
            await self.browser.dependencies.stories.board.card(self.id, LOCAL)
        ).plan_id


@pytest.fixture
async def story() -> AsyncIterator[Story]:
    bus = MemoryBus()
    dependencies = api_dependencies(MemoryDeliberations(), bus)
    async with serving_page(dependencies) as browser:
        draft = replace(DRAFT, ac=(DRAFT.ac[0], f"{DRAFT.ac[1]} {HOSTILE}"))
        card = await dependencies.stories.board.create(draft, LOCAL, key="1")
        for event in ("refine", "submit"):
            await dependencies.stories.board.move(card.story.id, event, LOCAL)
        task = {
            "task_id": "task-1",
            "role": "dev",
            "description": HOSTILE,
            "constraints": {"requirements": list(draft.ac)},
        }
        plan = {
            "story_id": card.story.id,
            "plan_id": "plan-0",
            "tasks": [task],
            "publish": True,
            "by": "architects",
        }
        await bus.publish(write(EventType.PLAN_DERIVED, card.story.id, plan))
        yield Story(browser, card.story.id)


async def test_tasks_are_edited_added_and_linked(story: Story) -> None:
    form = await story.browser.sign_in()
    assert (
        f'href="/stories/{story.id}/plan"' in (await story.browser.get(f"/stories/{story.id}")).text
    )
    page = await story.read_page()
    assert page.count(SHOWN) == 2, "a criterion and a task"
    assert page.count("<script") == page.count("<script src=")
    assert page.count("<fieldset") == 2, "the task, and an empty form for another"
    export_task = {"description_1": "Write CSV.", "role_1": "dev", "criteria_1": "1", "after_1": ""}
    test_task = {"description_2": "Test it.", "role_2": "qa", "criteria_2": "2; 1", "after_2": "1"}
    saved = await story.send(form, plan_id="plan-0", do="more", **export_task, **test_task)
    assert (saved.status, saved.headers["Location"]) == (303, f"/stories/{story.id}/plan")
    page = await story.read_page()
    assert page.count("<fieldset") == 3
    assert 'name="criteria-2" value="1, 2"' in page
    assert 'name="after-2" value="1"' in page
    story_page = (await story.browser.get(f"/stories/{story.id}")).text
    assert "Changed by you, originally divided by" in story_page
    assert story_page.count("<rect") == 2
    removed = await story.send(
        form,
        plan_id=await story.plan(),
        **export_task,
        **test_task | {"after_2": ""},
        **{"remove-1": "yes"},
    )
    assert (removed.status, removed.headers["Location"]) == (303, f"/stories/{story.id}")
    assert (await story.read_page()).count("<fieldset") == 2


async def test_errors_are_reported_and_the_written_text_stays(story: Story) -> None:
    form = await story.browser.sign_in()
    for fields, message in (
        ({"description_1": "Mine.", "criteria_1": "1"}, "no task fulfils criterion 2"),
        (
            {"description_1": "Mine.", "criteria_1": "one"},
            "as numbers separated by commas, not",
        ),
        (
            {"description_1": "Mine.", "criteria_1": "1,2", "after_1": "1"},
            "depend on each other: 1",
        ),
        ({"description_1": "Mine.", "criteria_1": "1,2", "role_1": "boss"}, "unknown role"),
        ({"description_1": "  "}, "no task is left"),
    ):
        response = await story.send(form, plan_id="plan-0", **{"role_1": "dev"} | fields)
        assert (response.status, message in response.text) == (400, True), response.text
        assert ("Mine." in response.text) == ("Mine." in fields["description_1"])
    assert await story.plan() == "plan-0"


async def test_a_late_writer_gets_a_conflict_and_keeps_the_text(story: Story) -> None:
    form = await story.browser.sign_in()
    fields = {"role_1": "dev", "criteria_1": "1, 2"}
    assert (
        await story.send(form, plan_id="plan-0", description_1="First.", **fields)
    ).status == 303
    late = await story.send(form, plan_id="plan-0", description_1="Second.", **fields)
    assert (
        late.status,
        "changed by local since you saw them" in late.text,
        "Second." in late.text,
    ) == (409, True, True)


async def test_plan_changes_by_others_and_during_build_are_refused(
    story: Story,
) -> None:
    form = await story.browser.sign_in()
    fields = {"description_1": "x", "role_1": "dev", "criteria_1": "1, 2"}
    assert (await story.send("other", plan_id="plan-0", **fields)).status == 403
    await story.browser.dependencies.stories.board.move(story.id, "accept_design", LOCAL)
    assert (await story.send(form, plan_id="plan-0", **fields)).status == 400
    assert (await story.browser.get(f"/stories/{story.id}/plan")).status == 400
    assert "Edit tasks" not in (await story.browser.get(f"/stories/{story.id}")).text
    await story.browser.sign_in(OTHER)
    assert (await story.browser.get(f"/stories/{story.id}/plan")).status == 404
