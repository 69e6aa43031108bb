"""The packages that a Python project declares for its tests, as arguments of pip, grouped by where
they are declared. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from moothall.repositories.detect.project import Project, strings, table
from moothall.repositories.detect.requirements import (
    DEV_GROUPS,
    OTHER_PURPOSE,
    REQUIREMENT,
    RUNS_TESTS,
    TEST_GROUPS,
    expand_group,
    own_extras,
    poetry,
    requirement,
    setup_extras,
    tests_require,
)
from moothall.repositories.detect.tox import session_words
from moothall.repositories.patch_rules import matches
from moothall.sandbox_runtime.plugins.moothall_requirements import NOT_FOR_TESTS

_REQUIREMENT_FILES = (
    *(
        f"/{name}"
        for name in ("requirements.txt", "test-requirements.txt", "test_requirements.txt")
    ),
    "/requirements*.txt",
    "/*-requirements.txt",
    "/*_requirements.txt",
    "/requirements/*.txt",
    "/requirements/*.in",
    "/reqs/*.txt",
    "/*/requirements.txt",
)
_MAX_WORDS = 400


def groups(project: Project, pyproject: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the groups for tests and development: name → arguments of pip. Groups for tests come
    first. The name of a group says where it is declared.
    """
    groups: dict[str, list[str]] = {}
    for names, excludes_tools in ((TEST_GROUPS, False), (DEV_GROUPS, True)):
        for group, words in (*_tables(project, pyproject, names), *_files(project, names)):
            groups.setdefault(
                group,
                [word for word in words if not (excludes_tools and NOT_FOR_TESTS.match(word))],
            )
    for group, words in (*_hatch(project, pyproject), *session_words(project, pyproject)):
        groups.setdefault(group, words)
    for group, words in _tables(
        project, pyproject, _by_default(pyproject) or _with_pytest(pyproject, groups)
    ):
        groups.setdefault(group, [word for word in words if not NOT_FOR_TESTS.match(word)])
    return {group: tuple(words[:_MAX_WORDS]) for group, words in groups.items() if words}


def _by_default(pyproject: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the groups that the project's tool installs by default, except those for other
    purposes.
    """
    tool, standard = table(pyproject, "tool"), table(pyproject, "dependency-groups")
    names = [
        name
        for name, group in table(tool, "poetry", "group").items()
        if not table(group).get("optional")
    ]
    names += table(tool, "pdm", "dev-dependencies")
    default_groups = table(tool, "uv").get("default-groups")
    names += (
        standard
        if default_groups == "all" or (default_groups is None and "pdm" in tool)
        else strings(default_groups)
    )
    return tuple(name for name in names if not OTHER_PURPOSE.search(name))


def _with_pytest(pyproject: Mapping[str, Any], groups: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Return the groups and extras that contain pytest if no group so far does. They are for tests,
    whatever their names.
    """
    if any(word.startswith("pytest") for words in groups.values() for word in words):
        return ()
    standard, optional = (
        table(pyproject, "dependency-groups"),
        table(pyproject, "project", "optional-dependencies"),
    )
    candidates = {
        **{name: strings(words) for name, words in optional.items()},
        **{name: expand_group(standard, name, ()) for name in standard},
    }
    return tuple(
        name
        for name, words in candidates.items()
        if not OTHER_PURPOSE.search(name) and any(word.startswith("pytest") for word in words)
    )


def extras(project: Project, pyproject: Mapping[str, Any]) -> list[str]:
    """Return the project's own extras that tests need."""
    config = project.ini("setup.cfg").get("options.extras_require", {})
    optional = table(pyproject, "project", "optional-dependencies")
    declared = {
        *optional,
        *table(pyproject, "tool", "poetry", "extras"),
        *config,
        *setup_extras(project),
    }
    return [name for name in (*TEST_GROUPS, *DEV_GROUPS) if name in declared]


def runtime(pyproject: Mapping[str, Any], source: str) -> list[str]:
    """Return the dependencies of a project that cannot be installed itself."""
    return _requirements(table(pyproject, "project").get("dependencies"), source) + poetry(
        table(pyproject, "tool", "poetry", "dependencies")
    )


def _requirements(data: object, source: str) -> list[str]:
    return [requirement(item, source) for item in data] if isinstance(data, list) else []


def _tables(
    project: Project, pyproject: Mapping[str, Any], names: tuple[str, ...]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the content of the groups with these names, for each tool that declares groups."""
    source = project.path("pyproject.toml")
    tool = table(pyproject, "tool")
    standard = table(pyproject, "dependency-groups")
    optional = table(pyproject, "project", "optional-dependencies")
    for name in names:
        yield f"extra {name}", _requirements(optional.get(name), source)
        yield (
            f"group {name}",
            [requirement(item, source) for item in expand_group(standard, name, ())],
        )
        yield f"poetry's group {name}", poetry(table(tool, "poetry", "group", name, "dependencies"))
        pdm = strings(table(tool, "pdm", "dev-dependencies").get(name))
        yield f"pdm's group {name}", [item for item in pdm if REQUIREMENT.fullmatch(item)]
    if names is DEV_GROUPS:
        yield "poetry's dev-dependencies", poetry(table(tool, "poetry", "dev-dependencies"))
        yield "uv's dev-dependencies", strings(table(tool, "uv").get("dev-dependencies"))
        yield "Pipfile's dev-packages", poetry(table(project.toml("Pipfile"), "dev-packages"))
    elif names is TEST_GROUPS:
        yield "setup.cfg's tests_require", _pip_lines(project.ini("setup.cfg").get("options", {}))
        yield "setup.py's tests_require", tests_require(project)


def _pip_lines(options: Mapping[str, str]) -> list[str]:
    lines = (
        line.strip() for line in options.get("tests_require", "").replace(";\n", "\n").split("\n")
    )
    return [line for line in lines if REQUIREMENT.fullmatch(line)]


def _files(project: Project, names: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """Yield the requirement files with one of these names in their path. Files for development are
    used only if there are none for tests.
    """
    paths = [
        path
        for path in requirement_files(project)
        if not path.endswith(".in") or f"{path[:-3]}.txt" not in project.files
    ]
    for_tests = [path for path in paths if _is_for(path, TEST_GROUPS)]
    if names is TEST_GROUPS or not for_tests:
        yield from ((path, ["-r", path]) for path in paths if _is_for(path, names))


def _is_for(path: str, names: tuple[str, ...]) -> bool:
    return not set(names).isdisjoint(re.split(r"[/._-]", path.lower()))


def _hatch(project: Project, pyproject: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield Hatch's environments for tests: those with such a name, else those whose scripts run
    tests, else the default one.
    """
    envs = {
        **table(project.toml("hatch.toml"), "envs"),
        **table(pyproject, "tool", "hatch", "envs"),
    }
    names = {word for name in TEST_GROUPS for word in (name, f"hatch-{name}")} & set(envs)
    test_running = [
        name
        for name, env in envs.items()
        if RUNS_TESTS.search(json.dumps(table(env, "scripts"), default=str))
    ]
    for name in (
        sorted(names)
        or [name for name in test_running if not OTHER_PURPOSE.search(name)]
        or ["default"]
    ):
        yield f"hatch's environment {name}", _hatch_words(envs, pyproject, name, ())


def _hatch_words(
    envs: Mapping[str, Any], pyproject: Mapping[str, Any], name: str, parents: tuple[str, ...]
) -> list[str]:
    env = table(envs, name)
    template = env.get("template", "" if env.get("detached") else "default")
    words = (
        _hatch_words(envs, pyproject, template, (*parents, name))
        if template in envs and template not in (*parents, name)
        else []
    )
    words += [*strings(env.get("dependencies")), *strings(env.get("extra-dependencies"))]
    standard = table(pyproject, "dependency-groups")
    words += [
        word
        for group in strings(env.get("dependency-groups"))
        for word in expand_group(standard, group, ())
    ]
    requirements = [
        word
        for word in words
        if REQUIREMENT.fullmatch(word) or word == "-e" or word.startswith(".[")
    ]
    return requirements + own_extras(strings(env.get("features")))


def requirement_files(project: Project) -> list[str]:
    """Return the requirement files at conventional paths."""
    return sorted(path for path in project.files if matches(_REQUIREMENT_FILES, path))


def plugins(text: str) -> list[str]:
    """Return the plugins that pytest's configuration presupposes; pytest would not start without
    them.
    """
    return [plugin for pattern, plugin in _PLUGINS if re.search(pattern, text, re.MULTILINE)]


_PLUGINS = (
    (r"--cov\b|--cov-|--no-cov", "pytest-cov"),
    (r"(?:^|[\s\"'=])-n[ =]?(?:auto|logical|\d+)|--dist\b|--numprocesses", "pytest-xdist"),
    (r"--timeout\b|^timeout\s*=", "pytest-timeout"),
    (r"asyncio_mode|asyncio_default", "pytest-asyncio"),
    (r"--benchmark-", "pytest-benchmark"),
    (r"DJANGO_SETTINGS_MODULE|--ds[ =]", "pytest-django"),
    (r"--reruns", "pytest-rerunfailures"),
    (r"--randomly|randomly_seed", "pytest-randomly"),
    (r"--doctest-plus|--doctest-rst|doctest_plus", "pytest-doctestplus"),
    (r"--xdoctest\b|--xdoc\b", "xdoctest"),
    (r"--mypy\b", "pytest-mypy"),
    (r"--flake8\b", "pytest-flake8"),
    (r"--isort\b", "pytest-isort"),
    (r"--pylint\b", "pytest-pylint"),
    (r"--black\b", "pytest-black"),
    (r"--ruff\b", "pytest-ruff"),
    (r"--html\b", "pytest-html"),
    (r"--nbval", "nbval"),
    (r"--hypothesis-", "hypothesis"),
)
