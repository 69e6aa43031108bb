"""Tests in other words where a compiler reads them: they are built, and the disk is as it was before what was built runs.

Code under test that reads its tests then finds no difference, or other expectations. For `go test` and `cargo test`; see
`plugins/moothall_instead.py` for Python. Standard library only.
"""

# pathlib costs the executor start time
# ruff: noqa: PTH102, PTH104, PTH108, PTH112, PTH116, PTH118, PTH120, PTH123

from __future__ import annotations

import json
import os
import shutil
import sys
import time

from moothall.inside import checks

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Callable

    from moothall.inside.ended import CommandEnd

    Once = Callable[[tuple[str, ...], float], CommandEnd]


def waits(argv: tuple[str, ...], top: str) -> bool:
    """Whether there are test files in other words that the command is to be built with."""
    return checks.builds_tests(argv) and os.path.isdir(os.path.join(top, checks.INSTEAD))


def run(
    argv: tuple[str, ...],
    top: str,
    once: Once,
    seconds: Callable[[], float],
    *,
    plugins: str = checks.PLUGINS,
    built: str = "/tmp/moothall-built",  # noqa: S108 - inside the sandbox, one command at a time
) -> CommandEnd:
    """Build what a command runs with the files in other words, make the disk as it was, and run it. `once` runs one command."""
    if argv[0].rpartition("/")[2] == "go":
        return _go(argv, top, once, seconds, ours=(sys.executable, "-I", "-S", f"{plugins}/moothall_go.py"), built=built)
    return _cargo(argv, top, once, seconds, built=built)


def _go(
    argv: tuple[str, ...], top: str, once: Once, seconds: Callable[[], float], *, ours: tuple[str, ...], built: str
) -> CommandEnd:
    """The compiler reads them in place of those in the tree, and what it made is kept and run later."""
    shutil.rmtree(built, ignore_errors=True)
    os.mkdir(built)
    texts, overlay = os.path.join(built, "texts"), os.path.join(built, "overlay.json")
    _keep_times([top], lambda: shutil.move(os.path.join(top, checks.INSTEAD), texts))
    with open(overlay, "w", encoding="utf-8") as file:
        json.dump({"Replace": {os.path.join(top, path): os.path.join(texts, path) for path in _inside(texts)}}, file)
    ended = once((*argv[:2], f"-overlay={overlay}", f"-exec={' '.join((*ours, 'keep', built))}", *argv[2:]), seconds())
    shutil.rmtree(texts)
    os.unlink(overlay)
    return once((*ours, "run", built), seconds()) if ended.status == "success" and not ended.exit_code else ended


def _cargo(argv: tuple[str, ...], top: str, once: Once, seconds: Callable[[], float], *, built: str) -> CommandEnd:
    """They take the place of those in the tree until all is built; these are older than that, so that nothing is built again."""
    shutil.rmtree(built, ignore_errors=True)
    _keep_times([top], lambda: shutil.move(os.path.join(top, checks.INSTEAD), built))
    paths = _inside(built)
    folders = [top, *{os.path.dirname(os.path.join(top, path)) for path in paths}]
    now = time.time_ns()  # of both: a build script that names no files is run again where the newest of a package is another

    def swap() -> None:
        for path in paths:
            theirs, ours = os.path.join(top, path), os.path.join(built, path)
            shutil.move(theirs, f"{ours}.moved")
            shutil.move(ours, theirs)
            os.rename(f"{ours}.moved", ours)
            os.utime(theirs, ns=(now, now))

    _keep_times(folders, swap)
    at = argv.index("--") if "--" in argv else len(argv)
    ended = once((*argv[:at], "--no-run"), seconds())

    def back() -> None:
        swap()
        shutil.rmtree(built)

    _keep_times(folders, back)
    return once(argv, seconds()) if ended.status == "success" and not ended.exit_code else ended


def _inside(folder: str) -> list[str]:
    return [os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names]


def _keep_times(folders: list[str], do: Callable[[], object]) -> None:
    """Do it, and leave folders with the times that they had."""
    times = [(folder, os.stat(folder)) for folder in folders]
    do()
    for folder, was in times:
        os.utime(folder, ns=(was.st_atime_ns, was.st_mtime_ns))
