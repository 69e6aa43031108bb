"""Random councils of three seats without a deciding test on the base: how often a right answer
wins.
"""

from __future__ import annotations

import random

import pytest

from moothall.domain.evidence import Evidence, Verdict
from moothall.domain.proposal import Assessment, Candidate, CrossRun, Proposal
from moothall.ranking import rank

DRAWS, RIGHT, BRINGS = 400, 0.7, 0.5  # probability that a seat is right, and that it brings tests
# By the author's correctness: a test asks for what the task asks for.
FITS = {True: 0.85, False: 0.4}
PASSING = (Evidence("tests", Verdict.PASSED, passed=2),)


def council(drawn: random.Random, dropped: float) -> tuple[list[Candidate], list[bool]]:
    """Return three candidates, and which are right. `dropped`: the share of the invalid tests that
    a reader of the task removes.
    """
    right = [drawn.random() < RIGHT for _ in range(3)]
    brings = [drawn.random() < BRINGS for _ in range(3)]
    valid_tests = [drawn.random() < FITS[is_right] for is_right in right]
    counts = [
        has_test and (fit or drawn.random() >= dropped)
        for has_test, fit in zip(brings, valid_tests, strict=True)
    ]
    candidates = []
    for seat in range(3):
        cross = []
        for author in (
            colleague for colleague in range(3) if colleague != seat and counts[colleague]
        ):
            passed = drawn.random() < (0.15 if valid_tests[author] else 0.3) or (
                valid_tests[author] and right[seat]
            )
            cross.append(CrossRun(f"seat-{author}", passed))
        diff = f"diff --git a/u.py b/u.py\n--- a/u.py\n+++ b/u.py\n@@ -0,0 +1 @@\n+{seat}\n"
        proposal = Proposal(
            f"seat-{seat}", "dev", "", diff, own_tests=("test_new.py",) if brings[seat] else ()
        )
        candidates.append(
            Candidate(
                proposal,
                Assessment(applies=True, required=("tests",), evidence=PASSING, behaviour="b"),
                tuple(cross),
            )
        )
    return candidates, right


@pytest.mark.parametrize(("dropped", "min_share"), [(0.0, 0.8), (0.8, 0.83)])
def test_a_right_answer_usually_wins_if_there_is_one(dropped: float, min_share: float) -> None:
    drawn = random.Random(7)  # noqa: S311 - the same draws each time
    councils = [council(drawn, dropped) for _ in range(DRAWS)]
    won = [right[int(rank(candidates)[0].seat[-1])] for candidates, right in councils if any(right)]
    assert sum(won) / len(won) > min_share
