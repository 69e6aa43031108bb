"""Existing tests that expect what the task asks to change: a right answer fails them, and is not
refused for it.

A test is superseded if an author has changed it, the author's version passes on the author's
answer, and a model finds in the task's text that every right answer fails the old version. The
model sees the change of the tests and no change of the code. Each author's version is read: that
one weakens a test says nothing of another's. A superseded test refuses no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.evaluator import EvaluatedProposal
from moothall.deliberation.judging.reviews import WIDE_WINDOW, review_tokens, tests_of
from moothall.deliberation.prompts import prompts
from moothall.deliberation.prompts.reply import numbered_schema, read_numbered
from moothall.deliberation.prompts.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.deliberation.prompts.variants import MalformedReplyError
from moothall.domain.evidence import HIDDEN_CASE, SUPERSEDED, Evidence, Verdict

_MOST = 20
"""An answer that breaks more tests than these is refused without a question."""
_WHY = 200


async def excuse_superseded(council: DeliberationContext) -> list[EvaluatedProposal]:
    """Return the candidates that break superseded tests, with the evidence that says so,
    published.
    """
    setup = council.setup_of("-")
    evaluator = council.evaluator
    if evaluator is None or not setup.native or setup.llm.context_tokens < WIDE_WINDOW:
        return []
    refused = [
        item
        for item in council.judged
        if item.assessment.applies and 0 < len(item.assessment.regressions) <= _MOST
    ]
    for item in refused:
        lost = [case for case in item.assessment.regressions if not case.startswith(HIDDEN_CASE)]
        new = [case for case in lost if case not in council.superseded]
        if not new or item.proposal.candidate in council.changes_read or council.ledger.used_up:
            continue
        changed = await evaluator.passing_as_changed(item.proposal, new)
        if changed and tests_of(item.proposal):
            council.changes_read.add(item.proposal.candidate)
            council.superseded |= await _read(council, item, changed)
    excused = [await _excuse(council, item) for item in refused]
    return [item for item in excused if item is not None]


async def _read(
    council: DeliberationContext, item: EvaluatedProposal, cases: list[str]
) -> Mapping[str, str]:
    """Return the cases that the task supersedes, each with the reason."""
    setup = council.setup_of("-")
    shown = clip(
        readable_diff(tests_of(item.proposal)), int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
    )
    reply = await council.ask(
        f"-/verify/{council.deliberation.rounds + 1}.superseded.{item.proposal.candidate}",
        prompts.superseded_prompt(setup.judge_system, council.task_text, shown, cases),
        numbered_schema("superseded", _MOST),
        review_tokens(setup.llm),
        temperature=0.0,
    )
    try:
        found = read_numbered(reply, "superseded", len(cases)) if reply is not None else {}
    except MalformedReplyError:
        found = {}
    return {case: found[number] for number, case in enumerate(cases, 1) if number in found}


async def _excuse(
    council: DeliberationContext, item: EvaluatedProposal
) -> EvaluatedProposal | None:
    known = {evidence.check for evidence in item.assessment.evidence}
    cases = tuple(case for case in item.assessment.regressions if case in council.superseded)
    if not cases or SUPERSEDED in known:
        return None
    why = council.superseded[cases[0]][:_WHY]
    evidence = Evidence(SUPERSEDED, Verdict.PASSED, passed=len(cases), shown=cases, why=why)
    await council.events.publish_evidence(item.proposal, evidence)
    return replace(
        item, assessment=replace(item.assessment, evidence=(*item.assessment.evidence, evidence))
    )
