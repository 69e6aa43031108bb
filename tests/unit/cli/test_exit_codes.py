from __future__ import annotations

import pytest

from moothall.cli.runtime import BROKEN, exit_code
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.proposal import SeatOutcome, SeatStatus


def won_outcome(*, proven: bool, final_state: str = "committed") -> Outcome:
    return Outcome(
        "t", DeliberationStatus.COMPLETED, winner_id="a", proven=proven, final_state=final_state
    )


def failed_outcome(*ends: tuple[SeatStatus, str]) -> Outcome:
    seats = tuple(
        SeatOutcome(f"s{number}", status, code) for number, (status, code) in enumerate(ends)
    )
    return Outcome("t", DeliberationStatus.FAILED, seats=seats, final_state="failed")


FAILED, LATE, UNSTARTED = SeatStatus.FAILED, SeatStatus.LATE, SeatStatus.UNSTARTED


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (won_outcome(proven=True), 0),
        (won_outcome(proven=False), 3),
        (won_outcome(proven=False, final_state="answered"), 3),
        (won_outcome(proven=True, final_state="failed"), 2),
        (failed_outcome((FAILED, "OUT_OF_TURNS"), (FAILED, "NO_CHANGES")), 1),
        (failed_outcome((FAILED, "MODEL_UNAVAILABLE"), (FAILED, "OUT_OF_TURNS")), 1),
        (failed_outcome((FAILED, "MODEL_UNAVAILABLE"), (FAILED, "CONFIGURATION")), 2),
        (failed_outcome((FAILED, "MODEL_UNAVAILABLE"), (UNSTARTED, "")), 2),
        (failed_outcome((LATE, "DEADLINE_EXCEEDED")), 1),
        (failed_outcome((UNSTARTED, "")), 1),
        (failed_outcome(), 1),
    ],
)
def test_an_outcome_has_its_exit_code(outcome: Outcome, code: int) -> None:
    assert exit_code(outcome) == code


@pytest.mark.parametrize("code", sorted(BROKEN))
def test_an_unavailable_part_exits_with_2(code: str) -> None:
    assert exit_code(failed_outcome((FAILED, code), (FAILED, code))) == 2


def test_a_lost_candidate_outweighs_an_unavailable_part() -> None:
    broken = failed_outcome((FAILED, "MODEL_UNAVAILABLE"))
    result = Result(1, "s", "dev", 0.1, (), passed_gates=False, proven=False)
    assert (
        exit_code(Outcome("t", DeliberationStatus.COMPLETED, seats=broken.seats, results=(result,)))
        == 1
    )


def test_a_text_answer_needs_no_proof() -> None:
    assert exit_code(won_outcome(proven=False, final_state="answered"), answers=True) == 0
    assert exit_code(won_outcome(proven=False), answers=True) == 3
