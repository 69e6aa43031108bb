"""Two hosts that worked at the same time: the evidence about one proposal does not apply to another
of the same name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moothall.collector.decide import decide
from moothall.collector.fold import DeliberationState, fold
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import Evidence, Verdict
from moothall.domain.proposal import Proposal, Review
from support.story import SEATS, Story

FIRST, SECOND, THIRD = SEATS


def proposal(seat: str, body: str, **fields: Any) -> Proposal:
    return Proposal(
        seat,
        "dev",
        body,
        f"diff --git a/u.py b/u.py\n--- a/u.py\n+++ b/u.py\n@@ -0,0 +1 @@\n+{body}\n",
        **fields,
    )


def proposes(story: Story, proposal: Proposal) -> Story:
    kind = EventType.SEAT_REVISED if proposal.revision else EventType.SEAT_PROPOSED
    return story.add(
        kind, {"seat": proposal.seat, "candidate": proposal.candidate, "proposal": dump(proposal)}
    )


def checks(story: Story, proposal: Proposal, *, passed: bool) -> Story:
    verdict = Verdict.PASSED if passed else Verdict.FAILED
    about = {
        "seat": proposal.seat,
        "candidate": proposal.candidate,
        "fingerprint": proposal.fingerprint,
    }
    facts = {
        "applies": True,
        "required": ["tests"],
        "regressions": [],
        "proven": passed,
        "behaviour": verdict.value,
    }
    story.add(EventType.CHECK_FINISHED, {**about, "evidence": dump(Evidence("tests", verdict))})
    applies = dump(Evidence("applies", Verdict.PASSED))
    return story.add(EventType.CHECK_FINISHED, {**about, "evidence": applies, "assessment": facts})


def crosses(story: Story, proposal: Proposal, author: Proposal, *, passed: bool) -> Story:
    evidence = dump(Evidence("cross", Verdict.PASSED if passed else Verdict.FAILED))
    about = {
        "seat": proposal.seat,
        "candidate": proposal.candidate,
        "fingerprint": proposal.fingerprint,
    }
    author_fields = {"cross_author": author.seat, "cross_fingerprint": author.fingerprint}
    return story.add(EventType.CHECK_FINISHED, {**about, "evidence": evidence, **author_fields})


def fold_story(story: Story) -> DeliberationState:
    state = None
    for event in story.events:
        state = fold(state, event)
    assert state is not None
    return state


def test_evidence_belongs_to_the_proposal_it_judged() -> None:
    bad_proposal, good_proposal = proposal(FIRST, "bad"), proposal(FIRST, "good")
    story = proposes(proposes(Story().begun(), bad_proposal), good_proposal)
    checks(story, good_proposal, passed=True)
    for seat in SEATS:
        story.finished(seat)
    outcome = decide(fold_story(story))
    assert [result.diff for result in outcome.results] == [
        good_proposal.diff
    ]  # the judged one remains
    assert outcome.winner_id == FIRST
    assert outcome.results[0].checks == {"applies": "passed", "tests": "passed"}


def test_the_earlier_of_two_judged_proposals_counts_with_its_own_evidence() -> None:
    bad_proposal, good_proposal = proposal(FIRST, "bad"), proposal(FIRST, "good")
    story = proposes(proposes(Story().begun(), bad_proposal), good_proposal)
    checks(checks(story, good_proposal, passed=True), bad_proposal, passed=False)
    about = {"seat": SECOND, "candidate": FIRST, "fingerprint": good_proposal.fingerprint}
    story.add(EventType.SEAT_REVIEWED, {**about, "review": dump(Review(SECOND, FIRST, 1.0))})
    for seat in SEATS:
        story.finished(seat)
    outcome = decide(fold_story(story))
    assert [result.diff for result in outcome.results] == [bad_proposal.diff]
    assert outcome.results[0].checks == {"applies": "passed", "tests": "failed"}
    assert outcome.results[0].reviews == ()  # they belonged to the other one
    assert outcome.winner_id == ""


def test_tests_changed_by_their_author_in_a_revision_no_longer_count() -> None:
    solved = proposal(FIRST, "solved")
    first = proposal(SECOND, "old tests", own_tests=("tests/test_new.py",))
    revised = replace(proposal(SECOND, "new tests", own_tests=("tests/test_new.py",)), revision=1)
    story = Story().begun()
    for candidate in (solved, first, revised):
        checks(proposes(story, candidate), candidate, passed=True)
    crosses(story, solved, first, passed=False)
    crosses(story, solved, revised, passed=True)
    for seat in SEATS:
        story.finished(seat)
    place = next(result for result in decide(fold_story(story)).results if result.seat == FIRST)
    assert "Passes the tests of another author." in place.reasons
