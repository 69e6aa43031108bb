"""What seats and reviewers may learn about an answer: nothing of hidden tests."""

from __future__ import annotations

from moothall.deliberation.judging.evaluator import EvaluatedProposal, format_check_results
from moothall.domain.evidence import Evidence, EvidenceLevel, Verdict
from moothall.domain.proposal import Assessment, Proposal
from moothall.ranking import passes_acceptance_checks


def test_the_level_the_lines_to_look_at_and_the_facts_name_no_hidden_test() -> None:
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
    judged = EvaluatedProposal(Proposal("agent-dev-001", "dev", "", "diff"), assessment)
    assert (judged.candidate.level, judged.visible_candidate.level) == (
        EvidenceLevel.PROVEN,
        EvidenceLevel.UNPROVEN,
    )
    assert judged.visible_assessment.look == ("src/a.py:3: ends the process",)
    assert "hidden" not in f"{judged.visible_assessment}{format_check_results(judged, {})}"


def test_an_answer_that_only_a_hidden_test_refuses_looks_like_one_that_passes() -> None:
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
    judged = EvaluatedProposal(Proposal("agent-dev-001", "dev", "", "diff"), assessment)
    assert (judged.passes, passes_acceptance_checks(judged.visible_candidate), judged.solves) == (
        False,
        True,
        True,
    )
