"""Claims that the task is already done: a change of tests only, with a summary that begins with
`Already done`.

A claim holds if its tests pass on the base in three runs, and a model that sees the task's text but
no answer finds that they check what the task asks for.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.evaluator import Evaluator
from moothall.deliberation.judging.reviews import extract_test_changes, review_tokens
from moothall.deliberation.prompts import prompts
from moothall.deliberation.prompts.reply import claim_schema, read_claim
from moothall.deliberation.prompts.text_calls import MalformedReplyError
from moothall.domain.evidence import ALREADY_DONE, Evidence, Verdict
from moothall.domain.proposal import Candidate, Proposal
from moothall.domain.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.ranking import changed_files, passes_acceptance_checks

_CLAIM = re.compile(r"\W*already[\s_-]+done\b", re.IGNORECASE)
_MIN_CONTEXT_TOKENS = 16_000
_MAX_NAMED_CASES = 20
_UNREAD = (
    "no model read its tests beside the task: that needs native tool calls and a window of 16,000 "
    "tokens"
)


def claims_done(proposal: Proposal) -> bool:
    """True if a seat says that the task is already done, and changes tests only."""
    changed = changed_files(proposal.diff)
    return (
        bool(changed)
        and set(changed) <= {*proposal.own_tests}
        and _CLAIM.match(proposal.content) is not None
    )


def is_done_already(council: DeliberationContext) -> bool:
    """True if every answer that passes the acceptance checks is a claim that holds.

    Tests could not choose between such answers.
    """
    passing = [evaluated for evaluated in council.judged if passes_acceptance_checks(evaluated)]
    return bool(passing) and all(evaluated.already_done for evaluated in passing)


async def check_claims(council: DeliberationContext) -> list[Candidate]:
    """Return the new claims with their evidence, and publish it.

    A claim does not hold if its tests fail on the base, or if no model can read them.
    """
    evaluator = council.evaluator
    if evaluator is None:
        return []
    unchecked = [
        claim
        for claim in council.judged
        if passes_acceptance_checks(claim)
        and claims_done(claim.proposal)
        and not any(evidence.check == ALREADY_DONE for evidence in claim.assessment.evidence)
    ]
    claims = {claim.proposal.diff: claim for claim in unchecked}
    async with asyncio.TaskGroup() as group:
        tasks = {
            diff: group.create_task(_check_claim(council, evaluator, claim))
            for diff, claim in claims.items()
        }
    evidence_by_diff = {diff: task.result() for diff, task in tasks.items()}
    for claim in unchecked:
        await council.events.publish_evidence(claim.proposal, evidence_by_diff[claim.proposal.diff])
    return [
        replace(
            claim,
            assessment=replace(
                claim.assessment,
                evidence=(*claim.assessment.evidence, evidence_by_diff[claim.proposal.diff]),
            ),
        )
        for claim in unchecked
    ]


async def _check_claim(
    council: DeliberationContext, evaluator: Evaluator, claim: Candidate
) -> Evidence:
    cases, reason = await evaluator.find_cases_passing_on_base(claim.proposal)
    reason = reason or await _read_tests(council, claim.proposal)
    verdict = Verdict.FAILED if reason else Verdict.PASSED
    return Evidence(
        ALREADY_DONE, verdict, passed=len(cases), shown=cases[:_MAX_NAMED_CASES], why=reason
    )


async def _read_tests(council: DeliberationContext, author: Proposal) -> str:
    """Return why the tests do not show that the task is done, as a model says; '' if they do."""
    setup = council.setup_of("-")
    if not setup.native or setup.llm.context_tokens < _MIN_CONTEXT_TOKENS or council.ledger.used_up:
        return _UNREAD
    test_changes = clip(
        readable_diff(extract_test_changes(author)),
        int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5),
    )
    messages = prompts.claim_prompt(setup.judge_system, council.task_text, test_changes)
    step = f"-/verify/{council.deliberation.rounds + 1}.claim.{author.candidate}"
    reply = await council.request_reply(
        step, messages, claim_schema(), review_tokens(setup.llm), temperature=0.0
    )
    try:
        return read_claim(reply) if reply is not None else _UNREAD
    except MalformedReplyError:
        return "the model did not say whether its tests check what the task asks for"
