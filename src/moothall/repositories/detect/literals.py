"""What a project's Python files say in literals: setup.py, and what a noxfile names. They are read,
never run. Pure.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from moothall.repositories.detect.project import Project, strings, table
from moothall.repositories.detect.requirements import REQUIREMENT


def parse(text: str) -> ast.Module:
    """Return the tree of a file, an empty one where it cannot be read."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def constants(tree: ast.Module) -> dict[str, Any]:
    """Return the values of the names that a module gives a literal at its top."""
    found: dict[str, Any] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            value = literal(statement.value, found)
            found.update(
                {
                    target.id: value
                    for target in targets
                    if isinstance(target, ast.Name) and value is not None
                }
            )
    return found


def literal(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return what an expression says where it is a literal, a name of `names` or a sum of such
    lists; None where it is not.
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
        inner = (item.value if isinstance(item, ast.Starred) else item for item in node.elts)
        values = (literal(item, names) for item in inner)
        return [
            word
            for value in values
            for word in (strings(value) if isinstance(value, list) else [value])
        ]
    return node.value if isinstance(node, ast.Constant) else None


def _setup(project: Project, keyword: str) -> Iterator[Any]:
    tree = parse(project.texts.get("setup.py", ""))
    names = constants(tree)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("setup"):
            yield from (
                literal(given.value, names) for given in call.keywords if given.arg == keyword
            )


def tests_require(project: Project) -> list[str]:
    """Return the requirements that setup() names for tests."""
    said = next(_setup(project, "tests_require"), None)
    return [word for word in strings(said) if REQUIREMENT.fullmatch(word)]


def setup_keyword(project: Project, keyword: str) -> str:
    """Return the string of a keyword of setup(), '' where there is none."""
    said = next(_setup(project, keyword), None)
    return said if isinstance(said, str) else ""


def setup_requirements(project: Project) -> list[str]:
    """Return the install requirements of setup.py and setup.cfg."""
    config = project.ini("setup.cfg").get("options", {}).get("install_requires", "")
    named = [*strings(next(_setup(project, "install_requires"), None)), *config.split("\n")]
    return [word for word in (one.strip() for one in named) if REQUIREMENT.fullmatch(word)]


def setup_extras(project: Project) -> Mapping[str, Any]:
    """Return the extras of setup()."""
    return table(next(_setup(project, "extras_require"), None))
