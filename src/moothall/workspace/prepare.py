"""Making a base ready to work on: checkout, set-up, and one run of its checks as it is.

Each part is made once and kept: the checkout for a commit, the environment for a lock file, the runs
for both. Set-up runs what the repository says, so it runs in a sandbox too, but may have the network.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from moothall.config import Settings
from moothall.domain import codec
from moothall.domain.evidence import CheckRun
from moothall.domain.repository import Base, Prepared
from moothall.errors import InvalidRequest, RepositoryError
from moothall.ranking.assess import differing
from moothall.sandbox.spawn import drop_uid
from moothall.workspace.box import Place, own, remove_tree
from moothall.workspace.clone import TrustedClone
from moothall.workspace.layout import environment_key, prepared_key, uses_environment
from moothall.workspace.local import LocalWorkspaces
from moothall.workspace.packages import package_sources
from moothall.workspace.starter import Starter

Progress = Callable[[str], None]
_TAIL = 3000
_OPAQUE = "user.overlay.opaque"


class Preparer:
    """Prepares bases with workspaces of this machine."""

    def __init__(self, settings: Settings, clones: Callable[[str], TrustedClone], workspaces: LocalWorkspaces) -> None:
        self._settings = settings
        self._clones = clones
        self._workspaces = workspaces
        self._layout = workspaces.pool.layout
        self._starter = Starter(settings, workspaces.pool)

    async def prepare(self, base: Base, on_progress: Progress | None = None) -> Prepared:
        """Return `base` prepared; what was done before is read. Raises `RepositoryError`, `SandboxUnavailable`."""
        tell = on_progress or (lambda _: None)
        key = prepared_key(base)
        async with self._layout.lock(key):
            known = await asyncio.to_thread(self._known, base, key)
            if known:
                return known
            clone = self._clones(base.repository)
            files = await clone.files(base.sha)
            if not self._layout.tree(key).is_dir():
                tell(f"checking out {base.sha[:12]}")
                await self._check_out(clone, base, key)
            await self._set_up(base, key, files, tell)
            prepared = Prepared(base, key, files)
            prepared = await self._run_checks(prepared, tell)
            if all(run.status == "success" or run.cases for run in prepared.runs.values()):  # else it says nothing of the base
                await asyncio.to_thread(_write_json, self._layout.prepared(key), codec.dump(prepared))
            return prepared

    def _known(self, base: Base, key: str) -> Prepared | None:
        try:
            stored = codec.load(Prepared, json.loads(self._layout.prepared(key).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, InvalidRequest):
            return None  # not there, or half written
        place = self._layout.place(base, key)
        complete = all(path.is_dir() for path in (*place.tree, *((place.env,) if place.env else ())))
        if not complete:
            return None
        os.utime(self._layout.prepared(key))  # `prune` goes by when it was last used
        return replace(stored, base=base)

    async def _check_out(self, clone: TrustedClone, base: Base, key: str) -> None:
        final = self._layout.tree(key)
        making = await _fresh_beside(final)
        try:
            await clone.checkout(base.sha, making)
            await asyncio.to_thread(_give, making, drop_uid(self._settings.sandbox))
            making.rename(final)
        finally:
            await remove_tree(making)

    async def _set_up(self, base: Base, key: str, files: Sequence[str], tell: Progress) -> None:
        """Make the environment of `base`, unless it is there."""
        name = environment_key(base)
        if not name:
            return
        async with self._layout.lock(f"env-{name}"):
            final = self._layout.environment(name)
            if final.is_dir():
                os.utime(final)
                return
            making = await _fresh_beside(final)
            making.mkdir(parents=True)
            try:
                if uses_environment(base):
                    await self._starter.copy_to(making / "env", tell)
                else:
                    (making / "env").mkdir()
                    own(making / "env", drop_uid(self._settings.sandbox))
                await self._run_setup(base, key, making, files, tell, network=self._settings.workspace.setup_network == "on")
                making.rename(final)
            finally:
                await remove_tree(making)

    async def _run_setup(
        self, base: Base, key: str, making: Path, files: Sequence[str], tell: Progress, *, network: bool
    ) -> None:
        ro, variables = await asyncio.to_thread(package_sources, making, drop_uid(self._settings.sandbox), network=network)
        place = Place(
            key=f"setup-{making.name}",
            tree=(self._layout.tree(key),),
            env=making / "env",
            env_writable=True,
            network=network,
            ro=ro,
            variables=variables,
        )
        end = time.monotonic() + self._settings.workspace.setup_seconds
        folder = None
        try:
            async with self._workspaces.pool.started(place, keep=True) as box:
                folder = box.folder
                for argv in base.profile.setup:
                    tell(f"setting up: {' '.join(argv)}"[:200])
                    answer = await box.request("setup", wall_seconds=end - time.monotonic(), argv=argv, env=box.variables())
                    if answer.get("status") != "success" or answer.get("exit_code") != 0:
                        raise RepositoryError(_why_setup(argv, answer, network=network))
            if await asyncio.to_thread(_keep_untracked, box.upper, frozenset(files)):
                box.upper.rename(making / "layer")
        finally:
            if folder is not None:
                await remove_tree(folder)

    async def _run_checks(self, prepared: Prepared, tell: Progress) -> Prepared:
        """Run the checks on the untouched base, twice where that is cheap: what differs is flaky."""
        runs: dict[str, CheckRun] = {}
        flaky: set[str] = set()
        most = 1000 * self._settings.workspace.flaky_seconds
        for name in prepared.base.profile.checks:
            tell(f"running {name} on the untouched base")
            run = runs[name] = await self._run_check(prepared, name)
            if run.status == "success" and not run.findings and run.duration_ms < most:
                tell(f"running {name} on the untouched base once more, for what differs from run to run")
                flaky |= differing(run, await self._run_check(prepared, name))
        return replace(prepared, runs=runs, flaky=tuple(sorted(flaky)))

    async def _run_check(self, prepared: Prepared, name: str) -> CheckRun:
        async with self._workspaces.open(prepared, "base") as workspace:
            return await workspace.check(name)


async def _fresh_beside(final: Path) -> Path:
    """Return a free path beside `final`, whose lock is held, and remove what a killed process left half made."""
    await asyncio.to_thread(final.parent.mkdir, parents=True, exist_ok=True)
    for left in await asyncio.to_thread(lambda: list(final.parent.glob(f".{final.name}-*"))):
        await remove_tree(left)
    return final.with_name(f".{final.name}-{secrets.token_hex(4)}")


def _why_setup(argv: Sequence[str], answer: dict[str, object], *, network: bool) -> str:
    status, code = answer.get("status"), answer.get("exit_code")
    ended = f"exit code {code}" if status == "success" else f"stopped: {status}"
    hint = "" if network else " (without network: workspace.setup_network is 'off')"
    tail = str(answer.get("output") or answer.get("error") or "").strip()[-_TAIL:]
    return f"set-up command {' '.join(argv)!r} failed, {ended}{hint}:\n{tail}"


def _give(path: Path, uid: int | None) -> None:
    """Give a checkout that we have just written to the sandbox's uid, no link followed."""
    if uid is None:
        return
    own(path, uid)
    for folder, folders, names in os.walk(path):
        for name in (*folders, *names):
            own(Path(folder, name), uid)


def _keep_untracked(upper: Path, tracked: frozenset[str]) -> bool:
    """Leave in what set-up wrote into the checkout only what the repository doesn't hold itself; is there any?

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


def _write_json(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    making.write_text(json.dumps(document), encoding="utf-8")
    making.rename(path)
