"""Open workspaces behind a real gateway that grants everything, and canaries outside that nothing
in them may touch.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from corpus.attempt import MARK, OUTSIDE, PID, PORT, SITE, Attempt, fill_in
from hostile_site import site
from moothall.authorization.audit import AuditLog
from moothall.authorization.checks import CallContext, Meter
from moothall.authorization.gateway import ToolGateway
from moothall.authorization.limits import GatewayLimits
from moothall.authorization.rules import Rules
from moothall.domain.ids import LOCAL, TaskKey
from moothall.domain.repository import Prepared
from moothall.domain.tool import Grant, ToolCall, ToolResult, ToolStatus
from moothall.errors import PatchRefused, WorkspaceFailed
from moothall.sandbox.spawn import sandbox_uid
from moothall.telemetry import get_logger
from moothall.tool_sessions.session_state import PersistentWorkspace
from moothall.toolkits.web import HttpSettings
from moothall.toolkits.web.toolkit import WebTools
from moothall.tools.spec import Rate
from moothall.workspace.gittools import GitState
from support.local import PYTEST, Local, local
from support.tool_gateway import Facts, in_seconds
from support.tools import CATALOGUE

SECRET = "canary-of-the-operator-5c1e9a77"
FILES = {
    "README.md": "# Sample\n",
    "src/app.py": "def two() -> int:\n    return 2\n",
    "tests/test_app.py": "from app import two\n\n\ndef test_two():\n    assert two() == 2\n",
    "pyproject.toml": (
        '[project]\nname = "sample"\nversion = "0.1.0"\n\n[tool.pytest.ini_options]\npythonpath = '
        '["src"]\n'
    ),
    "Makefile": "test:\n\ttrue\n",
    "package.json": '{"name": "sample", "version": "0.1.0", "scripts": {"test": "true"}}\n',
}
LIMITS = {
    "memory_bytes": 400_000_000,
    "processes": 64,
    "cpu_seconds": 2,
    "wall_seconds": 5,
    "disk_bytes": 40_000_000,
}
_ALL = Grant(("*",))
_HOST_PLACES = (
    "/",
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/etc",
    "/usr",
    "/usr/local",
    "/opt",
    "/root",
    "/run",
    "/home",
    "/proc/1",
    "/sys",
)

log = get_logger(__name__)


@dataclass
class Canaries:
    """Files, listeners and processes outside the sandbox."""

    folder: Path
    file: Path
    listener: socket.socket
    neighbour: subprocess.Popen[bytes]
    remembered: Mapping[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """The port of a listener on this machine."""
        port: int = self.listener.getsockname()[1]
        return port

    def reached(self) -> bool:
        """True if anybody connected."""
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True


def snapshot(*folders: Path) -> dict[str, str]:
    """Return the entries below the folders: path → kind, owner, mode and content."""
    states = {}
    for folder in folders:
        for path in (folder, *sorted(folder.rglob("*"))):
            status = path.lstat()
            content = path.read_bytes().hex() if path.is_file() and not path.is_symlink() else ""
            states[str(path)] = f"{status.st_mode:o} {status.st_uid} {content}"
    return states


@contextmanager
def canaries(folder: Path) -> Iterator[Canaries]:
    """Create the canaries."""
    folder.mkdir()
    file = folder / "canary.txt"
    file.write_text(f"{SECRET}\n", encoding="utf-8")
    os.environ["CANARY_OF_THE_OPERATOR"] = SECRET
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        # Owned by the same user as the sandbox: user permissions do not protect it.
        uid = sandbox_uid()
        environment = {"PATH": "/usr/bin:/bin", "CANARY_OF_THE_OPERATOR": SECRET}
        neighbour = subprocess.Popen(
            ["sleep", "3600"],
            env=environment,
            user=uid,
            group=uid,
            extra_groups=[] if uid else None,
        )
        try:
            yield Canaries(folder, file, listener, neighbour)
        finally:
            neighbour.kill()
            neighbour.wait()
            os.environ.pop("CANARY_OF_THE_OPERATOR", None)


@dataclass
class CanaryWorkspace:
    """One workspace behind a gateway."""

    app: Local
    tool_gateway: ToolGateway
    prepared: Prepared
    canaries: Canaries
    facts: Facts
    site: str
    persistent: PersistentWorkspace
    _numbers: Any = field(default_factory=count)

    def seat(self) -> CallContext:
        """Return the context of a seat with all permissions and an unused budget."""
        deadline = in_seconds(600)
        name = self.persistent.id
        seat = CallContext(
            LOCAL,
            TaskKey("task-1"),
            "agent-dev-001",
            "dev",
            _ALL,
            self.persistent,
            name,
            deadline,
            meter=Meter(),
        )
        return self.tool_gateway.with_token(seat)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool through the gateway."""
        return await self.tool_gateway.call(
            self.seat(), ToolCall(f"r-{next(self._numbers)}", tool, arguments, in_seconds(30))
        )

    async def open_workspace(self) -> Any:
        """Return the current open workspace."""
        await self.persistent.wait_until_open()
        return self.persistent._opened.result()

    async def make_attempt(self, attempt: Attempt) -> ToolResult:
        """Make an attempt, and assert that it had no effect."""
        try:
            result = await self._make_attempt(attempt)
        except AssertionError:
            await self.persistent.rewind("")  # its leftovers must not fail the following attempts
            raise
        await self.clean()
        return result

    async def _make_attempt(self, attempt: Attempt) -> ToolResult:
        mark = f"escaped-{attempt.name}"
        placeholders = {
            OUTSIDE: str(self.canaries.file),
            PORT: str(self.canaries.port),
            PID: str(self.canaries.neighbour.pid),
        }
        placeholders |= {MARK: mark, SITE: self.site}
        for path, content in attempt.plants.items():
            planted = await self.call(
                "files.write", {"path": path, "content": fill_in(content, placeholders)}
            )
            assert planted.status is ToolStatus.SUCCESS, planted.error
        if attempt.first:
            completed = await self.call(
                "code.shell", {"command": fill_in(attempt.first, placeholders)}
            )
            assert (completed.status, completed.output["exit_code"]) == (ToolStatus.SUCCESS, 0), (
                completed
            )
        pid_before, published = await self.open_workspace(), len(self.facts.events)
        result = await self.call(attempt.tool, fill_in(attempt.arguments, placeholders))
        text = f"{json.dumps(dict(result.output), ensure_ascii=False, default=str)}\n{result.error}"
        assert result.status in attempt.statuses, f"{result.status}: {text[:3000]}"
        assert re.search(attempt.expected_output, text, re.DOTALL), text[:3000]
        assert SECRET not in text
        assert SECRET not in json.dumps(
            [event.data for event in self.facts.events[published:]], default=str
        )
        self.unharmed(mark)
        follow = await self.call("files.read", {"path": "README.md"})
        assert (follow.status, follow.output.get("content")) == (
            ToolStatus.SUCCESS,
            "# Sample\n",
        ), follow
        assert await self.open_workspace() is pid_before, "the executor was lost"
        return result

    def unharmed(self, mark: str) -> None:
        """Assert that everything outside is unchanged."""
        assert not self.canaries.reached(), (
            "a process in the sandbox reached a port of this machine"
        )
        assert self.canaries.neighbour.poll() is None, "a process outside was ended"
        assert snapshot(*self._protected_paths) == self.canaries.remembered
        differences = [
            place
            for place in (*_HOST_PLACES, str(Path.home()))
            if os.path.lexists(f"{place}/{mark}")
        ]
        assert differences == []

    @property
    def _protected_paths(self) -> tuple[Path, ...]:
        clone = self.app.clone.path
        return (
            self.canaries.folder,
            self.app.settings.data_dir.parent / "repo",
            *self.prepared_tree,
            clone / "hooks",
            clone / "info",
        )

    @property
    def prepared_tree(self) -> tuple[Path, ...]:
        """The shared checkout below the workspace."""
        return tuple(
            self.app.workspaces.pool.layout.executor_setup(
                self.prepared.base, self.prepared.key
            ).tree
        )

    def remember(self) -> None:
        """Take the snapshot that later states are compared with."""
        for folder in ("hooks", "info"):
            (self.app.clone.path / folder).mkdir(exist_ok=True)
        self.canaries.remembered = snapshot(*self._protected_paths)

    async def clean(self) -> None:
        """Restore the workspace by its own means, or open a new one."""
        removal = (
            "chmod -R u+rwX . ; rm -rf /workspace/* /workspace/.[!.]* /tmp/* /tmp/.[!.]* "
            "/dev/shm/*; ls -A /workspace"
        )
        swept = await self.call("code.shell", {"command": removal})
        workspace = await self.open_workspace()
        workspace._git = GitState(workspace.base.sha)
        try:
            assert swept.output["output"] == "", swept
            await workspace.restore([])
        except (PatchRefused, WorkspaceFailed, AssertionError) as error:
            log.warning("the workspace is opened anew", reason=str(error))
            await self.persistent.rewind("")


@asynccontextmanager
async def open_canary_workspace(folder: Path, **limits: Any) -> AsyncIterator[CanaryWorkspace]:
    """Open a workspace with canaries outside. `limits` are the sandbox's."""
    rules_catalogue = {name: replace(spec, own_rate=Rate(0, 0)) for name, spec in CATALOGUE.items()}
    folder.mkdir(exist_ok=True)
    async with (
        local(folder, FILES, **{**LIMITS, **limits}) as app,
        AuditLog(folder / "data", "host-1") as audit,
        site() as name,
    ):
        with canaries(folder / "outside") as out:
            web = WebTools(HttpSettings(allow=(name,)), seconds=8)
            rules = Rules(catalogue=rules_catalogue, toolkits={"http": web.call, "web": web.call})
            facts = Facts()
            tool_gateway = ToolGateway(
                audit,
                facts.publish,
                rules,
                limits=GatewayLimits(breaker_failures=1000),
            )
            prepared = await app.prepared({"tests": PYTEST})
            persistent = PersistentWorkspace("ws-1", app.workspaces, prepared, rules_catalogue)
            closing = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(persistent.hold_open(closing))
                try:
                    built = CanaryWorkspace(
                        app, tool_gateway, prepared, out, facts, name, persistent
                    )
                    await persistent.wait_until_open()
                    built.remember()
                    yield built
                finally:
                    closing.set()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded_workspace(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[CanaryWorkspace]:
    """An open workspace with canaries outside.

    One task enters and leaves it, as task groups require.
    """
    opened: asyncio.Future[CanaryWorkspace] = asyncio.get_running_loop().create_future()
    finished = asyncio.Event()

    async def hold() -> None:
        try:
            async with open_canary_workspace(tmp_path_factory.mktemp("castle")) as built:
                opened.set_result(built)
                await finished.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
                return
            raise

    holder = asyncio.ensure_future(hold())
    yield await opened
    finished.set()
    await holder
