"""Programs that are built once from their Go modules into the user's cache, and files of such
modules.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from moothall.config import environment
from support.cache import cached

_BUILD_SECONDS, _FETCH_SECONDS = 1800.0, 300.0
PROGRAMS = {
    "opa": ("github.com/open-policy-agent/opa", "1.22.2"),
    "helm": ("helm.sh/helm/v3/cmd/helm", "3.22.0"),
    "kustomize": ("sigs.k8s.io/kustomize/kustomize/v5", "5.8.1"),
}


class Missing(Exception):
    """The program is unavailable here; the message names what is missing and how to get it."""


def program(name: str) -> Path:
    """Return the program: the one on the PATH, or ours, built at the first call (minutes). Raises
    `Missing`.
    """
    module, version = PROGRAMS[name]
    if path := shutil.which(name):
        return Path(path)

    def build(draft: Path) -> Path:
        _go(
            name,
            "install",
            "-trimpath",
            "-ldflags=-s -w",
            f"{module}@v{version}",
            into=str(draft),
            seconds=_BUILD_SECONDS,
        )
        return draft / name

    return cached(f"{name}-{version}", build)


def module(path: str, version: str) -> Path:
    """Return the folder of a module's files. Raises `Missing`."""
    with tempfile.TemporaryDirectory() as empty_folder:
        output = _go(
            path,
            "mod",
            "download",
            "-json",
            f"{path}@v{version}",
            into=empty_folder,
            seconds=_FETCH_SECONDS,
        )
    return Path(json.loads(output)["Dir"])


def _go(name: str, *arguments: str, into: str, seconds: float) -> str:
    if shutil.which("go") is None:
        raise Missing(
            f"no {name}: Go, which builds it, is not on the PATH; `apt-get install golang-go`, or "
            "go.dev/dl"
        )
    env = {**environment(), "GOBIN": into, "GOFLAGS": "-buildvcs=false"}
    completed = subprocess.run(
        ["nice", "go", *arguments],
        cwd=into,
        env=env,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if completed.returncode:
        raise Missing(
            f"no {name}: go could not build it: {(completed.stdout + completed.stderr)[-600:]}"
        )
    return completed.stdout


def main() -> None:
    """Build programs into the user's cache, for people."""
    parser = argparse.ArgumentParser(prog="python -m support.gobuilt", description=main.__doc__)
    parser.add_argument("names", nargs="+", choices=sorted(PROGRAMS))
    try:
        for name in parser.parse_args().names:
            sys.stdout.write(f"{program(name)}\n")
    except Missing as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
