from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.deliberation.judging.reviews import (
    assign_reviews,
    format_review,
    group_answers,
    make_review,
)
from moothall.deliberation.prompts.reply import ReadReview
from moothall.domain.proposal import Proposal


def proposal(seat: str, diff: str) -> Proposal:
    return Proposal(seat, "dev", "", diff)


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_grouping_answers_ignores_names_and_order(diffs: list[str], chance: random.Random) -> None:
    proposals = [proposal(f"s{number}", diff) for number, diff in enumerate(diffs)]
    shuffled = chance.sample(proposals, len(proposals))
    assert [answer.text for answer in group_answers(proposals)] == [
        answer.text for answer in group_answers(shuffled)
    ]
    renamed = [proposal(f"z{9 - number}", diff) for number, diff in enumerate(diffs)]
    assert [answer.text for answer in group_answers(proposals)] == [
        answer.text for answer in group_answers(renamed)
    ]


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8), st.integers(1, 4))
def test_no_seat_reviews_its_own_answer_or_more_than_its_share(
    diffs: list[str], reviews_per_seat: int
) -> None:
    seats = [f"s{number}" for number in range(len(diffs))]
    pairs = assign_reviews(
        group_answers(proposal(seat, diff) for seat, diff in zip(seats, diffs, strict=True)),
        seats,
        reviews_per_seat,
    )
    assert all(reviewer not in answer.seats for reviewer, answer in pairs)
    assert max(Counter(reviewer for reviewer, _ in pairs).values(), default=0) <= reviews_per_seat
    assert len(pairs) == len({(reviewer, answer.text) for reviewer, answer in pairs})
    reviews = Counter(answer.text for _, answer in pairs)
    if len(set(diffs)) == len(diffs):
        assert all(reviews[diff] == min(reviews_per_seat, len(diffs) - 1) for diff in diffs)


@pytest.mark.parametrize(
    "quote", ["def f():\n    return 1", "+def f():\n+    return 1", "def f(): return 1", "return 1"]
)
def test_a_quote_of_several_lines_is_found_in_a_diff(quote: str) -> None:
    read = ReadReview(8, ((1, quote),), (), "good")
    review = make_review(
        read, "s2", proposal("s1", "@@ -1 +1,2 @@\n+def f():\n+    return 1\n"), ("returns",)
    )
    assert (len(review.met), review.unmet) == (1, ())


def test_a_criterion_with_a_false_quote_is_not_met() -> None:
    read = ReadReview(8, ((1, "return  1"), (2, "never said"), (3, "return 1")), (3,), "fine")
    review = make_review(
        read,
        "s2",
        proposal("s1", "+def f():\n+    return 1\n"),
        ("returns", "is typed", "has tests"),
    )
    assert review.score == 0.8
    assert review.met == ('returns — "return  1"',)
    assert review.unmet == ("is typed", "has tests")
    assert "s2" not in format_review(review)
