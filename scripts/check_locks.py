"""Check that every requirement of pyproject.toml is pinned in its lock files, within its range."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
EXTRAS_NOT_IN_SERVICES = "local", "ray", "acp"
"""The extras that are not in the image of the services."""


def read_pins(lock: Path) -> dict[str, str]:
    """Return the versions in a lock file by package name."""
    lines = (
        line.split(";")[0].strip(" \\")
        for line in lock.read_text(encoding="utf-8").splitlines()
        if "==" in line
    )
    return {
        canonicalize_name(name): version.strip()
        for name, version in (line.split("==") for line in lines)
    }


def find_problems(lock: Path, requirements: list[str]) -> list[str]:
    """Return the requirements that a lock file does not satisfy."""
    pins = read_pins(lock)
    problems = []
    for requirement in map(Requirement, requirements):
        version = pins.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{lock.name}: {requirement} is pinned to {version}; run scripts/lock")
    return problems


def main() -> int:
    """Print the problems of all lock files, and return the exit code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    services = [
        *project["project"]["dependencies"],
        *(item for name in extras if name not in EXTRAS_NOT_IN_SERVICES for item in extras[name]),
        *project["dependency-groups"]["build"],
    ]
    all_requirements = services + [item for name in EXTRAS_NOT_IN_SERVICES for item in extras[name]]
    groups = project["dependency-groups"]
    problems = [
        *find_problems(ROOT / "requirements/run.txt", all_requirements),
        *find_problems(ROOT / "requirements/services.txt", services),
        *find_problems(ROOT / "requirements/dev.txt", all_requirements + groups["dev"]),
        *find_problems(ROOT / "requirements/docs.txt", groups["docs"]),
    ]
    print("\n".join(problems) or "the lock files agree with pyproject.toml")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
