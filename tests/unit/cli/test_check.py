"""The output of `moothall check` about a base, and when it reports that nothing can be judged."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from moothall.app.command_repository import RepositoryCheck
from moothall.cli.check import (
    check_document,
    create_console,
    failure_reason,
    print_report,
    write_report,
)
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Base, Prepared, Profile
from moothall.errors import RepositoryError
from moothall.ranking.baseline import diagnose

FAILING = "tests/test_a.py::test_red"
RUN = CheckRun(
    "tests",
    Verdict.FAILED,
    {
        "tests/test_a.py::test_green": "passed",
        FAILING: "failed",
        "tests/test_a.py::test_slow": "passed",
        "tests/test_a.py::f": "passed",
    },
    details={
        FAILING: (
            "def test_red():\n>   assert 1 == 2\nE   assert 1 == 2\x1b[2J\n\ntests/test_a.py:3: "
            "AssertionError"
        )
    },
    durations={"tests/test_a.py::test_slow": 2500},
    duration_ms=3100,
    exit_code=1,
)
PROFILE = Profile(
    setup=(("pip", "install", "-e", "."),), checks={"tests": ("python", "-m", "pytest")}
)
BASE = Base("sample", "a" * 40, PROFILE, "/srv/sample")
PREPARED = Prepared(BASE, "k", ("tests/test_a.py",), {"tests": RUN}, flaky=("tests/test_a.py::f",))
CHECKED = RepositoryCheck(BASE, PREPARED, None, 1.5)


def render_report(checked: RepositoryCheck, width: int = 80) -> str:
    diagnosis = diagnose(checked.prepared) if checked.prepared else None
    console = Console(file=io.StringIO(), width=width)
    print_report(console, checked, diagnosis, failure_reason(checked, diagnosis))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return] # it is the StringIO above


def test_failed_flaky_and_slow_cases_are_named_with_the_reason() -> None:
    output = render_report(CHECKED)
    for text in (
        "/srv/sample at aaaaaaaaaa",
        "pip install -e .",
        f"failed  {FAILING}  assert 1 == 2",
        "flaky   tests/test_a.py::f  differed between two runs",
        "slow    tests/test_a.py::test_slow  2.5 s",
        "A council can be judged here. Failed before: 1.",
    ):
        assert text in output
    assert "\x1b" not in output
    assert all(len(line) <= 80 for line in output.splitlines())


def test_without_a_terminal_lines_are_not_wrapped() -> None:
    case = f"tests/{'long/' * 30}test_a.py::test_red"
    run = replace(
        RUN, cases={case: "failed"}, details={case: f"E   assert {'x' * 120}"}, durations={}
    )
    checked = replace(CHECKED, prepared=replace(PREPARED, runs={"tests": run}, flaky=()))
    console = create_console(io.StringIO())
    print_report(console, checked, diagnose(checked.prepared or PREPARED), "")
    (line,) = (line for line in console.file.getvalue().splitlines() if case in line)  # type: ignore[attr-defined] # the StringIO above
    assert line.endswith("x" * 120)


def test_piped_output_has_no_trailing_spaces() -> None:
    checked = replace(
        CHECKED,
        base=replace(
            BASE, profile=replace(PROFILE, setup=(("pip", "install", "x" * 300), ("true",)))
        ),
    )
    out = io.StringIO()
    write_report(out, checked, diagnose(PREPARED), "")
    lines = out.getvalue().splitlines()
    assert any("x" * 300 in line for line in lines)
    assert [line for line in lines if line.endswith(" ")] == []


def test_a_failed_command_without_cases_shows_the_end_of_its_output() -> None:
    run = CheckRun(
        "tests",
        Verdict.FAILED,
        output="compiling\nerror[E0425]: cannot find `sum`\x1b[2J",
        exit_code=101,
    )
    output = render_report(
        replace(CHECKED, prepared=replace(PREPARED, runs={"tests": run}, flaky=()))
    )
    assert "error[E0425]: cannot find `sum`" in output
    assert "\x1b" not in output


def test_a_failed_advisory_check_is_not_counted() -> None:
    advised = replace(
        BASE,
        profile=replace(
            PROFILE, checks={**PROFILE.checks, "lint": ("npm", "run", "lint")}, advisory=("lint",)
        ),
    )
    runs = {
        "tests": RUN,
        "lint": CheckRun("lint", Verdict.FAILED, output="Usage: tsc", exit_code=1),
    }
    output = render_report(replace(CHECKED, prepared=replace(PREPARED, base=advised, runs=runs)))
    assert "Failed before: 1." in output
    assert "Usage: tsc" not in output


def test_a_panic_is_shown_by_its_message_without_the_backtrace_hint() -> None:
    panic = (
        "thread 'sums' panicked at src/lib.rs:4:9:\n2 + 3 is 5\nnote: run with `RUST_BACKTRACE=1` "
        "for more"
    )
    output = render_report(
        replace(
            CHECKED,
            prepared=replace(PREPARED, runs={"tests": replace(RUN, details={FAILING: panic})}),
        )
    )
    assert f"failed  {FAILING}  2 + 3 is 5" in output


def test_a_failed_tap_case_is_shown_with_its_values() -> None:
    diagnostics = (
        "operator: equal\nexpected: 2\nactual:   1\nat: f (a.js:1:1)\nstack: |-\n  Error: same\n  "
        "  at f (a.js:1:1)"
    )
    output = render_report(
        replace(
            CHECKED,
            prepared=replace(
                PREPARED, runs={"tests": replace(RUN, details={FAILING: diagnostics})}
            ),
        )
    )
    assert f"failed  {FAILING}  expected: 2, actual: 1" in output


def test_a_foreign_traceback_is_shown_by_its_last_line() -> None:
    printed = (
        'E   Exception: Traceback (most recent call last):\nE     File "a.py", line 1\nE   '
        "TypeError: no"
    )
    output = render_report(
        replace(
            CHECKED,
            prepared=replace(PREPARED, runs={"tests": replace(RUN, details={FAILING: printed})}),
        )
    )
    assert f"failed  {FAILING}  TypeError: no" in output


@pytest.mark.parametrize(
    ("checked", "message"),
    [
        (
            replace(
                CHECKED,
                prepared=None,
                failure=RepositoryError("set-up command 'x' failed, exit code 1:\nno such thing"),
            ),
            "no such thing",
        ),
        (
            replace(
                CHECKED, prepared=replace(PREPARED, base=replace(BASE, profile=Profile()), runs={})
            ),
            "It has no check",
        ),
        (
            replace(
                CHECKED,
                prepared=replace(
                    PREPARED,
                    runs={
                        "tests": CheckRun(
                            "tests", Verdict.FAILED, output="sh: pytest: not found", exit_code=127
                        )
                    },
                ),
            ),
            "pytest was not found",
        ),
    ],
)
def test_an_unjudgeable_base_is_reported_with_the_file_to_write(
    checked: RepositoryCheck, message: str
) -> None:
    output = " ".join(render_report(checked).split())
    assert message in output
    assert ".moothall.toml" in output
    assert "can be judged here" not in output


def test_the_json_document_agrees_with_the_diagnosis() -> None:
    diagnosis = diagnose(PREPARED)
    document = check_document(CHECKED, diagnosis, "", Path("/srv/sample/.moothall.toml"))
    assert json.loads(json.dumps(document)) == document
    assert (document["version"], document["judgeable"], document["commit"]) == (1, True, "a" * 40)
    assert document["checks"][0]["red"] == [FAILING]
    assert document["checks"][0]["flaky"] == ["tests/test_a.py::f"]


def test_a_narrow_terminal_shows_the_reason_on_separate_lines() -> None:
    message = (
        "AssertionError: the sum of two and three is 5, and not what it was here\n    at f "
        "(/workspace/tests/test_a.py:3:1)"
    )
    run = replace(RUN, details={FAILING: message})
    lines = render_report(
        replace(CHECKED, prepared=replace(PREPARED, runs={"tests": run})), 60
    ).splitlines()
    at = next(number for number, line in enumerate(lines) if FAILING in line)
    assert lines[at].strip() == f"failed  {FAILING}"
    next_lines = " ".join(line.strip() for line in lines[at + 1 : at + 3])
    assert next_lines == (
        "AssertionError: the sum of two and three is 5, and not what it was here "
        "(tests/test_a.py:3)"
    )


def test_the_error_of_a_command_without_cases_is_read_from_its_output() -> None:
    output = (
        "> mocha\n\n Exception during run: Error: Cannot find module './x'\n    at "
        "Object.<anonymous> (/workspace/tests/test_a.py:1:9)"
    )
    run = CheckRun("tests", Verdict.FAILED, output=output, exit_code=1)
    text = render_report(
        replace(CHECKED, prepared=replace(PREPARED, runs={"tests": run}, flaky=()))
    )
    assert "failed  tests  Error: Cannot find module './x' (tests/test_a.py:1)" in text
    assert "at Object" not in text
