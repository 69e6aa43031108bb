"""What of a candidate's change takes part in a proof: its code, and nothing that says how tests are
run. Pure.

What a runner, a compiler or an interpreter reads beside the code is as on the base, in whatever
spelling and folder, and removed where it is new; so are test files. Of a package.json, whose other
parts are code's business, only what says how tests run.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from moothall.ranking.syntax.rust_tests import restore_base_tests
from moothall.repositories import patch_rules
from moothall.repositories.objects import Change

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
"""What can change the result of a test without being one."""
_BROUGHT = ("node_modules/**", "vendor/**", "__pycache__/**", "*.pyc", ".env")
"""Never brought by a patch: code of others, and what was compiled."""
_RUNNERS = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "unittest", "node_modules"})
"""Names that a new file or folder at the top may not take: an interpreter would find it in their
place.
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
_DEPTH = 8
_SETTING = (
    r"\b(?:setup\w*|global(?:Setup|Teardown)|(?:testE|e)nvironment|require|import{more})['\"]?\s*[:=]"
    r"(\s*\[[^\]]{{0,2000}}\]|(?:[ \t]*\n[ \t]*-[^\n]{{0,300}}){{1,50}}|[^\n]{{1,300}})"
)
_NAMES, _NAMES_OF_MOCHA = (re.compile(_SETTING.format(more=more)) for more in ("", "|file"))
"""What names further files; `file` does so to mocha alone, and elsewhere is what a build writes."""
_WORD = re.compile(r"[\w@./-]{1,300}")
_ENDINGS = ("", ".js", ".cjs", ".mjs", ".ts", ".mts", ".cts")
_MAKES = (
    "Makefile",
    "makefile",
    "GNUmakefile",
    "*.mk",
    "justfile",
    "Justfile",
    "Taskfile.yml",
    "Taskfile.yaml",
)
NAMING = (
    *_MAKES,
    "jest.config.*",
    "vitest.config.*",
    "vitest.workspace.*",
    "vite.config.*",
    "ava.config.*",
    ".mocharc",
    ".mocharc.*",
)
"""What configures a runner of Node, or holds the commands that run tests, in a file of its own, and
may name further files that steer it.
"""
_SHELL = re.compile(
    r"(?m)(?:^|&&|[|;])[ \t]*+[@+-]*+(?:\w++=\S*+[ "
    r"\t]++)*+(?:(?:(?:ba|z|da)?sh|source|\.|exec|time|env|python[\d.]*+|node|bats|include)[ "
    r"\t]++(?:-\w++[ \t]++)*+)*+"
    r"(?:\$[({]\w++[)}]/|\./)?+([\w./-]++)(?=[ \t;&|)]|$)"
)
"""What the recipe of a makefile runs, and what it includes."""
_SCRIPT = re.compile(
    r"(?:\.(?:sh|bash|zsh|bats|mk|mak|awk|pl|rb)|(?:test|check|spec|verify)[\w.-]*)\Z"
)
"""Of these, a script by its name, which may decide what a test comes to."""
_STEP = re.compile(r"&&|[|][|]|[;|&\n]")
_INVOKES = frozenset({"invoke", "inv"})
_CALLS = re.compile(
    r"\b(?:npm|pnpm|yarn|bun|run-[sp]|npm-run-all\d?|concurrently|wireit|turbo|nx)\b|--run\b"
)
"""What runs other scripts of a package."""
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
_OF_CODE = re.compile(
    r"cover|include|exclude|ignore|^-*all$|moduleNameMapper|roots|paths|directories|extension",
    re.IGNORECASE,
)
"""Options and keys whose values are the code under test, not what tests it."""


def kept_files(
    existed: Collection[str],
    protected: Iterable[str],
    commands: Iterable[Sequence[str]],
    package: str,
    configuration: Mapping[str, str],
) -> frozenset[str]:
    """Return the files of the base that no candidate changes in a proof: tests, what configures
    them, what their commands name.

    `package` is the text of the base's package.json, empty where there is none; `configuration`
    those of files that are `NAMING`.
    """
    patterns = (*protected, *CONFIGURATION)
    commands = tuple(commands)
    named = {path for command in commands for path in _operands(command)} | set(
        _paths_in_package(package)
    )
    if any(posixpath.basename(word) in _INVOKES for command in commands for word in command):
        named.add("tasks.py")  # elsewhere it is code like any other
    named |= {name for path, text in configuration.items() for name in _paths_in_config(path, text)}
    kept = {path for path in existed if patch_rules.matches(patterns, path) or path in named}
    return frozenset(path for path in kept if path.rpartition("/")[2] != "package.json")


def _operands(words: Sequence[str]) -> Iterator[str]:
    """Yield what may be the path of a file that runs or steers tests; a linter is given the code
    itself, as are doctests.
    """
    if any(word.rpartition("/")[2] in _LINTERS or "doctest" in word for word in words):
        return
    before = ""
    for word in words:
        option, _, value = word.rpartition("=")
        if not _OF_CODE.search(option or (before if before.startswith("-") else "")):
            yield value.removeprefix("<rootDir>/").removeprefix("./")
        before = word


def _paths_in_package(text: str) -> Iterator[str]:
    """Yield the paths that the scripts of tests, or what configures a runner, speak of."""
    said = _object(text)
    scripts = said.get("scripts")
    if isinstance(scripts, dict):
        for step in _STEP.split("\n".join(_reached(scripts))):
            yield from _operands(step.replace('"', " ").replace("'", " ").split())
    for name in _SECTIONS:
        yield from _strings(said.get(name))


def _reached(scripts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the scripts that run tests, and those that these name."""
    waiting, seen = [name for name in _SCRIPTS if name in scripts], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            yield str(scripts[name])
            words = {
                word
                for step in _STEP.split(str(scripts[name]))
                if _CALLS.search(step)
                for word in step.split()
            }
            waiting += [
                f"{more}{each}"
                for each in words
                for more in ("pre", "", "post")
                if f"{more}{each}" in scripts
            ]


def _paths_in_config(path: str, text: str) -> Iterator[str]:
    """Yield the paths, with any ending, that a file which configures a runner may load besides the
    tests.
    """
    folder = path.rpartition("/")[0]
    if patch_rules.matches(_MAKES, path):
        scripts = (
            name for name in _SHELL.findall(text) if _SCRIPT.search(posixpath.basename(name))
        )
        yield from (posixpath.normpath(posixpath.join(folder, name)) for name in scripts)
        return
    for match in (_NAMES_OF_MOCHA if ".mocharc" in path else _NAMES).finditer(text):
        for word in _WORD.findall(match[1].replace("<rootDir>", ".")):
            name = posixpath.normpath(posixpath.join(folder, word.lstrip("/")))
            yield from (f"{name}{ending}" for ending in _ENDINGS)


def _strings(value: Any, depth: int = _DEPTH) -> Iterator[str]:
    """Yield the texts of what configures a runner, down to `depth`, but for what names the code
    under test.
    """
    if isinstance(value, str):
        yield from _operands(value.split())
    elif isinstance(value, list | dict) and depth:
        for key, item in (
            value.items() if isinstance(value, dict) else [("", item) for item in value]
        ):
            if not _OF_CODE.search(key):
                yield from _strings(item, depth - 1)


def takes_part(
    path: str, kept: frozenset[str], existed: Collection[str], protected: Iterable[str]
) -> bool:
    """Whether a candidate's change at `path` is there when it is judged. A file in the place of a
    folder would take the tests in it away; a new file may be neither a test nor steer one.
    """
    folders = [path[:at] for at, char in enumerate(path) if char == "/"]
    if (
        path in kept
        or any(folder in kept for folder in folders)
        or any(other.startswith(f"{path}/") for other in kept)
    ):
        return False
    if path in existed:
        return True
    if path.rpartition("/")[2] == "package.json":
        return False
    first = path.partition("/")[0].partition(".")[0]
    shadows = first in _RUNNERS and not any(
        other.partition("/")[0].partition(".")[0] == first for other in existed
    )
    return not shadows and not patch_rules.matches(
        (*CONFIGURATION, *_BROUGHT, *patch_rules.TEST_PATTERNS, *protected), path
    )


def steers(path: str) -> bool:
    """Whether a new file of this name, brought by another seat's tests, could decide what becomes
    of them.
    """
    return (
        patch_rules.matches((*CONFIGURATION, *_BROUGHT), path)
        or path.rpartition("/")[2] == "package.json"
    )


def as_judged(change: Change, base: bytes) -> Change:
    """Return a changed file with those of its parts that are tests, or say how tests run, as they
    were in `base`.
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


def with_inline_tests(text: bytes, author: bytes) -> bytes:
    """Return a Rust file with the tests that stand inside the author's version of it."""
    return restore_base_tests(
        text.decode(errors="replace"), author.decode(errors="replace")
    ).encode()


def wants_base(path: str) -> bool:
    """Whether `as_judged` looks into a file of this name."""
    return path.endswith(".rs") or path.rpartition("/")[2] == "package.json"


def _package(content: bytes, base: bytes) -> bytes:
    now, before = _object(content.decode(errors="replace")), _object(base.decode(errors="replace"))
    if not now:
        return base
    rest = {key: value for key, value in now.items() if key not in _PACKAGE_KEYS}
    if isinstance(
        names := before.get("imports"), dict
    ):  # what tests may ask for by such a name stays where it was
        rest["imports"] = {
            **(rest["imports"] if isinstance(rest.get("imports"), dict) else {}),
            **names,
        }
    return json.dumps(
        {**rest, **{key: before[key] for key in _PACKAGE_KEYS if key in before}}, indent=2
    ).encode()


def _object(text: str) -> Mapping[str, Any]:
    try:
        said = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
