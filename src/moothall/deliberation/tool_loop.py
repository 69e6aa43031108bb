"""The loop of a seat whose model calls tools natively: ask, run the calls, answer them, until the
model submits.

Nothing runs by itself after an edit. At `submit` the tests near the change and the seat's new tests
run once; where they show nothing against it the seat is done, else it may go on or confirm.
Whatever ends the loop, what the workspace holds is proposed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from moothall import telemetry
from moothall.authorization.code_block_calls import BlockBudget, BlockCalls
from moothall.authorization.gateway import ToolGateway
from moothall.concurrency import seconds_until
from moothall.config import LimitSettings
from moothall.deliberation.attempt_state import (
    NOTHING_CHANGED,
    Attempt,
    Draft,
    NoChanges,
    OutOfTurns,
    malformed_replies,
    with_left_out,
    written_and_ignored,
)
from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.local_checks import (
    CheckedWorkspace,
    WorkspaceState,
    commit_changes,
    stand,
)
from moothall.deliberation.prompts.tool_results import (
    CONFIRM,
    is_clean,
    result_text,
    submission_text,
)
from moothall.deliberation.resource_usage import check_bounds, sum_usage
from moothall.deliberation.seat_tools import SUBMIT, SeatTools, UnusableCallError, read_arguments
from moothall.deliberation.tool_chat import ToolChat
from moothall.deliberation.turns import TurnResult, record_calls
from moothall.domain.chat import ChatReply, FunctionCall, Message
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import CheckRun
from moothall.domain.ids import digest
from moothall.domain.proposal import Operation
from moothall.domain.repository import Patch, Prepared
from moothall.domain.text import as_sentence
from moothall.domain.tool import Action, ToolResult, ToolUsage
from moothall.errors import (
    BudgetExceeded,
    ConfigurationError,
    DeadlineExceeded,
    ModelReplyInvalid,
    ModelUnavailable,
    MoothallError,
    PatchRefused,
    Permanent,
)

_CALLS = 16
"""Calls of one reply that are run."""
_RESULT_CHARS, _RESULT_SHARE = 24_000, 8
"""The most characters of one result, and the share of the window (in tokens: an eighth) that it may
take.
"""
_IDLE = 5
"""Turns that only repeat what was done before, after which the seat is told once."""
_WARNED = 5
"""Turns before the last one, when the seat is told how many are left."""
_RESERVE_SECONDS, _RESERVE_SHARE = 20.0, 0.1
"""What is kept of the seat's time to commit what it has."""
_THOUGHT = 4_000
_IDLE_TEXT = (
    f"The last {_IDLE} replies repeated earlier calls, and no file changed. Try something else, "
    "or submit."
)
_NO_CALL = {
    "length": (
        "Your reply was cut at the limit of its length before it called a tool. Call the next "
        "tool now; write long files in parts."
    ),
    "content_filter": "The model server withheld your reply. Go on in other words.",
}
_NOTHING = (
    "No file of the repository has changed, so there is nothing to hand in. Make the change, or "
    "submit again to end without one."
)
_CALL_SOMETHING = (
    f"Your reply called no tool. Call a tool to go on, or {SUBMIT} if the task is done."
)
_EMPTY = f"Your reply was empty. Call a tool to go on, or {SUBMIT} if the task is done."


Examine = Callable[[FunctionCall, Callable[[], Awaitable[Patch]]], Awaitable[tuple[str, bool]]]
"""Takes a submit of an agent that proposes nothing, and a function that commits what its workspace
holds, which raises `PatchRefused`. Returns the answer to the call, and whether the work is over.
"""


@dataclass(slots=True)
class _Round:
    """One round of a seat in one workspace. `submitted`: the change at the last submit that had
    something against it. `left_out`: files that it wrote and that .gitignore keeps out of the
    answer. `seen`: the calls since the last change. `over`: it ends now. `refused`: why this turn's
    submit was not accepted.
    """

    where: str
    place: CheckedWorkspace
    prepared: Prepared
    last: int
    state: WorkspaceState
    summary: str = ""
    submitted: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    results: list[ToolResult] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    silent: int = 0
    idle: int = 0
    over: bool = False
    refused: str = ""

    def step(self, turn: int) -> str:
        """Return what a turn is called: <phase>/<round>.<turn>."""
        return f"{self.where}.{turn}"


class ToolLoop:
    """One seat. Its conversation and operations go on from the proposal into the revisions.
    `question`: it may answer and change nothing.

    `examine`: what takes a submit in place of the checks near the change; `recorded`: its turns are
    published.
    """

    def __init__(
        self,
        chat: ToolChat,
        tools: SeatTools,
        limits: LimitSettings,
        *,
        facts: EventWriter,
        role: str,
        question: bool = False,
        examine: Examine | None = None,
        recorded: bool = True,
    ) -> None:
        self.talk = chat
        self.operations: list[Operation] = []
        self.used = ToolUsage()
        self.unusable = ""
        self._tools = tools
        self._limits = limits
        self._facts = facts
        self._role = role
        self._question = question
        self._examine = examine
        self._recorded = recorded
        self._most = min(_RESULT_CHARS, chat.llm.context_tokens * 3 // _RESULT_SHARE)

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that forgets what comes from now on: it is done again in another
        workspace.
        """
        state, operations = self.talk.state(), len(self.operations)

        def restore() -> None:
            self.talk.back_to(state)
            del self.operations[operations:]

        return restore

    async def work(
        self, place: CheckedWorkspace, where: str, turns: range, start: Draft | None = None
    ) -> Attempt:
        """Work in a workspace until the seat submits, or its turns, time or budget end. `start` is
        what the workspace holds already.

        Raises what ended it only where nothing was changed, and what the workspace and the gate
        raise.
        """
        if place.prepared is None:
            raise AssertionError("a seat works on a repository")
        state = WorkspaceState(start.patch, green=start.green) if start else WorkspaceState()
        round_ = _Round(where, place, place.prepared, turns[-1], state)
        deadline = place.turn.context.deadline
        left = seconds_until(deadline)
        until = deadline - timedelta(seconds=min(_RESERVE_SECONDS, left * _RESERVE_SHARE))
        turn = turns.start
        ended: Permanent = OutOfTurns(f"nothing was changed within {len(turns)} turns")
        try:
            async with asyncio.timeout(max(seconds_until(until), 0)) as limit:
                for turn in turns:
                    await self._take_turn(round_, turn, until)
                    if round_.over:
                        ended = NoChanges(NOTHING_CHANGED)
                        break
        except TimeoutError as error:
            if not limit.expired():
                raise
            return await self._end(round_, turn, DeadlineExceeded("the seat's time is over"), error)
        except (
            BudgetExceeded,
            ConfigurationError,
            DeadlineExceeded,
            ModelReplyInvalid,
            ModelUnavailable,
        ) as error:
            return await self._end(round_, turn, error, error)
        return await self._end(round_, turn, ended, None)

    async def _take_turn(self, round_: _Round, turn: int, until: datetime) -> None:
        """Ask the model once, and answer all that it calls."""
        step = round_.step(turn)
        round_.refused = ""
        async with self._hold(round_.where, turn):
            reply = await self.talk.ask(step, until)
            ran = _Calls(round_, step)
            checks: dict[str, CheckRun] = {}
            if reply.calls:
                round_.silent = 0
                answers = [
                    await self._answer(ran, call, number)
                    for number, call in enumerate(reply.calls, 1)
                ]
                for number, call in enumerate(reply.calls):
                    if (
                        call.name == SUBMIT
                    ):  # after the other calls of the reply, wherever it stands
                        answers[number] = _answer_to(call, await self._submit(round_, call, checks))
                self._note_progress(round_, reply.calls, ran)
            else:
                answers = [Message("user", self._without_call(round_, reply))]
            self.talk.add(reply, answers)
            self._remind(round_, turn)
            await self._record(round_, turn, reply, ran, checks)
            check_bounds(round_.prepared.bounds, ran.did.results, checks)

    @asynccontextmanager
    async def _hold(self, where: str, turn: int) -> AsyncIterator[None]:
        """Hold one turn: it begins where the deliberation is not paused."""
        phase, _, number = where.partition("/")
        about: dict[str, str | int] = {
            "moothall.seat": self.talk.seat,
            "moothall.phase": phase,
            "moothall.round": int(number),
            "moothall.turn": turn,
        }
        async with self.talk.model.turn():
            with telemetry.span("turn", about):
                yield

    async def _answer(self, ran: _Calls, call: FunctionCall, number: int) -> Message:
        """Run one call; return its answer. The answer to a submit follows."""
        if call.name == SUBMIT:
            return _answer_to(call, "")
        if number > _CALLS:
            return _answer_to(call, f"not run: at most {_CALLS} calls of one reply are run")
        try:
            action = self._tools.action_of(call)
        except UnusableCallError as error:
            return _answer_to(call, f"error: {error}")
        result = await ran.run(action)
        shown = replace(result, error=self._tools.in_short_names(result.error, call))
        return _answer_to(call, result_text(shown, self._most) or "done")

    async def _submit(self, round_: _Round, call: FunctionCall, checks: dict[str, CheckRun]) -> str:
        """Commit the change and run the checks near it; end the round, or say what speaks against
        ending it.
        """
        try:
            summary = str(read_arguments(call).get("summary") or "").strip()
        except UnusableCallError:
            summary = ""
        round_.summary = summary or round_.summary
        if self._examine is not None:
            return await self._hand_over(round_, call, self._examine)
        before = round_.state
        round_.state, ran = await stand(
            round_.place,
            round_.prepared,
            before,
            round_.step(0),
            clean=self.talk.model.clean,
            seconds=self._limits.own_check_seconds,
        )
        state = round_.state
        if state.refused is not None:
            round_.refused = as_sentence(state.refused.message)
            return (
                f"Your change cannot be accepted: {round_.refused} Change that, then submit again."
            )
        if not state.changed:
            round_.over = self._question or round_.submitted == ""
            round_.submitted = ""
            return _NOTHING
        if ran:
            checks.update(state.runs)
            # What commands leave behind are mostly products of a build.
            written = [result for result in round_.results if result.tool.startswith("files.")]
            round_.left_out = written_and_ignored(written, before.patch, state.patch)
        confirmed = round_.submitted == state.tree
        round_.submitted = state.tree
        round_.over = confirmed or is_clean(state, round_.prepared, round_.left_out)
        return (
            f"{submission_text(state, round_.prepared, round_.left_out, self._most)}\n\n"
            f"{'Handed in.' if round_.over else CONFIRM}"
        )

    async def _hand_over(self, round_: _Round, call: FunctionCall, examine: Examine) -> str:
        """Let `examine` take a submit; return its answer."""

        async def commit() -> Patch:
            patch = await commit_changes(
                round_.place.turn.context, round_.step(0), self.talk.model.clean
            )
            round_.state = WorkspaceState(patch)
            return patch

        try:
            answer, round_.over = await examine(call, commit)
        except PatchRefused as refused:
            round_.refused = as_sentence(refused.message)
            return (
                f"Your change cannot be accepted: {round_.refused} Change that, then submit again."
            )
        return answer

    def _without_call(self, round_: _Round, reply: ChatReply) -> str:
        """Say what a reply without a call leads to. A few in a row are taken as the end."""
        round_.silent += 1
        text = reply.text.strip()
        if text:
            round_.summary = text
        self.unusable = self.talk.model.clean(reply.text)
        if round_.silent > self._limits.malformed_replies or (
            self._question and text and reply.finish_reason == "stop"
        ):
            round_.over = True
        return _NO_CALL.get(reply.finish_reason) or (_CALL_SOMETHING if text else _EMPTY)

    def _note_progress(self, round_: _Round, calls: Sequence[FunctionCall], ran: _Calls) -> None:
        """Count the turns in a row that repeated earlier calls and changed nothing."""
        if ran.changed_files:
            round_.seen.clear()
        asked = {digest(call.name, call.arguments) for call in calls}
        round_.idle = round_.idle + 1 if asked <= round_.seen else 0
        round_.seen |= asked

    def _remind(self, round_: _Round, turn: int) -> None:
        if round_.over:
            return
        if round_.idle == _IDLE:
            self.talk.tell(_IDLE_TEXT)
        elif round_.idle >= 2 * _IDLE:
            round_.over = True
        if round_.last - turn == _WARNED:
            self.talk.tell(f"{_WARNED} replies are left. Submit what you have when it is right.")

    async def _record(
        self, round_: _Round, turn: int, reply: ChatReply, ran: _Calls, checks: dict[str, CheckRun]
    ) -> None:
        """Publish what the turn came to."""
        did = ran.did
        self.operations += did.operations
        self.used += sum_usage(did.results, checks)
        if not self._recorded:
            return
        phase, _, number = round_.where.partition("/")
        await self._facts.say(
            EventType.SEAT_TURN,
            f"{self.talk.seat}/{round_.step(turn)}",
            seat=self.talk.seat,
            role=self._role,
            phase=phase,
            round=int(number),
            turn=turn,
            operations=[dump(item) for item in did.operations],
            **({"calls": record_calls(did)} if self._facts.d.records_calls else {}),
            thought=self.talk.model.clean(reply.text.strip())[:_THOUGHT],
            usage=dump(self.talk.model.usage_of(self.talk.seat)),
            tools=dump(self.used),
            checks={name: str(run.verdict) for name, run in checks.items()},
            attempt=1,
            attempts=1,
            stuck="",
            **({"refused": round_.refused} if round_.refused else {}),
        )

    async def _end(
        self, round_: _Round, turn: int, ended: MoothallError, cause: BaseException | None
    ) -> Attempt:
        """Return what the workspace holds, whatever ended the round. Raises `ended` where that is
        nothing.
        """
        state = round_.state
        try:
            patch = await commit_changes(
                round_.place.turn.context, round_.step(turn), self.talk.model.clean
            )
        except PatchRefused as refused:
            if state.changed and state.patch is not None and state.refused is None:
                return Attempt(self._draft(round_, state), turn, "", refused)
            raise
        if patch.diff != (state.patch.diff if state.patch is not None else ""):
            state = WorkspaceState(patch)  # changed since the last submit, and not checked
        if state.changed:
            return Attempt(self._draft(round_, replace(state, patch=patch)), turn, "")
        if self._question and round_.summary:
            return Attempt(Draft(round_.summary), turn, "")
        if round_.silent > self._limits.malformed_replies:
            raise malformed_replies(
                f"{round_.silent} replies called no tool", self.unusable, self._facts.d.task_id
            ) from cause
        raise ended from cause

    def _draft(self, round_: _Round, state: WorkspaceState) -> Draft:
        patch = state.patch
        content = with_left_out(
            round_.summary, [path for path in round_.left_out if patch and patch.rule_for(path)]
        )
        return Draft(content, state.patch, state.green, state.worth)


class _Calls:
    """The calls of one turn, on their way to the gate and back."""

    def __init__(self, round_: _Round, step: str) -> None:
        place = round_.place.turn
        self._round = round_
        self._gate: ToolGateway = place.gate
        self._calls: BlockCalls = replace(place, step=step).calls(BlockBudget(_CALLS))

    async def run(self, action: Action) -> ToolResult:
        """Run an action. Raises what the gate raises."""
        result = await self._calls(action.tool, action.arguments)
        self._round.results.append(result)
        return result

    @property
    def did(self) -> TurnResult:
        """All that ran."""
        arguments = [call.arguments for call, _ in self._calls.made]
        return TurnResult(
            self._calls.results, self._calls.operations, (), "", self._gate.catalogue, arguments
        )

    @property
    def changed_files(self) -> bool:
        """Whether a tool wrote a file. What a command did is not known, and does not count."""
        return any(
            result.tool.startswith("files.") and self._gate.catalogue[result.tool].writes
            for result in self._calls.results
        )


def _answer_to(call: FunctionCall, text: str) -> Message:
    return Message("tool", text, call_id=call.call_id)
