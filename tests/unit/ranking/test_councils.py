"""Councils drawn by chance, of three seats without a deciding test on the base: how often a right answer wins, and what sabotage takes."""

from __future__ import annotations

import random

import pytest

from moothall.domain.evidence import Evidence, Verdict
from moothall.domain.proposal import Assessment, Candidate, CrossRun, Proposal
from moothall.ranking import rank

DRAWS, RIGHT, BRINGS = 1500, 0.7, 0.5  # a seat is right, and brings tests
FITS = {True: 0.85, False: 0.4}  # by whether its author is right: a test asks for what the task asks for
GREEN = (Evidence("tests", Verdict.PASSED, passed=2),)


def council(drawn: random.Random, sabotage: str) -> tuple[list[Candidate], list[bool]]:
    """Three candidates, and which are right. The first is the saboteur's, smallest, with a test that only it passes."""
    right = [drawn.random() < RIGHT and not (sabotage and seat == 0) for seat in range(3)]
    brings = [drawn.random() < BRINGS or bool(sabotage and seat == 0) for seat in range(3)]
    fits = [drawn.random() < FITS[one] for one in right]
    found = []
    for seat in range(3):
        cross = []
        for author in (other for other in range(3) if other != seat and brings[other]):
            passed = drawn.random() < (0.15 if fits[author] else 0.3) or (fits[author] and right[seat])
            if sabotage:
                passed = (passed or (sabotage == "forged" and seat == 0)) and author != 0
            cross.append(CrossRun(f"seat-{author}", passed))
        lines = 1 if sabotage and seat == 0 else drawn.randint(2, 9)
        diff = "diff --git a/u.py b/u.py\n--- a/u.py\n+++ b/u.py\n@@ -0,0 +1 @@\n" + f"+{seat}\n" * lines
        proposal = Proposal(f"seat-{seat}", "dev", "", diff, own_tests=("test_new.py",) if brings[seat] else ())
        found.append(
            Candidate(proposal, Assessment(applies=True, required=("tests",), evidence=GREEN, behaviour="b"), tuple(cross))
        )
    return found, right


@pytest.mark.parametrize(("sabotage", "least"), [("", 0.84), ("own", 0.65), ("forged", 0.58)])
def test_a_right_answer_wins_where_there_is_one(sabotage: str, least: float) -> None:
    """It was 0.85, 0.39 and 0 when every author's tests counted for those who passed them."""
    drawn = random.Random(7)  # noqa: S311 - drawn alike each time
    councils = [council(drawn, sabotage) for _ in range(DRAWS)]
    won = [right[int(rank(found)[0].seat[-1])] for found, right in councils if any(right)]
    assert sum(won) / len(won) > least
