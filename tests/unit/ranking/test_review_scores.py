"""The effect of reviews by reviewers who distinguish right from wrong, and by others."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.evidence import Evidence, Verdict
from moothall.domain.proposal import Assessment, Candidate, Proposal, Review
from moothall.ranking import rank
from moothall.ranking.criteria import score_answers

GREEN, FAILING = (
    (Evidence("tests", Verdict.PASSED, passed=2),),
    (Evidence("tests", Verdict.FAILED, failed=1),),
)


def answer(seat: str, *, proven: bool, **scores: float) -> Candidate:
    """Return a candidate of a seat with the scores of its reviewers."""
    reviews = tuple(Review(name, seat, score) for name, score in scores.items())
    diff = f"diff --git a/u.py b/u.py\n--- a/u.py\n+++ b/u.py\n@@ -0,0 +1 @@\n+{seat}\n"
    assessment = Assessment(
        applies=True,
        required=("tests",),
        evidence=GREEN if proven else FAILING,
        proven=proven,
        behaviour="b",
    )
    return Candidate(Proposal(seat, "dev", "done", diff), assessment, reviews=reviews)


def test_the_test_that_separates_right_from_wrong_decides_and_the_other_is_named() -> None:
    """Two proven answers are equally good; the reviewer who also liked the failing one does not
    count.
    """
    field = [
        answer("a", proven=True, sure=0.9, blind=0.2),
        answer("b", proven=True, sure=0.5, blind=0.6),
        answer("c", proven=False, sure=0.1, blind=1.0),
    ]
    first, second, _ = rank(field)
    assert (first.candidate, second.candidate) == ("a", "b")
    assert any(
        "Reviewed at 0.90 by 2 seats; of less weight, since their scores hardly distinguish proven "
        "answers from wrong ones: blind" in reason
        for reason in first.reasons
    ), first.reasons


@pytest.mark.parametrize(
    ("red", "mean", "doubted"),
    [(0.2, 800, ()), (0.8, 500, ("one",)), (0.9, 500, ("one",))],
    ids=["distinguished", "equal scores", "inverted scores"],
)
def test_reviewers_who_do_not_distinguish_right_from_wrong_are_discounted(
    red: float, mean: int, doubted: tuple[str, ...]
) -> None:
    field = [answer("a", proven=True, one=0.8), answer("b", proven=False, one=red)]
    scores = score_answers(field, ["a", "b"], [(), ("red",)])
    assert (scores["a"].mean, scores["a"].reviewers, scores["a"].doubted) == (mean, 1, doubted)


def test_without_a_proven_answer_all_reviewers_count_equally() -> None:
    field = [answer("a", proven=False, one=0.8, two=0.4), answer("b", proven=False, one=0.9)]
    assert score_answers(field, ["a", "b"], [("red",), ("red",)])["a"].mean == 600


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.dictionaries(st.sampled_from("xyz"), st.floats(allow_nan=True), max_size=3),
        ),
        min_size=1,
        max_size=5,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_reviews_does_not_matter(
    reviews: list[tuple[bool, dict[str, float]]], shuffle: random.Random
) -> None:
    field = [
        (answer(f"s{at}", proven=proven, **scores), f"s{at}", () if proven else ("red",))
        for at, (proven, scores) in enumerate(reviews)
    ]
    mixed = shuffle.sample(field, len(field))
    scores_of_field, scores_of_mixed = (
        score_answers(*map(list, zip(*order, strict=True))) for order in (field, mixed)
    )
    assert scores_of_field == scores_of_mixed
    assert all(0 <= item.mean <= 1000 for item in scores_of_field.values())
