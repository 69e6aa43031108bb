"""The environment that every repository's own begins as: a venv with pytest, made once and copied.

Nothing of any repository is in it, or near it while it is made, so that repositories can share it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path

from moothall.config import WorkspaceSections
from moothall.domain.ids import digest
from moothall.errors import RepositoryError
from moothall.processes import start_process
from moothall.sandbox.bubblewrap import ENVIRONMENT
from moothall.sandbox.spawn import drop_uid, own
from moothall.sandbox_runtime.checks import PLUGINS
from moothall.workspace.executor_client import ExecutorSetup, remove_tree
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
