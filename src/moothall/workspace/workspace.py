"""Workspaces on this machine: an overlay over a shared checkout, with an executor in a sandbox."""

from __future__ import annotations

import base64
import os
import platform
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from moothall.concurrency import seconds_until
from moothall.config import SandboxSettings, WorkspaceSections
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Base, BuildStep, Patch, Prepared
from moothall.domain.tool import (
    BLOCK_LIMITS,
    Ask,
    BlockRun,
    CodeBlock,
    ToolCall,
    ToolResult,
    ToolStatus,
)
from moothall.errors import (
    AlreadyExists,
    InvalidRequest,
    MoothallError,
    NotFound,
    PatchRefused,
    Refused,
    RepositoryError,
    SandboxUnavailable,
    WorkspaceFailed,
)
from moothall.ports import NOTHING, HandleLines
from moothall.ranking.failures import hit_limit_under_load
from moothall.repositories import patch_rules
from moothall.repositories.changes import ChangeCaps, WorkspaceChanges
from moothall.repositories.clone import TrustedClone
from moothall.repositories.git_objects import Change
from moothall.repositories.service import Remote
from moothall.sandbox.bubblewrap import ENVIRONMENT
from moothall.sandbox_runtime import cases, checks
from moothall.sandbox_runtime.processes import GENEROUS
from moothall.sandbox_runtime.protocol import pack_path
from moothall.sandbox_runtime.socket_process import BLOCK_COMMAND
from moothall.tools import code_tools
from moothall.tools.code_tools import SHELL, USUAL_SECONDS
from moothall.workspace import limits
from moothall.workspace.executor_client import ExecutorClient, ExecutorSetup
from moothall.workspace.executor_connection import (
    grammars,
    parse_check_run,
    parse_code_output,
    parse_result,
    parse_shell_answer,
    parse_tests_output,
)
from moothall.workspace.gittools import GitState, git_tool
from moothall.workspace.initial_changes import InitialChanges
from moothall.workspace.limits import describe_shell_limit
from moothall.workspace.pool import CreateExecutor, ExecutorPool
from moothall.workspace.runner import (
    BLOCK_OUTPUT_BYTES,
    RequestAnswerer,
    converse,
    endless_run,
    full_run,
    max_questions,
)
from moothall.workspace.wasm import ModuleFolder, tool_answer

_SHELL_VARIABLES = {
    "PYTHONUNBUFFERED": "1",  # so that output before a timeout is shown
    "PAGER": "cat",
    "GIT_PAGER": "cat",
}
HIDDEN_RULE = "reserved for hidden tests"
_RERUN_ADVICE = "this proves nothing about the code; run it again"
_ERROR_STATUSES: tuple[tuple[type[MoothallError], ToolStatus], ...] = (
    (InvalidRequest, ToolStatus.INVALID),
    (Refused, ToolStatus.BLOCKED),
    (AlreadyExists, ToolStatus.ERROR),
    (NotFound, ToolStatus.ERROR),
    (PatchRefused, ToolStatus.ERROR),
    (RepositoryError, ToolStatus.ERROR),
)


@dataclass(frozen=True, slots=True)
class _CheckOrder:
    """Options of a check run: the cases that it is narrowed to, and those of
    `ExecutorClient.request`.
    """

    cases: Sequence[str] = ()
    deadline: datetime | None = None
    patience: float = GENEROUS
    alone: bool = False


class OverlayWorkspace:
    """An open workspace. `clone` and `base` belong to the trusted side; git tools use them."""

    def __init__(
        self,
        name: str,
        executor: ExecutorClient,
        prepared: Prepared,
        *,
        clone: TrustedClone,
        settings: WorkspaceSections,
        module_folder: ModuleFolder,
        pool: ExecutorPool,
        remote: Remote | None,
    ) -> None:
        self._pool = pool
        self._name = name
        self._executor = executor
        self._settings = settings
        self._module_folder = module_folder
        self._remote = remote
        self._git = GitState(prepared.base.sha)
        self.prepared = prepared
        self.clone = clone

    @property
    def id(self) -> str:
        """The id of the workspace."""
        return self._name

    @property
    def base(self) -> Base:
        """The commit with which it began."""
        return self.prepared.base

    @property
    def _limits(self) -> SandboxSettings:
        return self._executor.setup.limits or self._settings.sandbox

    @property
    def pid(self) -> int:
        """The pid of its sandbox on the host."""
        return self._executor.pid

    async def call(self, call: ToolCall) -> ToolResult:
        """Run a tool. See `ports.Workspace`."""
        if call.tool.startswith("git."):
            return await self._call_git(call)
        seconds = seconds_until(call.deadline)
        if seconds <= 0:
            return ToolResult(
                call.request_id,
                call.tool,
                ToolStatus.TIMEOUT,
                error="the deadline had passed before the call",
            )
        return parse_result(call, await self._answer(call, seconds))

    async def _answer(self, call: ToolCall, seconds: float) -> dict[str, Any]:
        """Run a tool in the executor and return its answer in the form of the tool's result."""
        match call.tool.partition(".")[0]:
            case "tests" if call.tool in checks.DEFAULTS:
                limit = replace(
                    limits.limit(self._settings.workspace, self.prepared, "tests"), seconds=seconds
                )
                command = self._tests_command(call.tool, call.arguments, limit.case_seconds)
                answer = await self._run_check("tests", command, limit, _CheckOrder(patience=1.0))
                if hit_limit_under_load(
                    parse_check_run("tests", answer), self.prepared.runs.get("tests")
                ):
                    answer = {
                        **answer,
                        "verdict": cases.ERRORED,
                        "error": f"a time limit was hit under load: {_RERUN_ADVICE}",
                    }
                return {**answer, "output": parse_tests_output(answer)}
            case "code" | "wasm" as category:
                return await (self._run_code if category == "code" else self._run_wasm)(
                    call, seconds
                )
            case "files":
                return await self._executor.request(
                    "files", wall_seconds=seconds, tool=call.tool, args=dict(call.arguments)
                )
            case "system" if call.tool == "system.info":
                return {"status": "success", "output": self._system_info()}
            case "system" if call.tool == "system.processes":
                return await self._executor.request("processes", wall_seconds=seconds)
        return {"status": "invalid", "error": f"{call.tool} does not run in a local workspace"}

    async def _run_code(self, call: ToolCall, seconds: float) -> dict[str, Any]:
        if call.tool == SHELL:
            return await self._run_shell(call, seconds)
        answer = await self._run_argv(code_tools.command(call.tool, call.arguments), seconds)
        return {**answer, "output": parse_code_output(answer)}

    async def _run_shell(self, call: ToolCall, seconds: float) -> dict[str, Any]:
        answer = await self._executor.request(
            "shell",
            wall_seconds=seconds,
            argv=code_tools.command(call.tool, call.arguments),
            env={**self._executor.variables(), **_SHELL_VARIABLES},
            shell_state={
                "history": await self._executor.show_history(),
                "session": bool(call.arguments.get("session")),
            },
        )
        requested_seconds, max_seconds = (
            call.arguments.get("timeout_seconds") or USUAL_SECONDS,
            self._settings.workspace.check_seconds,
        )
        return parse_shell_answer(
            answer,
            describe_shell_limit(
                str(answer.get("status")), seconds, requested_seconds, max_seconds, self._limits
            ),
        )

    async def _run_wasm(self, call: ToolCall, seconds: float) -> dict[str, Any]:
        return tool_answer(
            call.tool,
            await self._run_argv(
                self._module_folder.command(call.tool, call.arguments, seconds), seconds
            ),
        )

    async def _run_argv(self, argv: tuple[str, ...], seconds: float) -> dict[str, Any]:
        return await self._executor.request(
            "run", wall_seconds=seconds, argv=argv, env=self._executor.variables()
        )

    async def check(
        self,
        name: str,
        paths: Sequence[str] = (),
        deadline: datetime | None = None,
        cases: Sequence[str] = (),
        *,
        alone: bool = False,
    ) -> CheckRun:
        """Run one of the profile's checks. See `ports.Workspace`."""
        argv = self.base.profile.checks.get(name)
        if not argv:
            check_names = ", ".join(self.base.profile.checks) or "none"
            return CheckRun(
                name,
                Verdict.MISSING,
                output=f"no check {name!r} is configured; the checks are: {check_names}",
                status="error",
            )
        limit = limits.limit(self._settings.workspace, self.prepared, name)
        if deadline and seconds_until(deadline) <= 0:
            return CheckRun(
                name,
                Verdict.ERRORED,
                output="the deadline had passed before the check",
                status="timeout",
            )
        folder = self.base.profile.folders.get(name, "")
        check_paths = [
            path.removeprefix(f"{folder}/")
            for path in paths
            if not folder or path.startswith(f"{folder}/")
        ]
        command = checks.command(argv, check_paths, cases=cases, seconds=limit.case_seconds)
        order = _CheckOrder(tuple(cases), deadline, alone=alone)
        changes_before = await self._changes_or_none()
        run = parse_check_run(name, await self._run_check(name, command, limit, order))
        changes_after = await self._changes_or_none()
        if (
            changes_before is not None
            and changes_after is not None
            and changes_before != changes_after
        ):
            await self.restore(changes_before)
        if run.status == ToolStatus.SUCCESS:
            return run
        if deadline and run.status == ToolStatus.TIMEOUT and run.duration_ms < 1000 * limit.seconds:
            limit = replace(
                limit, seconds=run.duration_ms / 1000, origin="the time of the deliberation"
            )
        return replace(
            run,
            output=f"{limits.describe_limit(name, run.status, limit, self._limits)}\n{run.output}",
        )

    async def _changes_or_none(self) -> Sequence[Change] | None:
        """Return the changes, None if they are refused: that is reported when a patch is made."""
        try:
            return await self.changes()
        except PatchRefused:
            return None

    async def _run_check(
        self, name: str, command: tuple[str, ...], limit: limits.CheckLimit, order: _CheckOrder
    ) -> dict[str, Any]:
        profile = self.base.profile
        variables = checks.variables(command, seconds=limit.case_seconds, cases=order.cases)
        if any(checks.SITE in argument for step in profile.builds for argument in step.argv):
            variables["PYTHONPATH"] += f":{checks.SITE}"
        check = {
            "name": name,
            "folder": profile.folders.get(name, ""),
            "seconds": limit.case_seconds,
            "reports": profile.reports.get(name, ()),
        }
        async with self._build_on_copy(limit.seconds, order) as (executor, failed):
            if failed is not None:
                return failed
            return await executor.request(
                "check",
                wall_seconds=limit.seconds,
                deadline=order.deadline,
                patience=order.patience,
                alone=order.alone,
                argv=command,
                env={**executor.variables(), **variables},
                check=check,
            )

    @asynccontextmanager
    async def _build_on_copy(
        self, seconds: float, order: _CheckOrder
    ) -> AsyncIterator[tuple[ExecutorClient, dict[str, Any] | None]]:
        """Yield an executor with the current files built, and None or the answer of a failed build.

        Build products are not part of the workspace's changes: the build runs in a second executor,
        or its changes are reverted.
        """
        steps = await self._required_builds()
        if not steps:
            yield self._executor, None
            return
        if self._executor.copies_beside:
            setup = self._setup_beside("build", self._limits)
            async with self._pool.start(setup, neighbour=self._executor) as executor:
                yield executor, await self._build(executor, steps, seconds, order)
            return
        before = await self.collect()
        try:
            yield self._executor, await self._build(self._executor, steps, seconds, order)
        finally:
            with suppress(PatchRefused, WorkspaceFailed):  # the next use reports them
                after = await self.collect()
                if after.changes != before.changes:
                    await self.restore(before.changes)
                products = [
                    path
                    for path in after.ignored
                    if path not in before.ignored and not path.endswith("/")
                ]
                await self.write([Change(path, patch_rules.FILE, None) for path in products])

    async def _required_builds(self) -> tuple[BuildStep, ...]:
        """Return the build steps whose sources were changed, and those that list no sources."""
        steps = self.base.profile.builds
        if all(not step.sources for step in steps):
            return steps
        try:
            paths = [change.path for change in await self.changes()]
        except PatchRefused:
            return steps
        return tuple(
            step
            for step in steps
            if not step.sources or any(_is_source(step, path) for path in paths)
        )

    async def _build(
        self,
        executor: ExecutorClient,
        steps: Sequence[BuildStep],
        seconds: float,
        order: _CheckOrder,
    ) -> dict[str, Any] | None:
        """Run build steps in order. Return the first failure as the answer of a check, or None."""
        wall_seconds = max(seconds, self._settings.workspace.check_seconds)
        for step in steps:
            answer = await executor.request(
                "build",
                wall_seconds=wall_seconds,
                deadline=order.deadline,
                patience=order.patience,
                argv=step.argv,
                env=executor.variables(),
                folder=step.folder,
            )
            if answer.get("status") == "success" and answer.get("exit_code") == 0:
                continue
            output = (
                f"the build failed: {shlex.join(step.argv)}\n"
                f"{answer.get('output') or answer.get('error') or ''}"
            )
            return {**answer, "output": output, "cases": {}, "verdict": cases.FAILED}
        return None

    async def changes(self) -> Sequence[Change]:
        """Return the changes against the base as git would store them, without ignored files.
        Raises `PatchRefused`.
        """
        return (await self.collect()).changes

    async def collect(self) -> WorkspaceChanges:
        """Return the changes, and what .gitignore files exclude. Raises `PatchRefused`."""
        caps = ChangeCaps()
        # Odd names included: deleting such a file is a change too.
        files = [entry.path for entry in await self.clone.entries(self.base.sha)]
        written = await self._executor.changes(
            files, caps, partial(self.clone.ignored, self.base.sha)
        )
        hidden = self.base.profile.hidden
        changes = [
            change for change in written.changes if not patch_rules.matches(hidden, change.path)
        ]
        hidden_paths = {
            change.path: HIDDEN_RULE
            for change in written.changes
            if patch_rules.matches(hidden, change.path)
        }
        return WorkspaceChanges(
            await self.clone.clean(self.base.sha, changes), {**written.ignored, **hidden_paths}
        )

    async def write(self, changes: Sequence[Change]) -> None:
        """Apply changes in the form that git stores. Raises `WorkspaceFailed` if that fails."""
        if not changes:
            return
        message = [
            {
                "path": pack_path(change.path),
                "mode": change.mode,
                "content": None
                if change.content is None
                else base64.b64encode(change.content).decode(),
            }
            for change in await self.clone.smudge(self.base.sha, changes)
        ]
        answer = await self._executor.request(
            "apply", wall_seconds=self._settings.sandbox.wall_seconds, changes=message
        )
        if answer.get("status") != "success":
            raise WorkspaceFailed(
                f"files cannot be written: {answer.get('error') or answer.get('status')}"
            )

    async def restore(self, changes: Sequence[Change]) -> None:
        """Revert all changes except for these, which are applied."""
        kept_paths = {change.path for change in changes}
        entries = {entry.path: entry for entry in await self.clone.entries(self.base.sha)}
        reverted = []
        for path in [
            change.path for change in await self.changes() if change.path not in kept_paths
        ]:
            entry = entries.get(path)
            content = await self.clone.read(self.base.sha, path, entry.size) if entry else None
            reverted.append(Change(path, entry.mode if entry else patch_rules.FILE, content))
        await self.write([*reverted, *changes])

    async def _call_git(self, call: ToolCall) -> ToolResult:
        started = time.monotonic()
        status, output, error_message = ToolStatus.SUCCESS, {}, ""
        try:
            output = await git_tool(
                self.clone,
                self._git,
                call.tool,
                call.arguments,
                self.collect,
                restore=self.restore,
                remote=self._remote,
            )
        except tuple(kind for kind, _ in _ERROR_STATUSES) as error:
            status, error_message = (
                next(status for kind, status in _ERROR_STATUSES if isinstance(error, kind)),
                error.message,
            )
        duration = round((time.monotonic() - started) * 1000)
        return ToolResult(
            call.request_id,
            call.tool,
            status,
            output=output,
            error=error_message,
            duration_ms=duration,
        )

    async def patch(self, message: str) -> Patch:
        """Commit all changes so far to the trusted clone. See `ports.Workspace`."""
        written = await self.collect()
        patch = await self.clone.commit_changes(
            self.base.sha, written.changes, message, ignored=written.ignored
        )
        return replace(patch, message=self._git.message)

    async def run_code(self, block: CodeBlock, call_tool: Ask) -> BlockRun:
        """Run a block in CPython. See `ports.Workspace`.

        It runs in a second executor on the same files, so that this workspace's executor can run
        the tools that the block calls.
        """
        sandbox = self._limits
        seconds = min(
            seconds_until(block.deadline),
            sandbox.wall_seconds,
            block.seconds or sandbox.wall_seconds,
        )
        memory_bytes = min(block.memory_bytes or sandbox.memory_bytes, sandbox.memory_bytes)
        setup = self._setup_beside(
            "code", sandbox.model_copy(update={"memory_bytes": memory_bytes})
        )
        answerer = RequestAnswerer(call_tool, max_questions(BLOCK_LIMITS.tool_calls))
        # The programs for blocks are compiled for our own Python, so another one cannot load them.
        python = (
            f"{ENVIRONMENT}/bin/python"
            if setup.python is None and _has_python(setup.env)
            else self._executor.python
        )
        block_fields = {
            "code": block.code,
            "tools": {name: list(names) for name, names in block.tools.items()},
            "inputs": dict(block.inputs),
            "agents": block.agents,
        }
        try:
            async with self._pool.start(setup, neighbour=self._executor) as executor:
                answer = await executor.request(
                    "run",
                    wall_seconds=seconds,
                    answer_question=answerer,
                    argv=(python, "-B", "-c", BLOCK_COMMAND),
                    env=executor.variables(),
                    block=block_fields,
                )
        except (WorkspaceFailed, SandboxUnavailable) as error:
            if answerer.failed is not None:
                raise answerer.failed from error
            if answerer.endless:
                return endless_run()
            return BlockRun(
                ToolStatus.ERROR,
                error="CPython was lost while it ran this; its tool calls remain in effect",
            )
        return full_run(answer, BLOCK_OUTPUT_BYTES)

    def _setup_beside(self, purpose: str, limits: SandboxSettings) -> ExecutorSetup:
        """Return the setup of another executor on the same files, whose writes stay separate."""
        setup = self._executor.setup
        return replace(
            setup,
            key=f"{self._executor.name}-{purpose}",
            tree=(self._executor.upper, *setup.tree),
            limits=limits,
        )

    async def converse(
        self,
        argv: Sequence[str],
        handle_lines: HandleLines,
        *,
        seconds: float,
        max_bytes: int,
        keep_changes: bool,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run a program that talks to its caller. See `ports.Workspace`."""
        if keep_changes:
            return await converse(
                self._executor, argv, handle_lines, seconds, max_bytes, variables=variables
            )
        is_copy = self._executor.copies_beside
        before = [] if is_copy else await self.changes()
        async with self._pool.start(
            self._setup_beside("program", self._settings.sandbox), neighbour=self._executor
        ) as executor:
            reason = await converse(
                executor, argv, handle_lines, seconds, max_bytes, variables=variables
            )
        if not is_copy and await self.changes() != before:
            await self.restore(before)
        return reason

    def _system_info(self) -> dict[str, Any]:
        limits, kernel = self._limits, os.uname()
        return {
            "system": f"{kernel.sysname} {kernel.release}",
            "machine": kernel.machine,
            "python": platform.python_version(),
            "processors": os.cpu_count() or 1,
            "memory_bytes": limits.memory_bytes,
            "cpu_seconds": limits.cpu_seconds,
            "wall_seconds": limits.wall_seconds,
            "processes": limits.processes,
        }

    def _tests_command(self, tool: str, arguments: Any, seconds: float) -> tuple[str, ...]:
        if tool == "tests.make":
            return (*checks.DEFAULTS[tool], "--", str(arguments.get("target") or "test"))
        configured = self.base.profile.checks.get("tests", ())
        default = checks.DEFAULTS[tool]
        fits = (
            checks.is_pytest(configured)
            if tool == "tests.pytest"
            else configured[:1] == default[:1]
        )
        keyword = arguments.get("keyword", "")
        return checks.command(
            configured if fits else default, arguments.get("paths", ()), keyword, seconds=seconds
        )


def _is_source(step: BuildStep, path: str) -> bool:
    inner = path.removeprefix(f"{step.folder}/") if step.folder else path
    return (inner != path or not step.folder) and patch_rules.matches(step.sources, inner)


def _has_python(env: Path | None) -> bool:
    """Return whether an environment has an interpreter; one with packages for Node or Go only has
    none. An environment on another machine is assumed to have one.
    """
    return env is not None and (os.path.lexists(env / "bin" / "python") or not env.exists())


class OverlayWorkspaces:
    """The workspaces of this process. As an async context manager, it ends all that it started.

    clones: returns the trusted clone of a repository.
    remotes: returns the access of a workspace to the origin of its repository.
    create_executor: creates executors that run elsewhere than on this machine.
    """

    def __init__(
        self,
        settings: WorkspaceSections,
        clones: Callable[[str], TrustedClone],
        remotes: Callable[[str], Remote] | None = None,
        create_executor: CreateExecutor | None = None,
    ) -> None:
        self._settings = settings
        self._clones = clones
        self._remotes = remotes
        self._module_folder = ModuleFolder(settings)
        self._initial_changes = InitialChanges()
        self.pool = ExecutorPool(
            settings, (*self._module_folder.binds, *grammars()), create_executor
        )

    async def __aenter__(self) -> Self:
        await self._module_folder.compile_all()
        await self.pool.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.pool.__aexit__(*details)

    @asynccontextmanager
    async def open(
        self,
        prepared: Prepared,
        name: str,
        *,
        patch: str = "",
        extra: str = "",
        judged: bool = False,
        files: Mapping[str, str] = NOTHING,
        append: Mapping[str, str] = NOTHING,
    ) -> AsyncIterator[OverlayWorkspace]:
        """Open a new workspace. See `ports.Workspaces`."""
        clone = self._clones(prepared.base.repository)
        changes = await self._initial_changes.compute(
            prepared.base, clone, patch, extra, judged=judged, files=files, append=append
        )
        # The origin has the hidden tests, and its history is unrelated to a base without them.
        remotes = None if prepared.base.profile.hidden else self._remotes
        remote = remotes(prepared.base.repository) if remotes else None
        async with self.pool.executor(prepared) as executor:
            executor.log_name = f"{name}.{executor.name}"
            workspace = OverlayWorkspace(
                name,
                executor,
                prepared,
                clone=clone,
                settings=self._settings,
                module_folder=self._module_folder,
                pool=self.pool,
                remote=remote,
            )
            await workspace.write(changes)
            yield workspace
