"""The workflow engine with a simulated workspace: appended lines are local, posted ones are
external effects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.workflows.engine import Engine
from moothall.workflows.plan import PlanLimits, Workflow, read_plan
from moothall.workflows.record import End, Record, StepState
from support.tool_gateway import in_seconds
from support.tools import CATALOGUE

ALLOWED = PlanLimits(CATALOGUE, lambda _: "", 50, 4, 5)
S = ToolStatus


class Killed(Exception):
    """The simulated end of the process."""


@dataclass
class World:
    """A workspace, the outside world, and the log; `kill` is the number of further events or calls
    before the process is killed.
    """

    plan: Workflow
    answers: dict[str, list[ToolStatus]] = field(default_factory=dict)
    kill: int = 10**9
    lines: list[str] = field(default_factory=list)
    commits: list[list[str]] = field(default_factory=lambda: [[]])
    appended: list[str] = field(default_factory=list)
    began: list[str] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    begun_outside: set[str] = field(default_factory=set)
    results: dict[str, ToolResult] = field(default_factory=dict)
    in_hand: int = 0
    max_running: int = 0
    on_call: Callable[[ToolCall], None] = lambda _: None

    @property
    def deadline(self) -> datetime:
        return in_seconds(600)

    def live(self) -> None:
        self.kill -= 1
        if self.kill < 0:
            raise Killed

    async def call(self, call: ToolCall) -> ToolResult:
        self.live()
        self.on_call(call)
        self.began.append(call.request_id)
        step = call.request_id.split("/")[1]
        self.in_hand += 1
        self.max_running = max(self.max_running, self.in_hand)
        await asyncio.sleep(0)
        self.in_hand -= 1
        statuses = self.answers.get(f"{step}/undo" if "/undo/" in call.request_id else step)
        status = statuses.pop(0) if statuses else S.SUCCESS
        if CATALOGUE[call.tool].outside:
            self.begun_outside.add(call.request_id)
            self.live()
            self.appended.append(step)
        elif call.tool == "files.append":
            self.lines.append(str(call.arguments["content"]))
        self.live()
        result = ToolResult(
            call.request_id, call.tool, status, {"path": "log", "echo": dict(call.arguments)}
        )
        self.results[call.request_id] = result
        return result

    async def wait_until_resolved(self, call: ToolCall) -> ToolResult:
        return await self.call(call)

    async def find_result(self, request_id: str) -> ToolResult | bool:
        return self.results.get(request_id, request_id in self.begun_outside)

    async def commit(self) -> str:
        self.commits.append(list(self.lines))
        return str(len(self.commits) - 1)

    async def rewind(self, commit: str) -> None:
        self.lines = list(self.commits[int(commit or 0)])

    def record(self) -> Record:
        record = Record(document={})
        for fact in self.facts:
            record.apply(EventType.WORKFLOW_STEP, fact)
        return record

    async def run(self) -> tuple[End, str]:
        record = self.record()
        # Like a workspace that was reopened.
        self.lines = list(self.commits[int(record.commit or 0)])
        self.in_hand = 0

        async def announce(step: str, state: StepState, attempt: int, **details: Any) -> None:
            self.live()
            result = details.pop("result", None)
            data = {
                "step": step,
                "state": state,
                "attempt": attempt,
                "compensation": False,
                "error": "",
                **details,
            }
            fact = {
                **data,
                "commit_sha": details.get("commit", ""),
                "result": dump(result) if result else {},
            }
            self.facts.append(fact)
            record.apply(EventType.WORKFLOW_STEP, fact)

        return await Engine(self.plan, record, cast("Any", self), announce, CATALOGUE).run()

    async def run_to_the_end(self, lives: list[int]) -> tuple[End, str]:
        """Run, be killed and run again; the last run is not killed."""
        for life in lives:
            self.kill = life
            try:
                return await self.run()
            except* Killed:
                pass
        self.kill = 10**9
        return await self.run()

    def state_lines(self) -> list[str]:
        return [
            f"{fact['step']}{' undo' if fact['compensation'] else ''} {fact['state']}"
            for fact in self.facts
        ]


def append(name: str, content: str | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "id": name,
        "tool": "files.append",
        "arguments": {"path": "log", "content": content or name},
        **fields,
    }


def post(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": name,
        "tool": "http.post",
        "arguments": {"url": "https://e.org", "body": name},
        **fields,
    }


def look_step(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "tool": "files.info", "arguments": {"path": "log"}, **fields}


def world(*steps: Mapping[str, Any], parallelism: int = 4, **answers: list[ToolStatus]) -> World:
    return World(
        read_plan({"id": "wf", "parallelism": parallelism, "steps": list(steps)}, ALLOWED), answers
    )


async def test_outputs_are_passed_on_and_a_failed_step_is_retried() -> None:
    flow = world(
        append("a", retry={"attempts": 3}),
        append("b", "after ${steps.a.output.path}: ${steps.a.status}"),
        a=[S.ERROR, S.TIMEOUT],
    )
    assert await flow.run() == (End.SUCCEEDED, "")
    assert flow.began == ["wf/a/1", "wf/a/2", "wf/a/3", "wf/b/1"]
    assert flow.lines[-1] == "after log: success"
    assert flow.state_lines() == [
        "a started",
        "a retrying",
        "a started",
        "a retrying",
        "a started",
        "a succeeded",
        "b started",
        "b succeeded",
    ]


async def test_stop_skips_the_following_steps() -> None:
    flow = world(append("a"), append("b"), append("c"), b=[S.ERROR])
    end, reason = await flow.run()
    assert (end, reason) == (End.FAILED, "step b: it failed")
    assert flow.state_lines()[-2:] == ["b failed", "c skipped"]


async def test_continue_skips_only_steps_that_need_the_missing_output() -> None:
    flow = world(
        append("a", on_failure="continue"),
        append("b", "${steps.a.output.path}"),
        append("c", "it was ${steps.a.status}"),
        append("d", needs=["a"]),
        a=[S.ERROR],
    )
    assert (await flow.run())[0] is End.PARTIAL
    assert "b skipped" in flow.state_lines()
    assert flow.lines[-2:] == ["it was error", "d"]


async def test_compensations_run_in_reverse_even_if_one_fails() -> None:
    def with_undo(name: str) -> dict[str, Any]:
        arguments = {"path": "log", "content": f"undone ${{steps.{name}.output.path}} {name}"}
        return append(name, compensate={"tool": "files.append", "arguments": arguments})

    flow = world(
        with_undo("a"),
        append("b"),
        with_undo("c"),
        append("d", on_failure="compensate"),
        d=[S.ERROR],
    )
    end, reason = await flow.run()
    assert (end, "were undone" in reason) == (End.COMPENSATED, True)
    assert flow.lines[-2:] == ["undone log c", "undone log a"]
    flow = world(with_undo("a"), with_undo("c"), append("d", on_failure="compensate"), d=[S.ERROR])
    flow.answers["c/undo"] = [S.ERROR]
    end, reason = await flow.run()
    assert (end, reason.endswith("could not be undone for c")) == (End.FAILED, True)
    assert flow.state_lines()[-4:] == [
        "c undo started",
        "c undo failed",
        "a undo started",
        "a undo succeeded",
    ]


@pytest.mark.parametrize("status", [S.BLOCKED, S.INVALID, S.BUDGET_EXCEEDED])
async def test_a_step_that_cannot_succeed_is_not_retried(status: ToolStatus) -> None:
    flow = world(append("a", retry={"attempts": 5}), a=[status])
    assert (await flow.run())[0] is End.FAILED
    assert flow.began == ["wf/a/1"]


@pytest.mark.parametrize("status", [S.TIMEOUT, S.OUTCOME_UNKNOWN])
async def test_an_external_effect_with_an_unknown_outcome_is_never_repeated(
    status: ToolStatus,
) -> None:
    flow = world(post("a", retry={"attempts": 5}), a=[status])
    assert (await flow.run())[0] is End.FAILED
    assert flow.appended == ["a"]


async def test_a_step_whose_executor_died_runs_again_on_unchanged_files() -> None:
    flow = world(append("a"), append("b"), b=[S.OUTCOME_UNKNOWN, S.OUTCOME_UNKNOWN])
    assert (await flow.run())[0] is End.SUCCEEDED
    assert flow.lines == ["a", "b"]
    assert flow.began == ["wf/a/1", "wf/b/1", "wf/b/2", "wf/b/3"]
    flow = world(append("a"), append("b"), b=[S.OUTCOME_UNKNOWN] * 9)
    assert (await flow.run())[0] is End.FAILED
    assert (flow.lines, len(flow.began)) == (["a"], 4)


async def test_a_parked_step_waits_for_approval_and_uses_its_result() -> None:
    flow = world(post("a"), a=[S.PARKED])
    assert (await flow.run())[0] is End.SUCCEEDED
    assert flow.state_lines() == ["a started", "a parked", "a succeeded"]
    assert set(flow.began) == {"wf/a/1"}


async def test_steps_run_concurrently_but_only_one_changes_files() -> None:
    flow = world(*(look_step(f"l{number}", needs=[]) for number in range(9)), parallelism=3)
    assert (await flow.run())[0] is End.SUCCEEDED
    assert flow.max_running == 3
    writers = world(*(append(f"w{number}", needs=[]) for number in range(5)))
    assert (await writers.run())[0] is End.SUCCEEDED
    assert writers.max_running == 1


async def test_a_reference_to_a_missing_output_fails_only_its_step() -> None:
    flow = world(
        look_step("a"), append("b", "${steps.a.output.type}", on_failure="continue"), append("c")
    )
    assert (await flow.run())[0] is End.PARTIAL
    assert "steps.a.output has path, echo" in str([fact["error"] for fact in flow.facts])


async def test_a_failed_check_is_a_failure_unless_accepted() -> None:
    class Red(World):
        async def call(self, call: ToolCall) -> ToolResult:
            return ToolResult(
                call.request_id, call.tool, S.SUCCESS, {"verdict": "failed", "exit_code": 1}
            )

    for accept, end in (("success", End.FAILED), ("any", End.SUCCEEDED)):
        plan = read_plan(
            {"steps": [{"id": "t", "tool": "tests.pytest", "accept": accept}]}, ALLOWED
        )
        assert (await Red(plan).run())[0] is end


STEPS = (
    append("a"),
    post("b"),
    append("c", "${steps.a.output.path} ${steps.b.status}", needs=["b"]),
    look_step("d", needs=["a"]),
    append("e", needs=["a"]),
)


@given(st.lists(st.integers(0, 14), max_size=5))
def test_no_step_is_done_twice_despite_kills_at_any_point(lives: list[int]) -> None:
    flow = world(*STEPS)
    end, _ = asyncio.run(flow.run_to_the_end(lives))
    assert flow.appended.count("b") <= 1, flow.state_lines()
    unknown = "b unknown" in flow.state_lines()
    assert end is (End.FAILED if unknown else End.SUCCEEDED), flow.state_lines()
    if not unknown:
        assert flow.appended == ["b"]
        assert sorted(flow.lines) == ["a", "e", "log success"], flow.state_lines()
    else:
        assert len(flow.lines) == len(set(flow.lines))
    end_lines = [
        line
        for line in flow.state_lines()
        if line.split()[1] in {"succeeded", "failed", "unknown", "skipped"}
    ]
    assert len(end_lines) == len(set(end_lines)) == len(STEPS)


@given(st.lists(st.integers(0, 14), max_size=5))
def test_every_step_is_compensated_once_despite_kills_at_any_point(lives: list[int]) -> None:
    def undone(name: str) -> dict[str, Any]:
        return append(
            name,
            compensate={
                "tool": "files.append",
                "arguments": {"path": "log", "content": f"-{name}"},
            },
        )

    flow = world(undone("a"), undone("b"), append("c", on_failure="compensate"))
    flow.answers["c"] = [S.ERROR] * 99
    end, _ = asyncio.run(flow.run_to_the_end(lives))
    assert end is End.COMPENSATED
    assert flow.lines == ["a", "b", "c", "-b", "-a"]
