"""Conversations with a program among a workspace's files, here and in a pod: its lines, its files,
and its end. Agents of other projects are such programs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, HarnessTask, ModelQuestion
from moothall.errors import WorkspaceFailed
from moothall.harnesses.running import run_harness
from support import harness_agent
from support.local import in_pods, local, on_nodes, python

pytestmark = pytest.mark.e2e

ECHO = (
    "import sys\nfor line in sys.stdin:\n    open('/workspace/said.txt', 'a').write(line)\n    "
    "print('heard', line.strip(), flush=True)"
)
ENDS = "import sys; print('x' * 300, flush=True); sys.stderr.write('enough'); sys.exit(4)"
FLOOD = "while True: print('y' * 1000)"


class Caller:
    """A caller that sends this many lines, one for each line that it receives."""

    def __init__(self, line_count: int) -> None:
        self.heard: list[str] = []
        self._line_count = line_count

    async def __call__(self, lines: Sequence[str]) -> Sequence[str] | None:
        self.heard += lines
        return None if len(self.heard) >= self._line_count else [f"line {len(self.heard)} ö"]


@pytest.mark.parametrize("opened", [local, in_pods, on_nodes], ids=["here", "pod", "node"])
async def test_a_program_exchanges_lines_and_keeps_its_files_if_asked_to(
    opened: Any, tmp_path: Path
) -> None:
    async with (
        opened(tmp_path) as app,
        app.workspaces.open(await app.prepared(), "one") as workspace,
    ):
        for keeps in (False, True):
            caller = Caller(3)
            assert (
                await workspace.converse(
                    python(ECHO), caller, seconds=30, max_bytes=100_000, keep_changes=keeps
                )
                == ""
            )
            assert caller.heard == ["heard line 0 ö", "heard line 1 ö", "heard line 2 ö"]
            assert (await workspace.patch("said")).paths == (("said.txt",) if keeps else ())
        end_reason = await workspace.converse(
            python(ENDS), Caller(10), seconds=30, max_bytes=100_000, keep_changes=True
        )
        assert end_reason == "it ended with exit code 4; its output: enough"
        flooded = await workspace.converse(
            python(FLOOD), Caller(10**9), seconds=30, max_bytes=50_000, keep_changes=True
        )
        assert flooded.startswith("it sent more than 50000 bytes")
        missing = await workspace.converse(
            ("no-such-program",), Caller(1), seconds=30, max_bytes=1000, keep_changes=True
        )
        assert missing == "no-such-program cannot be run: No such file or directory"
        silent = await workspace.converse(
            python("import time; time.sleep(99)"),
            Caller(1),
            seconds=1,
            max_bytes=1000,
            keep_changes=True,
        )
        assert silent == "it was stopped: timeout"
        assert (await app.call(workspace, "files.read", path="said.txt")).output["total_lines"] == 3


AGENT = Path(harness_agent.__file__).read_text(encoding="utf-8")
ASK = {"tool": "ask", "args": {"path": "asked.txt", "content": "yes"}}
WRITE = {"tool": "files.append", "args": {"path": "made.txt", "content": "made"}}
STOPS_RELAY = AGENT.replace(
    '            self._send({"id": message["id"], "result": result})',
    '            self._send({"id": message["id"], "result": result})\n'
    '            if method == "session/prompt":\n'
    "                time.sleep(1)\n"
    "                os.kill(os.getppid(), 19)\n"
    "                time.sleep(99)",
)
CHUNKED = """
import http.client, os
server = http.client.HTTPConnection(os.environ["OPENAI_BASE_URL"].split("/")[2])
server.request("POST", "/v1/chat/completions", iter([b"{}"]), encode_chunked=True)
reply = server.getresponse()
print(reply.status, reply.reason)
"""
COMMAND = "import os, sys; print(sys.argv[1]); print(os.environ['OPENAI_BASE_URL'])"


def harness(*argv: str, may_write: bool = True) -> HarnessTask:
    return HarnessTask(argv, "do it", "model", 8192, 1024, 60.0, may_write=may_write)


async def two_turns(question: ModelQuestion) -> ChatReply:
    """Let the agent write a file and ask for a permission, then end."""
    has_replied = any(message.role == "assistant" for message in question.messages)
    text = "enough" if has_replied else json.dumps({"actions": [WRITE, ASK]})
    return ChatReply(text, "stop", Usage(1, 0, 1, 1))


@pytest.mark.parametrize("opened", [local, in_pods, on_nodes], ids=["here", "pod", "node"])
async def test_an_agent_in_a_workspace_uses_a_model_outside(opened: Any, tmp_path: Path) -> None:
    async with (
        opened(tmp_path) as app,
        app.workspaces.open(await app.prepared(), "one") as workspace,
    ):
        report = await run_harness(workspace, harness(*python(AGENT), may_write=False), two_turns)
        assert (report.text, report.agent, report.stopped) == ("Done: enough", "small 1.0", "")
        assert (await workspace.patch("made")).paths == ("made.txt",)
        await run_harness(workspace, harness(*python(AGENT)), two_turns)
        assert (await workspace.patch("made")).paths == ("asked.txt", "made.txt")
        report = await run_harness(workspace, harness(*python(COMMAND), "{prompt}"), two_turns)
        assert report.text.startswith("do it\nhttp://127.0.0.1:")
        broken = python("import sys; print('broken', file=sys.stderr); sys.exit(3)")
        with pytest.raises(WorkspaceFailed, match="exit code 3; its output: broken"):
            await run_harness(workspace, harness(*broken), two_turns)
        kill = python("import os; os.kill(1, 9); os.kill(-1, 9)")
        with pytest.raises(WorkspaceFailed):
            await run_harness(workspace, harness(*kill), two_turns)
        with pytest.raises(WorkspaceFailed, match=r"sandbox\.toolchains"):
            await run_harness(workspace, harness("no-such-agent"), two_turns)


async def test_a_hostile_agent_ends_with_a_reason(tmp_path: Path) -> None:
    async with (
        local(tmp_path) as app,
        app.workspaces.open(await app.prepared(), "one") as workspace,
    ):
        for code, reason in (
            ("print('x' * 70_000_000, flush=True); input()", "it sent too much at once"),
            ("import sys\nwhile True: sys.stderr.write('y' * 9999)", "it was stopped: output"),
            ('print(\'{"id": 0, "result": 1}\', flush=True); input()', "Agent Client Protocol"),
        ):
            with pytest.raises(WorkspaceFailed, match=reason):
                await run_harness(workspace, harness(*python(code)), two_turns)
        report = await run_harness(workspace, harness(*python(CHUNKED), "{prompt}"), two_turns)
        assert report.text == "411 send the body with a Content-Length"
        async with asyncio.timeout(40):  # less than its time
            report = await run_harness(workspace, harness(*python(STOPS_RELAY)), two_turns)
        assert report.text == "Done: enough"


async def test_a_cancelled_agent_leaves_no_process(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def wait_forever(question: ModelQuestion) -> ChatReply:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with (
        local(tmp_path) as app,
        app.workspaces.open(await app.prepared(), "one") as workspace,
    ):
        processes_before = (await app.call(workspace, "system.processes")).output["processes"]
        work = asyncio.create_task(run_harness(workspace, harness(*python(AGENT)), wait_forever))
        async with asyncio.timeout(60):
            await started.wait()
        work.cancel()
        await asyncio.wait([work])
        assert work.cancelled()
        processes_after = (await app.call(workspace, "system.processes")).output["processes"]
        assert [item["name"] for item in processes_after] == [
            item["name"] for item in processes_before
        ]
