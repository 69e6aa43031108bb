from __future__ import annotations

import pytest

from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Profile
from moothall.ranking import assess
from moothall.ranking.failures import as_errored, hit_limit_under_load, stopped_cases
from moothall.sandbox_runtime.plugins import FOLDER
from moothall.sandbox_runtime.processes import BUSY

LIMITS = [
    f"Failed: hit the limit of 10 s{BUSY}",
    'Error: Timeout of 2000ms exceeded. For async tests and hooks, ensure "done()" is called',
    'thrown: "Exceeded timeout of 5000 ms for a test.',
    "Error: Test timed out in 5000ms.",
    "test timed out after 1000ms",
    "Failed: Timeout (>10.0s) from pytest-timeout.",
    "panic: test timed out after 1m0s",
    "subprocess.TimeoutExpired: Command '['a']' timed out after 5 seconds",
    "context deadline exceeded",
    "asyncio.exceptions.TimeoutError",
    "at:\n  line: 4\nexpired: waits\ntimeout: 30000\nsignal: SIGTERM",  # node-tap
]


def failed_run(message: str, **overrides: object) -> CheckRun:
    fields = {
        "cases": {"a": "failed", "b": "passed"},
        "details": {"a": message},
        "contended": True,
        **overrides,
    }
    return CheckRun("tests", Verdict.FAILED, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("message", LIMITS)
def test_a_time_limit_is_no_evidence_on_a_busy_machine(message: str) -> None:
    check_run = failed_run(message)
    assert hit_limit_under_load(check_run)
    assert not hit_limit_under_load(failed_run(message, contended=False))
    assert stopped_cases(check_run) == ["a"]
    errored = as_errored(check_run)
    assert (errored.verdict, errored.status, errored.cases) == (
        Verdict.ERRORED,
        "timeout",
        {"a": "errored", "b": "passed"},
    )
    assert "busy" in errored.output.partition("\n")[0]


@pytest.mark.parametrize(
    "message",
    [
        "assert 5 == 2",
        "Failed: hit the limit of 10 s",
        "env:\n  CI: '1'\nfile: test/diff.js\ntimeout: 30000\ncommand: /usr/bin/node",  # node-tap
        '  client({\n    "timeout": 500,\n  })\nExpected 2, got 3',
    ],
)
def test_a_failure_for_another_reason_is_a_failure(message: str) -> None:
    """This includes a case that had all of its time."""
    assert not hit_limit_under_load(failed_run(message))


def test_a_case_that_fails_on_the_base_is_not_run_again() -> None:
    check_run = failed_run(LIMITS[0])
    assert not hit_limit_under_load(check_run, CheckRun("tests", Verdict.FAILED, {"a": "failed"}))
    assert hit_limit_under_load(check_run, CheckRun("tests", Verdict.PASSED, {"a": "passed"}))


def test_stopped_checks_and_checks_without_cases_can_be_contended_too() -> None:
    silent = CheckRun(
        "tests", Verdict.FAILED, output="Error: timed out waiting for the server", contended=True
    )
    assert hit_limit_under_load(silent)
    assert hit_limit_under_load(
        CheckRun("tests", Verdict.ERRORED, status="timeout", contended=True)
    )
    assert not hit_limit_under_load(
        CheckRun("tests", Verdict.ERRORED, status="memory", contended=True)
    )


def test_the_evidence_of_a_contended_check_is_errored_with_the_reason() -> None:
    base = CheckRun("tests", Verdict.PASSED, {"a": "passed", "b": "passed"})
    profile = Profile(checks={"tests": ("x",)})
    assessment = assess(
        {"tests": base},
        {"tests": as_errored(failed_run(LIMITS[0]), base)},
        profile,
        (),
        applies=True,
    )
    (evidence,) = assessment.evidence
    assert evidence.verdict is Verdict.ERRORED
    assert "while the machine was busy" in evidence.why


def test_the_reporter_and_the_executor_use_the_same_message_for_contention() -> None:
    """The reporter cannot import the executor: it runs in the project's own interpreter."""
    assert f'"{BUSY}"' in (FOLDER / "moothall_reporter.py").read_text(encoding="utf-8")
