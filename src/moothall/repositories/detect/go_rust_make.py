"""Detection of Go modules, Cargo packages and Makefiles. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from moothall.domain.repository import SetupStep
from moothall.repositories.detect.project import DetectedProject, Project, join_inside, table

GO_TEXTS = ("go.mod", "go.work")
CARGO_TEXTS = ("Cargo.toml", "rust-toolchain", "rust-toolchain.toml")
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")  # in make's own order


def go(project: Project) -> DetectedProject | None:
    """Detect a Go module; return None otherwise."""
    if "go.mod" not in project.files:
        return None
    text = project.texts.get("go.mod", "")
    versions = re.findall(r"^(?:go|toolchain)\s+(?:go)?(\d+(?:\.\d+)*)", text, re.MULTILINE)[:1]
    replacement_paths = re.findall(r"=>\s+(\.\.?/\S*)", text)
    steps = (
        []
        if project.any("/vendor/modules.txt")
        else [SetupStep(("go", "mod", "download"), project.folder)]
    )
    # Compiles without running the repository's code. It may fail, because the checks report errors
    # of compilation.
    steps.append(SetupStep(("go", "test", "-exec", "true", "./..."), project.folder, optional=True))
    return DetectedProject(
        steps=tuple(steps),
        checks={"tests": ("go", "test", "./...")} if project.any("*_test.go") else {},
        reads=tuple(
            name for name in ("go.mod", "go.sum", "go.work", "go.work.sum") if name in project.files
        ),
        needs={"go": versions[0] if versions else ""},
        depends=tuple(
            folder
            for path in replacement_paths
            if (folder := join_inside(project.folder, path)) is not None
        ),
    )


def cargo(project: Project, packages: Sequence[str]) -> DetectedProject | None:
    """Detect a Cargo package or workspace; return None otherwise. `packages` are all
    packages of the repository.
    """
    if "Cargo.toml" not in project.files:
        return None
    manifest = project.toml("Cargo.toml")
    workspace = "workspace" in manifest
    tests = ("cargo", "test", *(("--workspace",) if workspace else ()))
    channel = table(project.toml("rust-toolchain.toml"), "toolchain").get("channel")
    text = project.texts.get("rust-toolchain", "").strip()
    if text.startswith("["):
        channel = table(Project("", frozenset(), {"r": text}).toml("r"), "toolchain").get("channel")
    elif text:
        channel = text
    return DetectedProject(
        steps=(
            SetupStep(("cargo", "fetch"), project.folder),
            *_compile_steps(project, manifest, tests, packages),
        ),
        checks={"tests": tests} if project.any("*.rs") else {},
        protected=("Cargo.toml",),
        reads=tuple(name for name in (*CARGO_TEXTS, "Cargo.lock") if name in project.files),
        needs={"rust": channel if isinstance(channel, str) else ""},
        depends=_paths(project),
    )


def _compile_steps(
    project: Project, manifest: Mapping[str, Any], tests: tuple[str, ...], packages: Sequence[str]
) -> tuple[SetupStep, ...]:
    """Return the step that compiles the dependencies of the tests. The packages themselves are
    cleaned, because cargo tells their versions apart only by time.
    """
    if not packages or not (
        "workspace" in manifest or any("dependencies" in key for key in manifest)
    ):
        return ()  # members of a workspace may have dependencies even if its root has none
    clean = shlex.join(
        ["cargo", "clean", "--quiet", *(argument for name in packages for argument in ("-p", name))]
    )
    script = f"{shlex.join([*tests, '--no-run', '--quiet'])}; {clean} || rm -rf target"
    return (SetupStep(("sh", "-c", script), project.folder, optional=True),)


def _paths(project: Project) -> tuple[str, ...]:
    manifest = project.toml("Cargo.toml")
    folders = []
    for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
        for spec in table(manifest, kind).values():
            path = table(spec).get("path")
            folder = join_inside(project.folder, path) if isinstance(path, str) else None
            folders += [folder] if folder is not None else []
    return tuple(folders)


def make(project: Project) -> DetectedProject | None:
    """Detect a Makefile with a target for tests; return None otherwise."""
    name = next((name for name in MAKEFILES if name in project.files), None)
    target = re.search(
        r"^(test|check|tests)\s*:(?!=)", project.texts.get(name, "") if name else "", re.MULTILINE
    )
    if name is None or target is None:
        return None
    return DetectedProject(
        checks={"tests": ("make", target[1])},
        protected=tuple(f"/{makefile}" for makefile in MAKEFILES),
    )
