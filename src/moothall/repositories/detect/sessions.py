"""What tox, nox and setup.py install for tests, as words for pip: read, never run. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from moothall.repositories.detect.project import Project, join_inside, strings, table
from moothall.repositories.detect.requirements import NAME, REQUIREMENT, TEST_GROUPS, expand_group, requirement


def session_words(project: Project, pyproject: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield what tox and nox install for tests."""
    tox = project.ini("tox.ini") or {
        key.removeprefix("tox:"): value for key, value in project.ini("setup.cfg").items() if key.startswith("tox:")
    }
    legacy = table(pyproject, "tool", "tox").get("legacy_tox_ini")
    if isinstance(legacy, str):
        tox = Project("", frozenset(), {"tox.ini": legacy}).ini("tox.ini")
    env = tox.get("testenv", {})
    yield "tox's deps", _pip_words(project, env.get("deps", "").split("\n"))
    yield "tox's extras", _own_extras(re.split(r"[\s,]+", env.get("extras", "")))
    for data in (project.toml("tox.toml"), table(pyproject, "tool", "tox")):
        run = table(data, "env_run_base")
        yield "tox's deps", _pip_words(project, strings(run.get("deps")))
        yield "tox's extras", _own_extras(strings(run.get("extras")))
        standard = table(pyproject, "dependency-groups")
        for name in strings(run.get("dependency_groups")):
            yield f"group {name}", [requirement(item, "pyproject.toml") for item in expand_group(standard, name, ())]
    yield "nox's tests", _pip_words(project, _nox(project.texts.get("noxfile.py", "")))


def _own_extras(names: list[str]) -> list[str]:
    kept = [name for name in names if NAME.fullmatch(name)]
    return ["-e", f".[{','.join(kept)}]"] if kept else []


def _pip_words(project: Project, lines: list[str]) -> list[str]:
    """Return the lines of tox's deps that can be read without running it, as words for pip."""
    found: list[str] = []
    for raw in lines:
        line = raw.split(" #")[0].strip().replace("{toxinidir}/", "").replace("{tox_root}/", "")
        factor = re.match(r"([a-z0-9,!_{}-]+):\s+(.*)", line)
        if factor:
            line = factor[2] if set(factor[1].split(",")) & {*TEST_GROUPS, "pytest"} else ""
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


def _nox(text: str) -> list[str]:
    """Return the literal words that the test sessions of a noxfile install. It is read, never run."""
    found: list[str] = []
    for function in ast.walk(_parse(text)):
        if isinstance(function, ast.FunctionDef) and set(re.split(r"[_\d]+", function.name)) & {*TEST_GROUPS, "pytest"}:
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("session.install"):
                    found += _install_lines([arg.value for arg in call.args if isinstance(arg, ast.Constant)])
    return found


def _install_lines(words: list[Any]) -> list[str]:
    """Join options with their values, as a line of requirements has them."""
    lines, waiting = [], ""
    for word in words:
        if not isinstance(word, str):
            continue
        if word in {"-r", "-c", "-e"}:
            waiting = f"{word} "
        elif word.startswith("-"):
            waiting = ""
        else:
            lines.append(waiting + word)
            waiting = ""
    return lines


def setup_list(project: Project, keyword: str) -> list[str]:
    """Return the literal strings of a keyword of setup()."""
    for call in ast.walk(_parse(project.texts.get("setup.py", ""))):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("setup"):
            for given in call.keywords:
                if given.arg == keyword and isinstance(given.value, ast.List | ast.Tuple):
                    words = [one.value for one in given.value.elts if isinstance(one, ast.Constant)]
                    return [word for word in words if isinstance(word, str) and REQUIREMENT.fullmatch(word)]
    return []


def setup_keyword(project: Project, keyword: str) -> str:
    """Return the literal string of a keyword of setup(), '' where there is none."""
    for call in ast.walk(_parse(project.texts.get("setup.py", ""))):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("setup"):
            for given in call.keywords:
                if given.arg == keyword and isinstance(given.value, ast.Constant) and isinstance(given.value.value, str):
                    return given.value.value
    return ""


def _parse(text: str) -> ast.AST:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
