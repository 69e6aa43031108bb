"""Every requirement that pyproject.toml names is pinned in the lock that has to hold it, inside its
range.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
NOT_IN_SERVICES = "local", "ray", "acp"
"""The extras that the image of the services does not contain."""


def pinned(lock: Path) -> dict[str, str]:
    """Return name → version of a lock file."""
    lines = (
        line.split(";")[0].strip(" \\")
        for line in lock.read_text(encoding="utf-8").splitlines()
        if "==" in line
    )
    return {
        canonicalize_name(name): version.strip()
        for name, version in (line.split("==") for line in lines)
    }


def problems(lock: Path, wanted: list[str]) -> list[str]:
    """Return what is wrong with one lock."""
    pins = pinned(lock)
    found = []
    for requirement in map(Requirement, wanted):
        version = pins.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            found.append(f"{lock.name}: {requirement} is pinned to {version}; run scripts/lock")
    return found


def main() -> int:
    """Return the exit code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    services = [
        *project["project"]["dependencies"],
        *(item for name in extras if name not in NOT_IN_SERVICES for item in extras[name]),
        *project["dependency-groups"]["build"],
    ]
    run = services + [item for name in NOT_IN_SERVICES for item in extras[name]]
    found = problems(ROOT / "requirements/run.txt", run)
    found += problems(ROOT / "requirements/services.txt", services)
    found += problems(ROOT / "requirements/dev.txt", run + project["dependency-groups"]["dev"])
    found += problems(ROOT / "requirements/docs.txt", project["dependency-groups"]["docs"])
    print("\n".join(found) or "locks agree with pyproject.toml")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
