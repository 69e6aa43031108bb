"""Seats that say that the task is already done: a change of tests alone, and a summary that begins with `Already done`.

Their tests pass on the base in three runs, and a reader of the task's text, who sees no answer, finds that they check what it asks for.
"""

from __future__ import annotations

import asyncio
import re

from moothall.council.assembly import Assembly
from moothall.council.judging.recheck import Judged
from moothall.council.judging.reviews import review_tokens, tests_of
from moothall.council.prompting import prompts
from moothall.council.prompting.reply import claim_schema, read_claim
from moothall.council.prompting.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.council.prompting.variants import MalformedReplyError
from moothall.domain.evidence import ALREADY_DONE, Evidence, Verdict
from moothall.domain.proposal import Proposal
from moothall.ranking import changed_files

_CLAIM = re.compile(r"\W*already[\s_-]+done\b", re.IGNORECASE)
_WIDE = 16_000
_UNREAD = "no model read its tests beside the task: that needs native tool calls and a window of 16,000 tokens"


def claims_done(proposal: Proposal) -> bool:
    """Whether a seat says that the task is already done, and brings tests alone."""
    changed = changed_files(proposal.diff)
    return bool(changed) and set(changed) <= {*proposal.own_tests} and _CLAIM.match(proposal.content) is not None


async def judge_claims(council: Assembly) -> None:
    """Publish which claims hold. One whose tests do not pass on the base, or that nobody could read, does not."""
    claims = {item.proposal.diff: item for item in council.judged if item.passes and claims_done(item.proposal)}
    async with asyncio.TaskGroup() as group:
        for number, item in enumerate(claims.values(), 1):
            group.create_task(_judge(council, item, number))


async def _judge(council: Assembly, item: Judged, number: int) -> None:
    if council.bench is None:
        return
    cases, why = await council.bench.cases_on_base(item.proposal)
    why = why or await _read(council, item.proposal, number)
    verdict = Verdict.FAILED if why else Verdict.PASSED
    found = Evidence(ALREADY_DONE, verdict, passed=len(cases), shown=cases[:20], why=why)
    for other in council.judged:
        if other.proposal.diff == item.proposal.diff and claims_done(other.proposal):
            await council.facts.show(other.proposal, found)


async def _read(council: Assembly, author: Proposal, number: int) -> str:
    """Return why tests do not show that the task is done, as the model says; '' if they do."""
    setup = council.setup_of("-")
    if not setup.native or setup.llm.context_tokens < _WIDE or council.ledger.used_up:
        return _UNREAD
    shown = clip(readable_diff(tests_of(author)), int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5))
    messages = prompts.claim_prompt(setup.judge_system, setup.shared, shown)
    step = f"-/verify/{council.d.rounds + 1}.claim{number}"
    reply = await council.ask(step, messages, claim_schema(), review_tokens(setup.llm), temperature=0.0)
    try:
        return read_claim(reply) if reply is not None else _UNREAD
    except MalformedReplyError:
        return "the model did not say whether its tests check what the task asks for"
