"""`code.*` and `system.*` in a real sandbox."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moothall.domain.repository import Prepared
from moothall.domain.tool import ToolStatus
from support.local import PYTEST, Local, local
from support.repos import SAMPLE

pytestmark = pytest.mark.e2e  # real sandboxes over and over: run with the end-to-end tests

node = pytest.mark.skipif(
    shutil.which("node") is None, reason="node is not installed: apt-get install nodejs"
)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Local]:
    async with local(tmp_path, SAMPLE) as app:
        yield app


@pytest.fixture
async def prepared(app: Local) -> Prepared:
    return await app.prepared({"tests": PYTEST})


async def test_a_python_session_keeps_its_state(app: Local, prepared: Prepared) -> None:
    async with app.workspaces.open(prepared, "one") as workspace:
        first = await app.call(
            workspace,
            "code.python",
            code="import math\nx = 41\ndef f(a):\n    return a + x\nopen('made.txt', "
            "'w').write('x')",
            session="a",
        )
        assert (first.status, first.output["exit_code"], first.output["output"]) == (
            ToolStatus.SUCCESS,
            0,
            "1\n",
        )
        second_result = await app.call(
            workspace, "code.python", code="x += 1\nprint(f(1), math.floor(2.5))", session="a"
        )
        assert second_result.output["output"] == "43 2\n"
        result_of_other = await app.call(workspace, "code.python", code="x", session="b")
        assert result_of_other.output["exit_code"] == 1
        assert "NameError" in result_of_other.output["output"]
        # Created files are in the workspace, the state of the session is not.
        listed = await app.call(workspace, "files.list")
        assert "made.txt" in listed.output["entries"]
        assert (await workspace.patch("made")).paths == ("made.txt",)
    async with app.workspaces.open(prepared, "two") as workspace:
        assert (
            "NameError"
            in (await app.call(workspace, "code.python", code="x", session="a")).output["output"]
        )


async def test_a_file_that_cannot_be_stored_is_reported(app: Local, prepared: Prepared) -> None:
    async with app.workspaces.open(prepared, "one") as workspace:
        result = await app.call(
            workspace, "code.python", code="lines = open('/dev/null')", session="a"
        )
        assert "[not kept for the session: lines]" in result.output["output"]


async def test_a_session_is_unchanged_if_a_call_is_stopped(app: Local, prepared: Prepared) -> None:
    async with app.workspaces.open(prepared, "one") as workspace:
        await app.call(workspace, "code.python", code="x = 1", session="a")
        stopped = await app.call(
            workspace, "code.python", seconds=1.5, code="x = 2\nwhile True: pass", session="a"
        )
        assert stopped.status is ToolStatus.TIMEOUT
        assert (await app.call(workspace, "code.python", code="x", session="a")).output[
            "output"
        ] == "1\n"


async def test_the_shell_keeps_folder_variables_and_functions(
    app: Local, prepared: Prepared
) -> None:
    async with app.workspaces.open(prepared, "one") as workspace:
        await app.call(
            workspace,
            "code.shell",
            command="cd src; A=1; B='two words'; greet() { echo hi $1; }",
            session="a",
        )
        second_result = await app.call(
            workspace, "code.shell", command="pwd; echo $A $B; greet you; exit 4", session="a"
        )
        assert second_result.output == {
            "exit_code": 4,
            "output": "/workspace/src\n1 two words\nhi you\n",
        }
        without_session = await app.call(workspace, "code.shell", command="pwd; echo [$A]")
        assert without_session.output["output"] == "/workspace\n[]\n"


async def test_internal_names_do_not_interfere_with_a_shell_session(
    app: Local, prepared: Prepared
) -> None:
    async with app.workspaces.open(prepared, "one") as workspace:
        first = "declare -i count=2; readonly fixed=1; session=s; code=c; state=t; echo $# $1"
        assert (await app.call(workspace, "code.shell", command=first, session="a")).output[
            "output"
        ] == "0\n"
        second_result = await app.call(
            workspace,
            "code.shell",
            command="count+=3; echo $count $session $code $state",
            session="a",
        )
        assert second_result.output == {"exit_code": 0, "output": "5 s c t\n"}


@node
async def test_a_node_session_keeps_its_globals(app: Local, prepared: Prepared) -> None:
    async with app.workspaces.open(prepared, "one") as workspace:
        await app.call(
            workspace,
            "code.node",
            code="var q = [1, 2]; function f(x) { return x + 1 }",
            session="a",
        )
        second_result = await app.call(
            workspace, "code.node", code="console.log(q.length, f(5))", session="a"
        )
        assert second_result.output == {"exit_code": 0, "output": "2 6\n"}


@pytest.mark.parametrize("code", ["--help", "-c", "--", "-"])
async def test_code_is_never_read_as_an_option(app: Local, prepared: Prepared, code: str) -> None:
    async with app.workspaces.open(prepared, "one") as workspace:
        results = [
            await app.call(workspace, "code.python", code=code),
            await app.call(workspace, "code.shell", command=code),
            *([await app.call(workspace, "code.node", code=code)] if shutil.which("node") else []),
        ]
    for result in results:
        assert result.status is ToolStatus.SUCCESS
        assert result.output["exit_code"] != 0
        assert "usage" not in result.output["output"].lower()


async def test_a_session_file_written_by_hostile_code_harms_only_that_session(
    app: Local, prepared: Prepared
) -> None:
    async with app.workspaces.open(prepared, "one") as workspace:
        await app.call(
            workspace,
            "code.shell",
            command="mkdir -p /tmp/moothall-sessions; echo nonsense > "
            "/tmp/moothall-sessions/python-a",
        )
        broken = await app.call(workspace, "code.python", code="1", session="a")
        assert broken.output["exit_code"] != 0
        assert (await app.call(workspace, "code.python", code="1", session="b")).output[
            "output"
        ] == "1\n"


async def test_the_system_is_shown(app: Local, prepared: Prepared) -> None:
    async with app.workspaces.open(prepared, "one") as workspace:
        info = await app.call(workspace, "system.info")
        assert info.output["processors"] >= 1
        assert info.output["system"].startswith("Linux")
        running = await app.call(workspace, "system.processes")
        assert len(running.output["processes"]) == 1  # only the executor, no process of the host
