"""The requirements that a Python project declares for its tests, as arguments of pip, grouped by
where they are declared. Pure.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from moothall.errors import RepositoryError
from moothall.repositories.detect.project import Project, strings, table
from moothall.repositories.patch_rules import matches
from moothall.sandbox_runtime.plugins.moothall_requirements import NOT_FOR_TESTS

# Requirements for pip from PEP 735 groups and from Poetry's constraints.


TEST_GROUPS = ("test", "tests", "testing", "unittest", "unit", "ci")
DEV_GROUPS = ("dev", "develop", "development", "all")
OTHER_PURPOSE = re.compile(
    r"doc|lint|typ(?:e|ing)|mypy|style|format|release|publish|deploy|build|bench|profil|notebook|example|commit|cov|security|audit|min(?:imal)?\b",
    re.IGNORECASE,
)
"""Matches names of groups, sessions and environments that are not for tests."""
RUNS_TESTS = re.compile(r"\b(?:pytest|unittest)\b")
REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:[\[(<>=!~;@ ].*)?", re.DOTALL)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def requirement(item: object, source: str) -> str:
    """Return a valid requirement. Raises `RepositoryError`."""
    if not isinstance(item, str) or not REQUIREMENT.fullmatch(item):
        raise RepositoryError(
            f"{source}: {str(item)[:100]!r} is not a requirement such as 'attrs>=25'"
        )
    return item


def expand_group(standard: Mapping[str, Any], name: str, parents: tuple[str, ...]) -> list[str]:
    """Return the content of a PEP 735 group with included groups. Names are normalised."""
    groups = {re.sub(r"[-_.]+", "-", key).lower(): items for key, items in standard.items()}
    items = groups.get(re.sub(r"[-_.]+", "-", name).lower(), [])
    if not isinstance(items, list) or name in parents:
        return []
    requirements: list[str] = []
    for item in items:
        included = item.get("include-group") if isinstance(item, dict) else None
        requirements += (
            expand_group(standard, included, (*parents, name))
            if isinstance(included, str)
            else [str(item)]
        )
    return requirements


def own_extras(names: Sequence[str]) -> list[str]:
    """Return the arguments that install a project with these extras of its own."""
    valid = [name for name in names if NAME.fullmatch(name)]
    return ["-e", f".[{','.join(valid)}]"] if valid else []


def poetry(dependencies: Mapping[str, Any]) -> list[str]:
    """Translate Poetry's dependencies to requirements. Invalid ones are left out."""
    requirements = []
    for name, specs in dependencies.items():
        if name == "python" or not NAME.fullmatch(name):
            continue
        for constraint in specs if isinstance(specs, list) else [specs]:
            spec = {"version": constraint} if isinstance(constraint, str) else table(constraint)
            if spec.get("optional"):
                continue
            if isinstance(spec.get("path"), str):
                requirements += ["-e", f"./{spec['path']}"]
                continue
            named = (
                f"{name}[{','.join(strings(spec.get('extras')))}]" if spec.get("extras") else name
            )
            if isinstance(spec.get("git"), str):
                ref = next(
                    (f"@{spec[key]}" for key in ("rev", "tag", "branch") if spec.get(key)), ""
                )
                requirements.append(f"{named} @ git+{spec['git']}{ref}")
                continue
            markers = [f"({spec['markers']})"] if spec.get("markers") else []
            python = versions(spec["python"]) if isinstance(spec.get("python"), str) else ""
            markers += [
                f"python_full_version {_operator(part)}" for part in python.split(",") if part
            ]
            requirements.append(
                f"{named}{versions(str(spec.get('version', '*')))}"
                + (f" ; {' and '.join(markers)}" if markers else "")
            )
    return [
        item
        for item in requirements
        if item == "-e" or item.startswith("./") or REQUIREMENT.fullmatch(item)
    ]


def _operator(part: str) -> str:
    match = re.match(r"([<>=!~]+)\s*(.+)", part)
    return f"{match[1]} '{match[2]}'" if match else f"== '{part}'"


def versions(text: str) -> str:
    """Translate Poetry's version constraint to a PEP 440 specifier ('^1.2' is '>=1.2,<2.0'). Of
    alternatives, take the last one.
    """
    parts = [
        part.strip()
        for part in re.split(r"\|\|?", text)[-1].replace(" ", ",").split(",")
        if part.strip()
    ]
    specifiers = []
    for part in parts:
        numbers = [int(number) for number in re.findall(r"\d+", part.partition("-")[0])[:3]]
        if part.startswith("^") and numbers:
            index = next(
                (index for index, number in enumerate(numbers) if number), len(numbers) - 1
            )
            specifiers.append(
                f">={part[1:]},<{'.'.join(map(str, [*numbers[:index], numbers[index] + 1]))}"
            )
        elif part.startswith("~") and not part.startswith("~=") and numbers:
            upper = [numbers[0] + 1] if len(numbers) == 1 else [numbers[0], numbers[1] + 1]
            specifiers.append(f">={part[1:]},<{'.'.join(map(str, upper))}")
        elif part[0].isdigit():
            specifiers.append(f"=={part}")
        elif part != "*":
            specifiers.append(part)
    return ",".join(specifiers)


# Literals in the Python files of a project, such as setup.py and noxfiles. The files are parsed,
# never run.


def parse(text: str) -> ast.Module:
    """Return the syntax tree of a file, an empty one if it is invalid."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def constants(tree: ast.Module) -> dict[str, Any]:
    """Return the names that a module assigns literals at its top level, with their values."""
    values: dict[str, Any] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            value = literal(statement.value, values)
            values.update(
                {
                    target.id: value
                    for target in targets
                    if isinstance(target, ast.Name) and value is not None
                }
            )
    return values


def literal(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of a literal, of a name in `names`, or of a sum of such lists; None for
    anything else.
    """
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*strings(literal(node.left, names)), *strings(literal(node.right, names))]
    if isinstance(node, ast.Dict):
        keys = [literal(key, names) if key else None for key in node.keys]
        return {
            key: literal(value, names)
            for key, value in zip(keys, node.values, strict=True)
            if isinstance(key, str)
        }
    if isinstance(node, ast.List | ast.Tuple):
        items = (item.value if isinstance(item, ast.Starred) else item for item in node.elts)
        values = (literal(item, names) for item in items)
        return [
            element
            for value in values
            for element in (strings(value) if isinstance(value, list) else [value])
        ]
    return node.value if isinstance(node, ast.Constant) else None


def _setup(project: Project, name: str) -> Iterator[Any]:
    tree = parse(project.texts.get("setup.py", ""))
    names = constants(tree)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("setup"):
            for argument in call.keywords:
                if argument.arg == name:
                    yield literal(argument.value, names)


def tests_require(project: Project) -> list[str]:
    """Return the test requirements of setup()."""
    value = next(_setup(project, "tests_require"), None)
    return [requirement for requirement in strings(value) if REQUIREMENT.fullmatch(requirement)]


def setup_keyword(project: Project, keyword: str) -> str:
    """Return the string value of an argument of setup(), or ''."""
    value = next(_setup(project, keyword), None)
    return value if isinstance(value, str) else ""


def setup_requirements(project: Project) -> list[str]:
    """Return the install requirements of setup.py and setup.cfg."""
    config = project.ini("setup.cfg").get("options", {}).get("install_requires", "")
    requirements = [*strings(next(_setup(project, "install_requires"), None)), *config.split("\n")]
    return [
        requirement
        for requirement in (line.strip() for line in requirements)
        if REQUIREMENT.fullmatch(requirement)
    ]


def setup_extras(project: Project) -> Mapping[str, Any]:
    """Return the extras of setup()."""
    return table(next(_setup(project, "extras_require"), None))


# Groups of requirements, and the plugins that pytest needs.


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


def groups(
    project: Project, pyproject: Mapping[str, Any], sessions: Iterable[tuple[str, list[str]]]
) -> dict[str, tuple[str, ...]]:
    """Return the groups for tests and development: name → arguments of pip. Groups for tests come
    first. The name of a group says where it is declared.

    sessions: the groups of tox and nox.
    """
    groups: dict[str, list[str]] = {}
    for names, excludes_tools in ((TEST_GROUPS, False), (DEV_GROUPS, True)):
        for group, words in (*_tables(project, pyproject, names), *_files(project, names)):
            groups.setdefault(
                group,
                [word for word in words if not (excludes_tools and NOT_FOR_TESTS.match(word))],
            )
    for group, words in (*_hatch(project, pyproject), *sessions):
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


def runtime(pyproject: Mapping[str, Any], where: str) -> list[str]:
    """Return the dependencies of a project that cannot be installed itself."""
    return _requirements(table(pyproject, "project").get("dependencies"), where) + poetry(
        table(pyproject, "tool", "poetry", "dependencies")
    )


def _requirements(data: object, where: str) -> list[str]:
    return [requirement(item, where) for item in data] if isinstance(data, list) else []


def _tables(
    project: Project, pyproject: Mapping[str, Any], names: tuple[str, ...]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the content of the groups with these names, for each tool that declares groups."""
    where = project.path("pyproject.toml")
    tool = table(pyproject, "tool")
    standard = table(pyproject, "dependency-groups")
    optional = table(pyproject, "project", "optional-dependencies")
    for name in names:
        yield f"extra {name}", _requirements(optional.get(name), where)
        yield (
            f"group {name}",
            [requirement(item, where) for item in expand_group(standard, name, ())],
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
    kept = [
        word
        for word in words
        if REQUIREMENT.fullmatch(word) or word == "-e" or word.startswith(".[")
    ]
    return kept + own_extras(strings(env.get("features")))


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
