"""The set-up commands of a `devcontainer.json`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from moothall.domain.repository import SetupStep
from moothall.repositories.detect.project import Project, strings

DEVCONTAINERS = (".devcontainer/devcontainer.json", ".devcontainer.json")
"""The paths of the file, in the order of precedence."""
_COMMANDS = ("onCreateCommand", "updateContentCommand", "postCreateCommand")
"""The commands that run once, in their order of execution."""
_WORKSPACE = ("${containerWorkspaceFolder}", "${containerWorkspaceFolder:-}")
_VARIABLE = re.compile(r"\$\{(?:localEnv|containerEnv|localWorkspaceFolder|devcontainerId)\b")
# Possessive, and matching unterminated strings and comments to the end: linear time for any text.
_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*+"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*+"?)|,(?=\s*[}\]])', re.DOTALL)
_WORD = re.compile(r"[^\s'\";&|<>()]+")


def devcontainer_steps(project: Project) -> tuple[SetupStep, ...]:
    """Return the set-up commands of the project's devcontainer.json.

    They are optional steps, because a container may do more than the set-up of a repository. An
    invalid file has no commands. Commands with variables of the developer's machine are left out.
    """
    path = next((path for path in DEVCONTAINERS if path in project.files), "")
    document = _read(project.texts.get(path, ""))
    return tuple(
        SetupStep(argv, optional=True)
        for name in _COMMANDS
        for argv in _commands(document.get(name))
        if not any(_VARIABLE.search(word) for word in argv)
    )


def devcontainer_files(project: Project, steps: Iterable[SetupStep]) -> tuple[str, ...]:
    """Return the files that the commands may read: those in the folder of the devcontainer.json,
    and those that a command names.
    """
    named = {
        word.removeprefix("./")
        for step in steps
        for part in step.argv
        for word in _WORD.findall(part)
    }
    return tuple(
        path
        for path in sorted(project.files)
        if path.startswith(".devcontainer/") or path in DEVCONTAINERS or path in named
    )


def _read(text: str) -> dict[str, Any]:
    """Parse a JSON object with comments and trailing commas. Return {} for any other text."""
    plain = _STRING_OR_COMMENT.sub(
        lambda match: match[0] if match[0].startswith('"') else " ", text
    )
    try:
        document = json.loads(_TRAILING_COMMA.sub(lambda match: match[1] or "", plain))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _commands(value: Any) -> Iterator[tuple[str, ...]]:
    """Yield the argument lists of a command: a string for a shell, a list of arguments, or an
    object whose values are either.
    """
    if isinstance(value, dict):
        for named in value.values():
            if not isinstance(named, dict):
                yield from _commands(named)
    elif isinstance(value, str) and value.strip():
        yield ("sh", "-c", _in_folder(value))
    elif (words := tuple(map(_in_folder, strings(value)))) and words[0]:
        yield words


def _in_folder(text: str) -> str:
    """Replace the variable of the workspace by `.`, since commands run in it."""
    for name in _WORKSPACE:
        text = text.replace(name, ".")
    return text
