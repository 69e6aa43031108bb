"""The findings of the story coach."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.errors import InvalidRequest
from moothall.stories.coach import CHARS, CRITERIA, StoryDraft, check, is_gherkin, score

GOOD = StoryDraft(
    "Export invoices as CSV",
    "As an accountant, I want the invoices of a month as a CSV file, so that I can book them "
    "without typing.",
    (
        "Given two invoices in May, when May is exported, then the file has a header and two lines",
        (
            "Given no invoice in June, when June is exported, then the answer is 404 with the "
            "words 'no invoices'"
        ),
    ),
)
DRAFTS = st.builds(
    StoryDraft,
    st.text(max_size=200),
    st.text(max_size=400),
    st.lists(st.text(max_size=120), max_size=12).map(tuple),
)


def codes(draft: StoryDraft) -> dict[str, int]:
    return {item.code: item.weight for item in score(draft).findings}


def test_a_complete_story_scores_100_points() -> None:
    assert score(GOOD).total == 100
    assert not score(GOOD).findings


def test_an_empty_story_scores_the_minimum() -> None:
    assert score(StoryDraft()).total == 15
    assert set(codes(StoryDraft())) == {
        "TITLE",
        "DESCRIPTION",
        "VALUABLE",
        "CRITERIA",
        "GHERKIN",
        "TESTABLE",
    }


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"title": ""}, "TITLE", "write a title"),
        ({"title": "Export"}, "TITLE", "one word"),
        ({"title": "Export " + "invoices " * 12}, "TITLE", "at most 80"),
        ({"description": ""}, "VALUABLE", "who needs it and why"),
        ({"description": "As a clerk, I want it."}, "DESCRIPTION", "words say little"),
        (
            {"description": GOOD.description.replace("so that", "and")},
            "VALUABLE",
            "add why (so that …)",
        ),
        (
            {"description": GOOD.description + " The format is TBD."},
            "ESTIMABLE",
            "'TBD' is still open",
        ),
        (
            {"description": GOOD.description + " It depends on the archive."},
            "INDEPENDENT",
            "depends on",
        ),
        (
            {"description": "As a clerk, I want " + "more " * 260 + "so that it is long"},
            "SMALL",
            "split it",
        ),
        ({"ac": ()}, "CRITERIA", "add acceptance criteria"),
        ({"ac": GOOD.ac[:1]}, "CRITERIA", "what goes wrong"),
        ({"ac": GOOD.ac * 5}, "SMALL", "10 criteria"),
        (
            {"ac": (*GOOD.ac, "The file has a header")},
            "GHERKIN",
            "write 'The file has a header' as given",
        ),
        (
            {"ac": (*GOOD.ac, "Given May, when it is exported, then it is fast")},
            "TESTABLE",
            "'fast' cannot be tested",
        ),
    ],
)
def test_a_missing_part_costs_points_and_its_finding_describes_it(
    changed: dict[str, str], code: str, words: str
) -> None:
    draft = StoryDraft(
        **{"title": GOOD.title, "description": GOOD.description, "ac": GOOD.ac} | changed  # type: ignore[arg-type]
    )
    result = score(draft)
    (finding,) = [item for item in result.findings if item.code == code]
    assert words in finding.message
    assert result.total == 100 - sum(item.weight for item in result.findings)


def test_each_improved_criterion_raises_the_score() -> None:
    plain = StoryDraft(GOOD.title, GOOD.description, ())
    totals = [
        score(StoryDraft(plain.title, plain.description, GOOD.ac[:number])).total
        for number in range(3)
    ]
    assert totals == sorted(set(totals))


def test_placeholders_do_not_count_as_criteria() -> None:
    holes = StoryDraft(
        GOOD.title,
        GOOD.description,
        ("Given <a state>, when <something happens>, then <what can be seen>",),
    )
    assert codes(holes) == codes(StoryDraft(GOOD.title, GOOD.description))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Given a, when b, then c", True),
        ("GIVEN a\nWHEN b\nTHEN c", True),
        ("Scenario: x\n  Given a\n  And d\n  When b\n  Then c", True),
        ("When b, given a, then c", False),
        ("Given a, when b, then", False),
        ("Whenever it is given to them", False),
        ("", False),
    ],
)
def test_gherkin_is_recognised_by_its_keywords_in_order(text: str, expected: bool) -> None:  # noqa: FBT001 - a table's column
    assert is_gherkin(text) is expected


def test_steps_on_separate_lines_are_one_criterion() -> None:
    lines = (
        "- Given two invoices",
        "And a closed month",
        "When May is exported",
        "Then the file has two lines",
        "* Given none",
        "When it is",
        "Then 404",
    )
    assert check(StoryDraft(ac=lines)).ac == (
        "Given two invoices, And a closed month, When May is exported, Then the file has two lines",
        "Given none, When it is, Then 404",
    )


@pytest.mark.parametrize(
    "draft",
    [
        StoryDraft("x" * 501),
        StoryDraft(description="x" * (CHARS + 1)),
        StoryDraft(ac=("x",) * (CRITERIA + 1)),
    ],
)
def test_a_too_long_story_is_refused_with_the_limit(draft: StoryDraft) -> None:
    with pytest.raises(InvalidRequest, match="allowed are"):
        score(draft)


@given(DRAFTS)
def test_any_text_has_a_score_explained_by_its_findings(draft: StoryDraft) -> None:
    result = score(draft)
    assert 0 <= result.total <= 100
    assert result.total == 100 - sum(item.weight for item in result.findings)
    assert check(check(draft)) == check(draft)
