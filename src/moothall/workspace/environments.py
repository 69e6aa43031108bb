"""Making what set-up makes: an environment for a lock file, and what set-up left in the checkout.

Set-up runs what the repository says, so it runs in a sandbox too, but may have the network.
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
from moothall.repositories.checkout import Progress, change_owner
from moothall.repositories.clone import TrustedClone
from moothall.repositories.detect.builds import NODE_HEADERS
from moothall.repositories.detect.python import LINE_BY_LINE, LOCKED, PIP
from moothall.repositories.git_snapshot import write_history
from moothall.repositories.gitcmd import GitRunner
from moothall.sandbox.bubblewrap import ENVIRONMENT
from moothall.sandbox.spawn import drop_uid, own
from moothall.workspace.environment_cache import Archives, Starter
from moothall.workspace.executor_client import ExecutorClient, ExecutorSetup, remove_tree
from moothall.workspace.layout import environment_key, foreign_python, uses_environment
from moothall.workspace.limits import describe_setup_limit
from moothall.workspace.packages import setup_reach
from moothall.workspace.pool import ExecutorPool
from moothall.workspace.toolchains import choose

_SAYS_WHY = re.compile(
    r"error|fatal|cannot|could not|couldn't|unable|no matching|no candidates|not found|no "
    r"such|denied|unsupported|requires? |exception|traceback"
    r"|unmet|conflict|missing|failed|forbidden",
    re.IGNORECASE,
)
# Lines that say no more than that something failed.
_SAYS_NOTHING = re.compile(
    r"subprocess-exited-with-error|did not run successfully|exit code: ?\d|\[end of "
    r"output\]|\[\d+ lines of output\]"
    r"|This error originates from a subprocess|hint: See above|note: This|^\s*[╰│─>]*\s*$|npm "
    r"error A complete log"
    r"|Encountered error while|Failed with errors in|npm error (?:code|path|command)\b|warning",
    re.IGNORECASE,
)
_LINE, _FIRST, _TAIL, _MOST, _HOSTS = 300, 12, 25, 8000, 5
_BEFORE = 3
"""Lines of each kind that are said of a first choice, where what was run instead of it failed too.
"""


def reason(output: str) -> str:
    """Return the line that says best why a command failed: the last of an exception, else the first
    that says why; '' for none.
    """
    lines = [line.strip() for line in output.splitlines()]
    telling = [line for line in lines if _SAYS_WHY.search(line) and not _SAYS_NOTHING.search(line)]
    raised = [
        line for line in telling if re.match(r"(?:E\s+)?[\w.]*(?:Error|Exception|Warning): ", line)
    ]
    return ((raised or telling)[-1 if raised else 0])[:_LINE] if telling else ""


def excerpt(output: str, first: int = _FIRST, tail: int = _TAIL) -> str:
    """Return the `first` lines that say why and the last `tail` lines of all, in order, at most
    8,000 characters.
    """
    lines = [line.rstrip()[:_LINE] for line in output.strip().splitlines() if line.strip()]
    cut = max(0, len(lines) - tail)
    why = [
        at
        for at, line in enumerate(lines[:cut])
        if _SAYS_WHY.search(line) and not _SAYS_NOTHING.search(line)
    ]
    parts, last = list[str](), -1
    for at in (*why[:first], *range(cut, len(lines))):
        if at > last + 1:
            parts.append("…")
        parts.append(lines[at])
        last = at
    return "\n".join(parts)[-_MOST:]


_DOWNLOADS = f"{ENVIRONMENT}/.downloads"
_ON_DISK = {
    "XDG_CACHE_HOME": f"{_DOWNLOADS}/cache",
    "TMPDIR": f"{_DOWNLOADS}/tmp",  # noqa: S108 - a folder of the environment
    "npm_config_cache": f"{_DOWNLOADS}/npm",
    "npm_config_store_dir": f"{_DOWNLOADS}/pnpm",
    "npm_config_devdir": NODE_HEADERS,
}
"""What package managers keep of what they download: for a large project more than /tmp holds, which
is memory. It goes when all is set up.
"""
_CLEAN_SECONDS = 120.0
_MAY_FAIL = frozenset({"success", "disk", "memory", "processes"})
_LEFT_OUT, _LEFT_OUT_SHOWN = "left out: ", 20


def explain(argv: Sequence[str], ended: str, output: str, *, hint: str = "", before: str) -> str:
    """Return the message of a set-up that failed: which command, how, why, what had failed `before`
    it, and what to write where.
    """
    why = reason(output)
    return (
        f"set-up command {' '.join(argv)[:_LINE]!r} failed, "
        f"{ended}{hint}{f': {why}' if why else ''}\n{excerpt(output)}\n{before}"
        'Say which commands do it: setup = ["…"] in the repository\'s .moothall.toml (it need not '
        "be committed), "
        "or `moothall repo add PATH --setup '…'`."
    )


_OPAQUE = "user.overlay.opaque"


class Environments:
    """Makes environments, each once, whatever process asks for it."""

    def __init__(self, settings: WorkspaceSections, pool: ExecutorPool) -> None:
        self._settings = settings
        self._pool = pool
        self._layout = pool.layout
        self._starter = Starter(settings, pool)
        self._archives = Archives(settings)

    async def make(
        self, base: Base, key: str, clone: TrustedClone, report_progress: Progress
    ) -> None:
        """Make the environment of `base`, whose checkout `key` is there, unless it was made before.
        Raises `RepositoryError`.
        """
        name = environment_key(base)
        chosen = choose(base.profile.needs)
        for note in (*base.profile.notes, *chosen.notes):
            report_progress(note)
        if not name:
            return
        if chosen.missing and (base.profile.steps or uses_environment(base)):
            raise RepositoryError(chosen.missing)
        async with self._layout.lock(f"env-{name}"):
            final = self._layout.environment(name)
            if final.is_dir():
                os.utime(final)
                return
            making = await fresh_beside(final)
            making.mkdir(parents=True)
            try:
                async with self._archives.alone(name):
                    if not await self._archives.take(name, making, report_progress):
                        await remove_tree(making)
                        making.mkdir()
                        await self._fill(base, key, making, clone, report_progress)
                        await self._archives.keep(name, making)
                making.rename(final)
            finally:
                await remove_tree(making)

    async def _fill(
        self, base: Base, key: str, making: Path, clone: TrustedClone, report_progress: Progress
    ) -> None:
        chosen = choose(base.profile.needs)
        if uses_environment(base):
            await self._starter.copy_to(making / "env", chosen.python, base.image, report_progress)
        else:
            (making / "env").mkdir()
            own(making / "env", drop_uid(self._settings.sandbox))
        history = (
            await self._history(base, key, making, clone, report_progress)
            if base.profile.history
            else ()
        )
        place = ExecutorSetup(
            key=f"setup-{making.name}",
            tree=(*history, self._layout.tree(key)),
            env=making / "env",
            env_writable=True,
            reach=await asyncio.to_thread(setup_reach, making, self._settings),
            toolchains=chosen.homes,
            python=foreign_python(chosen),
            image=base.image,
        )
        folder = None
        try:
            async with self._pool.start(place, keep=True) as box:
                folder = box.folder
                end = time.monotonic() + self._settings.workspace.setup_seconds
                steps = base.profile.steps or tuple(SetupStep(argv) for argv in base.profile.setup)
                local = self._settings.workspace.kind == "local"
                variables = _ON_DISK | (_node_headers(chosen.homes) if local else {})
                make = ("mkdir", "-p", _ON_DISK["TMPDIR"])
                await box.request(
                    "setup", wall_seconds=_CLEAN_SECONDS, argv=make, env=box.variables(), folder=""
                )
                await _Steps(box, end, report_progress, variables, self._settings.sandbox).run(
                    steps
                )
                await box.request(
                    "setup",
                    wall_seconds=_CLEAN_SECONDS,
                    argv=("rm", "-rf", _DOWNLOADS),
                    env=box.variables(),
                    folder="",
                )
                await box.take_back()
            await remove_tree(box.upper / ".git")
            tracked = frozenset(entry.path for entry in await clone.entries(base.sha))
            if await asyncio.to_thread(_keep_untracked, box.upper, tracked):
                box.upper.rename(making / "layer")
        finally:
            for left in (folder, *history):
                if left is not None:
                    await remove_tree(left)

    async def _history(
        self, base: Base, key: str, making: Path, clone: TrustedClone, report_progress: Progress
    ) -> tuple[Path, ...]:
        """Return a folder with a `.git` that lies over the checkout while it is set up."""
        folder = making / "history"
        folder.mkdir()
        git = GitRunner(self._settings.data_dir / "repos", self._settings.workspace.setup_seconds)
        if version := await write_history(git, clone, base.sha, folder, self._layout.tree(key)):
            report_progress(f"no tag says which version this is; set-up is told {version}")
        await asyncio.to_thread(change_owner, folder, drop_uid(self._settings.sandbox))
        return (folder,)


class _Steps:
    """Runs the steps of one set-up, until `end`, and says what it does."""

    def __init__(
        self,
        box: ExecutorClient,
        end: float,
        report_progress: Progress,
        variables: Mapping[str, str],
        limits: SandboxSettings,
    ) -> None:
        self._box = box
        self._end = end
        self._report_progress = report_progress
        self._variables = variables
        self._limits = limits

    async def run(self, steps: Sequence[SetupStep], before: str = "") -> None:
        """Run them in order; raises `RepositoryError` where one that must not fail has, and nothing
        helps instead.

        `before` is why these are run: the failure of the first choice, said where they fail too.
        """
        for step in steps:
            where = f" in {step.folder}" if step.folder else ""
            self._report_progress(f"setting up{where}: {command_line(step.argv)}"[:300])
            answer = await self._box.request(
                "setup",
                wall_seconds=self._end - time.monotonic(),
                argv=step.argv,
                env={**self._box.variables(), **self._variables},
                folder=step.folder,
            )
            output = str(answer.get("output") or answer.get("error") or "")
            if answer.get("status") == "success" and answer.get("exit_code") == 0:
                self._tell_left_out(step, output)
                continue
            fails = answer.get("status") in _MAY_FAIL  # less may succeed
            if step.instead and fails:
                self._report_progress(f"that failed{_because(output)}; trying with less")
                said = excerpt(output, _BEFORE, _BEFORE).replace("\n", "\n  ")
                try:
                    await self.run(
                        step.instead,
                        before
                        or f"Before it {' '.join(step.argv)[:_LINE]!r} had failed:\n  {said}\n",
                    )
                except RepositoryError as error:
                    if not step.optional:
                        raise
                    self._report_progress(f"left out{where}: {error.message.splitlines()[0]}"[:400])
            elif step.optional and fails:
                self._report_progress(
                    f"left out{where}: {command_line(step.argv)[-150:]}{_because(output)}"
                )
            else:
                raise RepositoryError(self._why(step, answer, output, before))

    def _tell_left_out(self, step: SetupStep, output: str) -> None:
        """Report the lines that an installation line by line left out."""
        if step.argv[: len(LINE_BY_LINE)] == LINE_BY_LINE:
            for line in [line for line in output.splitlines() if line.startswith(_LEFT_OUT)][
                :_LEFT_OUT_SHOWN
            ]:
                self._report_progress(line[:400])

    def _why(self, step: SetupStep, answer: dict[str, object], output: str, before: str) -> str:
        status, code = answer.get("status"), answer.get("exit_code")
        ended = f"exit code {code}" if status == "success" else f"stopped: {status}"
        if status == "timeout":
            ended += " (workspace.setup_seconds)"
        elif limit := describe_setup_limit(str(status), self._limits):
            ended += f" ({limit})"
        hint = (
            "" if self._box.place.reach else " (without network: workspace.setup_network is 'off')"
        )
        if refused := self._box.refused:
            hint = (
                f" (it asked for {', '.join(refused[:_HOSTS])[:_LINE]}, which set-ups may not "
                "reach: workspace.setup_hosts)"
            )
        return explain(step.argv, ended, output, hint=hint, before=before)


def _node_headers(homes: Sequence[Path]) -> dict[str, str]:
    """Return the variable that leads node-gyp to the headers of this machine's Node, or {} if Node
    comes without them.
    """
    for home in (*homes, Path("/usr/local"), Path("/usr")):
        if (home / "bin" / "node").exists():
            there = (home / "include" / "node" / "node_version.h").exists()
            return {"npm_config_nodedir": str(home)} if there else {}
    return {}


def command_line(argv: Sequence[str]) -> str:
    """Return a command as a person would write it."""
    if tuple(argv[: len(PIP)]) == PIP:
        return "pip install " + " ".join(argv[len(PIP) :])
    if tuple(argv[: len(LINE_BY_LINE)]) == LINE_BY_LINE:
        return f"{argv[-1]}, line by line"
    return f"the versions of {argv[-2]}" if argv[2:3] == LOCKED[2:] else " ".join(argv)


def _because(output: str) -> str:
    why = reason(output)
    return f" ({why[:200]})" if why else ""


async def fresh_beside(final: Path) -> Path:
    """Return a free path beside `final`, whose lock is held, and remove what a killed process left
    half made.
    """
    await asyncio.to_thread(final.parent.mkdir, parents=True, exist_ok=True)
    for left in await asyncio.to_thread(lambda: list(final.parent.glob(f".{final.name}-*"))):
        await remove_tree(left)
    return final.with_name(f".{final.name}-{secrets.token_hex(4)}")


def _keep_untracked(upper: Path, tracked: frozenset[str]) -> bool:
    """Leave in what set-up wrote into the checkout only what the repository doesn't hold itself; is
    there any?

    So that it can lie over other commits with the same lock file.
    """
    kept = False
    for folder, _, names in os.walk(upper):
        if _OPAQUE in os.listxattr(folder):
            os.removexattr(folder, _OPAQUE)
        for name in names:
            path = Path(folder, name)
            if str(path.relative_to(upper)) in tracked or stat.S_ISCHR(path.lstat().st_mode):
                path.unlink()
            else:
                kept = True
    return kept
