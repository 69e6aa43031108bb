"""The arguments after --continue: a task, or the question."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from moothall.cli import main
from moothall.cli.ask import _LAST_TASK, _read_prompt


@pytest.mark.parametrize(
    ("prompt", "continued_task", "expected"),
    [
        ("What?", None, ("What?", None)),
        ("What?", _LAST_TASK, ("What?", "")),
        ("What?", "task-1", ("What?", "task-1")),
        ("", "And where is it used?", ("And where is it used?", "")),
        ("", "task-1", ("", "task-1")),
        ("", _LAST_TASK, ("", "")),
        ("", None, ("", None)),
    ],
)
def test_a_task_and_a_question_are_distinguished(
    prompt: str, continued_task: str | None, expected: tuple[str, str | None]
) -> None:
    assert _read_prompt(prompt, continued_task) == expected


@pytest.mark.parametrize(
    "args",
    [(), ("--continue",), ("--continue", "task-1"), ("--json",), ("--yes",), ("--task-id", "mine")],
)
def test_a_missing_question_without_a_terminal_is_a_usage_error(args: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, ["ask", *args])
    assert result.exit_code == 2
    assert "there is no question" in result.output
