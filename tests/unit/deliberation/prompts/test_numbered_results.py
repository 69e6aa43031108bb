"""The text about a tool call that a seat receives."""

from __future__ import annotations

import pytest

from moothall.deliberation.prompts.tool_results import numbered_result_text
from moothall.domain.tool import ToolResult, ToolStatus


def test_a_stopped_call_shows_the_reason_and_its_output() -> None:
    output = {"exit_code": -2, "output": "begun\nTraceback\n"}
    stopped = ToolResult(
        "r", "code.shell", ToolStatus.TIMEOUT, output, error="the command was stopped after 120 s"
    )
    text = numbered_result_text(1, stopped, 1000)
    assert text.startswith("1. code.shell: timeout\n")
    assert [text.count(part) for part in ("stopped after 120 s", "begun\nTraceback\n")] == [1, 1]


@pytest.mark.parametrize(
    ("status", "error", "output"),
    [
        (ToolStatus.INVALID, "there is no tool 'x'", {}),
        (ToolStatus.SUCCESS, "", {"output": "a\nb"}),
    ],
)
def test_a_call_shows_its_error_or_its_output(
    status: ToolStatus, error: str, output: dict[str, str]
) -> None:
    text = numbered_result_text(2, ToolResult("r", "t", status, output, error=error), 1000)
    assert (error or output["output"]) in text
