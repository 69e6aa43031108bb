"""Mean review scores by answer. Reviewers are weighted by how well their scores separate right from
wrong answers.

Right answers are proven and pass the acceptance checks; wrong answers fail one. A reviewer ordered
a pair of a right and a wrong answer correctly if it scored the right one higher. Equal scores count
as half a pair. Its weight is

    w = max(0, 2 correct / pairs - 1)       1 if it reviewed no such pair

A reviewer that scores at random, equally or the wrong way round has weight 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moothall.domain.proposal import Candidate

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
    right = {
        answer
        for candidate, answer, answer_failures in entries
        if not answer_failures and candidate.proven and not candidate.about_text
    }
    wrong = {
        answer
        for candidate, answer, answer_failures in entries
        if answer_failures and not candidate.about_text
    } - right
    weights = {
        name: _reviewer_weight(name, scores, right, wrong)
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
