"""What tox and nox install for tests, as words for pip: read, never run. Pure."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from moothall.repositories.detect.literals import constants, literal, parse
from moothall.repositories.detect.project import Project, join_inside, strings, table
from moothall.repositories.detect.requirements import (
    OTHER_PURPOSE,
    REQUIREMENT,
    RUNS_TESTS,
    TEST_GROUPS,
    expand_group,
    own_extras,
    poetry,
    requirement,
)

_TESTS = frozenset({*TEST_GROUPS, "pytest", "py", "python"})
_PYTHON = re.compile(r"py3?(?:1\d|\.1\d)?|3\.1\d")
"""Factors of the Pythons that are maintained."""
_DEEPEST = 5
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
    """Yield what tox and nox install for tests."""
    tox = project.ini("tox.ini") or {
        key.removeprefix("tox:"): value
        for key, value in project.ini("setup.cfg").items()
        if key.startswith("tox:")
    }
    legacy = table(pyproject, "tool", "tox").get("legacy_tox_ini")
    if isinstance(legacy, str):
        tox = Project("", frozenset(), {"tox.ini": legacy}).ini("tox.ini")
    keys = ("deps", "extras", "dependency_groups", "commands")
    listed = tox.get("tox", {})
    names = [*_names_listed(listed.get("envlist", "") or listed.get("env_list", ""))]
    envs = {
        section.removeprefix("testenv").lstrip(":"): {
            key: _resolve(tox, env.get(key, "")) for key in keys
        }
        for section, env in tox.items()
        if section.partition(":")[0] == "testenv"
    }
    for data in (project.toml("tox.toml"), table(pyproject, "tool", "tox")):
        said = {
            "": table(data, "env_run_base"),
            **{name: table(env) for name, env in table(data, "env").items()},
        }
        envs |= {
            name: {key: _texts(env.get(key)) for key in keys} for name, env in said.items() if env
        }
        names += strings(data.get("env_list"))
    factors = _factors(names)
    running = [
        name
        for name, env in envs.items()
        if RUNS_TESTS.search(" ".join(env["commands"])) and not OTHER_PURPOSE.search(name)
    ]
    # The first that install something: others may be of the same tests with more, or with another
    # version of something.
    for names in ([""], [name for name in envs if _is_for_tests(name)], running):
        found = [
            part
            for name in names
            if name in envs
            for part in _environment(project, pyproject, name, envs[name], factors)
        ]
        if any(words for _, words in found):
            yield from found
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
    where = f"tox's {name or 'environments'}"
    yield f"{where}: deps", _pip_words(project, env["deps"], factors)
    yield f"{where}: extras", own_extras(_names(env["extras"], factors))
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
            yield from (name.strip() for whole in part.split() for name in _expand(whole))


def _factors(names: Sequence[str]) -> frozenset[str]:
    """Return the factors of the environment that suits this machine best; none if no environment is
    listed for tests.

    It is preferably for our own Python, without a server and without unreleased or oldest versions.
    Of equally good ones it is the last: newer versions are usually listed after older ones.
    """
    best: tuple[tuple[int, ...], frozenset[str]] = ((), frozenset())
    for name in names:
        factors = frozenset(name.split("-"))
        pythons = {factor for factor in factors if _ANY_PYTHON.fullmatch(factor)}
        if not name or not all(_PYTHON.fullmatch(factor) for factor in pythons):
            continue
        rest = factors - pythons
        unfit = [any(pattern.search(factor) for factor in rest) for pattern in _UNFIT]
        python = (
            2 if pythons & {_OWN_PYTHON, _OWN_PYTHON.replace("py3", "3.")} else 1 if pythons else 0
        )
        score = (*(not one for one in unfit), python)
        if score >= best[0]:
            best = (score, factors)
    return best[1] if best[0][:1] == (True,) else frozenset()


def _is_for_tests(name: str) -> bool:
    """Whether an environment of tox is for tests, by its name."""
    return any(_holds(whole, frozenset()) for part in _split(name) for whole in _expand(part))


def _expand(text: str) -> list[str]:
    """Return the names that braces stand for: 'py{310,311}' is two."""
    parts = re.split(r"\{([^{}]*)\}", text)
    choices = [part.split(",") if at % 2 else [part] for at, part in enumerate(parts)]
    return ["".join(words) for words in product(*choices[:11])]


def _resolve(tox: Mapping[str, Mapping[str, str]], text: str, deep: int = 0) -> list[str]:
    """Return the lines of a value with those that it refers to: '{[base]deps}'."""
    found: list[str] = []
    for line in text.split("\n"):
        other = re.search(r"\{\[([^\]]+)\](\w+)\}", line)
        found += (
            _resolve(tox, tox.get(other[1], {}).get(other[2], ""), deep + 1)
            if other and deep < _DEEPEST
            else [line]
        )
    return found


def _pip_words(
    project: Project, lines: list[str], factors: frozenset[str] = frozenset()
) -> list[str]:
    """Return the lines of tox's deps that can be read without running it, as words for pip."""
    found: list[str] = []
    for raw in lines:
        line = raw.split(" #")[0].strip().replace("{toxinidir}/", "").replace("{tox_root}/", "")
        line = _without_condition(line, factors)
        if not line or "{" in line or line.startswith("#"):
            continue
        option = re.match(r"(-r|-c|-e|--requirement|--constraint)[ =]?\s*(\S+)$", line)
        if option:
            path = join_inside("", option[2].partition("[")[0])
            if option[1] == "-e" or path in project.files:
                found += [option[1], option[2]]
        elif re.match(r"\.(?:\[[\w,. -]+\])?$", line):
            found += ["-e", line.replace(" ", "")]
        elif REQUIREMENT.fullmatch(line):
            found.append(line)
    return found


def _without_condition(line: str, factors: frozenset[str] = frozenset()) -> str:
    """Return a line without the factors that it is for; '' where tests are for none of them.

    `factors` are those of the chosen environment, none if none is listed.
    """
    condition = re.match(r"\s*([a-z0-9.,!_{}-]+):\s+(.*)", line)
    if not condition:
        return line
    wholes = [whole for part in _split(condition[1]) for whole in _expand(part)]
    return condition[2] if any(_holds(whole, factors) for whole in wholes) else ""


def _split(condition: str) -> list[str]:
    return re.split(r",(?![^{]*\})", condition)


def _holds(condition: str, factors: frozenset[str]) -> bool:
    """Whether a condition of factors holds where tests are run."""
    pinned = any(_PYTHON.fullmatch(factor) and factor not in {"py", "py3"} for factor in factors)

    def given(factor: str) -> bool:
        if factor in factors or factor in _TESTS:
            return True
        return bool(_PYTHON.fullmatch(factor)) and (not pinned or factor in {"py", "py3"})

    return all(
        not given(factor[1:]) if factor[:1] == "!" else given(factor)
        for factor in condition.split("-")
    )


def _nox(text: str, pyproject: Mapping[str, Any]) -> list[str]:
    """Return the words that the test sessions of a noxfile install, as far as they are literals. It
    is read, never run.
    """
    tree = parse(text)
    names = constants(tree)
    functions = [
        one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.args.args
    ]
    named = [one for one in functions if _is_named_for_tests(one)]
    found: list[str] = []
    for function in named or [
        one
        for one in functions
        if not OTHER_PURPOSE.search(one.name) and RUNS_TESTS.search(ast.unparse(one))
    ]:
        session = function.args.args[0].arg
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[0] == session:
                words = [word for arg in call.args for word in _argument(arg, names)]
                found += _install_lines(
                    _words_installed(ast.unparse(call.func).rpartition(".")[2], words), pyproject
                )
    return found


def _is_named_for_tests(function: ast.FunctionDef) -> bool:
    calls = [
        call
        for one in function.decorator_list
        for call in ast.walk(one)
        if isinstance(call, ast.Call)
    ]
    names = [
        str(literal(given.value, {}))
        for call in calls
        for given in call.keywords
        if given.arg == "name"
    ]
    return not {
        part for name in (function.name, *names) for part in re.split(r"[-_\d.]+", name)
    }.isdisjoint({*TEST_GROUPS, "pytest"})


def _words_installed(method: str, words: list[str]) -> list[str]:
    """Return what a session installs by a call of one of its methods: itself, or by uv, poetry, pdm
    or pip.
    """
    if method == "install":
        return words
    if (
        method not in {"run", "run_install", "run_always"}
        or words[:1] == []
        or words[0] not in {"uv", "poetry", "pdm", "pip", "python"}
    ):
        return []
    at = next((at for at, word in enumerate(words[:4]) if word in {"sync", "install"}), None)
    return [] if at is None else words[at + 1 :]


def _argument(arg: ast.expr, names: Mapping[str, Any]) -> list[str]:
    """Return the words of an argument: a literal, a list of them, or the groups that nox reads from
    pyproject.toml.
    """
    if isinstance(arg, ast.Starred):
        if isinstance(arg.value, ast.Call) and ast.unparse(arg.value.func).endswith(
            "dependency_groups"
        ):
            groups = [literal(one, names) for one in arg.value.args[1:]]
            return [
                word for group in groups for word in ("--group", group) if isinstance(word, str)
            ]
        return strings(literal(arg.value, names))
    said = literal(arg, names)
    return [said] if isinstance(said, str) else []


def _install_lines(words: Sequence[str], pyproject: Mapping[str, Any]) -> list[str]:
    """Join options with their values, as a line of requirements has them; groups become what they
    hold.
    """
    lines, waiting = list[str](), ""
    for word in (
        part
        for whole in words
        for part in (whole.split("=", 1) if whole.startswith("--") else [whole])
    ):
        if word in _WITH_VALUE:
            waiting = word
        elif word.startswith("-"):
            waiting = ""
        else:
            lines += _value(waiting, word, pyproject)
            waiting = ""
    return lines


_WITH_VALUE = frozenset(
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
    """Return what an option and its value install, as lines of requirements."""
    match option:
        case "":
            return [word]
        case "--group" | "--with" | "--only":
            name = word.rpartition(":")[2]  # pip's may name the file before it
            of_poetry = (
                poetry(table(pyproject, "tool", "poetry", "group", one, "dependencies"))
                for one in word.split(",")
            )
            return [
                *expand_group(table(pyproject, "dependency-groups"), name, ()),
                *(line for lines in of_poetry for line in lines),
            ]
        case "--extra" | "--extras" | "-E":
            return [f".[{word}]"]
        case "-r" | "--requirement" | "-c" | "--constraint" | "-e":
            return [f"{option} {word}"]
        case _:
            return []
