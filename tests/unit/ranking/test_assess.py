from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.proposal import Assessment, Candidate, Proposal
from moothall.domain.repository import Profile
from moothall.ranking import assess, is_done, rank
from moothall.ranking.assess import is_silent, unmatched_cases
from moothall.ranking.criteria import list_failed_checks
from moothall.ranking.test_cases import may_be_own

PROFILE = Profile(checks={"tests": ("pytest",), "lint": ("ruff",)})
LINT = CheckRun("lint", Verdict.PASSED)
NEW = "tests/test_utils.py::test_hello"
OLD = "tests/test_old.py::test_old"


def suite(verdict: Verdict = Verdict.PASSED, *, status: str = "success", **cases: str) -> CheckRun:
    named = {"new": NEW, "old": OLD}
    return CheckRun(
        "tests",
        verdict,
        {named.get(name, name): outcome for name, outcome in cases.items()},
        status=status,
    )


BASE = {"tests": suite(Verdict.FAILED, new="failed", old="passed"), "lint": LINT}


def judge(
    run: CheckRun,
    *,
    profile: Profile = PROFILE,
    own_tests: tuple[str, ...] = (),
    base: Mapping[str, CheckRun] = BASE,
) -> Assessment:
    return assess(base, {"tests": run, "lint": LINT}, profile, own_tests, applies=True)


def verdict(assessment: Assessment, check: str = "tests") -> Verdict:
    return next(item.verdict for item in assessment.evidence if item.check == check)


def test_a_failing_test_that_then_passes_proves_the_candidate() -> None:
    assessment = judge(suite(new="passed", old="passed"))
    assert assessment.proven
    assert assessment.required == ("tests", "lint")
    assert assessment.regressions == ()
    assert [
        (item.check, item.verdict, item.passed, item.proven) for item in assessment.evidence
    ] == [
        ("tests", Verdict.PASSED, 2, True),
        ("lint", Verdict.PASSED, 0, False),
    ]


def test_a_test_file_that_could_not_be_collected_counts_as_failing() -> None:
    base = {
        "tests": CheckRun(
            "tests", Verdict.FAILED, {"tests/test_utils.py": "errored", OLD: "passed"}
        )
    }
    assert judge(suite(new="passed", old="passed"), base=base).proven


@pytest.mark.parametrize("own_test", ["tests/test_utils.py"])
@pytest.mark.parametrize(
    "case",
    [NEW, "tests.test_utils::test_hello", "tests.test_utils.TestHello::test_hello", "TestHello"],
)
def test_an_authors_own_test_proves_nothing(own_test: str, case: str) -> None:
    base = {"tests": CheckRun("tests", Verdict.FAILED, {case: "failed"})}
    run = CheckRun("tests", Verdict.PASSED, {case: "passed"})
    assert not judge(run, base=base, own_tests=(own_test,)).proven
    assert judge(run, base=base).proven


def test_a_test_that_is_missing_on_the_base_proves_nothing() -> None:
    assert not judge(
        CheckRun("tests", Verdict.PASSED, {OLD: "passed", "tests/test_z.py::test_z": "passed"})
    ).proven


@pytest.mark.parametrize(
    "cases_after", [{"old": "failed"}, {"old": "errored"}, {"old": "skipped"}, {}]
)
def test_a_case_that_passed_and_no_longer_passes_is_a_regression(
    cases_after: dict[str, str],
) -> None:
    assert judge(
        suite(Verdict.PASSED, new="passed", status="success", **cases_after)
    ).regressions == (OLD,)


def test_known_failures_are_neither_regressions_nor_failures() -> None:
    profile = Profile(checks={"tests": ("pytest",)}, known_failures=(OLD,))
    assessment = judge(suite(Verdict.FAILED, new="passed", old="failed"), profile=profile)
    assert assessment.regressions == ()
    assert verdict(assessment) is Verdict.PASSED


def test_an_unknown_failure_beside_a_known_one_fails_the_check() -> None:
    profile = Profile(checks={"tests": ("pytest",)}, known_failures=(OLD,))
    run = suite(Verdict.FAILED, new="passed", old="failed", other="failed")
    assert verdict(judge(run, profile=profile)) is Verdict.FAILED


def test_an_exit_code_does_not_hide_a_failed_case() -> None:
    assert verdict(judge(suite(Verdict.PASSED, new="passed", old="failed"))) is Verdict.FAILED


@pytest.mark.parametrize("exit_verdict", [Verdict.PASSED, Verdict.FAILED, Verdict.ERRORED])
def test_a_run_without_tests_has_no_verdict_and_is_not_a_regression(exit_verdict: Verdict) -> None:
    run = CheckRun("tests", exit_verdict, output="npm error\nUsage: npm exec\n", exit_code=1)
    assessment = judge(run)
    assert is_silent(BASE["tests"], run)
    assert (assessment.regressions, verdict(assessment)) == ((), Verdict.MISSING)
    assert assessment.evidence[0].why == "0 tests ran, exit code 1: Usage: npm exec"
    assert not is_silent(None, run)


def test_a_stopped_run_reports_nothing_about_unreached_cases() -> None:
    base = {"tests": suite(Verdict.FAILED, new="failed", old="passed", late="passed"), "lint": LINT}
    assessment = judge(suite(Verdict.ERRORED, status="timeout", old="failed"), base=base)
    assert (assessment.regressions, verdict(assessment)) == ((OLD,), Verdict.ERRORED)


@pytest.mark.parametrize("cases", [{}, {"new": "skipped", "old": "skipped"}])
def test_a_check_without_any_test_is_missing(cases: dict[str, str]) -> None:
    assert verdict(judge(suite(Verdict.PASSED, **cases))) is Verdict.MISSING


def test_a_run_that_hit_a_limit_never_passes() -> None:
    assert (
        verdict(judge(suite(Verdict.PASSED, status="timeout", new="passed", old="passed")))
        is Verdict.ERRORED
    )


def test_a_required_check_without_a_run_is_missing() -> None:
    assessment = assess(
        BASE, {"tests": suite(new="passed", old="passed")}, PROFILE, (), applies=True
    )
    assert verdict(assessment, "lint") is Verdict.MISSING


def test_a_patch_that_does_not_apply_has_no_evidence() -> None:
    assessment = assess(
        BASE, {"tests": suite(new="passed", old="passed"), "lint": LINT}, PROFILE, (), applies=False
    )
    assert not assessment.applies
    assert not assessment.proven
    assert {item.verdict for item in assessment.evidence} == {Verdict.MISSING}


def test_behaviour_is_equal_only_if_no_shared_test_distinguishes_two() -> None:
    original = judge(suite(new="passed", old="passed"))
    same_cases = judge(suite(old="passed", new="passed"))
    failing = judge(suite(Verdict.FAILED, new="failed", old="passed"))
    with_own = judge(
        CheckRun(
            "tests",
            Verdict.PASSED,
            {NEW: "passed", OLD: "passed", "tests/test_me.py::test_me": "passed"},
        ),
        own_tests=("tests/test_me.py",),
    )
    assert original.behaviour == same_cases.behaviour == with_own.behaviour != failing.behaviour


def test_an_old_failure_may_remain_and_is_named() -> None:
    base = {
        "tests": suite(Verdict.FAILED, new="failed", old="passed", other="failed"),
        "lint": LINT,
    }
    assessment = judge(suite(Verdict.FAILED, new="passed", old="passed", other="failed"), base=base)
    tests = assessment.evidence[0]
    assert (tests.verdict, tests.before, tests.red, tests.red_before) == (
        Verdict.PASSED,
        1,
        (),
        ("other",),
    )
    assert (assessment.fixed, assessment.still_red, assessment.proven) == ((NEW,), ("other",), True)


def test_a_new_case_must_pass() -> None:
    assessment = judge(suite(Verdict.FAILED, new="passed", old="passed", mine="failed"))
    assert (assessment.evidence[0].verdict, assessment.evidence[0].red) == (
        Verdict.FAILED,
        ("mine",),
    )


def test_a_check_without_any_passing_case_does_not_pass() -> None:
    profile = Profile(checks={"tests": ("pytest",)})
    base = {"tests": CheckRun("tests", Verdict.FAILED, {NEW: "failed"})}
    assessment = assess(base, base, profile, (), applies=True)
    assert (assessment.evidence[0].verdict, assessment.evidence[0].red_before) == (
        Verdict.FAILED,
        (NEW,),
    )


@pytest.mark.parametrize(
    ("before", "after", "expected", "proven"),
    [
        (Verdict.FAILED, Verdict.PASSED, Verdict.PASSED, True),
        (Verdict.PASSED, Verdict.PASSED, Verdict.PASSED, False),
        (Verdict.PASSED, Verdict.FAILED, Verdict.FAILED, False),
        (Verdict.FAILED, Verdict.FAILED, Verdict.FAILED, False),
        (Verdict.FAILED, Verdict.MISSING, Verdict.MISSING, False),
    ],
)
def test_a_check_without_cases_counts_as_one_case(
    before: Verdict, after: Verdict, expected: Verdict, *, proven: bool
) -> None:
    profile = Profile(checks={"tests": ("make", "test")})
    assessment = assess(
        {"tests": CheckRun("tests", before)},
        {"tests": CheckRun("tests", after)},
        profile,
        (),
        applies=True,
    )
    assert (assessment.evidence[0].verdict, assessment.proven) == (expected, proven)


def test_a_check_that_already_failed_as_a_whole_may_fail_beside_one_with_passing_cases() -> None:
    base = {"tests": BASE["tests"], "lint": CheckRun("lint", Verdict.FAILED)}
    assessment = assess(
        base,
        {"tests": suite(new="passed", old="passed"), "lint": base["lint"]},
        PROFILE,
        (),
        applies=True,
    )
    assert [item.verdict for item in assessment.evidence] == [Verdict.PASSED, Verdict.PASSED]


def test_a_flaky_case_is_named_and_is_not_evidence() -> None:
    base = {"tests": suite(Verdict.FAILED, new="failed", old="passed", other="passed")}
    run = suite(Verdict.FAILED, new="passed", old="failed", other="passed")
    assessment = assess(
        base,
        {"tests": run},
        Profile(checks={"tests": ("pytest",)}),
        (),
        applies=True,
        flaky=(NEW, OLD),
    )
    assert (assessment.evidence[0].verdict, assessment.proven, assessment.regressions) == (
        Verdict.PASSED,
        False,
        (),
    )
    assert assessment.evidence[0].flaky == (OLD, NEW)


def test_a_case_reported_by_one_run_of_the_base_is_known_unless_a_run_reported_nothing() -> None:
    first_run, second_run = (
        suite(new="passed", at_12_01="passed"),
        suite(new="passed", at_12_02="failed"),
    )
    assert unmatched_cases(first_run, second_run) == {"at_12_01", "at_12_02"}
    assert (
        unmatched_cases(first_run, suite(Verdict.ERRORED))
        == unmatched_cases(first_run, suite(status="timeout", new="passed"))
        == set()
    )


@pytest.mark.parametrize("advisory", [("lint",), ()], ids=["advisory", "required"])
def test_a_linter_does_not_distinguish_candidates(advisory: tuple[str, ...]) -> None:
    """A finding in one change alone is no difference in the behaviour of the code."""
    profile = Profile(checks={"tests": ("pytest",), "lint": ("ruff",)}, advisory=advisory)
    tests = suite(new="passed", old="passed")
    finding = CheckRun("lint", Verdict.FAILED, findings=("src/a.py: SIM102",))
    assessment = [
        assess(BASE, {"tests": tests, "lint": lint}, profile, (), applies=True)
        for lint in (LINT, finding)
    ]
    assert assessment[0].behaviour == assessment[1].behaviour


def test_behaviour_is_not_mentioned_if_no_test_ran() -> None:
    assessment = assess({}, {}, Profile(), (), applies=True)
    assert assessment.behaviour == ""
    candidates = [
        Candidate(Proposal(seat, "dev", "", f"+{seat}"), assessment) for seat in ("one", "two")
    ]
    assert not any(
        "behave the same" in reason for item in rank(candidates) for reason in item.reasons
    )


def test_an_advisory_check_decides_nothing() -> None:
    profile = Profile(checks={"tests": ("pytest",), "lint": ("ruff",)}, advisory=("lint",))
    lint = CheckRun("lint", Verdict.FAILED, findings=("a.py: F401 x",))
    assessment = assess(
        BASE, {"tests": suite(new="passed", old="passed"), "lint": lint}, profile, (), applies=True
    )
    assert (assessment.required, verdict(assessment, "lint")) == (("tests",), Verdict.FAILED)


@pytest.mark.parametrize(
    ("base", "current", "expected"),
    [
        (("a.py: F401 x",), ("a.py: F401 x",), Verdict.PASSED),
        (("a.py: F401 x",), ("a.py: F401 x", "a.py: F401 x"), Verdict.FAILED),
        (("a.py: F401 x",), ("b.py: F401 x",), Verdict.PASSED),
        ((), ("b.py: F401 x",), Verdict.FAILED),
        (("a.py: F401 x",), (), Verdict.PASSED),
    ],
)
def test_only_new_findings_on_changed_files_count(
    base: tuple[str, ...], current: tuple[str, ...], expected: Verdict
) -> None:
    def lint(findings: tuple[str, ...]) -> CheckRun:
        return CheckRun("lint", Verdict.FAILED if findings else Verdict.PASSED, findings=findings)

    runs = {"tests": suite(new="passed", old="passed"), "lint": lint(current)}
    assessment = assess(
        {**BASE, "lint": lint(base)}, runs, PROFILE, (), applies=True, changed=("src/a.py",)
    )
    assert verdict(assessment, "lint") is expected


def test_a_case_stopped_at_its_limit_is_not_proven_by_a_longer_limit() -> None:
    base = {
        "tests": CheckRun(
            "tests",
            Verdict.FAILED,
            {NEW: "failed"},
            details={NEW: "hit the limit of 5 s"},
            durations={NEW: 5000},
        )
    }

    def proves(milliseconds: int) -> bool:
        run = CheckRun("tests", Verdict.PASSED, {NEW: "passed"}, durations={NEW: milliseconds})
        return assess(base, {"tests": run}, PROFILE, (), applies=True).proven

    assert proves(100)
    assert not proves(4900)


@pytest.mark.parametrize(
    ("case", "own_test", "maybe"),
    [
        ("github.com/google/uuid::TestParse", "uuid_test.go", True),
        ("github.com/google/uuid/sub::TestParse", "sub/a_test.go", True),
        ("github.com/google/uuid/sub::TestParse", "other/a_test.go", False),
        ("itoa tests/test.rs::test_i64", "tests/test.rs", True),
        ("itoa tests/test.rs::test_i64", "tests/other.rs", False),
        ("tests.test_a.TestA.test_x", "tests/test_a.py", True),
        ("test_a.TestA.test_x", "tests/test_a.py", True),
        ("tests.test_a.TestA.test_x", "tests/test_b.py", False),
        ("test/a.js::outer > inner", "test/a.js", True),
        ("test/a.js::outer > inner", "test/b.js", False),
        ("outer > inner", "test/b.js", True),
        ("suite::inner", "testdata/b.json", False),
        ("suite::inner", "test/__snapshots__/b.js.snap", False),
        ("github.com/google/uuid::TestParse", "sub/parse.golden", False),
        ("github.com/google/uuid::TestParse", "parse.approved.txt", False),
        ("suite::inner", "mytestdata/b.json", True),
    ],
)
def test_a_case_in_an_authors_own_test_file_may_be_theirs(
    case: str, own_test: str, *, maybe: bool
) -> None:
    packages = frozenset({"github.com/google/uuid", "github.com/google/uuid/sub"})
    assert may_be_own(case, (own_test,), packages) is maybe
    assert not may_be_own(case, (), packages)


@pytest.mark.parametrize(
    ("red", "case"),
    [
        ("example.org/a", "example.org/a::TestX"),
        ("example.org/a::TestX", "example.org/a::TestX/sub"),
        ("tests.test_a", "tests.test_a.TestA.test_x"),
        ("test/a.js", "test/a.js::outer > inner"),
    ],
)
def test_a_case_of_a_failing_group_counts_as_failing_before(red: str, case: str) -> None:
    base = {"tests": CheckRun("tests", Verdict.FAILED, {red: "errored", OLD: "passed"})}
    run = CheckRun("tests", Verdict.PASSED, {case: "passed", OLD: "passed"})
    assessment = assess(base, {"tests": run}, PROFILE, (), applies=True)
    assert assessment.fixed == (case,)


def test_a_change_is_done_if_no_other_case_of_the_fixed_file_fails() -> None:
    assert is_done(
        Assessment(applies=True, proven=True, fixed=("a.py::x",), still_red=("b.py::y",))
    )
    assert not is_done(
        Assessment(applies=True, proven=True, fixed=("a.py::x",), still_red=("a.py::y",))
    )


OUT = CheckRun("tests", Verdict.FAILED, {"tests/test_net.py::test_socket": "failed", OLD: "passed"})


@pytest.mark.parametrize(
    ("changed", "task", "detail", "expected"),
    [
        ("src/utils.py", "add a helper", "", Verdict.PASSED),
        ("src/net.py", "add a helper", "", Verdict.FAILED),
        ("src/utils.py", "mend test_socket", "", Verdict.FAILED),
        ("src/utils.py", "mend the socket", "", Verdict.FAILED),
        ("src/utils.py", "Some tests fail since the last change", "", Verdict.FAILED),
        ("src/utils.py", "make the failing test pass", "", Verdict.FAILED),
        ("src/utils.py", "add a helper", "E assert 'x' == 'y'", Verdict.FAILED),
        ("src/utils.py", "add a helper", "E assert 'z' == 'y' at 0x12f", Verdict.PASSED),
    ],
)
def test_an_unchanged_failure_that_concerns_the_change_fails_the_check(
    changed: str, task: str, detail: str, expected: Verdict
) -> None:
    case = "tests/test_net.py::test_socket"
    before = replace(OUT, details={case: "E assert 'z' == 'y' at 0x34a"} if detail else {})
    after = replace(OUT, details={case: detail} if detail else {})
    profile = Profile(checks={"tests": ("pytest",)})
    assessment = assess(
        {"tests": before},
        {"tests": after},
        profile,
        (),
        applies=True,
        changed=(changed,),
        task=task,
    )
    assert verdict(assessment) is expected
    assert assessment.unsolved == ((case,) if expected is Verdict.FAILED else ())
    assert not assessment.proven


@pytest.mark.parametrize(
    ("cases", "task", "check", "blocked"),
    [
        ({"test_reading": "failed", "green": "passed"}, "mend it", "tests", False),
        (
            {"test_reading": "failed", "green": "passed"},
            "make the failing tests pass",
            "tests",
            True,
        ),
        ({"test_reading": "failed", "green": "passed"}, "mend reading", "tests", True),
        ({"test_reading": "failed", "green": "failed"}, "mend it", "tests", True),
        ({"test_reading": "failed"}, "mend it", "tests", True),
        ({"test_reading": "failed", "green": "passed"}, "mend readings.py", "validation-1", True),
    ],
    ids=[
        "beside passing tests",
        "asked for",
        "named",
        "with a new failure",
        "nothing passes",
        "the caller's own check",
    ],
)
def test_an_earlier_failure_blocks_only_if_nothing_passes_or_the_task_asks_for_it(
    cases: dict[str, str], task: str, check: str, *, blocked: bool
) -> None:
    base = CheckRun(
        check, Verdict.FAILED, {**dict.fromkeys(cases, "passed"), "test_reading": "failed"}
    )
    assessment = assess(
        {check: base},
        {check: CheckRun(check, Verdict.FAILED, cases)},
        Profile(checks={check: ("pytest",)}),
        (),
        applies=True,
        changed=("reading.py",),
        task=task,
    )
    candidate = Candidate(Proposal("seat", "dev", "", "diff --git a/a.py b/a.py\n"), assessment)
    assert verdict(assessment, check) is Verdict.FAILED
    assert bool(list_failed_checks(candidate)) is blocked
