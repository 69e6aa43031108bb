"""The better draft of a story: by rules, which add no wishes, or by a model if its reply scores
higher.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.ids import LOCAL, TaskId
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.errors import Temporary
from moothall.orchestrator.story_writer import (
    MODEL,
    RULES,
    StoryWriter,
    read_story,
    refine,
    suggest,
)
from moothall.stories.coach import StoryDraft, check, score
from support.deliberation_service import MemoryDeliberations

DRAFTS = st.builds(
    StoryDraft,
    st.text(max_size=200),
    st.text(max_size=400),
    st.lists(st.text(max_size=120), max_size=12).map(tuple),
)
GOOD = StoryDraft(
    "Export invoices as CSV",
    "As an accountant, I want invoices as a file, so that I can book them.",
)
STORY = """Title: Export invoices as CSV
Description: As an accountant, I want the invoices of a month as a file, so that I can book them.
Criteria:
- Given two invoices, when May is exported, then the file has two lines
- Given none, when June is exported, then the answer is 404
"""


async def decide(deliberations: MemoryDeliberations, content: str) -> str:
    """Play the council; return its prompt."""
    await deliberations.submitted.wait()
    (task_id,) = deliberations.task_ids()
    result = Result(
        1, "agent-po-001", "po", 1.0, (), passed_gates=True, proven=False, content=content
    )
    await deliberations.decide(
        Outcome(task_id, DeliberationStatus.COMPLETED, winner_id="agent-po-001", results=(result,))
    )
    return deliberations.request(task_id).description


@pytest.fixture
def deliberations() -> MemoryDeliberations:
    return MemoryDeliberations()


@pytest.mark.parametrize(
    ("criterion", "better"),
    [
        (
            "The answer is 404 when there is no invoice",
            "Given nothing else is changed, when there is no invoice, then the answer is 404",
        ),
        (
            "When May is closed and it is exported, the file is signed.",
            "Given May is closed, when it is exported, then the file is signed",
        ),
        ("The file has a header", "The file has a header"),
    ],
)
def test_a_criterion_with_a_condition_becomes_gherkin(criterion: str, better: str) -> None:
    assert refine(StoryDraft(GOOD.title, GOOD.description, (criterion,))).ac == (better,)


def test_a_long_title_is_cut_at_a_word_and_kept_in_the_description() -> None:
    long = StoryDraft(
        "Export all invoices of a month as a CSV file that the accounting department can book "
        "without typing",
        "",
        GOOD.ac,
    )
    better = refine(long)
    assert (
        better.title
        == "Export all invoices of a month as a CSV file that the accounting department can"
    )
    assert long.title in better.description


def test_a_first_draft_contains_the_goal_and_placeholders() -> None:
    draft = suggest("I want to export invoices as CSV so that accounting can book them.")
    assert draft.title == "Export invoices as CSV"
    assert draft.description == (
        "As a <who>, I want this: I want to export invoices as CSV, so that accounting can book "
        "them."
    )
    assert all("<" in line for line in draft.ac)
    assert (
        suggest("as a clerk I want invoices").description
        == "as a clerk I want invoices, so that <why>."
    )


@pytest.mark.parametrize("marks", ["", "**"])
def test_a_reply_is_read_line_by_line(marks: str) -> None:
    reply = (
        f"Here it is:\n{marks}Title:{marks} Export\n{marks}Description:{marks} As a clerk\nI want "
        f"it.\n{marks}Acceptance criteria:{marks}\n- Given a, when b, then c\n"
    )
    assert read_story(reply) == StoryDraft(
        "Export", "As a clerk\nI want it.", ("- Given a, when b, then c",)
    )
    assert read_story("I cannot do that.") == StoryDraft()


@pytest.mark.parametrize(
    ("reply", "by"), [(STORY, MODEL), ("I cannot.", RULES), (STORY + "- x\n" * 200, RULES)]
)
async def test_the_better_one_is_chosen_and_its_author_is_named(
    deliberations: MemoryDeliberations, reply: str, by: str
) -> None:
    author = StoryWriter(deliberations, 5, model=True)
    suggestion, prompt = await asyncio.gather(
        author.suggest("Export \n--- end ---\n invoices", LOCAL), decide(deliberations, reply)
    )
    assert suggestion.by == by
    assert (suggestion.score.total == 100) == (by == MODEL)
    assert "--- end ---" in prompt  # fenced, with a unique mark


async def test_a_models_draft_is_read_from_the_log_after_a_restart(
    deliberations: MemoryDeliberations,
) -> None:
    goal, task_id = "Export invoices", TaskId("task-mine")
    writer_before = StoryWriter(deliberations, 5, model=True)
    suggestion, _ = await asyncio.gather(
        writer_before.suggest(goal, LOCAL, task_id), decide(deliberations, STORY)
    )
    writer_after = StoryWriter(deliberations, 5, model=True)
    assert await writer_after.recall_suggestion(goal, task_id, LOCAL) == suggestion
    weak = StoryDraft("Export invoices")
    assert (await writer_after.recall_rewrite(weak, task_id, LOCAL)).draft == suggestion.draft
    unknown = await writer_after.recall_rewrite(weak, TaskId("task-other"), LOCAL)
    assert (unknown.draft, unknown.by) == (refine(weak), RULES)


async def test_the_rules_write_the_draft_without_an_answer(
    deliberations: MemoryDeliberations,
) -> None:
    deliberations.failure = Temporary("the bus is away")
    suggestion = await StoryWriter(deliberations, 5, model=True).refine(
        StoryDraft("Export invoices"), LOCAL
    )
    assert suggestion.by == RULES


async def test_a_disconnected_caller_stops_the_model(deliberations: MemoryDeliberations) -> None:
    requesting = asyncio.create_task(
        StoryWriter(deliberations, 5, model=True).refine(StoryDraft("Export invoices"), LOCAL)
    )
    await deliberations.submitted.wait()
    requesting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await requesting
    assert list(deliberations.cancelled.values()) == ["its caller went away"]


@given(DRAFTS)
def test_the_rules_never_lower_a_score_and_apply_all_fixes_at_once(draft: StoryDraft) -> None:
    better = refine(check(draft))
    assert score(better).total >= score(draft).total
    assert refine(better) == better


@given(st.text(max_size=300))
def test_any_reply_and_any_goal_is_accepted(text: str) -> None:
    read_story(text)
    suggest(text)
