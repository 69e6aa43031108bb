"""Asking one agent from the page; a real deliberation service on an in-memory bus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from moothall import config
from moothall.collector.fold import DeliberationState, fold
from moothall.collector.overview import Overview
from moothall.domain.codec import dump
from moothall.domain.event import EventType, new_event
from moothall.domain.ids import LOCAL, TaskId
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.task import DeliberationRequest, Fork
from moothall.orchestrator.request_planning import Defaults
from moothall.orchestrator.service import DeliberationService
from moothall.testing.bus import MemoryBus
from support.browsing import HOSTILE, SHOWN, Browser, serving_page
from support.callers import OTHER, api_dependencies, with_parts
from support.deliberation_service import MemoryDeliberations
from support.story import Remembering

SEAT = "agent-dev-001"


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A signed-in browser, the deliberation service and its log."""

    browser: Browser
    form: str
    deliberations: DeliberationService
    bus: MemoryBus

    async def answer(self, task_id: str, content: str) -> None:
        """Play the council."""
        result = Result(1, SEAT, "dev", 1.0, (), passed_gates=True, proven=False, content=content)
        outcome = Outcome(
            task_id,
            DeliberationStatus.COMPLETED,
            winner_id=SEAT,
            results=(result,),
            final_state="answered",
        )
        await self.bus.put(task_id, dump(outcome))
        await self.bus.publish(new_event(EventType.DELIBERATION_DECIDED, task_id, dump(outcome)))


@pytest.fixture
async def app() -> AsyncIterator[SignedIn]:
    bus = MemoryBus()
    deliberations = DeliberationService(bus, Remembering(), Defaults(config.LimitSettings()))
    dependencies = with_parts(
        api_dependencies(MemoryDeliberations(), bus),
        deliberations=deliberations,
        tasks=Overview(bus, tuple[DeliberationState, ...]),
    )
    async with serving_page(dependencies) as browser:
        yield SignedIn(browser, await browser.sign_in(), deliberations, bus)


async def test_a_question_and_a_follow_up_form_a_conversation(app: SignedIn) -> None:
    empty_page = await app.browser.get("/ask")
    assert (empty_page.status, "Nothing yet." in empty_page.text) == (200, True)
    response = await app.browser.send(
        "/ask", form=app.form, key="first", question="What does add do?", role="qa"
    )
    assert (response.status, response.headers["Location"]) == (303, "/councils/first"), (
        response.text
    )
    assert "Next question" not in (await app.browser.get("/councils/first")).text
    await app.answer("first", HOSTILE)
    page = (await app.browser.get("/councils/first")).text
    assert page.count(SHOWN) == 1
    assert page.index(SHOWN) < page.index("Elapsed"), "the answer comes first"
    assert "Ranking" not in page, "text of one agent has no level of evidence"
    assert "Next question" in page
    assert '<input type="hidden" name="follows" value="first">' in page
    on = {
        "form": app.form,
        "key": "second",
        "question": HOSTILE,
        "follows": "first",
        "role": "qa",
    }
    for _ in range(2):  # a question that is sent twice is asked once
        assert (await app.browser.send("/ask", **on)).headers["Location"] == "/councils/second"
    page = (await app.browser.get("/councils/second")).text
    assert "What does add do?" in page
    assert 'href="/councils/first"' in page
    await app.answer("second", "done")
    lately = (await app.browser.get("/ask")).text
    assert lately.count("<li ") == 2
    assert lately.count(SHOWN) == 1
    assert "continues first" in lately
    state = None
    async for recorded in app.bus.replay():
        if recorded.event.subject == "second":
            state = fold(state, recorded.event)
    assert state is not None
    assert state.requested is not None
    assert (
        state.requested.value.follows,
        "What does add do?" in state.requested.value.context,
    ) == ("first", True)


async def test_a_fork_shows_the_run_it_was_made_from(app: SignedIn) -> None:
    await app.browser.send("/ask", form=app.form, key="first", question="What does add do?")
    turn = {
        "task_id": "first",
        "seat": SEAT,
        "phase": "propose",
        "round": 0,
        "turn": 1,
        "operations": [],
    }
    await app.bus.publish(new_event(EventType.SEAT_TURN, "first", turn))
    fork = await app.deliberations.submit(DeliberationRequest("", "", fork=Fork("first", 1)), LOCAL)
    assert (
        f'Another run of <a href="/councils/first">first</a>, from turn 1 of {SEAT}'
        in (await app.browser.get(f"/councils/{fork.task_id}")).text
    )


async def test_an_impossible_question_is_reported_beside_the_text(app: SignedIn) -> None:
    for fields, message in (
        ({"question": "  "}, "the task is empty"),
        ({"question": "And now?", "follows": "nowhere"}, "no deliberation"),
        ({"question": "x" * 20_001}, "at most 20000"),
        ({"question": "Q", "role": "wizard"}, "unknown role"),
    ):
        response = await app.browser.send("/ask", form=app.form, key="k", **fields)
        assert (response.status, message in response.text) == (400, True), response.text
        assert 'role="alert"' in response.text
        assert fields["question"].strip() in response.text
    assert (await app.browser.send("/ask", form="another", key="k", question="Q")).status == 403


async def test_another_tenants_questions_are_not_visible(app: SignedIn) -> None:
    await app.browser.send("/ask", form=app.form, key="first", question="A secret of mine")
    await app.answer("first", "yes")
    form = await app.browser.sign_in(OTHER)
    assert "A secret of mine" not in (await app.browser.get("/ask")).text
    response = await app.browser.send(
        "/ask", form=form, key="k", question="What did they ask?", follows="first"
    )
    assert (response.status, "no deliberation" in response.text) in {(400, True), (403, False)}
    assert (
        await app.deliberations.result(TaskId("first"), LOCAL)
    ).status is DeliberationStatus.COMPLETED
