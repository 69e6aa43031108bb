"""The test writer: an agent that sees the task and the base, but no answer. Its tests run on every
answer; it is never a candidate.

It works once per deliberation, if no answer is proven. A case counts if it fails on the base for a
reason that the task names, is not flaky, passes on at least one answer and fits the task according
to a model that reads the task's text. Cases that fit the task and fail on every answer are reported
but do not count. The other cases reproduce no answer if these are at least as many as those that
count, or if the model reads them again and finds that the task asks for one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.agent_tests import (
    FAILS_EVERYWHERE,
    OTHER_REASON,
    PASSES_ON_BASE,
    UNFINISHED,
    Trial,
    Verdicts,
    add_cross_runs,
    extract_tests,
)
from moothall.deliberation.judging.claims import is_done_already
from moothall.deliberation.judging.evidence_agents import (
    MAX_TURNS,
    TIME_SHARE,
    AgentTask,
    agent_deadline,
    publish_report,
    run_agent,
    select_tools,
)
from moothall.deliberation.judging.reviews import review_tokens
from moothall.deliberation.prompts import evidence_prompt
from moothall.deliberation.prompts.excerpts import examples_text, find_examples, missing_examples
from moothall.deliberation.prompts.reply import read_numbered
from moothall.deliberation.prompts.text_calls import MalformedReplyError
from moothall.deliberation.seat_setup import SeatSetup
from moothall.domain.chat import FunctionCall, Message
from moothall.domain.council import PROTOCOLS
from moothall.domain.evidence import FAILED_OUTCOMES, TEST_WRITER
from moothall.domain.proposal import Candidate, Proposal
from moothall.domain.repository import Patch
from moothall.domain.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.errors import BusUnavailable, MoothallError
from moothall.ports import Workspace
from moothall.ranking import passes_acceptance_checks
from moothall.ranking.criteria import format_cases, sanitize_line

_MAX_READ_ATTEMPTS = 2
_OUTPUT_CHARS = 4_000
_WHY_CHARS = 200
TESTS_CHARS = 24_000
"""The length limit of tests in a report."""


def may_write_tests(council: DeliberationContext) -> bool:
    """True if the test writer is enabled and useful, and can work."""
    d, prepared = council.deliberation, council.prepared
    if (
        "test-writer" not in council.dependencies.rules.evidence.agents
        or council.evaluator is None
        or prepared is None
        or council.ledger.used_up
    ):
        return False
    if (
        d.asks_no_model
        or d.agent is not None
        or PROTOCOLS[d.protocol].answers
        or select_tools(council.setup_of(TEST_WRITER)) is None
    ):
        return False
    checks = prepared.base.profile.checks
    if not any(name == "tests" or name.startswith("tests-") for name in checks):
        return False
    passing = [candidate for candidate in council.judged if passes_acceptance_checks(candidate)]
    return (
        bool(passing)
        and not any(candidate.proven for candidate in passing)
        and not is_done_already(council)
    )


@dataclass(slots=True)
class IndependentTests:
    """The tests of the test writer in one deliberation.

    has_run: the test writer has run.
    missing_reason: why there are no tests.
    failing_everywhere: the tests that fail on every answer, after the last run.
    """

    council: DeliberationContext
    author: Proposal | None = None
    missing_reason: str = ""
    has_run: bool = False
    failing_everywhere: tuple[str, ...] = ()
    _unfit: dict[str, str] = field(default_factory=dict)
    _read_cases: set[str] = field(default_factory=set)
    _required: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)

    async def apply(self, *, published: bool) -> tuple[Candidate, ...]:
        """Run the test writer if it is useful and has not run. Return the candidates with the
        results of its tests for those that pass the acceptance checks.

        published: publish the results. Only these are final: cases depend on all answers, and more
        may follow.
        """
        council = self.council
        candidates, evaluator = council.judged, council.evaluator
        if not self.has_run and may_write_tests(council):
            self.has_run = True
            self.author, self.missing_reason = await _write_tests(council)
        if not self.has_run or evaluator is None:
            return candidates
        if self.author is None:
            if published:
                await publish_report(
                    council,
                    TEST_WRITER,
                    f"test writer: no tests: {sanitize_line(self.missing_reason, _WHY_CHARS)}",
                )
            return candidates
        diffs = tuple(
            dict.fromkeys(
                candidate.proposal.diff
                for candidate in candidates
                if passes_acceptance_checks(candidate)
            )
        )
        verdicts = await Trial(evaluator.author_tests, self.author, diffs).judge_cases(
            self._read_new_cases
        )
        self.failing_everywhere = verdicts.cases_with(FAILS_EVERYWHERE)
        if verdicts.failing_on_base and await self._all_may_be_wrong(verdicts):
            verdicts = replace(
                verdicts, failing_on_base=frozenset()
            )  # the tests rank, but reproduce nothing
        updated = await add_cross_runs(
            evaluator.author_tests, self.author, verdicts, candidates, published=published
        )
        if published:
            test_changes = council.dependencies.clean(self.author.diff)[:TESTS_CHARS]
            await publish_report(
                council,
                TEST_WRITER,
                _summarize_verdicts(verdicts),
                cases=verdicts.cases,
                diff=test_changes,
            )
        return updated

    async def _all_may_be_wrong(self, verdicts: Verdicts) -> bool:
        """True if tests that fail on every answer speak against all answers."""
        failing = verdicts.cases_with(FAILS_EVERYWHERE)
        if not failing or self.author is None:
            return False
        if len(failing) >= len(verdicts.counted):
            return True
        if all(len(passed) < len(verdicts.counted) for passed in verdicts.passed.values()):
            return False  # no answer passes all that count, so none is reproduced anyway
        if failing not in self._required:
            self._required[failing] = await _find_required_cases(
                self.council, self.author, failing, number=3 + len(self._required)
            )
        return bool(self._required[failing])

    async def _read_new_cases(self, cases: Sequence[str]) -> Mapping[str, str]:
        """Compare each case with the task once; return those that do not fit, with the reason."""
        unread = [case for case in cases if case not in self._read_cases]
        if unread and self.author is not None:
            number = 2 if self._read_cases else 1
            self._unfit |= await make_case_reader(
                self.council, self.author, TEST_WRITER, only_requested=False, number=number
            )(unread)
            self._read_cases |= {*unread}
        return {case: reason for case, reason in self._unfit.items() if case in cases}


async def _write_tests(council: DeliberationContext) -> tuple[Proposal | None, str]:
    """Return the tests as a proposal of a seat, and the reason if there are none."""
    setup, deadline = council.setup_of(TEST_WRITER), agent_deadline(council, TIME_SHARE)
    tools = select_tools(setup)
    if deadline is None or tools is None:
        return None, "there was no time left"
    submissions: list[Proposal] = []
    turns = min(MAX_TURNS, setup.max_turns)

    async def prepare(_workspace: Workspace) -> None:
        # In a second workspace the same replies are replayed; they must not count as a
        # resubmission.
        submissions.clear()

    async def examine(
        call: FunctionCall, commit: Callable[[], Awaitable[Patch]]
    ) -> tuple[str, bool]:
        del call
        patch = await commit()
        author = await extract_agent_tests(council, patch, TEST_WRITER)
        if not author.diff:
            return (
                (
                    "There is no new test in a place where a test runner finds it. Write one, then "
                    "submit again."
                ),
                False,
            )
        resubmitted = bool(submissions) and submissions[-1].diff == author.diff
        submissions.append(author)
        message, all_fail = await _try_on_base(council, author)
        if missing := missing_examples(council.deliberation.description, author.diff):
            message += (
                f"\nNone of your tests has these examples of the task:\n{examples_text(missing)}"
            )
        return message, resubmitted or (all_fail and not missing)

    task = AgentTask(
        seat=TEST_WRITER,
        messages=evidence_prompt.writer_prompt(
            setup.shared, turns, examples_text(find_examples(council.deliberation.description))
        ),
        tools=tools.with_submit(evidence_prompt.SUBMIT_TESTS),
        examine=examine,
        turns=range(1, turns + 1),
        step="verify/0",
        deadline=deadline,
        prepare=prepare,
    )
    reason = "it wrote none"
    try:
        await run_agent(council, task)
    except BusUnavailable:
        raise
    except MoothallError as error:
        reason = error.message
    return (submissions[-1], "") if submissions else (None, reason)


async def extract_agent_tests(council: DeliberationContext, patch: Patch, agent: str) -> Proposal:
    """Return the tests in an agent's change."""
    if council.evaluator is None:
        raise AssertionError("running tests requires a repository")
    return await extract_tests(
        council.evaluator.author_tests.runner, patch, agent, council.deliberation.role
    )


async def _try_on_base(council: DeliberationContext, author: Proposal) -> tuple[str, bool]:
    """Run the tests on the base; return a report for the agent, and whether each of them fails."""
    if council.evaluator is None:
        raise AssertionError("running tests requires a repository")
    tests = council.evaluator.author_tests
    lines: list[str] = []
    all_fail = False
    for check, (run, cases) in (await Trial(tests, author, ()).run_on_base()).items():
        if not cases:
            lines.append(f"{check}: no new test ran.\n{clip(run.output, _OUTPUT_CHARS)}")
            continue
        failing = [case for case in cases if tests.fails_on_base(run, case)]
        not_failing = [case for case in cases if case not in failing]
        lines.append(
            f"{check}: {len(failing)} of {len(cases)} new tests fail on the code as it is."
        )
        if passing := [case for case in not_failing if run.cases.get(case) not in FAILED_OUTCOMES]:
            lines.append(f"These pass already, so they show nothing: {', '.join(passing)}")
        if unloadable := [case for case in not_failing if run.cases.get(case) in FAILED_OUTCOMES]:
            lines.append(
                "These could not be loaded, for a reason that the task does not give: "
                f"{', '.join(unloadable)}"
            )
            lines.append(clip(run.output, _OUTPUT_CHARS))
        all_fail = all_fail or (bool(failing) and not not_failing)
    if not lines:
        return (
            (
                "No test runner of this repository takes these files. Put the tests where the "
                "existing ones are."
            ),
            False,
        )
    return "\n".join(lines) + (
        "" if all_fail else "\nCorrect the tests and submit again, or submit again as it is."
    ), all_fail


def make_case_reader(
    council: DeliberationContext,
    author: Proposal,
    agent: str,
    *,
    only_requested: bool,
    number: int = 1,
) -> Callable[[Sequence[str]], Awaitable[Mapping[str, str]]]:
    """Return a function that asks a model which cases do not fit the task's text.

    If the model gives no clear answer, no case counts.
    """

    async def read_cases(cases: Sequence[str]) -> Mapping[str, str]:
        setup = council.setup_of(agent)
        messages = evidence_prompt.validation_prompt(
            setup.judge_system,
            council.task_text,
            _test_changes(setup, author),
            cases,
            only_requested=only_requested,
        )
        for attempt in range(1, _MAX_READ_ATTEMPTS + 1):
            reply = await council.request_reply(
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
            return {cases[number - 1]: reason for number, reason in dropped.items()} | unread
        return dict.fromkeys(cases, "no model could compare it with the task")

    return read_cases


async def _find_required_cases(
    council: DeliberationContext, author: Proposal, cases: Sequence[str], *, number: int
) -> tuple[str, ...]:
    """Ask a model which cases the task clearly asks for; all of them fail on every answer.

    If the model gives no clear answer, return () for a council, whose answers disagree with the
    tests independently, and all cases for a judged change.
    """
    setup = council.setup_of(TEST_WRITER)
    cases = cases[: evidence_prompt.READ_CASES]
    reply = await council.request_reply(
        f"{TEST_WRITER}/verify/{number}.1",
        evidence_prompt.required_prompt(
            setup.judge_system, council.task_text, _test_changes(setup, author), cases
        ),
        evidence_prompt.required_schema(),
        review_tokens(setup.llm),
        temperature=0.0,
    )
    unclear = tuple(cases) if council.deliberation.judges else ()
    if reply is None:
        return unclear
    try:
        required = read_numbered(reply, "required", len(cases))
    except MalformedReplyError:
        return unclear
    return tuple(cases[index - 1] for index in sorted(required))


def _test_changes(setup: SeatSetup, author: Proposal) -> str:
    """Return the tests as a reader sees them, in at most a fifth of its window."""
    return clip(readable_diff(author.diff), int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5))


def _summarize_verdicts(verdicts: Verdicts) -> str:
    """Summarize the results of the tests in one line."""
    total = len(verdicts.states)
    if not total:
        return "test writer: no new test ran"
    failing_everywhere = verdicts.cases_with(FAILS_EVERYWHERE)
    failing_on_base = total - sum(
        len(verdicts.cases_with(state)) for state in (PASSES_ON_BASE, OTHER_REASON, UNFINISHED)
    )
    counted_total = len(verdicts.counted)
    totals = (
        f"test writer: {total} {'test' if total == 1 else 'tests'}, {failing_on_base} of them "
        f"{'fails' if failing_on_base == 1 else 'fail'} on the base"
    )
    totals += (
        ""
        if counted_total == failing_on_base
        else f", {counted_total} {'counts' if counted_total == 1 else 'count'}"
    )
    warning = (
        f"{'a test' if len(failing_everywhere) == 1 else 'tests'} of the test writer "
        f"{'fails' if len(failing_everywhere) == 1 else 'fail'} on every answer: "
        f"{format_cases(failing_everywhere)}"
        if failing_everywhere
        else ""
    )
    warning += (
        ", so that its other tests reproduce nothing"
        if failing_everywhere and counted_total and not verdicts.failing_on_base
        else ""
    )
    return "; ".join(filter(None, [totals, warning, verdicts.describe_dropped()]))
