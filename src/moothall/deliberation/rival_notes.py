"""Descriptions of attempts: rivals' answers before a revision, and notes for the second wave."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase

from moothall.deliberation.context import DeliberationContext, SeatState
from moothall.deliberation.judging.hidden import visible_candidate, without_hidden
from moothall.deliberation.prompts.evidence_prompt import notes_prompt, rivals_text
from moothall.deliberation.prompts.reply import whole_text
from moothall.deliberation.prompts.text_calls import MalformedReplyError
from moothall.domain.evidence import TEST_WRITER, TIE_BREAKER
from moothall.domain.proposal import Candidate, SeatStatus
from moothall.domain.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.ranking.criteria import format_cases, format_counts
from moothall.ranking.diffs import file_diffs

_SUMMARY_CHARS, _NOTES_CHARS = 800, 6_000
_NOTES_TOKENS = 1_000
_AUTHORS = {
    TEST_WRITER: "the tests of a colleague who saw no answer",
    TIE_BREAKER: "the tests of a colleague who compared answers",
}


def rivals_of(council: DeliberationContext, seat_state: SeatState) -> str:
    """Return descriptions of the other answers for an author, without names, code or test output.

    Return '' if there are none, about text, and for seats that write one function: longer prompts
    confuse their models.
    """
    if council.prepared is None or council.setup_of(seat_state.seat).function is not None:
        return ""
    own_diff = seat_state.latest.proposal.diff
    rivals = {
        rival.latest.proposal.diff: rival
        for rival in council.proposers
        if rival.latest.proposal.diff != own_diff
    }
    letters = {
        rival.seat: letter for rival, letter in zip(rivals.values(), ascii_uppercase, strict=False)
    }
    names = {
        **{seat: f"the tests of answer {letter}" for seat, letter in letters.items()},
        seat_state.seat: "your tests",
    }
    return rivals_text([_describe_answer(rival.latest, names) for rival in rivals.values()])


def _describe_answer(judged: Candidate, names: dict[str, str], failing: Sequence[str] = ()) -> str:
    """Describe an answer.

    names: a description of each seat's tests.
    failing: the tests of the test writer that fail on every answer.
    """
    proposal = judged.proposal
    changed = ", ".join(
        f"{part.path} (+{len(part.added)} -{len(part.removed)})"
        for part in file_diffs(proposal.diff)
    )
    lines = [
        f"Summary by its author: {clip(proposal.content.strip(), _SUMMARY_CHARS)}",
        f"Changed files: {changed or 'none'}",
        f"Evidence: {visible_candidate(judged).level.words}",
    ]
    assessment = without_hidden(judged.assessment)
    lines += [f"{item.check}: {item.verdict}{format_counts(item)}" for item in assessment.evidence]
    if assessment.regressions:
        lines.append(f"Passed before and not any more: {format_cases(assessment.regressions)}")
    passed_by_author = {run.author: run.passed for run in judged.cross}
    if failing:
        passed_by_author[TEST_WRITER] = False
    for author, passed in passed_by_author.items():
        lines.append(
            f"{'Passes' if passed else 'Fails'} "
            f"{names.get(author) or _AUTHORS.get(author, 'the tests of another answer')}."
        )
    if failing:
        lines.append(f"Every answer fails some of them: {format_cases(failing)}")
    return "\n".join(lines)


async def distil_notes(
    council: DeliberationContext, round_: int, failing: Sequence[str] = ()
) -> str:
    """Return a model's notes on the first wave, or descriptions of its answers if there are
    none.

    failing: the tests of the test writer that fail on every answer.
    """
    setup = council.setup_of("-")
    max_chars = int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
    texts: dict[str, str] = {}
    for item in council.judged:
        text = _describe_answer(item, {}, failing)
        patch = clip(
            readable_diff(item.proposal.diff),
            max(max_chars // max(len(council.judged), 1) - len(text), 0),
        )
        texts.setdefault(item.proposal.diff, f"{text}\n\n{patch}".strip())
    attempts = list(texts.values()) + _describe_failures(council.seat_states)
    reply = await council.request_reply(
        f"-/plan/{round_}.notes",
        notes_prompt(setup.judge_system, setup.shared, attempts),
        None,
        _NOTES_TOKENS,
        deadline=council.deadlines.work,
        temperature=0.0,
    )
    try:
        notes = whole_text(reply).strip() if reply is not None else ""
    except MalformedReplyError:
        notes = ""
    outline = [_describe_answer(item, {}, failing) for item in council.judged]
    return clip(
        notes or "\n\n".join([*outline, *_describe_failures(council.seat_states)]), _NOTES_CHARS
    )


def _describe_failures(seat_states: Sequence[SeatState]) -> list[str]:
    failed = [
        seat_state
        for seat_state in seat_states
        if not seat_state.judged and seat_state.status is SeatStatus.FAILED
    ]
    return [
        f"Ended without an answer: {clip(seat_state.message, _SUMMARY_CHARS)}"
        for seat_state in failed
    ]
