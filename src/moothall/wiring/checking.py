"""`moothall check`: a repository set up and its checks run once as it is. Needs no bus, model or Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moothall.aio import leaves
from moothall.config import Settings
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest, MoothallError, RepositoryError
from moothall.repositories.ownfile import commands_of, to_toml, write_own
from moothall.sandbox.probe import check_walls
from moothall.wiring.asking import asked_about, files_of, unseen
from moothall.wiring.early import Named
from moothall.wiring.trusted import open_hands, trusted_repositories
from moothall.workspace.layout import uses_environment
from moothall.workspace.toolchains import choose


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of it. `prepared` is None where `failure` says why; `files` is where a profile could be written."""

    base: Base
    prepared: Prepared | None
    failure: MoothallError | None
    seconds: float
    unseen: str = ""
    files: Path | None = None

    @property
    def interpreter(self) -> str:
        """The Python that an environment is made with; '' where none is."""
        return str(choose(self.base.profile.needs).python.program) if uses_environment(self.base) else ""

    @property
    def own_file(self) -> str:
        """The text of a `.moothall.toml` that says the same."""
        return to_toml(commands_of(self.base.profile))


async def check_repository(settings: Settings, named: Named, tell: Callable[[str], None]) -> Checked:
    """Resolve, set up and run the base. Raises what keeps it from being looked at at all; a set-up that fails is a value."""
    began = time.monotonic()
    ref = await asked_about(settings, named)
    if ref is None:
        raise InvalidRequest("you are in no git repository; name one: moothall check PATH, URL or id")
    said = await unseen(settings, ref, named.profile)
    base = await trusted_repositories(settings).resolve(ref)
    prepared, failure = None, None
    try:
        prepared = await _prepare(settings, ref, tell)
    except* RepositoryError as group:
        failure = RepositoryError("\n".join(dict.fromkeys(map(str, leaves(group)))))
    return Checked(base, prepared, failure, time.monotonic() - began, said, files_of(settings, ref))


async def _prepare(settings: Settings, ref: RepositoryRef, tell: Callable[[str], None]) -> Prepared:
    if settings.workspace.kind == "local":
        await check_walls(settings.sandbox)
    alone = settings.workspace.model_copy(update={"warm": 0})  # nobody comes after: no executor need be ready
    async with open_hands(settings.model_copy(update={"workspace": alone})) as hands:
        return await hands.repositories.prepare(await hands.repositories.resolve(ref), tell)


async def write_profile(checked: Checked, *, replace: bool) -> Path:
    """Write what was found out as the work tree's `.moothall.toml`. Raises `InvalidRequest`, `AlreadyExists`, `RepositoryError`."""
    if checked.files is None or not (checked.files / ".git").exists():
        raise InvalidRequest("its files are not on this machine: --write needs a work tree; --json shows what it would say")
    return await asyncio.to_thread(write_own, checked.files, checked.own_file, replace=replace)
