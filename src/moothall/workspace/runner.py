"""Blocks of Python that a model wrote, run in executors of their own that call tools on the trusted
side.

The first tier is Monty, in an executor without workspace, network or files: a block can only call
functions that are answered here. A block that Monty cannot run goes, before any of it ran, to
CPython in an executor on the workspace's files (`Workspace.run_code`).
"""

from __future__ import annotations

import asyncio
import shutil
import sysconfig
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from moothall.concurrency import seconds_until
from moothall.config import RunnerSettings, WorkspaceSections
from moothall.domain.code import AGENTS_RUN, Ask, BlockRun, CodeBlock
from moothall.domain.ids import digest
from moothall.domain.tool import ToolResult, ToolStatus
from moothall.errors import ConfigurationError, SandboxUnavailable, WorkspaceFailed
from moothall.ports import Workspace
from moothall.sandbox_runtime.code_runner import MONTY
from moothall.telemetry import get_logger
from moothall.workspace.executor_client import Answer, ExecutorClient, ExecutorSetup
from moothall.workspace.pool import ExecutorPool
from moothall.workspace.stdio_session import (
    BLOCK_OUTPUT_BYTES,
    RequestAnswerer,
    code_run,
    cut,
    endless_run,
    max_questions,
)

log = get_logger(__name__)

_PROGRAM = "moothall.sandbox_runtime.code_runner"
_EXTRA_MEMORY_BYTES = 256_000_000  # for the process that holds the worker, and the worker itself
_MAX_RECURSION = 400
_MAX_PROCESSES, _MAX_OPEN_FILES = 32, 128


def can_run_blocks(settings: RunnerSettings) -> bool:
    """Whether blocks are enabled and Monty is installed (extras `tools` and `local`)."""
    return settings.enabled and find_spec("pydantic_monty") is not None


def monty_binds() -> tuple[tuple[Path, str], ...]:
    """Return the binds of Monty. Raises `ConfigurationError` if it is not installed."""
    package, extensions = find_spec("pydantic_monty"), find_spec("typing_extensions")
    binary = shutil.which("monty", path=sysconfig.get_path("scripts")) or shutil.which("monty")
    if (
        package is None
        or package.origin is None
        or extensions is None
        or extensions.origin is None
        or binary is None
    ):
        raise ConfigurationError(
            "blocks of Python need pydantic-monty with its runtime: pip install 'moothall[tools]', "
            "or set runner.enabled to false"
        )
    return (
        (Path(package.origin).resolve().parent, f"{MONTY}/pydantic_monty"),
        (Path(extensions.origin).resolve(), f"{MONTY}/typing_extensions.py"),
        (Path(binary).resolve(), f"{MONTY}/monty"),
    )


class LocalRunner:
    """A runner of Python blocks, whose executors belong to the pool. It belongs to one event loop.

    An executor serves one tenant and one block at a time. It is discarded after a block that did
    not end by itself.
    """

    def __init__(self, settings: WorkspaceSections, pool: ExecutorPool) -> None:
        self._settings = settings.runner
        self._pool = pool
        sandbox = settings.sandbox
        limits = sandbox.model_copy(
            update={
                "memory_bytes": settings.runner.memory_bytes + _EXTRA_MEMORY_BYTES,
                "processes": _MAX_PROCESSES,
                "open_files": _MAX_OPEN_FILES,
                "wall_seconds": settings.runner.seconds,
                "toolchains": (),
            }
        )
        self._setup = ExecutorSetup("runner", (), ro=monty_binds(), program=_PROGRAM, limits=limits)
        self._idle: dict[str, list[ExecutorClient]] = {}
        self._slots = asyncio.Semaphore(settings.runner.workers)
        # Each depth has its own slots: a block holds its executor while it waits for agents whose
        # blocks need one too.
        self._full_slots: defaultdict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(2 * settings.runner.workers)
        )

    async def run(self, block: CodeBlock, workspace: Workspace, ask: Ask) -> BlockRun:
        """Run a block. See `ports.RunCode`."""
        seconds_left = seconds_until(block.deadline)
        try:
            async with asyncio.timeout(max(seconds_left, 0.0)) as limit:
                result, reason = await self._try_monty(block, ask)
                if not reason:
                    return result
                if not (self._settings.full and block.full):
                    alternative = (
                        ", or let it read files too (files.read), as CPython requires"
                        if self._settings.full
                        else ""
                    )
                    return replace(
                        result,
                        error=f"this Python cannot run it: {reason}; write it without{alternative}",
                    )
                log.info("a block goes to CPython", reason=reason)
                async with self._full_slots[block.depth]:
                    return replace(await workspace.run_code(block, ask), tier="python", why=reason)
        except TimeoutError:
            if not limit.expired():
                raise
            return BlockRun(ToolStatus.TIMEOUT, error="its time was over, and it was stopped")

    async def run_in_monty(self, block: CodeBlock, ask: Ask) -> BlockRun:
        """Run a block in the first tier only."""
        result, reason = await self._try_monty(block, ask)
        return (
            replace(result, error=f"this Python cannot run it: {reason}; write it without")
            if reason
            else result
        )

    async def _try_monty(self, block: CodeBlock, ask: Ask) -> tuple[BlockRun, str]:
        """Run a block in Monty; return the result, and why Monty cannot run it or ''."""

        async def ask_without_slot(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            if name != AGENTS_RUN:
                return await ask(name, arguments)
            # The agents run blocks too, and may need the slot of the block that waits for them.
            slot.release()
            result = await ask(name, arguments)
            await slot.acquire()
            return result

        answerer, slot = (
            RequestAnswerer(ask_without_slot, max_questions(self._settings.tool_calls)),
            _Slot(self._slots),
        )
        async with slot:
            try:
                executor = await self._acquire_executor(block.tenant)
            except (SandboxUnavailable, WorkspaceFailed) as error:
                return BlockRun(
                    ToolStatus.ERROR, error=f"Python cannot be started: {error.message}"
                ), ""
            is_reusable = False
            try:
                answer = await self._run_in(executor, block, answerer)
                is_reusable = not answer.get("crashed") and executor.alive
            except WorkspaceFailed as error:
                if answerer.failed is not None:
                    raise answerer.failed from error
                if answerer.endless:
                    return endless_run(), ""
                log.warning("a runner was lost", reason=error.message)
                return BlockRun(
                    ToolStatus.ERROR,
                    error="the interpreter was lost while it ran this; its tool calls stand",
                ), ""
            finally:
                self._return_executor(executor, block.tenant, is_reusable=is_reusable)
        if answer.get("status") == "unsupported":
            return BlockRun(ToolStatus.INVALID), cut(
                str(answer.get("why") or "no reason was given")
            )
        return code_run(answer, BLOCK_OUTPUT_BYTES), ""

    async def _run_in(
        self, executor: ExecutorClient, block: CodeBlock, answerer: RequestAnswerer
    ) -> Answer:
        limits = self._settings
        seconds = min(block.seconds or limits.seconds, limits.seconds)
        return await executor.request(
            "code",
            wall_seconds=seconds,
            answer_question=answerer,
            code=block.code,
            tools={name: list(names) for name, names in block.tools.items()},
            inputs=dict(block.inputs),
            agents=block.agents,
            seconds=seconds,
            memory_bytes=min(block.memory_bytes or limits.memory_bytes, limits.memory_bytes),
            recursion=_MAX_RECURSION,
            output_bytes=BLOCK_OUTPUT_BYTES,
            tool_calls=limits.tool_calls,
            seed=digest(block.code),
        )

    async def _acquire_executor(self, tenant: str) -> ExecutorClient:
        idle = self._idle.get(tenant, [])
        while idle:
            executor = idle.pop()
            if executor.alive:
                return executor
            self._pool.release(executor)
        # No more executors than workers: one of another tenant must go.
        if sum(map(len, self._idle.values())) >= self._settings.workers:
            idle_executors = next(executors for executors in self._idle.values() if executors)
            self._pool.release(idle_executors.pop())
        # Any block of the tenant may run in it.
        return await self._pool.acquire(self._setup, owner={"tenant": tenant})

    def _return_executor(self, executor: ExecutorClient, tenant: str, *, is_reusable: bool) -> None:
        if is_reusable and sum(map(len, self._idle.values())) < self._settings.workers:
            self._idle.setdefault(tenant, []).append(executor)
        else:
            self._pool.release(executor)


class _Slot:
    """A slot for a block that computes; it can be released and acquired again."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._held = False

    async def acquire(self) -> None:
        await self._slots.acquire()
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._slots.release()

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *details: object) -> None:
        self.release()
