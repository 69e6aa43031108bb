"""Requests that leave the choice of models to their results, at the deliberation service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from moothall.config import LimitSettings, LlmSettings, Models
from moothall.config.models import AUTO
from moothall.domain.budget import Budget, Usage
from moothall.domain.codec import dump
from moothall.domain.council import Agent, Capabilities, Council, CouncilConfig
from moothall.domain.event import EventType, new_event
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.ids import LOCAL, Principal, TaskId
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.proposal import OUT_OF_PATIENCE, SeatOutcome, SeatStatus
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest
from moothall.orchestrator.council_registry import CouncilRegistry
from moothall.orchestrator.request_planning import Defaults, leaves_choice, plan_deliberation
from moothall.orchestrator.seat_choice import TrackRecord
from moothall.orchestrator.service import DeliberationService
from moothall.testing.bus import MemoryBus
from support.story import Remembering

MODELS = Models.of(
    LlmSettings(model="qwen"), {"cheap": LlmSettings(model="s"), "strong": LlmSettings(model="l")}
)
REPOSITORY = RepositoryRef("shop", ref="a" * 40)
PYTHON = DeliberationRequest("Fix the rounding in src/total.py", "dev", repository=REPOSITORY)
GO = DeliberationRequest("Fix the panic in cmd/main.go", "dev", repository=REPOSITORY)
DIFF = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def service(bus: MemoryBus, *, auto: bool = False) -> DeliberationService:
    defaults = Defaults(LimitSettings(), models=MODELS, auto=auto)
    return DeliberationService(bus, Remembering(), defaults)


async def record_task(
    bus: MemoryBus,
    request: DeliberationRequest,
    solved: Mapping[str, bool],
    number: int,
    principal: Principal = LOCAL,
) -> None:
    """Record a task on which these models worked, and its decision."""
    task = replace(
        request, task_id=f"t{number}", model=",".join(solved), num_agents=max(2, len(solved))
    )
    d = await service(bus).submit(task, principal)
    cost = {"": 0.02, "cheap": 0.001, "strong": 0.1}
    path = request.description.split()[-1]
    outcome = Outcome(
        d.task_id,
        DeliberationStatus.COMPLETED,
        tenant=principal.tenant,
        results=tuple(
            Result(
                rank=rank,
                seat=seat,
                role="dev",
                score=1,
                reasons=(),
                passed_gates=solved[d.model_of(seat) or "default"],
                proven=False,
                evidence_level=EvidenceLevel.REPRODUCED,
                diff=DIFF.format(path),
            )
            for rank, seat in enumerate(d.seats, 1)
        ),
        seats=tuple(
            SeatOutcome(
                seat,
                SeatStatus.PROPOSED,
                usage=Usage(1000, 0, 100, 3, cost[d.model_of(seat)]),
            )
            for seat in d.seats
        ),
    )
    await bus.publish(
        new_event(EventType.DELIBERATION_DECIDED, d.task_id, dump(outcome), tenant=principal.tenant)
    )


async def _learn(bus: MemoryBus, principal: Principal = LOCAL) -> None:
    for number in range(20):
        await record_task(
            bus, PYTHON, {"default": False, "cheap": True, "strong": True}, number, principal
        )
        await record_task(bus, GO, {"cheap": False, "strong": True}, 100 + number, principal)


async def test_each_kind_of_task_gets_the_models_that_solved_it_before() -> None:
    bus = MemoryBus()
    await _learn(bus)
    deliberations = service(bus)
    python = await deliberations.submit(replace(PYTHON, task_id="p", model="auto"), LOCAL)
    assert [python.model_of(seat) for seat in python.seats] == ["cheap", "cheap"]
    assert "cheap solved 20 of 20" in python.choice
    go = await deliberations.submit(replace(GO, task_id="g", model="AUTO "), LOCAL)
    assert [go.model_of(seat) for seat in go.seats] == ["cheap", "strong"]
    assert "of this repository (go, cmd, short)" in go.choice
    assert (await deliberations.submit(replace(GO, task_id="g", model="AUTO "), LOCAL)) == go
    single = replace(GO, task_id="s", model=AUTO, protocol="single")
    planned = await deliberations.submit(single, LOCAL)
    assert [planned.model_of(seat) for seat in planned.seats] == ["strong"]
    of_four_seats = await deliberations.submit(
        replace(GO, task_id="f", model=AUTO, num_agents=4), LOCAL
    )
    assert [of_four_seats.model_of(seat) for seat in of_four_seats.seats] == ["cheap", "strong"] * 2
    poor = replace(GO, task_id="b", model=AUTO, budget=Budget(cost_usd=0.01))
    cheapest = await deliberations.submit(poor, LOCAL)
    assert [cheapest.model_of(seat) for seat in cheapest.seats] == ["cheap", "cheap"]


async def test_the_configured_model_is_used_without_results() -> None:
    bus = MemoryBus()
    await _learn(bus, Principal("eve", "elsewhere"))
    d = await service(bus, auto=True).submit(replace(PYTHON, task_id="p"), LOCAL)
    assert [d.model_of(seat) for seat in d.seats] == ["", "", ""]
    assert "nothing to learn from yet (0 earlier tasks" in d.choice


async def test_the_setting_applies_to_requests_that_name_no_model() -> None:
    bus = MemoryBus()
    await _learn(bus)
    deliberations = service(bus, auto=True)
    d = await deliberations.submit(replace(PYTHON, task_id="p"), LOCAL)
    assert {d.model_of(seat) for seat in d.seats} == {"cheap"}
    named = await deliberations.submit(replace(PYTHON, task_id="n", model="default"), LOCAL)
    assert ({named.model_of(seat) for seat in named.seats}, named.choice) == ({""}, "")
    text = DeliberationRequest("Write a haiku", "dev", task_id="h", about_text=True, model=AUTO)
    assert (await deliberations.submit(text, LOCAL)).choice == ""
    ask = replace(PYTHON, task_id="a", protocol="ask")
    assert (await deliberations.submit(ask, LOCAL)).choice == ""


async def test_a_council_may_leave_the_choice_open() -> None:
    registry = CouncilRegistry(MemoryBus(), LimitSettings(), MODELS)
    council = await registry.create("dev", 3, CouncilConfig(model_profile="auto"), LOCAL)
    planned = plan_deliberation(PYTHON, LOCAL, Defaults(LimitSettings()), NOW, council)
    planned = replace(planned, base_sha="a" * 40)
    defaults = Defaults(LimitSettings(), models=MODELS)
    assert leaves_choice(PYTHON, planned, defaults, council)
    assert not leaves_choice(replace(PYTHON, model="cheap"), planned, defaults, council)
    fixed = Council("dev", (Agent("a", Capabilities(model_profile="cheap")),))
    assert not leaves_choice(PYTHON, planned, replace(defaults, auto=True), fixed)
    assert leaves_choice(PYTHON, planned, replace(defaults, auto=True), None)


async def test_auto_cannot_be_combined_and_is_not_a_model_name() -> None:
    with pytest.raises(InvalidRequest, match="auto cannot be combined with others"):
        await service(MemoryBus()).submit(replace(PYTHON, model="auto,cheap"), LOCAL)
    with pytest.raises(ValueError, match="neither default nor auto"):
        Models.of(LlmSettings(), {"auto": LlmSettings(model="x")})


async def test_stopped_and_unstarted_seats_are_not_counted() -> None:
    bus = MemoryBus()
    d = await service(bus).submit(replace(PYTHON, task_id="t", num_agents=4), LOCAL)
    used = Usage(100, 0, 10, 2)
    seats = (
        SeatOutcome(d.seats[0], SeatStatus.FAILED, "NO_PROGRESS", usage=used),
        SeatOutcome(d.seats[1], SeatStatus.CANCELLED, usage=used),
        SeatOutcome(d.seats[2], SeatStatus.FAILED, OUT_OF_PATIENCE, usage=used),
        SeatOutcome(d.seats[3], SeatStatus.FAILED, "MODEL_UNAVAILABLE"),
    )
    decided = Outcome(TaskId("t"), DeliberationStatus.FAILED, seats=seats)
    await bus.publish(new_event(EventType.DELIBERATION_DECIDED, "t", dump(decided)))
    await bus.publish(new_event(EventType.DELIBERATION_DECIDED, "lost", {"task_id": "lost"}))
    record = TrackRecord(bus)
    (task,) = await record.read("local")
    assert [(past.solved, past.usage) for past in task.attempts] == [(False, used)]
    assert await record.read("local") == [task]
    assert await record.read("elsewhere") == []
