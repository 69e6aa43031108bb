"""Stored environments: archives that hosts with different disks share, and the base environments.

A host writes an archive right after a set-up, before a model's code has run. It is in a folder that
only the hosts mount: a workspace gets a copy. The name of an archive depends on the repository and
so on the tenant, on lock files and commands, and on everything that a set-up gets from the host. A
set-up may be hostile, so an archive is unpacked like data from a workspace.

A base environment is a venv with pytest, created once and copied for each repository. No code of a
repository runs while it is created, so repositories can share it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import shutil
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
from moothall.sandbox.spawn import sandbox_uid, set_owner
from moothall.sandbox_runtime.checks import PLUGINS
from moothall.telemetry import get_logger
from moothall.workspace.archive import pack, unpack
from moothall.workspace.executor_client import ExecutorSetup, remove_tree
from moothall.workspace.layout import Layout
from moothall.workspace.pool import ExecutorPool
from moothall.workspace.setup_network import setup_network_access
from moothall.workspace.toolchains import Toolchain

log = get_logger(__name__)

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
_MAX_BYTES = 50_000_000_000
"""The maximum size of all archives together, if the disk has that much."""
_DAY = 86_400.0
_ABANDONED_SECONDS = 3600.0
"""A half-written archive of this age belongs to a killed host."""


class BaseEnvironments:
    """The base environments. Processes that share a data directory share them."""

    def __init__(self, settings: WorkspaceSections, pool: ExecutorPool) -> None:
        self._settings = settings
        self._pool = pool

    async def copy_to(
        self, env: Path, python: Toolchain, image: str, report_progress: Callable[[str], None]
    ) -> None:
        """Copy the base environment of an image to `env`, whose parent must exist. Raises
        `RepositoryError` if not even an empty venv can be created.
        """
        venv = (str(python.program), "-m", "venv", ENVIRONMENT)
        network = self._settings.workspace.setup_network != "off"
        source = (
            await self._create(
                "pytest", python, (venv, _PYTEST), report_progress, image=image, network=True
            )
            if network
            else None
        )
        source = source or await self._create(
            "blank", python, (venv,), report_progress, image=image, network=False
        )
        if source is None:
            raise RepositoryError(
                f"a virtual environment cannot be created with {venv[0]}: is its venv module "
                "complete?"
            )
        copying = await start_process("cp", "-a", "--reflink=auto", str(source), str(env))
        if await copying.wait():
            raise RepositoryError(f"the environment cannot be copied to {env}: is the disk full?")
        await asyncio.to_thread(_add_reporters, env)

    async def _create(
        self,
        kind: str,
        python: Toolchain,
        commands: tuple[tuple[str, ...], ...],
        report_progress: Callable[[str], None],
        *,
        image: str,
        network: bool,
    ) -> Path | None:
        """Return the folder of a base environment. Return None if a command failed; the next call
        tries again.
        """
        layout = self._pool.layout
        parts = [python.version, str(python.program), *([image] if image else [])]
        name = f"starter-{kind}-{digest(*parts)[:16]}"
        async with layout.lock(f"env-{name}"):
            final = layout.environment(name)
            if final.is_dir():
                return final / "env"
            temporary = final.with_name(f".{name}-{secrets.token_hex(4)}")
            uid = sandbox_uid()
            for folder in (temporary, temporary / "env", temporary / "empty"):
                folder.mkdir(parents=True)
                set_owner(folder, uid)
            try:
                report_progress(
                    f"creating an environment of Python {python.version} with {kind}, once for all "
                    "repositories"
                )
                if not await self._run_commands(
                    temporary, python, commands, image=image, network=network
                ):
                    return None
                temporary.rename(final)
            finally:
                await remove_tree(temporary)
            return final / "env"

    async def _run_commands(
        self,
        temporary: Path,
        python: Toolchain,
        commands: tuple[tuple[str, ...], ...],
        *,
        image: str,
        network: bool,
    ) -> bool:
        setup = ExecutorSetup(
            key=temporary.name.lstrip("."),
            tree=(temporary / "empty",),
            env=temporary / "env",
            env_writable=True,
            network_access=await asyncio.to_thread(setup_network_access, temporary, self._settings)
            if network
            else None,
            python=python.home,
            image=image,
        )
        seconds = self._settings.workspace.check_seconds
        async with self._pool.start(setup) as executor:
            for argv in commands:
                answer = await executor.request(
                    "setup", wall_seconds=seconds, argv=argv, env=executor.variables()
                )
                if answer.get("status") != "success" or answer.get("exit_code") != 0:
                    return False
            await executor.fetch_setup_output()
        return True


def _add_reporters(env: Path) -> None:
    """Add our reporters to the path of an environment's Python, so that commands that set
    PYTHONPATH find them too.
    """
    for packages in env.glob("lib/python*/site-packages"):
        (packages / "moothall.pth").write_text(f"{PLUGINS}\n", encoding="utf-8")


def _is_setup_output(path: str, _status: os.stat_result) -> bool:
    """Return whether a path is output of the set-up, not part of its input."""
    return path.partition("/")[0] in {"env", "layer"}


class Archives:
    """The archives in `workspace.environments`. Without that setting, nothing is stored."""

    def __init__(self, settings: WorkspaceSections, max_bytes: int = _MAX_BYTES) -> None:
        host_properties = (
            settings.workspace.kind,
            settings.image,
            platform.machine(),
            sys.version,
            sys.prefix,
        )
        top = settings.workspace.environments
        self._folder = top / digest(*host_properties)[:32] if top else None
        self._max_bytes = max_bytes
        self._keep_seconds = settings.workspace.keep_days * _DAY
        self._owner = sandbox_uid()

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncIterator[None]:
        """Prevent other hosts from creating the same environment."""
        async with AsyncExitStack() as stack:
            if self._folder is not None:
                try:
                    await stack.enter_async_context(Layout(self._folder).lock(name))
                except OSError as error:
                    log.warning(
                        "environments cannot be shared", path=str(self._folder), reason=str(error)
                    )
            yield

    async def restore(self, name: str, folder: Path, report_progress: Progress) -> bool:
        """Unpack an environment into an empty folder, and return whether there was one."""
        if self._folder is None or not (path := self._folder / name).is_file():
            return False
        try:
            await asyncio.to_thread(self._unpack, path, folder)
        except (OSError, WorkspaceFailed) as error:
            # A broken archive is removed. An error of this host, such as a full disk, is no reason
            # to remove it for all.
            if isinstance(error, WorkspaceFailed):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            report_progress(
                f"the environment of another host cannot be used; setting it up again: {error}"[
                    :300
                ]
            )
            return False
        report_progress("using the environment of another host")
        return True

    def _unpack(self, path: Path, folder: Path) -> None:
        with path.open("rb") as file:
            unpack(file, folder, owner=self._owner, max_bytes=self._max_bytes)
        os.utime(path)

    async def store(self, name: str, folder: Path) -> None:
        """Store the output of a set-up. If that fails, the next host creates it itself."""
        if self._folder is not None:
            try:
                await asyncio.to_thread(self._pack, self._folder / name, folder)
            except OSError as error:
                log.warning(
                    "an environment could not be shared",
                    path=str(self._folder / name),
                    reason=str(error),
                )

    def _pack(self, path: Path, folder: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        try:
            with temporary.open("xb") as file:
                pack(folder, file, _is_setup_output)
            max_bytes = min(self._max_bytes, shutil.disk_usage(path.parent).total * 4 // 5)
            if temporary.stat().st_size <= max_bytes:
                temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._free_space(path.parent.parent, max_bytes)

    def _free_space(self, top: Path, max_bytes: int) -> None:
        """Remove archives that were not used for long, then the least recently used ones until the
        rest fits.
        """
        now, free_bytes = time.time(), max_bytes
        files = []
        for path in top.glob("*/*"):
            with suppress(FileNotFoundError):
                if path.is_file():
                    files.append((path.stat().st_mtime, path.stat().st_size, path))
        for mtime, size, path in sorted(files, reverse=True):
            free_bytes -= size
            if free_bytes < 0 or now - mtime > (
                _ABANDONED_SECONDS if path.name.startswith(".") else self._keep_seconds
            ):
                path.unlink(missing_ok=True)
                free_bytes += size
