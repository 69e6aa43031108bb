from __future__ import annotations

import random
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.evidence import APART, INPUTS, Evidence, Verdict
from moothall.domain.proposal import Assessment, Candidate, CrossRun, Proposal, Review
from moothall.ranking import passes_gates, rank, rivals, ties
from moothall.ranking.order import changed_lines

SEATS = tuple(f"agent-dev-{number:03d}" for number in range(1, 6))
GREEN = (Evidence("tests", Verdict.PASSED, passed=2),)


def diff(*lines: str) -> str:
    return "\n".join(
        ["diff --git a/u.py b/u.py", "--- a/u.py", "+++ b/u.py", "@@ -0,0 +1 @@", *(f"+{line}" for line in lines), ""]
    )


FOUND = {field.name for field in fields_of(Assessment)}


def candidate(number: int, text: str = "", **facts: Any) -> Candidate:
    seat = SEATS[number - 1]
    proposal = facts.pop("proposal", None) or Proposal(seat, "dev", "done", diff(text or seat), revision=facts.pop("revision", 0))
    usual: dict[str, Any] = {"applies": True, "evidence": GREEN, "required": ("tests",), "behaviour": "b"}
    found = usual | {name: facts.pop(name) for name in FOUND & facts.keys()}
    return Candidate(**{"proposal": proposal, "assessment": Assessment(**found), **facts})


def order(*candidates: Candidate) -> list[str]:
    return [place.candidate for place in rank(candidates)]


RED = (Evidence("tests", Verdict.FAILED, passed=1, failed=1),)

scores = st.floats(allow_nan=True, allow_infinity=True)
reviews = st.lists(st.builds(Review, st.sampled_from(SEATS), st.just("c"), scores), max_size=4).map(tuple)
crosses = st.lists(st.builds(CrossRun, st.sampled_from(SEATS), st.booleans()), max_size=4).map(tuple)
told = st.builds(
    Evidence,
    st.sampled_from(["tests", "lint", INPUTS, APART]),
    st.sampled_from(Verdict),
    st.integers(0, 3),
    st.integers(0, 3),
    behaviour=st.sampled_from(["", "x", "y"]),
)
evidence = st.lists(told, max_size=3).map(tuple)
facts = st.fixed_dictionaries(
    {
        "applies": st.booleans() | st.just(True),
        "evidence": evidence | st.just(GREEN),
        "required": st.sampled_from([(), ("tests",), ("tests", "lint")]),
        "regressions": st.sampled_from([(), (), ("a::b",), ("a::b", "a::c")]),
        "proven": st.booleans(),
        "cross": crosses,
        "behaviour": st.sampled_from(["", "x", "y"]),
        "reviews": reviews,
    }
)


@st.composite
def fields(draw: st.DrawFn, size: int = 6) -> list[Candidate]:
    keys = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2)), max_size=size, unique=True))
    texts = st.sampled_from(["a", "b", "a\n+c", "d\n+e\n+f"])
    return [candidate(number, draw(texts), revision=revision, **draw(facts)) for number, revision in keys]


@given(fields(), st.randoms(use_true_random=False))
def test_shuffling_changes_nothing(field: list[Candidate], shuffle: random.Random) -> None:
    mixed = [
        replace(
            item,
            reviews=tuple(shuffle.sample(item.reviews, len(item.reviews))),
            cross=tuple(shuffle.sample(item.cross, len(item.cross))),
        )
        for item in shuffle.sample(field, len(field))
    ]
    assert rank(mixed) == rank(field)
    assert [item.proposal for item in ties(mixed)] == [item.proposal for item in ties(field)]


@given(fields())
def test_everyone_has_one_place_and_scores_fall_with_it(field: list[Candidate]) -> None:
    places = rank(field)
    assert sorted(place.candidate for place in places) == sorted(item.proposal.candidate for item in field)
    assert [place.rank for place in places] == list(range(1, len(field) + 1))
    found = [place.score for place in places]
    assert found == sorted(found, reverse=True)
    assert all(0 <= score <= 1 for score in found)
    assert all((place.score >= 0.5) == place.passed_gates for place in places)
    assert all(place.reasons for place in places)
    gates = [place.passed_gates for place in places]
    assert gates == sorted(gates, reverse=True), "one that passes beats one that does not"


@given(fields())
def test_the_order_of_any_two_is_transitive(field: list[Candidate]) -> None:
    """With what depends on the field (clusters, shared reviews, whose tests count) taken out, pairs agree with the whole."""
    alone = [
        candidate(1 + index % 5, f"{index}", revision=index // 5, **{**_own(item, index), "behaviour": str(index)})
        for index, item in enumerate(field)
    ]
    names = order(*alone)
    by_name = {item.proposal.candidate: item for item in alone}
    for index, better in enumerate(names):
        for worse in names[index + 1 :]:
            assert order(by_name[worse], by_name[better]) == [better, worse]


def _own(item: Candidate, index: int) -> dict[str, Any]:
    """What depends on nobody else: a reviewer of several counts as far as it tells right from wrong among them."""
    found = {name: getattr(item.assessment, name) for name in ("applies", "evidence", "required", "regressions", "proven")}
    return {
        **found,
        "cross": tuple(run for run in item.cross if run.passed),
        "reviews": tuple(replace(review, reviewer=f"{review.reviewer}/{index}") for review in item.reviews),
    }


@given(fields(), facts, st.integers(1, 5))
def test_a_failing_candidate_more_does_not_change_the_winner(field: list[Candidate], more: dict[str, Any], number: int) -> None:
    # One that was reviewed may show that a reviewer does not tell right from wrong.
    loser = candidate(number, "z", revision=7, **{**more, "regressions": ("a::b",), "reviews": ()})
    before, after = rank(field), rank([*field, loser])
    assert [place.candidate for place in before if place.passed_gates] == [
        place.candidate for place in after if place.passed_gates
    ]


@given(fields(), st.booleans(), scores)
def test_nobody_helps_itself(field: list[Candidate], passed: bool, score: float) -> None:  # noqa: FBT001 - drawn by hypothesis
    helped = [
        replace(
            item,
            cross=(*item.cross, CrossRun(item.proposal.seat, passed)),
            reviews=(*item.reviews, Review(item.proposal.seat, item.proposal.candidate, score)),
        )
        for item in field
    ]
    assert rank(helped) == rank(field)


@given(fields())
def test_missing_evidence_never_passes(field: list[Candidate]) -> None:
    for item in field:
        bare = replace(item, assessment=replace(item.assessment, required=("build",)))
        assert not passes_gates(bare)
        assert any("build is missing" in reason for reason in rank([bare])[0].reasons)


@given(fields())
def test_ties_are_distinct_answers_that_share_the_first_place(field: list[Candidate]) -> None:
    tied = ties(field)
    assert len(tied) != 1
    assert len({item.proposal.diff for item in tied}) == len(tied)
    assert all(passes_gates(item) for item in tied)
    if tied:
        assert rank(field)[0].candidate in {item.proposal.candidate for item in tied} or any(item.reviews for item in field)


def test_the_criteria_decide_in_their_order() -> None:
    failing = candidate(1, "a", evidence=RED, proven=True, cross=(CrossRun(SEATS[4], passed=True),))
    plain = candidate(2, "b\n+b\n+b", behaviour="alone")
    small = candidate(3, "c", behaviour="other")
    liked = candidate(4, "d\n+d\n+d\n+d", behaviour="third", reviews=(Review(SEATS[0], "c", 0.9),))
    assert order(failing, plain, small, liked) == [SEATS[3], SEATS[2], SEATS[1], SEATS[0]]
    many = [replace(item, assessment=replace(item.assessment, behaviour="same")) for item in (plain, small)]
    assert order(liked, *many)[-1] == SEATS[3], "two seats that behave the same outweigh a review"
    crossed = replace(liked, cross=(CrossRun(SEATS[0], passed=True),))
    assert order(crossed, *many)[0] == SEATS[3]
    shown = candidate(5, "e\n+" * 9, behaviour="z", proven=True)
    assert order(liked, *many, shown)[0] == SEATS[4]
    assert order(crossed, *many, shown)[:2] == [SEATS[3], SEATS[4]], "another's test proves as well"


def test_the_same_change_by_two_seats_outweighs_size_and_words_alone_are_no_answer() -> None:
    two = [candidate(number, f"{number}\n+" * 9, change="c") for number in (1, 2)]
    small = candidate(3, "x", change="d")
    first, *_, last = rank([small, *two])
    assert (first.seat in SEATS[:2], last.seat) == (True, SEATS[2])
    assert "2 seats make the same change of the code." in first.reasons
    words = candidate(4, "y", idle=True)
    assert not passes_gates(words)
    assert passes_gates(replace(words, assessment=replace(words.assessment, proven=True)))


def on_inputs(behaviour: str, against: int = 0, with_most: int = 9) -> tuple[Evidence, ...]:
    told = Evidence(
        INPUTS, Verdict.PASSED, passed=with_most, failed=against, why="on f([1, 1]) it returns 1", behaviour=behaviour
    )
    return (*GREEN, told)


def test_what_was_done_on_inputs_decides_after_tests_and_before_reviews_and_size() -> None:
    alone = candidate(1, evidence=on_inputs("x"), reviews=(Review("agent-dev-003", "c", 1.0),))
    two, three = (candidate(number, f"{number}\n+\n+", evidence=on_inputs("y")) for number in (2, 3))
    assert order(alone, two, three)[2] == alone.proposal.candidate
    assert {item.proposal.seat for item in rivals([alone, two, three])} == {*SEATS[:3]}
    broken = [replace(item, assessment=replace(item.assessment, evidence=on_inputs("y", 1))) for item in (two, three)]
    assert order(alone, *broken)[0] == alone.proposal.candidate
    proven = candidate(4, evidence=on_inputs("z", 3), proven=True, fixed=("t::a",))
    assert order(alone, two, three, proven)[0] == proven.proposal.candidate
    assert rivals([alone, two, three, proven]) == ()
    assert "Where no test tells answers apart: on f([1, 1]) it returns 1." in rank([alone, two])[0].reasons


def test_of_those_who_all_behave_otherwise_who_does_most_often_what_most_do_comes_before_reviews() -> None:
    liked = candidate(1, evidence=on_inputs("x", with_most=4), reviews=(Review("agent-dev-003", "c", 1.0),))
    usual = candidate(2, "b\n+\n+", evidence=on_inputs("y", with_most=7))
    assert order(liked, usual)[0] == usual.proposal.candidate
    assert ties([liked, usual]) == ()
    many = [candidate(number, f"{number}\n+\n+", evidence=on_inputs("z", with_most=1)) for number in (3, 4)]
    assert order(liked, usual, *many)[2:] == [usual.proposal.candidate, liked.proposal.candidate]


def test_of_proofs_that_turn_as_much_green_one_with_the_code_in_another_process_leads() -> None:
    agreed = (*GREEN, Evidence(APART, Verdict.PASSED, passed=1))
    agreeing = candidate(1, "long " * 30, evidence=agreed, proven=True, fixed=("t::a",))
    others = [candidate(number, proven=True, fixed=("t::a",)) for number in (2, 3)]
    places = rank([*others, agreeing])
    assert places[0].candidate == agreeing.proposal.candidate
    assert "These tests agree when its code runs in a process of its own, which sees none of them." in places[0].reasons
    more = candidate(4, proven=True, fixed=("t::a", "t::b"))
    assert order(*others, agreeing, more)[:2] == [more.proposal.candidate, agreeing.proposal.candidate]
    unproven = candidate(2, evidence=agreed)
    assert order(unproven, others[1]) == [others[1].proposal.candidate, unproven.proposal.candidate]


def test_rivals_make_different_changes_and_pass_the_gates() -> None:
    same = [candidate(number, str(number), change="c") for number in (1, 2)]
    assert rivals(same) == ()
    assert rivals([*same, candidate(3, "3", change="d", evidence=RED)]) == ()
    assert len(rivals([*same, candidate(3, "3", change="d")])) == 3


def test_one_author_one_vote_and_one_seat_one_voice_in_a_cluster() -> None:
    again = (CrossRun(SEATS[1], passed=False), CrossRun(SEATS[1], passed=False))
    two = (CrossRun(SEATS[1], passed=False), CrossRun(SEATS[3], passed=False))
    passing = candidate(5, "e\n+" * 9, cross=(CrossRun(SEATS[1], passed=True), CrossRun(SEATS[3], passed=True)))
    assert order(candidate(1, "a\n+a", cross=again), candidate(3, cross=two), passing) == [SEATS[4], SEATS[0], SEATS[2]]
    doubled = [candidate(1, "a", behaviour="x"), candidate(1, "a\n+b", behaviour="x", revision=1)]
    others = [candidate(2, "l\n+" * 9, behaviour="y"), candidate(3, "m\n+" * 9, behaviour="y")]
    assert set(order(*doubled, *others)[:2]) == {SEATS[1], SEATS[2]}


def test_an_author_whose_tests_failed_once_did_not_vote_for_it() -> None:
    mixed = (CrossRun(SEATS[1], passed=True), CrossRun(SEATS[1], passed=False))
    agreeing = candidate(3, cross=(CrossRun(SEATS[1], passed=True),))
    assert "Passes the tests of 0 of 1 other author." in rank([candidate(1, cross=mixed), agreeing])[1].reasons


@given(fields())
def test_tests_that_only_their_own_author_s_answer_passes_change_no_place(field: list[Candidate]) -> None:
    sabotaged = [replace(item, cross=(*item.cross, CrossRun("agent-dev-009", passed=False))) for item in field]
    assert [(place.candidate, place.score) for place in rank(sabotaged)] == [
        (place.candidate, place.score) for place in rank(field)
    ]


def brings(number: int, text: str, *passed: int, failed: tuple[int, ...] = (), **facts: Any) -> Candidate:
    """A candidate of a seat that brought tests, and passes or fails those of the others."""
    made = Proposal(SEATS[number - 1], "dev", "done", diff(text), own_tests=("tests/test_new.py",))
    runs = [CrossRun(SEATS[other - 1], other in passed) for other in (*passed, *failed)]
    return candidate(number, proposal=made, cross=tuple(runs), **facts)


def test_a_seat_s_tests_that_fit_its_own_answer_alone_beat_nobody() -> None:
    honest = brings(1, "right, and said at some length", failed=(3,), behaviour="right")
    saboteur = brings(3, "x", failed=(1,), behaviour="wrong", reviews=(Review(SEATS[1], "c", 0.2),))
    first, second = rank([honest, saboteur])
    assert first.seat == SEATS[0]
    said = "No evidence, since they fit their own author's answer alone: the tests of agent-dev-001, agent-dev-003."
    assert said in first.reasons
    assert said in second.reasons


def test_a_forged_answer_that_passes_all_tests_and_brings_its_own_does_not_beat_two_that_agree() -> None:
    honest = [
        brings(number, f"right {number}\n+and longer", other, failed=(3,), behaviour="right")
        for number, other in ((1, 2), (2, 1))
    ]
    forged = brings(3, "x", 1, 2)
    places = rank([*honest, forged])
    assert {place.seat for place in places[:2]} == {SEATS[0], SEATS[1]}
    assert all(place.proven for place in places)
    assert "authors whose tests fail" not in " ".join(reason for place in places for reason in place.reasons)


def test_the_same_answer_of_another_seat_agrees_with_the_tests_that_came_with_it() -> None:
    one, twin = brings(1, "same"), candidate(2, "same")
    failing = candidate(3, "x", cross=(CrossRun(SEATS[0], passed=False),), reviews=(Review(SEATS[1], "c", 1.0),))
    assert [place.seat for place in rank([one, twin, failing])][-1] == SEATS[2]
    assert rank([one, failing])[0].seat == SEATS[2], "alone it is one seat's word"


def test_a_repeated_reviewer_counts_once_and_silence_is_neutral() -> None:
    loud = candidate(1, reviews=tuple(Review(SEATS[4], "c", score) for score in (0.4, 0.4, 0.4)))
    assert order(loud, candidate(2)) == [SEATS[1], SEATS[0]]
    assert "Reviewed at 0.40 by 1 seat." in rank([loud])[0].reasons


def test_the_same_answer_has_the_same_reviews() -> None:
    reviewed = candidate(1, "a", reviews=(Review(SEATS[4], "c", 0.3),))
    twin = candidate(2, "a")
    other = candidate(3, "b", reviews=(Review(SEATS[4], "c", 0.4),))
    assert order(reviewed, twin, other)[0] == SEATS[2]


def test_reasons_say_what_happened_in_numbers() -> None:
    good = candidate(1, "a", proven=True)
    bad = candidate(2, "b", evidence=RED, regressions=("t.py::x\x1b[31m", "t.py::y"))
    first, second = rank([bad, good])
    assert first.reasons == (
        "Passes every gate: the patch applies; tests passed (2 of 2 passed); nothing that was green is red.",
        "Proven: a test that failed on the base, and that its author did not write, passes.",
        "Changes 1 line.",
        f"Above {SEATS[1]}: passes every gate, the other fails 2 gates.",
    )
    assert second.reasons == (
        "Required check tests failed (1 of 2 passed).",
        "2 tests that passed on the base do not any more: t.py::x?[31m, t.py::y.",
        "Unproven: no test that failed on the base, and that its author did not write, passes.",
        "Changes 1 line.",
        f"Below {SEATS[0]}: fails 2 gates, the other passes every gate.",
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"applies": False}, "The patch does not apply on a clean checkout."),
        ({"evidence": ()}, "Required check tests is missing."),
        ({"evidence": (*GREEN, *RED)}, "Required check tests failed (1 of 2 passed)."),
        ({"proposal": Proposal(SEATS[0], "dev", "done", "  \n")}, "The patch is empty."),
        ({"about_text": True, "proposal": Proposal(SEATS[0], "dev", " ")}, "The answer is empty."),
    ],
)
def test_each_gate_says_why(change: dict[str, Any], reason: str) -> None:
    place = rank([candidate(1, **change)])[0]
    assert not place.passed_gates
    assert reason in place.reasons


def test_text_is_ranked_by_reviews_alone() -> None:
    def text(number: int, content: str, score: float) -> Candidate:
        proposal = Proposal(SEATS[number - 1], "architect", content)
        return Candidate(proposal, Assessment(applies=False), about_text=True, reviews=(Review(SEATS[4], "c", score),))

    answers = [text(1, "short", 0.2), text(2, "a long answer", 0.7), text(3, "same", 0.1), text(4, "same", 0.1)]
    assert order(*answers)[:2] == [SEATS[1], SEATS[0]]
    assert [item.proposal.content for item in ties(answers)] == ["a long answer", "short", "same"]
    assert not any(place.proven for place in rank(answers))


def test_ties_need_different_answers() -> None:
    assert ties([candidate(1, "a"), candidate(2, "a")]) == ()
    assert ties([candidate(1, "a"), candidate(2, "b", proven=True)]) == ()
    assert ties([]) == ()
    assert rank([]) == ()
    assert len(ties([candidate(1, "a"), candidate(2, "b"), candidate(3, "b"), candidate(4, "c", evidence=RED)])) == 2


def test_changed_lines_counts_what_a_diff_adds_and_removes() -> None:
    text = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@ def f():\n same\n--- minus\n+++ plus\n\\ No newline at end of file\n"
    assert changed_lines(text) == 2
    assert changed_lines(text + text) == 4
    assert changed_lines("diff --git a/a b/a\nGIT binary patch\nliteral 3\nKcmZ\n\n") == 2
