"""An open workspace in the hands of a workflow, and what it takes to open one again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from moothall.domain.repository import Base
from moothall.guard.seat import SeatContext
from moothall.ports import Repositories
from moothall.visits.standing import StandingWorkspace


@dataclass(frozen=True, slots=True)
class Returning:
    """What it takes to open a workspace again: whose it is, the base, and a commit with its files as they were last kept."""

    workspace: str
    principal: str
    tenant: str
    role: str
    persona: str
    deadline: datetime
    repository: str
    base_sha: str
    commit_sha: str = ""


@dataclass(frozen=True, slots=True)
class Loan:
    """An open workspace in the hands of a workflow. `closing` is set when its caller or its time ends it."""

    seat: SeatContext
    workspace: StandingWorkspace
    closing: asyncio.Event
    repositories: Repositories

    @property
    def base(self) -> Base:
        """What it was opened on."""
        return self.workspace.prepared.base

    async def commit(self) -> str:
        """Keep the files as they are now and return the commit. Raises `PatchRefused`, `WorkspaceFailed`."""
        return (await self.workspace.patch("files as a workflow left them")).commit_sha

    async def rewind(self, commit: str) -> None:
        """Make the files as a commit has them."""
        await self.workspace.rewind(await self.repositories.diff(self.base, commit) if commit else "")
