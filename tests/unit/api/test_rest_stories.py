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
    async with serving_http(api_dependencies(deliberations)) as found:
        yield found


async def made(web: Web, token: str = TOKEN, **more: Any) -> str:
    answer = await web("POST", STORIES, STORY | more, token=token)
    assert answer.status == 201, answer.json
    assert answer.headers["Location"] == f"{STORIES}/{answer.json['story_id']}"
    return str(answer.json["story_id"])


async def test_a_story_is_created_moved_shown_and_commented_on(web: Web) -> None:
    story = await made(web)
    for event, state in (("refine", "draft"), ("submit", "design")):
        moved = await web("POST", f"{STORIES}/{story}/transitions", {"event": event})
        assert (moved.status, moved.json["state"], moved.json["blocked"]) == (200, state, False)
    held = await web("POST", f"{STORIES}/{story}/transitions", {"event": "accept_design"})
    assert (held.json["state"], held.json["blocked"], held.json["reason"]) == (
        "design",
        True,
        "its tasks are not derived yet",
    )
    hostile = "<script>alert(1)</script>\u202e"
    assert (await web("POST", f"{STORIES}/{story}/comments", {"comment": hostile})).status == 204
    received = await web("GET", f"{STORIES}/{story}")
    assert (received.json["story"]["title"], received.json["ac"], received.json["plan_json"]) == (
        STORY["title"],
        STORY["ac"],
        "",
    )
    assert received.headers["Content-Type"].startswith(
        "application/json"
    )  # never a page: what stands in it is text
    assert received.headers["X-Content-Type-Options"] == "nosniff"
    assert [event["type"].rpartition(".")[2] for event in received.json["history"]] == [
        "created",
        *["transitioned"] * 2,
        "commented",
    ]
    assert received.json["history"][-1]["data"]["comment"] == hostile
    assert [(move["event"], move["missing"]) for move in received.json["moves"]] == [
        ("reject_design", ""),
        ("accept_design", "its tasks are not derived yet"),
        ("stop", ""),
    ]
    listed = await web("GET", STORIES)
    assert listed.json["stories"] == [received.json["story"]]


async def test_an_idempotency_key_names_one_story_of_its_caller(web: Web) -> None:
    async def create(title: str, token: str = TOKEN) -> Any:
        return await web(
            "POST",
            STORIES,
            STORY | {"title": title},
            token=token,
            headers={"Idempotency-Key": "k-1"},
        )

    first, again = await create("One"), await create("One")
    assert (again.status, again.json) == (201, first.json)
    assert problem(await create("Another"))[:2] == (409, "ALREADY_EXISTS")
    assert (await create("One", OTHER)).json["story_id"] != first.json["story_id"]
    too_long = await web("POST", STORIES, STORY, headers={"Idempotency-Key": "k" * 201})
    assert "1 to 200" in problem(too_long)[2]


async def test_a_transition_from_an_outdated_state_is_refused_with_the_state(web: Web) -> None:
    story = await made(web)
    seen = (await web("GET", f"{STORIES}/{story}")).headers["ETag"]
    path = f"{STORIES}/{story}/transitions"
    first, second = await asyncio.gather(
        *(
            web("POST", path, {"event": "refine", "comment": name}, headers={"If-Match": seen})
            for name in ("a", "b")
        )
    )
    lost, won = sorted((first, second), key=lambda answer: answer.status, reverse=True)
    assert (won.status, won.json["state"]) == (200, "draft")
    status, code, output_text = problem(lost)
    assert (status, code) == (409, "OVERTAKEN")
    assert "is in draft now" in output_text
    assert problem(await web("POST", path, {"event": "submit"}, headers={"If-Match": "*"}))[:2] == (
        400,
        "INVALID_REQUEST",
    )
    assert problem(await web("POST", path, {"event": "submit", "story_id": "story-2"}))[:2] == (
        400,
        "INVALID_REQUEST",
    )


async def test_a_transition_is_refused_if_a_comment_was_added_since(web: Web) -> None:
    story = await made(web)
    seen = (await web("GET", f"{STORIES}/{story}")).headers["ETag"]
    assert (await web("POST", f"{STORIES}/{story}/comments", {"comment": "wait"})).status == 204
    late = await web(
        "POST", f"{STORIES}/{story}/transitions", {"event": "refine"}, headers={"If-Match": seen}
    )
    assert problem(late)[0] == 409
    assert (await web("GET", f"{STORIES}/{story}")).json["story"]["state"] == "backlog"


async def test_a_comment_on_a_line_reaches_the_seats_once_per_key(
    web: Web, deliberations: MemoryDeliberations
) -> None:
    story, task = await made(web), "/api/v1/deliberations/task-1"
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
    output_text = {
        "comment": "Say it in French.",
        "on": {"task_id": "task-1", "path": "u.py", "line": 1},
    }
    for _ in range(2):
        assert (
            await web(
                "POST", f"{STORIES}/{story}/comments", output_text, headers={"Idempotency-Key": "k"}
            )
        ).status == 204
    history = (await web("GET", f"{STORIES}/{story}")).json["history"]
    (event,) = [event["data"] for event in history if event["type"] == "moothall.story.commented"]
    assert (event["path"], event["line"], event["quoted"]) == ("u.py", 1, "+new")
    wrong = {"comment": "x", "on": {"task_id": "task-1", "path": "u.py", "line": 2}}
    assert problem(await web("POST", f"{STORIES}/{story}/comments", wrong))[0] == 400
    assert (
        problem(await web("POST", f"{task}/steer", {"message": "x", "task_id": "task-2"}))[0] == 400
    )
    received = [event.data async for event in _steered(deliberations)]
    assert len({event["key"] for event in received}) == 1, (
        "both requests have the same key, so the deliberation service treats them as one"
    )


async def _steered(deliberations: MemoryDeliberations) -> AsyncIterator[Any]:
    async for recorded in deliberations.watch("task-1", 0, LOCAL):
        if recorded.event.type is EventType.DELIBERATION_STEERED:
            yield recorded.event


async def test_tasks_are_changed_before_they_start_and_a_late_change_gets_409(
    deliberations: MemoryDeliberations,
) -> None:
    bus = MemoryBus()
    async with serving_http(api_dependencies(deliberations, bus)) as web:
        story = await made(web)
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
        requested: dict[str, Any] = {
            "plan_id": "plan-0",
            "tasks": (await web("GET", path)).json["tasks"],
        }
        lacking = problem(await web("PUT", path, requested))
        assert (lacking[0], "no task fulfils criterion 1" in lacking[2]) == (400, True)
        requested["tasks"][0] |= {"criteria": [1, 2], "description": "all of it"}
        changed = await web("PUT", path, requested)
        received = (await web("GET", path)).json
        assert (changed.status, received["plan_id"], received["tasks"]) == (
            200,
            changed.json["plan_id"],
            requested["tasks"],
        )
        requested["tasks"][0]["description"] = "late"
        assert problem(await web("PUT", path, requested))[:2] == (409, "OVERTAKEN")
        assert problem(await web("GET", path, token=OTHER))[0] == 404


async def test_other_tenants_and_anonymous_callers_see_nothing(web: Web) -> None:
    story = await made(web)
    assert problem(await web("GET", f"{STORIES}/{story}", token=OTHER))[0] == 404
    assert (
        problem(await web("POST", f"{STORIES}/{story}/comments", {"comment": "hi"}, token=OTHER))[0]
        == 404
    )
    assert (await web("GET", STORIES, token=OTHER)).json == {"stories": []}
    for path in (STORIES, f"{STORIES}/{story}", "/api/v1/events", "/api/v1/deliberations/task-1"):
        assert problem(await web("GET", path, token=None))[0] == 401
    theirs = await made(web, OTHER)
    refused = await web("POST", f"{STORIES}/{theirs}/transitions", {"event": "refine"}, token=OTHER)
    assert problem(refused)[0] == 403
    moves = (await web("GET", f"{STORIES}/{theirs}", token=OTHER)).json["moves"]
    assert [move["event"] for move in moves] == ["refine", "archive"]
    assert all("one of the roles po" in move["missing"] for move in moves)


async def test_a_story_is_edited_unless_it_changed_meanwhile(web: Web) -> None:
    story = await made(web)
    received = await web("GET", f"{STORIES}/{story}")
    seen = {"If-Match": received.headers["ETag"]}
    changed = {"title": "Export a month", "ac": ["Given a, when b, then c"], "rigor_level": "L0"}
    edited = await web("PUT", f"{STORIES}/{story}", changed, headers=seen)
    assert (edited.status, edited.json["story"]["title"]) == (200, "Export a month")
    late = await web("PUT", f"{STORIES}/{story}", changed, headers=seen)
    assert problem(late)[0] == 409
    again = await web("GET", f"{STORIES}/{story}")
    assert (again.json["ac"], again.json["rigor_level"], again.json["repository"]) == (
        ["Given a, when b, then c"],
        "L0",
        "",
    )
    assert again.headers["ETag"] == edited.headers["ETag"]
    assert problem(await web("PUT", f"{STORIES}/{story}", {"title": ""}))[0] == 400
    assert problem(await web("POST", f"{STORIES}/{story}/retry"))[0] == 400
    assert problem(await web("POST", f"{STORIES}/{story}/merge", headers=seen))[0] == 400


async def test_a_story_with_criteria_scores_higher(web: Web) -> None:
    draft = {"title": STORY["title"], "description": STORY["brief"]}
    bare = await web("POST", "/api/v1/coach/score", draft)
    whole = await web("POST", "/api/v1/coach/score", draft | {"ac": STORY["ac"]})
    assert bare.json["total"] < whole.json["total"] == 100
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
    received = await web("GET", "/api/v1/deliberations/task-1")
    for answer in (received, rpc):
        del answer.json["metadata"]["timestamp_ms"]  # when it was asked
    assert received.json == rpc.json
    assert rpc.json["winner_id"] == "agent-dev-001"


async def following(web: Web, count: int, after: str | None = None) -> list[tuple[int, str, Any]]:
    """Return the next events of the board."""
    headers = {"Authorization": f"Bearer {TOKEN}"} | ({"Last-Event-ID": after} if after else {})
    found: list[tuple[int, str, Any]] = []
    async with web.session.get(
        f"http://127.0.0.1:{web.port}/api/v1/events", headers=headers
    ) as response:
        assert response.content_type == "text/event-stream"
        assert (await response.content.readuntil(b"\n\n")).startswith(b":")
        while len(found) < count:
            lines = (await response.content.readuntil(b"\n\n")).decode().rstrip("\n").split("\n")
            received = dict(line.split(": ", 1) for line in lines)
            assert set(received) == {"id", "event", "data"}
            found.append((int(received["id"]), received["event"], json.loads(received["data"])))
    return found


async def test_events_resume_after_the_last_one_received(web: Web) -> None:
    story = await made(web, brief="As a clerk, I want it\n\nid: 99\nevent: forged")
    await web("POST", f"{STORIES}/{story}/transitions", {"event": "refine"})
    (begun, kind, first), (moved, _, second) = await following(web, 2)
    assert (kind, first["story"]["state"], second["story"]["state"]) == (
        "moothall.story.created",
        "backlog",
        "draft",
    )
    assert first["seq"] == str(begun)
    ((again, _, received),) = await following(web, 1, str(begun))
    assert (again, received) == (moved, second)
    wrong = await web("GET", "/api/v1/events", headers={"Last-Event-ID": "-1"})
    assert problem(wrong)[:2] == (400, "INVALID_REQUEST")


async def test_a_storys_budget_is_shown(web: Web) -> None:
    story = await made(web, budget={"tokens": "5000", "cost_usd": 1.5})
    account = (await web("GET", f"{STORIES}/{story}")).json["account"]
    assert account["limit"] == {"tokens": "5000", "calls": "10000", "cost_usd": 1.5}
    assert account["left"] == account["limit"]
    assert {*account["spent"].values(), *account["reserved"].values()} == {"0", 0.0}
    wrong = await web("POST", STORIES, STORY | {"budget": {"tokens": -1}})
    assert problem(wrong)[:2] == (400, "INVALID_REQUEST")
