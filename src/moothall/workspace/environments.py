"""Environments: the output of set-up for a lock file, and the files that it leaves in the checkout.

Set-up runs commands of the repository, so it runs in a sandbox too, but may have the network.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from moothall.config import SandboxSettings, WorkspaceSections
from moothall.domain.repository import Base, SetupStep
from moothall.errors import RepositoryError
from moothall.repositories.checkout import Progress, change_owner, write_history
from moothall.repositories.clone import TrustedClone
from moothall.repositories.detect.project import NODE_HEADERS
from moothall.repositories.detect.python import LINE_BY_LINE, LOCKED, PIP
from moothall.repositories.gitcmd import GitRunner
from moothall.sandbox.bubblewrap import ENVIRONMENT
from moothall.sandbox.spawn import sandbox_uid, set_owner
from moothall.workspace.environment_cache import Archives, BaseEnvironments
from moothall.workspace.executor_client import ExecutorClient, ExecutorSetup, remove_tree
from moothall.workspace.layout import environment_key, foreign_python, uses_environment
from moothall.workspace.limits import describe_setup_limit
from moothall.workspace.pool import ExecutorPool
from moothall.workspace.setup_network import setup_network_access
from moothall.workspace.toolchains import ChosenToolchain, choose

_REASON = re.compile(
    r"error|fatal|cannot|could not|couldn't|unable|no matching|no candidates|not found|no "
    r"such|denied|unsupported|requires? |exception|traceback"
    r"|unmet|conflict|missing|failed|forbidden",
    re.IGNORECASE,
)
# Lines that only say that something failed.
_GENERIC_FAILURE = re.compile(
    r"subprocess-exited-with-error|did not run successfully|exit code: ?\d|\[end of "
    r"output\]|\[\d+ lines of output\]"
    r"|This error originates from a subprocess|hint: See above|note: This|^\s*[╰│─>]*\s*$|npm "
    r"error A complete log"
    r"|Encountered error while|Failed with errors in|npm error (?:code|path|command)\b|warning"
    r"|Failures: 0, Errors: 0|^\s*\[WARN\]",
    re.IGNORECASE,
)
_LINE_CHARS, _REASON_LINES, _TAIL_LINES, _EXCERPT_CHARS, _SHOWN_HOSTS = 300, 12, 25, 8000, 5
_EARLIER_LINES = 3
"""Lines of each kind that are shown of the first attempt if its alternative failed too."""


def find_failure_line(output: str) -> str:
    """Return the line that explains best why a command failed: the last exception, else the first
    informative line, or ''.
    """
    lines = [line.strip() for line in output.splitlines()]
    informative = [
        line for line in lines if _REASON.search(line) and not _GENERIC_FAILURE.search(line)
    ]
    exceptions = [
        line
        for line in informative
        if re.match(r"(?:E\s+)?[\w.]*(?:Error|Exception|Warning): ", line)
    ]
    return (
        ((exceptions or informative)[-1 if exceptions else 0])[:_LINE_CHARS] if informative else ""
    )


def excerpt(output: str, reasons_count: int = _REASON_LINES, last: int = _TAIL_LINES) -> str:
    """Return the first informative lines and the last lines of an output, in order, at most
    `_EXCERPT_CHARS` characters.
    """
    lines = [line.rstrip()[:_LINE_CHARS] for line in output.strip().splitlines() if line.strip()]
    tail_start = max(0, len(lines) - last)
    reasons = [
        index
        for index, line in enumerate(lines[:tail_start])
        if _REASON.search(line) and not _GENERIC_FAILURE.search(line)
    ]
    parts, last_index = list[str](), -1
    for index in (*reasons[:reasons_count], *range(tail_start, len(lines))):
        if index > last_index + 1:
            parts.append("…")
        parts.append(lines[index])
        last_index = index
    return "\n".join(parts)[-_EXCERPT_CHARS:]


_DOWNLOADS = f"{ENVIRONMENT}/.downloads"
_DOWNLOAD_VARIABLES = {
    "XDG_CACHE_HOME": f"{_DOWNLOADS}/cache",
    "TMPDIR": f"{_DOWNLOADS}/tmp",  # noqa: S108 - a folder of the environment
    "npm_config_cache": f"{_DOWNLOADS}/npm",
    "npm_config_store_dir": f"{_DOWNLOADS}/pnpm",
    "npm_config_devdir": NODE_HEADERS,
}
"""Variables that put the downloads of package managers on the disk: those of a large project do not
fit in /tmp, which is memory. They are removed after the set-up.
"""
_CLEAN_SECONDS = 120.0
_MAY_FAIL = frozenset({"success", "disk", "memory", "processes"})
_LEFT_OUT_PREFIX, _MAX_LEFT_OUT = "left out: ", 20


def explain(
    argv: Sequence[str], outcome: str, output: str, *, hint: str = "", earlier_failure: str
) -> str:
    """Return the message of a failed set-up: the command, the outcome, the cause, the earlier
    failure, and how to configure the commands.
    """
    cause = find_failure_line(output)
    return (
        f"set-up command {' '.join(argv)[:_LINE_CHARS]!r} failed, "
        f"{outcome}{hint}{f': {cause}' if cause else ''}\n{excerpt(output)}\n{earlier_failure}"
        'Configure the commands: setup = ["…"] in the repository\'s .moothall.toml (it need not '
        "be committed), or `moothall repo add PATH --setup '…'`."
    )


_OPAQUE = "user.overlay.opaque"


class Environments:
    """The environments of a data directory. Each is created once, by the first process that needs
    it.
    """

    def __init__(self, settings: WorkspaceSections, pool: ExecutorPool) -> None:
        self._settings = settings
        self._pool = pool
        self._layout = pool.layout
        self._base_environments = BaseEnvironments(settings, pool)
        self._archives = Archives(settings)

    async def ensure(
        self, base: Base, key: str, clone: TrustedClone, report_progress: Progress
    ) -> None:
        """Create the environment of `base`, whose checkout is `key`, unless it exists. Raises
        `RepositoryError`.
        """
        name = environment_key(base)
        toolchains = choose(base.profile.needs)
        for note in (*base.profile.notes, *toolchains.notes):
            report_progress(note)
        if not name:
            return
        if toolchains.missing and (base.profile.steps or uses_environment(base)):
            raise RepositoryError(toolchains.missing)
        async with self._layout.lock(f"env-{name}"):
            final = self._layout.environment(name)
            if final.is_dir():
                os.utime(final)
                return
            temporary = await temporary_sibling(final)
            temporary.mkdir(parents=True)
            try:
                async with self._archives.lock(name):
                    if not await self._archives.restore(name, temporary, report_progress):
                        await remove_tree(temporary)
                        temporary.mkdir()
                        await self._fill_environment(base, key, temporary, clone, report_progress)
                        await self._archives.store(name, temporary)
                temporary.rename(final)
            finally:
                await remove_tree(temporary)

    async def _fill_environment(
        self, base: Base, key: str, temporary: Path, clone: TrustedClone, report_progress: Progress
    ) -> None:
        toolchains = choose(base.profile.needs)
        if uses_environment(base):
            await self._base_environments.copy_to(
                temporary / "env", toolchains.python, base.image, report_progress
            )
        else:
            (temporary / "env").mkdir()
            set_owner(temporary / "env", sandbox_uid())
        history = (
            await self._history(base, key, temporary, clone, report_progress)
            if base.profile.history
            else ()
        )
        setup = ExecutorSetup(
            key=f"setup-{temporary.name}",
            tree=(*history, self._layout.tree(key)),
            env=temporary / "env",
            env_writable=True,
            network_access=await asyncio.to_thread(setup_network_access, temporary, self._settings),
            toolchains=toolchains.folders,
            python=foreign_python(toolchains),
            image=base.image,
        )
        folder = None
        try:
            async with self._pool.start(setup, keep_folder=True) as executor:
                folder = executor.folder
                await self._run_steps(base, executor, toolchains, report_progress)
                await executor.fetch_setup_output()
            await remove_tree(executor.upper / ".git")
            tracked = frozenset(entry.path for entry in await clone.entries(base.sha))
            if await asyncio.to_thread(_remove_tracked, executor.upper, tracked):
                executor.upper.rename(temporary / "layer")
        finally:
            for leftover in (folder, *history):
                if leftover is not None:
                    await remove_tree(leftover)

    async def _run_steps(
        self,
        base: Base,
        executor: ExecutorClient,
        toolchains: ChosenToolchain,
        report_progress: Progress,
    ) -> None:
        """Run the steps of the set-up, and remove their downloads."""
        deadline = time.monotonic() + self._settings.workspace.check_seconds
        steps = base.profile.steps or tuple(SetupStep(argv) for argv in base.profile.setup)
        local = self._settings.workspace.uses_local_sandbox
        variables = _DOWNLOAD_VARIABLES | (_node_headers(toolchains.folders) if local else {})
        mkdir_command = ("mkdir", "-p", _DOWNLOAD_VARIABLES["TMPDIR"])
        await executor.request(
            "setup",
            wall_seconds=_CLEAN_SECONDS,
            argv=mkdir_command,
            env=executor.variables(),
            folder="",
        )
        await _Steps(executor, deadline, report_progress, variables, self._settings.sandbox).run(
            steps
        )
        await executor.request(
            "setup",
            wall_seconds=_CLEAN_SECONDS,
            argv=("rm", "-rf", _DOWNLOADS),
            env=executor.variables(),
            folder="",
        )

    async def _history(
        self, base: Base, key: str, temporary: Path, clone: TrustedClone, report_progress: Progress
    ) -> tuple[Path, ...]:
        """Return a folder with a `.git` that is laid over the checkout during the set-up."""
        folder = temporary / "history"
        folder.mkdir()
        git = GitRunner(self._settings.data_dir / "repos", self._settings.workspace.check_seconds)
        if version := await write_history(git, clone, base.sha, folder, self._layout.tree(key)):
            report_progress(f"no tag names the version; set-up uses {version}")
        await asyncio.to_thread(change_owner, folder, sandbox_uid())
        return (folder,)


class _Steps:
    """A runner of the steps of one set-up until `deadline`, which reports its progress."""

    def __init__(
        self,
        executor: ExecutorClient,
        deadline: float,
        report_progress: Progress,
        variables: Mapping[str, str],
        limits: SandboxSettings,
    ) -> None:
        self._executor = executor
        self._deadline = deadline
        self._report_progress = report_progress
        self._variables = variables
        self._limits = limits

    async def run(self, steps: Sequence[SetupStep], earlier_failure: str = "") -> None:
        """Run steps in order. Raises `RepositoryError` if a required step and its alternatives
        fail.

        `earlier_failure` describes the failed step whose alternatives these are; it is shown if
        they fail too.
        """
        for step in steps:
            location = f" in {step.folder}" if step.folder else ""
            self._report_progress(f"setting up{location}: {command_line(step.argv)}"[:300])
            answer = await self._executor.request(
                "setup",
                wall_seconds=(self._deadline - time.monotonic()) / (2 if step.optional else 1),
                argv=step.argv,
                env={**self._executor.variables(), **self._variables},
                folder=step.folder,
            )
            output = str(answer.get("output") or answer.get("error") or "")
            if answer.get("status") == "success" and answer.get("exit_code") == 0:
                self._report_skipped(step, output)
                continue
            may_continue = answer.get("status") in _MAY_FAIL  # an alternative may succeed
            if step.instead and may_continue:
                self._report_progress(f"that failed{_format_cause(output)}; trying with less")
                earlier_output = excerpt(output, _EARLIER_LINES, _EARLIER_LINES).replace(
                    "\n", "\n  "
                )
                try:
                    await self.run(
                        step.instead,
                        earlier_failure
                        or f"Before it {' '.join(step.argv)[:_LINE_CHARS]!r} had failed:\n"
                        f"  {earlier_output}\n",
                    )
                except RepositoryError as error:
                    if not step.optional:
                        raise
                    self._report_progress(
                        f"left out{location}: {error.message.splitlines()[0]}"[:400]
                    )
            elif step.optional and (may_continue or answer.get("status") == "timeout"):
                self._report_progress(
                    f"left out{location}: {command_line(step.argv)[-150:]}{_format_cause(output)}"
                )
            else:
                raise RepositoryError(self._failure_message(step, answer, output, earlier_failure))

    def _report_skipped(self, step: SetupStep, output: str) -> None:
        """Report the lines that a line-by-line installation left out."""
        if step.argv[: len(LINE_BY_LINE)] == LINE_BY_LINE:
            for line in [line for line in output.splitlines() if line.startswith(_LEFT_OUT_PREFIX)][
                :_MAX_LEFT_OUT
            ]:
                self._report_progress(line[:400])

    def _failure_message(
        self, step: SetupStep, answer: dict[str, object], output: str, earlier_failure: str
    ) -> str:
        status, code = answer.get("status"), answer.get("exit_code")
        outcome = f"exit code {code}" if status == "success" else f"stopped: {status}"
        if status == "timeout":
            outcome += " (workspace.check_seconds)"
        elif limit := describe_setup_limit(str(status), self._limits):
            outcome += f" ({limit})"
        hint = (
            ""
            if self._executor.setup.network_access
            else " (without network: workspace.setup_network is 'off')"
        )
        if refused := self._executor.refused:
            hint = (
                f" (it requested {', '.join(refused[:_SHOWN_HOSTS])[:_LINE_CHARS]}, which set-ups "
                "may not reach: workspace.setup_hosts)"
            )
        return explain(step.argv, outcome, output, hint=hint, earlier_failure=earlier_failure)


def _node_headers(toolchain_folders: Sequence[Path]) -> dict[str, str]:
    """Return the variable with the path of Node's headers on this machine for node-gyp, {} if they
    are missing.
    """
    for home in (*toolchain_folders, Path("/usr/local"), Path("/usr")):
        if (home / "bin" / "node").exists():
            has_headers = (home / "include" / "node" / "node_version.h").exists()
            return {"npm_config_nodedir": str(home)} if has_headers else {}
    return {}


def command_line(argv: Sequence[str]) -> str:
    """Return a command as a person would write it."""
    if tuple(argv[: len(PIP)]) == PIP:
        return "pip install " + " ".join(argv[len(PIP) :])
    if tuple(argv[: len(LINE_BY_LINE)]) == LINE_BY_LINE:
        return f"{argv[-1]}, line by line"
    return f"the versions of {argv[-2]}" if argv[2:3] == LOCKED[2:] else " ".join(argv)


def _format_cause(output: str) -> str:
    cause = find_failure_line(output)
    return f" ({cause[:200]})" if cause else ""


async def temporary_sibling(final: Path) -> Path:
    """Return an unused path beside `final`, whose lock must be held. Remove what a killed process
    left there.
    """
    await asyncio.to_thread(final.parent.mkdir, parents=True, exist_ok=True)
    for leftover in await asyncio.to_thread(lambda: list(final.parent.glob(f".{final.name}-*"))):
        await remove_tree(leftover)
    return final.with_name(f".{final.name}-{secrets.token_hex(4)}")


def _remove_tracked(upper: Path, tracked: frozenset[str]) -> bool:
    """Remove from the output of set-up in the checkout the files that the repository has itself, so
    that it can be laid over other commits with the same lock file. Return whether files are left.
    """
    has_untracked = False
    for folder, _, names in os.walk(upper):
        if _OPAQUE in os.listxattr(folder):
            os.removexattr(folder, _OPAQUE)
        for name in names:
            path = Path(folder, name)
            if str(path.relative_to(upper)) in tracked or stat.S_ISCHR(path.lstat().st_mode):
                path.unlink()
            else:
                has_untracked = True
    return has_untracked
