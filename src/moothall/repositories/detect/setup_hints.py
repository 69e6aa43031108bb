"""The set-up commands of a `copilot-setup-steps.yml` or a `devcontainer.json`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from moothall.domain.foreign_yaml import parse_foreign_yaml
from moothall.domain.repository import SetupStep
from moothall.repositories.detect.project import Project, strings, table
from moothall.repositories.patch_rules import invalid_path_reason

DEVCONTAINERS = (".devcontainer/devcontainer.json", ".devcontainer.json")
"""The paths of the file, in the order of precedence."""
SETUP_WORKFLOWS = (
    ".github/workflows/copilot-setup-steps.yml",
    ".github/workflows/copilot-setup-steps.yaml",
)
"""The paths of the workflow that sets up GitHub's agent, in the order of precedence."""
_SETUP_JOB = "copilot-setup-steps"
_MAX_WORKFLOW_CHARS, _MAX_STEPS, _MAX_STEP_CHARS = 32_000, 50, 4_000
_SHELLS = {
    "": ("bash", "-e", "-c"),
    "bash": ("bash", "-eo", "pipefail", "-c"),
    "sh": ("sh", "-e", "-c"),
}
"""The commands of the shells of a workflow on Linux."""
_COMMANDS = ("onCreateCommand", "updateContentCommand", "postCreateCommand")
"""The commands that run once, in their order of execution."""
_WORKSPACE = ("${containerWorkspaceFolder}", "${containerWorkspaceFolder:-}")
_VARIABLE = re.compile(r"\$\{(?:localEnv|containerEnv|localWorkspaceFolder|devcontainerId)\b")
# Possessive, and matching unterminated strings and comments to the end: linear time for any text.
_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*+"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*+"?)|,(?=\s*[}\]])', re.DOTALL)
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
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


def workflow_steps(project: Project) -> tuple[SetupStep, ...]:
    """Return the set-up commands (`run`) of the project's copilot-setup-steps.yml.

    They are optional steps, as those of a devcontainer. An invalid file has no commands. Actions,
    conditional steps, and steps with expressions, other shells or missing folders are left out.
    """
    path = next((path for path in SETUP_WORKFLOWS if path in project.files), "")
    text = project.texts.get(path, "")
    document = parse_foreign_yaml(text) if len(text) <= _MAX_WORKFLOW_CHARS else None
    steps = table(table(table(document).get("jobs")).get(_SETUP_JOB)).get("steps")
    return tuple(
        SetupStep(argv, folder, optional=True)
        for step in (steps if isinstance(steps, list) else ())
        for argv, folder in _run_of(table(step))
        if not folder or any(path.startswith(f"{folder}/") for path in project.files)
    )[:_MAX_STEPS]


def _run_of(step: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the command of a workflow's step and its folder, if both can be used here."""
    command, folder = step.get("run"), step.get("working-directory", "")
    shell, variables = step.get("shell", ""), table(step.get("env"))
    if not isinstance(command, str) or not isinstance(folder, str) or "if" in step:
        return
    words = [command, folder, *variables, *variables.values()]
    folder = "" if folder in {".", "./"} else folder.removeprefix("./").rstrip("/")
    if (
        shell not in _SHELLS
        or not command.strip()
        or any(not isinstance(word, str) or "${{" in word or "\0" in word for word in words)
        or sum(map(len, words)) > _MAX_STEP_CHARS
        or not all(map(_VARIABLE_NAME.fullmatch, variables))
        or (folder and invalid_path_reason(folder))
    ):
        return
    set_variables = [f"{name}={value}" for name, value in variables.items()]
    prefix = ("env", *set_variables) if set_variables else ()
    yield (*prefix, *_SHELLS[shell], command), folder


def devcontainer_files(project: Project, steps: Iterable[SetupStep]) -> tuple[str, ...]:
    """Return the files that the commands may read: the workflow, those in the folder of the
    devcontainer.json, and those that a command names.
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
        if path.startswith(".devcontainer/") or path in (*DEVCONTAINERS, *SETUP_WORKFLOWS, *named)
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
