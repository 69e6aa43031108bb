"""Under uvloop, no child process, sandboxed or not, inherits a descriptor that it was not given."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from served import make_command, run_server

from command import Command
from moothall.config import BusSettings, SandboxSettings
from moothall.domain.tool import CodeBlock, ToolResult
from moothall.events.nats.server import embedded_server
from moothall.llm.local import local_model_server
from moothall.network.proxy import receive_listener
from moothall.processes import start_process
from moothall.sandbox.bubblewrap import SandboxSpec, interpreter, interpreter_binds
from moothall.sandbox.spawn import run_sandbox
from moothall.sandbox_runtime import chromium as chromium_start
from moothall.settings import load_settings
from moothall.testing.model import ScriptedModel
from moothall.toolkits.mcp import McpServerSettings
from moothall.toolkits.mcp.links import LinkEnd, sandbox_link
from support.descriptors import COUNT, Leak, leak, open_again, under_uvloop
from support.local import Local, in_pods, local, python

pytestmark = pytest.mark.e2e

FILES = {"a.txt": "a\n"}
LIST = """
import os
for name in os.listdir("/proc/self/fd"):
    try:
        print(f" {name} -> " + os.readlink(f"/proc/self/fd/{name}"))
    except OSError:
        pass  # the listing's own
"""
SHELL = "ls -l /proc/self/fd"


def assert_few(listing: str, leaked: Leak, limit: int) -> None:
    """Assert that nothing leaked is listed, and at most `limit` descriptors including that of the
    listing itself.
    """
    assert leaked.path.name not in listing
    descriptors = re.findall(r"(?m) (\d+) -> ", listing)
    assert 3 <= len(descriptors) <= limit, listing


async def tools_list(app: Local, leaked: Leak) -> None:
    """Commands, checks, set-up and blocks, each in its sandbox."""
    prepared = await app.prepared({"list": python(LIST)})
    async with app.workspaces.open(prepared, "one") as workspace:

        async def ask(tool: str, arguments: Mapping[str, Any]) -> ToolResult:
            return await app.call(workspace, tool, **arguments)

        assert leaked.holders() == []
        open_again(leaked)
        result = await app.call(workspace, "code.shell", command=SHELL)
        assert_few(str(result.output["output"]), leaked, 6)
        result = await app.call(workspace, "code.python", code=LIST)
        assert_few(str(result.output["output"]), leaked, 6)
        assert_few((await workspace.check("list")).output, leaked, 6)
        open_again(leaked)
        block = CodeBlock(LIST, {}, datetime.now(UTC) + timedelta(seconds=30), "local")
        assert_few((await workspace.run_code(block, ask)).printed, leaked, 7)
        assert leaked.holders() == []


def test_processes_in_a_workspace_inherit_no_descriptor(tmp_path: Path) -> None:
    async def main() -> None:
        with leak(tmp_path) as leaked:
            async with local(tmp_path, FILES, warm=1) as app:
                await tools_list(app, leaked)

    under_uvloop(main)


def test_a_job_container_inherits_no_descriptor(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    async def main() -> None:
        with leak(tmp_path) as leaked:
            async with in_pods(tmp_path, FILES) as app:
                await tools_list(app, leaked)

    under_uvloop(main)


def test_a_set_up_and_its_helpers_inherit_no_descriptor(tmp_path: Path) -> None:
    async def main() -> None:
        with leak(tmp_path) as leaked:
            async with local(tmp_path, FILES) as app:
                setup = (("/bin/sh", "-c", f"{SHELL} > /env/listing"),)
                prepared = await app.prepared({"show": ("cat", "/env/listing")}, setup=setup)
                async with app.workspaces.open(prepared, "one") as workspace:
                    assert_few((await workspace.check("show")).output, leaked, 6)
            assert leaked.path.read_text(encoding="utf-8") == "TOP-SECRET\n"

    under_uvloop(main)


def test_an_mcp_server_inherits_no_descriptor(tmp_path: Path) -> None:
    async def main() -> None:
        with leak(tmp_path):
            link_end = LinkEnd()
            server = McpServerSettings(
                command=("/bin/sh", "-c", "ls /proc/self/fd | tr '\\n' ' ' >&2")
            )
            async with sandbox_link(server, SandboxSettings(), 10_000, link_end):
                await asyncio.wait_for(link_end.ended.wait(), 60)
            listed = str(link_end.end_reason).rpartition("it ended:")[2].split()
            assert 3 <= len(listed) <= 5, link_end.end_reason

    under_uvloop(main)


def test_the_browser_launcher_inherits_no_descriptor_and_its_port_reaches_no_child(
    tmp_path: Path,
) -> None:
    """Uses Chromium's own launcher with another program in its place."""

    async def main() -> None:
        with leak(tmp_path) as leaked:
            ours, theirs = socket.socketpair()
            launcher = Path(chromium_start.__file__).resolve()
            spec = SandboxSpec(
                name=f"descriptors-{tmp_path.name[-8:]}",
                argv=(
                    str(interpreter()),
                    "-I",
                    "-S",
                    "/opt/start.py",
                    str(theirs.fileno()),
                    "/bin/sh",
                    "-c",
                    f"{SHELL} >&2; sleep 600",
                ),
                limits=SandboxSettings(),
                ro=(*interpreter_binds(), (launcher, "/opt/start.py")),
                fds=(theirs.fileno(),),
                log=tmp_path / "sandbox.log",
            )
            with ours:
                async with run_sandbox(spec) as sandbox:
                    theirs.close()
                    listening = await asyncio.wait_for(receive_listener(ours), 60)
                    with listening:
                        assert not listening.get_inheritable(), (
                            "received descriptors are close-on-exec too"
                        )
                        open_again(leaked)
                        child = await start_process("/bin/sleep", "600")
                        try:
                            assert leaked.holders() == []
                            number = listening.fileno()
                            assert not Path(f"/proc/{child.pid}/fd/{number}").exists()
                        finally:  # uvloop waits for children when it is closed
                            child.kill()
                            await child.wait()
                        async with asyncio.timeout(60):
                            while "-> " not in sandbox.log_tail():
                                await asyncio.sleep(0.05)
                        assert_few(sandbox.log_tail(), leaked, 8)

    under_uvloop(main)


def test_bus_and_model_server_inherit_no_descriptor(tmp_path: Path) -> None:
    async def main() -> None:
        settings = load_settings()
        llm = settings.llm.model_copy(update={"context_tokens": 1024})
        with leak(tmp_path) as leaked:
            async with embedded_server(BusSettings(), tmp_path / "bus"):
                open_again(leaked)
                async with local_model_server(llm, settings.data_dir, lambda _: None):
                    assert leaked.holders() == []

    under_uvloop(main)


GIT = """#!/bin/sh
ls -l /proc/self/fd >> {listing}
exec {git} "$@"
"""


@pytest.mark.asyncio(loop_scope="session")
async def test_a_server_with_inheritable_descriptors_passes_them_to_no_child_process(
    model: ScriptedModel, repo: Path, tmp_path: Path
) -> None:
    """Covers the bus, Ray with its workers, reapers, executors and git below a real `moothall
    serve`.
    """
    wrapped = tmp_path / "bin" / "git"
    wrapped.parent.mkdir()
    listing = tmp_path / "listing"
    wrapped.write_text(GIT.format(listing=listing, git=shutil.which("git")), encoding="utf-8")
    wrapped.chmod(0o755)
    command = make_command(tmp_path, model.base_url, hosts="ray")
    command.extra["PATH"] = f"{wrapped.parent}:{os.environ['PATH']}"
    with leak(tmp_path) as leaked:
        command.pass_fds = leaked.descriptors
        async with run_server(command) as app:
            listed = Path(f"/proc/{app.pid}/fd").iterdir()
            assert (
                sum(path.name in {str(fd) for fd in leaked.descriptors} for path in listed) == COUNT
            )
            result = await Command(command.data_dir, model.base_url, command.extra)(
                "deliberate",
                "--repo",
                str(repo),
                "--agents",
                "1",
                "Add hello_world() function to src/utils.py",
            )
            assert result.code == 0, result.err
            assert leaked.holders(app.pid) == []
    assert leaked.path.name not in listing.read_text(encoding="utf-8")
