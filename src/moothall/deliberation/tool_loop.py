"""The loop of a seat whose model calls tools natively: ask the model, run its calls, return the
results, until the model submits.

Edits trigger no checks. A submit runs the tests near the change and the seat's new tests once. The
seat is done if they show no problem; otherwise it may continue or confirm. Whatever ends the loop,
the content of the workspace is proposed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from moothall import telemetry
from moothall.authorization.checks import BlockBudget, BlockCalls
from moothall.authorization.gateway import ToolGateway
from moothall.concurrency import seconds_until
from moothall.deliberation.attempt import (
    MALFORMED_REPLIES,
    NOTHING_CHANGED,
    Attempt,
    Draft,
    NoChanges,
    OutOfTurns,
    TurnResult,
    append_left_out,
    find_ignored_writes,
    malformed_replies_error,
    record_calls,
    record_refusals,
)
from moothall.deliberation.conversation import ToolChat
from moothall.deliberation.event_writer import EventWriter, check_bounds, sum_usage
from moothall.deliberation.local_checks import (
    OWN_CHECK_SECONDS,
    CheckedWorkspace,
    WorkspaceState,
    check_changes,
    commit_changes,
)
from moothall.deliberation.prompts.tool_results import (
    CONFIRM,
    is_clean,
    result_text,
    submission_text,
)
from moothall.deliberation.seat_setup import SUBMIT, SeatTools, UnusableCallError, read_arguments
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

_MAX_CALLS_PER_REPLY = 16
"""The calls of one reply that are run."""
_MAX_RESULT_CHARS, _RESULT_WINDOW_SHARE = 24_000, 8
"""The most characters of one result, and the share of the context window (in tokens: an eighth)
that it may take.
"""
_MAX_IDLE_TURNS = 5
"""The turns in a row that only repeat earlier calls, after which the seat gets one reminder."""
_WARN_TURNS_LEFT = 5
"""The number of remaining turns at which the seat is warned."""
_RESERVE_SECONDS, _RESERVE_SHARE = 20.0, 0.1
"""The part of the seat's time that is reserved for committing its work."""
_MAX_THOUGHT_CHARS = 4_000
_IDLE_REPLY = (
    f"The last {_MAX_IDLE_TURNS} replies repeated earlier calls, and no file changed. Try "
    "something else, or submit."
)
_NO_CALL_REPLIES = {
    "length": (
        "Your reply was cut at the limit of its length before it called a tool. Call the next tool "
        "now; write long files in parts."
    ),
    "content_filter": "The model server withheld your reply. Go on in other words.",
}
_NOTHING_CHANGED_REPLY = (
    "No file of the repository has changed, so there is nothing to hand in. Make the change, or "
    "submit again to end without one."
)
_NO_CALL_REPLY = (
    f"Your reply called no tool. Call a tool to go on, or {SUBMIT} if the task is done."
)
_EMPTY_REPLY = f"Your reply was empty. Call a tool to go on, or {SUBMIT} if the task is done."


Examine = Callable[[FunctionCall, Callable[[], Awaitable[Patch]]], Awaitable[tuple[str, bool]]]
"""Handles a submit of an agent that proposes nothing.

Receives the call and a function that commits the workspace's content, which raises `PatchRefused`.
Returns the reply to the call, and whether the work is over.
"""


@dataclass(slots=True)
class _SubmitState:
    """The submits of a round.

    digest: the change at the last submit that had problems. left_out: written files that are not
    part of the proposal because of .gitignore. refusal: why the submit of this turn was not
    accepted.
    """

    digest: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    refusal: str = ""


@dataclass(slots=True)
class _RoundState:
    """The state of a seat's round in one workspace.

    name: the round, as <phase>/<round>. seen_calls: digests of the calls since the last change.
    ended: no turn follows.
    """

    name: str
    workspace: CheckedWorkspace
    prepared: Prepared
    last_turn: int
    state: WorkspaceState
    summary: str = ""
    submits: _SubmitState = field(default_factory=_SubmitState)
    results: list[ToolResult] = field(default_factory=list)
    seen_calls: set[str] = field(default_factory=set)
    turns_without_call: int = 0
    idle_turns: int = 0
    ended: bool = False

    def step(self, turn: int) -> str:
        """Return the name of a turn: <phase>/<round>.<turn>."""
        return f"{self.name}.{turn}"


class ToolLoop:
    """The loop of one seat. Its conversation and operations continue from the proposal into
    revisions.

    may_answer: the seat may answer without a change. examine: handles submits instead of the checks
    near the change. published: its turns are published.
    """

    def __init__(
        self,
        chat: ToolChat,
        tools: SeatTools,
        *,
        events: EventWriter,
        role: str,
        may_answer: bool = False,
        examine: Examine | None = None,
        published: bool = True,
    ) -> None:
        self.conversation = chat
        self.operations: list[Operation] = []
        self.tool_usage = ToolUsage()
        self.last_malformed = ""
        self._tools = tools
        self._events = events
        self._role = role
        self._may_answer = may_answer
        self._examine = examine
        self._published = published
        self._max_result_chars = min(
            _MAX_RESULT_CHARS, chat.llm.context_tokens * 3 // _RESULT_WINDOW_SHARE
        )

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that rolls back to the current state, to repeat the turns in another
        workspace.
        """
        state, operations = self.conversation.snapshot(), len(self.operations)

        def restore() -> None:
            self.conversation.restore(state)
            del self.operations[operations:]

        return restore

    async def run_attempt(
        self, workspace: CheckedWorkspace, round_name: str, turns: range, start: Draft | None = None
    ) -> Attempt:
        """Work in a workspace until the seat submits, or its turns, time or budget end. `start` is
        the draft that the workspace already holds.

        Raises the error that ended the work only if nothing was changed, and errors of the
        workspace and the tool gateway.
        """
        if workspace.prepared is None:
            raise AssertionError("a seat works on a repository")
        state = WorkspaceState(start.patch, passed=start.passed) if start else WorkspaceState()
        round_ = _RoundState(round_name, workspace, workspace.prepared, turns[-1], state)
        deadline = workspace.turn_context.call_context.deadline
        seconds_left = seconds_until(deadline)
        work_deadline = deadline - timedelta(
            seconds=min(_RESERVE_SECONDS, seconds_left * _RESERVE_SHARE)
        )
        turn = turns.start
        reason: Permanent = OutOfTurns(f"nothing was changed within {len(turns)} turns")
        try:
            async with asyncio.timeout(max(seconds_until(work_deadline), 0)) as limit:
                for turn in turns:
                    await self._run_turn(round_, turn, work_deadline)
                    if round_.ended:
                        reason = NoChanges(NOTHING_CHANGED)
                        break
        except TimeoutError as error:
            if not limit.expired():
                raise
            return await self._close_round(
                round_, turn, DeadlineExceeded("the seat's time limit was reached"), error
            )
        except (
            BudgetExceeded,
            ConfigurationError,
            DeadlineExceeded,
            ModelReplyInvalid,
            ModelUnavailable,
        ) as error:
            return await self._close_round(round_, turn, error, error)
        return await self._close_round(round_, turn, reason, None)

    async def _run_turn(self, round_: _RoundState, turn: int, work_deadline: datetime) -> None:
        """Ask the model once, and answer all its calls."""
        step = round_.step(turn)
        round_.submits.refusal = ""
        async with self._hold_turn(round_.name, turn):
            reply = await self.conversation.request_reply(step, work_deadline)
            turn_calls = _TurnCalls(round_, step)
            checks: dict[str, CheckRun] = {}
            if reply.calls:
                round_.turns_without_call = 0
                answers = [
                    await self._answer_call(turn_calls, call, number)
                    for number, call in enumerate(reply.calls, 1)
                ]
                for number, call in enumerate(reply.calls):
                    # After the other calls of the reply, whatever its position.
                    if call.name == SUBMIT:
                        answers[number] = _tool_message(
                            call, await self._submit_change(round_, call, checks)
                        )
                self._count_idle_turns(round_, reply.calls, turn_calls)
            else:
                answers = [Message("user", self._answer_without_call(round_, reply))]
            self.conversation.add_turn(reply, answers)
            self._add_reminder(round_, turn)
            await self._publish_turn(round_, turn, reply, turn_calls, checks)
            check_bounds(round_.prepared.bounds, turn_calls.result.results, checks)

    @asynccontextmanager
    async def _hold_turn(self, round_name: str, turn: int) -> AsyncIterator[None]:
        """Hold one turn; it starts when the deliberation is not paused."""
        phase, _, number = round_name.partition("/")
        attributes: dict[str, str | int] = {
            "moothall.seat": self.conversation.seat,
            "moothall.phase": phase,
            "moothall.round": int(number),
            "moothall.turn": turn,
        }
        async with self.conversation.model.hold_turn():
            with telemetry.span("turn", attributes):
                yield

    async def _answer_call(
        self, turn_calls: _TurnCalls, call: FunctionCall, number: int
    ) -> Message:
        """Run one call and return its result. The answer to a submit is filled in later."""
        if call.name == SUBMIT:
            return _tool_message(call, "")
        if number > _MAX_CALLS_PER_REPLY:
            return _tool_message(
                call, f"not run: at most {_MAX_CALLS_PER_REPLY} calls of one reply are run"
            )
        try:
            action = self._tools.read_action(call)
        except UnusableCallError as error:
            return _tool_message(call, f"error: {error}")
        result = await turn_calls.run_action(action)
        translated = replace(result, error=self._tools.translate_error(result.error, call))
        return _tool_message(call, result_text(translated, self._max_result_chars) or "done")

    async def _submit_change(
        self, round_: _RoundState, call: FunctionCall, checks: dict[str, CheckRun]
    ) -> str:
        """Commit the change and run the checks near it. End the round, or return the problems."""
        try:
            summary = str(read_arguments(call).get("summary") or "").strip()
        except UnusableCallError:
            summary = ""
        round_.summary = summary or round_.summary
        if self._examine is not None:
            return await self._examine_submit(round_, call, self._examine)
        earlier_state = round_.state
        round_.state, checks_ran = await check_changes(
            round_.workspace,
            round_.prepared,
            earlier_state,
            round_.step(0),
            clean=self.conversation.model.clean,
            max_seconds=OWN_CHECK_SECONDS,
        )
        state = round_.state
        if state.refusal is not None:
            round_.submits.refusal = as_sentence(state.refusal.message)
            return _refused_reply(round_.submits.refusal)
        if not state.changed:
            round_.ended = self._may_answer or round_.submits.digest == ""
            round_.submits.digest = ""
            return _NOTHING_CHANGED_REPLY
        if checks_ran:
            checks.update(state.runs)
            # Only files written by tools count: most files left by commands are build products.
            write_results = [
                result for result in round_.results if result.tool.startswith("files.")
            ]
            round_.submits.left_out = find_ignored_writes(
                write_results, earlier_state.patch, state.patch
            )
        confirmed = round_.submits.digest == state.change_digest
        round_.submits.digest = state.change_digest
        round_.ended = confirmed or is_clean(state, round_.prepared, round_.submits.left_out)
        text = submission_text(
            state, round_.prepared, round_.submits.left_out, self._max_result_chars
        )
        return f"{text}\n\n{'Handed in.' if round_.ended else CONFIRM}"

    async def _examine_submit(
        self, round_: _RoundState, call: FunctionCall, examine: Examine
    ) -> str:
        """Let `examine` handle a submit; return its reply."""

        async def commit() -> Patch:
            patch = await commit_changes(
                round_.workspace.turn_context.call_context,
                round_.step(0),
                self.conversation.model.clean,
            )
            round_.state = WorkspaceState(patch)
            return patch

        try:
            answer, round_.ended = await examine(call, commit)
        except PatchRefused as refused:
            round_.submits.refusal = as_sentence(refused.message)
            return _refused_reply(round_.submits.refusal)
        return answer

    def _answer_without_call(self, round_: _RoundState, reply: ChatReply) -> str:
        """Return the reply to a message without a call. Several in a row end the round."""
        round_.turns_without_call += 1
        text = reply.text.strip()
        if text:
            round_.summary = text
        self.last_malformed = self.conversation.model.clean(reply.text)
        if round_.turns_without_call > MALFORMED_REPLIES or (
            self._may_answer and text and reply.finish_reason == "stop"
        ):
            round_.ended = True
        return _NO_CALL_REPLIES.get(reply.finish_reason) or (
            _NO_CALL_REPLY if text else _EMPTY_REPLY
        )

    def _count_idle_turns(
        self, round_: _RoundState, calls: Sequence[FunctionCall], turn_calls: _TurnCalls
    ) -> None:
        """Count the turns in a row that repeated earlier calls and changed nothing."""
        if turn_calls.changed_files:
            round_.seen_calls.clear()
        call_digests = {digest(call.name, call.arguments) for call in calls}
        round_.idle_turns = round_.idle_turns + 1 if call_digests <= round_.seen_calls else 0
        round_.seen_calls |= call_digests

    def _add_reminder(self, round_: _RoundState, turn: int) -> None:
        if round_.ended:
            return
        if round_.idle_turns == _MAX_IDLE_TURNS:
            self.conversation.append_text(_IDLE_REPLY)
        elif round_.idle_turns >= 2 * _MAX_IDLE_TURNS:
            round_.ended = True
        if round_.last_turn - turn == _WARN_TURNS_LEFT:
            self.conversation.append_text(
                f"{_WARN_TURNS_LEFT} replies are left. Submit what you have when it is right."
            )

    async def _publish_turn(
        self,
        round_: _RoundState,
        turn: int,
        reply: ChatReply,
        turn_calls: _TurnCalls,
        checks: dict[str, CheckRun],
    ) -> None:
        """Add up what the turn used, and publish it."""
        result = turn_calls.result
        self.operations += result.operations
        self.tool_usage += sum_usage(result.results, checks)
        if not self._published:
            return
        phase, _, number = round_.name.partition("/")
        refusals = record_refusals(result, self.conversation.model.clean)
        await self._events.publish(
            EventType.SEAT_TURN,
            f"{self.conversation.seat}/{round_.step(turn)}",
            seat=self.conversation.seat,
            role=self._role,
            phase=phase,
            round=int(number),
            turn=turn,
            operations=[dump(item) for item in result.operations],
            **({"calls": record_calls(result)} if self._events.deliberation.records_calls else {}),
            thought=self.conversation.model.clean(reply.text.strip())[:_MAX_THOUGHT_CHARS],
            usage=dump(self.conversation.model.usage_of(self.conversation.seat)),
            tools=dump(self.tool_usage),
            checks={name: str(run.verdict) for name, run in checks.items()},
            attempt=1,
            attempts=1,
            stuck="",
            **({"refused": round_.submits.refusal} if round_.submits.refusal else {}),
            **({"refused_calls": refusals} if refusals else {}),
        )

    async def _close_round(
        self, round_: _RoundState, turn: int, reason: MoothallError, cause: BaseException | None
    ) -> Attempt:
        """Return what the workspace holds, whatever ended the round. Raise `reason` if it holds
        nothing.
        """
        state = round_.state
        try:
            patch = await commit_changes(
                round_.workspace.turn_context.call_context,
                round_.step(turn),
                self.conversation.model.clean,
            )
        except PatchRefused as refused:
            if state.changed and state.patch is not None and state.refusal is None:
                return Attempt(self._create_draft(round_, state), turn, "", refused)
            raise
        if patch.diff != (state.patch.diff if state.patch is not None else ""):
            state = WorkspaceState(patch)  # changed since the last submit, unchecked
        if state.changed:
            return Attempt(self._create_draft(round_, replace(state, patch=patch)), turn, "")
        if self._may_answer and round_.summary:
            return Attempt(Draft(round_.summary), turn, "")
        if round_.turns_without_call > MALFORMED_REPLIES:
            raise malformed_replies_error(
                f"{round_.turns_without_call} replies called no tool",
                self.last_malformed,
                self._events.deliberation.task_id,
            ) from cause
        raise reason from cause

    def _create_draft(self, round_: _RoundState, state: WorkspaceState) -> Draft:
        patch = state.patch
        content = append_left_out(
            round_.summary,
            [path for path in round_.submits.left_out if patch and patch.rule_for(path)],
        )
        return Draft(content, state.patch, state.passed, state.score)


class _TurnCalls:
    """The calls of one turn, run through the tool gateway."""

    def __init__(self, round_: _RoundState, step: str) -> None:
        turn_context = replace(round_.workspace.turn_context, step=step)
        self._round = round_
        self._gateway: ToolGateway = turn_context.gateway
        self._calls: BlockCalls = turn_context.create_calls(BlockBudget(_MAX_CALLS_PER_REPLY))

    async def run_action(self, action: Action) -> ToolResult:
        """Run an action. Raises the errors of the gateway."""
        result = await self._calls(action.tool, action.arguments)
        self._round.results.append(result)
        return result

    @property
    def result(self) -> TurnResult:
        """The results of all calls that ran."""
        arguments = [call.arguments for call, _ in self._calls.completed]
        return TurnResult(
            self._calls.results, self._calls.operations, (), "", self._gateway.catalogue, arguments
        )

    @property
    def changed_files(self) -> bool:
        """True if a tool wrote a file. The effects of commands are unknown and do not count."""
        return any(
            result.tool.startswith("files.") and self._gateway.catalogue[result.tool].writes
            for result in self._calls.results
        )


def _refused_reply(reason: str) -> str:
    return f"Your change cannot be accepted: {reason} Change that, then submit again."


def _tool_message(call: FunctionCall, text: str) -> Message:
    return Message("tool", text, call_id=call.call_id)
