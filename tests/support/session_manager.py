"""Tool sessions of callers behind a real gateway: a function answers their calls, and no repository
is fetched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moothall.authorization.approvals import APPROVAL_SECONDS, BUCKET, SPENT_BUCKET, ApprovalQueue
from moothall.authorization.rules import Rules
from moothall.domain.repository import Base, ChangeRange, Prepared, Profile
from moothall.domain.task import RepositoryRef
from moothall.errors import NotFound
from moothall.ports import NOTHING, Workspace
from moothall.testing.bus import MemoryBus
from moothall.tool_sessions.manager import MAX_OPEN, ToolSessions
from support.tool_gateway import App, FakeWorkspace, open_app

SHA = "a" * 40


@dataclass(slots=True)
class FakeWorkspaces:
    """An implementation of `ports.Workspaces` with a fake workspace under each name; `closed` names
    the closed ones.
    """

    fake_workspaces: dict[str, FakeWorkspace] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def open(
        self,
        prepared: Prepared,
        name: str,
        *,
        patch: str = "",
        extra: str = "",
        judged: bool = False,
        files: Mapping[str, str] = NOTHING,
        append: Mapping[str, str] = NOTHING,
    ) -> AsyncIterator[Workspace]:
        """Open a fake workspace."""
        del prepared, patch, extra, judged, files, append
        self.fake_workspaces[name] = FakeWorkspace()
        try:
            yield self.fake_workspaces[name]
        finally:
            self.closed.append(name)


@dataclass(slots=True)
class OneRepository:
    """The part of `ports.Repositories` that tool sessions use, with one repository, `sample`.
    `requested_refs` holds the requested references.
    """

    requested_refs: list[RepositoryRef] = field(default_factory=list)

    async def resolve(self, ref: RepositoryRef, *, tenant: str = "local") -> Base:
        """Return the one commit."""
        del tenant
        self.requested_refs.append(ref)
        if ref.id != "sample":
            raise NotFound(f"no repository {ref.id or ref.url!r}")
        return Base("sample", SHA, Profile())

    async def resolve_change(
        self, ref: RepositoryRef, head: str, *, tenant: str = "local"
    ) -> ChangeRange:
        """Not supported."""
        raise NotImplementedError(ref, head, tenant)

    async def prepare(
        self, base: Base, on_progress: Callable[[str], None] | None = None
    ) -> Prepared:
        """Return the base without runs."""
        del on_progress
        return Prepared(base, base.sha, ())

    async def read(self, base: Base, path: str, limit: int = 65536) -> str:
        """Raise `NotFound`."""
        del base, limit
        raise NotFound(f"no file {path!r}")

    async def check_delivery(self, repository: str, base_sha: str, branch: str) -> None:
        """Accept everything."""

    async def diff(self, base: Base, commit_sha: str) -> str:
        """Return an empty diff."""
        del base, commit_sha
        return ""

    async def deliver(
        self, base: Base, diff: str, branch: str, message: str, merged: Sequence[str] = ()
    ) -> str:
        """Raise `NotFound`."""
        del base, diff, branch, message, merged
        raise NotFound("nothing can be delivered here")


@dataclass(frozen=True, slots=True)
class SessionsFixture:
    """Tool sessions and their dependencies."""

    session_manager: ToolSessions
    fake_workspaces: FakeWorkspaces
    repository: OneRepository
    app: App
    parking: ApprovalQueue | None


@asynccontextmanager
async def open_session_manager(
    data_dir: Path,
    bus: MemoryBus | None = None,
    *,
    max_open: int = MAX_OPEN,
    **rules: Any,
) -> AsyncIterator[SessionsFixture]:
    """Open tool sessions. With a bus, requests that the policy denies can be parked; `rules` are
    those of the gateway.
    """
    from moothall.authorization.approvals import Approvals

    if bus is not None:
        rules["parking"] = ApprovalQueue(
            bus.bucket(BUCKET),
            bus.bucket(SPENT_BUCKET),
            Approvals(b"k" * 32, APPROVAL_SECONDS),
        )
    configured = Rules(**rules)
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(
            open_app(
                data_dir,
                **{name: getattr(configured, name) for name in ("tokens", *rules)},
            )
        )
        fake_workspaces, repository = FakeWorkspaces(), OneRepository()
        session_manager = await stack.enter_async_context(
            ToolSessions(
                app.tool_gateway,
                configured.tokens,
                fake_workspaces,
                repository,
                max_open=max_open,
            )
        )
        if configured.parking is not None:
            configured.parking.on_resolved(session_manager.heed_resolution)
        yield SessionsFixture(session_manager, fake_workspaces, repository, app, configured.parking)
