"""How a project's compiled code is built again before a check. Pure.

Set-up tries each command once and reports one that fails; that build is then left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moothall.domain.repository import BuildStep, SetupStep
from moothall.repositories.detect.project import Project, strings, table
from moothall.repositories.patch_rules import matches
from moothall.sandbox_runtime.checks import SITE

NODE_HEADERS = "/env/node-gyp"
"""Where set-up stores the headers for compiling addons."""
COMPILED = (
    "*.c",
    "*.h",
    "*.cc",
    "*.cpp",
    "*.cxx",
    "*.c++",
    "*.hh",
    "*.hpp",
    "*.hxx",
    "*.inl",
    "*.inc",
    "*.def",
    "*.S",
    "*.m",
    "*.mm",
    "*.cu",
    "*.cuh",
    "*.f",
    "*.f90",
    "*.F90",
    "*.pyx",
    "*.pxd",
    "*.pxi",
    "*.rs",
    "*.tmpl",
    "*.in",
)
"""Sources of compiled code, by their names."""
_EXTENSIONS = re.compile(
    r"ext_modules|\bExtension\(|cythonize|cffi_modules|rust_extensions|Pybind11Extension|pybind11_add_module|build_clib"
)
_VERSION_OF_GIT = ("SETUPTOOLS_SCM_PRETEND_VERSION", "PBR_VERSION")
_MARK = "/env/.builds-"
_SCRIPTS = (
    "/setup.py",
    "meson.build",
    "meson.options",
    "meson_options.txt",
    "binding.gyp",
    "*.gypi",
    "CMakeLists.txt",
)
_HEADERS = (
    f"export npm_config_devdir={NODE_HEADERS}; "
    'at="$(command -v node)"; at="${at%/bin/node}"; '
    '[ ! -e "$at/include/node/node_version.h" ] || export npm_config_nodedir="$at"'
)
"""Leads node-gyp to its headers: those of set-up, or those that come with Node."""
_PRODUCT = re.compile(r"(?:\./)?(?P<folder>dist|build|lib|out|es|cjs|esm|umd|compiled)(?:/|$)")
_READS_SOURCES = re.compile(
    r"\b(?:vitest|jest|tsx|ts-node|ts-mocha|esbuild-register|swc-node|tap)\b|--loader|--import"
)


@dataclass(frozen=True, slots=True)
class Built:
    """Additions to a project's set-up, and the steps that build it again.

    `reads` are files that set-up compiles, `protected` those that configure the build; `needs` is
    as in a profile.
    """

    steps: tuple[SetupStep, ...] = ()
    builds: tuple[BuildStep, ...] = ()
    reads: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)


def python_built(
    project: Project, pyproject: Mapping[str, Any], pip: tuple[str, ...], *, versioned: str
) -> Built | None:
    """Return how a Python project's compiled code is built, or None if it has none that we can
    build.

    `pip` is the beginning of an installing command. `versioned` is the project's name if its build
    asks git for the version: checks have no history, so the build gets the version of the set-up.
    """
    system = table(pyproject, "build-system")
    backend = str(system.get("build-backend") or "setuptools")
    requires = tuple(
        word for word in strings(system.get("requires")) if not word.startswith(("-", "."))
    )
    rust = {"rust": ""} if "Cargo.toml" in project.files or backend.startswith("maturin") else {}
    folder = project.folder
    needed: tuple[tuple[str, ...], ...]
    if backend.startswith("setuptools"):
        said = project.texts.get("setup.py", "")
        if not _EXTENSIONS.search(said) and not table(pyproject, "tool", "setuptools").get(
            "ext-modules"
        ):
            return None
        script = (
            ("setup.py",)
            if "setup.py" in project.files
            else ("-c", "import setuptools; setuptools.setup()")
        )
        command = shlex.join(("python", *script, "build_ext", "--inplace", "--force"))
        if versioned:
            told = f"import importlib.metadata as m; print(m.version({versioned!r}))"
            version = f'v="$(python -c {shlex.quote(told)} || echo 0)"'
            pretended = " ".join(f'{variable}="$v"' for variable in _VERSION_OF_GIT)
            command = f"{version}; {pretended} {command}"
        # As new as in pip's own builds: a fresh environment has an old setuptools.
        needed = ((*pip, "--upgrade", "setuptools", "wheel"), (*pip, *requires) if requires else ())
    elif backend.startswith("maturin"):
        mixed = table(pyproject, "tool", "maturin").get("python-source") or any(
            path.endswith("/__init__.py") and path.count("/") == 1 for path in project.files
        )
        command = (
            "maturin develop --offline --skip-install --quiet"
            if mixed
            else (
                "python -m pip install --quiet --no-index --no-build-isolation --no-deps --upgrade "
                f"--target {SITE} ."
            )
        )
        needed = ((*pip, *dict.fromkeys(("maturin", *requires))),)
    elif backend == "mesonpy":
        # Installed like this, it is also built again on import, with the tools of the set-up.
        needed = (
            (*pip, *dict.fromkeys(("meson-python", "meson", "ninja", *requires))),
            (*pip, "--no-build-isolation", "--no-deps", "-e", "."),
        )
        command = 'for folder in build/cp*; do ninja --quiet -C "$folder" || exit 1; done'
    else:
        return None
    probe, build = _tried(command, folder, COMPILED)
    return Built(
        steps=(*(SetupStep(argv, folder, optional=True) for argv in needed if argv), probe),
        builds=(build,),
        reads=tuple(sorted(path for path in project.files if matches(COMPILED, path))),
        protected=_SCRIPTS,
        needs=rust,
    )


def node_built(
    project: Project, package: Mapping[str, Any], tests: tuple[str, ...]
) -> Built | None:
    """Return how a Node project's addon, or the code transpiled for its tests, is built; None if it
    has neither.
    """
    scripts = table(package, "scripts")
    if "binding.gyp" in project.files:
        command = (
            f"{_HEADERS}; "
            f"{shlex.join(('npm', 'exec', '--offline', '--call', 'node-gyp configure build'))}"
        )
        probe, build = _tried(command, project.folder, COMPILED)
        reads = tuple(
            sorted(
                path for path in project.files if matches(COMPILED, path) or path.endswith(".gyp")
            )
        )
        return Built((probe,), (build,), reads, _SCRIPTS, {})
    product = next(iter(_products(project, package)), "")
    script = " ".join(str(scripts.get(name, "")) for name in ("pretest", "test"))
    if (
        not product
        or "build" not in scripts
        or not tests
        or re.search(r"\bbuild\b|\btsc\b", script)
    ):
        return None
    if _READS_SOURCES.search(script) and f"{product}/" not in script:
        return None
    probe, build = _tried("npm run --silent build", project.folder, ())
    return Built((probe,), (build,), (), (), {})


def _products(project: Project, package: Mapping[str, Any]) -> list[str]:
    """Return the folders of a package's entry points that are not in the repository."""
    exports = package.get("exports")
    entries = [package.get("main"), package.get("module"), exports]
    if isinstance(exports, dict):
        entries += [
            one
            for value in exports.values()
            for one in (value.values() if isinstance(value, dict) else [value])
        ]
    found = [
        match["folder"]
        for one in entries
        if isinstance(one, str) and (match := _PRODUCT.match(one))
    ]
    return [
        folder
        for folder in dict.fromkeys(found)
        if not any(path.startswith(f"{folder}/") for path in project.files)
    ]


def tries_build(step: SetupStep) -> bool:
    """Whether a step of a set-up tries a build. It is needed even if another project installs the
    dependencies.
    """
    return _MARK in step.argv[-1]


def _tried(command: str, folder: str, sources: tuple[str, ...]) -> tuple[SetupStep, BuildStep]:
    """Return the step of a set-up that tries a command, and the build that runs it if that
    succeeded.
    """
    mark = f"{_MARK}{re.sub(r'[^a-z0-9]+', '-', folder.lower()) or 'root'}"
    probe = SetupStep(("sh", "-c", f"({command}) && touch {mark}"), folder, optional=True)
    return probe, BuildStep(("sh", "-c", f"[ ! -e {mark} ] || ({command})"), folder, sources)
