"""Comparison of answers: of many by their summaries, and of tied ones by an agent with a shell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from string import ascii_lowercase

from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.agent_tests import COUNTS, Trial, Verdicts, add_cross_runs
from moothall.deliberation.judging.evaluator import Evaluator, format_check_results
from moothall.deliberation.judging.evidence_agents import (
    MAX_TURNS,
    TIME_SHARE,
    AgentTask,
    agent_deadline,
    publish_report,
    run_agent,
    select_tools,
)
from moothall.deliberation.judging.reviews import Answer, review_tokens
from moothall.deliberation.judging.test_writer import (
    TESTS_CHARS,
    extract_agent_tests,
    make_case_reader,
)
from moothall.deliberation.prompts import evidence_prompt
from moothall.deliberation.prompts.evidence_prompt import (
    comparison_prompt,
    order_schema,
    read_order,
    read_summary,
    summary_prompt,
    summary_schema,
)
from moothall.deliberation.prompts.text_calls import MalformedReplyError
from moothall.deliberation.seat_setup import BASH, WRITE, UnusableCallError, read_arguments
from moothall.domain.chat import FunctionCall
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import COMPARISON, TIE_BREAKER
from moothall.domain.proposal import Candidate, Proposal, Review
from moothall.domain.repository import Patch
from moothall.domain.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.domain.tool import ToolCall
from moothall.errors import BusUnavailable, MoothallError
from moothall.ports import Workspace
from moothall.ranking import find_ties, have_same_change
from moothall.ranking.criteria import format_cases, sanitize_line
from moothall.telemetry import get_logger

# Comparison of many answers by their summaries: in small groups, then among the best of each group,
# until one is left.
#
# The model orders each group twice, the second time in the opposite order of presentation, since
# models favour what comes first. The result is published as reviews by "comparison", with scores
# from 1 (first) to 0 (last). Tied answers have the same score.


GROUP_SIZE = 4
"""Answers that are compared at once. Models lose track of more."""
_COMMENT_CHARS = 300


@dataclass(frozen=True, slots=True)
class _Entry:
    """An answer and its summary."""

    answer: Answer
    summary: str


@dataclass(frozen=True, slots=True)
class _Ranking:
    """Entries by rank, the best first; tied entries share a rank.

    reason: why the model ranked them so.
    """

    ranks: tuple[tuple[_Entry, ...], ...]
    reason: str = ""


async def compare_answers(council: DeliberationContext, answers: Sequence[Answer]) -> list[Review]:
    """Compare answers and publish their order as reviews.

    Return [] if the model does not answer or the budget is used up.
    """
    if council.ledger.used_up or len(answers) < 2:  # noqa: PLR2004
        return []
    entries = await _summarize_answers(council, answers)
    ranking = await _rank_entries(council, entries) if entries else None
    return await _publish_ranking(council, ranking) if ranking is not None else []


async def _summarize_answers(
    council: DeliberationContext, answers: Sequence[Answer]
) -> list[_Entry]:
    """Return the answers with their summaries; [] if the model summarizes none.

    The start of an answer replaces a missing summary.
    """
    setup = council.setup_of("-")
    max_chars = int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
    evaluated_by_candidate = {
        evaluated.proposal.candidate: evaluated for evaluated in council.judged
    }
    round_ = council.deliberation.rounds + 1

    async def summarize(number: int, answer: Answer) -> str:
        evaluated = evaluated_by_candidate[answer.proposals[0].candidate]
        evidence = (
            format_check_results(evaluated, council.prepared.runs) if council.prepared else ""
        )
        answer_text = clip(
            readable_diff(answer.text) if council.prepared else answer.text, max_chars
        )
        messages = summary_prompt(
            setup.judge_system, setup.shared, answer_text, clip(evidence, max_chars // 3)
        )
        reply = await council.request_reply(
            f"-/verify/{round_}.summary{number}",
            messages,
            summary_schema(),
            review_tokens(setup.llm),
            temperature=0.0,
        )
        try:
            return read_summary(reply).text if reply is not None else ""
        except MalformedReplyError:
            return ""

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(summarize(number, answer)) for number, answer in enumerate(answers, 1)
        ]
    summaries = [task.result() for task in tasks]
    if not any(summaries):
        return []
    excerpt_chars = max_chars // (2 * GROUP_SIZE)
    return [
        _Entry(answer, summary or clip(answer.text, excerpt_chars))
        for answer, summary in zip(answers, summaries, strict=True)
    ]


async def _rank_entries(council: DeliberationContext, entries: Sequence[_Entry]) -> _Ranking | None:
    """Return all entries by rank; None if the model ordered nothing.

    The best of each group are compared again, and rank before those that they beat.
    """
    beaten: list[tuple[_Entry, ...]] = []
    remaining, reason, stage = list(entries), "", 0
    while len(remaining) > 1:
        stage += 1
        group_count = -(-len(remaining) // GROUP_SIZE)
        groups = [remaining[start::group_count] for start in range(group_count)]
        async with asyncio.TaskGroup() as tasks:
            group_tasks = [
                tasks.create_task(_compare_group(council, members, f"{stage}.{number}"))
                for number, members in enumerate(groups, 1)
            ]
        rankings = [task.result() for task in group_tasks]
        if all(ranking is None for ranking in rankings):
            break
        best: list[_Entry] = []
        others_by_rank: dict[int, list[_Entry]] = {}
        for members, ranking in zip(groups, rankings, strict=True):
            first, *rest = ranking.ranks if ranking is not None else (tuple(members),)
            best += first
            reason = ranking.reason if ranking is not None and ranking.reason else reason
            for rank, tied in enumerate(rest):
                others_by_rank.setdefault(rank, []).extend(tied)
        beaten = [*(tuple(others_by_rank[rank]) for rank in sorted(others_by_rank)), *beaten]
        if len(best) == len(remaining):
            break  # all tied: another round would ask the same question
        remaining = best
    if not beaten:
        return None
    return _Ranking((tuple(remaining), *beaten), reason)


async def _compare_group(
    council: DeliberationContext, members: Sequence[_Entry], name: str
) -> _Ranking | None:
    """Rank a group from two orders of presentation; return None if the model answered neither."""
    if len(members) == 1:
        return _Ranking((tuple(members),))
    setup = council.setup_of("-")
    round_ = council.deliberation.rounds + 1

    async def request_order(order: Sequence[int], turn: int) -> tuple[Mapping[int, int], str]:
        messages = comparison_prompt(
            setup.judge_system, setup.shared, [members[index].summary for index in order]
        )
        step = f"-/verify/{round_}.group{name}.{turn}"
        reply = await council.request_reply(
            step, messages, order_schema(len(order)), review_tokens(setup.llm), temperature=0.0
        )
        try:
            ranks, reason = read_order(reply, len(order)) if reply is not None else ((), "")
        except MalformedReplyError:
            ranks, reason = (), ""
        return {order[position]: rank for rank, position in enumerate(ranks)}, reason

    indices = list(range(len(members)))
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(request_order(order, turn))
            for turn, order in enumerate((indices, indices[::-1]), 1)
        ]
    replies = [task.result() for task in tasks if task.result()[0]]
    if not replies:
        return None
    mean_ranks = {
        index: Fraction(sum(ranks[index] for ranks, _ in replies), len(replies))
        for index in indices
    }
    return _Ranking(
        tuple(
            tuple(members[index] for index in indices if mean_ranks[index] == mean)
            for mean in sorted(set(mean_ranks.values()))
        ),
        replies[0][1],
    )


async def _publish_ranking(council: DeliberationContext, ranking: _Ranking) -> list[Review]:
    """Publish the rank of each answer as a review."""
    last_rank = len(ranking.ranks) - 1
    reviews = []
    for rank, entries in enumerate(ranking.ranks):
        for proposal in (proposal for entry in entries for proposal in entry.answer.proposals):
            comment = f"place {rank + 1} of {last_rank + 1} in a comparison by summaries"
            comment = (
                f"{comment}: {ranking.reason}"[:_COMMENT_CHARS]
                if ranking.reason and not rank
                else comment
            )
            review = Review(
                COMPARISON,
                proposal.candidate,
                round(1 - rank / last_rank, 3) if last_rank else 1.0,
                comment=comment,
            )
            reviews.append(review)
            await council.events.publish(
                EventType.SEAT_REVIEWED,
                f"{COMPARISON}/{review.candidate}/{proposal.fingerprint}",
                seat=COMPARISON,
                candidate=review.candidate,
                fingerprint=proposal.fingerprint,
                review=dump(review),
            )
    council.judging.reviews += reviews
    return reviews


# The tie-breaker: an agent with a shell that compares tied answers. It writes a test that
# distinguishes them, or states that they behave the same.
#
# A case counts if it passes on one of these answers and fails on another, is not flaky, and expects
# what the task asks for according to a model that reads the task's text.


log = get_logger(__name__)

_MAX_ANSWERS = 6
_UPLOAD_DIR = ".moothall-answers"
_ANSWERS_DIR = "/tmp/answers"  # noqa: S108 - inside the sandbox
_PYTHON_HINT = (
    " To run Python on a copy, change into it and name it, or the code of the workspace is "
    "imported: cd {place}/<letter> && PYTHONPATH={place}/<letter>/src:{place}/<letter> python ..."
)
_LOCATION_HINT = (
    f"a copy of it with each change made is in {_ANSWERS_DIR}/<letter>, unless it is too large to "
    f"copy: look with ls first. The change itself is {_ANSWERS_DIR}/<letter>.patch, for git apply "
    "in a copy of your own if there is none"
)
_COPY_TIMEOUT_SECONDS = 120
_MAX_COPY_MB = 40  # the size of a workspace that is copied, since /tmp is in memory
_WHY_CHARS = 300


def find_tie(council: DeliberationContext) -> tuple[Candidate, ...]:
    """Return the different answers that share the first rank; () if there are none, or no agent can
    compare them.
    """
    d, tools = council.deliberation, select_tools(council.setup_of(TIE_BREAKER))
    if (
        "tie-breaker" not in council.dependencies.rules.evidence.agents
        or council.evaluator is None
        or tools is None
        or not tools.has_shell
    ):
        return ()
    if d.merge or d.agent is not None or council.ledger.used_up:
        return ()
    tied = find_ties(council.judged)
    if have_same_change(tied):
        return ()
    names = [candidate.proposal.candidate for candidate in tied[:_MAX_ANSWERS]]
    return tuple(evaluated for evaluated in council.judged if evaluated.proposal.candidate in names)


async def break_tie(
    council: DeliberationContext, tied: Sequence[Candidate]
) -> tuple[Candidate, ...]:
    """Return the candidates with the results of the tie-breaker's tests, and publish its
    findings.
    """
    candidates, evaluator = council.judged, council.evaluator
    if evaluator is None:
        raise AssertionError("comparing answers requires a repository")
    diffs = tuple(sorted({candidate.proposal.diff for candidate in tied}))
    comparison = _Comparison(council, evaluator, diffs)
    await comparison.run()
    author = comparison.author
    if author is None:
        council.judging.answers_equivalent = bool(comparison.equivalence)
        message = (
            f"{len(diffs)} answers behave the same: {comparison.equivalence}"
            if comparison.equivalence
            else f"no test: {comparison.missing_reason}"
        )
        await publish_report(
            council, TIE_BREAKER, f"tie-breaker: {sanitize_line(message, _WHY_CHARS)}"
        )
        return candidates
    trial = Trial(evaluator.author_tests, author, diffs, must_distinguish=True)
    verdicts = await trial.judge_cases(
        make_case_reader(council, author, TIE_BREAKER, only_requested=True)
    )
    updated = await add_cross_runs(evaluator.author_tests, author, verdicts, candidates)
    await publish_report(
        council,
        TIE_BREAKER,
        _summarize_tied(verdicts, diffs),
        cases=verdicts.cases,
        diff=council.dependencies.clean(author.diff)[:TESTS_CHARS],
    )
    return updated


@dataclass(slots=True)
class _Comparison:
    """The tie-breaker's work on different answers.

    Attributes:
        author: brings the tests that tell the answers apart.
        equivalence: the reason why the answers behave the same.
        missing_reason: the reason if there is neither.
    """

    council: DeliberationContext
    evaluator: Evaluator
    diffs: Sequence[str]
    author: Proposal | None = None
    equivalence: str = ""
    missing_reason: str = "it neither wrote a test nor said that they behave the same"

    @property
    def _answer_letters(self) -> str:
        return ascii_lowercase[: len(self.diffs)]

    async def run(self) -> None:
        """Run the agent."""
        setup = self.council.setup_of(TIE_BREAKER)
        deadline = agent_deadline(self.council, TIME_SHARE)
        tools = select_tools(setup)
        if deadline is None or tools is None:
            self.missing_reason = "there was no time left"
            return
        turns = min(MAX_TURNS, setup.max_turns)
        max_chars = int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5 / len(self.diffs))
        answers = [
            (letter, clip(readable_diff(diff), max_chars))
            for letter, diff in zip(self._answer_letters, self.diffs, strict=True)
        ]
        task = AgentTask(
            seat=TIE_BREAKER,
            messages=evidence_prompt.breaker_prompt(
                setup.shared, answers, _describe_locations(self.council), turns
            ),
            tools=tools.with_submit(evidence_prompt.SUBMIT_DIFFERENCE),
            examine=self._examine_submission,
            turns=range(1, turns + 1),
            step="verify/0",
            deadline=deadline,
            prepare=self._prepare_workspace,
        )
        try:
            await run_agent(self.council, task)
        except BusUnavailable:
            raise
        except MoothallError as error:
            self.missing_reason = error.message

    async def _prepare_workspace(self, workspace: Workspace) -> None:
        # In a second workspace the same replies are replayed.
        self.author, self.equivalence = None, ""
        unredacted = [self.evaluator.unredact(diff) for diff in self.diffs]
        await _upload_answers(self.council, workspace, self._answer_letters, unredacted)

    async def _examine_submission(
        self, call: FunctionCall, commit: Callable[[], Awaitable[Patch]]
    ) -> tuple[str, bool]:
        """Return the reply to a submission, and whether it is accepted."""
        try:
            arguments = read_arguments(call)
        except UnusableCallError as error:
            return f"error: {error}", False
        if arguments.get(evidence_prompt.SAME) is True:
            self.author = None
            self.equivalence = str(arguments.get("summary") or "no reason is given")
            return "Handed in.", True
        author = await extract_agent_tests(self.council, await commit(), TIE_BREAKER)
        if not author.diff:
            return (
                "There is no new test in a place where a test runner finds it. Write one, or "
                "submit with same set to true."
            ), False
        resubmitted = self.author is not None and self.author.diff == author.diff
        self.author = author
        states = await Trial(
            self.evaluator.author_tests, author, self.diffs, must_distinguish=True
        ).run_once()
        lines = [
            f"{case}: {'tells the changes apart' if state == COUNTS else state}"
            for case, state in states.items()
        ]
        accepted = resubmitted or COUNTS in states.values()
        instruction = (
            "Handed in."
            if accepted
            else "Correct the tests and submit again, or submit with same set to true."
        )
        return "\n".join([*(lines or ["No new test ran."]), instruction]), accepted


def _describe_locations(council: DeliberationContext) -> str:
    has_python = council.prepared is not None and any(
        path.endswith(".py") for path in council.prepared.files
    )
    return (
        f"{_LOCATION_HINT}.{_PYTHON_HINT.format(place=_ANSWERS_DIR)}"
        if has_python
        else _LOCATION_HINT
    )


async def _upload_answers(
    council: DeliberationContext, workspace: Workspace, letters: str, diffs: Sequence[str]
) -> None:
    """Put each answer next to the workspace, as a patch and as a copy of the files with the patch
    applied. Skip copies that are too large.
    """
    for letter, diff in zip(letters, diffs, strict=True):
        call = ToolCall(
            f"answer-{letter}",
            WRITE,
            {"path": f"{_UPLOAD_DIR}/{letter}.patch", "content": diff},
            council.deliberation.deadline,
        )
        await workspace.call(call)
    command = copy_command(letters, "/workspace", _ANSWERS_DIR)
    call = ToolCall(
        "answers",
        BASH,
        {"command": command, "timeout_seconds": _COPY_TIMEOUT_SECONDS},
        council.deliberation.deadline,
    )
    result = await workspace.call(call)
    if result.error:
        log.info("the tie-breaker has only patches", reason=result.error[:_WHY_CHARS])


def copy_command(letters: str, workspace: str, place: str) -> str:
    """Return a shell command that moves the uploaded patches to `place`, and puts a copy of the
    workspace beside each, with the patch applied. Folders of installed packages (node_modules) and
    of Cargo's builds are links.
    """
    links, excluded = f"{place}/.links", f"{place}/.excluded"
    find_links = (
        "find . -name node_modules -prune -print -o -name target -prune -print | while read -r "
        'path; do test "${path##*/}" = node_modules -o -f "${path%/*}/Cargo.toml" && echo "$path"; '
        "done"
    )
    copies = "; ".join(
        f"(mkdir {letter} && tar -C {workspace} -X {excluded} -cf - . | tar -C {letter} -xf - && "
        f'while read -r path; do ln -s "{workspace}/$path" "{letter}/$path"; done < {links}; '
        f"cd {letter} && (! test -s ../{letter}.patch || git apply --whitespace=nowarn "
        f"../{letter}.patch)) || rm -rf {letter}"
        for letter in letters
    )
    size = f"$(du -sm -X {excluded} . | cut -f1)"
    return (
        f"mkdir -p {place} && cd {workspace} && mv {_UPLOAD_DIR}/* {place}/ && rmdir {_UPLOAD_DIR} "
        f"&& ({find_links}) > {links}; (echo ./.git; cat {links}) > {excluded}; "
        f'test "{size}" -le {_MAX_COPY_MB} && unset GIT_DIR GIT_WORK_TREE && cd {place} && '
        f"{{ {copies}; }}"
    )


def _summarize_tied(verdicts: Verdicts, diffs: Sequence[str]) -> str:
    """Summarize the results of the tests in one line."""
    counted_cases = verdicts.counted
    if not counted_cases:
        return f"tie-breaker: no test counts: {verdicts.describe_dropped() or 'no new test ran'}"
    passing = sum(len(passed) == len(counted_cases) for passed in verdicts.passed.values())
    tests = "test tells" if len(counted_cases) == 1 else "tests tell"
    result = (
        f"tie-breaker: its {tests} {len(diffs)} answers apart, {passing} "
        f"{'passes' if passing == 1 else 'pass'}: {format_cases(counted_cases)}"
    )
    return "; ".join(filter(None, [result, verdicts.describe_dropped()]))
