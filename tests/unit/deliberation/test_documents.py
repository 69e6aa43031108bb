"""Deliberations that produce a document have separate phases and schemas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL, TaskId
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.plan import Story
from moothall.domain.task import DocumentKind
from moothall.llm.requests import priority_of
from moothall.orchestrator.story_writer import MODEL, StoryWriter, read_story
from moothall.stories.coach import StoryDraft
from moothall.stories.plans import design_request
from moothall.testing.model import Call, phase_of, seat_of
from support.council import approaches, finish, of, outcomes, review
from support.deliberation_service import MemoryDeliberations

PLAN: dict[str, Any] = {
    "tasks": [{"id": "a", "role": "dev", "description": "Write it.", "criteria": [1], "after": []}]
}
STORY = {
    "title": "Export invoices",
    "description": "As a clerk, I want CSV.",
    "criteria": ["Given a, when b, then c"],
}
GOOD_STORY = {
    "title": "Export invoices as CSV",
    "description": (
        "As an accountant, I want the invoices of a month as a file, so that I can book them."
    ),
    "criteria": [
        "Given two invoices, when May is exported, then the file has two lines",
        "Given none, when June is exported, then the answer is 404",
    ],
}


def phase_in(call: Call) -> str:
    return call.call_id.split("/")[2]


def name_of(call: Call) -> str:
    return str(call.body.get("response_format", {}).get("json_schema", {}).get("name", ""))


@pytest.mark.parametrize(
    ("kind", "phase", "document"), [("plan", "derive", PLAN), ("coach", "coach", STORY)]
)
@pytest.mark.parametrize("spelling", ["{}", "```json\n{}\n```", "turn"])
async def test_a_document_has_its_own_phase_and_schema(
    council: Any, kind: DocumentKind, phase: str, document: Mapping[str, Any], spelling: str
) -> None:
    text = json.dumps(document)
    reply = finish(text) if spelling == "turn" else spelling.replace("{}", text)
    async with council(lambda _body, _headers: reply) as app:
        events = await app.run(
            app.deliberation("single", seats=1, repository=None, base_sha=None, document=kind)
        )
        (call,) = app.server.requests
        assert call.call_id == f"task-1/agent-dev-001/{phase}/0.1"
        assert name_of(call) == kind
        (proposed,) = of(events, EventType.SEAT_PROPOSED)
        assert json.loads(proposed["proposal"]["content"]) == document
        assert [data["phase"] for data in of(events, EventType.SEAT_TURN)] == [phase]


def test_a_person_waiting_for_the_coach_has_priority() -> None:
    places = [
        priority_of(f"task-1/agent-po-001/{phase}/0.1") for phase in ("coach", "propose", "derive")
    ]
    assert places == sorted(set(places))


async def test_reviews_and_approaches_of_a_document_keep_their_phases(council: Any) -> None:
    def answer(body: Mapping[str, Any], headers: Mapping[str, str]) -> str:
        del body
        plan_of_seat = {
            "tasks": [{**PLAN["tasks"][0], "description": f"Write it as {seat_of(headers)}."}]
        }
        by_phase = {
            "plan": approaches(2),
            "derive": json.dumps(plan_of_seat),
            "critique": review(7, "Write it"),
        }
        return by_phase[phase_of(headers)]

    async with council(answer, approaches="on") as app:
        d = app.deliberation(
            "tests_then_verify",
            seats=2,
            repository=None,
            base_sha=None,
            document="plan",
            peer_review=True,
        )
        events = await app.run(d)
        assert {(phase_in(call), name_of(call)) for call in app.server.requests} == {
            ("plan", "approaches"),
            ("derive", "plan"),
            ("critique", "review"),
        }
        assert set(outcomes(events).values()) == {"proposed"}


async def test_an_invalid_document_is_requested_again(council: Any) -> None:
    replies = iter(["I would rather not.", json.dumps(PLAN)])
    async with council(lambda _body, _headers: next(replies)) as app:
        events = await app.run(
            app.deliberation("single", seats=1, repository=None, base_sha=None, document="plan")
        )
        first, second = app.server.requests
        assert "the one JSON object that the task asks for" in second.prompt
        assert first.call_id.endswith("/derive/0.1")
        (proposed,) = of(events, EventType.SEAT_PROPOSED)
        assert json.loads(proposed["proposal"]["content"]) == PLAN


async def test_a_document_in_block_mode_is_read_from_the_finish_tag(council: Any) -> None:
    reply = f"<finish>{json.dumps(PLAN)}</finish>"
    async with council(lambda _body, _headers: reply, reply="blocks") as app:
        events = await app.run(
            app.deliberation("single", seats=1, repository=None, base_sha=None, document="plan")
        )
        assert phase_in(app.server.requests[0]) == "derive"
        (proposed,) = of(events, EventType.SEAT_PROPOSED)
        assert json.loads(proposed["proposal"]["content"]) == PLAN


async def test_architects_and_the_coach_request_documents() -> None:
    assert (
        design_request(
            Story("story-1", "Export"), TaskId("design-1"), "plan-1", seats=3, max_tasks=8
        ).document
        == "plan"
    )
    deliberations = MemoryDeliberations()
    requesting = asyncio.create_task(
        StoryWriter(deliberations, 5, model=True).suggest("Export invoices", LOCAL)
    )
    await deliberations.submitted.wait()
    (task_id,) = deliberations.task_ids()
    assert deliberations.request(task_id).document == "coach"
    result = Result(
        1,
        "agent-po-001",
        "po",
        1.0,
        (),
        passed_gates=True,
        proven=False,
        content=json.dumps(GOOD_STORY),
    )
    await deliberations.decide(
        Outcome(task_id, DeliberationStatus.COMPLETED, winner_id="agent-po-001", results=(result,))
    )
    assert (await requesting).by == MODEL


@pytest.mark.parametrize("template", ["{}", "Here it is:\n```json\n{}\n```", "<story>{}</story>"])
def test_a_story_is_read_from_a_document(template: str) -> None:
    text = template.replace("{}", json.dumps(STORY))
    assert read_story(text) == StoryDraft(
        "Export invoices", "As a clerk, I want CSV.", ("Given a, when b, then c",)
    )


@pytest.mark.parametrize(
    "text", ['{"title": 7, "description": null, "criteria": "none"}', "{", "[]", "{" * 50_000]
)
def test_missing_fields_of_a_document_are_empty(text: str) -> None:
    assert read_story(text) == StoryDraft("", "", ())
