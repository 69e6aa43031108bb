from __future__ import annotations

from collections.abc import Mapping

import pytest

from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Profile
from moothall.ranking import Assessment, assess

PROFILE = Profile(checks={"tests": ("pytest",), "lint": ("ruff",)})
LINT = CheckRun("lint", Verdict.PASSED)
NEW = "tests/test_utils.py::test_hello"
OLD = "tests/test_old.py::test_old"


def suite(verdict: Verdict = Verdict.PASSED, *, status: str = "success", **cases: str) -> CheckRun:
    named = {"new": NEW, "old": OLD}
    return CheckRun("tests", verdict, {named.get(name, name): outcome for name, outcome in cases.items()}, status=status)


BASE = {"tests": suite(Verdict.FAILED, new="failed", old="passed"), "lint": LINT}


def judge(
    run: CheckRun, *, profile: Profile = PROFILE, own: tuple[str, ...] = (), base: Mapping[str, CheckRun] = BASE
) -> Assessment:
    return assess(base, {"tests": run, "lint": LINT}, profile, own, applies=True)


def verdict(found: Assessment, check: str = "tests") -> Verdict:
    return next(item.verdict for item in found.evidence if item.check == check)


def test_a_red_test_that_turns_green_proves_the_candidate() -> None:
    found = judge(suite(new="passed", old="passed"))
    assert found.proven
    assert found.required == ("tests", "lint")
    assert found.regressions == ()
    assert [(item.check, item.verdict, item.passed, item.proven) for item in found.evidence] == [
        ("tests", Verdict.PASSED, 2, True),
        ("lint", Verdict.PASSED, 0, False),
    ]


def test_a_test_file_that_could_not_be_collected_counts_as_red() -> None:
    base = {"tests": CheckRun("tests", Verdict.FAILED, {"tests/test_utils.py": "errored", OLD: "passed"})}
    assert judge(suite(new="passed", old="passed"), base=base).proven


@pytest.mark.parametrize("own", ["tests/test_utils.py"])
@pytest.mark.parametrize("case", [NEW, "tests.test_utils::test_hello", "tests.test_utils.TestHello::test_hello", "TestHello"])
def test_an_authors_own_test_proves_nothing(own: str, case: str) -> None:
    base = {"tests": CheckRun("tests", Verdict.FAILED, {case: "failed"})}
    run = CheckRun("tests", Verdict.PASSED, {case: "passed"})
    assert not judge(run, base=base, own=(own,)).proven
    assert judge(run, base=base).proven


def test_a_test_that_was_not_there_proves_nothing() -> None:
    assert not judge(CheckRun("tests", Verdict.PASSED, {OLD: "passed", "tests/test_z.py::test_z": "passed"})).proven


@pytest.mark.parametrize("after", [{"old": "failed"}, {"old": "errored"}, {"old": "skipped"}, {}])
def test_what_was_green_and_is_not_any_more_is_a_regression(after: dict[str, str]) -> None:
    assert judge(suite(Verdict.PASSED, new="passed", status="success", **after)).regressions == (OLD,)


def test_known_failures_are_neither_regressions_nor_red() -> None:
    profile = Profile(checks={"tests": ("pytest",)}, known_failures=(OLD,))
    found = judge(suite(Verdict.FAILED, new="passed", old="failed"), profile=profile)
    assert found.regressions == ()
    assert verdict(found) is Verdict.PASSED


def test_an_unknown_failure_beside_a_known_one_is_red() -> None:
    profile = Profile(checks={"tests": ("pytest",)}, known_failures=(OLD,))
    assert verdict(judge(suite(Verdict.FAILED, new="failed", old="failed"), profile=profile)) is Verdict.FAILED


def test_an_exit_code_does_not_hide_a_failed_case() -> None:
    assert verdict(judge(suite(Verdict.PASSED, new="failed", old="passed"))) is Verdict.FAILED


@pytest.mark.parametrize("cases", [{}, {"new": "skipped", "old": "skipped"}])
def test_no_test_at_all_is_missing(cases: dict[str, str]) -> None:
    assert verdict(judge(suite(Verdict.PASSED, **cases))) is Verdict.MISSING


def test_a_run_that_hit_a_limit_never_passes() -> None:
    assert verdict(judge(suite(Verdict.PASSED, status="timeout", new="passed", old="passed"))) is Verdict.ERRORED


def test_a_required_check_without_a_run_is_missing() -> None:
    found = assess(BASE, {"tests": suite(new="passed", old="passed")}, PROFILE, (), applies=True)
    assert verdict(found, "lint") is Verdict.MISSING


def test_what_does_not_apply_has_no_evidence() -> None:
    found = assess(BASE, {"tests": suite(new="passed", old="passed"), "lint": LINT}, PROFILE, (), applies=False)
    assert not found.applies
    assert not found.proven
    assert {item.verdict for item in found.evidence} == {Verdict.MISSING}


def test_behaviour_is_equal_only_when_no_shared_test_tells_two_apart() -> None:
    one = judge(suite(new="passed", old="passed"))
    same = judge(suite(old="passed", new="passed"))
    other = judge(suite(Verdict.FAILED, new="failed", old="passed"))
    with_own = judge(
        CheckRun("tests", Verdict.PASSED, {NEW: "passed", OLD: "passed", "tests/test_me.py::test_me": "passed"}),
        own=("tests/test_me.py",),
    )
    assert one.behaviour == same.behaviour == with_own.behaviour != other.behaviour
