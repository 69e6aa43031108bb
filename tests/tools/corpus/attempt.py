"""An escape attempt, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OUTSIDE, PORT, PID, MARK, SITE = "@OUTSIDE@", "@PORT@", "@PID@", "@MARK@", "@SITE@"
"""Placeholders in arguments for values of a test run: a file beside the workspace, a port
with a listener on this machine, an outside process of the same user, a file name that must
not appear outside, a site that tools may call.
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An escape attempt.

    Attributes:
        statuses: the statuses that it may end with.
        expected_output: a pattern in the result that proves that it was really tried.
        plants: files created in the workspace before.
        first: a shell command run before.
    """

    name: str
    tool: str
    arguments: Mapping[str, Any]
    statuses: tuple[str, ...] = ("success",)
    expected_output: str = ""
    plants: Mapping[str, str] = field(default_factory=dict)
    first: str = ""


def python(
    name: str, code: str, expected_output: str = "", *, statuses: tuple[str, ...] = ("success",)
) -> Attempt:
    """Return an attempt in Python, by `code.python`."""
    return Attempt(name, "code.python", {"code": code}, statuses, expected_output)


def shell(
    name: str, command: str, expected_output: str = "", *, statuses: tuple[str, ...] = ("success",)
) -> Attempt:
    """Return an attempt in bash, by `code.shell`."""
    return Attempt(name, "code.shell", {"command": command}, statuses, expected_output)


def fill_in(value: Any, placeholders: Mapping[str, str]) -> Any:
    """Return the arguments with their placeholders filled in."""
    if isinstance(value, str):
        for placeholder, replacement in placeholders.items():
            value = value.replace(placeholder, replacement)
        return value
    if isinstance(value, Mapping):
        return {key: fill_in(item, placeholders) for key, item in value.items()}
    return [fill_in(item, placeholders) for item in value] if isinstance(value, list) else value
