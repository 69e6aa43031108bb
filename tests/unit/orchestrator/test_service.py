from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from moothall.authorization.budgets import BUCKET, Quotas
from moothall.collector.collector import Collector
from moothall.config import LimitSettings, LlmSettings, Models
from moothall.config.limits import Quota, QuotaSettings
from moothall.deliberation.prompts.briefing import Briefings
from moothall.domain.budget import Budget
from moothall.domain.codec import dump
from moothall.domain.event import Channel, EventType, new_event
from moothall.domain.evidence import HIDDEN
from moothall.domain.ids import LOCAL, Principal, TaskId, TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import Constraints, DeliberationRequest, RepositoryRef, check_deliberation
from moothall.domain.text import tokens
from moothall.errors import (
    AlreadyExists,
    GraphUnavailable,
    InvalidRequest,
    NoCouncil,
    NotFound,
    QuotaExceeded,
    Refused,
    RepositoryError,
)
from moothall.events.codec import encode, encode_batch
from moothall.orchestrator.fork import find_request
from moothall.orchestrator.request_planning import Defaults, fetch_hidden, plan_deliberation
from moothall.orchestrator.service import DeliberationService
from moothall.testing.bus import MemoryBus
from support.graph import MemoryGraph
from support.story import Remembering

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TASK = DeliberationRequest(description="Write a haiku", role="DEV")
OTHER = Principal("eve", "elsewhere")


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
def deliberations(bus: MemoryBus) -> DeliberationService:
    return DeliberationService(bus, Remembering(), Defaults(LimitSettings()), clock=lambda: NOW)


async def test_an_undeliverable_task_is_refused_before_anything_is_recorded(
    bus: MemoryBus,
) -> None:
    repositories = Remembering()
    repositories.blocked.add("moothall/t1")
    deliberations = DeliberationService(
        bus, repositories, Defaults(LimitSettings()), clock=lambda: NOW
    )
    request = replace(TASK, task_id="t1", repository=RepositoryRef(id="r", ref="a" * 40))
    with pytest.raises(RepositoryError, match="moothall/t1"):
        await deliberations.submit(request, LOCAL)
    with pytest.raises(RepositoryError, match="moothall/t1"):
        await deliberations.check(request, LOCAL)
    assert await find_request(bus, TaskKey("t1")) is None
    # An answer in words needs no branch.
    await deliberations.submit(replace(request, protocol="ask"), LOCAL)


async def test_a_request_over_a_quota_is_refused_without_side_effects(bus: MemoryBus) -> None:
    settings = QuotaSettings(default=Quota(deliberations=2))
    deliberations = DeliberationService(
        bus,
        Remembering(),
        Defaults(LimitSettings()),
        quotas=Quotas(bus.bucket(BUCKET), settings, lambda: NOW),
    )
    first, second, third = (replace(TASK, task_id=f"t{number}") for number in (1, 2, 3))
    await deliberations.submit(first, LOCAL)
    await deliberations.submit(second, LOCAL)
    await deliberations.submit(third, OTHER)
    with pytest.raises(QuotaExceeded, match="2 of 2 concurrent deliberations"):
        await deliberations.submit(third, LOCAL)
    with pytest.raises(NotFound):
        await deliberations.result(TaskId("t3"), LOCAL)
    await deliberations.submit(second, LOCAL)  # a repeat is not a new one
    await deliberations.cancel(TaskId("t1"), "enough", LOCAL)
    decided = Outcome(TaskId("t1"), DeliberationStatus.CANCELLED)
    await bus.publish(new_event(EventType.DELIBERATION_DECIDED, "t1", dump(decided)))
    await deliberations.submit(third, LOCAL)
    assert (await deliberations.result(TaskId("t3"), LOCAL)).status is DeliberationStatus.PENDING


async def test_hidden_tests_are_stored_for_hosts_and_not_in_events(bus: MemoryBus) -> None:
    deliberations = DeliberationService(
        bus, Remembering(), Defaults(LimitSettings()), clock=lambda: NOW
    )
    tests = {"tests/test_x.py": "assert secret_number() == 42, 'ghp_" + "a" * 40 + "'\n"}
    request = replace(
        TASK, task_id="t1", repository=RepositoryRef(id="r", ref="a" * 40), hidden_tests=tests
    )
    d = await deliberations.submit(request, LOCAL)
    assert await fetch_hidden(bus.bucket(HIDDEN), d.hidden) == tests
    events = [
        recorded.event
        async for recorded in bus.replay((Channel.RESULTS.all, Channel.RESPONSES.all))
    ]
    assert events
    assert "secret_number" not in str(events)
    assert "test_x" not in str(events)
    with pytest.raises(InvalidRequest, match="text"):
        await deliberations.submit(
            replace(request, task_id="t2", repository=None, about_text=True), LOCAL
        )
    for path in ("../x.py", "/x.py", "a/.git/config", ""):
        with pytest.raises(InvalidRequest, match="path of a hidden test"):
            await deliberations.submit(
                replace(request, task_id="t3", hidden_tests={path: ""}), LOCAL
            )
    with pytest.raises(NotFound, match="--hidden-tests"):
        await fetch_hidden(bus.bucket(HIDDEN), "local.gone")


def test_zero_means_the_default() -> None:
    planned = plan_deliberation(TASK, LOCAL, Defaults(LimitSettings()), NOW)
    assert planned.seats == ("agent-dev-001", "agent-dev-002", "agent-dev-003")
    assert (planned.protocol, planned.rounds) == ("tests_then_verify", 1)
    assert planned.deadline == NOW + timedelta(seconds=LimitSettings().deliberation_seconds)
    assert planned.budget.calls == LimitSettings().calls


def test_zero_rounds_can_be_requested() -> None:
    request = DeliberationRequest(description="x", role="dev", protocol="debate", rounds=0)
    assert plan_deliberation(request, LOCAL, Defaults(LimitSettings()), NOW).rounds == 0


def test_the_single_protocol_has_one_seat() -> None:
    request = DeliberationRequest(description="x", role="qa", protocol="single", num_agents=5)
    assert plan_deliberation(request, LOCAL, Defaults(LimitSettings()), NOW).seats == (
        "agent-qa-001",
    )


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (DeliberationRequest(description=" ", role="dev"), "the task is empty"),
        (DeliberationRequest(description="x", role="wizard"), "unknown role"),
        (
            DeliberationRequest(description="x", role="dev", num_agents=10_000),
            "allowed are 1 to 16",
        ),
        (DeliberationRequest(description="x", role="dev", num_agents=-1), "allowed are 1 to 16"),
        (DeliberationRequest(description="x", role="dev", rounds=-2), "rounds is -2"),
        (
            DeliberationRequest(description="x", role="dev", protocol="debat"),
            "did you mean debate?",
        ),
        (DeliberationRequest(description="x", role="dev", task_id="A/B"), "is not an id"),
        (DeliberationRequest(description="x", role="dev", budget=Budget(tokens=-5)), "from 0"),
        (
            DeliberationRequest(description="x", role="dev", budget=Budget(cost_usd=math.nan)),
            "from 0",
        ),
        (
            DeliberationRequest(
                description="x", role="dev", constraints=Constraints(rubric="y" * 20_001)
            ),
            "together",
        ),
        (
            DeliberationRequest(
                description="x", role="dev", constraints=Constraints(timeout_seconds=10**9)
            ),
            "timeout_seconds",
        ),
        (
            DeliberationRequest(
                description="x", role="dev", constraints=Constraints(max_iterations=999)
            ),
            "max_iterations is 999",
        ),
    ],
)
def test_an_invalid_request_is_reported(request_: DeliberationRequest, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        plan_deliberation(request_, LOCAL, Defaults(LimitSettings()), NOW)


def test_checks_of_a_request_are_commands_with_their_own_names() -> None:
    request = replace(TASK, checks=("make lint", "python -c 'print(1)'"), tools=("files.read",))
    planned = plan_deliberation(request, LOCAL, Defaults(LimitSettings()), NOW)
    assert planned.checks == {
        "validation-1": ("make", "lint"),
        "validation-2": ("python", "-c", "print(1)"),
    }
    assert planned.tools == ("files.read",)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        *(
            (replace(TASK, checks=(invalid_check,)), "the check")
            for invalid_check in ("", "   ", "a 'b", "a\0", "x" * 5000)
        ),
        (replace(TASK, checks=("make",) * 21), "at most 20"),
        (replace(TASK, checks=("make",), about_text=True), "needs a repository"),
    ],
)
def test_an_invalid_check_is_refused(request_: DeliberationRequest, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        plan_deliberation(request_, LOCAL, Defaults(LimitSettings()), NOW)


async def test_a_submitted_request_is_recorded_and_pending(
    deliberations: DeliberationService, bus: MemoryBus
) -> None:
    planned = await deliberations.submit(TASK, LOCAL)
    recorded = [
        item.event.type async for item in bus.replay((Channel.RESULTS.of(planned.task_id),))
    ]
    assert recorded == [EventType.DELIBERATION_REQUESTED]
    assert (await deliberations.result(planned.own_id, LOCAL)).status == DeliberationStatus.PENDING


async def test_the_base_is_pinned_at_submission(deliberations: DeliberationService) -> None:
    request = DeliberationRequest(
        description="x", role="dev", repository=RepositoryRef(id="repo", ref="main")
    )
    planned = await deliberations.submit(request, LOCAL)
    assert planned.base_sha
    assert planned.repository is not None
    assert planned.repository.id


async def test_the_same_id_with_the_same_request_is_the_same_deliberation(
    deliberations: DeliberationService,
) -> None:
    request = DeliberationRequest(description="x", role="dev", task_id="mine")
    assert await deliberations.submit(request, LOCAL) == await deliberations.submit(request, LOCAL)
    with pytest.raises(AlreadyExists):
        await deliberations.submit(
            DeliberationRequest(description="y", role="dev", task_id="mine"), LOCAL
        )


async def test_each_tenant_has_its_own_ids(
    deliberations: DeliberationService, bus: MemoryBus
) -> None:
    theirs = await deliberations.submit(
        DeliberationRequest(description="x", role="dev", task_id="mine"), OTHER
    )
    with pytest.raises(NotFound, match="no deliberation 'mine'"):
        await deliberations.result(TaskId("mine"), LOCAL)
    ours = await deliberations.submit(
        DeliberationRequest(description="y", role="dev", task_id="mine"), LOCAL
    )
    assert (ours.own_id, theirs.own_id) == ("mine", "mine")
    assert (ours.task_id, theirs.task_id) == ("mine", "elsewhere_mine")
    assert await bus.list_ids(Channel.RESULTS) == ["elsewhere_mine", "mine"]
    key = "elsewhere_mine"
    payload = {"task_id": key, "call_id": f"{key}/agent-dev-001/propose/0.1", "note": f"of {key}"}
    await bus.publish(new_event(EventType.MODEL_CALLED, key, payload, tenant="elsewhere"))
    assert await deliberations.cancel(TaskId("mine"), "", OTHER) == DeliberationStatus.CANCELLED
    for name, tenant, message in (
        ("elsewhere_mine", "elsewhere", "theirs"),
        ("mine", "local", "ours"),
    ):
        outcome = Outcome(name, DeliberationStatus.COMPLETED, tenant=tenant, error_message=message)
        await bus.publish(
            new_event(EventType.DELIBERATION_DECIDED, name, dump(outcome), tenant=tenant)
        )
        await bus.put(name, dump(outcome))
    for principal, message, count in ((OTHER, "theirs", 4), (LOCAL, "ours", 2)):
        for outcome in (
            await deliberations.wait(TaskId("mine"), principal),
            await deliberations.result(TaskId("mine"), principal),
        ):
            assert (outcome.task_id, outcome.error_message) == ("mine", message)
        events = [
            recorded.event async for recorded in deliberations.watch(TaskId("mine"), 0, principal)
        ]
        assert len(events) == count
        assert {
            (event.subject, event.correlationid, event.data["task_id"]) for event in events
        } == {("mine", "mine", "mine")}
        assert all(event.data.get("call_id", "mine/").startswith("mine/") for event in events)


async def test_another_tenants_deliberation_is_not_found(
    deliberations: DeliberationService,
) -> None:
    planned = await deliberations.submit(TASK, LOCAL)
    for call in (
        deliberations.result(planned.own_id, OTHER),
        deliberations.wait(planned.own_id, OTHER),
        deliberations.cancel(planned.own_id, "", OTHER),
    ):
        with pytest.raises(NotFound):
            await call


async def test_watching_resumes_after_a_sequence_number_and_ends_with_the_decision(
    deliberations: DeliberationService, bus: MemoryBus
) -> None:
    planned = await deliberations.submit(TASK, LOCAL)
    outcome = Outcome(planned.task_id, DeliberationStatus.COMPLETED)
    await bus.publish(new_event(EventType.DELIBERATION_DECIDED, planned.task_id, dump(outcome)))
    received_events = [recorded async for recorded in deliberations.watch(planned.own_id, 0, LOCAL)]
    assert [recorded.event.type for recorded in received_events] == [
        EventType.DELIBERATION_REQUESTED,
        EventType.DELIBERATION_DECIDED,
    ]
    rest = [
        recorded.seq
        async for recorded in deliberations.watch(planned.own_id, received_events[0].seq, LOCAL)
    ]
    assert rest == [received_events[1].seq]
    assert [
        recorded
        async for recorded in deliberations.watch(planned.own_id, received_events[1].seq, LOCAL)
    ] == []
    assert await deliberations.wait(planned.own_id, LOCAL) == outcome


async def test_a_cancel_is_recorded_once_and_changes_no_decision(
    deliberations: DeliberationService, bus: MemoryBus
) -> None:
    planned = await deliberations.submit(TASK, LOCAL)
    for _ in range(2):
        assert (
            await deliberations.cancel(planned.own_id, "enough", LOCAL)
            == DeliberationStatus.CANCELLED
        )
    events = [item async for item in bus.replay((Channel.RESPONSES.of(planned.task_id),))]
    assert [item.event.data["reason"] for item in events] == ["enough"]
    await bus.publish(
        new_event(
            EventType.DELIBERATION_DECIDED,
            planned.task_id,
            dump(Outcome(planned.task_id, DeliberationStatus.COMPLETED)),
        )
    )
    assert await deliberations.cancel(planned.own_id, "late", LOCAL) == DeliberationStatus.COMPLETED


OF_STORY = DeliberationRequest(
    description="Build it", role="dev", story_id="story-1", task_id="task-1", origin="plan"
)


async def _recorded_error(bus: MemoryBus, task_id: str = "task-1") -> str:
    first = await bus.first(Channel.RESULTS.of(task_id))
    assert first is not None
    return str(first.event.data["context"])


def _reporting(
    bus: MemoryBus, graph: MemoryGraph, limits: LimitSettings | None = None
) -> DeliberationService:
    limits = limits or LimitSettings()
    return DeliberationService(
        bus,
        Remembering(),
        Defaults(limits),
        clock=lambda: NOW,
        write_briefing=Briefings(graph.ask, limits).brief_seats,
    )


async def test_the_storys_context_is_recorded_once_and_not_requested_again(
    bus: MemoryBus,
) -> None:
    graph = MemoryGraph()
    graph.announce(
        "context",
        {
            "story": {"headline": "Greet", "state": "build"},
            "comments": [{"actor": "ann", "comment": "soon"}],
        },
    )
    submitted = await _reporting(bus, graph).submit(OF_STORY, LOCAL)
    assert (
        await _recorded_error(bus)
        == submitted.context
        == "the story:\n- Greet (state: build)\ncomments, the last first:\n- ann: soon"
    )
    parameters = dict(graph.requested)["context"]
    assert (
        parameters["role"],
        parameters["phase"],
        parameters["story_id"],
        parameters["task_id"],
    ) == (
        "dev",
        "build",
        "story-1",
        "task-1",
    )
    graph.announce("context", {"story": {"headline": "Something else", "state": "done"}})
    assert (await _reporting(bus, graph).submit(OF_STORY, LOCAL)).context == submitted.context
    assert await _recorded_error(bus) == submitted.context


async def test_earlier_decisions_and_the_context_share_one_token_limit(bus: MemoryBus) -> None:
    graph = MemoryGraph()
    graph.announce(
        "context",
        {
            "story": {"headline": "Greet"},
            "comments": [{"actor": "ann", "comment": "soon " * 70}] * 9,
        },
    )
    limits = LimitSettings(context_tokens=400)
    design = "architect: a function. " * 20
    submitted = await _reporting(bus, graph, limits).submit(
        replace(OF_STORY, context=design), LOCAL
    )
    assert submitted.context.startswith("the story:\n- Greet")
    assert submitted.context.endswith(design)
    assert tokens(submitted.context) <= limits.context_tokens
    check_deliberation(submitted)


@pytest.mark.parametrize(
    "request_",
    [
        replace(OF_STORY, story_id=""),
        replace(OF_STORY, merge=("a" * 40,)),
        replace(OF_STORY, origin="orchestrate", context="what the caller chose"),
    ],
    ids=["no story", "a merge", "context of its caller"],
)
async def test_seats_with_other_instructions_or_no_model_get_no_more_text(
    bus: MemoryBus, request_: DeliberationRequest
) -> None:
    graph = MemoryGraph()
    submitted = await _reporting(bus, graph).submit(request_, LOCAL)
    assert submitted.context == request_.context
    assert graph.requested == []


async def test_an_unavailable_graph_does_not_block_a_submission(bus: MemoryBus) -> None:
    async def fail(*_: object, **__: object) -> list[dict[str, object]]:
        raise GraphUnavailable("it is away")

    deliberations = DeliberationService(
        bus,
        Remembering(),
        Defaults(LimitSettings()),
        clock=lambda: NOW,
        write_briefing=Briefings(fail, LimitSettings()).brief_seats,
    )
    assert (
        await deliberations.submit(replace(OF_STORY, context="a design"), LOCAL)
    ).context == "a design"


async def test_a_task_that_cannot_start_has_a_failed_result_with_the_reason(bus: MemoryBus) -> None:
    deliberations = DeliberationService(bus, Remembering(), Defaults(LimitSettings()))
    request = replace(TASK, task_id="task-9", repository=RepositoryRef(id="gone"))
    reason = NoCouncil("the dev council was deleted; create one with CreateCouncil")
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        collecting = group.create_task(Collector(bus, Remembering(), tick_seconds=0.01).run())
        await deliberations.refuse(request, reason, OTHER)
        outcome = await deliberations.wait(TaskId("task-9"), OTHER)
        assert (outcome.status, outcome.winner_id) == (DeliberationStatus.FAILED, "")
        assert (
            outcome.error_message == f"No seat proposed anything: 1 x NO_COUNCIL. {reason.message}"
        )
        other_submission = await deliberations.submit(request, OTHER)
        assert other_submission.own_id == "task-9"
        await deliberations.refuse(request, RepositoryError("another reason"), OTHER)
        assert (
            await deliberations.wait(TaskId("task-9"), OTHER)
        ).error_message == outcome.error_message
        collecting.cancel()
    assert (await bus.state("WORK")).messages == 0


async def test_a_request_can_be_checked_without_recording_it(
    bus: MemoryBus, deliberations: DeliberationService
) -> None:
    await deliberations.check(replace(TASK, repository=RepositoryRef(id="sample")), LOCAL)
    with pytest.raises(InvalidRequest, match="the task is empty"):
        await deliberations.check(replace(TASK, description=" "), LOCAL)
    assert (await bus.state("EVENTS")).messages == 0


async def test_resuming_within_a_message_repeats_and_misses_nothing(
    bus: MemoryBus, deliberations: DeliberationService
) -> None:
    await deliberations.submit(replace(TASK, task_id="task-1"), LOCAL)

    def turn(number: int) -> bytes:
        return encode(
            new_event(
                EventType.SEAT_TURN,
                "task-1",
                {"task_id": "task-1", "seat": "agent-dev-001"},
                ordinal=number,
            )
        )

    for numbers in ((1, 2, 3), (4,), (2, 5, 6), (5,), (7, 8)):  # 2 and 5 came from two hosts
        await bus.put_raw(
            "agent.results.task-1", encode_batch([turn(number) for number in numbers])
        )
    await bus.publish(new_event(EventType.DELIBERATION_DECIDED, "task-1", {"task_id": "task-1"}))
    all_events = [recorded async for recorded in deliberations.watch(TaskId("task-1"), 0, LOCAL)]
    assert len(all_events) == len({recorded.event.id for recorded in all_events}) == 10
    places = [recorded.position for recorded in all_events]
    assert places == sorted(set(places))
    for number, place in enumerate(places):
        assert [r.event.id async for r in deliberations.watch(TaskId("task-1"), place, LOCAL)] == [
            r.event.id for r in all_events[number + 1 :]
        ]
    for recorded in all_events:  # a seq of the log itself loses nothing either
        rest = [
            r.event.id async for r in deliberations.watch(TaskId("task-1"), recorded.seq, LOCAL)
        ]
        assert rest[len(rest) - (9 - all_events.index(recorded)) :] == [
            r.event.id for r in all_events[all_events.index(recorded) + 1 :]
        ]


def test_several_models_alternate_over_the_seats() -> None:
    models = Models.of(LlmSettings(model="qwen"), {"x": LlmSettings(model="deep", tier="large")})
    defaults = Defaults(LimitSettings(), models=models)
    planned = plan_deliberation(
        replace(TASK, num_agents=3, model="default, large"), LOCAL, defaults, NOW
    )
    assert planned.model == ""
    assert [planned.model_of(seat) for seat in planned.seats] == ["", "x", ""]
    with pytest.raises(InvalidRequest, match="gpt"):
        plan_deliberation(replace(TASK, model="default,gpt"), LOCAL, defaults, NOW)


JUDGED = DeliberationRequest(
    description="",
    role="dev",
    protocol="judge",
    head="b" * 40,
    repository=RepositoryRef("sample", ref="a" * 40),
    tests_only=True,
)


async def test_a_judged_change_gets_its_description_from_its_commits(
    deliberations: DeliberationService,
) -> None:
    submitted = await deliberations.submit(replace(JUDGED, task_id="judged"), LOCAL)
    assert submitted.seats == ("change",)
    assert (submitted.base_sha, submitted.merge) == ("a" * 40, ("b" * 40,))
    assert submitted.description == "The change bbbbbbb"
    assert submitted.asks_no_model
    resubmitted = await deliberations.submit(replace(JUDGED, task_id="judged"), LOCAL)
    assert resubmitted.task_id == submitted.task_id


async def test_alternatives_to_a_change_are_seats(deliberations: DeliberationService) -> None:
    request = replace(JUDGED, tests_only=False, num_agents=3)
    submitted = await deliberations.submit(request, LOCAL)
    assert submitted.seats == ("change", "agent-dev-001", "agent-dev-002")
    assert not submitted.asks_no_model
    assert [submitted.merges(seat) for seat in submitted.seats] == [True, False, False]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head": ""}, "needs a head"),
        ({"protocol": "vote"}, "under the protocol judge only"),
        ({"num_agents": 2}, "rivals need a model"),
        ({"repository": None}, "name the repository"),
        ({"protocol": "single", "head": ""}, "without a model"),
    ],
)
async def test_an_invalid_judgement_request_is_refused(
    deliberations: DeliberationService, fields: dict[str, Any], message: str
) -> None:
    request = replace(JUDGED, **{"description": "Do it", **fields})
    with pytest.raises(InvalidRequest, match=message):
        await deliberations.submit(request, LOCAL)


async def test_a_caller_without_a_role_cancels_only_its_own_deliberations(
    bus: MemoryBus, deliberations: DeliberationService
) -> None:
    request = DeliberationRequest(description="x", role="dev", task_id="mine")
    await deliberations.submit(request, OTHER)
    colleague = Principal("mallory", OTHER.tenant)
    with pytest.raises(Refused, match="mallory did not submit 'mine'"):
        await deliberations.cancel(TaskId("mine"), "", colleague)
    lead = replace(colleague, roles=frozenset({"po"}))
    assert await deliberations.cancel(TaskId("mine"), "", lead) == DeliberationStatus.CANCELLED
    assert await deliberations.cancel(TaskId("mine"), "", OTHER) == DeliberationStatus.CANCELLED
