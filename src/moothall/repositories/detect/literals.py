"""Literals in the Python files of a project, such as setup.py and noxfiles. The files are parsed,
never run. Pure.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from moothall.repositories.detect.project import Project, strings, table
from moothall.repositories.detect.requirements import REQUIREMENT


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
