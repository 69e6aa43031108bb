from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace as replace_field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.deliberation.seat_setup import SUBMIT, SeatTools, UnusableCallError
from moothall.domain.chat import FunctionCall
from moothall.sandbox_runtime.edits import replace
from moothall.sandbox_runtime.file_access import ToolFailure
from moothall.tools.catalogue import CATALOGUE

ALL = SeatTools.from_specs([*CATALOGUE.values()])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def call(name: str, arguments: Any) -> FunctionCall:
    return FunctionCall(
        "c", name, arguments if isinstance(arguments, str) else json.dumps(arguments)
    )


@given(st.sampled_from(ALL.names) | st.text(), st.text() | JSON.map(json.dumps))
def test_every_model_call_becomes_an_action_or_an_error_with_a_reason(
    name: str, arguments: str
) -> None:
    with suppress(UnusableCallError):
        assert ALL.read_action(FunctionCall("c", name, arguments)).tool in CATALOGUE


def test_a_seat_with_a_shell_has_five_tools_and_one_without_has_its_granted_tools() -> None:
    assert ALL.names == ("bash", "view", "edit", "write", SUBMIT)
    without_shell = SeatTools.from_specs(
        [spec for spec in CATALOGUE.values() if spec.category != "code"]
    )
    assert {"files_search", "git_log", "tests_pytest"} < {*without_shell.names}
    assert not without_shell.has_shell


@pytest.mark.parametrize(
    ("name", "arguments", "tool", "translated"),
    [
        (
            "view",
            {"path": "a", "start": 3, "end": 5},
            "files.read",
            {"path": "a", "start": 3, "lines": 3},
        ),
        ("view", {"path": "a"}, "files.read", {"path": "a", "start": 1, "lines": 400}),
        (
            "view",
            {"path": "a", "start": "7", "end": None},
            "files.read",
            {"path": "a", "start": 7, "lines": 400},
        ),
        (
            "bash",
            {"command": "ls", "timeout_seconds": 5.0},
            "code.shell",
            {"command": "ls", "timeout_seconds": 5},
        ),
        (
            "edit",
            {"path": "a", "old": "x", "new": ""},
            "files.edit",
            {"path": "a", "old": "x", "new": ""},
        ),
        (
            "edit",
            {"path": "a", "old": "x", "new": "y", "all": True},
            "files.edit",
            {"path": "a", "old": "x", "new": "y", "count": 0},
        ),
        (
            "write",
            '{"path": "a", "content": "one\ntwo"}',
            "files.write",
            {"path": "a", "content": "one\ntwo"},
        ),
    ],
)
def test_native_calls_become_actions_of_the_catalogue(
    name: str, arguments: Any, tool: str, translated: dict[str, Any]
) -> None:
    action = ALL.read_action(call(name, arguments))
    assert (action.tool, action.arguments) == (tool, translated)


@pytest.mark.parametrize(
    "number", ["1e999", "-1", "0", "true", '"9999999999"', f'"{"9" * 5000}"', "1.5", '"one"']
)
def test_an_invalid_line_number_is_reported(number: str) -> None:
    with pytest.raises(UnusableCallError, match="whole number from 1"):
        ALL.read_action(call("view", f'{{"path": "a", "start": {number}}}'))


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "edit",
            (
                "files.edit: argument 'old': too long. Right is files.edit(path: string, count?: "
                "integer)"
            ),
            "edit: argument 'old': too long. Right is edit(path, old, new, all?)",
        ),
        (
            "edit",
            ("old text occurs 2 times, or count=2 to replace all"),
            ("old text occurs 2 times, or all=true to replace all"),
        ),
        ("edit", "read it with files.read and copy", "read it with view and copy"),
        (
            "view",
            ("it is inside .git; use git.status, git.diff or git.log"),
            ("it is inside .git; use git status, git diff or git log"),
        ),
        ("view", "'src/git.log' does not exist", "'src/git.log' does not exist"),
        ("bash", "up to 600 s (workspace.check_seconds)", "up to 600 s (workspace.check_seconds)"),
    ],
)
def test_errors_name_the_tools_and_arguments_offered_to_the_seat(
    name: str, error: str, message: str
) -> None:
    assert ALL.translate_error(error, call(name, {})) == message


def test_an_ambiguous_edit_is_reported_without_a_count() -> None:
    with pytest.raises(ToolFailure) as failed:
        replace("a.py", "x\ny\nx\n", "x", "z")
    assert ALL.translate_error(str(failed.value), call("edit", {})) == (
        "old text occurs 2 times in 'a.py' (lines 1, 3), not once: send more of the lines around "
        "it so that it occurs once, or all=true to replace all"
    )


def test_the_description_of_bash_names_what_a_call_keeps_and_its_time_limit() -> None:
    shell = CATALOGUE["code.shell"]
    (bash, *_) = SeatTools.from_specs(
        [replace_field(shell, caps=replace_field(shell.caps, seconds=900))]
    ).offered
    assert "A command may take 120 s, or timeout_seconds, up to 900." in bash.description
    assert (
        "exported variables and shell functions are lost, and background processes end with the "
        "call" in bash.description
    )
