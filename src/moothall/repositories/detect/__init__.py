"""Finding out from its files how a repository is set up and tested: one project at its root, or
several in folders. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from moothall.domain.repository import BuildStep, SetupStep
from moothall.repositories.detect import node, others
from moothall.repositories.detect import python as pythons
from moothall.repositories.detect.builds import tries_build
from moothall.repositories.detect.project import FoundProject, Project, strings, table
from moothall.repositories.patch_rules import matches

ENV_PYTHON = pythons.ENV_PYTHON
GO_CACHE = "go-build"
"""Where set-up leaves what Go compiled, in the environment."""

MOST_PROJECTS = 20
_MANIFESTS = ("pyproject.toml", "setup.py", "package.json", "go.mod", "Cargo.toml")
_TEXTS = frozenset(
    {
        *pythons.TEXTS,
        *node.TEXTS,
        "pnpm-lock.yaml",
        *others.GO_TEXTS,
        *others.CARGO_TEXTS,
        *others.MAKEFILES,
        "PKG-INFO",
    }
)
# Folders whose projects are data, examples or somebody else's.
_NOT_OWN = re.compile(
    r"(?:^|/)(?:node_modules|vendor|third[-_]?party|external|testdata|fixtures?|__fixtures__|tests?|__tests__|specs?|examples?|samples?|demos?"
    r"|docs?|website|templates?|benchmarks?|benches|fuzz|scripts|tools|ci|\..+|build|dist|target|_.+)(?:/|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Detected:
    """How a whole repository is set up and checked. Paths are from its root; `depends` as a
    profile's.
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


def wanted_files(files: Collection[str], most: int = MOST_PROJECTS) -> tuple[str, ...]:
    """Return those files whose text detection reads."""
    folders = set(_folders(files, 10 * most))
    return tuple(
        path
        for path in files
        if path.rpartition("/")[2] in _TEXTS and path.rpartition("/")[0] in folders
    )


def detect(files: Collection[str], texts: Mapping[str, str], most: int = MOST_PROJECTS) -> Detected:
    """Return how the project at the root is set up and checked, and those of at most `most` folders
    that are no part of it.

    At the root and in each folder it is the first of Python, Node, Go, Cargo and Make that has
    tests. A Python project without tests has no check, but an environment in which tests could run.
    """
    projects = [_project(folder, files, texts) for folder in _folders(files, 10 * most)]
    root, inner = projects[0], projects[1:]
    named = {
        name: project for project in reversed(projects) if (name := pythons.project_name(project))
    }
    crates = [
        crate
        for project in projects
        if isinstance(crate := table(project.toml("Cargo.toml"), "package").get("name"), str)
    ]
    notes: list[str] = []
    found: dict[str, FoundProject] = {}
    own = _of(root, (), named, crates)
    whole = node.node(
        root
    )  # a workspace is installed at its root, also where only its members are tested
    members = node.workspaces(root) if whole else ()
    for project in inner:
        member = "package.json" in project.files and node.is_member(members, project.folder)
        if (member and own and "tests" in own.checks) or _is_covered(project, root, found):
            continue
        one = _of(project, (), named, crates)
        if one and "tests" in one.checks:
            steps = tuple(step for step in one.steps if tries_build(step)) if member else one.steps
            found[project.folder] = replace(one, steps=steps)
    below = tuple(found)
    if len(found) > most:
        left = list(found)[most:]
        notes.append(
            f"{len(left)} more projects have no check of their own (workspace.max_projects): "
            f"{', '.join(left[:5])}"
        )
        found = {folder: found[folder] for folder in list(found)[:most]}
    if found:
        own = _of(root, below, named, crates)
    if whole and members and "tests" not in (own.checks if own else ()):
        own = whole
    return _together(own, found, notes)


def _folders(files: Collection[str], most: int) -> list[str]:
    """Return the root and the folders below it that hold a project of their own, those nearest to
    the root first.
    """
    found = {path.rpartition("/")[0] for path in files if path.rpartition("/")[2] in _MANIFESTS}
    inner = sorted(
        (folder for folder in found if folder and not _NOT_OWN.search(folder)),
        key=lambda at: (at.count("/"), at),
    )
    return ["", *inner[:most]]


def _project(folder: str, files: Collection[str], texts: Mapping[str, str]) -> Project:
    start = f"{folder}/" if folder else ""
    return Project(
        folder,
        frozenset(path.removeprefix(start) for path in files if path.startswith(start)),
        {path.removeprefix(start): text for path, text in texts.items() if path.startswith(start)},
    )


def _of(
    project: Project, below: tuple[str, ...], named: Mapping[str, Project], crates: list[str]
) -> FoundProject | None:
    python = pythons.python(project, below, named)
    rest = (
        node.node(project),
        others.go(project),
        others.cargo(project, crates),
        others.make(project),
    )
    with_tests = [found for found in (python, *rest) if found and "tests" in found.checks]
    return with_tests[0] if with_tests else python


def _is_covered(project: Project, root: Project, found: Mapping[str, FoundProject]) -> bool:
    """Whether the tests of the root, or of a folder above, run those of this folder too."""
    if any(project.folder.startswith(f"{folder}/") for folder in found):
        return "go.mod" not in project.files
    if "Cargo.toml" in project.files and "Cargo.toml" in root.files:
        workspace = table(root.toml("Cargo.toml"), "workspace")
        return project.folder not in strings(workspace.get("exclude"))
    return False


def _together(
    own: FoundProject | None, inner: Mapping[str, FoundProject], notes: list[str]
) -> Detected:
    """Return all projects as one profile; those in folders name their checks after them."""
    steps: list[SetupStep] = []
    builds: list[BuildStep] = []
    checks: dict[str, tuple[str, ...]] = {}
    advisory, protected, reads = [], [], []
    needs: dict[str, str] = {}
    folders: dict[str, str] = {}
    depends: dict[str, tuple[str, ...]] = {}
    history = any(found.history for found in ((own,) if own else ()) + tuple(inner.values()))
    alone = own is None or "tests" not in own.checks
    for folder, found in (*(((("", own),)) if own else ()), *inner.items()):
        slug = (
            ""
            if not folder or (alone and len(inner) == 1 and not checks)
            else _slug(folder, checks)
        )
        for name, argv in found.checks.items():
            full = f"{name}-{slug}" if slug else name
            checks[full] = argv
            advisory += [full] if name in found.advisory else []
            if folder:
                folders[full] = folder
        # What cannot be set up in one folder of several is red there, and says so; the others can
        # be worked on.
        several = bool(inner) and (len(inner) > 1 or not alone or not folder)
        steps += (
            [replace(step, optional=True) for step in found.steps]
            if several and (folder or alone)
            else found.steps
        )
        builds += found.builds
        protected += [_below(folder, pattern) for pattern in found.protected]
        reads += [f"{folder}/{path}" if folder else path for path in found.reads]
        needs = {
            **needs,
            **{key: _both(key, needs.get(key, ""), value) for key, value in found.needs.items()},
        }
        if found.depends:
            depends[folder] = found.depends
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
        history,
        tuple(builds),
    )


def _both(key: str, one: str, other: str) -> str:
    """Return what satisfies two projects of a repository, where that can be said."""
    if not one or not other:
        return one or other
    if key == "python":
        return ",".join(dict.fromkeys((*one.split(","), *other.split(","))))
    if key == "go":
        return max(one, other, key=lambda text: [int(number) for number in text.split(".")])
    return one


def _slug(folder: str, checks: Mapping[str, object]) -> str:
    """Return a short name for a folder that no check has yet; a check's name has at most 32
    characters.
    """
    whole = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")
    last = re.sub(r"[^a-z0-9]+", "-", folder.rpartition("/")[2].lower()).strip("-")
    for slug in (
        last[:20].strip("-"),
        whole[-24:].strip("-"),
        *(f"{last[:20].strip('-')}-{at}" for at in range(2, 1000)),
    ):
        if slug and not any(name.endswith(f"-{slug}") for name in checks):
            return slug
    return ""


def _below(folder: str, pattern: str) -> str:
    return (
        f"/{folder}/{pattern.removeprefix('/')}" if folder and pattern.startswith("/") else pattern
    )


def setup_commands(steps: tuple[SetupStep | BuildStep, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the commands of a set-up or a build as a person would write them, for the root."""
    return tuple(
        ("env", f"--chdir={step.folder}", *step.argv) if step.folder else step.argv
        for step in steps
    )


def setup_reads(files: Collection[str]) -> tuple[str, ...]:
    """Return the files that a set-up which a person wrote most likely depends on."""
    return tuple(path for path in files if matches(_LOCKS, path)) + wanted_files(files)


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
