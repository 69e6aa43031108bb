from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.deliberation.attempt import (
    FINISH,
    TOO_EARLY,
    UNUSABLE,
    TurnStep,
    find_stuck_reason,
    is_repeat,
)

A, B = frozenset({"t::a"}), frozenset({"t::b"})


def change(fingerprint: str, tree: str, failing: frozenset[str] = A) -> TurnStep:
    return TurnStep(fingerprint, tree, changed=True, failing=failing)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([], ""),
        ([change("one", "1")], ""),
        # A repeated action that changes a file: an append, again and again.
        ([change("append", "1"), change("append", "2")], "the same change as in an earlier turn"),
        (
            [change("append", "1"), change("edit", "2", B), change("append", "3", B)],
            "the same change as in an earlier turn",
        ),
        (
            [change("do", "1"), change("undo", "2", B), change("other", "1")],
            "back where it was in an earlier turn",
        ),
        (
            [change("a", "1"), change("b", "2"), change("c", "3")],
            "the same tests failed for 3 turns",
        ),
        ([change("a", "1"), change("b", "2", B), change("c", "3")], ""),
        (
            [change("a", "1"), TurnStep("look", "1"), change("b", "2"), change("c", "3")],
            "the same tests failed for 3 turns",
        ),
        (
            [
                change("a", "1", frozenset()),
                change("b", "2", frozenset()),
                change("c", "3", frozenset()),
            ],
            "",
        ),
        ([TurnStep("look"), TurnStep("look")], ""),
        (
            [TurnStep("look"), TurnStep("look"), TurnStep("look")],
            "the same step 3 times, and nothing changed",
        ),
        ([TurnStep("look"), change("a", "1"), TurnStep("look", "1"), TurnStep("look", "1")], ""),
        ([TurnStep(FINISH), TurnStep("look"), TurnStep(FINISH), TurnStep(FINISH)], TOO_EARLY),
        ([TurnStep("x", malformed=True), TurnStep("y", malformed=True)], ""),
        (
            [
                TurnStep("x", malformed=True),
                TurnStep("y", malformed=True),
                TurnStep("x", malformed=True),
            ],
            UNUSABLE,
        ),
    ],
)
def test_loops_of_a_seat_are_detected(steps: list[TurnStep], reason: str) -> None:
    assert find_stuck_reason(steps, 3) == reason


def test_reading_the_same_files_again_is_a_repeat() -> None:
    assert not is_repeat([TurnStep("look")])
    assert is_repeat([TurnStep("look"), TurnStep("other"), TurnStep("look")])
    assert not is_repeat([TurnStep("look"), change("a", "1"), TurnStep("look", "1")])
    assert not is_repeat([change("a", "1"), change("a", "2")])


_STEPS = st.builds(
    TurnStep,
    action_digest=st.sampled_from(["a", "b", FINISH]),
    change_digest=st.sampled_from(["", "1", "2"]),
    changed=st.booleans(),
    failing=st.sampled_from([frozenset(), A, B]),
)


@given(st.lists(_STEPS, max_size=8), st.integers(2, 4))
def test_a_repetition_is_detected_within_one_more_round(steps: list[TurnStep], limit: int) -> None:
    """Whatever came before, a repeated change is a loop, and so is a look repeated twice."""
    last = TurnStep("same", "9", changed=True)
    assert find_stuck_reason([*steps, last, last], limit)
    repeated_step = TurnStep("look", "9")
    assert find_stuck_reason([*steps, repeated_step, repeated_step, repeated_step], limit)


@given(st.integers(1, 20), st.integers(2, 4))
def test_a_seat_that_makes_progress_is_not_interrupted(count: int, limit: int) -> None:
    steps = [
        change(f"do {number}", str(number), frozenset({str(number)})) for number in range(count)
    ]
    assert not any(find_stuck_reason(steps[: end + 1], limit) for end in range(count))
