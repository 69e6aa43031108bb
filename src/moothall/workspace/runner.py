"""Blocks of Python that a model wrote: run in boxes of their own, which hold nothing, with tools
asked of the trusted side.

The first tier is Monty, in a box without workspace, network or files: what a block is given are
functions that ask here. What Monty says that it cannot run goes, before any of it ran, to CPython
in a box of the workspace's kind (`Workspace.run_code`).
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
from moothall.config import WorkspaceSections
from moothall.domain.code import AGENTS_RUN, Ask, BlockRun, CodeBlock
from moothall.domain.ids import digest
from moothall.domain.tool import ToolResult, ToolStatus
from moothall.errors import ConfigurationError, SandboxUnavailable, WorkspaceFailed
from moothall.ports import Workspace
from moothall.sandbox_runtime.code_runner import MONTY
from moothall.telemetry import get_logger
from moothall.workspace.executor_client import Answer, ExecutorClient, ExecutorSetup
from moothall.workspace.pool import ExecutorPool
from moothall.workspace.stdio_session import RequestAnswerer, code_run, cut, endless_run, most_asked

log = get_logger(__name__)

_PROGRAM = "moothall.sandbox_runtime.code_runner"
_SPARE_MEMORY = 256_000_000  # of the process that holds the worker, and of the worker itself
_PROCESSES, _OPEN_FILES = 32, 128


def monty_binds() -> tuple[tuple[Path, str], ...]:
    """Return what shows Monty inside. Raises `ConfigurationError` where it is not installed."""
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
            "Python blocks need pydantic-monty with its runtime: install it, or set runner.enabled "
            "to false"
        )
    return (
        (Path(package.origin).resolve().parent, f"{MONTY}/pydantic_monty"),
        (Path(extensions.origin).resolve(), f"{MONTY}/typing_extensions.py"),
        (Path(binary).resolve(), f"{MONTY}/monty"),
    )


class LocalRunner:
    """Runs blocks of Python. Its boxes are the pool's, and end with it. Belongs to one event loop.

    A box serves one tenant, one block at a time, and is thrown away after any block that did not
    end by itself.
    """

    def __init__(self, settings: WorkspaceSections, pool: ExecutorPool) -> None:
        self._settings = settings.runner
        self._pool = pool
        sandbox = settings.sandbox
        limits = sandbox.model_copy(
            update={
                "memory_bytes": settings.runner.memory_bytes + _SPARE_MEMORY,
                "processes": _PROCESSES,
                "open_files": _OPEN_FILES,
                "wall_seconds": settings.runner.seconds,
                "toolchains": (),
            }
        )
        self._place = ExecutorSetup("runner", (), ro=monty_binds(), program=_PROGRAM, limits=limits)
        self._idle: dict[str, list[ExecutorClient]] = {}
        self._slots = asyncio.Semaphore(settings.runner.workers)
        # Of each depth its own: a block holds its box while it waits for agents whose blocks want
        # one.
        self._full_slots: defaultdict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(settings.runner.full_workers)
        )

    async def run(self, block: CodeBlock, workspace: Workspace, ask: Ask) -> BlockRun:
        """Run a block. See `ports.RunCode`."""
        left = seconds_until(block.deadline)
        try:
            async with asyncio.timeout(max(left, 0.0)) as limit:
                ran, why = await self._first(block, ask)
                if not why:
                    return ran
                if not (self._settings.full and block.full):
                    other = (
                        ", or let it read files too (files.read), as CPython wants"
                        if self._settings.full
                        else ""
                    )
                    return replace(
                        ran, error=f"this Python cannot run it: {why}; write it without{other}"
                    )
                log.info("a block goes to CPython", reason=why)
                async with self._full_slots[block.depth]:
                    return replace(await workspace.run_code(block, ask), tier="python", why=why)
        except TimeoutError:
            if not limit.expired():
                raise
            return BlockRun(ToolStatus.TIMEOUT, error="its time was over, and it was stopped")

    async def first(self, block: CodeBlock, ask: Ask) -> BlockRun:
        """Run a block in the first tier alone."""
        ran, why = await self._first(block, ask)
        return (
            replace(ran, error=f"this Python cannot run it: {why}; write it without")
            if why
            else ran
        )

    async def _first(self, block: CodeBlock, ask: Ask) -> tuple[BlockRun, str]:
        """Let Monty run it; with why it cannot, where that is so."""

        async def ask_without_slot(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            if name != AGENTS_RUN:
                return await ask(name, arguments)
            # Its agents run blocks too: whoever waits for them may not have the place that they
            # need.
            slot.leave()
            result = await ask(name, arguments)
            await slot.take()
            return result

        asking, slot = (
            RequestAnswerer(ask_without_slot, most_asked(self._settings.tool_calls)),
            _Slot(self._slots),
        )
        async with slot:
            try:
                box = await self._take(block.tenant)
            except (SandboxUnavailable, WorkspaceFailed) as error:
                return BlockRun(
                    ToolStatus.ERROR, error=f"no Python can be started: {error.message}"
                ), ""
            whole = False
            try:
                answer = await self._ask(box, block, asking)
                whole = not answer.get("crashed") and box.alive
            except WorkspaceFailed as error:
                if asking.failed is not None:
                    raise asking.failed from error
                if asking.endless:
                    return endless_run(), ""
                log.warning("a runner was lost", reason=error.message)
                return BlockRun(
                    ToolStatus.ERROR,
                    error="the interpreter was lost while it ran this; its tool calls stand",
                ), ""
            finally:
                self._give_back(box, block.tenant, whole=whole)
        if answer.get("status") == "unsupported":
            return BlockRun(ToolStatus.INVALID), cut(
                str(answer.get("why") or "it does not say why")
            )
        return code_run(answer, self._settings.output_bytes), ""

    async def _ask(self, box: ExecutorClient, block: CodeBlock, asking: RequestAnswerer) -> Answer:
        limits = self._settings
        seconds = min(block.seconds or limits.seconds, limits.seconds)
        return await box.request(
            "code",
            wall_seconds=seconds,
            asked=asking,
            code=block.code,
            tools={name: list(names) for name, names in block.tools.items()},
            inputs=dict(block.inputs),
            agents=block.agents,
            seconds=seconds,
            memory_bytes=min(block.memory_bytes or limits.memory_bytes, limits.memory_bytes),
            recursion=limits.recursion,
            output_bytes=limits.output_bytes,
            tool_calls=limits.tool_calls,
            seed=digest(block.code),
        )

    async def _take(self, tenant: str) -> ExecutorClient:
        idle = self._idle.get(tenant, [])
        while idle:
            box = idle.pop()
            if box.alive:
                return box
            self._pool.drop(box)
        # Another tenant's are in the way: no more boxes than workers.
        if sum(map(len, self._idle.values())) >= self._settings.workers:
            other = next(boxes for boxes in self._idle.values() if boxes)
            self._pool.drop(other.pop())
        return await self._pool.take(
            self._place, whose={"tenant": tenant}
        )  # any block of it may come

    def _give_back(self, box: ExecutorClient, tenant: str, *, whole: bool) -> None:
        if whole and sum(map(len, self._idle.values())) < self._settings.workers:
            self._idle.setdefault(tenant, []).append(box)
        else:
            self._pool.drop(box)


class _Slot:
    """One of the places for blocks that compute; it can be left and taken again."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._held = False

    async def take(self) -> None:
        await self._slots.acquire()
        self._held = True

    def leave(self) -> None:
        if self._held:
            self._held = False
            self._slots.release()

    async def __aenter__(self) -> Self:
        await self.take()
        return self

    async def __aexit__(self, *details: object) -> None:
        self.leave()
