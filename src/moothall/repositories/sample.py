"""A small repository to try Moothall on: its test fails until somebody adds hello_world()."""

from __future__ import annotations

import asyncio
from pathlib import Path

import git

_FILES = {
    "src/utils.py": '''"""Small helpers."""


def add(a, b):
    """Return the sum of two numbers."""
    return a + b
''',
    "tests/test_utils.py": """from src import utils


def test_add():
    assert utils.add(2, 3) == 5


def test_hello_world():
    assert utils.hello_world() == "Hello, World!"
""",
    "pyproject.toml": """[project]
name = "sample"
version = "0.1.0"

[tool.pytest.ini_options]
pythonpath = ["."]
""",
    "README.md": "# Sample\n\nA few helpers, and a test that waits for one more.\n",
    ".gitignore": "__pycache__/\n",
}


async def make_sample_repository(path: Path) -> str:
    """Make it at `path` and return its only commit."""
    return await asyncio.to_thread(_make, path)


def _make(path: Path) -> str:
    for name, text in _FILES.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    repository = git.Repo.init(path, initial_branch="main")
    try:
        author = git.Actor("Moothall", "moothall@localhost")
        repository.index.add(sorted(_FILES))
        return repository.index.commit("A sample to work on", author=author, committer=author).hexsha
    finally:
        repository.close()
