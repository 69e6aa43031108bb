from __future__ import annotations

import random
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.evidence import OWN_TESTS, Evidence, EvidenceLevel, Verdict
from moothall.domain.proposal import Assessment, Candidate, CrossRun, Proposal, Review
from moothall.ranking import find_ties, passes_acceptance_checks, rank
from moothall.ranking.criteria import format_cases

SEATS = tuple(f"agent-dev-{number:03d}" for number in range(1, 6))
PASSED = (Evidence("tests", Verdict.PASSED, passed=2),)


def diff(*lines: str) -> str:
    return "\n".join(
        [
            "diff --git a/u.py b/u.py",
            "--- a/u.py",
            "+++ b/u.py",
            "@@ -0,0 +1 @@",
            *(f"+{line}" for line in lines),
            "",
        ]
    )


FOUND = {field.name for field in fields_of(Assessment)}


def candidate(number: int, text: str = "", **facts: Any) -> Candidate:
    seat = SEATS[number - 1]
    proposal = facts.pop("proposal", None) or Proposal(
        seat, "dev", "done", diff(text or seat), revision=facts.pop("revision", 0)
    )
    usual: dict[str, Any] = {
        "applies": True,
        "evidence": PASSED,
        "required": ("tests",),
        "behaviour": "b",
    }
    assessment_fields = usual | {name: facts.pop(name) for name in FOUND & facts.keys()}
    return Candidate(
        **{"proposal": proposal, "assessment": Assessment(**assessment_fields), **facts}
    )


def order(*candidates: Candidate) -> list[str]:
    return [place.candidate for place in rank(candidates)]


FAILED = (Evidence("tests", Verdict.FAILED, passed=1, failed=1),)

scores = st.floats(allow_nan=True, allow_infinity=True)
reviews = st.lists(st.builds(Review, st.sampled_from(SEATS), st.just("c"), scores), max_size=4).map(
    tuple
)
crosses = st.lists(st.builds(CrossRun, st.sampled_from(SEATS), st.booleans()), max_size=4).map(
    tuple
)
evidence_strategy = st.builds(
    Evidence,
    st.sampled_from(["tests", "lint", OWN_TESTS]),
    st.sampled_from(Verdict),
    st.integers(0, 3),
    st.integers(0, 3),
)
evidence = st.lists(evidence_strategy, max_size=3).map(tuple)
facts = st.fixed_dictionaries(
    {
        "applies": st.booleans() | st.just(True),
        "evidence": evidence | st.just(PASSED),
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
    keys = draw(
        st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2)), max_size=size, unique=True)
    )
    texts = st.sampled_from(["a", "b", "a\n+c", "d\n+e\n+f"])
    return [
        candidate(number, draw(texts), revision=revision, **draw(facts))
        for number, revision in keys
    ]


@given(fields(), st.randoms(use_true_random=False))
def test_the_ranking_does_not_depend_on_the_order_of_candidates(
    field: list[Candidate], shuffle: random.Random
) -> None:
    mixed = [
        replace(
            item,
            reviews=tuple(shuffle.sample(item.reviews, len(item.reviews))),
            cross=tuple(shuffle.sample(item.cross, len(item.cross))),
        )
        for item in shuffle.sample(field, len(field))
    ]
    assert rank(mixed) == rank(field)
    assert [item.proposal for item in find_ties(mixed)] == [
        item.proposal for item in find_ties(field)
    ]


@given(fields())
def test_every_candidate_has_one_rank_and_scores_fall_with_the_rank(field: list[Candidate]) -> None:
    places = rank(field)
    assert sorted(place.candidate for place in places) == sorted(
        item.proposal.candidate for item in field
    )
    assert [place.rank for place in places] == list(range(1, len(field) + 1))
    scores = [place.score for place in places]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert all((place.score >= 0.5) == place.passed_gates for place in places)
    assert all(place.reasons for place in places)
    gates = [place.passed_gates for place in places]
    assert gates == sorted(gates, reverse=True), "one that passes beats one that does not"


@given(fields())
def test_the_ranking_is_transitive(field: list[Candidate]) -> None:
    """Pairs agree with the whole field if everything that depends on the field (clusters,
    revisions, shared reviews, whose tests count) is removed.
    """
    candidates = [
        candidate(
            1 + index, f"{index}", **{**_independent_facts(item, index), "behaviour": str(index)}
        )
        for index, item in enumerate(field[: len(SEATS)])
    ]
    names = order(*candidates)
    by_name = {item.proposal.candidate: item for item in candidates}
    for index, better in enumerate(names):
        for worse in names[index + 1 :]:
            assert order(by_name[worse], by_name[better]) == [better, worse]


def _independent_facts(item: Candidate, index: int) -> dict[str, Any]:
    """Return the facts that depend on nobody else: a reviewer of several candidates counts as far
    as it distinguishes right from wrong ones.
    """
    own_facts = {
        name: getattr(item.assessment, name)
        for name in ("applies", "evidence", "required", "regressions", "proven")
    }
    return {
        **own_facts,
        "cross": tuple(run for run in item.cross if run.passed),
        "reviews": tuple(
            replace(review, reviewer=f"{review.reviewer}/{index}") for review in item.reviews
        ),
    }


@given(fields(), facts, st.integers(1, 5))
def test_an_additional_failing_candidate_does_not_change_the_winner(
    field: list[Candidate], loser_facts: dict[str, Any], number: int
) -> None:
    # A reviewed candidate may show that a reviewer does not distinguish right from wrong.
    loser = candidate(
        number, "z", revision=7, **{**loser_facts, "regressions": ("a::b",), "reviews": ()}
    )
    places_before, places_after = rank(field), rank([*field, loser])
    assert [place.candidate for place in places_before if place.passed_gates] == [
        place.candidate for place in places_after if place.passed_gates
    ]


@given(fields(), st.booleans(), scores)
def test_a_seats_own_tests_and_reviews_do_not_help_it(
    field: list[Candidate],
    passed: bool,  # noqa: FBT001 - drawn by hypothesis
    score: float,
) -> None:
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
        assert not passes_acceptance_checks(bare)
        assert any("build is missing" in reason for reason in rank([bare])[0].reasons)


@given(fields())
def test_ties_are_distinct_answers_that_share_the_first_place(field: list[Candidate]) -> None:
    tied = find_ties(field)
    assert len(tied) != 1
    assert len({item.proposal.diff for item in tied}) == len(tied)
    assert all(passes_acceptance_checks(item) for item in tied)
    if tied:
        assert rank(field)[0].candidate in {item.proposal.candidate for item in tied} or any(
            item.reviews for item in field
        )


def test_the_criteria_are_applied_in_order() -> None:
    """Each candidate of the list is better than the previous one by the next criterion, and worse
    by all later ones.
    """
    failed_run = (CrossRun(SEATS[4], passed=False),)
    liked = (Review(SEATS[4], "c", 0.9),)
    failing = candidate(1, "a", evidence=FAILED, proven=True, fixed=("t::a", "t::b"), reviews=liked)
    crossed = candidate(2, "b", cross=failed_run, reviews=liked)
    plain = candidate(3, "c", behaviour="alone")
    reviewed = candidate(4, "d", behaviour="other", reviews=liked)
    fixing = candidate(5, "e", cross=failed_run, fixed=("t::a",))
    assert order(failing, crossed, plain, reviewed, fixing) == [
        SEATS[4],
        SEATS[3],
        SEATS[2],
        SEATS[1],
        SEATS[0],
    ]
    proven = candidate(1, "f", cross=failed_run, proven=True)
    assert order(fixing, proven, reviewed)[0] == SEATS[0]
    agreeing = [candidate(number, f"{number}", behaviour="same") for number in (1, 2)]
    assert order(reviewed, *agreeing)[-1] == SEATS[3], (
        "two seats that behave the same outweigh a review"
    )


def test_neither_the_size_of_a_change_nor_its_tests_count() -> None:
    small, large = candidate(1, "a"), candidate(2, "b\n+" * 40)
    first, second = rank([small, large])
    assert first.score == second.score
    assert "Changes" not in " ".join(first.reasons)


def test_equal_changes_by_two_seats_outweigh_one_and_wording_alone_is_not_an_answer() -> None:
    same_changes = [candidate(number, f"{number}\n+" * 9, change="c") for number in (1, 2)]
    small = candidate(3, "x", change="d")
    first, *_, last = rank([small, *same_changes])
    assert (first.seat in SEATS[:2], last.seat) == (True, SEATS[2])
    assert "2 seats make the same change of the code." in first.reasons
    wording_only = candidate(4, "y", idle=True)
    assert not passes_acceptance_checks(wording_only)
    assert passes_acceptance_checks(
        replace(wording_only, assessment=replace(wording_only.assessment, proven=True))
    )


def brings(
    number: int, text: str, *passed: int, failed: tuple[int, ...] = (), **facts: Any
) -> Candidate:
    """Return a candidate of a seat with valid tests that passes or fails those of the others."""
    proposal = Proposal(
        SEATS[number - 1], "dev", "done", diff(text), own_tests=("tests/test_new.py",)
    )
    runs = [CrossRun(SEATS[author - 1], author in passed) for author in (*passed, *failed)]
    own_evidence = Evidence(OWN_TESTS, Verdict.PASSED, passed=1)
    return candidate(
        number, proposal=proposal, cross=tuple(runs), evidence=(*PASSED, own_evidence), **facts
    )


def test_a_test_that_only_its_author_passes_is_evidence_for_its_author() -> None:
    """Two that fail the same test do not agree with each other, and their number and size decide
    nothing.
    """
    right = brings(1, "right\n+" * 40)
    wrong_answers = [
        candidate(number, str(number), cross=(CrossRun(SEATS[0], passed=False),))
        for number in (2, 3)
    ]
    places = rank([*wrong_answers, right])
    assert places[0].seat == SEATS[0]
    assert (places[0].level, places[0].undecided) == (EvidenceLevel.SELF_TESTED, False)
    assert "seats behave the same" not in " ".join(
        reason for place in places for reason in place.reasons
    )
    assert any("authors whose tests fail: 0 against 1" in reason for reason in places[0].reasons)


def test_contradicting_tests_of_two_authors_are_decided_by_reviews() -> None:
    first_candidate = brings(1, "one", failed=(2,), reviews=(Review(SEATS[3], "c", 0.9),))
    second_candidate = brings(2, "two", failed=(1,), reviews=(Review(SEATS[3], "c", 0.2),))
    assert order(second_candidate, first_candidate) == [SEATS[0], SEATS[1]]


@pytest.mark.parametrize(
    ("evaluated", "level", "reason_text"),
    [
        (
            candidate(1, proven=True, fixed=("t::a",)),
            EvidenceLevel.PROVEN,
            "Proven: a test that failed on the base",
        ),
        (
            candidate(1, cross=(CrossRun(SEATS[1], passed=True),)),
            EvidenceLevel.REPRODUCED,
            f"it passes tests by {SEATS[1]} that failed on the base.",
        ),
        (brings(1, "a"), EvidenceLevel.SELF_TESTED, "Self-tested: only its author's own tests"),
        (candidate(1), EvidenceLevel.UNPROVEN, "Unproven: no test that failed on the base passes."),
        (
            candidate(1, cross=(CrossRun(SEATS[1], passed=False),)),
            EvidenceLevel.UNPROVEN,
            "Unproven",
        ),
    ],
    ids=["proven", "reproduced", "self-tested", "unproven", "fails another's"],
)
def test_each_evidence_level_names_its_evidence(
    evaluated: Candidate, level: EvidenceLevel, reason_text: str
) -> None:
    place = rank([evaluated])[0]
    assert (place.level, place.proven) == (level, level is EvidenceLevel.PROVEN)
    assert any(reason_text in reason for reason in place.reasons)
    assert level.independent is (level in {EvidenceLevel.PROVEN, EvidenceLevel.REPRODUCED})


def test_a_failed_test_of_an_agent_prevents_reproduced_and_is_named() -> None:
    answer = brings(1, "a")
    runs = (*answer.cross, CrossRun(SEATS[1], passed=True), CrossRun("test-writer", passed=False))
    place = rank([replace(answer, cross=runs)])[0]
    assert place.level is EvidenceLevel.SELF_TESTED
    assert "Self-tested: its author's own tests fail on the base and pass with it." in place.reasons
    assert (
        "Tests of other authors that pass with it do not count, because it fails tests of "
        "test-writer." in place.reasons
    )


def test_an_agent_whose_tests_pass_on_the_base_reproduces_nothing() -> None:
    runs = (CrossRun(SEATS[1], passed=True, cases=("t::a",)), CrossRun("tie-breaker", passed=True))
    place = rank([candidate(1, cross=runs)])[0]
    assert f"Reproduced: it passes tests by {SEATS[1]} that failed on the base: t::a." in (
        place.reasons
    )


def test_a_flagged_line_is_shown_and_decides_nothing() -> None:
    flagged = candidate(1, "a", proven=True, fixed=("t::a",), look=("u.py:1: walks the stack",))
    first, second = rank([candidate(2, "b", proven=True), flagged])
    assert (first.seat, first.level) == (SEATS[0], EvidenceLevel.PROVEN)
    assert "A person should look: u.py:1: walks the stack." in first.reasons
    assert second.seat == SEATS[1]


def test_answers_ordered_only_by_a_hash_are_undecided_and_their_differences_named() -> None:
    first_candidate, second_candidate, third_candidate = (
        candidate(1, "a"),
        candidate(2, "b"),
        candidate(3, "c", behaviour="z"),
    )
    places = rank([first_candidate, second_candidate, third_candidate])
    assert [place.undecided for place in places] == [True, True, False]
    assert any(
        reason.startswith("Undecided: no test tells it from") for reason in places[0].reasons
    )
    assert any(
        "they differ in u.py. Nobody reviewed them. A hash decides." in reason
        for reason in places[0].reasons
    )
    assert not any(
        place.undecided
        for place in rank(
            [
                first_candidate,
                replace(first_candidate, proposal=replace(first_candidate.proposal, seat=SEATS[3])),
            ]
        )
    )
    assert not any(
        place.undecided
        for place in rank([candidate(1, "a", proven=True), candidate(2, "b", proven=True)])
    )
    reviewed = replace(second_candidate, reviews=(Review(SEATS[4], "c", 0.9),))
    assert not any(place.undecided for place in rank([first_candidate, reviewed]))


def test_an_author_has_one_vote_and_a_seat_counts_once_in_a_cluster() -> None:
    same_author = (CrossRun(SEATS[1], passed=False), CrossRun(SEATS[1], passed=False))
    two_authors = (CrossRun(SEATS[1], passed=False), CrossRun(SEATS[3], passed=False))
    passing = candidate(
        5, "e\n+" * 9, cross=(CrossRun(SEATS[1], passed=True), CrossRun(SEATS[3], passed=True))
    )
    assert order(
        candidate(1, "a\n+a", cross=same_author), candidate(3, cross=two_authors), passing
    ) == [
        SEATS[4],
        SEATS[0],
        SEATS[2],
    ]
    doubled = [candidate(1, "a", behaviour="x"), candidate(1, "a\n+b", behaviour="x", revision=1)]
    other_candidates = [
        candidate(2, "l\n+" * 9, behaviour="y"),
        candidate(3, "m\n+" * 9, behaviour="y"),
    ]
    assert set(order(*doubled, *other_candidates)[:2]) == {SEATS[1], SEATS[2]}


def test_an_author_with_a_failed_test_does_not_count_as_agreeing() -> None:
    mixed = (CrossRun(SEATS[1], passed=True), CrossRun(SEATS[1], passed=False))
    agreeing = candidate(3, cross=(CrossRun(SEATS[1], passed=True),))
    assert (
        f"Below {SEATS[2]}: confirmed authors whose tests fail: 1 against 0."
        in rank([candidate(1, cross=mixed), agreeing])[1].reasons
    )


def test_a_repeated_reviewer_counts_once_and_a_missing_review_is_neutral() -> None:
    loud = candidate(1, reviews=tuple(Review(SEATS[4], "c", score) for score in (0.4, 0.4, 0.4)))
    assert order(loud, candidate(2)) == [SEATS[1], SEATS[0]]
    assert "Reviewed at 0.40 by 1 seat." in rank([loud])[0].reasons


def test_identical_answers_share_their_reviews() -> None:
    reviewed = candidate(1, "a", reviews=(Review(SEATS[4], "c", 0.3),))
    twin = candidate(2, "a")
    other_answer = candidate(3, "b", reviews=(Review(SEATS[4], "c", 0.4),))
    assert order(reviewed, twin, other_answer)[0] == SEATS[2]


def test_the_answer_that_adds_a_test_is_first_of_tied_ones() -> None:
    """A test that both pass does not tell which one is right, so the winner is undecided."""
    own_evidence = (*PASSED, Evidence(OWN_TESTS, Verdict.PASSED, passed=1))
    for text, other_text in (("a", "b"), ("b", "a")):
        author = candidate(1, text, evidence=own_evidence)
        reproduced = candidate(2, other_text, cross=(CrossRun(SEATS[0], passed=True),))
        first, second = rank([author, reproduced])
        assert (first.seat, first.level, first.undecided) == (
            SEATS[0],
            EvidenceLevel.SELF_TESTED,
            True,
        )
        assert second.level is EvidenceLevel.REPRODUCED
        assert any("The one that brings a test is first." in line for line in first.reasons)
        assert "Below agent-dev-001: brings a test that counts: no against yes." in second.reasons


def test_the_answer_that_passes_the_others_test_is_first_of_tied_ones() -> None:
    own_evidence = (*PASSED, Evidence(OWN_TESTS, Verdict.PASSED, passed=1))
    for text, other_text in (("a", "b"), ("b", "a")):
        plain = candidate(1, text, evidence=own_evidence)
        reproduced = candidate(
            2, other_text, evidence=own_evidence, cross=(CrossRun(SEATS[3], passed=True),)
        )
        first, second = rank([plain, reproduced])
        assert (first.seat, first.level) == (SEATS[1], EvidenceLevel.REPRODUCED)
        assert first.undecided
        assert (
            "Below agent-dev-002: passes a test of another seat: no against yes." in second.reasons
        )


def test_an_answer_that_changes_a_test_it_breaks_learns_which_version_counts() -> None:
    """The task may require what the test forbids: a person sees why such an answer is refused."""
    proposal = Proposal(SEATS[0], "dev", "done", diff("a"), own_tests=("t.py",))
    (refused,) = rank([candidate(1, proposal=proposal, regressions=("t.py::x",))])
    assert refused.reasons[0] == (
        "1 test that passed on the base no longer does: t.py::x. The answer changes tests there, "
        "but they count as they are on the base."
    )


def test_reasons_contain_numbers() -> None:
    good_candidate = candidate(1, "a", proven=True)
    failing_candidate = candidate(
        2, "b", evidence=FAILED, regressions=("t.py::x\x1b[31m", "t.py::y")
    )
    first, second = rank([failing_candidate, good_candidate])
    assert first.reasons == (
        (
            "Passes all acceptance checks: the patch applies; tests passed (2 of 2 passed); no "
            "test that passed on the base fails."
        ),
        "Proven: a test that failed on the base, and that its author did not write, passes.",
        f"Above {SEATS[1]}: failed acceptance checks: 0 against 2.",
    )
    assert second.reasons == (
        "Required check tests failed (1 of 2 passed).",
        "2 tests that passed on the base no longer do: t.py::x?[31m, t.py::y.",
        "Unproven: no test that failed on the base passes.",
        f"Below {SEATS[0]}: failed acceptance checks: 2 against 0.",
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"applies": False}, "The patch does not apply on a clean checkout."),
        ({"evidence": ()}, "Required check tests is missing."),
        ({"evidence": (*PASSED, *FAILED)}, "Required check tests failed (1 of 2 passed)."),
        ({"proposal": Proposal(SEATS[0], "dev", "done", "  \n")}, "The patch is empty."),
        ({"about_text": True, "proposal": Proposal(SEATS[0], "dev", " ")}, "The answer is empty."),
    ],
)
def test_each_failed_acceptance_check_has_a_reason(change: dict[str, Any], reason: str) -> None:
    place = rank([candidate(1, **change)])[0]
    assert not place.passed_gates
    assert reason in place.reasons


def test_text_is_ranked_by_reviews_alone() -> None:
    def text(number: int, content: str, score: float) -> Candidate:
        proposal = Proposal(SEATS[number - 1], "architect", content)
        return Candidate(
            proposal,
            Assessment(applies=False),
            about_text=True,
            reviews=(Review(SEATS[4], "c", score),),
        )

    answers = [
        text(1, "short", 0.2),
        text(2, "a long answer", 0.7),
        text(3, "same", 0.1),
        text(4, "same", 0.1),
    ]
    assert order(*answers)[:2] == [SEATS[1], SEATS[0]]
    assert [item.proposal.content for item in find_ties(answers)] == [
        "a long answer",
        "short",
        "same",
    ]
    assert not any(place.proven for place in rank(answers))


def test_ties_need_different_answers() -> None:
    assert find_ties([candidate(1, "a"), candidate(2, "a")]) == ()
    assert find_ties([candidate(1, "a"), candidate(2, "b", proven=True)]) == ()
    assert find_ties([]) == ()
    assert rank([]) == ()
    assert (
        len(
            find_ties(
                [
                    candidate(1, "a"),
                    candidate(2, "b"),
                    candidate(3, "b"),
                    candidate(4, "c", evidence=FAILED),
                ]
            )
        )
        == 2
    )


def _review(number: int, score: float) -> Review:
    return Review(SEATS[number - 1], "c", score)


def test_a_missing_review_has_no_score() -> None:
    """Of two equally good answers, one has a bad review and the other has none: reviews do not
    decide.
    """
    poorly_reviewed, unread = (
        candidate(1, "a", reviews=(_review(3, 0.2),)),
        candidate(2, "b", missing=("review of 2 by 4 is missing: timeout",)),
    )
    first, second = rank([poorly_reviewed, unread])
    assert first.undecided
    assert second.undecided
    assert any(
        "1 of 1 reviews is missing: review of 2 by 4" in reason
        for item in (first, second)
        for reason in item.reasons
    )
    assert order(poorly_reviewed, replace(unread, missing=())) == [SEATS[1], SEATS[0]], (
        "without reviews it counts as neither good nor bad"
    )


def test_if_a_review_is_missing_only_reviewers_of_all_answers_are_compared() -> None:
    first_candidate = candidate(1, "a", reviews=(_review(3, 0.2), _review(5, 0.9)))
    second_candidate = candidate(2, "b", reviews=(_review(5, 0.8),), missing=("gone",))
    assert order(first_candidate, second_candidate) == [SEATS[0], SEATS[1]], "agent 5 judged both"


def test_a_draft_is_ranked_below_its_authors_revision_whatever_its_reviews() -> None:
    draft = candidate(1, "draft", reviews=(_review(3, 0.9),))
    revision = replace(
        draft,
        proposal=replace(draft.proposal, diff=diff("revised"), revision=1),
        reviews=(),
    )
    first, second = rank([draft, revision])
    assert first.candidate == revision.proposal.candidate
    assert not first.undecided
    assert any(
        "not replaced by its author" in reason for reason in (*first.reasons, *second.reasons)
    )
    refused = replace(revision, assessment=replace(revision.assessment, applies=False))
    assert rank([draft, refused])[0].candidate == draft.proposal.candidate
    texts = [replace(item, about_text=True) for item in (draft, revision)]
    assert rank(texts)[0].candidate == draft.proposal.candidate, "texts are ranked by reviews"


def test_an_answer_that_fails_a_test_of_the_test_writer_is_not_reproduced() -> None:
    runs = (
        CrossRun(SEATS[4], passed=True, cases=("t::a",)),
        CrossRun("test-writer", passed=False, failed=("t::b",)),
    )
    (place,) = rank([candidate(1, cross=runs)])
    assert place.level is EvidenceLevel.UNPROVEN
    assert "Fails tests of test-writer: t::b." in place.reasons
    (without_cases,) = rank([candidate(1, cross=(CrossRun("tie-breaker", passed=True),))])
    assert without_cases.level is EvidenceLevel.UNPROVEN, "its tests pass on the base, too"


def test_a_count_of_failing_tests_does_not_decide_if_the_tests_differ() -> None:
    def failing(number: int, text: str, *cases: str) -> Candidate:
        run = CrossRun("test-writer", passed=not cases, failed=cases)
        return candidate(number, text, cross=(run,), behaviour=text)

    first_candidate, second_candidate = failing(1, "a", "t::x"), failing(2, "b", "t::y", "t::z")
    worse = failing(3, "c", "t::x", "t::y")
    assert {
        item.proposal.seat for item in find_ties([first_candidate, second_candidate, worse])
    } == {SEATS[0], SEATS[1]}
    places = rank([first_candidate, second_candidate, worse])
    assert [(place.seat, place.undecided) for place in places] == [
        (SEATS[0], True),
        (SEATS[1], True),
        (SEATS[2], False),
    ]
    assert any(reason.endswith("Fewer failing tests decide.") for reason in places[0].reasons)

    better = failing(4, "d")
    assert find_ties([first_candidate, second_candidate, better]) == ()
    assert rank([first_candidate, second_candidate, better])[0].seat == SEATS[3]


def test_test_names_with_a_common_prefix_stay_distinct() -> None:
    start = "test/drive-letter.test.ts::parseURL of paths that look like drive letters > keeps "
    names = format_cases([f"{start}file: URLs", f"{start}upper-case letters"]).split(", ")
    assert [name[-12:] for name in names] == ["s file: URLs", "case letters"]
    assert all(len(name) == 80 for name in names)


def test_a_failing_advisory_check_is_named() -> None:
    lint = Evidence("lint", Verdict.FAILED, red=("lint",))
    (place,) = rank([candidate(1, evidence=(*PASSED, lint))])
    assert "Fails lint, which is advisory and decides nothing." in place.reasons
