"""The Python packages that a repository declares as dependencies, in any of its files. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from moothall.errors import RepositoryError
from moothall.repositories.detect.literals import parse
from moothall.repositories.detect.project import Project
from moothall.repositories.patch_rules import matches

_LISTS = (
    "requirements*.txt",
    "requirements*.in",
    "*[-_]requirements.txt",
    "requirements/**",
    "reqs/**",
    "environment*.y*ml",
)
_MOST_FILES, _MOST_NAMES = 40, 2000
_TABLES = re.compile(r"^(?:.*dependenc(?:y|ies)(?:-groups)?|(?:build-)?requires)$")
_INI_KEYS = re.compile(r"^(?:.*requires?|deps)$")
_KEYWORDS = re.compile(r"requires?$")
_CODE_LISTS = re.compile(r"require|depend", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LINE = re.compile(r"\s*(?:-\s+)?(?:[\w{},!.-]+:\s+)?(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)")
_EGG = re.compile(r"[#&]egg=(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)")


def lists_of_packages(files: Collection[str]) -> tuple[str, ...]:
    """Return the files that list packages, other than manifests."""
    return tuple(sorted(path for path in files if matches(_LISTS, path)))[:_MOST_FILES]


def declared_packages(texts: Mapping[str, str], setup: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the normalised names of all packages that files and the commands of `setup` name as
    dependencies.
    """
    found = [name for argv in setup for name in _of_command(argv)]
    for path, text in texts.items():
        project = Project("", frozenset(), {path: text})
        match path.rpartition("/")[2]:
            case "pyproject.toml":
                found += _of_tables(_toml(project, path))
            case "Pipfile":
                data = _toml(project, path)
                found += [*_names(data.get("packages")), *_names(data.get("dev-packages"))]
            case "setup.cfg" | "tox.ini":
                found += _of_sections(project.ini(path))
            case "setup.py" | "noxfile.py":
                found += _of_code(parse(text))
            case _ if matches(_LISTS, path):
                found += _of_lines(text.splitlines())
    return tuple(sorted({re.sub(r"[-_.]+", "-", name).lower() for name in found}))[:_MOST_NAMES]


def _of_command(argv: Sequence[str]) -> Iterator[str]:
    words = argv[argv.index("install") + 1 :] if "install" in argv else ()
    for word in words:
        if found := _NAME.match(word):
            yield found[0]


def _toml(project: Project, path: str) -> Mapping[str, Any]:
    try:
        return project.toml(path)
    except RepositoryError:
        return {}


def _of_tables(data: Mapping[str, Any]) -> Iterator[str]:
    for key, value in data.items():
        if _TABLES.match(key):
            yield from _names(value)
        elif isinstance(value, dict):
            yield from _of_tables(value)


def _names(data: Any) -> Iterator[str]:
    """Yield the packages of a list of requirements, of a table of versions (poetry), or of groups
    of either.
    """
    if isinstance(data, list):
        yield from (
            found[0] for item in data if isinstance(item, str) and (found := _NAME.match(item))
        )
    elif isinstance(data, dict):
        for key, value in data.items():
            group = isinstance(value, list) and not any(
                isinstance(item, dict) and "version" in item for item in value
            )
            yield from _names(value) if group else (key,)


def _of_sections(sections: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for section, options in sections.items():
        for key, value in options.items():
            if _INI_KEYS.match(key) or section.endswith("extras_require"):
                yield from _of_lines(value.splitlines())


def _of_lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        found = _EGG.search(line) or _LINE.match(line)
        if found and not line.lstrip().startswith(("#", "-r", "-c")):
            yield found["name"]


def _of_code(tree: ast.Module) -> Iterator[str]:
    """Yield the packages that setup() requires, that lists of requirements hold and that sessions
    of nox install.
    """
    for node in ast.walk(tree):
        held: list[ast.expr] = []
        if isinstance(node, ast.Call):
            held = [
                given.value for given in node.keywords if given.arg and _KEYWORDS.search(given.arg)
            ]
            if isinstance(node.func, ast.Attribute) and node.func.attr == "install":
                held += node.args
        elif isinstance(node, ast.Assign) and any(
            _CODE_LISTS.search(ast.unparse(target)) for target in node.targets
        ):
            held = [node.value]
        for inner in (inner for value in held for inner in ast.walk(value)):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                yield from _of_lines(inner.value.splitlines())
