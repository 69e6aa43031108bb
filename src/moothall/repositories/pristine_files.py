"""The parts of a candidate's change that are judged: its code, but nothing that controls how tests
run. Pure.

Files that a test runner, a compiler or an interpreter reads beside the code are restored to the
base, in any spelling and folder, and removed if they are new; so are test files. In a package.json
only the keys that control tests are restored.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from moothall.ranking.diffs import restore_base_tests
from moothall.repositories import patch_rules
from moothall.repositories.git_objects import Change

CONFIGURATION: tuple[str, ...] = (
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "tox.ini",
    "tox.toml",
    "noxfile.py",
    "setup.cfg",
    "pyproject.toml",
    ".coveragerc",
    "uv.toml",
    "sitecustomize.py",
    "sitecustomize/**",
    "usercustomize.py",
    "usercustomize/**",
    "*.pth",
    "*.dist-info/**",
    "*.egg-info/**",
    "*.egg-link",
    "moothall_*.py",
    "pyvenv.cfg",
    "mypy.ini",
    ".mypy.ini",
    ".flake8",
    ".pylintrc",
    "pylintrc",
    "ruff.toml",
    ".ruff.toml",
    "jest.config.*",
    "vitest.config.*",
    "vitest.workspace.*",
    "vite.config.*",
    "ava.config.*",
    "karma.conf.*",
    "wtr.config.*",
    ".mocharc",
    ".mocharc.*",
    "mocha.opts",
    ".babelrc",
    ".babelrc.*",
    "babel.config.*",
    ".swcrc",
    ".nycrc",
    ".nycrc.*",
    ".c8rc*",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.*",
    ".pnp.*",
    "pnpm-workspace.yaml",
    ".pnpmfile.cjs",
    "tsconfig.json",
    "tsconfig.*.json",
    ".eslintrc",
    ".eslintrc.*",
    "eslint.config.*",
    ".taprc",
    ".node_repl_history",
    "node.config.json",
    "go.mod",
    "go.sum",
    "go.work",
    "go.work.sum",
    "go.env",
    "Cargo.toml",
    "Cargo.lock",
    "build.rs",
    "!**/src/build.rs",
    ".cargo/**",
    ".config/nextest.toml",
    "nextest.toml",
    "rust-toolchain",
    "rust-toolchain.toml",
    "Makefile",
    "makefile",
    "GNUmakefile",
    "*.mk",
    "*.mak",
    "justfile",
    "Justfile",
    ".justfile",
    "Taskfile.yml",
    "Taskfile.yaml",
    "Taskfile.dist.yml",
    "Taskfile.dist.yaml",
    "Rakefile",
    "/magefile.go",
    "hatch.toml",
    "pdm.toml",
    "pixi.toml",
    "/dodo.py",
    "/fabfile.py",
    "nose.cfg",
    ".noserc",
    "nose2.cfg",
    "unittest.cfg",
    "bunfig.toml",
    "deno.json",
    "deno.jsonc",
    ".borp.yaml",
    ".borp.yml",
    ".pytest_cache/**",
    ".hypothesis/**",
    "gulpfile.*",
    "Gruntfile.*",
    "playwright.config.*",
)
"""Files that are no tests but can change the result of a test."""
_NEVER_PATCHED = ("node_modules/**", "vendor/**", "__pycache__/**", "*.pyc", ".env")
"""Third-party and compiled code, which a patch never adds."""
_RUNNER_MODULES = frozenset(
    {"pytest", "_pytest", "pluggy", "iniconfig", "unittest", "node_modules"}
)
"""Names that a new file or folder at the top must not have, because it would shadow a test runner.
"""
_PACKAGE_KEYS = (
    "name",
    "scripts",
    "jest",
    "mocha",
    "ava",
    "tap",
    "nyc",
    "c8",
    "vitest",
    "babel",
    "eslintConfig",
    "config",
    "type",
    "dependencies",
    "devDependencies",
    "peerDependencies",
    "optionalDependencies",
    "overrides",
    "resolutions",
    "workspaces",
)
_SCRIPTS = ("pretest", "test", "posttest")
_SECTIONS = ("jest", "mocha", "ava", "tap", "nyc", "c8", "vitest")
_MAX_DEPTH = 8
_SETTING = (
    r"\b(?:setup\w*|global(?:Setup|Teardown)|(?:testE|e)nvironment|require|import{more})['\"]?\s*[:=]"
    r"(\s*\[[^\]]{{0,2000}}\]|(?:[ \t]*\n[ \t]*-[^\n]{{0,300}}){{1,50}}|[^\n]{{1,300}})"
)
_FILE_SETTING, _MOCHA_FILE_SETTING = (
    re.compile(_SETTING.format(more=more)) for more in ("", "|file")
)
"""Settings that name further files. `file` is one in mocha only; elsewhere it is a build output."""
_PATH = re.compile(r"[\w@./-]{1,300}")
_EXTENSIONS = ("", ".js", ".cjs", ".mjs", ".ts", ".mts", ".cts")
_MAKEFILES = (
    "Makefile",
    "makefile",
    "GNUmakefile",
    "*.mk",
    "justfile",
    "Justfile",
    "Taskfile.yml",
    "Taskfile.yaml",
)
REFERRING_CONFIGURATION = (
    *_MAKEFILES,
    "jest.config.*",
    "vitest.config.*",
    "vitest.workspace.*",
    "vite.config.*",
    "ava.config.*",
    ".mocharc",
    ".mocharc.*",
)
"""Separate files that configure a Node test runner or contain the commands that run tests, and that
may name further files.
"""
_SHELL_FILE = re.compile(
    r"(?m)(?:^|&&|[|;])[ \t]*+[@+-]*+(?:\w++=\S*+[ "
    r"\t]++)*+(?:(?:(?:ba|z|da)?sh|source|\.|exec|time|env|python[\d.]*+|node|bats|include)[ "
    r"\t]++(?:-\w++[ \t]++)*+)*+"
    r"(?:\$[({]\w++[)}]/|\./)?+([\w./-]++)(?=[ \t;&|)]|$)"
)
"""Files that the recipes of a makefile run or include."""
_SCRIPT_NAME = re.compile(
    r"(?:\.(?:sh|bash|zsh|bats|mk|mak|awk|pl|rb)|(?:test|check|spec|verify)[\w.-]*)\Z"
)
"""Names of scripts among these files, which may decide the result of a test."""
_COMMAND_SEPARATOR = re.compile(r"&&|[|][|]|[;|&\n]")
_INVOKES = frozenset({"invoke", "inv"})
_SCRIPT_CALL = re.compile(
    r"\b(?:npm|pnpm|yarn|bun|run-[sp]|npm-run-all\d?|concurrently|wireit|turbo|nx)\b|--run\b"
)
"""Commands that run other scripts of a package."""
_LINTERS = frozenset(
    {
        "eslint",
        "standard",
        "semistandard",
        "xo",
        "jshint",
        "jscs",
        "tslint",
        "prettier",
        "biome",
        "oxlint",
        "tsc",
        "tsd",
    }
) | {
    "ruff",
    "flake8",
    "pylint",
    "mypy",
    "pyright",
    "black",
    "isort",
    "doctest",
}
_CODE_OPTION = re.compile(
    r"cover|include|exclude|ignore|^-*all$|moduleNameMapper|roots|paths|directories|extension",
    re.IGNORECASE,
)
"""Options and keys whose values name the code under test."""


def base_controlled_files(
    base_files: Collection[str],
    protected: Iterable[str],
    commands: Iterable[Sequence[str]],
    package: str,
    configuration: Mapping[str, str],
) -> frozenset[str]:
    """Return the files of the base that a candidate cannot change when it is judged: tests, their
    configuration, and files that their commands name.

    package: the text of the base's package.json, empty if there is none.
    configuration: the texts of files that match `REFERRING_CONFIGURATION`, by path.
    """
    patterns = (*protected, *CONFIGURATION)
    commands = tuple(commands)
    named_paths = {path for command in commands for path in _operands(command)} | set(
        _paths_in_package(package)
    )
    if any(posixpath.basename(word) in _INVOKES for command in commands for word in command):
        named_paths.add("tasks.py")  # without invoke it is ordinary code
    named_paths |= {
        name for path, text in configuration.items() for name in _paths_in_config(path, text)
    }
    controlled = {
        path for path in base_files if patch_rules.matches(patterns, path) or path in named_paths
    }
    return frozenset(path for path in controlled if path.rpartition("/")[2] != "package.json")


def _operands(words: Sequence[str]) -> Iterator[str]:
    """Yield arguments that may be paths of files that run or control tests. Arguments of linters
    and doctests are the code itself, so they yield nothing.
    """
    if any(word.rpartition("/")[2] in _LINTERS or "doctest" in word for word in words):
        return
    previous = ""
    for word in words:
        option, _, value = word.rpartition("=")
        if not _CODE_OPTION.search(option or (previous if previous.startswith("-") else "")):
            yield value.removeprefix("<rootDir>/").removeprefix("./")
        previous = word


def _paths_in_package(text: str) -> Iterator[str]:
    """Yield the paths in test scripts and in the configuration of test runners."""
    package = _object(text)
    scripts = package.get("scripts")
    if isinstance(scripts, dict):
        for step in _COMMAND_SEPARATOR.split("\n".join(_test_scripts(scripts))):
            yield from _operands(step.replace('"', " ").replace("'", " ").split())
    for name in _SECTIONS:
        yield from _strings(package.get(name))


def _test_scripts(scripts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the scripts that run tests, and those that these run."""
    pending, seen_names = [name for name in _SCRIPTS if name in scripts], set[str]()
    while pending:
        name = pending.pop()
        if name in seen_names:
            continue
        seen_names.add(name)
        script = str(scripts[name])
        yield script
        words = {
            word
            for command in _COMMAND_SEPARATOR.split(script)
            if _SCRIPT_CALL.search(command)
            for word in command.split()
        }
        for word in words:
            candidates = (f"pre{word}", word, f"post{word}")
            pending += [candidate for candidate in candidates if candidate in scripts]


def _paths_in_config(path: str, text: str) -> Iterator[str]:
    """Yield the paths, with each possible extension, that the configuration of a runner may load
    besides the tests.
    """
    folder = path.rpartition("/")[0]
    if patch_rules.matches(_MAKEFILES, path):
        scripts = (
            file_path
            for file_path in _SHELL_FILE.findall(text)
            if _SCRIPT_NAME.search(posixpath.basename(file_path))
        )
        yield from (posixpath.normpath(posixpath.join(folder, file_path)) for file_path in scripts)
        return
    for match in (_MOCHA_FILE_SETTING if ".mocharc" in path else _FILE_SETTING).finditer(text):
        for word in _PATH.findall(match[1].replace("<rootDir>", ".")):
            file_path = posixpath.normpath(posixpath.join(folder, word.lstrip("/")))
            yield from (f"{file_path}{ending}" for ending in _EXTENSIONS)


def _strings(value: Any, depth: int = _MAX_DEPTH) -> Iterator[str]:
    """Yield the strings in the configuration of a runner, down to `depth`, except names of the code
    under test.
    """
    if isinstance(value, str):
        yield from _operands(value.split())
    elif isinstance(value, list | dict) and depth:
        for key, item in (
            value.items() if isinstance(value, dict) else [("", item) for item in value]
        ):
            if not _CODE_OPTION.search(key):
                yield from _strings(item, depth - 1)


def is_patchable(
    path: str, controlled: frozenset[str], base_files: Collection[str], protected: Iterable[str]
) -> bool:
    """Return whether a candidate's change at `path` is judged.

    A file in place of a folder would delete the tests in it, and a new file must not be a test or
    control one.
    """
    folders = [path[:index] for index, char in enumerate(path) if char == "/"]
    if (
        path in controlled
        or any(folder in controlled for folder in folders)
        or any(name.startswith(f"{path}/") for name in controlled)
    ):
        return False
    if path in base_files:
        return True
    if path.rpartition("/")[2] == "package.json":
        return False
    module = path.partition("/")[0].partition(".")[0]
    shadows = module in _RUNNER_MODULES and not any(
        name.partition("/")[0].partition(".")[0] == module for name in base_files
    )
    return not shadows and not patch_rules.matches(
        (*CONFIGURATION, *_NEVER_PATCHED, *patch_rules.TEST_PATTERNS, *protected), path
    )


def controls_tests(path: str) -> bool:
    """Return whether a new file of this name, added by another seat's tests, could decide the
    results of those tests.
    """
    return (
        patch_rules.matches((*CONFIGURATION, *_NEVER_PATCHED), path)
        or path.rpartition("/")[2] == "package.json"
    )


def restore_base_parts(change: Change, base: bytes) -> Change:
    """Return a change with the parts of the file that are tests, or control them, restored from
    `base`.
    """
    name = change.path.rpartition("/")[2]
    if change.content is None or change.mode == patch_rules.SYMLINK:
        return change
    if name == "package.json":
        return Change(change.path, change.mode, _package(change.content, base))
    if name.endswith(".rs"):
        return Change(
            change.path,
            change.mode,
            restore_base_tests(
                change.content.decode(errors="replace"), base.decode(errors="replace")
            ).encode(),
        )
    return change


def restore_inline_tests(text: bytes, author: bytes) -> bytes:
    """Return a Rust file with the inline tests of the author's version."""
    return restore_base_tests(
        text.decode(errors="replace"), author.decode(errors="replace")
    ).encode()


def needs_base(path: str) -> bool:
    """Return whether `restore_base_parts` reads the base of a file with this name."""
    return path.endswith(".rs") or path.rpartition("/")[2] == "package.json"


def _package(content: bytes, base: bytes) -> bytes:
    new_package, base_package = (
        _object(content.decode(errors="replace")),
        _object(base.decode(errors="replace")),
    )
    if not new_package:
        return base
    package = {key: value for key, value in new_package.items() if key not in _PACKAGE_KEYS}
    if isinstance(base_imports := base_package.get("imports"), dict):
        # Tests may import by such a name, so it keeps its target.
        imports = package.get("imports")
        package["imports"] = {**(imports if isinstance(imports, dict) else {}), **base_imports}
    return json.dumps(
        {**package, **{key: base_package[key] for key in _PACKAGE_KEYS if key in base_package}},
        indent=2,
    ).encode()


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
