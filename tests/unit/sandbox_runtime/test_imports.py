"""The folder is mounted in every sandbox. The import contracts check that it imports none of our
packages, and this test that it needs no other ones.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moothall import sandbox_runtime

HERE = Path(sandbox_runtime.__file__).parent
# Imported where they are used, only in sandboxes that have them.
BOUND = {
    "code_runner.py": {"pydantic_monty"},
    "define.py": {"tree_sitter"},
    "repo_map.py": {"tree_sitter"},
    "syntax.py": {"tree_sitter"},
    "wasm.py": {"wasmtime"},
}


def _imported_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file.name} imports relatively"
            yield node.module or ""


@pytest.mark.parametrize("file", sorted(HERE.glob("*.py")), ids=lambda file: file.name)
def test_each_module_imports_only_the_standard_library_and_its_bundled_dependencies(
    file: Path,
) -> None:
    ours = {name for name in _imported_modules(file) if name.split(".")[0] == "moothall"}
    assert all(name.startswith("moothall.sandbox_runtime") for name in ours)
    packages = {name.split(".")[0] for name in _imported_modules(file)} - {"moothall"}
    assert packages - sys.stdlib_module_names <= BOUND.get(file.name, set())


def test_case_reporters_import_only_their_runner_and_one_another() -> None:
    for file in HERE.glob("plugins/moothall_*.py"):
        assert {
            name.split(".")[0] for name in _imported_modules(file)
        } - sys.stdlib_module_names <= {
            "pytest",
            "_pytest",
            *(path.stem for path in HERE.glob("plugins/moothall_*.py")),
        }
