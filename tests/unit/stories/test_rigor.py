"""Rigor scoring: failures that block at every level, and the weights of points."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.errors import InvalidRequest
from moothall.stories.rigor import Build, JobReport, SonarResult, Static, SuiteRun, levels, rate

GOOD = JobReport(
    build=Build(ok=True),
    unit=SuiteRun(ok=True, passed=9, coverage=0.9),
    static=Static(ok=True),
    e2e=SuiteRun(ok=True, passed=2),
)
LEVELS = ("L0", "L1", "L2", "L3")
COUNTS = st.integers(0, 5)
TESTS = st.builds(
    SuiteRun, ok=st.booleans(), passed=COUNTS, failed=COUNTS, coverage=st.floats(0, 1)
)
REPORTS = st.builds(
    JobReport,
    build=st.none() | st.builds(Build, ok=st.booleans()),
    unit=st.none() | TESTS,
    static=st.none()
    | st.builds(
        Static,
        ok=st.booleans(),
        sonar=st.builds(SonarResult, new_critical=COUNTS, new_major=COUNTS),
    ),
    e2e=st.none() | TESTS,
)


def changed_report(**parts: Any) -> JobReport:
    return GOOD.model_copy(update=parts)


def test_the_file_defines_each_level() -> None:
    assert tuple(levels()) == LEVELS


@pytest.mark.parametrize("level", LEVELS)
def test_complete_evidence_passes_with_all_points(level: str) -> None:
    rating = rate(GOOD, level)
    assert (rating.score, rating.decision, rating.reasons, rating.rigor) == (100, "pass", (), level)


@pytest.mark.parametrize(
    ("report", "level", "decision", "words"),
    [
        (changed_report(build=Build()), "L0", "block", "blocks: the build failed"),
        (changed_report(build=None), "L0", "block", "no evidence of build"),
        (changed_report(unit=None), "L1", "block", "no evidence of unit"),
        (changed_report(unit=SuiteRun(ok=True)), "L1", "block", "no evidence of unit"),
        (changed_report(unit=None), "L0", "pass", "unit: not run: 0 of 30 points"),
        (changed_report(static=None), "L2", "block", "no evidence of static"),
        (changed_report(e2e=None), "L3", "block", "no evidence of e2e"),
        (changed_report(e2e=None), "L2", "pass", "e2e: not run: 0 of 10 points"),
        (
            changed_report(unit=SuiteRun(ok=False, passed=8, failed=1, coverage=0.9)),
            "L1",
            "block",
            "unit: 1 of 9 tests failed",
        ),
        (
            changed_report(unit=SuiteRun(ok=True, passed=8, failed=1, coverage=0.9)),
            "L1",
            "block",
            "unit: 1 of 9 tests failed",
        ),
        (
            changed_report(unit=SuiteRun(ok=True, passed=9, coverage=0.4)),
            "L3",
            "pass",
            "coverage: 40% of the lines, required are 80%",
        ),
        (
            changed_report(unit=SuiteRun(ok=True, passed=9, coverage=0.2)),
            "L3",
            "warn",
            "88 points; L3 passes from 90 and warns from 85",
        ),
        (
            changed_report(static=Static(ok=True, sonar=SonarResult(quality_gate="ERROR"))),
            "L3",
            "warn",
            "the quality gate says 'ERROR'",
        ),
        (
            changed_report(
                static=Static(ok=True, sonar=SonarResult(quality_gate="ok", new_critical=1))
            ),
            "L3",
            "pass",
            "1 new critical",
        ),
    ],
)
def test_missing_or_failed_evidence_is_named(
    report: JobReport, level: str, decision: str, words: str
) -> None:
    rating = rate(report, level)
    assert rating.decision == decision
    assert any(words in reason for reason in rating.reasons), rating.reasons


def test_an_unknown_level_is_named() -> None:
    assert rate(GOOD).rigor == "L1"
    assert rate(GOOD, " l2 ").rigor == "L2"
    with pytest.raises(InvalidRequest, match="'L9'; allowed are L0, L1, L2, L3"):
        rate(GOOD, "L9")


@given(REPORTS, st.sampled_from(LEVELS))
def test_a_failed_build_and_missing_required_evidence_always_block(
    report: JobReport, level: str
) -> None:
    rating = rate(report, level)
    assert 0 <= rating.score <= 100
    reported = {
        name
        for name in ("build", "unit", "static", "e2e")
        if (part := getattr(report, name)) is not None
        and (not isinstance(part, SuiteRun) or part.passed + part.failed)
    }
    if (
        "build" not in reported
        or not (report.build and report.build.ok)
        or not set(levels()[level].required) <= reported
    ):
        assert rating.decision == "block"
    if rating.decision != "pass":
        assert rating.reasons
