"""Seats that say that the task is already done: a change of tests alone, and a summary that begins
with `Already done`.

Their tests pass on the base in three runs, and a reader of the task's text, who sees no answer,
finds that they check what it asks for.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.evaluator import EvaluatedProposal, Evaluator
from moothall.deliberation.judging.reviews import review_tokens, tests_of
from moothall.deliberation.prompts import prompts
from moothall.deliberation.prompts.reply import claim_schema, read_claim
from moothall.deliberation.prompts.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.deliberation.prompts.variants import MalformedReplyError
from moothall.domain.evidence import ALREADY_DONE, Evidence, Verdict
from moothall.domain.proposal import Proposal
from moothall.ranking import changed_files

_CLAIM = re.compile(r"\W*already[\s_-]+done\b", re.IGNORECASE)
_WIDE = 16_000
_UNREAD = (
    "no model read its tests beside the task: that needs native tool calls and a window of 16,000 "
    "tokens"
)


def claims_done(proposal: Proposal) -> bool:
    """Whether a seat says that the task is already done, and brings tests alone."""
    changed = changed_files(proposal.diff)
    return (
        bool(changed)
        and set(changed) <= {*proposal.own_tests}
        and _CLAIM.match(proposal.content) is not None
    )


def is_done_already(council: DeliberationContext) -> bool:
    """Whether all answers that pass the gates are claims that hold: there is nothing that tests
    could choose between.
    """
    passing = [item for item in council.judged if item.passes]
    return bool(passing) and all(item.candidate.already_done for item in passing)


async def judge_claims(council: DeliberationContext) -> list[EvaluatedProposal]:
    """Return the claims with what was found of them, published. One whose tests do not pass on the
    base, or that nobody could read, does not hold.
    """
    evaluator = council.evaluator
    if evaluator is None:
        return []
    new = [
        item
        for item in council.judged
        if item.passes
        and claims_done(item.proposal)
        and not any(one.check == ALREADY_DONE for one in item.assessment.evidence)
    ]
    claims = {item.proposal.diff: item for item in new}
    async with asyncio.TaskGroup() as group:
        tasks = {
            diff: group.create_task(_judge(council, evaluator, item))
            for diff, item in claims.items()
        }
    found = {diff: task.result() for diff, task in tasks.items()}
    for item in new:
        await council.events.publish_evidence(item.proposal, found[item.proposal.diff])
    return [
        replace(
            item,
            assessment=replace(
                item.assessment, evidence=(*item.assessment.evidence, found[item.proposal.diff])
            ),
        )
        for item in new
    ]


async def _judge(
    council: DeliberationContext, evaluator: Evaluator, item: EvaluatedProposal
) -> Evidence:
    cases, why = await evaluator.cases_on_base(item.proposal)
    why = why or await _read(council, item.proposal)
    verdict = Verdict.FAILED if why else Verdict.PASSED
    return Evidence(ALREADY_DONE, verdict, passed=len(cases), shown=cases[:20], why=why)


async def _read(council: DeliberationContext, author: Proposal) -> str:
    """Return why tests do not show that the task is done, as the model says; '' if they do."""
    setup = council.setup_of("-")
    if not setup.native or setup.llm.context_tokens < _WIDE or council.ledger.used_up:
        return _UNREAD
    shown = clip(
        readable_diff(tests_of(author)), int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
    )
    messages = prompts.claim_prompt(setup.judge_system, council.task_text, shown)
    step = f"-/verify/{council.deliberation.rounds + 1}.claim.{author.candidate}"
    reply = await council.ask(
        step, messages, claim_schema(), review_tokens(setup.llm), temperature=0.0
    )
    try:
        return read_claim(reply) if reply is not None else _UNREAD
    except MalformedReplyError:
        return "the model did not say whether its tests check what the task asks for"
