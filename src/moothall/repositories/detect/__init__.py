"""Detection of how a repository is set up and tested, from its files: one project at its root, or
several in folders; and the set-up commands that it has for other programs. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moothall.domain.repository import BuildStep, SetupStep
from moothall.domain.text import parse_foreign_yaml
from moothall.repositories.detect import other_languages
from moothall.repositories.detect import python as python_projects
from moothall.repositories.detect.project import (
    DetectedProject,
    Project,
    strings,
    table,
    tries_build,
)
from moothall.repositories.patch_rules import invalid_path_reason, matches

ENV_PYTHON = python_projects.ENV_PYTHON
GO_CACHE = "go-build"
"""The folder of the environment in which set-up leaves Go's build cache."""

MAX_PROJECTS = 20
_MANIFESTS = ("pyproject.toml", "setup.py", "package.json", "go.mod", "Cargo.toml")
_TEXTS = frozenset(
    {
        *python_projects.TEXTS,
        *other_languages.NODE_TEXTS,
        "pnpm-lock.yaml",
        *other_languages.GO_TEXTS,
        *other_languages.CARGO_TEXTS,
        *other_languages.MAKEFILES,
        "PKG-INFO",
    }
)
# Folders whose projects are data, examples or third-party code.
_NOT_OWN_PROJECTS = re.compile(
    r"(?:^|/)(?:node_modules|vendor|third[-_]?party|external|testdata|fixtures?|__fixtures__|tests?|__tests__|specs?|examples?|samples?|demos?"
    r"|docs?|website|templates?|benchmarks?|benches|fuzz|scripts|tools|ci|\..+|build|dist|target|_.+)(?:/|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Detected:
    """The set-up and checks of a whole repository. Paths are from its root; `depends` is as in a
    profile.
    """

    steps: tuple[SetupStep, ...] = ()
    checks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    advisory: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    depends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    history: bool = False
    builds: tuple[BuildStep, ...] = ()


def find_manifests(files: Collection[str], max_projects: int = MAX_PROJECTS) -> tuple[str, ...]:
    """Return the files whose text detection reads."""
    folders = set(_folders(files, 10 * max_projects))
    return tuple(
        path
        for path in files
        if path in (*DEVCONTAINERS, *SETUP_WORKFLOWS)
        or (path.rpartition("/")[2] in _TEXTS and path.rpartition("/")[0] in folders)
    )


def detect(
    files: Collection[str], texts: Mapping[str, str], max_projects: int = MAX_PROJECTS
) -> Detected:
    """Return how the project at the root is set up and checked, and those in at most `max_projects`
    folders that are not part of it.

    In each folder it is the first of Python, Node, Go, Cargo and Make that has tests. A Python
    project without tests has no check, but an environment in which tests could run.
    """
    projects = [_project(folder, files, texts) for folder in _folders(files, 10 * max_projects)]
    root, folder_projects = projects[0], projects[1:]
    python_projects_by_name = {
        name: project
        for project in reversed(projects)
        if (name := python_projects.project_name(project))
    }
    crates = [
        crate
        for project in projects
        if isinstance(crate := table(project.toml("Cargo.toml"), "package").get("name"), str)
    ]
    notes: list[str] = []
    detected: dict[str, DetectedProject] = {}
    root_project = _detect_project(root, (), python_projects_by_name, crates)
    # A workspace is installed at its root, even if only its members have tests.
    node_workspace = other_languages.node(root)
    members = other_languages.workspaces(root) if node_workspace else ()
    for project in folder_projects:
        is_member = "package.json" in project.files and other_languages.is_member(
            members, project.folder
        )
        if (is_member and root_project and "tests" in root_project.checks) or _is_covered(
            project, root, detected
        ):
            continue
        candidate = _detect_project(project, (), python_projects_by_name, crates)
        if candidate and "tests" in candidate.checks:
            steps = (
                tuple(step for step in candidate.steps if tries_build(step))
                if is_member
                else candidate.steps
            )
            detected[project.folder] = replace(candidate, steps=steps)
    tested_folders = tuple(detected)
    if len(detected) > max_projects:
        omitted = list(detected)[max_projects:]
        notes.append(
            f"{len(omitted)} more projects have no check of their own: {', '.join(omitted[:5])}"
        )
        detected = {folder: detected[folder] for folder in list(detected)[:max_projects]}
    if detected:
        root_project = _detect_project(root, tested_folders, python_projects_by_name, crates)
    if node_workspace and members and "tests" not in (root_project.checks if root_project else ()):
        root_project = node_workspace
    return _with_hints(_merge(root_project, detected, notes), root)


def _with_hints(detected: Detected, root: Project) -> Detected:
    """Return the detected project with the set-up commands of its copilot-setup-steps.yml, or else
    of its devcontainer.json, unless it has other set-up steps.
    """
    steps = () if detected.steps else workflow_steps(root) or devcontainer_steps(root)
    if not steps:
        return detected
    reads = (*detected.reads, *devcontainer_files(root, steps))
    return replace(detected, steps=steps, reads=reads)


def _folders(files: Collection[str], limit: int) -> list[str]:
    """Return the root and the folders below it that have a manifest, the least deep ones first."""
    folders = {path.rpartition("/")[0] for path in files if path.rpartition("/")[2] in _MANIFESTS}
    subfolders = sorted(
        (folder for folder in folders if folder and not _NOT_OWN_PROJECTS.search(folder)),
        key=lambda folder: (folder.count("/"), folder),
    )
    return ["", *subfolders[:limit]]


def _project(folder: str, files: Collection[str], texts: Mapping[str, str]) -> Project:
    start = f"{folder}/" if folder else ""
    return Project(
        folder,
        frozenset(path.removeprefix(start) for path in files if path.startswith(start)),
        {path.removeprefix(start): text for path, text in texts.items() if path.startswith(start)},
    )


def _detect_project(
    project: Project,
    tested_folders: tuple[str, ...],
    python_projects_by_name: Mapping[str, Project],
    crates: list[str],
) -> DetectedProject | None:
    python = python_projects.python(project, tested_folders, python_projects_by_name)
    other_kinds = (
        other_languages.node(project),
        other_languages.go(project),
        other_languages.cargo(project, crates),
        other_languages.make(project),
    )
    with_tests = [
        candidate
        for candidate in (python, *other_kinds)
        if candidate and "tests" in candidate.checks
    ]
    return with_tests[0] if with_tests else python


def _is_covered(project: Project, root: Project, detected: Mapping[str, DetectedProject]) -> bool:
    """Return whether the tests of the root or of a parent folder run those of this folder too."""
    if any(project.folder.startswith(f"{folder}/") for folder in detected):
        return "go.mod" not in project.files
    if "Cargo.toml" in project.files and "Cargo.toml" in root.files:
        workspace = table(root.toml("Cargo.toml"), "workspace")
        return project.folder not in strings(workspace.get("exclude"))
    return False


def _merge(
    root_project: DetectedProject | None,
    folder_projects: Mapping[str, DetectedProject],
    notes: list[str],
) -> Detected:
    """Merge all projects into one; the checks of those in folders are named after the folders."""
    steps: list[SetupStep] = []
    builds: list[BuildStep] = []
    checks: dict[str, tuple[str, ...]] = {}
    advisory, protected, reads = [], [], []
    needs: dict[str, str] = {}
    folders: dict[str, str] = {}
    depends: dict[str, tuple[str, ...]] = {}
    projects = [*([("", root_project)] if root_project else []), *folder_projects.items()]
    root_untested = root_project is None or "tests" not in root_project.checks
    for folder, project in projects:
        slug = (
            ""
            if not folder or (root_untested and len(folder_projects) == 1 and not checks)
            else _slug(folder, checks)
        )
        for name, argv in project.checks.items():
            full_name = f"{name}-{slug}" if slug else name
            checks[full_name] = argv
            advisory += [full_name] if name in project.advisory else []
            if folder:
                folders[full_name] = folder
        # If one folder of several cannot be set up, its tests fail and show why, and the others can
        # be worked on.
        several = bool(folder_projects) and (
            len(folder_projects) > 1 or not root_untested or not folder
        )
        steps += (
            [replace(step, optional=True) for step in project.steps]
            if several and (folder or root_untested)
            else project.steps
        )
        builds += project.builds
        protected += [_anchor_pattern(folder, pattern) for pattern in project.protected]
        reads += [f"{folder}/{path}" if folder else path for path in project.reads]
        needs |= {
            key: _combine_needs(key, needs.get(key, ""), value)
            for key, value in project.needs.items()
        }
        if project.depends:
            depends[folder] = project.depends
    return Detected(
        tuple(steps),
        checks,
        tuple(advisory),
        tuple(protected),
        tuple(reads),
        needs,
        folders,
        depends,
        tuple(notes),
        any(project.history for _, project in projects),
        tuple(builds),
    )


def _combine_needs(key: str, first: str, second: str) -> str:
    """Return a version requirement that suits two projects, as far as that can be expressed."""
    if not first or not second:
        return first or second
    if key == "python":
        return ",".join(dict.fromkeys((*first.split(","), *second.split(","))))
    if key == "go":
        return max(first, second, key=lambda text: [int(number) for number in text.split(".")])
    return first


def _slug(folder: str, checks: Mapping[str, object]) -> str:
    """Return a short name for a folder that no check ends with yet. The name of a check has at most
    32 characters.
    """
    full = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")
    name = re.sub(r"[^a-z0-9]+", "-", folder.rpartition("/")[2].lower()).strip("-")
    for slug in (
        name[:20].strip("-"),
        full[-24:].strip("-"),
        *(f"{name[:20].strip('-')}-{number}" for number in range(2, 1000)),
    ):
        if slug and not any(name.endswith(f"-{slug}") for name in checks):
            return slug
    return ""


def _anchor_pattern(folder: str, pattern: str) -> str:
    return (
        f"/{folder}/{pattern.removeprefix('/')}" if folder and pattern.startswith("/") else pattern
    )


def setup_commands(steps: tuple[SetupStep | BuildStep, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the commands of a set-up or a build from the root, as a person would write them."""
    return tuple(
        ("env", f"--chdir={step.folder}", *step.argv) if step.folder else step.argv
        for step in steps
    )


def likely_setup_files(files: Collection[str]) -> tuple[str, ...]:
    """Return the files that a set-up written by a person most likely depends on."""
    return tuple(path for path in files if matches(_LOCKS, path)) + find_manifests(files)


_LOCKS = (
    "/requirements*.txt",
    "/requirements/*.txt",
    "/*-requirements.txt",
    "/*_requirements.txt",
    "/uv.lock",
    "/poetry.lock",
    "/pdm.lock",
    "/package-lock.json",
    "/npm-shrinkwrap.json",
    "/pnpm-lock.yaml",
    "/yarn.lock",
    "/go.sum",
    "/Cargo.lock",
)


# The set-up commands of a `copilot-setup-steps.yml` or a `devcontainer.json`.


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
_DEVCONTAINER_COMMANDS = ("onCreateCommand", "updateContentCommand", "postCreateCommand")
"""The commands that run once, in their order of execution."""
_DEVCONTAINER_FOLDER = ("${containerWorkspaceFolder}", "${containerWorkspaceFolder:-}")
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
    document = _read_devcontainer(project.texts.get(path, ""))
    return tuple(
        SetupStep(argv, optional=True)
        for name in _DEVCONTAINER_COMMANDS
        for argv in _devcontainer_commands(document.get(name))
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
    names = {
        word.removeprefix("./")
        for step in steps
        for part in step.argv
        for word in _WORD.findall(part)
    }
    return tuple(
        path
        for path in sorted(project.files)
        if path.startswith(".devcontainer/") or path in (*DEVCONTAINERS, *SETUP_WORKFLOWS, *names)
    )


def _read_devcontainer(text: str) -> dict[str, Any]:
    """Parse a JSON object with comments and trailing commas. Return {} for any other text."""
    plain = _STRING_OR_COMMENT.sub(
        lambda match: match[0] if match[0].startswith('"') else " ", text
    )
    try:
        document = json.loads(_TRAILING_COMMA.sub(lambda match: match[1] or "", plain))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _devcontainer_commands(value: Any) -> Iterator[tuple[str, ...]]:
    """Yield the argument lists of a command: a string for a shell, a list of arguments, or an
    object whose values are either.
    """
    if isinstance(value, dict):
        for named in value.values():
            if not isinstance(named, dict):
                yield from _devcontainer_commands(named)
    elif isinstance(value, str) and value.strip():
        yield ("sh", "-c", _in_folder(value))
    elif (words := tuple(map(_in_folder, strings(value)))) and words[0]:
        yield words


def _in_folder(text: str) -> str:
    """Replace the variable of the workspace by `.`, since commands run in it."""
    for name in _DEVCONTAINER_FOLDER:
        text = text.replace(name, ".")
    return text
