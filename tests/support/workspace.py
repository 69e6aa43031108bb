"""Workspaces without isolation, for tests: a real folder, real git, real files.* tools and real
pytest.

Nothing here contains hostile code. A check of the same tree runs once per process and is cached,
unless `forgetful`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moothall.authorization.checks import covers
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Base, Patch, Prepared, Profile
from moothall.domain.tool import Ask, BlockRun, CodeBlock, ToolCall, ToolResult, ToolStatus
from moothall.errors import NotFound, PatchRefused, WorkspaceFailed
from moothall.ports import NOTHING, HandleLines
from moothall.sandbox_runtime import cases, checks, file_access, files
from moothall.sandbox_runtime.file_access import ToolFailure
from moothall.sandbox_runtime.plugins import FOLDER as REPORTERS
from support.repos import Repo

PYTEST = (sys.executable, "-m", "pytest", "-q", "--tb=short")
PROFILE = Profile(checks={"tests": PYTEST}, protected=("tests/", "conftest.py"))
_UNUSED = (
    "cacheprovider",
    "debugging",
    "doctest",
    "faulthandler",
    "junitxml",
    "logging",
    "pastebin",
    "stepwise",
    "unittest",
)
_ENV = {
    "PATH": os.environ["PATH"],
    # Saves a quarter of the time of a small suite.
    "PYTEST_ADDOPTS": " ".join(f"-p no:{name}" for name in _UNUSED),
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_KNOWN: dict[tuple[str, tuple[str, ...]], CheckRun] = {}
"""Cached runs of a command on a tree."""
_LIMITS = file_access.TextLimits(file_bytes=1_000_000, output_bytes=100_000)


@dataclass(slots=True)
class TempWorkspaces:
    """An implementation of `ports.Workspaces`, and of `read` of `ports.Repositories`, on copies of
    one repository below `root`.

    Attributes:
        alive: the open workspaces.
        opened: all workspaces that were opened.
        broken: names of workspaces whose executor is gone.
    """

    repo: Repo
    root: Path
    profile: Profile = PROFILE
    alive: set[str] = field(default_factory=set)
    opened: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    runs: dict[tuple[str, str, tuple[str, ...]], CheckRun] = field(default_factory=dict)
    checked: int = 0
    forgetful: bool = False

    async def prepare(self) -> Prepared:
        """Return the head of the repository with its checks run once."""
        base = Base("sample", self.repo.head, self.profile)
        bare = Prepared(base, base.sha, tuple(self.repo.git("ls-files").splitlines()))
        async with self.open(bare, "base") as workspace:
            runs = {name: await workspace.check(name) for name in self.profile.checks}
        return Prepared(base, base.sha, bare.files, runs)

    async def read(self, base: Base, path: str, limit: int = 65536) -> str:
        """Return a file of the base."""
        try:
            return (await asyncio.to_thread(self.repo.git, "show", f"{base.sha}:{path}"))[
                :limit
            ] + "\n"
        except AssertionError as error:
            raise NotFound(f"no file {path!r}") from error

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
    ) -> AsyncIterator[TempWorkspace]:
        """Copy the base and prepare the workspace.

        Apply `patch`; if `judged`, remove its new tests and restore protected files of the base.
        Add the tests of `extra`, the texts `files`, and texts at the end of files.
        """
        self.opened.append(name)
        folder = self.root / f"{len(self.opened)}-{name}"
        await asyncio.to_thread(self._make, folder, prepared, patch, extra, judged)
        Repo(folder).write(files)
        for path, text in append.items():
            with (folder / path).open("a", encoding="utf-8") as file:
                file.write(text)
        self.alive.add(name)
        try:
            yield TempWorkspace(name, Repo(folder), prepared, self)
        finally:
            self.alive.discard(name)

    def _make(self, folder: Path, prepared: Prepared, patch: str, extra: str, judged: bool) -> None:  # noqa: FBT001 - in a thread
        repo = self._clone(folder, prepared, patch)
        if judged:
            for path in tests_of(staged_changes(repo, prepared), prepared):
                if path not in prepared.files:
                    (repo.path / path).unlink()
        if judged:
            protected = [
                path
                for path in prepared.files
                if any(covers(item, path) for item in prepared.base.profile.protected)
            ]
            if protected:
                repo.git("checkout", "--quiet", prepared.base.sha, "--", *protected)
        if extra:
            changed_repo = self._clone(folder.with_name(f"{folder.name}-extra"), prepared, extra)
            for path in tests_of(staged_changes(changed_repo, prepared), prepared):
                repo.write({path: (changed_repo.path / path).read_bytes()})

    def _clone(self, folder: Path, prepared: Prepared, patch: str) -> Repo:
        self.repo.git(
            "clone", "--quiet", "--shared", "--template=", str(self.repo.path), str(folder)
        )
        repo = Repo(folder)
        if prepared.base.sha != self.repo.head:
            repo.git("checkout", "--quiet", "--detach", prepared.base.sha)
        if patch:
            try:
                repo.git("apply", "--whitespace=nowarn", "-", stdin=patch.encode())
            except AssertionError as error:
                raise PatchRefused(f"the patch does not apply: {error}") from error
        return repo


@dataclass(frozen=True, slots=True)
class _Changed:
    """A path that differs from the base; `mode` is git's, 000000 if it was deleted."""

    path: str
    mode: str


def staged_changes(repo: Repo, prepared: Prepared) -> list[_Changed]:
    """Stage everything and return the differences from the base."""
    repo.git("add", "--all")
    lines = repo.git("diff", "--cached", "--raw", "--no-renames", prepared.base.sha).splitlines()
    return [_Changed(line.partition("\t")[2], line.split()[1]) for line in lines]


def tests_of(paths: Sequence[_Changed], prepared: Prepared) -> tuple[str, ...]:
    """Return the existing test files among the paths."""
    protected = prepared.base.profile.protected
    return tuple(
        item.path
        for item in paths
        if item.mode != "000000" and any(covers(glob, item.path) for glob in protected)
    )


_BLOCK = """
import ast, json, sys
names, tree = json.loads(sys.argv[2]), ast.parse(sys.argv[1])
exec(compile(ast.Module(tree.body[:-1], []), "block", "exec"), names)
print(json.dumps(eval(compile(ast.Expression(tree.body[-1].value), "block", "eval"), names)))
"""


@dataclass(slots=True)
class TempWorkspace:
    """One open folder."""

    id: str
    repo: Repo
    prepared: Prepared
    owner: TempWorkspaces
    messages: list[str] = field(default_factory=list)

    async def call(self, call: ToolCall) -> ToolResult:
        """Run files.*, git.status, git.diff, git.commit or tests.pytest; no others are
        supported.
        """
        if self.id in self.owner.broken:
            raise WorkspaceFailed(f"the executor of {self.id} is gone")
        if call.tool == "tests.pytest":
            run = await self.check("tests", call.arguments["paths"])
            return self._succeeded(call, {"verdict": str(run.verdict), "output": run.output})
        return await asyncio.to_thread(self._call, call)

    def _call(self, call: ToolCall) -> ToolResult:
        if call.tool == "git.commit":
            self.messages.append(str(call.arguments["message"]))
            return self._succeeded(call, {"commit": "", "branch": "work", "files": []})
        if call.tool in {"git.status", "git.diff"}:
            self.repo.git("add", "--all", "--intent-to-add")
            return self._succeeded(call, {"text": self.repo.git(call.tool.removeprefix("git."))})
        if call.tool not in files.TOOLS:
            return ToolResult(
                call.request_id, call.tool, ToolStatus.ERROR, error=f"{call.tool} is not here"
            )
        root = os.open(self.repo.path, os.O_PATH | os.O_DIRECTORY)
        try:
            return self._succeeded(call, files.TOOLS[call.tool](root, call.arguments, _LIMITS))
        except ToolFailure as failed:
            return ToolResult(
                call.request_id,
                call.tool,
                ToolStatus(failed.status),
                failed.output or {},
                str(failed),
            )
        finally:
            os.close(root)

    @staticmethod
    def _succeeded(call: ToolCall, output: Mapping[str, Any]) -> ToolResult:
        return ToolResult(call.request_id, call.tool, ToolStatus.SUCCESS, output)

    async def check(
        self,
        name: str,
        paths: Sequence[str] = (),
        deadline: datetime | None = None,
        cases: Sequence[str] = (),
        apart: Sequence[str] = (),
        *,
        alone: bool = False,
        seconds: float = 0.0,
    ) -> CheckRun:
        """Run a check of the profile with a real command, or return the cached run of the same
        tree.
        """
        del alone, seconds
        argv = self.prepared.base.profile.checks.get(name)
        if argv is None or apart:
            return CheckRun(name, Verdict.MISSING)
        await asyncio.to_thread(self.repo.git, "add", "--all")
        tree = await asyncio.to_thread(self.repo.git, "write-tree")
        key = (tree, name, (*paths, *cases))
        if self.owner.forgetful or key not in self.owner.runs:
            self.owner.runs[key] = await self._run_cached(
                tree,
                name,
                checks.command(argv, paths, cases=cases) if name == "tests" else argv,
                deadline,
            )
        return self.owner.runs[key]

    async def _run_cached(
        self, tree: str, name: str, argv: Sequence[str], deadline: datetime | None
    ) -> CheckRun:
        cached = _KNOWN.get((tree, tuple(argv)))
        if cached is None:
            cached = await self._run(name, argv, deadline)
            if cached.status == "timeout":
                return cached
            if not self.owner.forgetful:
                _KNOWN[tree, tuple(argv)] = cached
        return replace(cached, check=name, cases=dict(cached.cases))

    async def _run(self, name: str, argv: Sequence[str], deadline: datetime | None) -> CheckRun:
        self.owner.checked += 1
        folder = self.repo.path.with_name(f"{self.repo.path.name}-reports-{self.owner.checked}")
        await asyncio.to_thread(folder.mkdir)
        variables = checks.variables(argv, seconds=10.0, plugins=str(REPORTERS), folder=str(folder))
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=self.repo.path,
            env=_ENV | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        seconds = (deadline - datetime.now(UTC)).total_seconds() if deadline else 60.0
        try:
            async with asyncio.timeout(seconds):
                output, _ = await process.communicate()
        except TimeoutError:
            return CheckRun(name, Verdict.ERRORED, status="timeout")
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        code = process.returncode or 0
        parsed = cases.Cases()
        cases.read_folder(parsed, str(folder))
        verdict = Verdict(checks.verdict(argv, code, parsed.results))
        text = output.decode(errors="replace")[-20_000:]
        return CheckRun(
            name,
            verdict,
            parsed.results,
            text,
            exit_code=code,
            details=parsed.details,
            durations=parsed.ms,
        )

    async def run_code(self, block: CodeBlock, ask: Ask) -> BlockRun:
        """Run a seat's own checks: a block that ends with an expression and calls no tool. There is
        no sandbox here.
        """
        del ask
        argv = (sys.executable, "-B", "-c", _BLOCK, block.code, json.dumps(dict(block.inputs)))
        process = await asyncio.to_thread(
            subprocess.run,
            argv,
            cwd=self.repo.path,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        if process.returncode:
            return BlockRun(ToolStatus.ERROR, error=process.stderr[-500:])
        printed, _, value = f"\n{process.stdout.rstrip()}".rpartition("\n")
        return BlockRun(ToolStatus.SUCCESS, value=json.loads(value), printed=printed[1:])

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
        """Not supported: there is no sandbox."""
        del argv, handle_lines, seconds, max_bytes, keep_changes, variables
        return "no program is here"

    async def patch(self, message: str) -> Patch:
        """Return the differences from the base."""
        return await asyncio.to_thread(self._patch, message)

    def _patch(self, message: str) -> Patch:
        sha = self.prepared.base.sha
        paths = staged_changes(self.repo, self.prepared)
        if any(item.mode == "120000" for item in paths):
            raise PatchRefused("a symlink may not leave")
        command = ["git", "diff", "--cached", "--binary", sha]
        diff = subprocess.run(
            command, cwd=self.repo.path, capture_output=True, check=True
        ).stdout.decode()
        commit = self.repo.git("commit-tree", self.repo.git("write-tree"), "-p", sha, "-m", message)
        messages = "\n\n".join(self.messages)
        ignored_paths = self.repo.git(
            "ls-files", "--others", "--ignored", "--exclude-standard"
        ).splitlines()
        ignored = {path: "a rule" for path in ignored_paths if "__pycache__" not in path}
        names = tuple(item.path for item in paths)
        return Patch(sha, commit, diff, names, tests_of(paths, self.prepared), messages, ignored)
