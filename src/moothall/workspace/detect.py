"""Finding out from its files how a repository is set up and tested. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from moothall.errors import RepositoryError
from moothall.workspace.rules import matches

ENV_PYTHON = "/env/bin/python"
GO_CACHE = "go-build"
"""Where set-up leaves what Go compiled, in the environment."""

_PIP = (ENV_PYTHON, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check")
_REQUIREMENTS = ("/requirements*.txt", "/requirements/*.txt", "/*-requirements.txt", "/*_requirements.txt")
_PYTHON_TESTS = ("test_*.py", "*_test.py")
_EXTRAS = ("test", "tests", "testing", "dev")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:[\[(<>=!~;@ ].*)?", re.DOTALL)
_TEXTS = (
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "ruff.toml",
    ".ruff.toml",
    "package.json",
    "package-lock.json",
    "npm-shrinkwrap.json",
    "go.mod",
    "go.sum",
    "Cargo.toml",
    "Cargo.lock",
    "GNUmakefile",
    "makefile",
    "Makefile",
)
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")  # in make's own order

# What can change the result of a Python or JavaScript test without being one.
CONFIGURATION: tuple[str, ...] = (
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "tox.ini",
    "/setup.cfg",
    "/pyproject.toml",
    "sitecustomize.py",
    "usercustomize.py",
    "*.pth",
    "jest.config.*",
    "vitest.config.*",
    ".mocharc.*",
)


@dataclass(frozen=True, slots=True)
class Found:
    """What detection came to; `reads` are the files that setup depends on."""

    setup: tuple[tuple[str, ...], ...] = ()
    checks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    protected: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


def wanted(files: Collection[str]) -> tuple[str, ...]:
    """Return those files whose text detection reads."""
    return tuple(path for path in files if path in _TEXTS or matches(_REQUIREMENTS, path))


def detect(files: Collection[str], texts: Mapping[str, str]) -> Found:
    """Return how the first of Python, Node, Go, Cargo and Make that has tests is set up and checked.

    A Python repository without tests has no check, but an environment in which tests could run.
    """
    python = _python(files, texts)
    others = (_node(texts), _go(files, texts), _cargo(files, texts), _make(texts))
    with_tests = [found for found in (python, *others) if found and "tests" in found.checks]
    return with_tests[0] if with_tests else python or Found()


def _python(files: Collection[str], texts: Mapping[str, str]) -> Found | None:
    if not any(path.endswith(".py") for path in files) and "pyproject.toml" not in texts:
        return None
    project = _toml(texts, "pyproject.toml")
    requirements = sorted(path for path in texts if matches(_REQUIREMENTS, path))
    lint = "ruff" in _table(project, "tool") or "ruff.toml" in texts or ".ruff.toml" in texts
    packages = ["pytest", *(["ruff"] if lint else []), *_dependencies(project)]
    installable = "build-system" in project or "setup.py" in texts
    extras = [extra for extra in _EXTRAS if extra in _table(project, "project", "optional-dependencies")]
    # In place, so that tests import the candidate's code and never a copy of the base's.
    own = ["-e", f".[{','.join(extras)}]" if extras else "."] if installable else []
    words = [*packages, *(word for path in requirements for word in ("-r", path)), *own]
    checks: dict[str, tuple[str, ...]] = {}
    if any(matches(_PYTHON_TESTS, path) for path in files):
        checks["tests"] = ("python", "-m", "pytest")
    if lint:
        checks["lint"] = ("python", "-m", "ruff", "check", ".")
    names = ("pyproject.toml", *(("setup.py", "setup.cfg") if installable else ()))
    return Found(
        setup=((*_PIP, *words),),  # preparation makes the environment that this fills
        checks=checks,
        protected=("ruff.toml", ".ruff.toml") if lint else (),
        reads=(*requirements, *(name for name in names if name in texts)),
    )


def _dependencies(project: Mapping[str, Any]) -> Iterator[str]:
    """Yield the project's own dependencies and those of its test groups, each once."""
    groups = _table(project, "dependency-groups")
    own = _table(project, "project").get("dependencies", [])
    optional = _table(project, "project", "optional-dependencies")
    lists = [own, *(optional.get(extra, []) for extra in _EXTRAS), *(_group(groups, name, ()) for name in _EXTRAS)]
    for requirement in dict.fromkeys(item for items in lists if isinstance(items, list) for item in items):
        if not isinstance(requirement, str) or not _REQUIREMENT.fullmatch(requirement):
            raise RepositoryError(f"pyproject.toml: {str(requirement)[:100]!r} is not a requirement such as 'attrs>=25'")
        yield requirement


def _group(groups: Mapping[str, Any], name: str, above: tuple[str, ...]) -> list[str]:
    items = groups.get(name, [])
    if not isinstance(items, list) or name in above:
        return []
    found: list[str] = []
    for item in items:
        included = item.get("include-group") if isinstance(item, dict) else None
        found += _group(groups, included, (*above, name)) if isinstance(included, str) else [str(item)]
    return found


def _node(texts: Mapping[str, str]) -> Found | None:
    if "package.json" not in texts:
        return None
    try:
        package = json.loads(texts["package.json"])
    except (ValueError, RecursionError) as error:
        raise RepositoryError(f"package.json is not JSON: {error}") from error
    script = _table(package, "scripts").get("test")
    if not isinstance(script, str) or "no test specified" in script:
        return None
    locks = [name for name in ("package-lock.json", "npm-shrinkwrap.json") if name in texts]
    install = ("npm", "ci" if locks else "install", "--no-audit", "--no-fund", "--loglevel=error")
    return Found((install,), {"tests": ("npm", "test")}, ("/package.json",), ("package.json", *locks))


def _go(files: Collection[str], texts: Mapping[str, str]) -> Found | None:
    if "go.mod" not in texts:
        return None
    reads = tuple(name for name in ("go.mod", "go.sum") if name in texts)
    checks = {"tests": ("go", "test", "./...")} if any(path.endswith("_test.go") for path in files) else {}
    # The second runs none of the repository's code, and may fail: that it does not compile is for the checks to say.
    setup = (("go", "mod", "download"), ("sh", "-c", "go test -exec true ./... || true"))
    return Found(setup, checks, (), reads)


def _cargo(files: Collection[str], texts: Mapping[str, str]) -> Found | None:
    if "Cargo.toml" not in texts:
        return None
    reads = tuple(name for name in ("Cargo.toml", "Cargo.lock") if name in texts)
    checks = {"tests": ("cargo", "test")} if any(path.endswith(".rs") for path in files) else {}
    return Found((("cargo", "fetch"),), checks, ("Cargo.toml",), reads)


def _make(texts: Mapping[str, str]) -> Found | None:
    name = next((name for name in _MAKEFILES if name in texts), None)
    if name is None or not re.search(r"^test\s*:(?!=)", texts[name], re.MULTILINE):
        return None
    return Found((), {"tests": ("make", "test")}, tuple(f"/{makefile}" for makefile in _MAKEFILES), ())


def _toml(texts: Mapping[str, str], name: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(texts.get(name, ""))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RepositoryError(f"{name} is not TOML: {error}") from error


def _table(data: Any, *keys: str) -> Mapping[str, Any]:
    """Return a table inside a table; empty where it isn't one."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}
