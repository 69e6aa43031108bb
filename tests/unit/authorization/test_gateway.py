from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.authorization.audit import verify
from moothall.authorization.gateway import ToolGateway
from moothall.authorization.limits import shorten
from moothall.domain.budget import Budget, Ledger, Usage
from moothall.domain.event import Event
from moothall.domain.ids import Principal
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import BusUnavailable, WorkspaceFailed
from moothall.tools.schemas import arguments_digest
from support.tool_gateway import App, echo, in_seconds, open_app, tool_call
from support.tools import CATALOGUE


async def test_a_call_that_passes_every_check_runs_with_defaults_filled_in(app: App) -> None:
    result = await app.tool_gateway.call(app.seat(), tool_call(path="src/utils.py"))

    assert result.status is ToolStatus.SUCCESS
    assert result.output == {"path": "src/utils.py", "start": 1, "lines": 2000}
    assert app.workspace.calls[0].arguments == result.output
    assert result.request_id == "request-1"


async def test_start_and_finish_are_audited_without_the_arguments(app: App) -> None:
    call = tool_call("files.append", path="a.py", content="secret words")
    result = await app.tool_gateway.call(app.seat(), call)

    start, finish = app.records()
    assert (start["phase"], start["status"]) == ("start", "")
    assert (finish["phase"], finish["status"]) == ("finish", "success")
    assert start["arguments_digest"] == arguments_digest(call.arguments)
    assert start["seat"] == "agent-dev-001"
    assert result.audit_id == "host-1:1"
    assert "secret words" not in app.chain.read_text()
    assert verify(app.chain) == ()


async def test_each_result_has_one_event(app: App) -> None:
    await app.tool_gateway.call(app.seat(), tool_call(path="a.py"))
    await app.tool_gateway.call(app.seat(), tool_call("files.nothing", number=2))

    first, second = app.facts.events
    assert first.type == "moothall.tool.finished"
    assert first.data["workspace"] == "ws-1"
    assert first.data["task_id"] == "task-1"
    assert first.data["seat"] == "agent-dev-001"
    assert first.data["status"] == "success"
    assert second.data["status"] == "invalid"
    assert first.id != second.id


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("files.appendd", {}, "did you mean files.append?"),
        ("append_file", {}, "did you mean files.append?"),
        ("read", {"path": "a"}, "did you mean files.read?"),
        ("zzzz", {}, "the tools are files.read, files.write"),
        (
            "files.read",
            {},
            (
                "argument 'path' is missing. Right is files.read(path: string, start?: integer, "
                "lines?: integer)"
            ),
        ),
        (
            "files.append",
            {"path": "a", "contents": "x"},
            "there is no argument 'contents' (did you mean 'content'?)",
        ),
        ("files.read", {"path": 7}, "argument 'path': Input should be a valid string"),
        (
            "files.read",
            {"path": "a", "start": "1"},
            "argument 'start': Input should be a valid integer",
        ),
        ("files.read", {"path": "a", "start": True}, "argument 'start'"),
        ("files.read", {"path": "a", "start": 0}, "greater than or equal to 1"),
        ("git.add", {"paths": "a.py"}, "git.add(paths: list of strings)"),
        ("git.checkout", {"ref": "--orphan"}, "'--orphan' is not a git ref such as HEAD~1"),
        ("git.branch", {"name": "-D"}, "is not a branch name"),
        ("tests.make", {"target": "SHELL=/bin/evil"}, "is not the name of a make target"),
        ("files.read", {"path": "a\ud800"}, "unicode"),
        ("files.read", {"path": object()}, "are not JSON"),
    ],
)
async def test_a_wrong_call_is_answered_with_the_right_form(
    app: App, tool: str, arguments: Any, message: str
) -> None:
    result = await app.tool_gateway.call(app.seat(), tool_call(tool, **arguments))

    assert result.status is ToolStatus.INVALID
    assert message in result.error
    assert app.workspace.calls == []
    assert [record["status"] for record in app.records()] == ["", "invalid"]


async def test_arguments_must_be_an_object(app: App) -> None:
    arguments: Any = ["a.py"]
    call = replace(tool_call(), arguments=arguments)
    result = await app.tool_gateway.call(app.seat(), call)

    assert result.status is ToolStatus.INVALID
    assert "the arguments are not an object" in result.error


async def test_oversized_arguments_are_refused(tmp_path: Path) -> None:
    async with open_app(tmp_path, argument_bytes=1000) as app:
        result = await app.tool_gateway.call(
            app.seat(), tool_call("files.write", path="a", content="é" * 400)
        )
    assert result.status is ToolStatus.INVALID
    assert "at most 1000" in result.error


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../x",
        "a/../../x",
        ".git/config",
        "a/.GIT/hooks/x",
        "-rf",
        "a\0b",
        "~/x",
        "C:/x",
        "a\\..\\x",
    ],
)
async def test_paths_outside_the_workspace_are_blocked(app: App, path: str) -> None:
    for tool, arguments in (
        ("files.read", {"path": path}),
        ("files.write", {"path": path, "content": ""}),
        ("files.search", {"pattern": "x", "glob": path}),
        ("git.add", {"paths": ["ok.py", path]}),
        ("tests.pytest", {"paths": [f"{path}::test_a"]}),
    ):
        result = await app.tool_gateway.call(app.seat(), tool_call(tool, **arguments))
        assert result.status is ToolStatus.BLOCKED
        assert "path" in result.error
    assert app.workspace.calls == []


@pytest.mark.parametrize(
    ("role", "tool", "arguments"),
    [
        ("dev", "git.push", {"branch": "main"}),
        ("dev", "git.pull", {}),
        ("dev", "git.clone", {"url": "https://host.example/x.git"}),
        ("po", "tests.pytest", {}),
        ("po", "files.write", {"path": "a", "content": ""}),
        ("architect", "files.edit", {"path": "a", "old": "b", "new": "c"}),
    ],
)
async def test_ungranted_tools_are_blocked(app: App, role: str, tool: str, arguments: Any) -> None:
    result = await app.tool_gateway.call(app.seat(role=role), tool_call(tool, **arguments))

    assert result.status is ToolStatus.BLOCKED
    assert f"{tool} is not granted" in result.error
    assert app.workspace.calls == []


async def test_a_role_may_read_its_protected_paths_but_not_write_them(app: App) -> None:
    path = "./.github/workflows/ci.yml"
    write = await app.tool_gateway.call(
        app.seat(), tool_call("files.write", path=path, content="x")
    )
    read = await app.tool_gateway.call(app.seat(), tool_call(path=path))
    devops = await app.tool_gateway.call(
        app.seat(role="devops"), tool_call("files.write", path=path, content="x")
    )

    assert (write.status, read.status, devops.status) == (
        ToolStatus.BLOCKED,
        ToolStatus.SUCCESS,
        ToolStatus.SUCCESS,
    )


async def test_editing_a_protected_test_is_allowed_and_gains_nothing(app: App) -> None:
    test = await app.tool_gateway.call(
        app.seat(), tool_call("files.write", path="tests/test_a.py", content="x")
    )
    code = await app.tool_gateway.call(
        app.seat(), tool_call("files.write", path="src/a.py", content="x")
    )

    assert test.status is ToolStatus.SUCCESS
    assert "judged as it was" in test.output["note"]
    assert "note" not in code.output


@pytest.mark.parametrize(
    "changes",
    [
        {"workspace_id": "ws-2"},
        {"role": "king"},
        {"tenant": "../x", "principal": Principal("a", "../x")},
    ],
)
async def test_a_seat_with_an_invalid_identity_is_stopped(
    app: App, changes: dict[str, Any]
) -> None:
    grant = app.seat().grant
    result = await app.tool_gateway.call(app.seat(grant=grant, **changes), tool_call(path="a"))
    # An unwritable tenant has no audit.
    assert result.status in {ToolStatus.BLOCKED, ToolStatus.ERROR}
    assert app.workspace.calls == []


async def test_the_earliest_deadline_of_call_tool_and_seat_applies(app: App) -> None:
    await app.tool_gateway.call(app.seat(), tool_call(path="a", seconds=5))
    await app.tool_gateway.call(app.seat(seconds=3), tool_call(path="a"))
    await app.tool_gateway.call(app.seat(), tool_call(path="a", seconds=5000))

    call, seat, tool = (gateway_call.deadline for gateway_call in app.workspace.calls)
    assert call <= in_seconds(5)
    assert seat <= in_seconds(3)
    assert tool <= in_seconds(CATALOGUE["files.read"].timeout_seconds)


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [({}, 120), ({"timeout_seconds": 300}, 300), ({"timeout_seconds": 3600}, 600)],
)
async def test_a_shell_command_gets_the_time_it_requests(
    app: App, arguments: dict[str, int], seconds: int
) -> None:
    await app.tool_gateway.call(
        app.seat(seconds=5000), tool_call("code.shell", command="true", seconds=5000, **arguments)
    )
    (shell_call,) = app.workspace.calls
    assert in_seconds(seconds - 5) < shell_call.deadline <= in_seconds(seconds)


async def test_a_call_after_its_deadline_does_not_run(app: App) -> None:
    result = await app.tool_gateway.call(app.seat(seconds=-1), tool_call(path="a"))
    assert result.status is ToolStatus.TIMEOUT
    assert app.workspace.calls == []


async def test_a_deadline_chosen_by_the_caller_opens_no_circuit(app: App) -> None:
    for number in range(6):
        late = await app.tool_gateway.call(
            app.seat(), tool_call(path="a", number=number, seconds=-1)
        )
        assert late.status is ToolStatus.TIMEOUT
    app.workspace.answer = lambda call: ToolResult(call.request_id, call.tool, ToolStatus.TIMEOUT)
    for number in range(6, 12):
        await app.tool_gateway.call(app.seat(), tool_call(path="a", number=number, seconds=1))
    app.workspace.answer = echo
    assert (
        await app.tool_gateway.call(app.seat(), tool_call(path="a", number=12))
    ).status is ToolStatus.SUCCESS


async def test_a_workspace_that_does_not_stop_is_stopped_after_the_grace_period(
    tmp_path: Path,
) -> None:
    async with open_app(tmp_path, grace_seconds=0.05) as app:
        app.workspace.open.clear()
        result = await app.tool_gateway.call(app.seat(), tool_call(path="a", seconds=0.05))
        assert [record["status"] for record in app.records()] == ["", "timeout"]
    assert result.status is ToolStatus.TIMEOUT


async def test_a_dead_executor_fails_the_seat_and_is_audited(app: App) -> None:
    app.workspace.gone = True
    with pytest.raises(WorkspaceFailed):
        await app.tool_gateway.call(app.seat(), tool_call(path="a"))
    await app.audit.__aexit__(None, None, None)
    assert [record["status"] for record in app.records()] == ["", "error"]


async def test_a_cancelled_call_is_audited_as_cancelled(app: App) -> None:
    app.workspace.open.clear()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(app.tool_gateway.call(app.seat(), tool_call(path="a")))
        await app.workspace.entered.wait()
        running.cancel()
    await app.audit.__aexit__(None, None, None)
    assert [record["status"] for record in app.records()] == ["", "cancelled"]


async def test_a_call_cancelled_immediately_leaves_both_records(app: App) -> None:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(app.tool_gateway.call(app.seat(), tool_call(path="a")))
        await asyncio.sleep(0)
        running.cancel()
    await app.audit.__aexit__(None, None, None)
    assert [record["status"] for record in app.records()] == ["", "cancelled"]
    assert app.workspace.calls == []


async def test_no_tool_runs_without_an_audit(app: App) -> None:
    app.chain.parent.parent.mkdir(parents=True)
    app.chain.parent.write_text("a file where the folder should be")
    result = await app.tool_gateway.call(app.seat(), tool_call(path="a"))

    assert result.status is ToolStatus.ERROR
    assert "audit" in result.error
    assert "was not run" in result.error
    assert app.workspace.calls == []


async def test_an_audit_failure_after_the_run_is_reported(app: App) -> None:
    def lose_the_audit(call: ToolCall) -> ToolResult:
        app.audit._thread.shutdown(wait=True)
        return ToolResult(call.request_id, call.tool, ToolStatus.SUCCESS)

    app.workspace.answer = lose_the_audit
    result = await app.tool_gateway.call(app.seat(), tool_call(path="a"))
    assert result.status is ToolStatus.ERROR
    assert "the tool ran" in result.error


async def test_concurrent_calls_of_a_seat_are_limited_and_queued(
    tmp_path: Path,
) -> None:
    async with open_app(tmp_path, calls_in_flight=1, seat_in_flight=2) as app:
        app.workspace.open.clear()
        seat = app.seat()
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(app.tool_gateway.call(seat, tool_call(path="a", number=number)))
                for number in (1, 2)
            ]
            await app.workspace.entered.wait()
            # The second one waits for a slot, which causes no event.
            while seat.meter.in_flight < 2:
                await asyncio.sleep(0)
            refused = await app.tool_gateway.call(seat, tool_call(path="a", number=3))
            assert len(app.workspace.calls) == 1
            app.workspace.open.set()
        assert refused.status is ToolStatus.RATE_LIMITED
        assert [task.result().status for task in running] == [ToolStatus.SUCCESS] * 2
        assert seat.meter.in_flight == 0
        assert seat.meter.held_seconds == 0


async def test_a_full_gateway_refuses_a_call_whose_deadline_passes_in_the_queue(
    tmp_path: Path,
) -> None:
    async with open_app(tmp_path, calls_in_flight=1) as app:
        app.workspace.open.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(app.tool_gateway.call(app.seat(), tool_call(path="a")))
            await app.workspace.entered.wait()
            late = await app.tool_gateway.call(
                app.seat(), tool_call(path="a", number=2, seconds=0.5)
            )
            app.workspace.open.set()
        later_result = await app.tool_gateway.call(app.seat(), tool_call(path="a", number=3))
    assert late.status is ToolStatus.RATE_LIMITED
    assert later_result.status is ToolStatus.SUCCESS


async def test_the_number_of_calls_of_a_seat_is_limited(tmp_path: Path) -> None:
    async with open_app(tmp_path, seat_calls=2) as app:
        seat = app.seat()
        results = [
            await app.tool_gateway.call(seat, tool_call(path="a", number=number))
            for number in range(3)
        ]
    assert [result.status for result in results] == [
        ToolStatus.SUCCESS,
        ToolStatus.SUCCESS,
        ToolStatus.BUDGET_EXCEEDED,
    ]


async def test_refused_calls_are_not_counted(app: App) -> None:
    seat = app.seat()
    await app.tool_gateway.call(seat, tool_call("nothing"))
    assert seat.meter.calls == 0


async def test_a_deliberation_over_budget_runs_no_tools_except_for_its_last_paid_turn(
    app: App,
) -> None:
    last = Ledger(Budget(tokens=100), spent=Usage(prompt_tokens=100))
    over = Ledger(Budget(tokens=100), spent=Usage(prompt_tokens=101))
    paid = await app.tool_gateway.call(app.seat(ledger=last), tool_call(path="a"))
    unpaid = await app.tool_gateway.call(app.seat(ledger=over), tool_call(path="a"))
    assert (paid.status, unpaid.status) == (ToolStatus.SUCCESS, ToolStatus.BUDGET_EXCEEDED)
    assert "100 tokens" in unpaid.error


async def test_an_executors_result_is_cut_and_cleaned_and_bound_to_its_call(
    tmp_path: Path,
) -> None:
    async with open_app(tmp_path, result_bytes=2000, event_bytes=1000) as app:
        app.workspace.answer = lambda _: ToolResult(
            "another", "git.push", ToolStatus.ERROR, {"text": "\ud800" + "x" * 9000}, "y" * 9000
        )
        result = await app.tool_gateway.call(app.seat(), tool_call(path="a"))
        data = app.facts.events[0].data

    assert (result.request_id, result.tool) == ("request-1", "files.read")
    assert result.output["truncated"] is True
    assert len(str(result.output)) < 2300
    assert len(str(data["output"])) < 1300
    assert len(result.error) < 4200
    result.output["text"].encode()


async def test_an_unavailable_bus_is_an_error_for_the_caller(app: App) -> None:
    async def down(event: Event) -> int:
        raise BusUnavailable(f"no bus for {event.id}")

    tool_gateway = ToolGateway(app.audit, down, app.tool_gateway._rules)
    with pytest.raises(BusUnavailable):
        await tool_gateway.call(app.seat(), tool_call(path="a"))
    assert len(app.records()) == 2


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=())),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=())), inner, max_size=4)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted(CATALOGUE)) | st.text(st.characters(exclude_categories=()))
KEYS = st.sampled_from(
    ["path", "paths", "content", "ref", "glob", "count", "message", "target", "pattern"]
)


@given(st.lists(st.tuples(NAMES, JSON | st.dictionaries(KEYS, JSON)), min_size=1, max_size=8))
def test_any_model_call_has_one_result_two_records_and_one_event(
    calls: list[tuple[str, Any]],
) -> None:
    async def play(folder: Path) -> None:
        async with open_app(folder, seat_in_flight=100) as app:
            seat = app.seat()
            async with asyncio.TaskGroup() as group:
                tool_calls = [
                    ToolCall(f"r-{n}", tool, args, in_seconds(60))
                    for n, (tool, args) in enumerate(calls)
                ]
                answers = [
                    group.create_task(app.tool_gateway.call(seat, call)) for call in tool_calls
                ]
            for call, answer in zip(tool_calls, answers, strict=True):
                result = answer.result()
                assert (result.request_id, result.tool) == (
                    call.request_id,
                    shorten(call.tool, 200),
                )  # half a surrogate pair is invalid
                phases = [
                    record["phase"]
                    for record in app.records()
                    if record["request_id"] == call.request_id
                ]
                assert phases == ["start", "finish"]
                assert [event.data["request_id"] for event in app.facts.events].count(
                    call.request_id
                ) == 1
            assert verify(app.chain) == ()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))
