"""Superseded tests: existing tests that expect behaviour which the task asks to change. A correct
answer fails them, and is not rejected for it.

A test is superseded if an author has changed it, the author's version passes on the author's
answer, and a model finds in the task's text that every correct answer fails the old version. The
model sees the change of the tests but not of the code. It reads each author's version separately: a
weakened version of one author says nothing about another's. A superseded test rejects no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.reviews import (
    WIDE_WINDOW_TOKENS,
    extract_test_changes,
    review_tokens,
)
from moothall.deliberation.prompts import prompts
from moothall.deliberation.prompts.reply import numbered_schema, read_numbered
from moothall.deliberation.prompts.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.deliberation.prompts.variants import MalformedReplyError
from moothall.domain.evidence import HIDDEN_CASE, SUPERSEDED, Evidence, Verdict
from moothall.domain.proposal import Candidate

_MAX_REGRESSIONS = 20
"""An answer that breaks more tests is rejected without asking a model."""
_WHY_CHARS = 200


async def excuse_superseded(council: DeliberationContext) -> list[Candidate]:
    """Return the candidates that break superseded tests, with the evidence for it, and publish
    this.
    """
    setup = council.setup_of("-")
    evaluator = council.evaluator
    if evaluator is None or not setup.native or setup.llm.context_tokens < WIDE_WINDOW_TOKENS:
        return []
    rejected = [
        evaluated
        for evaluated in council.judged
        if evaluated.assessment.applies
        and 0 < len(evaluated.assessment.regressions) <= _MAX_REGRESSIONS
    ]
    for evaluated in rejected:
        regressions = [
            case for case in evaluated.assessment.regressions if not case.startswith(HIDDEN_CASE)
        ]
        unread = [case for case in regressions if case not in council.superseded]
        if (
            not unread
            or evaluated.proposal.candidate in council.changes_read
            or council.ledger.used_up
        ):
            continue
        passing_as_changed = await evaluator.find_cases_passing_with_own_tests(
            evaluated.proposal, unread
        )
        if passing_as_changed and extract_test_changes(evaluated.proposal):
            council.changes_read.add(evaluated.proposal.candidate)
            council.superseded |= await _read_superseded(council, evaluated, passing_as_changed)
    excused = [await _excuse(council, evaluated) for evaluated in rejected]
    return [evaluated for evaluated in excused if evaluated is not None]


async def _read_superseded(
    council: DeliberationContext, evaluated: Candidate, cases: list[str]
) -> Mapping[str, str]:
    """Return the cases that the task supersedes, each with the reason."""
    setup = council.setup_of("-")
    test_changes = clip(
        readable_diff(extract_test_changes(evaluated.proposal)),
        int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5),
    )
    reply = await council.ask(
        f"-/verify/{council.deliberation.rounds + 1}.superseded.{evaluated.proposal.candidate}",
        prompts.superseded_prompt(setup.judge_system, council.task_text, test_changes, cases),
        numbered_schema("superseded", _MAX_REGRESSIONS),
        review_tokens(setup.llm),
        temperature=0.0,
    )
    try:
        reasons = read_numbered(reply, "superseded", len(cases)) if reply is not None else {}
    except MalformedReplyError:
        reasons = {}
    return {case: reasons[number] for number, case in enumerate(cases, 1) if number in reasons}


async def _excuse(council: DeliberationContext, evaluated: Candidate) -> Candidate | None:
    known_checks = {evidence.check for evidence in evaluated.assessment.evidence}
    cases = tuple(case for case in evaluated.assessment.regressions if case in council.superseded)
    if not cases or SUPERSEDED in known_checks:
        return None
    why = council.superseded[cases[0]][:_WHY_CHARS]
    evidence = Evidence(SUPERSEDED, Verdict.PASSED, passed=len(cases), shown=cases, why=why)
    await council.events.publish_evidence(evaluated.proposal, evidence)
    return replace(
        evaluated,
        assessment=replace(
            evaluated.assessment, evidence=(*evaluated.assessment.evidence, evidence)
        ),
    )
