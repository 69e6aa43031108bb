"""The client of a workspace's executor, wherever the executor runs."""

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
from typing import TYPE_CHECKING, Any

from moothall.concurrency import seconds_until
from moothall.config import SandboxSettings, WorkspaceSections
from moothall.errors import MoothallError, WorkspaceFailed
from moothall.processes import start_process
from moothall.repositories.changes import AskIgnored, ChangeCaps, WorkspaceChanges
from moothall.repositories.detect import GO_CACHE
from moothall.repositories.patch_rules import MAX_FILE_BYTES
from moothall.repositories.profile import read_text
from moothall.sandbox.bubblewrap import ENVIRONMENT, interpreter
from moothall.sandbox.spawn import OPEN_FILES
from moothall.sandbox_runtime.confinement import HOME
from moothall.tools.catalogue import FILE_CHANGING_TOOLS
from moothall.workspace import executor_connection
from moothall.workspace.executor_connection import ExecutorConnection
from moothall.workspace.limits import MAX_OUTPUT_BYTES
from moothall.workspace.setup_network import NetworkAccess
from moothall.workspace.slots import Slot, Slots

if TYPE_CHECKING:  # imports certificates
    from moothall.network.proxy import Proxy

EXECUTOR = "moothall.sandbox_runtime.executor"
START_SECONDS = 20.0
# Less than the gateway's: a silent executor is lost, and its turns are repeated in another one.
_GRACE_SECONDS = 5.0
_WATCH_PAUSE_SECONDS = 0.25
_CALLER_LIMITED = frozenset({"setup", "build", "check", "shell"})  # the caller sets their limits
_OFFLINE_VARIABLES = {
    "GOPROXY": "off",
    "CARGO_NET_OFFLINE": "true",
    "npm_config_offline": "true",
    "PIP_NO_INDEX": "1",
}
# If a check calls its package manager again, it uses what set-up resolved and does not look for
# other versions.
_RESOLVED_VARIABLES = {
    "COREPACK_ENABLE_NETWORK": "0",
    "COREPACK_ENABLE_STRICT": "0",
    "COREPACK_ENABLE_AUTO_PIN": "0",
    "UV_OFFLINE": "1",
    "UV_NO_SYNC": "1",
    "UV_FROZEN": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "YARN_ENABLE_NETWORK": "0",
}
_PNPM_VARIABLES = {
    # This makes pnpm leave its version to corepack, even if started directly.
    "COREPACK_ROOT": f"{ENVIRONMENT}/corepack",
    "pnpm_config_manage_package_manager_versions": "false",
    "pnpm_config_verify_deps_before_run": "false",
}
_VERIFY_DEPENDENCIES = "npm_config_verify_deps_before_run"
"""Read by older pnpm. npm warns about it, so it is set only if the project asks pnpm to install
before it runs."""
_YARN_VARIABLES = {
    "YARN_NODE_LINKER": "node-modules",
    "YARN_ENABLE_TELEMETRY": "0",
    "YARN_IGNORE_PATH": "1",
}
"""As in detected set-ups: Plug'n'Play needs a cache outside the repository."""
_PROXY_VARIABLES = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
    "YARN_HTTP_PROXY",
    "YARN_HTTPS_PROXY",  # the only ones that Yarn 2 and later read
)
_FOREIGN_CODE = frozenset({"run", "code"})  # operations that run untrusted code
# These take a slot. Set-up does not: it mostly waits for the network.
_SLOTTED = frozenset({"run", "build", "check", "code", "shell"})
# Deletions free a full disk, so they are not checked.
_WRITING_TOOLS = FILE_CHANGING_TOOLS - {"files.delete"}

Answer = dict[str, Any]
QuestionHandler = Callable[[Answer], Awaitable[Answer]]
"""Answers a question of a running request."""


@dataclass(frozen=True, slots=True)
class ExecutorSetup:
    """The setup of an executor.

    tree: folders of the overlay at /workspace, topmost first; without any, the folder is empty.
    env: the environment at /env.
    network_access: its network access through a proxy; None: no network.
    ro: more read-only folders, with their paths inside.
    program: the module that runs in it.
    limits: limits that replace those of the settings.
    cpu_share: the processors that a command may use on average; 0: as in the limits.
    toolchains: folders that are shown at their own paths, and whose bin is added to PATH.
    python: the prefix of the interpreter of /env if it is not our own.
    image: the image of its pod if it is not the common one.
    """

    key: str
    tree: tuple[Path, ...]
    env: Path | None = None
    env_writable: bool = False
    network_access: NetworkAccess | None = None
    ro: tuple[tuple[Path, str], ...] = ()
    program: str = EXECUTOR
    limits: SandboxSettings | None = None
    cpu_share: float = 0.0
    toolchains: tuple[Path, ...] = ()
    python: Path | None = None
    image: str = ""
    history: Path | None = None
    """A folder with the git directory that the shell reads; without it, the workspace has no git.
    """

    def describe_limits(self, limits: SandboxSettings, **options: Any) -> dict[str, Any]:
        """Return the options of the program that describe its limits."""
        return {
            "landlock": "landlock" not in limits.allow_degraded,
            "writable": [ENVIRONMENT] if self.env and self.env_writable else [],
            "open_files": OPEN_FILES,
            "processes": limits.processes,
            "memory_bytes": limits.memory_bytes,
            "disk_bytes": limits.disk_bytes,
            **options,
        }


async def remove_tree(path: Path) -> None:
    """Remove a tree of hostile code: any depth, any modes, without following links."""
    for attempt in range(2):
        if not await asyncio.to_thread(path.exists):
            return
        if attempt:
            await _run_quietly("chmod", "-R", "u+rwX", "--", str(path))
        await _run_quietly("rm", "-rf", "--one-file-system", "--", str(path))


async def _run_quietly(*command: str) -> None:
    process = await start_process(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    await process.wait()


class ExecutorClient(ABC):
    """A running executor. It handles one request at a time."""

    copies_beside = True
    """Whether an executor beside this one works on a copy of its files, not on the very same."""

    def __init__(self, setup: ExecutorSetup, folder: Path, settings: WorkspaceSections) -> None:
        self.setup = setup
        self.folder = folder
        self.upper = folder / "upper"
        self.log_name = folder.name
        self.owner: Mapping[str, str] = {}
        self.slots: Slots | None = None
        self._slot: Slot | None = None
        self._assigned_at = 0.0
        self._settings = settings
        self._limits = setup.limits or settings.sandbox
        self._link: ExecutorConnection | None = None
        self._lock = asyncio.Lock()
        self._proxies = contextlib.AsyncExitStack()
        self._proxy: Proxy | None = None
        self._port = 0

    @property
    def name(self) -> str:
        """The unique name of its folder."""
        return self.folder.name

    def assign_owner(self, owner: Mapping[str, str]) -> None:
        """Set the owner that observers see: `task_id`, `tenant` and `seat`, as far as known. It can
        be set before and after the start.
        """
        self.owner = owner
        self._assigned_at = time.time()

    @property
    def _log(self) -> Path:
        return self.folder / "sandbox.log"

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the executor runs."""

    @property
    def is_expired(self) -> bool:
        """Whether a spare executor is too old to be used."""
        return False

    @property
    def pid(self) -> int:
        """The pid on this machine of the process that holds it; 0 if it runs elsewhere."""
        return 0

    @property
    def python(self) -> str:
        """The path of our own Python inside."""
        return str(interpreter())

    @abstractmethod
    async def start(self) -> None:
        """Start the executor and wait until it has confined itself.

        Raises `SandboxUnavailable` with the reason, after removing everything.
        """

    @abstractmethod
    async def show_history(self) -> str:
        """Return the path inside of the git directory that the shell reads, or ''."""

    @abstractmethod
    async def changes(
        self, base_files: Sequence[str], caps: ChangeCaps, ignored: AskIgnored
    ) -> WorkspaceChanges:
        """Return the changes against the checkout; `ignored` asks which paths .gitignore files
        exclude. Raises `PatchRefused` for changes that no patch can contain, `WorkspaceFailed`.
        """

    @abstractmethod
    async def fetch_setup_output(self) -> None:
        """Fetch the output of set-up to this machine: the environment into `setup.env`, and files
        in the tree into `upper`.
        """

    @abstractmethod
    def kill(self) -> None:
        """Kill all processes inside."""

    @abstractmethod
    async def _end_sandbox(self) -> None:
        """End it and wait for its end."""

    @abstractmethod
    async def _read_log_tail(self) -> str:
        """Return the end of its log, or the reason of its end."""

    @abstractmethod
    def _write_log(self, text: str) -> None:
        """Add a line to its log."""

    @abstractmethod
    def _count_memory_kills(self) -> int:
        """Return how many processes were killed for lack of memory."""

    @abstractmethod
    async def _disk_is_full(self) -> bool:
        """Return whether the written files exceed the limit."""

    async def close(self, *, keep_folder: bool = False) -> None:
        """End everything inside, and remove the folder unless `keep_folder` is true."""
        self.kill()
        if self._link:
            self._link.close()
        try:
            await self._end_sandbox()
            await self._proxies.aclose()
        finally:
            if not keep_folder:
                executor_connection.store_log(self._log, self._settings.data_dir, self.log_name)
                with contextlib.suppress(FileNotFoundError):
                    await remove_tree(self.folder)

    @property
    def refused(self) -> tuple[str, ...]:
        """Hosts and ports that it requested and may not reach."""
        return tuple(f"{host}:{port}" for host, port in self._proxy.refused) if self._proxy else ()

    async def request(
        self,
        op: str,
        *,
        wall_seconds: float,
        answer_question: QuestionHandler | None = None,
        deadline: datetime | None = None,
        patience: float = 1.0,
        alone: bool = False,
        unslotted: bool = False,
        **fields: Any,
    ) -> Answer:
        """Send a request to the executor and return its answer. Raises `WorkspaceFailed` if the
        executor is gone or silent.

        If the caller is cancelled, the command is stopped. `answer_question` answers the questions
        of the request, one at a time; that time does not count for the request, and its errors are
        raised here.

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
                            self.slots.hold(self._assigned_at, alone=alone)
                        )
                except TimeoutError:
                    return {"status": "timeout", "output": "no slot was free before the deadline"}
            remaining = math.inf if deadline is None else seconds_until(deadline)
            time_limit = min(
                wall_seconds, remaining if op in _CALLER_LIMITED else self._limits.wall_seconds
            )
            max_seconds = max(time_limit, min(patience * time_limit, remaining))
            return await self._exchange(
                op, max(0.05, time_limit), max(0.05, max_seconds), answer_question, fields
            )

    async def _exchange(
        self,
        op: str,
        time_limit: float,
        max_seconds: float,
        answer_question: QuestionHandler | None,
        fields: Mapping[str, Any],
    ) -> Answer:
        message = {**self._message(op, time_limit, max_seconds), **fields}
        if self._link is None:
            raise WorkspaceFailed("the workspace is not open")
        # Only untrusted code can exhaust the memory; asking the kernel costs more than reading a
        # file.
        memory_kills = self._count_memory_kills() if message["op"] in _FOREIGN_CODE else None
        number, answer = self._link.send(message)
        waiting = self._follow_request(number, answer, max_seconds, answer_question)
        try:
            if memory_kills is None:
                result = await waiting
            else:
                result = await self._watch_block(number, waiting, memory_kills, disk=op != "setup")
        except WorkspaceFailed as error:
            raise WorkspaceFailed(
                f"{error.message}: {await self._read_log_tail() or 'it logged nothing'}"
            ) from error
        except asyncio.CancelledError:
            self._link.stop(number, "cancelled")
            raise
        out_of_memory = memory_kills is not None and self._count_memory_kills() > memory_kills
        # A command may end before the watch looks, and file writes have no watch.
        if (
            not out_of_memory
            and result.get("status") == "success"
            and _may_fill_disk(op, fields)
            and await self._disk_is_full()
        ):
            disk_error = (
                f"the workspace exceeds sandbox.disk_bytes = {self._limits.disk_bytes}; delete "
                "files"
            )
            result = {**result, "status": "disk", "verdict": "errored", "error": disk_error}
        if out_of_memory and (
            (result.get("status") == "success" and result.get("exit_code")) or result.get("crashed")
        ):
            result = {**result, "status": "memory", "verdict": "errored"}
        if memory_kills is not None:
            self._write_log(executor_connection.format_line(op, fields, result))
        return result

    def _message(self, op: str, time_limit: float, max_seconds: float) -> dict[str, Any]:
        """Return a request's operation and limits."""
        caller_limited = op in _CALLER_LIMITED
        cpu = time_limit * (os.cpu_count() or 1) if caller_limited else self._limits.cpu_seconds
        return {
            "op": "run" if caller_limited else op,
            "limits": {
                "wall_seconds": time_limit,
                "most_seconds": max_seconds,
                "cpu_seconds": min(cpu, time_limit * self.setup.cpu_share)
                if self.setup.cpu_share
                else cpu,
                "output_bytes": MAX_OUTPUT_BYTES,
                # The time limits the output of the others, and a report is part of it.
                "any_output": caller_limited and op != "shell",
                "file_bytes": MAX_FILE_BYTES,
            },
        }

    async def _follow_request(
        self,
        number: int,
        answer: asyncio.Future[Answer],
        max_seconds: float,
        answer_question: QuestionHandler | None,
    ) -> Answer:
        """Wait for an answer and answer questions meanwhile. The command releases its slot during a
        question, because answering may need one.
        """
        link = self._link
        assert link is not None  # noqa: S101 - checked by the caller
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max_seconds + _GRACE_SECONDS
        while True:
            await asyncio.wait([answer], timeout=max(0.0, deadline - loop.time()))
            if not answer.done():
                self.kill()
                raise WorkspaceFailed(
                    f"the executor gave no answer within {max_seconds + _GRACE_SECONDS:g} s and "
                    "was ended"
                )
            reply = answer.result()
            if answer_question is None or reply.get("op") != "call":
                return reply
            question_start = loop.time()
            answer = link.expect_more(number)  # it may be stopped, or die, while it waits
            if self._slot is not None:
                self._slot.release()
            result = await answer_question(reply)
            if self._slot is not None:
                await self._slot.acquire()
            deadline += loop.time() - question_start
            if not answer.done():
                link.reply(number, result)

    async def _watch_block(
        self, number: int, waiting: Awaitable[Answer], memory_kills: int, *, disk: bool
    ) -> Answer:
        """Wait for an answer to untrusted code, and watch memory and disk meanwhile, also during
        questions.
        """
        result: Answer | MoothallError
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(
                self._watch(number, memory_kills, disk=disk), name=f"watch {self.name}"
            )
            try:
                result = await waiting
            except MoothallError as error:  # raised below, outside of an exception group
                result = error
            finally:
                watch.cancel()
        if isinstance(result, MoothallError):
            raise result
        return result

    async def _watch(self, number: int, memory_kills: int, *, disk: bool) -> None:
        """Stop a request that has exhausted its memory or disk."""
        loop, pause, limit = asyncio.get_running_loop(), _WATCH_PAUSE_SECONDS, ""
        while not limit:
            await asyncio.sleep(pause)
            started = loop.time()
            limit = (
                "memory"
                if self._count_memory_kills() > memory_kills
                else "disk"
                if disk and await self._disk_is_full()
                else ""
            )
            pause = max(_WATCH_PAUSE_SECONDS, 10 * (loop.time() - started))
        if self._link:
            self._link.stop(number, limit)

    def variables(self) -> dict[str, str]:
        """Return the environment of a command, without variables of ours or the operator's."""
        setup = self.setup
        path = [f"{ENVIRONMENT}/bin"] if setup.env else []
        path += [
            f"{folder}/bin" for folder in (*self._settings.sandbox.toolchains, *setup.toolchains)
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
            "EMAIL": "agent@localhost",  # git's, for repositories that tests create
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
            # Go's index of folders fails with a read-only cache.
            "GODEBUG": "goindex=0",
            "CARGO_HOME": f"{ENVIRONMENT}/cargo",
            "COREPACK_HOME": f"{ENVIRONMENT}/corepack" if setup.env else f"{HOME}/.cache/corepack",
        }
        if setup.env:
            variables["VIRTUAL_ENV"] = ENVIRONMENT
        if not setup.network_access:
            return {**variables, **_OFFLINE_VARIABLES, **self._resolved_variables()}
        proxy_url = f"http://127.0.0.1:{self._port}"
        return {
            **variables,
            **dict.fromkeys(_PROXY_VARIABLES, proxy_url),
            "NODE_USE_ENV_PROXY": "1",
            **setup.network_access.variables,
        }

    def _resolved_variables(self) -> dict[str, str]:
        """Return variables that make package managers use what set-up resolved."""
        env = self.setup.env
        variables = {**_RESOLVED_VARIABLES}
        if env and not any((tree / ".venv").is_dir() for tree in self.setup.tree):
            variables["UV_PROJECT_ENVIRONMENT"] = ENVIRONMENT
        if env and os.path.lexists(env / "bin" / "yarn"):
            variables |= _YARN_VARIABLES
        if env and os.path.lexists(env / "bin" / "pnpm"):
            variables |= _PNPM_VARIABLES
            config = [
                read_text(self.setup.tree[-1] / name) or ""
                for name in ("pnpm-workspace.yaml", ".npmrc")
            ]
            if re.search(r"verifyDepsBeforeRun|verify-deps-before-run", "".join(config)):
                variables[_VERIFY_DEPENDENCIES] = "false"
        return variables

    def _go_cache(self) -> str:
        """Return Go's build cache: that of set-up if there is one, since Go can use a read-only
        cache.
        """
        setup = self.setup
        has_cache = setup.env is not None and (
            setup.env_writable or (setup.env / GO_CACHE).is_dir()
        )
        return f"{ENVIRONMENT}/{GO_CACHE}" if has_cache else f"{HOME}/.cache/go"


def _may_fill_disk(op: str, fields: Mapping[str, Any]) -> bool:
    """Return whether a request may fill the disk of the workspace. Set-up has its own limit."""
    return op in _SLOTTED or (op == "files" and fields.get("tool") in _WRITING_TOOLS)
