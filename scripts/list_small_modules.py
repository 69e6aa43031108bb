"""List modules under 60 lines that only one other module imports. They are often better merged.

python scripts/list_small_modules.py
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

_SOURCE = Path(__file__).resolve().parent.parent / "src"
_SMALL_LINES = 60


def main() -> None:
    """Print the modules with their only importers."""
    paths = {
        ".".join(path.relative_to(_SOURCE).with_suffix("").parts): path
        for path in sorted(_SOURCE.glob("moothall/**/*.py"))
        if "pb" not in path.relative_to(_SOURCE).parts and path.name != "__init__.py"
    }
    importers: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for imported in imported_modules(path):
            if imported in importers:
                importers[imported].add(name)
    single_use = sorted(name for name, users in importers.items() if len(users) == 1)
    sys.stdout.write(
        f"{len(paths)} modules, {len(single_use)} of them imported by one other module\n"
    )
    for name in single_use:
        lines = len(paths[name].read_text(encoding="utf-8").splitlines())
        if lines < _SMALL_LINES:
            sys.stdout.write(f"  {name} ({lines} lines), by {', '.join(importers[name])}\n")


def imported_modules(path: Path) -> set[str]:
    """Return the names that a module imports, including names that are not modules."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


if __name__ == "__main__":
    main()
