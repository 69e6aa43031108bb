"""`agents.run` in a block of Python: concurrent, and within the seat's permissions."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from moothall.deliberation.code_blocks import SubAgentLimits
from moothall.deliberation.recorded_model import Recording
from moothall.domain.budget import Budget
from moothall.domain.event import EventType
from moothall.domain.tool import BlockLimits
from moothall.testing.model import step_of
from support.council import ONE, CouncilEnvironment, act, code, finish, of, outcomes
from support.python import open_coding_council
from support.repos import SOLUTION

pytestmark = pytest.mark.e2e

Open = Callable[..., AbstractAsyncContextManager[CouncilEnvironment]]
APPEND = act(("files.append", {"path": "src/utils.py", "content": SOLUTION}))


@pytest.fixture
def council(tmp_path: Path) -> Open:
    return functools.partial(open_coding_council, tmp_path)


def script(first: str, agent: Callable[[dict[str, Any], int], Any]) -> Any:
    """Reply as the seat with `first` and then append the solution; sub-agents reply with what
    `agent` returns for a call and its number.
    """

    def answer(body: dict[str, Any], headers: Mapping[str, str]) -> Any:
        place = step_of(headers).split(".")
        if len(place) == 3:
            return agent(body, int(place[2]))
        return first if place[1] == "1" else APPEND

    return answer


def prompt_of(body: dict[str, Any]) -> str:
    return str(body["messages"][1]["content"])


def calls_of(app: CouncilEnvironment, step: str = "0.1.") -> list[str]:
    return [
        call.call_id.rpartition("/")[2]
        for call in app.server.requests
        if call.call_id.rpartition("/")[2].startswith(step)
    ]


async def test_three_sub_agents_run_concurrently_and_answer_in_order(council: Open) -> None:
    all_there = asyncio.Barrier(3)

    async def agent(body: dict[str, Any], _number: int) -> str:
        async with asyncio.timeout(30):
            await all_there.wait()  # sequentially, the first would wait forever
        return finish(
            next(word for word in ("one", "two", "three") if f"say {word}" in prompt_of(body))
        )

    block = "print(agents.run(['say one', 'say two', 'say three']))"
    async with council(script(code(block), agent)) as app:
        events = await app.run(app.deliberation("single", 1))
    assert app.server.peak == 3
    assert "['one', 'two', 'three']" in next(
        call.prompt for call in app.server.requests if call.call_id.endswith("/0.2")
    )
    assert sorted(calls_of(app)) == ["0.1.1", "0.1.13", "0.1.7"]  # six turns each
    assert outcomes(events) == {ONE: "proposed"}


async def test_sub_agents_use_the_seats_tools_under_the_seats_name(council: Open) -> None:
    def agent(_body: dict[str, Any], number: int) -> str:
        return act(("files.read", {"path": "src/utils.py"})) if number == 1 else finish("it greets")

    async with council(script(code("agents.run('what is in src/utils.py?')"), agent)) as app:
        events = await app.run(app.deliberation("single", 1))
    (read,) = [data for data in of(events, EventType.TOOL_FINISHED) if data["tool"] == "files.read"]
    assert (read["request_id"], read["seat"], read["status"]) == (
        f"task-1/{ONE}/propose/0.1.1.1",
        ONE,
        "success",
    )
    second = next(call for call in app.server.requests if call.call_id.endswith("0.1.2"))
    assert "def greet" in second.prompt
    operations = of(events, EventType.SEAT_PROPOSED)[0]["proposal"]["operations"]
    assert [item["tool"] for item in operations] == ["python", "files.read", "files.append"]


async def test_restricted_sub_agents_have_fewer_tools(council: Open) -> None:
    def agent(body: dict[str, Any], number: int) -> str:
        if number == 1:
            assert "files.read(" in body["messages"][0]["content"]
            assert "files.write(" not in body["messages"][0]["content"]
            return act(("files.write", {"path": "a.txt", "content": "x"}))
        return finish("could not")

    async with council(
        script(code("agents.run('write a.txt', tools=['files.read', 'git.push'])"), agent),
        schemas=True,
    ) as app:
        events = await app.run(app.deliberation("single", 1))
    statuses = {data["tool"]: data["status"] for data in of(events, EventType.TOOL_FINISHED)}
    assert statuses["files.write"] in {"blocked", "invalid"}


@pytest.mark.parametrize(
    ("block", "limits", "message"),
    [
        (
            "agents.run(['a', 'b', 'c'])",
            {"fan_out": 2},
            "budget_exceeded: 3 agents were asked for, and 2 are left",
        ),
        (
            "agents.run('a')\nagents.run(['b', 'c'])",
            {"fan_out": 2},
            "2 agents were asked for, and 1 are left",
        ),
        ("agents.run([])", {}, "invalid: give a prompt"),
        ("agents.run('a')", {"depth": 0}, "name 'agents' is not defined"),
    ],
)
async def test_the_number_of_sub_agents_is_bounded(
    council: Open, block: str, limits: dict[str, int], message: str
) -> None:
    async with council(
        script(code(block), lambda _body, _number: finish("done")),
        sub_agents=SubAgentLimits(**limits),
    ) as app:
        events = await app.run(app.deliberation("single", 1))
    assert message in next(
        call.prompt for call in app.server.requests if call.call_id.endswith("/0.2")
    )
    assert outcomes(events) == {ONE: "proposed"}


async def test_nested_sub_agents_end_at_the_maximum_depth_and_have_unique_numbers(
    council: Open,
) -> None:
    deeper = code(
        "try:\n    said = agents.run(['x', 'y'])\nexcept NameError as error:\n    said = "
        "str(error)\nprint(said)"
    )

    def agent(body: dict[str, Any], _number: int) -> str:
        content = body["messages"][-1]["content"]
        if "python: success" in content:
            return finish("deepest" if "'agents' is not defined" in content else "middle")
        return deeper

    async with council(
        script(deeper, agent),
        sub_agents=SubAgentLimits(depth=2, fan_out=4, turns=3),
    ) as app:
        await app.run(app.deliberation("single", 1))
    nested_calls = calls_of(app)
    assert len(nested_calls) == len(set(nested_calls))
    # Two agents with two sub-agents each; a block and everything below it has four, so the last two
    # were refused.
    assert len({int(item.split(".")[2]) for item in nested_calls}) >= 6
    second = next(call.prompt for call in app.server.requests if call.call_id.endswith("/0.2"))
    assert "middle" in second


async def test_sub_agents_share_the_remaining_budget(council: Open) -> None:
    block = "try:\n    agents.run(['a', 'b', 'c'])\nexcept ToolError as error:\n    print(error)"
    async with council(script(code(block), lambda _body, _number: finish("done"))) as app:
        events = await app.run(app.deliberation("single", 1, budget=Budget(calls=2)))
    assert len(app.server.requests) == 2  # the seat's own, and one agent's
    assert "BUDGET_EXCEEDED" in json.dumps(of(events, EventType.SEAT_FAILED))


async def test_sub_agents_share_the_tool_calls_of_their_block(council: Open) -> None:
    def agent(body: dict[str, Any], _number: int) -> str:
        if "budget_exceeded" in body["messages"][-1]["content"]:
            return finish("no more calls")
        return act(*[("files.read", {"path": "src/utils.py"})] * 2)

    async with council(
        script(code("print(agents.run('look often'))"), agent), limits=BlockLimits(tool_calls=5)
    ) as app:
        events = await app.run(app.deliberation("single", 1))
    reads = [data for data in of(events, EventType.TOOL_FINISHED) if data["tool"] == "files.read"]
    assert len(reads) == 5


async def test_recorded_sub_agents_are_not_called_again(council: Open) -> None:
    async with council(
        script(code("print(agents.run(['a', 'b']))"), lambda _body, _number: finish("done"))
    ) as app:
        events = await app.run(app.deliberation("single", 1))
        calls = len(app.server.requests)
        await app.run(app.deliberation("single", 1), Recording.of(events))
        assert len(app.server.requests) == calls


@pytest.mark.parametrize(
    ("reply", "reason", "turns"),
    [
        (
            act(("files.read", {"path": "src/utils.py"})),
            "the same step 3 times, and nothing changed",
            3,
        ),
        (
            act(("files.write", {"path": "a.txt", "content": "x"})),
            "the same change as in an earlier turn",
            2,
        ),
        ("I had rather not.", "the same unusable reply", 2),
    ],
)
async def test_a_looping_sub_agent_ends_like_a_seat(
    council: Open, reply: str, reason: str, turns: int
) -> None:
    async with council(
        script(code("print(agents.run('go on'))"), lambda _body, _number: reply)
    ) as app:
        await app.run(app.deliberation("single", 1))
    assert len(calls_of(app)) == turns
    assert f"(no answer: {reason})" in next(
        call.prompt for call in app.server.requests if call.call_id.endswith("/0.2")
    )
