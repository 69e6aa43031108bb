"""Small repositories of our own: a sample whose test fails until hello_world() is added, and an
empty one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

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
    """Create the sample at `path` and return its only commit."""
    return await asyncio.to_thread(_make, path, _FILES, "A sample to work on")


async def make_blank_repository(path: Path) -> str:
    """Create an empty repository at `path` and return its only commit."""
    return await asyncio.to_thread(_make, path, {}, "Nothing yet")


def _make(path: Path, files: Mapping[str, str], message: str) -> str:
    import git  # in the thread that uses it: most processes do not

    for name, text in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    repository = git.Repo.init(path, initial_branch="main")
    try:
        author = git.Actor("Moothall", "moothall@localhost")
        repository.index.add(sorted(files))
        return repository.index.commit(message, author=author, committer=author).hexsha
    finally:
        repository.close()
