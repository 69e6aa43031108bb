"""Capabilities that a spec may require, and their tools. docs/agents.md has the same table; a test
compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

CAPABILITIES: Mapping[str, tuple[str, ...]] = {
    "filesystem-read": ("files.read", "files.list", "files.search", "files.info", "files.diff"),
    "filesystem-write": (
        "files.write",
        "files.append",
        "files.edit",
        "files.define",
        "files.delete",
        "files.mkdir",
    ),
    "git-read": ("git.status", "git.diff", "git.log"),
    "git-write": ("git.add", "git.commit", "git.branch", "git.checkout"),
    "test-execution": ("tests.pytest", "tests.npm", "tests.go", "tests.cargo", "tests.make"),
    "python-execution": ("tests.pytest", "code.python"),
    "node-execution": ("tests.npm", "code.node"),
    "go-execution": ("tests.go",),
    "cargo-execution": ("tests.cargo",),
    "make-execution": ("tests.make",),
    "shell-execution": ("code.shell",),
    "system-information": ("system.info", "system.processes"),
    "network-access": ("web.*", "http.*"),
    "browser-access": ("browser.*",),
    "database-access": ("db.*",),
}
"""Tools by capability. A capability only narrows the tools that the agent's role is granted."""


def tools_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the tools (fnmatch patterns) of these capabilities, each once."""
    return tuple(dict.fromkeys(tool for name in names for tool in CAPABILITIES[name]))


def check_capability(name: str) -> str:
    """Return the name of a known capability. Raises `ValueError` with a suggestion for others."""
    if name not in CAPABILITIES:
        matches = get_close_matches(name, CAPABILITIES, n=1)
        raise ValueError(
            f"unknown capability {name[:60]!r}; "
            + (f"did you mean {matches[0]}?" if matches else f"there are {', '.join(CAPABILITIES)}")
        )
    return name
