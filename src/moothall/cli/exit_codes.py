"""The exit codes of commands, by a deliberation's outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every command imports this
    from moothall.domain.outcome import Outcome

EXIT_NONE, EXIT_WRONG, EXIT_UNPROVEN, EXIT_INTERRUPTED = 1, 2, 3, 130

BROKEN = frozenset(
    {
        "AUDIT_UNAVAILABLE",
        "BUS_UNAVAILABLE",
        "CONFIGURATION",  # a wrong URL or model name, a key that the server refuses
        "INTERNAL",
        "INVALID_REQUEST",
        "MODEL_REPLY_INVALID",
        "MODEL_UNAVAILABLE",
        "NOTHING_TO_JUDGE",
        "POLICY_UNAVAILABLE",
        "REPOSITORY_UNUSABLE",
        "SANDBOX_UNAVAILABLE",
        "WORKSPACE_FAILED",
    }
)
"""Error codes of seats for failures of the system; other codes (no change, malformed replies, out
of turns) are failures of the model.
"""


def exit_code(outcome: Outcome, *, answers: bool = False) -> int:
    """Return the exit code of an outcome.

    0: the winner is proven or reproduced, or the task is already done. 3: another winner. 1: none.
    2: a part was broken: the winner could not be delivered, or no seat could work at all.
    answers: an answer in words needs no proof.
    """
    if outcome.winner_id:
        if outcome.final_state == "failed":
            return EXIT_WRONG
        if outcome.final_state == "already_done":
            return 0
        return (
            0
            if outcome.level.independent or (answers and outcome.final_state == "answered")
            else EXIT_UNPROVEN
        )
    seats = [seat for seat in outcome.seats if seat.status != "unstarted" or seat.error_code]
    broken = bool(seats) and all(
        seat.status == "failed" and seat.error_code in BROKEN for seat in seats
    )
    return EXIT_WRONG if broken and not outcome.results else EXIT_NONE
