"""The agent runner: order, concurrency limit, restarts, and the condition of completion."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from moothall.agents.runner import AgentRun, State, check_order
from moothall.agents.specs import Spec
from moothall.api.kernel_client import Submitted
from moothall.domain.ids import LOCAL, Principal, TaskId
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.proposal import SeatOutcome, SeatStatus
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest
from moothall.ports import Deliberations

HERE = RepositoryRef(id="sample", ref="main")
DONE = Outcome("x", DeliberationStatus.COMPLETED, winner_id="s", commit_sha="c", branch="b")
Decide = Callable[[DeliberationRequest], Outcome]


def passed_outcome(request: DeliberationRequest, verdict: str = "passed") -> Outcome:
    """Return an outcome whose winner passed every validation."""
    checks = {f"validation-{number}": verdict for number, _ in enumerate(request.checks, 1)}
    result = Result(
        1,
        "s",
        "dev",
        1.0,
        ("all is well",),
        True,
        True,
        content="It is done, all tests pass.",
        checks=checks,
    )
    return replace(
        DONE, task_id=request.task_id, commit_sha=f"commit-of-{request.task_id}", results=(result,)
    )


def failed_outcome(request: DeliberationRequest) -> Outcome:
    return Outcome(request.task_id, DeliberationStatus.FAILED, error_message="nobody knew")


class FakeDeliberations:
    """Deliberations decided by `decide`, each after a turn of the event loop; `max_running` is the
    maximum number of concurrent ones.
    """

    def __init__(self, decide: Decide = passed_outcome) -> None:
        self.decide = decide
        self.requests: list[DeliberationRequest] = []
        self.running = self.max_running = 0
        self.cancelled: list[str] = []
        self.go = asyncio.Event()
        self.go.set()

    async def submit(self, request: DeliberationRequest, principal: Principal) -> Submitted:
        assert principal == LOCAL
        self.requests.append(request)
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        return Submitted(TaskId(request.task_id))

    async def wait(self, task_id: str, principal: Principal) -> Outcome:
        await self.go.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        return self.decide(next(request for request in self.requests if request.task_id == task_id))

    async def cancel(self, task_id: str, reason: str, principal: Principal) -> None:
        self.cancelled.append(task_id)


def agent(name: str, *needs: str, **fields: Any) -> Spec:
    data = {
        "metadata": {"name": name},
        "objectives": [{"description": f"do {name}", "validation": f"make {name}"}],
    }
    return Spec.model_validate(data | {"dependencies": list(needs)} | fields)


def run(deliberations: FakeDeliberations, at_once: int = 4, **options: Any) -> AgentRun:
    return AgentRun(cast("Deliberations", deliberations), LOCAL, HERE, "run", at_once, **options)


def began(deliberations: FakeDeliberations) -> list[str]:
    return [
        request.checks[0].removeprefix("make ")
        for request in deliberations.requests
        if request.checks
    ]


async def test_at_most_four_of_thirty_agents_run_concurrently() -> None:
    deliberations = FakeDeliberations()
    results = await run(deliberations).run_all([agent(f"a{number:02}") for number in range(30)])
    assert deliberations.max_running == 4
    assert len(deliberations.requests) == 30
    assert {end.state for end in results.values()} == {State.COMPLETED}


async def test_a_dependent_starts_after_its_dependencies_and_on_their_commit() -> None:
    deliberations = FakeDeliberations()
    specs = [
        agent("c", "b", spec={"priority": "critical"}),
        agent("b", "a", spec={"priority": "critical"}),
        agent("a", spec={"priority": "low"}),
        agent("z", spec={"priority": "high"}),
    ]
    await run(deliberations, 1).run_all(specs)
    assert began(deliberations) == ["z", "a", "b", "c"] == list(check_order(specs))
    by_name = dict(zip(began(deliberations), deliberations.requests, strict=True))
    assert by_name["a"].repository == HERE
    assert by_name["b"].repository == replace(HERE, ref=f"commit-of-{by_name['a'].task_id}")


async def test_results_of_several_dependencies_are_merged_first() -> None:
    deliberations = FakeDeliberations()
    await run(deliberations).run_all([agent("a"), agent("b"), agent("c", "a", "b")])
    a, b, merged, c = deliberations.requests
    assert merged.merge == (f"commit-of-{a.task_id}", f"commit-of-{b.task_id}")
    assert c.repository == replace(HERE, ref=f"commit-of-{merged.task_id}")


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (
            [agent("a", "b"), agent("b", "c"), agent("c", "a")],
            "these agents depend on each other: .*a → .*→ a|b → .*→ b|c → .*→ c",
        ),
        ([agent("a", "nowhere")], "a needs 'nowhere', which does not exist; known are a"),
    ],
)
async def test_cycles_and_missing_dependencies_are_named(
    specs: Sequence[Spec], message: str
) -> None:
    deliberations = FakeDeliberations()
    with pytest.raises(InvalidRequest, match=message):
        await run(deliberations).run_all(specs)
    assert not deliberations.requests


async def test_dependents_of_a_failed_agent_are_skipped_unless_optional() -> None:
    deliberations = FakeDeliberations(
        lambda request: (
            failed_outcome(request) if "make a" in request.checks else passed_outcome(request)
        )
    )
    specs = [
        agent("a"),
        agent("b", "a"),
        agent("c", "b"),
        agent("d", dependencies={"optional": ["a", "nowhere"]}),
    ]
    results = await run(deliberations).run_all(specs)
    assert [(end.name, end.state) for end in results.values()] == [
        ("a", "failed"),
        ("b", "skipped"),
        ("c", "skipped"),
        ("d", "completed"),
    ]
    assert (results["a"].reason, results["b"].reason) == ("nobody knew", "a did not complete")


@pytest.mark.parametrize("verdict", ["failed", "errored", "missing"])
async def test_only_the_validation_decides_the_result(verdict: str) -> None:
    results = await run(
        FakeDeliberations(lambda request: passed_outcome(request, verdict))
    ).run_all([agent("a")])
    assert (results["a"].state, results["a"].reason) == (
        "failed",
        f"the validation 'make a' is {verdict}",
    )


async def test_a_failed_run_is_retried_with_a_growing_delay_and_another_seed() -> None:
    waits: list[float] = []
    tries: list[DeliberationRequest] = []

    def third_time(request: DeliberationRequest) -> Outcome:
        tries.append(request)
        return passed_outcome(request) if len(tries) == 3 else failed_outcome(request)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    restart_policy = {"restart": {"max_restarts": 5, "backoff_seconds": 2}}
    results = await run(FakeDeliberations(third_time), sleep=sleep).run_all(
        [agent("a", **restart_policy)]
    )
    assert (results["a"].state, results["a"].runs, waits) == ("completed", 3, [2, 4])
    assert (
        len({request.task_id for request in tries}) == len({request.seed for request in tries}) == 3
    )
    waits.clear()
    results = await run(FakeDeliberations(failed_outcome), sleep=sleep).run_all(
        [agent("a", restart={"max_restarts": 1, "backoff_seconds": 500})]
    )
    assert (results["a"].state, results["a"].runs, waits) == ("failed", 2, [300])


async def test_the_fields_of_a_spec_reach_the_service() -> None:
    deliberations = FakeDeliberations()
    fields = {
        "spec": {"role": "qa", "seats": 3, "protocol": "vote"},
        "model": {"profile": "large", "seed": 7},
        "security": {
            "capabilities_required": ["filesystem-read"],
            "resource_limits": {"timeout": "2m"},
        },
    }
    await run(deliberations).run_all([agent("a", **fields)])
    (request,) = deliberations.requests
    assert (request.role, request.num_agents, request.protocol, request.model, request.seed) == (
        "qa",
        3,
        "vote",
        "large",
        7,
    )
    assert (request.constraints.timeout_seconds, request.checks) == (120, ("make a",))
    assert "files.read" in request.tools
    assert "files.write" not in request.tools


@pytest.mark.parametrize(
    ("timeout", "longest", "expected"),
    [("2m", 60, 60), ("0.2s", 60, 1), ("9999999999h", 1800, 1800), (None, 60, 0)],
)
async def test_a_spec_can_shorten_the_time_limit_and_never_extend_it(
    timeout: str | None, longest: int, expected: int
) -> None:
    deliberations = FakeDeliberations()
    await run(deliberations, longest=longest).run_all(
        [agent("a", security={"resource_limits": {"timeout": timeout} if timeout else {}})]
    )
    assert deliberations.requests[0].constraints.timeout_seconds == expected


async def test_an_interrupted_run_cancels_running_tasks() -> None:
    deliberations = FakeDeliberations()
    deliberations.go.clear()
    running = asyncio.create_task(run(deliberations).run_all([agent("a"), agent("b")]))
    async with asyncio.timeout(10):
        while deliberations.running < 2:
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(deliberations.cancelled) == sorted(
        request.task_id for request in deliberations.requests
    )


async def test_a_seat_reports_why_it_failed() -> None:
    def seat(request: DeliberationRequest) -> Outcome:
        return replace(
            failed_outcome(request),
            seats=(SeatOutcome("s", SeatStatus.FAILED, "X", "the program make was not found"),),
        )

    assert (await run(FakeDeliberations(seat)).run_all([agent("a")]))[
        "a"
    ].reason == "the program make was not found"
