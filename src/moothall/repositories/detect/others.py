"""How projects of Go and Cargo, and those with a Makefile, are set up and tested. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from moothall.domain.repository import SetupStep
from moothall.repositories.detect.project import FoundProject, Project, join_inside, table

GO_TEXTS = ("go.mod", "go.work")
CARGO_TEXTS = ("Cargo.toml", "rust-toolchain", "rust-toolchain.toml")
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")  # in make's own order


def go(project: Project) -> FoundProject | None:
    """Return what is found in a Go module, None where it is none."""
    if "go.mod" not in project.files:
        return None
    text = project.texts.get("go.mod", "")
    asked = re.findall(r"^(?:go|toolchain)\s+(?:go)?(\d+(?:\.\d+)*)", text, re.MULTILINE)[:1]
    replaced = re.findall(r"=>\s+(\.\.?/\S*)", text)
    steps = (
        []
        if project.any("/vendor/modules.txt")
        else [SetupStep(("go", "mod", "download"), project.folder)]
    )
    # Runs none of the repository's code, and may fail: that it does not compile is for the checks
    # to say.
    steps.append(SetupStep(("go", "test", "-exec", "true", "./..."), project.folder, optional=True))
    return FoundProject(
        steps=tuple(steps),
        checks={"tests": ("go", "test", "./...")} if project.any("*_test.go") else {},
        reads=tuple(
            name for name in ("go.mod", "go.sum", "go.work", "go.work.sum") if name in project.files
        ),
        needs={"go": asked[0] if asked else ""},
        depends=tuple(
            folder for path in replaced if (folder := join_inside(project.folder, path)) is not None
        ),
    )


def cargo(project: Project, packages: Sequence[str]) -> FoundProject | None:
    """Return what is found in a Cargo package or workspace, None where it is none. `packages` are
    all of the repository.
    """
    if "Cargo.toml" not in project.files:
        return None
    manifest = project.toml("Cargo.toml")
    workspace = "workspace" in manifest
    tests = ("cargo", "test", *(("--workspace",) if workspace else ()))
    channel = table(project.toml("rust-toolchain.toml"), "toolchain").get("channel")
    plain = project.texts.get("rust-toolchain", "").strip()
    if plain.startswith("["):
        channel = table(Project("", frozenset(), {"r": plain}).toml("r"), "toolchain").get(
            "channel"
        )
    elif plain:
        channel = plain
    return FoundProject(
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
    """Compile what the tests depend on, once; not the packages themselves, of which cargo tells
    commits apart by time alone.
    """
    if not packages or not (
        "workspace" in manifest or any("dependencies" in key for key in manifest)
    ):
        return ()  # a workspace's members may have them though its root has none
    forget = shlex.join(
        ["cargo", "clean", "--quiet", *(word for name in packages for word in ("-p", name))]
    )
    line = f"{shlex.join([*tests, '--no-run', '--quiet'])}; {forget} || rm -rf target"
    return (SetupStep(("sh", "-c", line), project.folder, optional=True),)


def _paths(project: Project) -> tuple[str, ...]:
    manifest = project.toml("Cargo.toml")
    found = []
    for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
        for spec in table(manifest, kind).values():
            path = table(spec).get("path")
            folder = join_inside(project.folder, path) if isinstance(path, str) else None
            found += [folder] if folder is not None else []
    return tuple(found)


def make(project: Project) -> FoundProject | None:
    """Return what is found in a folder with a Makefile that tests something, None where there is
    none.
    """
    name = next((name for name in MAKEFILES if name in project.files), None)
    target = re.search(
        r"^(test|check|tests)\s*:(?!=)", project.texts.get(name, "") if name else "", re.MULTILINE
    )
    if name is None or target is None:
        return None
    return FoundProject(
        checks={"tests": ("make", target[1])},
        protected=tuple(f"/{makefile}" for makefile in MAKEFILES),
    )
