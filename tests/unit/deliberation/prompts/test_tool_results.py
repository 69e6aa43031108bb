"""The text that a seat with native tools receives at submit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moothall.deliberation.local_checks import WorkspaceState
from moothall.deliberation.prompts.tool_results import is_clean, result_text, submission_text
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Base, Patch, Prepared, Profile
from moothall.domain.tool import ToolResult, ToolStatus

BASE = {f"tests/test_{name}.py::x": "passed" for name in "abcd"}
CHANGE = Patch(
    "0" * 40, "1" * 40, "diff", ("src/a.py", "tests/test_new.py"), ("tests/test_new.py",)
)


def prepared_base() -> Prepared:
    profile = Profile(checks={"tests": ("pytest",)})
    return Prepared(
        Base("r", "0" * 40, profile), "k", (), {"tests": CheckRun("tests", Verdict.PASSED, BASE)}
    )


def workspace_state(*cases: str, partial_checks: bool = True) -> WorkspaceState:
    run = CheckRun("tests", Verdict.PASSED, dict.fromkeys(cases, "passed"))
    return WorkspaceState(
        CHANGE, {"tests": run} if cases else {}, partial_checks=("tests",) if partial_checks else ()
    )


def test_a_partial_run_reports_how_many_existing_tests_ran() -> None:
    partial_run = workspace_state("tests/test_a.py::x", "tests/test_new.py::y")
    assert "1 of 4 existing tests ran: those near your change." in submission_text(
        partial_run, prepared_base(), {}, 2000
    )
    assert is_clean(partial_run, prepared_base(), {})
    full_run = workspace_state(*BASE, partial_checks=False)
    assert "existing tests ran" not in submission_text(full_run, prepared_base(), {}, 2000)


def test_a_seat_is_asked_to_confirm_if_no_existing_test_ran() -> None:
    own_tests_only = workspace_state("tests/test_new.py::y")
    assert "0 of 4 existing tests ran: none was found near your change." in submission_text(
        own_tests_only, prepared_base(), {}, 2000
    )
    assert not is_clean(own_tests_only, prepared_base(), {})
    only_tests = replace(CHANGE, paths=CHANGE.tests)
    assert is_clean(replace(own_tests_only, patch=only_tests), prepared_base(), {}), (
        "it can break nothing"
    )
    assert "tests: 0 of 4 existing tests ran: none" in submission_text(
        workspace_state(), prepared_base(), {}, 2000
    )


def shell(status: ToolStatus = ToolStatus.SUCCESS, error: str = "", **output: Any) -> str:
    return result_text(ToolResult("r", "code.shell", status, output, error), 2000)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"output": "one\n", "exit_code": 0}, "one\n[exit code 0]"),
        ({"output": "", "exit_code": 1}, "(no output)\n[exit code 1]"),
        ({"output": "x\n", "exit_code": -11}, "x\n[ended by the signal SIGSEGV]"),
        ({"output": "x\n", "exit_code": -99}, "x\n[ended by signal 99]"),
        (
            {
                "output": "x\n",
                "exit_code": 0,
                "ended_processes": ["sleep 300", "a\x1b[2J"],
                "working_directory": "/workspace/src",
            },
            (
                "x\n[exit code 0; the working directory is now /workspace/src; background "
                "processes ended with the call: sleep 300, "
                "'a\\x1b[2J']"
            ),
        ),
        (
            {"output": "x\n", "exit_code": 0, "note": "/workspace/a is gone"},
            "x\n[exit code 0; /workspace/a is gone]",
        ),
    ],
)
def test_the_end_of_a_command_is_described_in_words(output: dict[str, Any], expected: str) -> None:
    assert shell(**output) == expected


def test_a_stopped_command_has_no_exit_code() -> None:
    assert shell(
        ToolStatus.TIMEOUT, "the command was stopped after 5 s", output="tick\n", exit_code=-2
    ) == ("timeout: the command was stopped after 5 s\ntick")
    assert (
        shell(ToolStatus.TIMEOUT, "the command was stopped after 5 s", exit_code=-2).count("\n")
        == 0
    )
