"""Stories over `/api/v1`: the same board, coach and life cycle as over gRPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.task import DeliberationRequest
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus
from support.callers import OTHER, TOKEN, api_dependencies
from support.deliberation_service import MemoryDeliberations
from support.rest import Web, problem, serving_http

STORIES = "/api/v1/stories"
STORY: dict[str, Any] = {
    "title": "Export invoices as CSV",
    "brief": (
        "As an accountant, I want the invoices of a month as a CSV file, so that I can book them."
    ),
    "ac": [
        "Given two invoices, when May is exported, then the file has two lines",
        "Given none, when June is exported, then the answer is 404",
    ],
}


@pytest.fixture
async def web(deliberations: MemoryDeliberations) -> AsyncIterator[Web]:
    async with serving_http(api_dependencies(deliberations)) as server:
        yield server


async def create_story(web: Web, token: str = TOKEN, **fields: Any) -> str:
    answer = await web("POST", STORIES, STORY | fields, token=token)
    assert answer.status == 201, answer.json
    assert answer.headers["Location"] == f"{STORIES}/{answer.json['story_id']}"
    return str(answer.json["story_id"])


async def test_a_story_is_created_moved_shown_and_commented_on(web: Web) -> None:
    story = await create_story(web)
    for event, state in (("refine", "draft"), ("submit", "design")):
        moved = await web("POST", f"{STORIES}/{story}/transitions", {"event": event})
        assert (moved.status, moved.json["state"], moved.json["blocked"]) == (200, state, False)
    blocked = await web("POST", f"{STORIES}/{story}/transitions", {"event": "accept_design"})
    assert (blocked.json["state"], blocked.json["blocked"], blocked.json["reason"]) == (
        "design",
        True,
        "its tasks are not derived yet",
    )
    hostile = "<script>alert(1)</script>\u202e"
    assert (await web("POST", f"{STORIES}/{story}/comments", {"comment": hostile})).status == 204
    story_response = await web("GET", f"{STORIES}/{story}")
    assert (
        story_response.json["story"]["title"],
        story_response.json["ac"],
        story_response.json["plan_json"],
    ) == (
        STORY["title"],
        STORY["ac"],
        "",
    )
    assert story_response.headers["Content-Type"].startswith(
        "application/json"
    )  # never rendered as a page
    assert story_response.headers["X-Content-Type-Options"] == "nosniff"
    assert [event["type"].rpartition(".")[2] for event in story_response.json["history"]] == [
        "created",
        *["transitioned"] * 2,
        "commented",
    ]
    assert story_response.json["history"][-1]["data"]["comment"] == hostile
    assert [(move["event"], move["missing"]) for move in story_response.json["moves"]] == [
        ("reject_design", ""),
        ("accept_design", "its tasks are not derived yet"),
        ("stop", ""),
    ]
    listed = await web("GET", STORIES)
    assert listed.json["stories"] == [story_response.json["story"]]


async def test_an_idempotency_key_names_one_story_of_its_caller(web: Web) -> None:
    async def create(title: str, token: str = TOKEN) -> Any:
        return await web(
            "POST",
            STORIES,
            STORY | {"title": title},
            token=token,
            headers={"Idempotency-Key": "k-1"},
        )

    first, repeated = await create("One"), await create("One")
    assert (repeated.status, repeated.json) == (201, first.json)
    assert problem(await create("Another"))[:2] == (409, "ALREADY_EXISTS")
    assert (await create("One", OTHER)).json["story_id"] != first.json["story_id"]
    too_long = await web("POST", STORIES, STORY, headers={"Idempotency-Key": "k" * 201})
    assert "1 to 200" in problem(too_long)[2]


async def test_a_transition_from_an_outdated_state_is_refused_with_the_state(web: Web) -> None:
    story = await create_story(web)
    etag = (await web("GET", f"{STORIES}/{story}")).headers["ETag"]
    path = f"{STORIES}/{story}/transitions"
    first, second = await asyncio.gather(
        *(
            web("POST", path, {"event": "refine", "comment": name}, headers={"If-Match": etag})
            for name in ("a", "b")
        )
    )
    refused, won = sorted((first, second), key=lambda answer: answer.status, reverse=True)
    assert (won.status, won.json["state"]) == (200, "draft")
    status, code, detail = problem(refused)
    assert (status, code) == (409, "OVERTAKEN")
    assert "is in draft now" in detail
    assert problem(await web("POST", path, {"event": "submit"}, headers={"If-Match": "*"}))[:2] == (
        400,
        "INVALID_REQUEST",
    )
    assert problem(await web("POST", path, {"event": "submit", "story_id": "story-2"}))[:2] == (
        400,
        "INVALID_REQUEST",
    )


async def test_a_transition_is_refused_if_a_comment_was_added_since(web: Web) -> None:
    story = await create_story(web)
    etag = (await web("GET", f"{STORIES}/{story}")).headers["ETag"]
    assert (await web("POST", f"{STORIES}/{story}/comments", {"comment": "wait"})).status == 204
    late = await web(
        "POST", f"{STORIES}/{story}/transitions", {"event": "refine"}, headers={"If-Match": etag}
    )
    assert problem(late)[0] == 409
    assert (await web("GET", f"{STORIES}/{story}")).json["story"]["state"] == "backlog"


async def test_a_comment_on_a_line_reaches_the_seats_once_per_key(
    web: Web, deliberations: MemoryDeliberations
) -> None:
    story, task = await create_story(web), "/api/v1/deliberations/task-1"
    await deliberations.submit(DeliberationRequest("do it", "dev", task_id="task-1"), LOCAL)
    for _ in range(2):
        words = {"message": "In French."}
        assert (
            await web("POST", f"{task}/steer", words, headers={"Idempotency-Key": "k"})
        ).status == 204
    diff = "--- a/u.py\n+++ b/u.py\n@@ -0,0 +1 @@\n+new\n"
    result = Result(1, "agent-dev-001", "dev", 0.5, (), passed_gates=True, proven=True, diff=diff)
    await deliberations.decide(
        Outcome("task-1", DeliberationStatus.COMPLETED, story_id=story, results=(result,))
    )
    line_comment = {
        "comment": "Say it in French.",
        "on": {"task_id": "task-1", "path": "u.py", "line": 1},
    }
    for _ in range(2):
        assert (
            await web(
                "POST",
                f"{STORIES}/{story}/comments",
                line_comment,
                headers={"Idempotency-Key": "k"},
            )
        ).status == 204
    history = (await web("GET", f"{STORIES}/{story}")).json["history"]
    (event,) = [event["data"] for event in history if event["type"] == "moothall.story.commented"]
    assert (event["path"], event["line"], event["quoted"]) == ("u.py", 1, "+new")
    comment = {"comment": "x", "on": {"task_id": "task-1", "path": "u.py", "line": 2}}
    assert problem(await web("POST", f"{STORIES}/{story}/comments", comment))[0] == 400
    assert (
        problem(await web("POST", f"{task}/steer", {"message": "x", "task_id": "task-2"}))[0] == 400
    )
    steering_events = [event.data async for event in _steering_events(deliberations)]
    assert len({event["key"] for event in steering_events}) == 1, (
        "both requests have the same key, so the deliberation service treats them as one"
    )


async def _steering_events(deliberations: MemoryDeliberations) -> AsyncIterator[Any]:
    async for recorded in deliberations.watch("task-1", 0, LOCAL):
        if recorded.event.type is EventType.DELIBERATION_STEERED:
            yield recorded.event


async def test_tasks_are_changed_before_they_start_and_a_late_change_gets_409(
    deliberations: MemoryDeliberations,
) -> None:
    bus = MemoryBus()
    async with serving_http(api_dependencies(deliberations, bus)) as web:
        story = await create_story(web)
        path = f"{STORIES}/{story}/plan"
        assert (await web("GET", path)).json == {"json": "", "plan_id": "", "tasks": []}
        for event in ("refine", "submit"):
            await web("POST", f"{STORIES}/{story}/transitions", {"event": event})
        plan = {
            "story_id": story,
            "plan_id": "plan-0",
            "tasks": [{"task_id": "t", "role": "dev", "description": "all"}],
        }
        await bus.publish(write(EventType.PLAN_DERIVED, story, plan))
        plan_change: dict[str, Any] = {
            "plan_id": "plan-0",
            "tasks": (await web("GET", path)).json["tasks"],
        }
        incomplete = problem(await web("PUT", path, plan_change))
        assert (incomplete[0], "no task fulfils criterion 1" in incomplete[2]) == (400, True)
        plan_change["tasks"][0] |= {"criteria": [1, 2], "description": "all of it"}
        changed = await web("PUT", path, plan_change)
        plan_after = (await web("GET", path)).json
        assert (changed.status, plan_after["plan_id"], plan_after["tasks"]) == (
            200,
            changed.json["plan_id"],
            plan_change["tasks"],
        )
        plan_change["tasks"][0]["description"] = "late"
        assert problem(await web("PUT", path, plan_change))[:2] == (409, "OVERTAKEN")
        assert problem(await web("GET", path, token=OTHER))[0] == 404


async def test_other_tenants_and_anonymous_callers_see_nothing(web: Web) -> None:
    story = await create_story(web)
    assert problem(await web("GET", f"{STORIES}/{story}", token=OTHER))[0] == 404
    assert (
        problem(await web("POST", f"{STORIES}/{story}/comments", {"comment": "hi"}, token=OTHER))[0]
        == 404
    )
    assert (await web("GET", STORIES, token=OTHER)).json == {"stories": []}
    for path in (STORIES, f"{STORIES}/{story}", "/api/v1/events", "/api/v1/deliberations/task-1"):
        assert problem(await web("GET", path, token=None))[0] == 401
    theirs = await create_story(web, OTHER)
    refused = await web("POST", f"{STORIES}/{theirs}/transitions", {"event": "refine"}, token=OTHER)
    assert problem(refused)[0] == 403
    moves = (await web("GET", f"{STORIES}/{theirs}", token=OTHER)).json["moves"]
    assert [move["event"] for move in moves] == ["refine", "archive"]
    assert all("one of the roles po" in move["missing"] for move in moves)


async def test_a_story_is_edited_unless_it_changed_meanwhile(web: Web) -> None:
    story = await create_story(web)
    story_before = await web("GET", f"{STORIES}/{story}")
    condition = {"If-Match": story_before.headers["ETag"]}
    changed = {"title": "Export a month", "ac": ["Given a, when b, then c"], "rigor_level": "L0"}
    edited = await web("PUT", f"{STORIES}/{story}", changed, headers=condition)
    assert (edited.status, edited.json["story"]["title"]) == (200, "Export a month")
    late = await web("PUT", f"{STORIES}/{story}", changed, headers=condition)
    assert problem(late)[0] == 409
    story_after = await web("GET", f"{STORIES}/{story}")
    assert (
        story_after.json["ac"],
        story_after.json["rigor_level"],
        story_after.json["repository"],
    ) == (
        ["Given a, when b, then c"],
        "L0",
        "",
    )
    assert story_after.headers["ETag"] == edited.headers["ETag"]
    assert problem(await web("PUT", f"{STORIES}/{story}", {"title": ""}))[0] == 400
    assert problem(await web("POST", f"{STORIES}/{story}/retry"))[0] == 400
    assert problem(await web("POST", f"{STORIES}/{story}/merge", headers=condition))[0] == 400


async def test_a_story_with_criteria_scores_higher(web: Web) -> None:
    draft = {"title": STORY["title"], "description": STORY["brief"]}
    bare = await web("POST", "/api/v1/coach/score", draft)
    complete = await web("POST", "/api/v1/coach/score", draft | {"ac": STORY["ac"]})
    assert bare.json["total"] < complete.json["total"] == 100
    assert bare.json["findings"]


async def test_a_deliberation_is_described_as_over_grpc(
    deliberations: MemoryDeliberations, web: Web
) -> None:
    ask = {"task_description": "Add hello_world()", "role": "DEV", "task_id": "task-1"}
    await web("POST", "/orchestrator.v1.OrchestratorService/SubmitDeliberation", ask)
    await deliberations.decide(
        Outcome("task-1", DeliberationStatus.COMPLETED, winner_id="agent-dev-001")
    )
    rpc = await web(
        "POST", "/orchestrator.v1.OrchestratorService/GetDeliberationResult", {"task_id": "task-1"}
    )
    rest = await web("GET", "/api/v1/deliberations/task-1")
    for answer in (rest, rpc):
        del answer.json["metadata"]["timestamp_ms"]  # at the time of the request
    assert rest.json == rpc.json
    assert rpc.json["winner_id"] == "agent-dev-001"


async def following(
    web: Web, count: int, last_event_id: str | None = None
) -> list[tuple[int, str, Any]]:
    """Return the next events of the board."""
    headers = {"Authorization": f"Bearer {TOKEN}"} | (
        {"Last-Event-ID": last_event_id} if last_event_id else {}
    )
    events: list[tuple[int, str, Any]] = []
    async with web.session.get(
        f"http://127.0.0.1:{web.port}/api/v1/events", headers=headers
    ) as response:
        assert response.content_type == "text/event-stream"
        assert (await response.content.readuntil(b"\n\n")).startswith(b":")
        while len(events) < count:
            lines = (await response.content.readuntil(b"\n\n")).decode().rstrip("\n").split("\n")
            fields = dict(line.split(": ", 1) for line in lines)
            assert set(fields) == {"id", "event", "data"}
            events.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return events


async def test_events_resume_after_the_last_one_received(web: Web) -> None:
    story = await create_story(web, brief="As a clerk, I want it\n\nid: 99\nevent: forged")
    await web("POST", f"{STORIES}/{story}/transitions", {"event": "refine"})
    (first_id, kind, first), (moved, _, second) = await following(web, 2)
    assert (kind, first["story"]["state"], second["story"]["state"]) == (
        "moothall.story.created",
        "backlog",
        "draft",
    )
    assert first["seq"] == str(first_id)
    ((event_id, _, event_data),) = await following(web, 1, str(first_id))
    assert (event_id, event_data) == (moved, second)
    refused = await web("GET", "/api/v1/events", headers={"Last-Event-ID": "-1"})
    assert problem(refused)[:2] == (400, "INVALID_REQUEST")


async def test_a_storys_budget_is_shown(web: Web) -> None:
    story = await create_story(web, budget={"tokens": "5000", "cost_usd": 1.5})
    account = (await web("GET", f"{STORIES}/{story}")).json["account"]
    assert account["limit"] == {"tokens": "5000", "calls": "10000", "cost_usd": 1.5}
    assert account["left"] == account["limit"]
    assert {*account["spent"].values(), *account["reserved"].values()} == {"0", 0.0}
    refused = await web("POST", STORIES, STORY | {"budget": {"tokens": -1}})
    assert problem(refused)[:2] == (400, "INVALID_REQUEST")
