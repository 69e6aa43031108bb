"""The comparison of a council's candidates, from its recorded events."""

from __future__ import annotations

from dataclasses import replace

from moothall.api.web.results import Comparison, Share, compare, level_reason
from moothall.collector.decide import decide
from moothall.collector.fold import DeliberationState, fold
from moothall.collector.progress import Progress, SeatProgressByName, advance_seats
from moothall.domain.event import Recorded
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.outcome import Outcome
from support.story import SEATS, Story, full

FIRST, SECOND, THIRD = SEATS


def compare_candidates(story: Story) -> tuple[Outcome, Comparison]:
    state: DeliberationState | None = None
    seats: SeatProgressByName = {}
    for seq, event in enumerate(story.events, 1):
        state = fold(state, event)
        seats = advance_seats(seats, Recorded(seq, event))
    assert state is not None
    outcome = decide(state)
    return outcome, compare(outcome, Progress(state, outcome.status, seats=seats))


def test_a_row_has_the_figures_of_its_candidate() -> None:
    _, comparison = compare_candidates(full())
    won, loser = comparison.rows
    assert (won.result.seat, won.failed_checks, won.tests) == (FIRST, (), Share(1, 1))
    assert won.authors == Share(1, 1)  # the tests of the second seat pass on it
    assert (won.files, won.added, won.removed, won.review) == (1, 1, 0, 0.9)
    assert (won.usage.tokens, round(won.usage.cost_usd, 2)) == (11, 0.1)
    assert won.seconds > 0
    assert (loser.result.seat, loser.failed_checks, loser.tests) == (
        SECOND,
        ("tests",),
        Share(0, 1),
    )
    assert comparison.has_cost
    assert comparison.decisive.startswith(f"{FIRST} above {SECOND}: failed acceptance checks")


def test_text_shared_by_accepted_candidates_appears_once() -> None:
    story = Story().begun()
    for seat, body in zip(SEATS, ("good", "fine", "bad"), strict=True):
        story.proposed(seat, body).checked(seat, passed=body != "bad", proven=body != "bad")
    outcome, comparison = compare_candidates(story)
    shared = set(outcome.results[0].reasons) & set(outcome.results[1].reasons)
    assert shared
    assert set(comparison.common_reasons) == shared
    assert comparison.sharing_count == 2
    for row in comparison.rows[:2]:
        assert not shared & set(row.reasons)
        assert {*row.reasons, *shared} == set(row.result.reasons)
    assert comparison.rows[2].reasons == outcome.results[2].reasons


def test_a_single_candidate_has_no_common_reasons() -> None:
    _, comparison = compare_candidates(Story().begun().proposed(FIRST, "good").checked(FIRST))
    assert comparison.common_reasons == ()
    assert comparison.rows[0].reasons


def test_the_evidence_level_has_a_reason() -> None:
    outcome, _ = compare_candidates(
        Story().begun().proposed(FIRST, "x").checked(FIRST, proven=False)
    )
    [result] = outcome.results
    assert level_reason(result) == "no test that failed on the base passes."
    bare = replace(result, reasons=(), evidence_level=EvidenceLevel.SELF_TESTED)
    assert level_reason(bare) == "only a test by its own author failed before and passes now."
