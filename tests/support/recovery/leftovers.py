"""Leftovers of a lane after its processes have ended, as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from moothall.sandbox import cgroups
from support.recovery.app import App
from support.repos import Repo

_HALF_MADE = ("*.lock", "tmp_*", ".*-????????")


def find_leftovers(app: App, repo: Repo) -> list[str]:
    """Return the leftovers of a lane whose context has ended."""
    return [
        *(f"process {process}" for process in _processes(str(app.folder))),
        *(f"mount {line}" for line in _lines("/proc/self/mounts") if str(app.folder) in line),
        *(f"cgroup {path}" for path in _cgroups(app.instances)),
        *(f"file {path}" for path in _files(app)),
        *_repository(repo),
        *(
            f"{name} had to be killed"
            for name, part in app.parts.items()
            if "KILLED" in part.log_file.read_text(errors="replace")
        ),
    ]


def _processes(folder: str) -> Iterator[str]:
    """Return processes that work in the lane's folder, or see it from inside a sandbox."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != psutil.Process().pid and process.status() != psutil.STATUS_ZOMBIE:
                texts = (
                    *process.cmdline(),
                    *process.environ().values(),
                    *_lines(f"/proc/{process.pid}/mountinfo"),
                )
                if any(folder in text for text in texts):
                    yield f"{process.pid} {' '.join(process.cmdline())[:200]}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()


def _cgroups(instances: set[str]) -> Iterator[Path]:
    for parent in cgroups.parents() or ():
        for folder in parent.iterdir():
            if any(folder.name.startswith(f"moothall-{name}-") for name in instances):
                yield folder


def _files(app: App) -> Iterator[Path]:
    """Return workspaces, temporary files and unfinished files. Caches remain on purpose."""
    for folder in (app.data / "run", app.folder / "tmp"):
        if folder.is_dir():
            yield from folder.iterdir()
    for name in ("checkouts", "environments", "prepared"):
        if (app.data / name).is_dir():
            yield from (path for path in (app.data / name).iterdir() if path.name.startswith("."))
    for pattern in _HALF_MADE:
        yield from (app.data / "repos").rglob(pattern)


def _repository(repo: Repo) -> Iterator[str]:
    if worktrees := repo.git("worktree", "list").splitlines()[1:]:
        yield f"worktrees {worktrees}"
    if changed := repo.git("status", "--porcelain"):
        yield f"changes in the checked-out tree: {changed}"
    for ref in repo.git("for-each-ref", "--format=%(refname)").splitlines():
        if ref != "refs/heads/main" and not ref.startswith("refs/heads/moothall/run-"):
            yield f"ref {ref}"
