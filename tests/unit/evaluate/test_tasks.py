"""Files of an evaluation: tasks, and lines that survive a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from moothall.errors import InvalidRequest
from moothall.evaluate.tasks import Lines, Task, read_tasks, write_task

TASK = Task(
    "shop-1",
    "/repo",
    "a" * 40,
    "b" * 40,
    "Fix it",
    {"tests": ("t::x",)},
    "diff",
    fix="fix",
    commands={"setup": [["make"]]},
)


def test_a_task_is_read_back_as_written(tmp_path: Path) -> None:
    write_task(tmp_path, TASK)
    assert read_tasks(tmp_path) == [TASK]


@pytest.mark.parametrize("text", ["{", "[]", '{"id": "../x"}', "[" * 100_000])
def test_an_invalid_task_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tasks" / "broken.json"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"broken\.json"):
        read_tasks(tmp_path)


def test_an_incomplete_last_line_is_dropped_on_writing_and_kept_on_reading(
    tmp_path: Path,
) -> None:
    path = tmp_path / "results.jsonl"
    lines = Lines(path)
    lines.add({"task": "a"})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"task": "b')
    content_before = path.read_bytes()
    lines = Lines(path)
    assert ([row["task"] for row in lines.rows], path.read_bytes()) == (["a"], content_before)
    lines.add({"task": "c"})
    assert [row["task"] for row in Lines(path).rows] == ["a", "c"]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"task": "a"}\n{"ta\n', encoding="utf-8")
    with pytest.raises(InvalidRequest, match="line 2"):
        Lines(path)
