"""What seats and reviewers learn about an answer: nothing of hidden tests."""

from __future__ import annotations

from moothall.deliberation.judging.evaluator import format_check_results, solves
from moothall.deliberation.judging.hidden import visible_candidate, without_hidden
from moothall.domain.evidence import OWN_TESTS, Evidence, EvidenceLevel, Verdict
from moothall.domain.proposal import Assessment, Candidate, Proposal
from moothall.ranking import passes_acceptance_checks


def test_the_level_the_flagged_lines_and_the_facts_name_no_hidden_test() -> None:
    assessment = Assessment(
        applies=True,
        required=("tests", "hidden"),
        regressions=(),
        proven=True,
        behaviour="x",
        evidence=(
            Evidence("tests", Verdict.PASSED, passed=1),
            Evidence("hidden", Verdict.PASSED, passed=1, proven=True),
        ),
        fixed=("hidden:tests/test_secret.py::test_secret",),
        look=(
            "hidden:tests/data/secret.json:1: it is data of tests",
            "src/a.py:3: ends the process",
        ),
    )
    judged = Candidate(Proposal("agent-dev-001", "dev", "", "diff"), assessment)
    assert (judged.level, visible_candidate(judged).level) == (
        EvidenceLevel.PROVEN,
        EvidenceLevel.UNPROVEN,
    )
    assert without_hidden(judged.assessment).look == ("src/a.py:3: ends the process",)
    assert "hidden" not in f"{without_hidden(judged.assessment)}{format_check_results(judged, {})}"


def test_an_answer_refused_only_by_a_hidden_test_appears_to_pass() -> None:
    broken = ("hidden:tests/test_secret.py::test_secret",)
    assessment = Assessment(
        applies=True,
        required=("tests", "hidden"),
        regressions=broken,
        proven=False,
        behaviour="x",
        evidence=(
            Evidence("tests", Verdict.PASSED, passed=1),
            Evidence("hidden", Verdict.FAILED, failed=1, red=broken),
        ),
    )
    judged = Candidate(Proposal("agent-dev-001", "dev", "", "diff"), assessment)
    assert (
        passes_acceptance_checks(judged),
        passes_acceptance_checks(visible_candidate(judged)),
        solves(judged),
    ) == (
        False,
        True,
        True,
    )


def test_the_reason_why_own_tests_do_not_count_is_given() -> None:
    missing = Evidence(OWN_TESTS, Verdict.MISSING, why="they pass without the change")
    judged = Candidate(
        Proposal("agent-dev-001", "dev", "", "diff"), Assessment(applies=True, evidence=(missing,))
    )
    assert "own tests: missing: they pass without the change" in format_check_results(judged, {})
