"""The packages that tox and nox install for tests, as arguments of pip. The files are parsed, never
run. Pure.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from moothall.repositories.detect.project import Project, join_inside, strings, table
from moothall.repositories.detect.requirements import (
    OTHER_PURPOSE,
    REQUIREMENT,
    RUNS_TESTS,
    TEST_GROUPS,
    constants,
    expand_group,
    literal,
    own_extras,
    parse,
    poetry,
    requirement,
)

_TEST_FACTORS = frozenset({*TEST_GROUPS, "pytest", "py", "python"})
_PYTHON = re.compile(r"py3?(?:1\d|\.1\d)?|3\.1\d")
"""Factors of maintained Python versions."""
_MAX_REFERENCES = 5
_OWN_PYTHON = f"py{sys.version_info.major}{sys.version_info.minor}"
_ANY_PYTHON = re.compile(r"(?:py|pypy|jython|graalpy)\d*(?:\.\d+)?|\d\.\d+")
_UNFIT = tuple(
    re.compile(words)
    for words in (
        OTHER_PURPOSE.pattern.replace(
            r"|min(?:imal)?\b", "|flake|black|isort|ruff|check|package|pypi|clean|manifest"
        ),
        r"^dev|(?:main|master|dev|head|tip|pre|nightly|latest|edge|git|a\d|b\d|rc\d)$",
        r"^(?:postg|psql|pg|mysql|maria|oracle|mssql|redis|mongo)",
        r"(?:min|minimum|minimal|oldest|lowest)$",
    )
)
"""Factors of environments that are used only if there is no other, the worst first: other purposes,
unreleased versions, servers, oldest versions."""


def session_words(
    project: Project, pyproject: Mapping[str, Any]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the packages that tox and nox install for tests, by group."""
    tox = project.ini("tox.ini") or {
        key.removeprefix("tox:"): value
        for key, value in project.ini("setup.cfg").items()
        if key.startswith("tox:")
    }
    legacy = table(pyproject, "tool", "tox").get("legacy_tox_ini")
    if isinstance(legacy, str):
        tox = Project("", frozenset(), {"tox.ini": legacy}).ini("tox.ini")
    keys = ("deps", "extras", "dependency_groups", "commands")
    tox_section = tox.get("tox", {})
    names = [*_names_listed(tox_section.get("envlist", "") or tox_section.get("env_list", ""))]
    envs = {
        section.removeprefix("testenv").lstrip(":"): {
            key: _resolve_references(tox, env.get(key, "")) for key in keys
        }
        for section, env in tox.items()
        if section.partition(":")[0] == "testenv"
    }
    for data in (project.toml("tox.toml"), table(pyproject, "tool", "tox")):
        sections = {
            "": table(data, "env_run_base"),
            **{name: table(env) for name, env in table(data, "env").items()},
        }
        envs |= {
            name: {key: _texts(env.get(key)) for key in keys}
            for name, env in sections.items()
            if env
        }
        names += strings(data.get("env_list"))
    factors = _factors(names)
    test_running = [
        name
        for name, env in envs.items()
        if RUNS_TESTS.search(" ".join(env["commands"])) and not OTHER_PURPOSE.search(name)
    ]
    # The first group that installs something: others may be for the same tests with more packages
    # or other versions.
    for names in ([""], [name for name in envs if _is_for_tests(name)], test_running):
        groups = [
            group
            for name in names
            if name in envs
            for group in _environment(project, pyproject, name, envs[name], factors)
        ]
        if any(words for _, words in groups):
            yield from groups
            break
    yield "nox's tests", _pip_words(project, _nox(project.texts.get("noxfile.py", ""), pyproject))


def _texts(data: object) -> list[str]:
    return [" ".join(strings(item)) or str(item) for item in data] if isinstance(data, list) else []


def _environment(
    project: Project,
    pyproject: Mapping[str, Any],
    name: str,
    env: Mapping[str, list[str]],
    factors: frozenset[str],
) -> Iterator[tuple[str, list[str]]]:
    source = f"tox's {name or 'environments'}"
    yield f"{source}: deps", _pip_words(project, env["deps"], factors)
    yield f"{source}: extras", own_extras(_names(env["extras"], factors))
    standard = table(pyproject, "dependency-groups")
    for group in _names(env["dependency_groups"], factors):
        yield (
            f"group {group}",
            [requirement(item, "pyproject.toml") for item in expand_group(standard, group, ())],
        )


def _names(lines: list[str], factors: frozenset[str]) -> list[str]:
    lines = [_without_condition(line, factors) for line in lines]
    return [name for line in lines for name in re.split(r"[\s,]+", line) if name]


def _names_listed(text: str) -> Iterator[str]:
    """Yield the environments of an envlist, braces expanded."""
    for line in text.split("\n"):
        for part in _split(line.split("#")[0]):
            yield from (name.strip() for pattern in part.split() for name in _expand(pattern))


def _factors(names: Sequence[str]) -> frozenset[str]:
    """Return the factors of the environment that suits this machine best; none if no environment is
    listed for tests.

    Prefer our own Python version, no server, and no unreleased or oldest versions. Of equally good
    environments take the last: newer versions are usually listed after older ones.
    """
    best: tuple[tuple[int, ...], frozenset[str]] = ((), frozenset())
    for name in names:
        factors = frozenset(name.split("-"))
        pythons = {factor for factor in factors if _ANY_PYTHON.fullmatch(factor)}
        if not name or not all(_PYTHON.fullmatch(factor) for factor in pythons):
            continue
        other_factors = factors - pythons
        misfits = [any(pattern.search(factor) for factor in other_factors) for pattern in _UNFIT]
        python = (
            2 if pythons & {_OWN_PYTHON, _OWN_PYTHON.replace("py3", "3.")} else 1 if pythons else 0
        )
        score = (*(not misfit for misfit in misfits), python)
        if score >= best[0]:
            best = (score, factors)
    return best[1] if best[0][:1] == (True,) else frozenset()


def _is_for_tests(name: str) -> bool:
    """Return whether the name of a tox environment says that it is for tests."""
    return any(
        _condition_holds(alternative, frozenset())
        for part in _split(name)
        for alternative in _expand(part)
    )


def _expand(text: str) -> list[str]:
    """Expand braces: 'py{310,311}' gives two names."""
    parts = re.split(r"\{([^{}]*)\}", text)
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(words) for words in product(*choices[:11])]


def _resolve_references(
    tox: Mapping[str, Mapping[str, str]], text: str, depth: int = 0
) -> list[str]:
    """Return the lines of a value with references such as '{[base]deps}' resolved."""
    lines: list[str] = []
    for line in text.split("\n"):
        reference = re.search(r"\{\[([^\]]+)\](\w+)\}", line)
        lines += (
            _resolve_references(tox, tox.get(reference[1], {}).get(reference[2], ""), depth + 1)
            if reference and depth < _MAX_REFERENCES
            else [line]
        )
    return lines


def _pip_words(
    project: Project, lines: list[str], factors: frozenset[str] = frozenset()
) -> list[str]:
    """Return the lines of tox's deps that can be used without running tox, as arguments of pip."""
    words: list[str] = []
    for raw_line in lines:
        line = (
            raw_line.split(" #")[0].strip().replace("{toxinidir}/", "").replace("{tox_root}/", "")
        )
        line = _without_condition(line, factors)
        if not line or "{" in line or line.startswith("#"):
            continue
        option = re.match(r"(-r|-c|-e|--requirement|--constraint)[ =]?\s*(\S+)$", line)
        if option:
            path = join_inside("", option[2].partition("[")[0])
            if option[1] == "-e" or path in project.files:
                words += [option[1], option[2]]
        elif re.match(r"\.(?:\[[\w,. -]+\])?$", line):
            words += ["-e", line.replace(" ", "")]
        elif REQUIREMENT.fullmatch(line):
            words.append(line)
    return words


def _without_condition(line: str, factors: frozenset[str] = frozenset()) -> str:
    """Return a line without its condition; '' if the condition does not apply to tests.

    `factors` are those of the chosen environment, none if none is listed.
    """
    condition = re.match(r"\s*([a-z0-9.,!_{}-]+):\s+(.*)", line)
    if not condition:
        return line
    conditions = [alternative for part in _split(condition[1]) for alternative in _expand(part)]
    return (
        condition[2]
        if any(_condition_holds(alternative, factors) for alternative in conditions)
        else ""
    )


def _split(condition: str) -> list[str]:
    return re.split(r",(?![^{]*\})", condition)


def _condition_holds(condition: str, factors: frozenset[str]) -> bool:
    """Return whether a condition on factors holds in the test environment."""
    has_pinned_python = any(
        _PYTHON.fullmatch(factor) and factor not in {"py", "py3"} for factor in factors
    )

    def applies(factor: str) -> bool:
        if factor in factors or factor in _TEST_FACTORS:
            return True
        return bool(_PYTHON.fullmatch(factor)) and (
            not has_pinned_python or factor in {"py", "py3"}
        )

    return all(
        not applies(factor[1:]) if factor[:1] == "!" else applies(factor)
        for factor in condition.split("-")
    )


def _nox(text: str, pyproject: Mapping[str, Any]) -> list[str]:
    """Return the arguments that the test sessions of a noxfile install, if they are literals. The
    file is parsed, never run.
    """
    tree = parse(text)
    names = constants(tree)
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.args.args
    ]
    test_functions = [function for function in functions if _is_named_for_tests(function)]
    lines: list[str] = []
    for function in test_functions or [
        function
        for function in functions
        if not OTHER_PURPOSE.search(function.name) and RUNS_TESTS.search(ast.unparse(function))
    ]:
        session = function.args.args[0].arg
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[0] == session:
                words = [word for arg in call.args for word in _argument(arg, names)]
                lines += _install_lines(
                    _words_installed(ast.unparse(call.func).rpartition(".")[2], words), pyproject
                )
    return lines


def _is_named_for_tests(function: ast.FunctionDef) -> bool:
    names = [function.name]
    for decorator in function.decorator_list:
        for call in ast.walk(decorator):
            if isinstance(call, ast.Call):
                names += [
                    str(literal(keyword.value, {}))
                    for keyword in call.keywords
                    if keyword.arg == "name"
                ]
    parts = {part for name in names for part in re.split(r"[-_\d.]+", name)}
    return not parts.isdisjoint({*TEST_GROUPS, "pytest"})


def _words_installed(method: str, words: list[str]) -> list[str]:
    """Return the packages that a call of a session's method installs, directly or with uv, Poetry,
    PDM or pip.
    """
    if method == "install":
        return words
    if (
        method not in {"run", "run_install", "run_always"}
        or words[:1] == []
        or words[0] not in {"uv", "poetry", "pdm", "pip", "python"}
    ):
        return []
    index = next(
        (index for index, word in enumerate(words[:4]) if word in {"sync", "install"}), None
    )
    return [] if index is None else words[index + 1 :]


def _argument(arg: ast.expr, names: Mapping[str, Any]) -> list[str]:
    """Return the values of an argument: a literal, a list of them, or the groups that nox reads
    from pyproject.toml.
    """
    if isinstance(arg, ast.Starred):
        if isinstance(arg.value, ast.Call) and ast.unparse(arg.value.func).endswith(
            "dependency_groups"
        ):
            groups = [literal(argument, names) for argument in arg.value.args[1:]]
            return [
                word for group in groups for word in ("--group", group) if isinstance(word, str)
            ]
        return strings(literal(arg.value, names))
    value = literal(arg, names)
    return [value] if isinstance(value, str) else []


def _install_lines(words: Sequence[str], pyproject: Mapping[str, Any]) -> list[str]:
    """Join options with their values, as in the lines of a requirements file. Groups are replaced
    by their content.
    """
    lines, option = list[str](), ""
    parts = [
        part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])
    ]
    for part in parts:
        if part in _OPTIONS_WITH_VALUE:
            option = part
        elif part.startswith("-"):
            option = ""
        else:
            lines += _value(option, part, pyproject)
            option = ""
    return lines


_OPTIONS_WITH_VALUE = frozenset(
    {
        "-r",
        "--requirement",
        "-c",
        "--constraint",
        "-e",
        "--group",
        "--with",
        "--only",
        "--extra",
        "--extras",
        "-E",
        "--python",
        "-p",
        "-i",
        "--index-url",
        "--extra-index-url",
        "-f",
        "--find-links",
    }
)


def _value(option: str, word: str, pyproject: Mapping[str, Any]) -> list[str]:
    """Return the packages that an option and its value install, as lines of requirements."""
    match option:
        case "":
            return [word]
        case "--group" | "--with" | "--only":
            name = word.rpartition(":")[2]  # pip's may name the file before it
            poetry_groups = (
                poetry(table(pyproject, "tool", "poetry", "group", group, "dependencies"))
                for group in word.split(",")
            )
            return [
                *expand_group(table(pyproject, "dependency-groups"), name, ()),
                *(line for lines in poetry_groups for line in lines),
            ]
        case "--extra" | "--extras" | "-E":
            return [f".[{word}]"]
        case "-r" | "--requirement" | "-c" | "--constraint" | "-e":
            return [f"{option} {word}"]
        case _:
            return []
