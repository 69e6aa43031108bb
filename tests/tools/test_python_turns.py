"""From a model's reply to the proposal: a real model server, gateway and runner."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from moothall.deliberation.recorded_model import Recording
from moothall.domain.event import EventType
from moothall.domain.tool import BlockLimits
from moothall.testing.model import step_of
from support.council import ONE, CouncilEnvironment, act, code, of, open_council, outcomes
from support.python import open_coding_council
from support.repos import SOLUTION

pytestmark = pytest.mark.e2e

APPEND = f"ws.write('src/utils.py', ws.read('src/utils.py') + {SOLUTION!r})"


Open = Callable[..., AbstractAsyncContextManager[CouncilEnvironment]]


@pytest.fixture
def council(tmp_path: Path) -> Open:
    return functools.partial(open_coding_council, tmp_path)


def script(*turns: Any) -> Any:
    """Answer the n-th turn with the n-th text, and later turns with the last one."""

    def answer(_body: Any, headers: Any) -> Any:
        return turns[min(int(step_of(headers).split(".")[1]), len(turns)) - 1]

    return answer


async def test_a_block_changes_the_workspace_through_the_tool_gateway(council: Open) -> None:
    async with council(script(code(f"{APPEND}\nprint('written')\nlen(ws.glob('**/*.py'))"))) as app:
        events = await app.run(app.deliberation("single", 1))
    assert outcomes(events) == {ONE: "proposed"}
    (proposed,) = of(events, EventType.SEAT_PROPOSED)
    assert "+def hello_world() -> str:" in proposed["proposal"]["diff"]
    assert [item["tool"] for item in proposed["proposal"]["operations"]] == [
        "python",
        "files.read",
        "files.write",
        "files.list",
    ]
    called = [
        (data["request_id"], data["tool"], data["status"])
        for data in of(events, EventType.TOOL_FINISHED)
    ]
    ids = f"task-1/{ONE}/propose/0.1"
    assert called == [
        (f"{ids}.1", "files.read", "success"),
        (f"{ids}.2", "files.write", "success"),
        (f"{ids}.3", "files.list", "success"),
    ]


async def test_python_works_in_block_mode(council: Open) -> None:
    reply = f"append it\n<python>\n{APPEND}\n</python>"
    async with council(script(reply), schemas=False) as app:
        events = await app.run(app.deliberation("single", 1))
    assert outcomes(events) == {ONE: "proposed"}


@pytest.mark.parametrize("schemas", [True, False])
async def test_turns_with_one_or_several_tools_are_accepted(council: Open, schemas: bool) -> None:  # noqa: FBT001 - a parameter of the test
    calls = [
        ("files.read", {"path": "src/utils.py"}),
        ("files.append", {"path": "src/utils.py", "content": SOLUTION}),
    ]
    blocks = "\n".join(
        f"<tool>{json.dumps({'name': name, 'args': args})}</tool>" for name, args in calls
    )
    async with council(script(act(*calls) if schemas else blocks), schemas=schemas) as app:
        events = await app.run(app.deliberation("single", 1))
    assert [data["tool"] for data in of(events, EventType.TOOL_FINISHED)] == [
        "files.read",
        "files.append",
    ]
    assert outcomes(events) == {ONE: "proposed"}


@pytest.mark.parametrize(
    ("reply", "correction"),
    [
        ("I would look at the file first.", "it holds none of"),
        (
            '<tool>{"name": "files.list", "args": {}}</tool><python>1</python>',
            "it holds tool and python",
        ),
        ("<python>  </python>", "<python> is empty"),
        ("<python>1", "is not closed"),
    ],
)
async def test_invalid_turns_in_block_mode_are_answered_with_a_correction(
    council: Open, reply: str, correction: str
) -> None:
    async with council(script(reply, f"<python>{APPEND}</python>"), schemas=False) as app:
        events = await app.run(app.deliberation("single", 1))
    assert correction in app.server.requests[1].prompt
    assert outcomes(events) == {ONE: "proposed"}


async def test_a_json_turn_without_an_action_is_answered_with_a_correction(council: Open) -> None:
    async with council(script(json.dumps({"thought": "hm"}), code(APPEND))) as app:
        await app.run(app.deliberation("single", 1))
    assert "it holds none of" in app.server.requests[1].prompt


@pytest.mark.parametrize("schemas", [True, False])
async def test_python_beside_a_finish_runs_first(council: Open, schemas: bool) -> None:  # noqa: FBT001 - a parameter of the test
    code_and_finish = (
        json.dumps({"thought": "hm", "python": "print(6 * 7)", "finish": "done"})
        if schemas
        else "<python>print(6 * 7)</python><finish>done</finish>"
    )
    change = code(APPEND) if schemas else f"<python>{APPEND}</python>"
    async with council(script(code_and_finish, change), schemas=schemas) as app:
        events = await app.run(app.deliberation("single", 1))
    assert "python: success\n--- printed [" in app.server.requests[1].prompt
    assert "42" in app.server.requests[1].prompt
    assert outcomes(events) == {ONE: "proposed"}


async def test_output_and_value_of_a_block_are_fenced_and_a_failed_tool_raises(
    council: Open,
) -> None:
    looking = (
        "print('looked')\ntry:\n    ws.read('no.py')\nexcept ToolError as error:\n    "
        "print(error)\n{'files': 2}"
    )
    async with council(script(code(looking), code("ws.read('no.py')"), code(APPEND))) as app:
        await app.run(app.deliberation("single", 1))
    second, third = (call.prompt for call in app.server.requests[1:3])
    assert "python: success\n--- printed [" in second
    assert "looked\nfiles.read: error: 'no.py' does not exist" in second
    assert '{"files": 2}' in second
    assert "python: error\n--- error [" in third
    assert "RuntimeError: files.read: error: 'no.py' does not exist" in third


async def test_a_recorded_python_turn_is_repeated_identically(council: Open) -> None:
    async with council(script(code(APPEND))) as app:
        first = await app.run(app.deliberation("single", 1))
        repeated = await app.run(app.deliberation("single", 1), Recording.of(first))
    assert len(app.server.requests) == 1
    assert [data["request_id"] for data in of(repeated, EventType.TOOL_FINISHED)] == [
        data["request_id"] for data in of(first, EventType.TOOL_FINISHED)
    ]


@pytest.mark.parametrize(("window", "offered"), [(8192, False), (32_000, True)])
async def test_python_is_offered_only_to_large_context_windows_and_run_for_all(
    council: Open,
    window: int,
    offered: bool,  # noqa: FBT001 - as above
) -> None:
    async with council(script(code(APPEND)), context_tokens=window) as app:
        events = await app.run(app.deliberation("single", 1))
    (call,) = app.server.requests
    schema = json.dumps(call.body["response_format"]["json_schema"]["schema"])
    assert ('"python"' in schema, "ws.glob" in call.prompt) == (offered, offered)
    assert outcomes(events) == {ONE: "proposed"}


async def test_a_block_may_not_exceed_its_number_of_tool_calls(council: Open) -> None:
    looping = "n = 0\nwhile True:\n    ws.read('src/utils.py')\n    n += 1"
    async with council(
        script(code(looping), code(APPEND)), limits=BlockLimits(tool_calls=3)
    ) as app:
        events = await app.run(app.deliberation("single", 1))
    assert (
        len([data for data in of(events, EventType.TOOL_FINISHED) if "/0.1." in data["request_id"]])
        == 3
    )
    assert "python: budget_exceeded" in app.server.requests[1].prompt
    assert outcomes(events) == {ONE: "proposed"}


async def test_calls_refused_by_the_tool_gateway_are_refused_in_a_block_too(council: Open) -> None:
    trying = "\n".join(
        f"try:\n    print({call})\nexcept ToolError as error:\n    print(error)"
        for call in (
            "ws.read('../../etc/passwd')",
            "ws.read('/etc/passwd')",
            "ws.write('.git/hooks/pre-commit', 'x')",
        )
    )
    async with council(script(code(trying), code(APPEND))) as app:
        events = await app.run(app.deliberation("single", 1))
    prompt = app.server.requests[1].prompt
    assert "root:" not in prompt
    refused = [
        data["status"]
        for data in of(events, EventType.TOOL_FINISHED)
        if "/0.1." in data["request_id"]
    ]
    assert set(refused) <= {"blocked", "invalid"}
    assert len(refused) == 3


async def test_without_a_runner_a_python_reply_is_refused(tmp_path: Path) -> None:
    append = act(("files.append", {"path": "src/utils.py", "content": SOLUTION}))
    async with open_council(tmp_path, script(code(APPEND), append)) as app:
        await app.run(app.deliberation("single", 1))
    assert "Python is not available here" in app.server.requests[1].prompt
