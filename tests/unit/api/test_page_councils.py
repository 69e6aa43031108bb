"""The page of a council: lanes while it runs, then the ranking with its evidence; a real
deliberation service on an in-memory bus.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from moothall import config
from moothall.api.web.charts import draw
from moothall.api.web.rendering import MAX_DIFF_LINES, span
from moothall.collector.overview import Overview
from moothall.domain.chat import FunctionCall, Message, Prompts
from moothall.domain.codec import dump
from moothall.domain.event import Channel, EventType
from moothall.domain.evidence import Evidence, Verdict
from moothall.domain.ids import LOCAL, TaskId
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.plan import LineComment
from moothall.domain.proposal import SeatOutcome, SeatStatus
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.orchestrator.request_planning import Defaults
from moothall.orchestrator.service import DeliberationService
from moothall.stories.board import Board
from moothall.stories.task_history import RoundTask
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus
from support.browsing import CRITERIA, DRAFT, HOSTILE, SHOWN, Browser, form_of, serving_page
from support.callers import OTHER, TOKENS, api_dependencies, with_parts
from support.deliberation_service import MemoryDeliberations
from support.story import Remembering

TASK, SEAT = "task-1", "agent-dev-001"


@dataclass(frozen=True, slots=True)
class App:
    """A signed-in browser, and the log of its server."""

    browser: Browser
    bus: MemoryBus

    async def publish(self, kind: EventType, **data: Any) -> None:
        count = self.bus.__dict__.setdefault("published", [])
        count.append(kind)
        await self.bus.publish(
            write(kind, TASK, {"task_id": TASK, "seat": SEAT, **data}, ordinal=len(count))
        )

    async def read_page(self) -> str:
        response = await self.browser.get(f"/councils/{TASK}")
        assert response.status == 200, response.text
        return response.text


@pytest.fixture
async def app() -> AsyncIterator[App]:
    bus = MemoryBus()
    deliberations = DeliberationService(bus, Remembering(), Defaults(config.LimitSettings()))
    dependencies = with_parts(
        api_dependencies(MemoryDeliberations(), bus),
        deliberations=deliberations,
        tasks=Overview(bus, tuple),
    )
    async with serving_page(dependencies) as browser:
        await browser.sign_in()
        await deliberations.submit(
            DeliberationRequest("Say hello", "dev", task_id=TASK, num_agents=2), LOCAL
        )
        yield App(browser, bus)


async def test_a_running_council_has_a_lane_per_seat(app: App) -> None:
    page = await app.read_page()
    assert "asked for" in page
    assert page.count("Waiting") == 2
    await app.publish(EventType.DELIBERATION_STARTED)
    await app.publish(EventType.SEAT_STARTED, approach=HOSTILE)
    await app.publish(
        EventType.MODEL_CALLED,
        call_id="c",
        phase="propose",
        usage={"prompt_tokens": 900, "calls": 1},
        answer="{}",
    )
    operations = [{"tool": HOSTILE, "status": "success"}]
    await app.publish(
        EventType.SEAT_TURN,
        turn=1,
        operations=operations,
        checks={HOSTILE: "failed"},
        thought=HOSTILE,
    )
    page = await app.read_page()
    assert "proposing" in page
    assert page.count(SHOWN) == 4
    assert page.count("<script") == page.count(" defer></script>")  # only our own
    assert re.search(r"<dt>Tokens</dt><dd>900 of [\d,]+</dd>", page)
    assert "waits for the model" in page
    assert "Latest message" in page
    assert f'data-changes="/councils/{TASK}/changes"' in page


async def test_its_events_are_sent_at_once(app: App) -> None:
    async with (
        asyncio.timeout(10),
        app.browser.http.get(f"{app.browser.url}/councils/{TASK}/changes") as stream,
    ):
        assert (await stream.content.readline()).startswith(b":")
        await app.publish(EventType.DELIBERATION_STARTED)
        while not (line := await stream.content.readline()).startswith(b"data:"):
            assert not line.strip() or line.startswith((b":", b"id:"))


async def test_partial_replies_are_published_to_their_own_tenant(app: App) -> None:
    assert f'data-growing="/councils/{TASK}/text"' in await app.read_page()
    assert f'data-grows="{SEAT}" hidden' in await app.read_page()
    path = f"{app.browser.url}/councils/{TASK}/text"
    async with (
        asyncio.timeout(10),
        app.browser.http.get(path) as stream,
        asyncio.TaskGroup() as group,
    ):

        async def write() -> None:
            while True:  # only connected listeners receive partial replies
                await app.bus.signal(
                    Channel.GROWING.of(TASK), {"task_id": TASK, "seat": SEAT, "text": HOSTILE}
                )
                await asyncio.sleep(0.01)

        writing = group.create_task(write())
        while not (line := await stream.content.readline()).startswith(b"data:"):
            assert not line.strip() or line.startswith((b":", b"id:"))
        writing.cancel()
    update = json.loads(line.removeprefix(b"data:"))
    assert update == {"seat": SEAT, "text": "<script>alert(1)</script>⟨U+202E⟩gnp.exe"}, (
        "plain text, with invisible characters made visible"
    )
    outcome = Outcome(TASK, DeliberationStatus.COMPLETED)
    await app.bus.put(TASK, dump(outcome))
    async with asyncio.timeout(10), app.browser.http.get(path) as stream:
        assert (await stream.content.read()).strip() == b": what seats write"
    assert 'data-growing=""' in await app.read_page()
    await app.browser.sign_in(OTHER)
    assert (await app.browser.get(f"/councils/{TASK}/text")).status == 404


async def test_an_ended_council_shows_the_ranking_with_evidence_and_failed_seats(
    app: App,
) -> None:
    evidence = Evidence(
        "tests",
        Verdict.FAILED,
        passed=2,
        failed=1,
        output=HOSTILE,
        red=(HOSTILE,),
        why="it stopped",
    )
    result = Result(
        1,
        SEAT,
        "dev",
        0.5,
        ("A reason.",),
        passed_gates=False,
        proven=False,
        evidence=(evidence,),
        diff=f"+{HOSTILE}",
    )
    late = SeatOutcome(
        "agent-dev-002", SeatStatus.LATE, "DEADLINE_EXCEEDED", "the seat was not done in time"
    )
    outcome = Outcome(
        TASK,
        DeliberationStatus.COMPLETED,
        results=(result,),
        seats=(late,),
        error_message="nobody passed",
        duration_ms=65_000,
    )
    await app.publish(EventType.SEAT_STARTED)
    await app.publish(EventType.SEAT_FAILED, error={"code": "OUT_OF_TURNS", "message": HOSTILE})
    await app.bus.put(TASK, dump(outcome))
    await app.publish(EventType.DELIBERATION_DECIDED, **dump(outcome))
    page = await app.read_page()
    assert page.count(SHOWN) == 4
    for words in (
        "A reason.",
        "2 passed, 1 failed",
        "it stopped",
        "1 min 05 s",
        "nobody passed",
        "<strong>Late</strong>",
        "the seat was not done in time",
        'data-every="0"',
    ):
        assert words in page


async def test_the_reader_is_asked_about_answers_ordered_only_by_hash(app: App) -> None:
    def result(rank: int, diff: str, *, undecided: bool) -> Result:
        content = f"Adds {diff}, {HOSTILE}"
        return Result(
            rank,
            f"agent-dev-00{rank}",
            "dev",
            0.5,
            (),
            passed_gates=True,
            proven=False,
            content=content,
            diff=diff,
            undecided=undecided,
        )

    answer, same_answer, other_answer = (
        result(rank, diff, undecided=True) for rank, diff in ((1, "x"), (2, "x"), (3, "y"))
    )
    for results, is_asked in (
        ((answer, same_answer), False),
        ((answer, same_answer, other_answer), True),
        ((answer, replace(other_answer, undecided=False)), False),
    ):
        await app.bus.put(TASK, dump(Outcome(TASK, DeliberationStatus.COMPLETED, results=results)))
        page = await app.read_page()
        assert ("Which answer is correct?" in page) is is_asked
        if is_asked:
            assert "<strong>agent-dev-001, agent-dev-002</strong>: Adds x" in page
            assert "<strong>agent-dev-003</strong>: Adds y" in page
            assert HOSTILE not in page


DIFF = f"--- a/u.py\n+++ b/u.py\n@@ -1 +1,2 @@\n same\n+{HOSTILE}\n"


async def _story_with_a_diff(app: App) -> str:
    """Create the story of the task, and decide the task."""
    story_id = (await app.browser.dependencies.stories.board.create(DRAFT, LOCAL, key="1")).story.id
    result = Result(1, SEAT, "dev", 0.5, (), passed_gates=True, proven=True, diff=DIFF)
    outcome = Outcome(TASK, DeliberationStatus.COMPLETED, story_id=story_id, results=(result,))
    await app.bus.put(TASK, dump(outcome))
    return story_id


async def test_a_large_diff_is_sent_to_the_browser_in_limited_parts(app: App) -> None:
    diff = "--- a/a\n+++ b/a\n@@ -0,0 +1,9000 @@\n" + "+x\n" * 9_000
    result = Result(1, SEAT, "dev", 0.5, (), passed_gates=True, proven=True, diff=diff)
    outcome = Outcome(TASK, DeliberationStatus.COMPLETED, role="dev", results=(result,))
    await app.bus.put(TASK, dump(outcome))
    council_page = await app.read_page()
    assert council_page.count("<code>+x</code>") == MAX_DIFF_LINES - 1, (
        "the first line is that of a hunk"
    )
    assert f"Show the next {MAX_DIFF_LINES} of 9,001 lines" in council_page
    part = (await app.browser.get(f"/councils/{TASK}/lines?rank=1&file=1&from=8801")).text
    assert (part.count("<code>+x</code>"), "Show" in part) == (200, False)
    page = (await app.browser.get(f"/councils/{TASK}?rank=1&file=1&from=8801")).text
    assert page.count("<code>+x</code>") == 200
    assert "Show the file from its first line" in page
    for place in ("rank=1&file=2", "rank=2&file=1", "rank=x&file=", "file=0&rank=1"):
        assert (await app.browser.get(f"/councils/{TASK}/lines?{place}")).status == 404, place


async def test_a_large_diff_is_shown_file_by_file(app: App) -> None:
    diff = "".join(
        f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n@@ -0,0 +1,1500 @@\n"
        + f"+{name}\n" * 1500
        for name in ("one.py", "two.py")
    )
    result = Result(1, SEAT, "dev", 0.5, (), passed_gates=True, proven=True, diff=diff)
    outcome = Outcome(
        TASK,
        DeliberationStatus.COMPLETED,
        story_id="issue-7",
        role="dev",
        winner_id=SEAT,
        results=(result,),
    )
    await app.bus.put(TASK, dump(outcome))
    page = await app.read_page()
    assert "?on=1.5#" not in page, "an issue of a forge is not a story of the board"
    counts = page.count("<code>+one.py</code>"), page.count("<code>+two.py</code>")
    assert counts == (MAX_DIFF_LINES - 1, 0)
    assert f"Show {MAX_DIFF_LINES} of 1,501 lines" in page
    for query, count in (("rank=1&file=2", MAX_DIFF_LINES - 1), ("on=1.3000", 101)):
        text = (await app.browser.get(f"/councils/{TASK}?{query}")).text
        assert text.count("<code>+two.py</code>") == count, query
    assert 'id="line-1.3000"' in text


async def test_a_comment_on_a_line_that_the_diff_names(app: App) -> None:
    story_id = await _story_with_a_diff(app)
    page = await app.read_page()
    assert f'href="/councils/{TASK}?on=1.5#line-1.5"' in page
    assert "?on=1.1#" not in page, "a hunk header cannot be commented on"
    open_form = (await app.browser.get(f"/councils/{TASK}?on=1.5")).text
    form = form_of(open_form)
    assert "Requested change to this line" in open_form
    path = f"/councils/{TASK}/remark"
    response = await app.browser.send(
        path, form=form, key="k", on="1.5", comment=f"Say it in French. {HOSTILE}"
    )
    assert (response.status, response.headers["Location"]) == (
        303,
        f"/councils/{TASK}?rank=1&file=1#line-1.5",
    )
    (card,) = await app.browser.dependencies.stories.board.cards(LOCAL)
    assert card.remarks == (
        LineComment(
            TaskId(TASK), "u.py", 2, f"+{HOSTILE}", f"Say it in French. {HOSTILE}", LOCAL.name
        ),
    )
    assert f"Say it in French. {SHOWN}" in await app.read_page()
    assert "u.py, line 2" in (await app.browser.get(f"/stories/{story_id}")).text
    for on in ("1.1", "1.99", "2.5", "x", "", "1.5.5"):
        assert (await app.browser.send(path, form=form, key="l", on=on, comment="x")).status == 400
    assert (
        await app.browser.send(path, form="other", key="m", on="1.5", comment="x")
    ).status == 403


async def test_a_running_council_is_cancelled_by_a_user_with_a_role(app: App) -> None:
    form = form_of(await app.read_page())
    path = f"/councils/{TASK}/cancel"
    assert (await app.browser.send(path, form="other")).status == 403
    assert "Cancel permanently" in await app.read_page()
    assert (await app.browser.send(path, form=form, reason="too dear")).status == 303
    assert "stopping" in await app.read_page()
    events = [recorded.event async for recorded in app.bus.replay()]
    (event,) = [event for event in events if event.type is EventType.DELIBERATION_CANCELLED]
    assert (event.data["reason"], event.data["by"]) == ("too dear", LOCAL.name)
    outcome = Outcome(TASK, DeliberationStatus.CANCELLED, final_state="cancelled")
    await app.bus.put(TASK, dump(outcome))
    assert "Cancelled</strong> · <span" in await app.read_page(), "the state is shown once"


async def test_a_council_is_paused_and_resumed_by_a_button(app: App) -> None:
    await app.publish(EventType.SEAT_STARTED, approach="")
    form = form_of(await app.read_page())
    path = f"/councils/{TASK}/pause"
    assert (await app.browser.send(path, form="other", paused="true")).status == 403
    assert ">Pause<" in await app.read_page()
    assert (await app.browser.send(path, form=form, paused="true")).status == 303
    page = await app.read_page()
    assert ">Resume<" in page
    assert "· paused ·" in page
    assert "paused" in page
    assert (await app.browser.send(path, form=form, paused="false")).status == 303
    page = await app.read_page()
    assert ">Pause<" in page
    assert "waits for the model" in page
    event_types = [recorded.event.type async for recorded in app.bus.replay()]
    assert event_types[-2:] == [EventType.DELIBERATION_PAUSED, EventType.DELIBERATION_RESUMED]


async def test_an_agents_description_of_itself_is_shown(app: App) -> None:
    assert "CPU of its tools" not in await app.read_page()
    metrics = {
        "turns": 3,
        "tool_calls": 4,
        "checks": 2,
        "checks_passed": 1,
        "cpu_ms": 61_000,
        "max_rss_bytes": 42_000_000,
    }
    await app.publish(
        EventType.AGENT_PROGRESS,
        agent_id=TASK,
        agent="greeting",
        progress=0.5,
        current_task="at work",
        metrics=metrics,
    )
    page = await app.read_page()
    assert "<dt>Tool calls</dt><dd>4</dd>" in page
    assert "<dt>Checks passed</dt><dd>1 of 2</dd>" in page
    assert "<dd>42 MB</dd>" in page
    assert "greeting is at 50%" in page
    await app.publish(
        EventType.AGENT_PROGRESS,
        agent_id=TASK,
        progress="<b>",
        current_task="<i>",
        metrics={"turns": "<script>"},
    )
    assert "<script>" not in (await app.read_page()).replace("<script src", "")


async def test_seats_are_steered_and_the_receivers_are_shown(app: App) -> None:
    form = form_of(await app.read_page())
    path = f"/councils/{TASK}/steer"
    assert (await app.browser.send(path, form="other", key="k", message="x")).status == 403
    assert (await app.browser.send(path, form=form, key="k", message=" ")).status == 400
    assert (await app.browser.send(path, form=form, key="k", message="x" * 4_001)).status == 400
    for _ in range(2):  # a message that a browser sends twice is stored once
        assert (await app.browser.send(path, form=form, key="k", message=HOSTILE)).status == 303
    (event,) = [
        recorded.event
        async for recorded in app.bus.replay()
        if recorded.event.type is EventType.DELIBERATION_STEERED
    ]
    page = await app.read_page()
    assert "not received yet" in page
    assert f"<strong>{LOCAL.name}</strong>: {SHOWN}" in page
    await app.publish(
        EventType.MODEL_CALLED, call_id="c", phase="propose", usage={}, answer="{}", told=[event.id]
    )
    assert f"received by {SEAT}" in await app.read_page()
    outcome = Outcome(TASK, DeliberationStatus.COMPLETED)
    await app.bus.put(TASK, dump(outcome))
    await app.publish(EventType.DELIBERATION_DECIDED, **dump(outcome))
    ended_page = await app.read_page()
    assert "Message to the seats" not in ended_page
    assert _live_parts(page) <= _live_parts(ended_page), "an open page replaces the forms too"
    response = await app.browser.send(path, form=form, key="l", message="too late")
    assert (response.status, "has ended" in response.text) == (400, True)


def _live_parts(page: str) -> set[str]:
    """Return the parts of a page that its script replaces."""
    return set(re.findall(r'data-live="([^"]+)"', page))


async def test_a_user_without_a_role_can_only_look(app: App) -> None:
    form = await app.browser.sign_in(OTHER)
    dependencies = app.browser.dependencies
    await dependencies.deliberations.submit(
        DeliberationRequest("Say hello", "dev", task_id=TASK), TOKENS[OTHER]
    )
    assert "Cancel permanently" not in await app.read_page()
    response = await app.browser.send(f"/councils/{TASK}/cancel", form=form)
    assert (response.status, "one of the roles po, qa, architect" in response.text) == (403, True)


async def test_another_tenants_council_is_not_found(app: App) -> None:
    await app.browser.sign_in(OTHER)
    for path in (f"/councils/{TASK}", f"/councils/{TASK}/changes"):
        assert (await app.browser.get(path)).status == 404


async def test_a_story_shows_the_results_and_the_graph_of_its_tasks(app: App) -> None:
    board = Board(app.bus)
    story_id = (await board.create(DRAFT, LOCAL, key="1")).story.id
    tasks = [
        {"task_id": TASK, "role": "dev", "description": HOSTILE},
        {"task_id": "task-2", "role": "qa", "description": CRITERIA[0], "dependencies": [TASK]},
    ]
    plan = {
        "story_id": story_id,
        "plan_id": "plan-1",
        "tasks": tasks,
        "publish": True,
        "by": "roles",
    }
    derived = write(EventType.PLAN_DERIVED, story_id, plan)
    await app.bus.publish(derived)
    path = f"/stories/{story_id}"
    assert (await app.browser.get(path)).text.count('<strong class="open">Waits</strong>') == 2
    end = {
        "story_id": story_id,
        "derivation_id": derived.id,
        "status": "failed",
        "tasks": {TASK: "NO_WINNER", "task-2": "SKIPPED"},
    }
    await app.bus.publish(write(EventType.PLAN_FINISHED, story_id, end))
    page = (await app.browser.get(path)).text
    assert '<strong class="lost">No winner</strong>' in page
    assert '<strong class="lost">Skipped</strong>' in page
    assert f'href="/councils/{TASK}"' in page
    assert 'href="/councils/task-2"' not in page, "no council has started"
    assert page.count("<rect") == 2
    assert page.count('class="arrow"') == 1
    assert "style=" not in page
    assert SHOWN in page


async def _build_story(app: App, board: Board, passed: int = 3) -> str:
    """Move a story to test, checked by the council of TASK with this many test cases."""
    story_id = (await board.create(DRAFT, LOCAL, key="1")).story.id
    await board.move(story_id, "refine", LOCAL)
    await board.move(story_id, "submit", LOCAL)
    constraints = {"requirements": list(CRITERIA)}
    tasks = [{"task_id": TASK, "role": "dev", "description": "x", "constraints": constraints}]
    plan = {"story_id": story_id, "plan_id": "plan-1", "tasks": tasks, "by": "architects"}
    derived = write(EventType.PLAN_DERIVED, story_id, plan)
    await app.bus.publish(derived)
    await board.move(story_id, "accept_design", LOCAL)
    end = {"story_id": story_id, "derivation_id": derived.id, "status": "completed"}
    await app.bus.publish(write(EventType.PLAN_FINISHED, story_id, end))
    moved = {"story_id": story_id, "event": "build", "to_state": "test", "roles": ["system"]}
    await app.bus.publish(write(EventType.STORY_TRANSITIONED, story_id, moved))
    card = await board.card(story_id, LOCAL)
    check = {"story_id": story_id, "moved": card.moved, "task_id": TASK, "status": "passed"}
    await app.bus.publish(write(EventType.STORY_CHECKED, story_id, check))
    tests = Evidence("tests", Verdict.PASSED, passed=passed)
    result = Result(
        1, SEAT, "dev", 0.5, (), passed_gates=True, proven=False, evidence=(tests,), diff=DIFF
    )
    outcome = Outcome(
        TASK, DeliberationStatus.COMPLETED, story_id=story_id, winner_id=SEAT, results=(result,)
    )
    await app.bus.put(TASK, dump(outcome))
    return story_id


async def test_a_result_can_be_reviewed_until_it_is_sent_back(app: App) -> None:
    board = Board(app.bus)
    story_id = await _build_story(app, board)
    path = f"/stories/{story_id}"
    page = (await app.browser.get(path)).text
    for words in (
        "<dt>Tests passed</dt><dd>3 of 3</dd>",
        "Unproven:",
        "no test that failed before",
    ):
        assert words in page, words
    review = await app.read_page()
    assert re.search(r'name="event" value="accept_test">.* Accept</button>', review)
    assert "Send back (0 comments)" in review
    form = form_of(review)
    await app.browser.send(
        f"/councils/{TASK}/remark", form=form, key="k", on="1.5", comment="In French."
    )
    assert "Send back (1 comment)" in await app.read_page()
    response = await app.browser.send(f"{path}/move", form=form, event="reject_test")
    assert (response.status, response.headers["Location"]) == (303, path)
    assert "Tests passed</dt>" not in (await app.browser.get(path)).text, "it is built again"
    assert "Send back" not in await app.read_page()


async def test_a_check_that_counts_no_tests_is_reported_as_passed(app: App) -> None:
    story_id = await _build_story(app, Board(app.bus), passed=0)
    page = (await app.browser.get(f"/stories/{story_id}")).text
    assert "<dt>Tests passed</dt><dd>the check passed" in page
    assert "no test<" not in page


def test_tasks_are_drawn_below_their_dependencies() -> None:
    drawn = draw(
        [
            RoundTask(1, TaskId("a"), "dev", ""),
            RoundTask(2, TaskId("b"), "dev", ""),
            RoundTask(3, TaskId("c"), "qa", "", (1, 2)),
            RoundTask(4, TaskId("d"), "qa", "", (1, 3, 9)),
        ]
    )
    rows = [box.y for box in drawn.boxes]
    assert rows[0] == rows[1] < rows[2] < rows[3]
    assert drawn.boxes[0].x != drawn.boxes[1].x
    assert len(drawn.arrows) == 4
    assert all(
        box.x >= 0 and box.x + 132 <= drawn.width and box.y + 52 <= drawn.height
        for box in drawn.boxes
    )
    assert draw([]).boxes == ()


def test_times_are_shown_in_words() -> None:
    assert [span(number) for number in (-1, 7.9, 65, 7384)] == [
        "0 s",
        "7 s",
        "1 min 05 s",
        "2 h 03 min",
    ]


async def test_refused_tool_calls_are_listed_with_their_reasons(app: App) -> None:
    await app.publish(EventType.SEAT_STARTED)
    assert "Refused tool calls" not in await app.read_page(), "no call was refused"
    refused = [
        {"tool": "web.get", "status": "blocked", "reason": "the policy denies it"},
        {"tool": "db.write", "status": "parked", "reason": f"the role dev may not {HOSTILE}"},
        "malformed",
    ]
    await app.publish(EventType.SEAT_TURN, operations=[], refused_calls=refused)
    page = await app.read_page()
    assert re.findall(r"<li><code>(.*?)</code> <strong class=\"lost\">(\w+)", page)[:2] == [
        ("web.get", "blocked"),
        ("db.write", "parked"),
    ]
    assert "the policy denies it" in page
    assert f"the role dev may not {SHOWN}" in page
    assert 'href="/system/parked"' in page


async def test_a_step_has_its_prompt_reply_and_tool_output(app: App) -> None:
    await app.publish(EventType.SEAT_STARTED)
    prompts = Prompts()
    first = (Message("system", "Be brief."), Message("user", f"Say hello. {HOSTILE}"))
    for turn, messages in enumerate(
        (
            first,
            (
                *first,
                Message("assistant", "", (FunctionCall("c", "code.shell", '{"command": "ls"}'),)),
                Message("tool", "greeting.py", call_id="c"),
            ),
        ),
        1,
    ):
        await app.publish(
            EventType.MODEL_CALLED,
            call_id=f"{TASK}/{SEAT}/propose/0.{turn}",
            phase="propose",
            duration_ms=1,
            answer=f"reply {turn}" * 300,
            prompt=prompts.record(f"{SEAT}/propose/0.{turn}", messages),
            calls=[{"name": "code.shell", "arguments": "ls"}],
        )
        await asyncio.sleep(0.06)  # shorter steps of tools are left out
        await app.publish(
            EventType.SEAT_TURN, operations=[{"tool": "code.shell", "status": "success"}]
        )
    first_step = await app.browser.get(f"/councils/{TASK}/steps/{SEAT}/0")
    assert first_step.status == 200
    assert SHOWN in first_step.text
    assert "reply 1" * 300 in first_step.text
    tools = await app.browser.get(f"/councils/{TASK}/steps/{SEAT}/1?part")
    assert "code.shell: success" in tools.text
    assert "greeting.py" in tools.text
    assert "<html" not in tools.text
    third_step = await app.browser.get(f"/councils/{TASK}/steps/{SEAT}/2?part")
    assert re.findall(r'<details class="message"( open)?><summary>(\w+)', third_step.text) == [
        ("", "System"),
        ("", "User"),
        (" open", "Assistant"),
        (" open", "Tool"),
    ]
    for path in (f"{SEAT}/9", f"{SEAT}/x", f"{SEAT}/²", "nobody/0"):
        assert (await app.browser.get(f"/councils/{TASK}/steps/{path}")).status == 404


async def test_the_reason_of_the_model_choice_is_above_the_timeline(app: App) -> None:
    deliberations = DeliberationService(app.bus, Remembering(), Defaults(config.LimitSettings()))
    request = DeliberationRequest(
        "Say hello",
        "dev",
        task_id="chosen",
        model="auto",
        repository=RepositoryRef("r", ref="a" * 40),
    )
    await deliberations.submit(request, LOCAL)
    await app.bus.publish(
        write(
            EventType.SEAT_FAILED,
            "chosen",
            {"task_id": "chosen", "seat": SEAT, "error": {"code": "X"}},
            time="2026-01-01T00:00:00Z",
        )
    )
    page = (await app.browser.get("/councils/chosen")).text
    assert "Models of the seats: auto: nothing to learn from yet" in page
    assert "Models of the seats" not in await app.read_page()
