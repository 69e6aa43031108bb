"""The test writer: an agent that sees the task and the base, and no answer. Its tests are run on
every answer; it never is a candidate.

It works where no answer is proven, once a deliberation. A case counts if it fails on the base for a
reason that the task gives, is steady, passes on at least one answer and, as a second reader of the
task's text says, fits the task. Cases that fit the task and fail on every answer are told and count
for nobody; where they are as many as those that count, an answer is not reproduced by the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.agents import (
    SHARE,
    TURNS,
    AgentTask,
    report,
    run_agent,
    share_of_time,
    tools_of,
)
from moothall.deliberation.judging.claims import is_done_already
from moothall.deliberation.judging.evaluator import EvaluatedProposal
from moothall.deliberation.judging.reviews import review_tokens
from moothall.deliberation.judging.trial import (
    FAILS_EVERYWHERE,
    OTHER_REASON,
    PASSES_ON_BASE,
    Trial,
    Verdicts,
    tests_in,
    vote,
)
from moothall.deliberation.prompts import evidence_prompt
from moothall.deliberation.prompts.reply import read_numbered
from moothall.deliberation.prompts.task_examples import (
    examples_text,
    find_examples,
    missing_examples,
)
from moothall.deliberation.prompts.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.deliberation.prompts.variants import MalformedReplyError
from moothall.domain.chat import FunctionCall, Message
from moothall.domain.evidence import RED, TEST_WRITER
from moothall.domain.proposal import Proposal
from moothall.domain.protocol import PROTOCOLS
from moothall.domain.repository import Patch
from moothall.errors import BusUnavailable, MoothallError
from moothall.ports import Workspace
from moothall.ranking.gates import name_cases, plain

_TRIES = 2
_OUTPUT = 4_000
TESTS_CHARS = 24_000
"""Characters of tests in a report."""


def may_write_tests(council: DeliberationContext) -> bool:
    """Whether the test writer is wanted, and can work."""
    d, prepared = council.deliberation, council.prepared
    if (
        not council.dependencies.evidence.test_writer
        or council.evaluator is None
        or prepared is None
        or council.ledger.used_up
    ):
        return False
    if (
        d.merge
        or d.agent is not None
        or PROTOCOLS[d.protocol].answers
        or tools_of(council.setup_of(TEST_WRITER)) is None
    ):
        return False
    checks = prepared.base.profile.checks
    if not any(name == "tests" or name.startswith("tests-") for name in checks):
        return False
    passing = [item for item in council.judged if item.passes]
    return (
        bool(passing)
        and not any(item.candidate.proven for item in passing)
        and not is_done_already(council)
    )


@dataclass(slots=True)
class IndependentTests:
    """The tests of the test writer of one deliberation, once it has written. `why`: the reason if
    there are none.
    """

    council: DeliberationContext
    author: Proposal | None = None
    why: str = ""
    written: bool = False
    _unfit: dict[str, str] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)

    async def run(self, *, published: bool) -> tuple[EvaluatedProposal, ...]:
        """Let the test writer write if it is wanted and has not; return the candidates with what
        its tests show of those that pass the gates.

        Only what is `published` counts in the end: cases are judged by all answers, and more may
        follow.
        """
        council = self.council
        judged, evaluator = council.judged, council.evaluator
        if not self.written and may_write_tests(council):
            self.written = True
            self.author, self.why = await _write(council)
        if not self.written or evaluator is None:
            return judged
        if self.author is None:
            if published:
                await report(council, TEST_WRITER, f"test writer: no tests: {plain(self.why, 200)}")
            return judged
        diffs = tuple(dict.fromkeys(item.proposal.diff for item in judged if item.passes))
        verdicts = await Trial(evaluator.author_tests, self.author, diffs).run(self._read_once)
        if len(verdicts.of(FAILS_EVERYWHERE)) >= len(verdicts.counted):
            verdicts = replace(
                verdicts, red=frozenset()
            )  # its tests or all answers are wrong: they rank, and reproduce nothing
        found = await vote(
            evaluator.author_tests, self.author, verdicts, judged, published=published
        )
        if published:
            shown = council.dependencies.clean(self.author.diff)[:TESTS_CHARS]
            await report(council, TEST_WRITER, _summary(verdicts), cases=verdicts.cases, diff=shown)
        return found

    async def _read_once(self, cases: Sequence[str]) -> Mapping[str, str]:
        """Have each case read against the task once."""
        new = [case for case in cases if case not in self._read]
        if new and self.author is not None:
            number = 2 if self._read else 1
            self._unfit |= await reader_of(
                self.council, self.author, TEST_WRITER, asked=False, number=number
            )(new)
            self._read |= {*new}
        return {case: why for case, why in self._unfit.items() if case in cases}


async def _write(council: DeliberationContext) -> tuple[Proposal | None, str]:
    """Return its tests as if a seat had proposed them, or why there are none."""
    setup, until = council.setup_of(TEST_WRITER), share_of_time(council, SHARE)
    tools = tools_of(setup)
    if until is None or tools is None:
        return None, "there was no time left"
    kept: list[Proposal] = []
    turns = min(TURNS, setup.max_turns)

    async def prepare(_workspace: Workspace) -> None:
        # in a second workspace the same replies come again, and none of them confirms what was
        # submitted before
        kept.clear()

    async def examine(
        call: FunctionCall, commit: Callable[[], Awaitable[Patch]]
    ) -> tuple[str, bool]:
        del call
        patch = await commit()
        author = await tests_of_agent(council, patch, TEST_WRITER)
        if not author.diff:
            return (
                (
                    "There is no new test in a place where a test runner finds it. Write one, then "
                    "submit again."
                ),
                False,
            )
        again = bool(kept) and kept[-1].diff == author.diff
        kept.append(author)
        answer, good = await _try_on_base(council, author)
        if missing := missing_examples(council.deliberation.description, author.diff):
            answer += (
                f"\nNone of your tests has these examples of the task:\n{examples_text(missing)}"
            )
        return answer, again or (good and not missing)

    task = AgentTask(
        seat=TEST_WRITER,
        head=evidence_prompt.writer_prompt(
            setup.shared, turns, examples_text(find_examples(council.deliberation.description))
        ),
        tools=tools.with_submit(evidence_prompt.SUBMIT_TESTS),
        examine=examine,
        turns=range(1, turns + 1),
        where="verify/0",
        until=until,
        prepare=prepare,
    )
    why = "it wrote none"
    try:
        await run_agent(council, task)
    except BusUnavailable:
        raise
    except MoothallError as error:
        why = error.message
    return (kept[-1], "") if kept else (None, why)


async def tests_of_agent(council: DeliberationContext, patch: Patch, agent: str) -> Proposal:
    """Return the tests in an agent's change."""
    if council.evaluator is None:
        raise AssertionError("tests run where there is a repository")
    return await tests_in(
        council.evaluator.author_tests.runs, patch, agent, council.deliberation.role
    )


async def _try_on_base(council: DeliberationContext, author: Proposal) -> tuple[str, bool]:
    """Run the tests on the base. Return what they show, and whether each of them fails."""
    if council.evaluator is None:
        raise AssertionError("tests run where there is a repository")
    tests = council.evaluator.author_tests
    lines: list[str] = []
    good = False
    for check, (run, cases) in (await Trial(tests, author, ()).on_base()).items():
        if not cases:
            lines.append(f"{check}: no new test ran.\n{clip(run.output, _OUTPUT)}")
            continue
        failing = [case for case in cases if tests.fails_on_base(run, case)]
        others = [case for case in cases if case not in failing]
        lines.append(
            f"{check}: {len(failing)} of {len(cases)} new tests fail on the code as it is."
        )
        if passed := [case for case in others if run.cases.get(case) not in RED]:
            lines.append(f"These pass already, so they show nothing: {', '.join(passed)}")
        if wrong := [case for case in others if run.cases.get(case) in RED]:
            lines.append(
                "These could not be loaded, for a reason that the task does not give: "
                f"{', '.join(wrong)}"
            )
            lines.append(clip(run.output, _OUTPUT))
        good = good or (bool(failing) and not others)
    if not lines:
        return (
            (
                "No test runner of this repository takes these files. Put the tests where the "
                "existing ones are."
            ),
            False,
        )
    return "\n".join(lines) + (
        "" if good else "\nCorrect the tests and submit again, or submit again as it is."
    ), good


def reader_of(
    council: DeliberationContext, author: Proposal, agent: str, *, asked: bool, number: int = 1
) -> Callable[[Sequence[str]], Awaitable[Mapping[str, str]]]:
    """Return what asks a model which cases do not fit the task's text. Where it does not say, none
    of them counts.
    """

    async def read(cases: Sequence[str]) -> Mapping[str, str]:
        setup = council.setup_of(agent)
        shown = clip(
            readable_diff(author.diff), int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
        )
        messages = evidence_prompt.validation_prompt(
            setup.judge_system, council.task_text, shown, cases, asked=asked
        )
        for attempt in range(1, _TRIES + 1):
            reply = await council.ask(
                f"{agent}/verify/{number}.{attempt}",
                messages,
                evidence_prompt.validation_schema(),
                review_tokens(setup.llm),
                temperature=0.0,
            )
            if reply is None:
                break
            try:
                dropped = read_numbered(reply, "dropped", len(cases))
            except MalformedReplyError as error:
                messages = (
                    *messages,
                    Message("assistant", reply.text),
                    Message("user", f"That is no answer: {error}"),
                )
                continue
            unread = dict.fromkeys(
                cases[evidence_prompt.READ_CASES :],
                f"only {evidence_prompt.READ_CASES} tests are read",
            )
            return {cases[number - 1]: why for number, why in dropped.items()} | unread
        return dict.fromkeys(cases, "nobody could read it against the task")

    return read


def _summary(verdicts: Verdicts) -> str:
    """Say in a line what became of its tests."""
    total = len(verdicts.states)
    if not total:
        return "test writer: no new test ran"
    everywhere = verdicts.of(FAILS_EVERYWHERE)
    red = total - len(verdicts.of(PASSES_ON_BASE)) - len(verdicts.of(OTHER_REASON))
    counted = len(verdicts.counted)
    count = (
        f"test writer: {total} {'test' if total == 1 else 'tests'}, {red} of them "
        f"{'fails' if red == 1 else 'fail'} on the base"
    )
    count += "" if counted == red else f", {counted} {'counts' if counted == 1 else 'count'}"
    told = (
        f"the test writer's test fails on every answer: {name_cases(everywhere)}"
        if everywhere
        else ""
    )
    told += (
        ", so that its other tests reproduce nothing"
        if everywhere and counted and not verdicts.red
        else ""
    )
    return "; ".join(filter(None, [count, told, verdicts.dropped()]))
