"""Kept environments: archives that hosts on different disks share, and the base environment.

A host writes an archive right after a set-up, before any model's code has run. It is in a folder
that all hosts mount, and only hosts: a workspace gets a copy. The name of an archive depends on the
repository and therefore the tenant, on lock files and commands, and on all that a set-up gets from
the host. A set-up may be hostile, so an archive is unpacked like anything from a workspace.

The base environment is a venv with pytest, created once and copied for each repository. Nothing of
any repository is in it, or near it while it is created, so repositories can share it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from moothall.config import WorkspaceSections
from moothall.domain.ids import digest
from moothall.errors import RepositoryError, WorkspaceFailed
from moothall.processes import start_process
from moothall.repositories.checkout import Progress
from moothall.sandbox.bubblewrap import ENVIRONMENT
from moothall.sandbox.spawn import drop_uid, own
from moothall.sandbox_runtime.checks import PLUGINS
from moothall.telemetry import get_logger
from moothall.workspace.executor_client import ExecutorSetup, remove_tree
from moothall.workspace.kubernetes.archive import pack, unpack
from moothall.workspace.layout import Layout
from moothall.workspace.packages import setup_reach
from moothall.workspace.pool import ExecutorPool
from moothall.workspace.toolchains import Toolchain

_PYTEST = (
    f"{ENVIRONMENT}/bin/python",
    "-I",
    "-m",
    "pip",
    "install",
    "--quiet",
    "--no-input",
    "--disable-pip-version-check",
    "pytest",
)


class Starter:
    """Makes and copies it. One a process; processes that share a data directory share what is
    made.
    """

    def __init__(self, settings: WorkspaceSections, pool: ExecutorPool) -> None:
        self._settings = settings
        self._pool = pool

    async def copy_to(
        self, env: Path, python: Toolchain, image: str, report_progress: Callable[[str], None]
    ) -> None:
        """Copy that of an image to `env`, whose parent exists. Raises `RepositoryError` where not
        even a venv can be made.
        """
        venv = (str(python.program), "-m", "venv", ENVIRONMENT)
        network = self._settings.workspace.setup_network != "off"
        source = (
            await self._make(
                "pytest", python, (venv, _PYTEST), report_progress, image=image, network=True
            )
            if network
            else None
        )
        source = source or await self._make(
            "blank", python, (venv,), report_progress, image=image, network=False
        )
        if source is None:
            raise RepositoryError(
                f"a virtual environment cannot be made with {venv[0]}: is its venv module whole?"
            )
        copying = await start_process("cp", "-a", "--reflink=auto", str(source), str(env))
        if await copying.wait():
            raise RepositoryError(f"the environment cannot be copied to {env}: is the disk full?")
        await asyncio.to_thread(_add_reporters, env)

    async def _make(
        self,
        kind: str,
        python: Toolchain,
        commands: tuple[tuple[str, ...], ...],
        report_progress: Callable[[str], None],
        *,
        image: str,
        network: bool,
    ) -> Path | None:
        """Return its folder; None where a command failed, which is tried again the next time."""
        layout = self._pool.layout
        parts = [python.version, str(python.program), *([image] if image else [])]
        name = f"starter-{kind}-{digest(*parts)[:16]}"
        async with layout.lock(f"env-{name}"):
            final = layout.environment(name)
            if final.is_dir():
                return final / "env"
            making = final.with_name(f".{name}-{secrets.token_hex(4)}")
            uid = drop_uid(self._settings.sandbox)
            for folder in (making, making / "env", making / "empty"):
                folder.mkdir(parents=True)
                own(folder, uid)
            try:
                report_progress(
                    f"making an environment of Python {python.version} with {kind}, once for all "
                    "repositories"
                )
                if not await self._run(making, python, commands, image=image, network=network):
                    return None
                making.rename(final)
            finally:
                await remove_tree(making)
            return final / "env"

    async def _run(
        self,
        making: Path,
        python: Toolchain,
        commands: tuple[tuple[str, ...], ...],
        *,
        image: str,
        network: bool,
    ) -> bool:
        place = ExecutorSetup(
            key=making.name.lstrip("."),
            tree=(making / "empty",),
            env=making / "env",
            env_writable=True,
            reach=await asyncio.to_thread(setup_reach, making, self._settings) if network else None,
            python=python.home,
            image=image,
        )
        seconds = self._settings.workspace.setup_seconds
        async with self._pool.start(place) as box:
            for argv in commands:
                answer = await box.request(
                    "setup", wall_seconds=seconds, argv=argv, env=box.variables()
                )
                if answer.get("status") != "success" or answer.get("exit_code") != 0:
                    return False
            await box.take_back()
        return True


def _add_reporters(env: Path) -> None:
    """Put our reporters on the path of an environment's Python, so that commands that set
    PYTHONPATH find them too.
    """
    for packages in env.glob("lib/python*/site-packages"):
        (packages / "moothall.pth").write_text(f"{PLUGINS}\n", encoding="utf-8")


log = get_logger(__name__)

_DAY = 86_400.0
_LEFT_SECONDS = 3600.0
"""After which a half-written archive is one of a host that was killed."""


def _is_made(path: str, _status: os.stat_result) -> bool:
    """Whether it is what a set-up made, and not what it was shown."""
    return path.partition("/")[0] in {"env", "layer"}


class Archives:
    """Keeps environments in `workspace.environments`, and nothing where that is not set."""

    def __init__(self, settings: WorkspaceSections) -> None:
        made_on = (
            settings.workspace.kind,
            settings.jobs.image,
            platform.machine(),
            sys.version,
            sys.prefix,
        )
        top = settings.workspace.environments
        self._folder = top / digest(*made_on)[:32] if top else None
        self._most = settings.workspace.environments_bytes
        self._keep_seconds = settings.workspace.keep_days * _DAY
        self._owner = drop_uid(settings.sandbox)

    @asynccontextmanager
    async def alone(self, name: str) -> AsyncIterator[None]:
        """Keep other hosts from setting the same up."""
        async with AsyncExitStack() as stack:
            if self._folder is not None:
                try:
                    await stack.enter_async_context(Layout(self._folder).lock(name))
                except OSError as error:
                    log.warning(
                        "environments cannot be shared", path=str(self._folder), reason=str(error)
                    )
            yield

    async def take(self, name: str, folder: Path, report_progress: Progress) -> bool:
        """Unpack an environment into an empty folder; whether there was one."""
        if self._folder is None or not (path := self._folder / name).is_file():
            return False
        try:
            await asyncio.to_thread(self._take, path, folder)
        except (OSError, WorkspaceFailed) as error:
            # One that is broken goes; what fails here alone, as a full disk, is no reason to take
            # it from all.
            if isinstance(error, WorkspaceFailed):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            report_progress(
                f"what another host had set up cannot be used, and is set up anew: {error}"[:300]
            )
            return False
        report_progress("another host has set it up")
        return True

    def _take(self, path: Path, folder: Path) -> None:
        with path.open("rb") as file:
            unpack(file, folder, owner=self._owner, most=self._most)
        os.utime(path)

    async def keep(self, name: str, folder: Path) -> None:
        """Keep what a set-up made. Where it cannot be kept, the next host sets it up itself."""
        if self._folder is not None:
            try:
                await asyncio.to_thread(self._keep, self._folder / name, folder)
            except OSError as error:
                log.warning(
                    "an environment could not be shared",
                    path=str(self._folder / name),
                    reason=str(error),
                )

    def _keep(self, path: Path, folder: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        making = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        try:
            with making.open("xb") as file:
                pack(folder, file, _is_made)
            if making.stat().st_size <= self._most:
                making.rename(path)
        finally:
            making.unlink(missing_ok=True)
        self._make_room(path.parent.parent)

    def _make_room(self, top: Path) -> None:
        """Remove what was not used for long, then what was not used for longest, until the rest may
        stay.
        """
        now, left = time.time(), self._most
        found = []
        for path in top.glob("*/*"):
            with suppress(FileNotFoundError):
                if path.is_file():
                    found.append((path.stat().st_mtime, path.stat().st_size, path))
        for used, size, path in sorted(found, reverse=True):
            left -= size
            if left < 0 or now - used > (
                _LEFT_SECONDS if path.name.startswith(".") else self._keep_seconds
            ):
                path.unlink(missing_ok=True)
                left += size
