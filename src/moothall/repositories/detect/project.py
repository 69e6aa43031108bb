"""The folder of a project as detection sees it, and the result of detection. How a project's
compiled code is built again before a check.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moothall.domain.repository import BuildStep, SetupStep
from moothall.errors import RepositoryError
from moothall.repositories.patch_rules import matches
from moothall.sandbox_runtime.checks import SITE

# The folder of a project as detection sees it, and the result of detection. Pure.


@dataclass(frozen=True, slots=True)
class Project:
    """The files below `folder` ('' is the root) by their path from there, and the texts of some of
    them.
    """

    folder: str
    files: frozenset[str]
    texts: Mapping[str, str]

    def any(self, *patterns: str) -> bool:
        """Return whether a file matches one of the patterns (gitignore style)."""
        return any(matches(patterns, path) for path in self.files)

    def toml(self, name: str) -> Mapping[str, Any]:
        """Parse a TOML file, empty if there is none. Raises `RepositoryError`."""
        try:
            return tomllib.loads(self.texts.get(name, ""))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise RepositoryError(f"{self.path(name)} is not TOML: {error}") from error

    def json(self, name: str) -> Mapping[str, Any]:
        """Parse a JSON object, empty if there is none. Raises `RepositoryError`."""
        try:
            return table(json.loads(self.texts.get(name, "{}")))
        except (ValueError, RecursionError) as error:
            raise RepositoryError(f"{self.path(name)} is not JSON: {error}") from error

    def ini(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """Parse an INI file into sections. An invalid file is empty, because its own tool reports
        the error.
        """
        parser = configparser.RawConfigParser(
            strict=False, allow_no_value=True, inline_comment_prefixes=(" #",)
        )
        try:
            parser.read_string(self.texts.get(name, ""))
        except (configparser.Error, ValueError):
            return {}
        return {
            section: {key: value or "" for key, value in parser[section].items()}
            for section in parser.sections()
        }

    def path(self, name: str) -> str:
        """Return the path of a file from the repository's root."""
        return f"{self.folder}/{name}" if self.folder else name


@dataclass(frozen=True, slots=True)
class DetectedProject:
    """The set-up and checks of one project.

    checks: by their names within the project.
    reads: the files that set-up depends on.
    depends: folders of other projects, from the repository's root.
    history: whether a build of it calls git.
    """

    steps: tuple[SetupStep, ...] = ()
    checks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    advisory: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    depends: tuple[str, ...] = ()
    history: bool = False
    builds: tuple[BuildStep, ...] = ()


def table(data: Any, *keys: str) -> Mapping[str, Any]:
    """Return a table inside a table; empty if it is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def strings(data: Any) -> list[str]:
    """Return the strings of a list; empty if it is none."""
    return [item for item in data if isinstance(item, str)] if isinstance(data, list) else []


def join_inside(folder: str, path: str) -> str | None:
    """Return a relative path from the root, None if it leaves the tree."""
    parts = folder.split("/") if folder else []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    return None if path.startswith("/") else "/".join(parts)


# How a project's compiled code is built again before a check. Pure.
#
# Set-up tries each command once and reports one that fails; that build is then left out.


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
_SUCCESS_FILE = "/env/.builds-"
_SCRIPTS = (
    "/setup.py",
    "meson.build",
    "meson.options",
    "meson_options.txt",
    "binding.gyp",
    "*.gypi",
    "CMakeLists.txt",
)
_FIND_HEADERS = (
    f"export npm_config_devdir={NODE_HEADERS}; "
    'at="$(command -v node)"; at="${at%/bin/node}"; '
    '[ ! -e "$at/include/node/node_version.h" ] || export npm_config_nodedir="$at"'
)
"""Sets the path of node-gyp's headers: those from set-up, or those that come with Node."""
_OUTPUT_FOLDER = re.compile(
    r"(?:\./)?(?P<folder>dist|build|lib|out|es|cjs|esm|umd|compiled)(?:/|$)"
)
_TRANSPILES_ITSELF = re.compile(
    r"\b(?:vitest|jest|tsx|ts-node|ts-mocha|esbuild-register|swc-node|tap)\b|--loader|--import"
)


@dataclass(frozen=True, slots=True)
class Build:
    """Additions to a project's set-up, and the steps that build it again.

    `reads` are files that set-up compiles, `protected` those that configure the build; `needs` is
    as in a profile.
    """

    steps: tuple[SetupStep, ...] = ()
    builds: tuple[BuildStep, ...] = ()
    reads: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)


def detect_python_build(
    project: Project, pyproject: Mapping[str, Any], pip: tuple[str, ...], *, versioned_name: str
) -> Build | None:
    """Return how a Python project's compiled code is built, None if it has none that we can build.

    pip: the beginning of an install command.
    versioned_name: the name of a project whose build asks git for its version. Checks have no
    history, so the build gets the version from the set-up.
    """
    system = table(pyproject, "build-system")
    backend = str(system.get("build-backend") or "setuptools")
    requires = tuple(
        word for word in strings(system.get("requires")) if not word.startswith(("-", "."))
    )
    rust = {"rust": ""} if "Cargo.toml" in project.files or backend.startswith("maturin") else {}
    folder = project.folder
    install_commands: tuple[tuple[str, ...], ...]
    if backend.startswith("setuptools"):
        if not _has_extensions(project, pyproject):
            return None
        command = _setuptools_command(project, versioned_name)
        # pip's own builds use a new setuptools too; a fresh environment has an old one.
        install_commands = (
            (*pip, "--upgrade", "setuptools", "wheel"),
            (*pip, *requires) if requires else (),
        )
    elif backend.startswith("maturin"):
        command = _maturin_command(project, pyproject)
        install_commands = ((*pip, *dict.fromkeys(("maturin", *requires))),)
    elif backend == "mesonpy":
        # An editable installation is also rebuilt on import, with the tools of the set-up.
        install_commands = (
            (*pip, *dict.fromkeys(("meson-python", "meson", "ninja", *requires))),
            (*pip, "--no-build-isolation", "--no-deps", "-e", "."),
        )
        command = 'for folder in build/cp*; do ninja --quiet -C "$folder" || exit 1; done'
    else:
        return None
    probe, build = _try_command(command, folder, COMPILED)
    return Build(
        steps=(
            *(SetupStep(argv, folder, optional=True) for argv in install_commands if argv),
            probe,
        ),
        builds=(build,),
        reads=tuple(sorted(path for path in project.files if matches(COMPILED, path))),
        protected=_SCRIPTS,
        needs=rust,
    )


def _has_extensions(project: Project, pyproject: Mapping[str, Any]) -> bool:
    """True if setuptools compiles extension modules of a project."""
    setup_script = project.texts.get("setup.py", "")
    return bool(
        _EXTENSIONS.search(setup_script)
        or table(pyproject, "tool", "setuptools").get("ext-modules")
    )


def _setuptools_command(project: Project, versioned_name: str) -> str:
    """Return the shell command that builds a project's extension modules in place."""
    script = (
        ("setup.py",)
        if "setup.py" in project.files
        else ("-c", "import setuptools; setuptools.setup()")
    )
    command = shlex.join(("python", *script, "build_ext", "--inplace", "--force"))
    if not versioned_name:
        return command
    query = f"import importlib.metadata as m; print(m.version({versioned_name!r}))"
    version = f'v="$(python -c {shlex.quote(query)} || echo 0)"'
    variables = " ".join(f'{variable}="$v"' for variable in _VERSION_OF_GIT)
    return f"{version}; {variables} {command}"


def _maturin_command(project: Project, pyproject: Mapping[str, Any]) -> str:
    """Return the shell command that builds a project's Rust code, in place if it also has Python
    code.
    """
    is_mixed = table(pyproject, "tool", "maturin").get("python-source") or any(
        path.endswith("/__init__.py") and path.count("/") == 1 for path in project.files
    )
    if is_mixed:
        return "maturin develop --offline --skip-install --quiet"
    return (
        "python -m pip install --quiet --no-index --no-build-isolation --no-deps --upgrade "
        f"--target {SITE} ."
    )


def detect_node_build(
    project: Project, package: Mapping[str, Any], tests: tuple[str, ...]
) -> Build | None:
    """Return how a Node project's addon or its transpiled code is built; None if it has neither."""
    scripts = table(package, "scripts")
    if "binding.gyp" in project.files:
        command = (
            f"{_FIND_HEADERS}; "
            f"{shlex.join(('npm', 'exec', '--offline', '--call', 'node-gyp configure build'))}"
        )
        probe, build = _try_command(command, project.folder, COMPILED)
        reads = tuple(
            sorted(
                path for path in project.files if matches(COMPILED, path) or path.endswith(".gyp")
            )
        )
        return Build((probe,), (build,), reads, _SCRIPTS, {})
    output_folder = next(iter(_products(project, package)), "")
    script = " ".join(str(scripts.get(name, "")) for name in ("pretest", "test"))
    if (
        not output_folder
        or "build" not in scripts
        or not tests
        or re.search(r"\bbuild\b|\btsc\b", script)
    ):
        return None
    if _TRANSPILES_ITSELF.search(script) and f"{output_folder}/" not in script:
        return None
    probe, build = _try_command("npm run --silent build", project.folder, ())
    return Build((probe,), (build,), (), (), {})


def _products(project: Project, package: Mapping[str, Any]) -> list[str]:
    """Return the folders of a package's entry points that are not in the repository."""
    exports = package.get("exports")
    entries = [package.get("main"), package.get("module"), exports]
    if isinstance(exports, dict):
        entries += [
            entry
            for value in exports.values()
            for entry in (value.values() if isinstance(value, dict) else [value])
        ]
    folders = [
        match["folder"]
        for entry in entries
        if isinstance(entry, str) and (match := _OUTPUT_FOLDER.match(entry))
    ]
    return [
        folder
        for folder in dict.fromkeys(folders)
        if not any(path.startswith(f"{folder}/") for path in project.files)
    ]


def tries_build(step: SetupStep) -> bool:
    """Return whether a step tries a build. It is needed even if another project installs the
    dependencies.
    """
    return _SUCCESS_FILE in step.argv[-1]


def _try_command(
    command: str, folder: str, sources: tuple[str, ...]
) -> tuple[SetupStep, BuildStep]:
    """Return a set-up step that tries a command, and a build step that runs it after a success."""
    success_file = f"{_SUCCESS_FILE}{re.sub(r'[^a-z0-9]+', '-', folder.lower()) or 'root'}"
    probe = SetupStep(("sh", "-c", f"({command}) && touch {success_file}"), folder, optional=True)
    return probe, BuildStep(
        ("sh", "-c", f"[ ! -e {success_file} ] || ({command})"), folder, sources
    )
