"""Real local workspaces for tests: a real clone, a real sandbox, and pytest from this Python's own
packages.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from moothall.config import JobSettings, SandboxSettings, Settings, WorkspaceSettings
from moothall.domain.repository import Base, Prepared, Profile
from moothall.domain.tool import ToolCall, ToolResult
from moothall.ports import NOTHING
from moothall.repositories.clone import TrustedClone
from moothall.sandbox.bubblewrap import interpreter
from moothall.settings import load_settings
from moothall.workspace.node_executor import executors_on
from moothall.workspace.node_sandboxes import USUAL, Pace
from moothall.workspace.pool import CreateExecutor
from moothall.workspace.prepare import Preparer
from moothall.workspace.workspace import OverlayWorkspace, OverlayWorkspaces
from support.nodes import NearbyNodes, nearby_nodes
from support.pods import NearbyPods, nearby
from support.repos import SAMPLE, make_repo

PACKAGES = Path(pytest.__file__).resolve().parent.parent
PYTEST = (
    "env",
    f"PYTHONPATH={PACKAGES}",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1",
    str(interpreter()),
    "-m",
    "pytest",
    "-q",
    "--tb=short",
)


def python(code: str) -> tuple[str, ...]:
    """Return the command that runs `code`."""
    return (str(interpreter()), "-c", code)


@dataclass(slots=True)
class Local:
    """Open workspaces on one small repository."""

    settings: Settings
    workspaces: OverlayWorkspaces
    preparer: Preparer
    clone: TrustedClone
    sha: str
    pods: NearbyPods | None = None
    cluster: NearbyNodes | None = None
    _numbers: Any = field(default_factory=count)

    def base(self, **profile: Any) -> Base:
        """Return the repository's commit with a profile."""
        return Base("sample", self.sha, Profile(**profile))

    async def prepared(
        self, checks: Mapping[str, Sequence[str]] | None = None, **profile: Any
    ) -> Prepared:
        """Return the base, checked out, without runs."""
        base = self.base(**profile)
        ready = await self.preparer.prepare(base)
        named = {name: tuple(argv) for name, argv in (checks or {}).items()}
        with_checks = Base("sample", self.sha, Profile(**{**profile, "checks": named}))
        return Prepared(with_checks, ready.key, ready.files)

    async def call(
        self, workspace: OverlayWorkspace, tool: str, seconds: float = 30, **arguments: Any
    ) -> ToolResult:
        """Call a tool."""
        deadline = datetime.now(UTC) + timedelta(seconds=seconds)
        return await workspace.call(ToolCall(f"r{next(self._numbers)}", tool, arguments, deadline))


@asynccontextmanager
async def local(
    folder: Path, files: Mapping[str, str | bytes] = SAMPLE, *, warm: int = 0, **limits: Any
) -> AsyncIterator[Local]:
    """Create a repository of `files` below `folder` and yield workspaces on it; `limits` are the
    sandbox's.
    """
    async with _local(folder, files, WorkspaceSettings(warm=warm), limits, in_pods=False) as app:
        yield app


@asynccontextmanager
async def in_pods(
    folder: Path,
    files: Mapping[str, str | bytes] = SAMPLE,
    *,
    environments: Path | None = None,
    warm: int = 0,
    images: Mapping[str, str] = NOTHING,
    **limits: Any,
) -> AsyncIterator[Local]:
    """The same in pods that are processes of this machine."""
    async with _local(
        folder,
        files,
        WorkspaceSettings(warm=warm, environments=environments),
        limits,
        in_pods=True,
        images=images,
    ) as app:
        yield app


@asynccontextmanager
async def on_nodes(
    folder: Path, files: Mapping[str, str | bytes] = SAMPLE, *, pace: Pace = USUAL, **limits: Any
) -> AsyncIterator[Local]:
    """The same on two nodes that are folders of this machine."""
    async with _local(
        folder, files, WorkspaceSettings(warm=0), limits, in_pods=False, pace=pace
    ) as app:
        yield app


@asynccontextmanager
async def _local(
    folder: Path,
    files: Mapping[str, str | bytes],
    workspace: WorkspaceSettings,
    limits: Mapping[str, Any],
    *,
    in_pods: bool,
    images: Mapping[str, str] = NOTHING,
    pace: Pace | None = None,
) -> AsyncIterator[Local]:
    settings = load_settings(
        data_dir=folder / "data",
        workspace=workspace,
        jobs=JobSettings(python=str(interpreter()), images=images),
        sandbox=SandboxSettings(**{"toolchains": (PACKAGES,), **limits}),
    )
    repo = make_repo(folder / "repo", files)
    clone = TrustedClone(folder / "data" / "repos" / "sample.git", settings.workspace)
    sha = await clone.fetch(str(repo.path), "HEAD")
    async with AsyncExitStack() as stack:
        make: CreateExecutor | None = None
        pods, cluster = None, None
        if in_pods:  # below a short path: a socket's path is limited to 107 bytes
            make, pods = nearby(
                Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mp-"))), settings
            )
        if pace:
            cluster = await stack.enter_async_context(nearby_nodes(folder, settings, 2, pace))
            make = executors_on(cluster.nodes, settings)
        workspaces = await stack.enter_async_context(
            OverlayWorkspaces(settings, lambda _: clone, create_executor=make)
        )
        preparer = Preparer(settings, lambda _: clone, workspaces)
        yield Local(settings, workspaces, preparer, clone, sha, pods, cluster)
