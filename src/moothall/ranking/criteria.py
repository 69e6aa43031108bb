"""Criteria by which candidates are ranked: the acceptance checks that a candidate must meet to win,
and the mean review scores of answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from moothall.domain.evidence import SECRETS, Evidence, Verdict
from moothall.domain.proposal import Candidate
from moothall.domain.task import VALIDATION
from moothall.ranking.test_cases import may_be_own

# Acceptance checks.


_MAX_NAMED_CASES = 3
_NAME_CHARS = 80
_EDITED_TESTS_NOTE = " The answer changes tests there, but they count as they are on the base."


def list_failed_checks(candidate: Candidate) -> tuple[str, ...]:
    """Return one sentence for each acceptance check that the candidate fails; () if it
    passes all.
    """
    if candidate.about_text:
        return () if candidate.proposal.content.strip() else ("The answer is empty.",)
    return tuple(_find_failures(candidate))


def passes_acceptance_checks(candidate: Candidate) -> bool:
    """True if the candidate may win."""
    return not list_failed_checks(candidate)


def _find_failures(candidate: Candidate) -> Iterable[str]:
    assessment = candidate.assessment
    if not candidate.proposal.diff.strip():
        yield "The patch is empty."
    elif not assessment.applies:
        yield "The patch does not apply on a clean checkout."
    elif assessment.idle and not assessment.proven:
        yield (
            "The patch changes comments, docstrings or formatting alone, and the task asks for "
            "more."
        )
    nothing_passed = not any(
        evidence.passed or evidence.verdict is Verdict.PASSED
        for evidence in assessment.evidence
        if evidence.check in assessment.required
    )
    for check in dict.fromkeys(assessment.required):
        entries = [evidence for evidence in assessment.evidence if evidence.check == check]
        failed_entry = next(
            (evidence for evidence in entries if evidence.verdict is not Verdict.PASSED), None
        )
        if not entries or (failed_entry and failed_entry.verdict is Verdict.MISSING):
            reason = (
                sanitize_line(failed_entry.why, 300) if failed_entry and failed_entry.why else ""
            )
            yield (
                f"Required check {sanitize_line(check)} has no verdict: {reason}."
                if reason
                else f"Required check {sanitize_line(check)} is missing."
            )
        elif failed_entry and (
            nothing_passed
            or assessment.missed
            or not _is_excused(failed_entry, candidate.superseded)
        ):
            yield (
                f"Required check {sanitize_line(check)} {failed_entry.verdict}"
                f"{format_counts(failed_entry)}{_explain_failure(failed_entry)}."
            )
    for evidence in assessment.evidence:
        if evidence.check == SECRETS and evidence.verdict is Verdict.FAILED:
            yield (
                "What looks like a key or password is assembled from parts at "
                f"{format_cases(evidence.look)}."
            )
    if regressions := [case for case in assessment.regressions if case not in candidate.superseded]:
        is_single = len(regressions) == 1
        edited = any(may_be_own(case, candidate.proposal.own_tests) for case in regressions)
        yield (
            f"{len(regressions)} {'test' if is_single else 'tests'} that passed on the base no "
            f"longer {'does' if is_single else 'do'}: {format_cases(regressions)}."
            f"{_EDITED_TESTS_NOTE if edited else ''}"
        )


def _is_excused(evidence: Evidence, superseded: AbstractSet[str]) -> bool:
    """True if every failure of a check failed on the base or is superseded by the task.

    Such failures do not count against a candidate, except in a check of the caller's.
    """
    if evidence.verdict is not Verdict.FAILED or evidence.check.startswith(f"{VALIDATION}-"):
        return False
    return bool(evidence.red_before or evidence.red) and superseded >= {*evidence.red}


def format_counts(evidence: Evidence) -> str:
    """Return ` (11 of 13 passed, 1 failed before)`; '' if the check counted nothing."""
    total = evidence.passed + evidence.failed
    before = f", {evidence.before} failed before" if evidence.before else ""
    return f" ({evidence.passed} of {total} passed{before})" if total else ""


def format_cases(cases: Sequence[str]) -> str:
    """Return the first few names as one line, each with its end: names of one file begin alike."""
    names = [_cut_middle(sanitize_line(case, len(case))) for case in cases[:_MAX_NAMED_CASES]]
    separator = "; " if any(", " in name for name in names) else ", "
    return separator.join([*names, *(["…"] if len(cases) > _MAX_NAMED_CASES else [])])


def _cut_middle(name: str) -> str:
    head = _NAME_CHARS // 3
    if len(name) <= _NAME_CHARS:
        return name
    return f"{name[:head]}…{name[head + 1 - _NAME_CHARS :]}"


def _explain_failure(evidence: Evidence) -> str:
    """Return the new failures of a check; else why it stopped; else the failures that remain from
    the base.
    """
    if evidence.red:
        return f": {format_cases(evidence.red)}"
    if evidence.why:
        return f": {sanitize_line(evidence.why, 200)}"
    return (
        f": failing as on the base: {format_cases(evidence.red_before)}"
        if evidence.red_before
        else ""
    )


def sanitize_line(text: str, max_chars: int = _NAME_CHARS) -> str:
    """Return a text from an untrusted source as one short printable line."""
    line = "".join(char if char.isprintable() else "?" for char in text)
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


# Mean review scores by answer. Reviewers are weighted by how well their scores separate right from
# wrong answers.
#
# Right answers are proven and pass the acceptance checks; wrong answers fail one. A reviewer
# ordered a pair of a right and a wrong answer correctly if it scored the right one higher. Equal
# scores count as half a pair. Its weight is
#
#     w = max(0, 2 correct / pairs - 1)       1 if it reviewed no such pair
#
# A reviewer that scores at random, equally or the wrong way round has weight 0.


_NEUTRAL_SCORE = 500


@dataclass(frozen=True, slots=True)
class ReviewScore:
    """The reviews of one answer.

    mean: the mean score in thousandths.
    reviewers: the number of reviewers.
    doubted: the reviewers with a weight below 1.
    names: all reviewers.
    """

    mean: int = _NEUTRAL_SCORE
    reviewers: int = 0
    doubted: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()


def score_answers(
    candidates: Sequence[Candidate], answers: Sequence[str], failures: Sequence[Sequence[str]]
) -> dict[str, ReviewScore]:
    """Return the mean review score by answer.

    Reviews belong to an answer, not to its author. An answer that was given twice has the reviews
    of both proposals, except those of seats that gave it.
    """
    scores = _scores_by_reviewer(candidates, answers)
    entries = list(zip(candidates, answers, failures, strict=True))
    right_answers = {
        answer
        for candidate, answer, answer_failures in entries
        if not answer_failures and candidate.proven and not candidate.about_text
    }
    wrong_answers = {
        answer
        for candidate, answer, answer_failures in entries
        if answer_failures and not candidate.about_text
    } - right_answers
    weights = {
        name: _reviewer_weight(name, scores, right_answers, wrong_answers)
        for name in {name for answer_scores in scores.values() for name in answer_scores}
    }
    return {
        answer: _score_answer(answer_scores, weights) for answer, answer_scores in scores.items()
    }


def _score_answer(scores: Mapping[str, float], weights: Mapping[str, float]) -> ReviewScore:
    doubted = tuple(sorted(name for name in scores if weights[name] < 1))
    total = math.fsum(weights[name] for name in scores)
    if not total:
        return ReviewScore(reviewers=len(scores), doubted=doubted, names=frozenset(scores))
    mean = math.fsum(weights[name] * score for name, score in scores.items()) / total
    return ReviewScore(round(1000 * mean), len(scores), doubted, frozenset(scores))


def _scores_by_reviewer(
    candidates: Sequence[Candidate], answers: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return by answer the mean score of each reviewer."""
    authors: dict[str, set[str]] = {}
    scores_by_answer: dict[str, dict[str, set[float]]] = {}
    for candidate, answer in zip(candidates, answers, strict=True):
        authors.setdefault(answer, set()).add(candidate.proposal.seat)
        scores = scores_by_answer.setdefault(answer, {})
        for review in candidate.reviews:
            if math.isfinite(review.score):
                scores.setdefault(review.reviewer, set()).add(min(1.0, max(0.0, review.score)))
    return {
        answer: {
            name: _mean(values) for name, values in scores.items() if name not in authors[answer]
        }
        for answer, scores in scores_by_answer.items()
    }


def _reviewer_weight(
    name: str, scores: Mapping[str, Mapping[str, float]], right: Iterable[str], wrong: Iterable[str]
) -> float:
    right_scores, wrong_scores = (
        [scores[answer][name] for answer in answers if name in scores[answer]]
        for answers in (right, wrong)
    )
    pairs = len(right_scores) * len(wrong_scores)
    correct = sum(
        1.0 if right_score > wrong_score else 0.5 if right_score == wrong_score else 0.0
        for right_score in right_scores
        for wrong_score in wrong_scores
    )
    return max(0.0, 2 * correct / pairs - 1) if pairs else 1.0


def _mean(values: Iterable[float]) -> float:
    """Return the mean. `fsum` is exact, so the order of the values does not matter."""
    items = list(values)
    return math.fsum(items) / len(items)
