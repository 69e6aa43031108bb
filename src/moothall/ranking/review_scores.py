"""What reviews come to: a mean by answer, in which a reviewer counts as far as its scores tell
right from wrong on what is proven.

Right are answers that are proven and pass the gates, wrong those that fail a gate. Of the pairs of
a right and a wrong answer that a reviewer judged, it told those apart that it scored higher where
it should, and half of those that it scored alike. Its weight is

    w = max(0, 2 told / pairs - 1)          1 where it judged no such pair

so that one who scores by chance, all alike or the wrong way round counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moothall.domain.proposal import Candidate

_NEUTRAL = 500


@dataclass(frozen=True, slots=True)
class Opinion:
    """Of one answer: the mean in thousandths, how many reviewers it has, those that count for less
    than they would, and all their names.
    """

    mean: int = _NEUTRAL
    reviewers: int = 0
    doubted: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()


def opinions(
    candidates: Sequence[Candidate], answers: Sequence[str], failures: Sequence[Sequence[str]]
) -> dict[str, Opinion]:
    """Return by answer what was thought of it. Reviews are of an answer, not of who gave it: the
    same answer given twice has all of both, and none by any seat that gave it.
    """
    scores = _scores(candidates, answers)
    sides = list(zip(candidates, answers, failures, strict=True))
    right = {
        answer
        for item, answer, failed in sides
        if not failed and item.proven and not item.about_text
    }
    wrong = {answer for item, answer, failed in sides if failed and not item.about_text} - right
    weights = {
        name: _weight(name, scores, right, wrong)
        for name in {name for given in scores.values() for name in given}
    }
    return {answer: _opinion(given, weights) for answer, given in scores.items()}


def _opinion(given: Mapping[str, float], weights: Mapping[str, float]) -> Opinion:
    doubted = tuple(sorted(name for name in given if weights[name] < 1))
    total = math.fsum(weights[name] for name in given)
    if not total:
        return Opinion(reviewers=len(given), doubted=doubted, names=frozenset(given))
    mean = math.fsum(weights[name] * score for name, score in given.items()) / total
    return Opinion(round(1000 * mean), len(given), doubted, frozenset(given))


def _scores(candidates: Sequence[Candidate], answers: Sequence[str]) -> dict[str, dict[str, float]]:
    """Answer → reviewer → its mean score of it."""
    givers: dict[str, set[str]] = {}
    said: dict[str, dict[str, set[float]]] = {}
    for candidate, answer in zip(candidates, answers, strict=True):
        givers.setdefault(answer, set()).add(candidate.proposal.seat)
        scores = said.setdefault(answer, {})
        for review in candidate.reviews:
            if math.isfinite(review.score):
                scores.setdefault(review.reviewer, set()).add(min(1.0, max(0.0, review.score)))
    return {
        answer: {name: _mean(given) for name, given in scores.items() if name not in givers[answer]}
        for answer, scores in said.items()
    }


def _weight(
    name: str, scores: Mapping[str, Mapping[str, float]], right: Iterable[str], wrong: Iterable[str]
) -> float:
    good, bad = (
        [scores[answer][name] for answer in side if name in scores[answer]]
        for side in (right, wrong)
    )
    pairs = len(good) * len(bad)
    told = sum(
        1.0 if one > other else 0.5 if one == other else 0.0 for one in good for other in bad
    )
    return max(0.0, 2 * told / pairs - 1) if pairs else 1.0


def _mean(values: Iterable[float]) -> float:
    """`fsum` is exact, so that the order of the values cannot show in the last bit."""
    found = list(values)
    return math.fsum(found) / len(found)
