"""Run a suite again as an ordinary user, for whom no cgroup is writable: rlimits and sampling
apply.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.local import PACKAGES

ORDINARY = 64_999
_FOR_ALL = 0o005


def interpreter_for_all() -> Path | None:
    """Return a Python of our version that an ordinary user may run."""
    for candidate in (
        Path(sys.executable).resolve(),
        Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"),
    ):
        if candidate.exists() and all(
            folder.stat().st_mode & _FOR_ALL == _FOR_ALL for folder in candidate.parents
        ):
            return candidate
    return None


def run_as_ordinary_user(suite: str, root: Path) -> tuple[int, str]:
    """Run a suite of the repository at `root`; return pytest's exit code and the end of its output.
    Requires root.
    """
    home = Path("/tmp", f"moothall-ordinary-{os.getpid()}")
    home.mkdir(mode=0o700)
    os.chown(home, ORDINARY, ORDINARY)
    as_user = ("setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups")
    options = (
        "-q",
        "-m",
        "",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        f"--basetemp={home / 'tmp'}",
    )
    try:
        completed = subprocess.run(
            [*as_user, str(interpreter_for_all()), "-m", "pytest", suite, *options],
            cwd=root,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(home),
                "PYTHONPATH": f"{root / 'src'}:{PACKAGES}",
                "PYTHONDONTWRITEBYTECODE": "1",
                "HYPOTHESIS_STORAGE_DIRECTORY": str(home / "hypothesis"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return completed.returncode, completed.stdout[-4000:] + completed.stderr[-1000:]
