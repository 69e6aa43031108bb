"""The set-up commands of a `devcontainer.json`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from moothall.domain.repository import SetupStep
from moothall.repositories.detect.project import Project, strings

DEVCONTAINERS = (".devcontainer/devcontainer.json", ".devcontainer.json")
"""Its paths, in the order in which tools look for it."""
_COMMANDS = ("onCreateCommand", "updateContentCommand", "postCreateCommand")
"""The commands that run once, in their order."""
_WORKSPACE = ("${containerWorkspaceFolder}", "${containerWorkspaceFolder:-}")
_VARIABLE = re.compile(r"\$\{(?:localEnv|containerEnv|localWorkspaceFolder|devcontainerId)\b")
# Possessive, and to the end of an unterminated string or comment, so that no text takes long.
_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*+"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*+"?)|,(?=\s*[}\]])', re.DOTALL)
_WORD = re.compile(r"[^\s'\";&|<>()]+")


def find_devcontainer(project: Project) -> str:
    """Return the path of the project's devcontainer.json; '' if there is none."""
    return next((path for path in DEVCONTAINERS if path in project.files), "")


def devcontainer_steps(project: Project) -> tuple[SetupStep, ...]:
    """Return the set-up commands of the project's devcontainer.json.

    They may fail: much of what a container may do, the set-up of a repository may not. A file that
    is not valid has none, and commands with values of another machine are left out.
    """
    document = _read(project.texts.get(find_devcontainer(project), ""))
    return tuple(
        SetupStep(argv, optional=True)
        for name in _COMMANDS
        for argv in _commands(document.get(name))
        if not any(_VARIABLE.search(word) for word in argv)
    )


def devcontainer_files(project: Project, steps: Iterable[SetupStep]) -> tuple[str, ...]:
    """Return the files that the commands may read: the folder of the devcontainer.json, and files
    of the project that a command names.
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
    """Parse JSON with comments and trailing commas; empty if it is none."""
    plain = _STRING_OR_COMMENT.sub(
        lambda match: match[0] if match[0].startswith('"') else " ", text
    )
    try:
        document = json.loads(_TRAILING_COMMA.sub(lambda match: match[1] or "", plain))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _commands(value: Any) -> Iterator[tuple[str, ...]]:
    """Yield the commands of a text, which a shell runs, of a list of words, or of an object whose
    values are either.
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
    """Replace the name of the workspace: commands run in it."""
    for name in _WORKSPACE:
        text = text.replace(name, ".")
    return text
