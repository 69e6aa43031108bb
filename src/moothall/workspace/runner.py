"""Blocks of Python that a model wrote, run in executors of their own that call tools on the
trusted side. Sessions with code in an executor: a block of Python that asks questions, or a
program that talks to its caller.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sysconfig
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from moothall.concurrency import seconds_until
from moothall.config import RunnerSettings, WorkspaceSections
from moothall.domain.ids import digest
from moothall.domain.text import encodable
from moothall.domain.tool import (
    AGENTS_RUN,
    BLOCK_LIMITS,
    Ask,
    BlockLimits,
    BlockRun,
    CodeBlock,
    ToolResult,
    ToolStatus,
)
from moothall.errors import ConfigurationError, MoothallError, SandboxUnavailable, WorkspaceFailed
from moothall.ports import HandleLines, Workspace
from moothall.sandbox.bubblewrap import ENVIRONMENT
from moothall.sandbox_runtime import harness_process, socket_process
from moothall.sandbox_runtime.code_runner import MONTY
from moothall.sandbox_runtime.tool_proxy import plain
from moothall.telemetry import get_logger
from moothall.workspace.executor_client import Answer, ExecutorClient, ExecutorSetup
from moothall.workspace.executor_connection import PARSE_ERRORS, parse_integer, parse_usage
from moothall.workspace.pool import ExecutorPool

# Sessions with code in an executor: a block of Python that asks questions, or a program that talks
# to its caller. All input from the executor is hostile.


BLOCK_OUTPUT_BYTES = 50_000
"""The maximum size of a block's output, and of its value."""
_ERROR_CHARS = 4000
_REPORTABLE_STATUSES = frozenset({"success", "error", "memory"})
"""The statuses that a block may report itself; only its supervisor can know the others."""


class RequestAnswerer:
    """Answers questions of an executor with `call_tool`, and keeps the error that it raised.

    A block that asks more than `limit` questions is `endless`: its time does not run while it asks.
    """

    def __init__(self, call_tool: Ask, limit: int) -> None:
        self._call_tool = call_tool
        self._remaining = limit
        self.failed: MoothallError | None = None

    @property
    def endless(self) -> bool:
        """Whether there were too many questions."""
        return self._remaining < 0

    async def __call__(self, message: Answer) -> Answer:
        """Answer a question. Raises `WorkspaceFailed` if there were too many."""
        self._remaining -= 1
        if self.endless:
            raise WorkspaceFailed("it kept asking after the limit of questions")
        arguments = message.get("args")
        try:
            result = await self._call_tool(
                str(message.get("name")), arguments if isinstance(arguments, Mapping) else {}
            )
        except MoothallError as error:
            self.failed = error
            raise
        return {"status": str(result.status), "output": dict(result.output), "error": result.error}


def code_run(answer: Answer, max_bytes: int) -> BlockRun:
    """Parse an executor's answer, which is hostile. Raises `WorkspaceFailed`."""
    try:
        status = ToolStatus(answer.get("status", ""))
        duration, usage = parse_integer(answer.get("duration_ms") or 0), parse_usage(answer)
    except PARSE_ERRORS as error:
        raise WorkspaceFailed(f"the runner broke its protocol: {error}") from error
    value, error_text = answer.get("value"), error_excerpt(str(answer.get("error") or ""))
    if status is not ToolStatus.SUCCESS:
        value = None
    elif _size(value) > max_bytes:
        status, value, error_text = (
            ToolStatus.OUTPUT,
            None,
            f"its last expression has more than {max_bytes} bytes; keep it small",
        )
    printed = encodable(str(answer.get("printed") or "")[: 2 * max_bytes])
    return BlockRun(
        status, _plain_value(value), printed, error_text, duration_ms=duration, usage=usage
    )


def full_run(answer: Answer, max_bytes: int) -> BlockRun:
    """Parse an executor's answer about a block in CPython. Raises `WorkspaceFailed`."""
    report = answer.get("end")
    printed, status = answer.get("output"), answer.get("status")
    fields: Answer = {
        "printed": printed,
        "duration_ms": answer.get("duration_ms"),
        "usage": answer.get("usage"),
    }
    if status != "success":
        return code_run(
            {**fields, "status": status, "error": f"it was stopped: {status}"}, max_bytes
        )
    if not isinstance(report, Mapping):
        return code_run(
            {
                **fields,
                "status": "error",
                "error": f"it ended by itself with exit code {answer.get('exit_code')}",
            },
            max_bytes,
        )
    reported_status = report.get("status")
    block_status = (
        reported_status
        if isinstance(reported_status, str) and reported_status in _REPORTABLE_STATUSES
        else "error"
    )
    return code_run(
        {
            **fields,
            "status": block_status,
            "value": report.get("value"),
            "error": report.get("error"),
        },
        max_bytes,
    )


def max_questions(tool_calls: int) -> int:
    """Return how many questions a block may ask that may call so many tools. Refused calls count
    too.
    """
    return 2 * tool_calls + 100


def endless_run() -> BlockRun:
    """Return the result of an `endless` block."""
    return BlockRun(
        ToolStatus.BUDGET_EXCEEDED,
        error="it kept calling tools after their limit, and was ended",
    )


def _plain_value(value: Any) -> Any:
    """Return a value as plain JSON for all APIs: no NaN, no deep nesting, no lone surrogates."""
    return json.loads(encodable(json.dumps(plain(value), ensure_ascii=False)))


def _size(value: Any) -> int:
    size, remaining = 0, [value]
    while remaining:
        item = remaining.pop()
        size += len(item) if isinstance(item, str) else 8
        if isinstance(item, Mapping):
            remaining += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            remaining += item
    return size


def error_excerpt(text: str) -> str:
    """Return the end of a text, since the cause of an error is at its end."""
    text = encodable(text)
    return text if len(text) <= _ERROR_CHARS else f"…{text[-_ERROR_CHARS:]}"


_MAX_MESSAGES, _MAX_AGENT_MESSAGES = 10_000, 200_000


async def converse(
    executor: ExecutorClient,
    argv: Sequence[str],
    handle_lines: HandleLines,
    seconds: float,
    max_bytes: int,
    *,
    variables: Mapping[str, str] | None,
) -> str:
    """Run a program in an executor and pass lines between it and `handle_lines`. See
    `ports.Workspace.converse`.
    """
    remaining = _MAX_MESSAGES if variables is None else _MAX_AGENT_MESSAGES

    async def answer_lines(message: Answer) -> Answer:
        nonlocal remaining
        remaining -= 1
        arguments = message.get("args")
        lines = arguments.get("lines") if isinstance(arguments, Mapping) else None
        reply = await handle_lines(
            [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []
        )
        return {"lines": list(reply or ()), "end": reply is None or remaining < 0}

    env = executor.variables()
    # The operator chose the program, so one of that name in the repository's environment must not
    # be run.
    path = ":".join(
        folder for folder in env["PATH"].split(":") if not folder.startswith(f"{ENVIRONMENT}/")
    )
    block: dict[str, Any] = {"argv": list(argv), "most": max_bytes}
    if variables is None:
        command, env["PATH"] = socket_process.PROGRAM_COMMAND, path
    else:  # an agent runs the project's own commands, so only itself is looked for elsewhere
        command = harness_process.COMMAND
        block |= {"variables": dict(variables), "path": path}
    answer = await executor.request(
        "run" if variables is None else "shell",  # of the latter, `seconds` is the limit
        wall_seconds=seconds,
        answer_question=answer_lines,
        unslotted=True,  # it mostly waits for its caller
        argv=(executor.python, "-B", "-c", command),
        env=env,
        block=block,
    )
    report = answer.get("end")
    if answer.get("status") != "success":
        reason = f"it was stopped: {str(answer.get('status'))[:40]}"
    elif not isinstance(report, Mapping):
        reason = f"it ended by itself with exit code {answer.get('exit_code')}"
    elif not (reason := str(report.get("ended") or "")):
        return ""
    output = str(answer.get("output") or "").strip()
    return (
        f"{error_excerpt(reason)}; its output: {error_excerpt(output)}"
        if output
        else error_excerpt(reason)
    )


# Blocks of Python that a model wrote, run in executors of their own that call tools on the trusted
# side.
#
# The first tier is Monty, in an executor without workspace, network or files: a block can only call
# functions that are answered here. A block that Monty cannot run goes, before any of it ran, to
# CPython in an executor on the workspace's files (`Workspace.run_code`).


log = get_logger(__name__)

_PROGRAM = "moothall.sandbox_runtime.code_runner"
_EXTRA_MEMORY_BYTES = 256_000_000  # for the process that holds the worker, and the worker itself
_MAX_RECURSION = 400
_MAX_PROCESSES, _MAX_OPEN_FILES = 32, 128
_WORKERS = 2
"""The number of concurrent blocks of one process; twice as many may run in CPython."""


def can_run_blocks(settings: RunnerSettings) -> bool:
    """Return whether blocks are enabled and Monty is installed (extras `tools` and `local`)."""
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

    def __init__(
        self,
        settings: WorkspaceSections,
        pool: ExecutorPool,
        limits: BlockLimits = BLOCK_LIMITS,
        workers: int = _WORKERS,
    ) -> None:
        self._limits, self._workers = limits, workers
        self._pool = pool
        sandbox = settings.sandbox.model_copy(
            update={
                "memory_bytes": limits.memory_bytes + _EXTRA_MEMORY_BYTES,
                "processes": _MAX_PROCESSES,
                "open_files": _MAX_OPEN_FILES,
                "wall_seconds": limits.seconds,
                "toolchains": (),
            }
        )
        self._setup = ExecutorSetup(
            "runner", (), ro=monty_binds(), program=_PROGRAM, limits=sandbox
        )
        self._idle: dict[str, list[ExecutorClient]] = {}
        self._slots = asyncio.Semaphore(workers)
        # Each depth has its own slots: a block holds its executor while it waits for agents whose
        # blocks need one too.
        self._full_slots: defaultdict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(2 * workers)
        )

    async def run(self, block: CodeBlock, workspace: Workspace, call_tool: Ask) -> BlockRun:
        """Run a block. See `ports.RunCode`."""
        seconds_left = seconds_until(block.deadline)
        try:
            async with asyncio.timeout(max(seconds_left, 0.0)) as limit:
                result, reason = await self._try_monty(block, call_tool)
                if not reason:
                    return result
                if not block.full:
                    return replace(
                        result,
                        error=f"this Python cannot run it: {reason}; write it without, or let it "
                        "read files too (files.read), as CPython requires",
                    )
                log.info("a block runs in CPython", reason=reason)
                async with self._full_slots[block.depth]:
                    return replace(
                        await workspace.run_code(block, call_tool), tier="python", why=reason
                    )
        except TimeoutError:
            if not limit.expired():
                raise
            return BlockRun(ToolStatus.TIMEOUT, error="it exceeded its time limit and was stopped")

    async def run_in_monty(self, block: CodeBlock, call_tool: Ask) -> BlockRun:
        """Run a block in the first tier only."""
        result, reason = await self._try_monty(block, call_tool)
        return (
            replace(result, error=f"this Python cannot run it: {reason}; write it without")
            if reason
            else result
        )

    async def _try_monty(self, block: CodeBlock, call_tool: Ask) -> tuple[BlockRun, str]:
        """Run a block in Monty; return the result, and why Monty cannot run it or ''."""

        async def ask_without_slot(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            if name != AGENTS_RUN:
                return await call_tool(name, arguments)
            # The agents run blocks too, and may need the slot of the block that waits for them.
            slot.release()
            result = await call_tool(name, arguments)
            await slot.acquire()
            return result

        answerer, slot = (
            RequestAnswerer(ask_without_slot, max_questions(self._limits.tool_calls)),
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
                    error="the interpreter was lost while it ran this; its tool calls remain in "
                    "effect",
                ), ""
            finally:
                self._return_executor(executor, block.tenant, is_reusable=is_reusable)
        if answer.get("status") == "unsupported":
            return BlockRun(ToolStatus.INVALID), error_excerpt(
                str(answer.get("why") or "no reason was given")
            )
        return code_run(answer, BLOCK_OUTPUT_BYTES), ""

    async def _run_in(
        self, executor: ExecutorClient, block: CodeBlock, answerer: RequestAnswerer
    ) -> Answer:
        limits = self._limits
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
        if sum(map(len, self._idle.values())) >= self._workers:
            idle_executors = next(executors for executors in self._idle.values() if executors)
            self._pool.release(idle_executors.pop())
        # Any block of the tenant may run in it.
        return await self._pool.acquire(self._setup, owner={"tenant": tenant})

    def _return_executor(self, executor: ExecutorClient, tenant: str, *, is_reusable: bool) -> None:
        if is_reusable and sum(map(len, self._idle.values())) < self._workers:
            self._idle.setdefault(tenant, []).append(executor)
        else:
            self._pool.release(executor)


class _Slot:
    """A slot for a block that computes; it can be released and acquired again."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._is_acquired = False

    async def acquire(self) -> None:
        await self._slots.acquire()
        self._is_acquired = True

    def release(self) -> None:
        if self._is_acquired:
            self._is_acquired = False
            self._slots.release()

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *details: object) -> None:
        self.release()
