"""One workspace's executor, wherever it runs: asked, measured, and what it needs to be asked."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from moothall.concurrency import seconds_until
from moothall.config import SandboxSettings, WorkspaceSections
from moothall.errors import MoothallError, WorkspaceFailed
from moothall.network.proxy import Proxy
from moothall.processes import start_process
from moothall.repositories.changes import AskIgnored, ChangeCaps, WorkspaceChanges
from moothall.repositories.detect import GO_CACHE
from moothall.repositories.profile import read_text
from moothall.sandbox.bubblewrap import ENVIRONMENT, interpreter
from moothall.sandbox_runtime.confinement import HOME
from moothall.workspace import executor_log
from moothall.workspace.executor_connection import ExecutorConnection
from moothall.workspace.packages import NetworkAccess
from moothall.workspace.slots import Slot, Slots

EXECUTOR = "moothall.sandbox_runtime.executor"
START_SECONDS = 20.0
# less than the gateway's: an executor that says nothing is lost, and its turns are done again
# elsewhere
_GRACE_SECONDS = 5.0
_LOOK_PAUSE = 0.25
_LONG = frozenset({"setup", "build", "check", "shell"})  # the caller sets their limits
_OFFLINE = {
    "GOPROXY": "off",
    "CARGO_NET_OFFLINE": "true",
    "npm_config_offline": "true",
    "PIP_NO_INDEX": "1",
}
# If a check calls its package manager again, it uses what set-up resolved and does not look for
# other versions.
_RESOLVED = {
    "COREPACK_ENABLE_NETWORK": "0",
    "COREPACK_ENABLE_STRICT": "0",
    "COREPACK_ENABLE_AUTO_PIN": "0",
    "UV_OFFLINE": "1",
    "UV_NO_SYNC": "1",
    "UV_FROZEN": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "YARN_ENABLE_NETWORK": "0",
}
_PNPM = {
    # With this, pnpm leaves its version to corepack, even if started directly.
    "COREPACK_ROOT": f"{ENVIRONMENT}/corepack",
    "pnpm_config_manage_package_manager_versions": "false",
    "pnpm_config_verify_deps_before_run": "false",
}
_VERIFIES = "npm_config_verify_deps_before_run"
"""Read by older pnpm. npm warns about it, so it is set only if the project asks pnpm to install
before it runs."""
_YARN = {"YARN_NODE_LINKER": "node-modules", "YARN_ENABLE_TELEMETRY": "0", "YARN_IGNORE_PATH": "1"}
"""As detected set-ups install: Plug'n'Play needs a cache outside the repository."""
_PROXIES = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
    "YARN_HTTP_PROXY",
    "YARN_HTTPS_PROXY",  # yarn reads no others from its second version on
)
_OF_OTHERS = frozenset({"run", "code"})  # what runs code of others
# These take a slot. Set-up does not: it mostly waits for the network.
_SLOTTED = frozenset({"run", "build", "check", "code", "shell"})
_WRITING = frozenset(
    {"files.write", "files.append", "files.edit", "files.define", "files.mkdir", "files.store"}
)

Answer = dict[str, Any]
Asked = Callable[[Answer], Awaitable[Answer]]
"""What answers a request that asks something meanwhile."""


@dataclass(frozen=True, slots=True)
class ExecutorSetup:
    """What a box shows: `tree` (topmost first) at /workspace, `env` at /env, more folders
    read-only. Without a tree there is an empty folder. `program` answers in it; `limits` hold
    instead of the settings'; `cpu_share` is the processors that a command may use on average, 0: as
    the limits say. `toolchains` are shown where they lie, and their bin is put on PATH; `reach` is
    what it may reach, through a proxy: without, nothing; `python` is the prefix of the interpreter
    that /env was made with, where it is not our own. `image`: what a pod of it runs in, where that
    is not the one for all.
    """

    key: str
    tree: tuple[Path, ...]
    env: Path | None = None
    env_writable: bool = False
    reach: NetworkAccess | None = None
    ro: tuple[tuple[Path, str], ...] = ()
    program: str = EXECUTOR
    limits: SandboxSettings | None = None
    cpu_share: float = 0.0
    toolchains: tuple[Path, ...] = ()
    python: Path | None = None
    image: str = ""
    history: Path | None = None
    """A folder with the git directory that the shell reads; without, there is no git in the
    workspace.
    """

    def describe_walls(self, limits: SandboxSettings, **more: Any) -> dict[str, Any]:
        """Return what the program in it is told of its walls."""
        return {
            "landlock": "landlock" not in limits.allow_degraded,
            "writable": [ENVIRONMENT] if self.env and self.env_writable else [],
            "open_files": limits.open_files,
            "processes": limits.processes,
            "memory_bytes": limits.memory_bytes,
            "disk_bytes": limits.disk_bytes,
            **more,
        }


async def remove_tree(path: Path) -> None:
    """Remove a tree that hostile code may have written: any depth, any modes, no link followed."""
    for attempt in range(2):
        if not await asyncio.to_thread(path.exists):
            return
        if attempt:
            await _quietly("chmod", "-R", "u+rwX", "--", str(path))
        await _quietly("rm", "-rf", "--one-file-system", "--", str(path))


async def _quietly(*command: str) -> None:
    process = await start_process(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    await process.wait()


class ExecutorClient(ABC):
    """A running executor. One request at a time; the lock is held for a whole request."""

    def __init__(self, place: ExecutorSetup, folder: Path, settings: WorkspaceSections) -> None:
        self.place = place
        self.folder = folder
        self.upper = folder / "upper"
        self.called = folder.name
        self.whose: Mapping[str, str] = {}
        self.slots: Slots | None = None
        self._slot: Slot | None = None
        self._since = 0.0
        self._settings = settings
        self._limits = place.limits or settings.sandbox
        self._link: ExecutorConnection | None = None
        self._lock = asyncio.Lock()
        self._outside = contextlib.AsyncExitStack()
        self._proxy: Proxy | None = None
        self._port = 0

    @property
    def name(self) -> str:
        """The folder's name, which is unique."""
        return self.folder.name

    def belong_to(self, whose: Mapping[str, str]) -> None:
        """Let people who look on see whose it is: `task_id`, `tenant`, `seat`, as far as they are
        known. Before it is started or later.
        """
        self.whose = whose
        self._since = time.time()

    @property
    def _log(self) -> Path:
        return self.folder / "sandbox.log"

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the executor runs."""

    @property
    def spent(self) -> bool:
        """Whether too much of its life has gone while it was kept ready for it to be taken."""
        return False

    @property
    def pid(self) -> int:
        """The pid on this machine of the process that holds it; 0 where it runs elsewhere."""
        return 0

    @property
    def python(self) -> str:
        """Our own Python, as it is found inside."""
        return str(interpreter())

    @abstractmethod
    async def start(self) -> None:
        """Start the executor and wait until it has shut itself in.

        Raises `SandboxUnavailable` with the reason; then nothing is left.
        """

    @abstractmethod
    async def show_history(self) -> str:
        """Return where inside the git directory lies that the shell reads, '' where there is
        none.
        """

    @abstractmethod
    async def changes(
        self, base_files: Sequence[str], caps: ChangeCaps, ignored: AskIgnored
    ) -> WorkspaceChanges:
        """Return what differs from the checkout; `ignored` says what .gitignore files leave out.
        Raises `PatchRefused` for what no patch can hold, `WorkspaceFailed`.
        """

    @abstractmethod
    async def take_back(self) -> None:
        """Bring what set-up wrote to this machine: into `place.env`, and what it left in the tree
        into `upper`.
        """

    @abstractmethod
    def kill(self) -> None:
        """End everything inside, at once."""

    @abstractmethod
    async def _end(self) -> None:
        """End it, and wait until that is done."""

    @abstractmethod
    async def _last_words(self) -> str:
        """Return the end of what it said beside its answers, or what is said of its end."""

    @abstractmethod
    def _note(self, text: str) -> None:
        """Add a line to its log."""

    @abstractmethod
    def _count_memory_kills(self) -> int:
        """Return how many processes were killed because its memory was used up."""

    @abstractmethod
    async def _disk_is_full(self) -> bool:
        """Whether what was written is more than it may be."""

    async def close(self, *, keep: bool = False) -> None:
        """End everything inside and remove the folder (`keep`: leave it)."""
        self.kill()
        if self._link:
            self._link.close()
        try:
            await self._end()
            await self._outside.aclose()
        finally:
            if not keep:
                executor_log.keep(self._log, self._settings.data_dir, self.called)
                with contextlib.suppress(FileNotFoundError):
                    await remove_tree(self.folder)

    @property
    def refused(self) -> tuple[str, ...]:
        """Hosts and ports that the box asked for and may not reach."""
        return tuple(f"{host}:{port}" for host, port in self._proxy.refused) if self._proxy else ()

    async def request(
        self,
        op: str,
        *,
        wall_seconds: float,
        asked: Asked | None = None,
        deadline: datetime | None = None,
        patience: float = 1.0,
        alone: bool = False,
        unslotted: bool = False,
        **fields: Any,
    ) -> Answer:
        """Ask the executor and return its answer. Raises `WorkspaceFailed` when it is gone or
        silent.

        When the caller is cancelled, so is the command. `asked` answers what the request asks
        meanwhile, one question at a time; the time that this takes is not the request's. What it
        raises, this raises.

        A command waits for a slot first (`alone`: for all, `unslotted`: for none), and its time
        starts with the slot. Time spent waiting for a core does not count, up to `patience` times
        `wall_seconds`. `deadline` is absolute.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._lock)
            self._slot = None
            if self.slots is not None and op in _SLOTTED and not unslotted:
                try:
                    async with asyncio.timeout(
                        None if deadline is None else seconds_until(deadline)
                    ):
                        self._slot = await stack.enter_async_context(
                            self.slots.hold(self._since, alone=alone)
                        )
                except TimeoutError:
                    return {"status": "timeout", "output": "no slot was free before the deadline"}
            left = math.inf if deadline is None else seconds_until(deadline)
            wall = min(wall_seconds, left if op in _LONG else self._limits.wall_seconds)
            most = max(wall, min(patience * wall, left))
            return await self._ask(op, max(0.05, wall), max(0.05, most), asked, fields)

    async def _ask(
        self, op: str, wall: float, most: float, asked: Asked | None, fields: Mapping[str, Any]
    ) -> Answer:
        limits = self._limits
        long = op in _LONG
        cpu = wall * (os.cpu_count() or 1) if long else limits.cpu_seconds
        message = {
            "op": "run" if long else op,
            "limits": {
                "wall_seconds": wall,
                "most_seconds": most,
                "cpu_seconds": min(cpu, wall * self.place.cpu_share)
                if self.place.cpu_share
                else cpu,
                "output_bytes": limits.output_bytes,
                "any_output": long
                and op != "shell",  # its time is what bounds it, and a report comes with it
                "file_bytes": self._settings.workspace.max_file_bytes,
            },
            **fields,
        }
        if self._link is None:
            raise WorkspaceFailed("the workspace is not open")
        # Only foreign code can use up the memory; asking the kernel costs more than reading a file.
        killed = self._count_memory_kills() if message["op"] in _OF_OTHERS else None
        number, answer = self._link.ask(message)
        following = self._follow(number, answer, most, asked)
        try:
            if killed is None:
                result = await following
            else:
                result = await self._watch_block(number, following, killed, disk=op != "setup")
        except WorkspaceFailed as error:
            raise WorkspaceFailed(
                f"{error.message}: {await self._last_words() or 'it said nothing'}"
            ) from error
        except asyncio.CancelledError:
            self._link.stop(number, "cancelled")
            raise
        starved = killed is not None and self._count_memory_kills() > killed
        # A command may be over before the watch looks, and writing files has no watch.
        if (
            not starved
            and result.get("status") == "success"
            and _writes(op, fields)
            and await self._disk_is_full()
        ):
            said = f"the workspace exceeds sandbox.disk_bytes = {limits.disk_bytes}; delete files"
            result = {**result, "status": "disk", "verdict": "errored", "error": said}
        if starved and (
            (result.get("status") == "success" and result.get("exit_code")) or result.get("crashed")
        ):
            result = {**result, "status": "memory", "verdict": "errored"}
        if killed is not None:
            self._note(executor_log.line(op, fields, result))
        return result

    async def _follow(
        self, number: int, answer: asyncio.Future[Answer], wall: float, asked: Asked | None
    ) -> Answer:
        """Wait for an answer, and answer questions meanwhile. The command leaves its slot then,
        since the answer may need one.
        """
        link = self._link
        assert link is not None  # noqa: S101 - request made sure
        loop = asyncio.get_running_loop()
        end = loop.time() + wall + _GRACE_SECONDS
        while True:
            await asyncio.wait([answer], timeout=max(0.0, end - loop.time()))
            if not answer.done():
                self.kill()
                raise WorkspaceFailed(
                    f"the executor gave no answer within {wall + _GRACE_SECONDS:g} s and was ended"
                )
            said = answer.result()
            if asked is None or said.get("op") != "call":
                return said
            begun = loop.time()
            answer = link.more(number)  # it may be stopped, or die, while it waits
            if self._slot is not None:
                self._slot.leave()
            told = await asked(said)
            if self._slot is not None:
                await self._slot.take()
            end += loop.time() - begun
            if not answer.done():
                link.reply(number, told)

    async def _watch_block(
        self, number: int, following: Awaitable[Answer], killed: int, *, disk: bool
    ) -> Answer:
        """Follow what runs code of others, and look at memory and disk meanwhile, also while it
        waits for an answer of ours.
        """
        result: Answer | MoothallError
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(
                self._watch(number, killed, disk=disk), name=f"watch {self.name}"
            )
            try:
                result = await following
            except (
                MoothallError
            ) as error:  # it goes out of here as it is, and not as one of a group
                result = error
            finally:
                watch.cancel()
        if isinstance(result, MoothallError):
            raise result
        return result

    async def _watch(self, number: int, killed: int, *, disk: bool) -> None:
        """Stop a request whose memory or disk is used up."""
        loop, pause, broken = asyncio.get_running_loop(), _LOOK_PAUSE, ""
        while not broken:
            await asyncio.sleep(pause)
            begun = loop.time()
            broken = (
                "memory"
                if self._count_memory_kills() > killed
                else "disk"
                if disk and await self._disk_is_full()
                else ""
            )
            pause = max(_LOOK_PAUSE, 10 * (loop.time() - begun))
        if self._link:
            self._link.stop(number, broken)

    def variables(self) -> dict[str, str]:
        """Return the environment of a command: nothing of ours, nothing of the operator's."""
        place = self.place
        path = [f"{ENVIRONMENT}/bin"] if place.env else []
        path += [
            f"{folder}/bin" for folder in (*self._settings.sandbox.toolchains, *place.toolchains)
        ]
        path += [
            str(Path(self.python).parent),
            "/usr/local/go/bin",
            "/usr/local/bin",
            "/usr/bin",
            "/bin",
        ]
        variables = {
            "PATH": ":".join(dict.fromkeys(path)),
            "HOME": HOME,
            "USER": "agent",
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TMPDIR": "/tmp",  # noqa: S108 - inside the sandbox
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": f"{HOME}/.cache",
            "npm_config_cache": f"{HOME}/.npm",
            "npm_config_update_notifier": "false",
            "GOCACHE": self._go_cache(),
            "GOMODCACHE": f"{ENVIRONMENT}/go",
            "GOTOOLCHAIN": "local",
            # Go's index of folders whose files rest for two seconds ends it where the cache is
            # read-only
            "GODEBUG": "goindex=0",
            "CARGO_HOME": f"{ENVIRONMENT}/cargo",
            "COREPACK_HOME": f"{ENVIRONMENT}/corepack" if place.env else f"{HOME}/.cache/corepack",
        }
        if place.env:
            variables["VIRTUAL_ENV"] = ENVIRONMENT
        if not place.reach:
            return {**variables, **_OFFLINE, **self._resolved()}
        way = f"http://127.0.0.1:{self._port}"
        return {
            **variables,
            **dict.fromkeys(_PROXIES, way),
            "NODE_USE_ENV_PROXY": "1",
            **place.reach.variables,
        }

    def _resolved(self) -> dict[str, str]:
        """Return what keeps package managers to what set-up resolved."""
        env = self.place.env
        found = {**_RESOLVED}
        if env and not any((tree / ".venv").is_dir() for tree in self.place.tree):
            found["UV_PROJECT_ENVIRONMENT"] = ENVIRONMENT
        if env and os.path.lexists(env / "bin" / "yarn"):
            found |= _YARN
        if env and os.path.lexists(env / "bin" / "pnpm"):
            found |= _PNPM
            said = [
                read_text(self.place.tree[-1] / name) or ""
                for name in ("pnpm-workspace.yaml", ".npmrc")
            ]
            if re.search(r"verifyDepsBeforeRun|verify-deps-before-run", "".join(said)):
                found[_VERIFIES] = "false"
        return found

    def _go_cache(self) -> str:
        """What set-up compiled need not be compiled again: Go takes a cache that it cannot write
        to.
        """
        place = self.place
        filled = place.env is not None and (place.env_writable or (place.env / GO_CACHE).is_dir())
        return f"{ENVIRONMENT}/{GO_CACHE}" if filled else f"{HOME}/.cache/go"


def _writes(op: str, fields: Mapping[str, Any]) -> bool:
    """Whether a request may fill the disk of the workspace. A set-up has a limit of its own."""
    return op in _SLOTTED or (op == "files" and fields.get("tool") in _WRITING)
