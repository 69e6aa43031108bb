"""Requirements for pip from PEP 735 groups and from Poetry's constraints. Literals in the Python
files of a project, such as setup.py and noxfiles.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moothall.errors import RepositoryError
from moothall.repositories.detect.project import Project, strings, table

# Requirements for pip from PEP 735 groups and from Poetry's constraints. Pure.


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
# never run. Pure.


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
