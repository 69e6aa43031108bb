"""The tie-breaker: an agent with a shell that compares the answers which tests leave level. It
writes a test that tells them apart, or says that they behave the same.

A case counts if it passes on one of these answers and fails on another, is steady, and expects what
the task asks for, as a second reader of the task's text says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

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
from moothall.deliberation.judging.evaluator import EvaluatedProposal
from moothall.deliberation.judging.test_writer import TESTS_CHARS, reader_of, tests_of_agent
from moothall.deliberation.judging.trial import COUNTS, Trial, Verdicts, vote
from moothall.deliberation.prompts import evidence_prompt
from moothall.deliberation.prompts.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.deliberation.seat_tools import BASH, WRITE, UnusableCallError, read_arguments
from moothall.domain.chat import FunctionCall
from moothall.domain.evidence import TIE_BREAKER
from moothall.domain.proposal import Proposal
from moothall.domain.repository import Patch
from moothall.domain.tool import ToolCall
from moothall.errors import BusUnavailable, MoothallError
from moothall.ports import Workspace
from moothall.ranking import ties
from moothall.ranking.gates import name_cases, plain
from moothall.telemetry import get_logger

log = get_logger(__name__)

_MOST = 6  # answers that are compared
_FOLDER, _PLACE = ".moothall-answers", "/tmp/answers"  # noqa: S108 - inside the sandbox
_PYTHON = (
    " To run Python on a copy, change into it and name it, or the code of the workspace is "
    "imported: cd {place}/<letter> && PYTHONPATH={place}/<letter>/src:{place}/<letter> python ..."
)
_PLACES = (
    f"a copy of it with each change made is in {_PLACE}/<letter>. The change itself is "
    f"{_PLACE}/<letter>.patch, for git apply in a copy "
    "of your own where that copy is missing"
)
_COPY_SECONDS = 120
_COPY_MB = 40  # of a workspace that is copied, since /tmp lies in memory
_WHY_CHARS = 300


@dataclass(slots=True)
class _Finding:
    """What the tie-breaker came to: tests, or the reason why the answers behave the same, or why
    there is neither.
    """

    author: Proposal | None = None
    same: str = ""
    why: str = "it neither wrote a test nor said that they behave the same"


def find_tie(council: DeliberationContext) -> tuple[EvaluatedProposal, ...]:
    """Return the different answers that tests leave level on the first place; () if there are none,
    or nobody can compare them.
    """
    d, tools = council.deliberation, tools_of(council.setup_of(TIE_BREAKER))
    if (
        not council.dependencies.evidence.tie_breaker
        or council.evaluator is None
        or tools is None
        or not tools.has_shell
    ):
        return ()
    if d.merge or d.agent is not None or council.ledger.used_up:
        return ()
    tied = ties([item.candidate for item in council.judged])
    if len({candidate.assessment.change or candidate.proposal.diff for candidate in tied}) < 2:  # noqa: PLR2004
        return ()  # nothing to tell apart: only comments, formatting or tests differ
    names = [candidate.proposal.candidate for candidate in tied[:_MOST]]
    return tuple(item for item in council.judged if item.proposal.candidate in names)


async def break_tie(
    council: DeliberationContext, tied: Sequence[EvaluatedProposal]
) -> tuple[EvaluatedProposal, ...]:
    """Return the candidates with what the tie-breaker's tests say of them, if they say anything,
    and publish what it found.
    """
    judged, evaluator = council.judged, council.evaluator
    if evaluator is None:
        raise AssertionError("answers are compared where there is a repository")
    diffs = tuple(sorted({item.proposal.diff for item in tied}))
    found = await _compare(council, diffs)
    if found.author is None:
        council.answers_equivalent = bool(found.same)
        said = (
            f"{len(diffs)} answers behave the same: {found.same}"
            if found.same
            else f"no test: {found.why}"
        )
        await report(council, TIE_BREAKER, f"tie-breaker: {plain(said, _WHY_CHARS)}")
        return judged
    trial = Trial(evaluator.author_tests, found.author, diffs, apart=True)
    verdicts = await trial.run(reader_of(council, found.author, TIE_BREAKER, asked=True))
    result = await vote(evaluator.author_tests, found.author, verdicts, judged)
    await report(
        council,
        TIE_BREAKER,
        _summary(verdicts, diffs),
        cases=verdicts.cases,
        diff=council.dependencies.clean(found.author.diff)[:TESTS_CHARS],
    )
    return result


async def _compare(council: DeliberationContext, diffs: Sequence[str]) -> _Finding:
    """Let the agent work and return what it came to."""
    setup, until, evaluator = (
        council.setup_of(TIE_BREAKER),
        share_of_time(council, SHARE),
        council.evaluator,
    )
    tools = tools_of(setup)
    found = _Finding()
    if until is None or tools is None or evaluator is None:
        found.why = "there was no time left"
        return found
    turns = min(TURNS, setup.max_turns)
    letters = ascii_lowercase[: len(diffs)]
    room = int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5 / len(diffs))
    shown = [
        (letter, clip(readable_diff(diff), room))
        for letter, diff in zip(letters, diffs, strict=True)
    ]

    async def examine(
        call: FunctionCall, commit: Callable[[], Awaitable[Patch]]
    ) -> tuple[str, bool]:
        try:
            arguments = read_arguments(call)
        except UnusableCallError as error:
            return f"error: {error}", False
        if arguments.get(evidence_prompt.SAME) is True:
            found.author, found.same = None, str(arguments.get("summary") or "no reason is given")
            return "Handed in.", True
        author = await tests_of_agent(council, await commit(), TIE_BREAKER)
        if not author.diff:
            return (
                (
                    "There is no new test in a place where a test runner finds it. Write one, or "
                    "submit with same set to true."
                ),
                False,
            )
        again = found.author is not None and found.author.diff == author.diff
        found.author = author
        states = await Trial(evaluator.author_tests, author, diffs, apart=True).look()
        lines = [
            f"{case}: {'tells the changes apart' if state == COUNTS else state}"
            for case, state in states.items()
        ]
        good = COUNTS in states.values()
        more = (
            "Handed in."
            if again or good
            else "Correct the tests and submit again, or submit with same set to true."
        )
        return "\n".join([*(lines or ["No new test ran."]), more]), again or good

    async def prepare(workspace: Workspace) -> None:
        found.author, found.same = None, ""  # in a second workspace the same replies come again
        await _lay_out(council, workspace, letters, [evaluator.exact(diff) for diff in diffs])

    task = AgentTask(
        seat=TIE_BREAKER,
        head=evidence_prompt.breaker_prompt(setup.shared, shown, _places(council), turns),
        tools=tools.with_submit(evidence_prompt.SUBMIT_DIFFERENCE),
        examine=examine,
        turns=range(1, turns + 1),
        where="verify/0",
        until=until,
        prepare=prepare,
    )
    try:
        await run_agent(council, task)
    except BusUnavailable:
        raise
    except MoothallError as error:
        found.why = error.message
    return found


def _places(council: DeliberationContext) -> str:
    python = council.prepared is not None and any(
        path.endswith(".py") for path in council.prepared.files
    )
    return f"{_PLACES}.{_PYTHON.format(place=_PLACE)}" if python else _PLACES


async def _lay_out(
    council: DeliberationContext, workspace: Workspace, letters: str, diffs: Sequence[str]
) -> None:
    """Put each answer beside the workspace, as a patch and as a copy of the files with it. Copies
    that are too large are left out.
    """
    for letter, diff in zip(letters, diffs, strict=True):
        call = ToolCall(
            f"answer-{letter}",
            WRITE,
            {"path": f"{_FOLDER}/{letter}.patch", "content": diff},
            council.deliberation.deadline,
        )
        await workspace.call(call)
    copies = "; ".join(
        f"(mkdir {letter} && cp -a /workspace/. {letter}/ && rm -rf {letter}/.git && cd {letter} "
        "&& "
        f"(! test -s ../{letter}.patch || git apply --whitespace=nowarn ../{letter}.patch)) || rm "
        f"-rf {letter}"
        for letter in letters
    )
    small = f'test "$(du -sm /workspace | cut -f1)" -le {_COPY_MB}'
    command = (
        f"mkdir -p {_PLACE} && mv {_FOLDER}/* {_PLACE}/ && rmdir {_FOLDER} && "
        f"({small} && unset GIT_DIR GIT_WORK_TREE && cd {_PLACE} && {{ {copies}; }})"
    )
    call = ToolCall(
        "answers",
        BASH,
        {"command": command, "timeout_seconds": _COPY_SECONDS},
        council.deliberation.deadline,
    )
    result = await workspace.call(call)
    if result.error:
        log.info("the tie-breaker has patches alone", reason=result.error[:_WHY_CHARS])


def _summary(verdicts: Verdicts, diffs: Sequence[str]) -> str:
    """Say in a line what became of its tests."""
    counted = verdicts.counted
    if not counted:
        return f"tie-breaker: no test counts: {verdicts.dropped() or 'no new test ran'}"
    passing = sum(len(passed) == len(counted) for passed in verdicts.passed.values())
    tests = "test tells" if len(counted) == 1 else "tests tell"
    said = (
        f"tie-breaker: its {tests} {len(diffs)} answers apart, {passing} "
        f"{'passes' if passing == 1 else 'pass'}: {name_cases(counted)}"
    )
    return "; ".join(filter(None, [said, verdicts.dropped()]))
