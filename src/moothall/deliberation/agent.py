"""The agent loop: turn → tool gateway → checks → repair. It ends when the work is proven or
finished, or when the agent is stuck or has no turns left.

The turns of a seat are recorded, and their changes are checked. If the task is about text, the
agent can only answer. The turns of a sub-agent are part of a turn of its seat, and are neither
recorded nor checked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime

from moothall import telemetry
from moothall.deliberation.attempt import (
    FINISH,
    FUNCTION_BREAKS_EXAMPLES,
    FUNCTION_FAILS,
    MALFORMED_REPLIES,
    NOTHING_CHANGED,
    Attempt,
    AttemptState,
    Draft,
    NoChanges,
    OutOfTurns,
    TurnReply,
    TurnResult,
    TurnStep,
    digest_turn,
    find_stuck_reason,
    is_repeat,
    malformed_replies_error,
    record_calls,
    record_refusals,
    run_turn,
)
from moothall.deliberation.code_blocks import BlockRunner
from moothall.deliberation.conversation import Conversation, Ending
from moothall.deliberation.event_writer import EventWriter, check_bounds, sum_usage
from moothall.deliberation.function_writing import find_broken_examples
from moothall.deliberation.local_checks import (
    OWN_CHECK_SECONDS,
    CheckedWorkspace,
    WorkspaceState,
    check_changes,
)
from moothall.deliberation.prompts.reply import Turn
from moothall.deliberation.prompts.tool_results import check_text, ignored_text, verdict_text
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import CheckRun
from moothall.domain.ids import digest
from moothall.domain.proposal import Operation
from moothall.domain.text import CHARS_PER_TOKEN, fence
from moothall.domain.tool import Action, ToolResult, ToolUsage
from moothall.errors import BudgetExceeded, DeadlineExceeded

_MIN_TURNS_BEFORE_FINISH = 2  # after these, a seat may also finish without a change
_EXAMPLE_COPIED_REPLY = (
    "That is the example from the instructions, and it was not run: it has nothing to do with this "
    "task. Read the task again, and reply with actions on the files that it is about."
)
_NO_TOOLS_REPLY = "There are no tools here: reply with finish, which is the whole answer."
_CONTINUE_TEXT = "This is not the end: look at the task once more, and go on from here."
_REPEATED_TEXT = (
    "You did just that before, and nothing changed. Reply with actions that change something."
)


class AgentLoop:
    """One agent. Its conversation and operations continue from the proposal into revisions.

    events: the writer of its turns; None for sub-agents. may_answer: it may end with an answer and
    no change. example: the actions of the worked example, which are not accepted as a reply.
    resumed_step: the recorded turn (<phase>/<round>.<turn>) after which a fork continues, even if
    the original run ended there.
    """

    def __init__(
        self,
        conversation: Conversation,
        block_runner: BlockRunner | None = None,
        *,
        attempts: int = 1,
        function_turns: int = 1,
        events: EventWriter | None = None,
        role: str = "",
        may_answer: bool = False,
        example: Sequence[Action] = (),
        resumed_step: str = "",
    ) -> None:
        self.conversation = conversation
        self.operations: list[Operation] = []
        self.results: list[ToolResult] = []
        self.tool_usage = ToolUsage()
        self.last_malformed = ""
        """The last malformed reply, without secrets."""
        self._max_attempts, self._function_turns = attempts, function_turns
        self._block_runner = block_runner
        self._events = events
        self._role = role
        self._may_answer = may_answer
        self._example = tuple(example)
        self._resumed_step = resumed_step
        self._attempt = 1

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that restores the current state, so that turns can be repeated."""
        exchanges, operations = len(self.conversation.exchanges), len(self.operations)

        def restore() -> None:
            del self.conversation.exchanges[exchanges:], self.operations[operations:]

        return restore

    def begin_attempt(self, attempt: int) -> None:
        """Start an attempt; the first is 1. Later attempts have a fresh context, another seed and a
        higher temperature.
        """
        self._attempt = attempt
        self.conversation.begin_attempt(attempt)

    async def answer_text(self, round_name: str, deadline: datetime) -> Draft:
        """Return a text answer to a round, <phase>/<round>. Raises `MalformedReplies` and the
        errors of the model.
        """
        attempt = AttemptState(round_name, deadline, resumed_turn=self._resumed_turn(round_name))
        await self.run_turns(attempt, range(1, attempt.resumed_turn + MALFORMED_REPLIES + 2))
        return Draft(attempt.summary)

    async def run_attempt(
        self, workspace: CheckedWorkspace, round_name: str, turns: range, start: Draft | None = None
    ) -> Attempt:
        """Run turns in a workspace until the work is proven or finished, or until the agent is
        stuck or has no turns left. `start` is the draft that the workspace already contains.

        Raises `NoChanges`, `OutOfTurns`, `MalformedReplies`, `PatchRefused`, and errors of the
        model, the budget and the workspace. Changes that fail checks are returned too,
        because the acceptance checks decide.
        """
        state = WorkspaceState(start.patch, passed=start.passed) if start else WorkspaceState()
        attempt = AttemptState(
            round_name,
            workspace.turn_context.call_context.deadline,
            workspace,
            state,
            resumed_turn=self._resumed_turn(round_name),
        )
        turn = await self.run_turns(attempt, turns)
        return Attempt(
            self._choose_draft(attempt, len(turns)),
            turn,
            attempt.stuck_reason,
            attempt.state.refusal,
        )

    def _resumed_turn(self, round_name: str) -> int:
        """Return the turn of a round after which a fork continues, 0 for none."""
        resumed, _, turn = self._resumed_step.rpartition(".")
        return int(turn) if resumed == round_name else 0

    async def run_turns(self, attempt: AttemptState, turns: range) -> int:
        """Run turns and return the number of the last. Raises `MalformedReplies`, `NoChanges`, and
        errors of the model, the budget, the gateway and the workspace.
        """
        turn = turns.start
        for turn in turns:
            turn_reply = attempt.turn_reply(turn)
            if turn == attempt.resumed_turn:
                attempt.reopen()
            async with self._hold_turn(turn_reply):
                await self._run_turn(
                    attempt, turn_reply, self._allowed_ending(attempt, turn, turns)
                )
            # A fork continues after a recorded turn that may have ended the original run.
            if (
                (attempt.ended and turn < attempt.resumed_turn) or turn == attempt.resumed_turn
            ) and attempt.reopen():
                self.conversation.append_text(_CONTINUE_TEXT)
            if attempt.ended or attempt.stuck_reason:
                break
        return turn

    @asynccontextmanager
    async def _hold_turn(self, turn_reply: TurnReply) -> AsyncIterator[None]:
        """Hold one turn. It starts as soon as the deliberation is not paused. Sub-agents run within
        a turn that is already held.
        """
        if self._events is None:
            yield
            return
        attributes: dict[str, str | int] = {
            "moothall.seat": self.conversation.seat,
            "moothall.phase": turn_reply.phase,
            "moothall.round": int(turn_reply.round),
            "moothall.turn": turn_reply.turn,
        }
        async with self.conversation.model.hold_turn():
            with telemetry.span("turn", attributes):
                yield

    def _allowed_ending(self, attempt: AttemptState, turn: int, turns: range) -> Ending:
        """Return whether a turn may end the attempt. The last turn of a sub-agent must end it. A
        seat that must change something has to explore the repository first.
        """
        if self._events is None and turn == turns[-1]:
            return "must"
        allowed = (
            self._may_answer
            or attempt.workspace is None
            or attempt.state.changed
            or turn - turns.start >= _MIN_TURNS_BEFORE_FINISH
        )
        return "may" if allowed else "not"

    async def _run_turn(self, attempt: AttemptState, turn_reply: TurnReply, ending: Ending) -> None:
        """Ask the model, and process its reply."""
        try:
            turn, text = await self.conversation.request_turn(
                turn_reply.step,
                attempt.deadline,
                ending=ending,
                withheld_tools=attempt.withheld_tools,
                can_run_python=self._block_runner is not None,
            )
        except (DeadlineExceeded, BudgetExceeded):
            if not (attempt.state.changed or attempt.best):
                raise
            attempt.ended = True  # the work so far may still win
            return
        turn_reply = replace(turn_reply, text=text)
        if isinstance(turn, Turn) and any(action in self._example for action in turn.actions):
            turn = _EXAMPLE_COPIED_REPLY
        if isinstance(turn, Turn) and turn.finish is None and attempt.workspace is None:
            turn = _NO_TOOLS_REPLY
        if isinstance(turn, str):
            await self._handle_malformed(attempt, turn_reply, turn)
        elif turn.finish is not None:
            await self._handle_finish(attempt, turn_reply, turn.finish.strip(), turn.thought)
        elif attempt.workspace is not None:
            await self._run_actions(attempt, attempt.workspace, turn_reply, turn)

    async def _handle_malformed(
        self, attempt: AttemptState, turn_reply: TurnReply, problem: str
    ) -> None:
        """Explain to the model why its reply is malformed. Raises `MalformedReplies`."""
        attempt.malformed_count += 1
        self.last_malformed = self.conversation.model.clean(turn_reply.text)
        attempt.steps.append(
            TurnStep(digest(turn_reply.text), attempt.change_digest, malformed=True)
        )
        attempt.stuck_reason = await self._publish_turn(attempt, turn_reply)
        self.conversation.add(turn_reply.text, problem, "malformed")
        if attempt.malformed_count > MALFORMED_REPLIES:
            if attempt.best is None:
                problem = (
                    f"{attempt.malformed_count} replies were not valid turns; the last one: "
                    f"{problem[:300].rstrip('.')}"
                )
                raise malformed_replies_error(
                    problem,
                    self.last_malformed,
                    self._events.deliberation.task_id if self._events else None,
                )
            attempt.ended = True

    async def _handle_finish(
        self, attempt: AttemptState, turn_reply: TurnReply, summary: str, thought: str
    ) -> None:
        """End the attempt, or explain to the model why the work is not done. Raises `NoChanges`."""
        attempt.summary, max_refusals = summary, MALFORMED_REPLIES
        too_early = attempt.finish_refusal(answered=self._may_answer and bool(summary))
        attempt.ended = not too_early or (
            attempt.state.changed and attempt.refusals >= max_refusals
        )
        if attempt.ended:
            await self._publish_turn(attempt, turn_reply, thought)
            self.conversation.add(turn_reply.text, "", "finished")
            return
        attempt.refusals += 1
        attempt.steps.append(TurnStep(FINISH, attempt.change_digest))
        attempt.stuck_reason = await self._publish_turn(attempt, turn_reply, thought)
        self.conversation.add(turn_reply.text, too_early, "finished too early")
        if attempt.refusals > max_refusals:
            raise NoChanges(NOTHING_CHANGED)

    async def _run_actions(
        self, attempt: AttemptState, workspace: CheckedWorkspace, turn_reply: TurnReply, turn: Turn
    ) -> None:
        """Run the actions of a turn, check the changes, and report the results to the model."""
        result = await run_turn(
            turn,
            self._block_runner,
            replace(
                workspace.turn_context,
                step=turn_reply.step,
                caller=replace(workspace.turn_context.caller, turn=turn_reply.turn),
            ),
        )
        self.operations += result.operations
        self.results += result.results
        changed = await self._check_changes(attempt, workspace, turn_reply, result, turn.thought)
        runs = attempt.state.runs if changed else {}
        self.tool_usage += sum_usage(result.results, runs)
        failing = attempt.state.failing if changed else frozenset[str]()
        attempt.steps.append(
            TurnStep(digest_turn(turn), attempt.change_digest, changed=changed, failing=failing)
        )
        attempt.stuck_reason = await self._publish_turn(
            attempt, turn_reply, turn.thought, result=result, runs=runs
        )
        if workspace.prepared is not None:
            check_bounds(workspace.prepared.bounds, result.results, runs)
        repeated = is_repeat(attempt.steps)
        # Small models get stuck in such turns, so the next turn withholds the repeated tools.
        attempt.withheld_tools = (
            frozenset(action.tool for action in turn.actions) if repeated else frozenset()
        )
        self.conversation.add(
            turn_reply.text,
            self._report_text(attempt, workspace, result, changed=changed, repeated=repeated),
            attempt.describe_turn(result),
        )

    async def _check_changes(
        self,
        attempt: AttemptState,
        workspace: CheckedWorkspace,
        turn_reply: TurnReply,
        result: TurnResult,
        thought: str,
    ) -> bool:
        """Check the changes of a turn; return True if there are any. The changes of sub-agents are
        checked by their seat.
        """
        if not result.may_have_changed:
            return False
        if workspace.prepared is None:
            attempt.last_change = turn_reply.turn
            return True
        state, function = attempt.state, self.conversation.function
        max_seconds = OWN_CHECK_SECONDS
        message = f"turn {turn_reply.round}.{turn_reply.turn}"
        attempt.state, checks_ran = await check_changes(
            workspace,
            workspace.prepared,
            state,
            message,
            clean=self.conversation.model.clean,
            max_seconds=max_seconds,
        )
        attempt.record_ignored(result, state.patch, attempt.state.patch)
        if not checks_ran:
            return False
        state = attempt.state
        # A seat that writes one function is done when it passes. With tools, more may be left to
        # do.
        attempt.ended = (
            state.passed
            and (state.proven or (function is not None and not state.partly_fixed))
            and not attempt.unreported
        )
        if attempt.ended and function is not None:
            broken = await find_broken_examples(
                function.examples, function.path, workspace.turn_context.call_context, max_seconds
            )
            attempt.state = state = replace(
                state, broken_examples=tuple(call for call, _ in broken)
            )
            attempt.ended = not broken
        if state.changed and (attempt.best is None or state.score >= attempt.best.score):
            attempt.best = Draft(
                attempt.complete_summary(thought), state.patch, state.passed, state.score
            )
        if attempt.ended:
            attempt.summary = thought
        return True

    def _report_text(
        self,
        attempt: AttemptState,
        workspace: CheckedWorkspace,
        result: TurnResult,
        *,
        changed: bool,
        repeated: bool,
    ) -> str:
        """Return the results of a turn for the model: fenced, in a fifth of the context window."""
        state, function = attempt.state, self.conversation.function
        window_chars = self.conversation.llm.context_tokens * CHARS_PER_TOKEN
        share = int(window_chars / 5) // (len(result.texts) + 1)
        # Without success messages, because a small model repeats them as its next reply.
        parts = (
            [text(share) for text in result.texts]
            if function is None or not result.succeeded
            else []
        )
        if state.refusal is not None:
            parts.append(fence("the changes cannot be taken over", state.refusal.message))
        if attempt.unreported:
            parts.append(ignored_text(attempt.unreported))
        if changed and workspace.prepared is not None:
            parts += [
                check_text(run, workspace.prepared.runs.get(name), share)
                for name, run in state.runs.items()
            ]
            parts.append(verdict_text(state))
            if state.broken_examples:
                title = "what the docstring shows, and what does not hold"
                parts.append(fence(title, "\n".join(state.broken_examples)))
        if function is not None:
            parts.append(
                function.retry_text if changed or not result.succeeded else function.unchanged_text
            )
        elif repeated:
            parts.append(_REPEATED_TEXT)
        return "\n\n".join(parts)

    async def _publish_turn(
        self,
        attempt: AttemptState,
        turn_reply: TurnReply,
        thought: str = "",
        *,
        result: TurnResult | None = None,
        runs: Mapping[str, CheckRun] | None = None,
    ) -> str:
        """Publish the turn; return why the agent is stuck, or an empty string."""
        # A seat that works on text cannot be stuck, because it is only asked again a few times. An
        # ended attempt cannot be stuck either.
        steps = () if attempt.ended or attempt.workspace is None else attempt.steps
        reason = find_stuck_reason(steps)
        if self._events is None:
            return reason
        if (
            not reason
            and self.conversation.function is not None
            and len(steps) >= self._function_turns
        ):
            reason = (
                FUNCTION_BREAKS_EXAMPLES
                if result and result.operations and attempt.state.broken_examples
                else FUNCTION_FAILS
            )
        step = f"{self.conversation.seat}/{turn_reply.step}"
        reason = self.conversation.model.first_stuck_reason(step, reason)
        refusals = record_refusals(result, self.conversation.model.clean) if result else []
        await self._events.publish(
            EventType.SEAT_TURN,
            step,
            seat=self.conversation.seat,
            role=self._role,
            phase=turn_reply.phase,
            round=int(turn_reply.round),
            turn=turn_reply.turn,
            operations=[dump(item) for item in result.operations] if result else [],
            **(
                {"calls": record_calls(result)}
                if result and self._events.deliberation.records_calls
                else {}
            ),
            thought=thought,
            usage=dump(self.conversation.model.usage_of(self.conversation.seat)),
            tools=dump(self.tool_usage),
            checks={name: str(run.verdict) for name, run in (runs or {}).items()},
            attempt=self._attempt,
            attempts=self._max_attempts,
            stuck=reason,
            **({"refused_calls": refusals} if refusals else {}),
        )
        return reason

    def _choose_draft(self, attempt: AttemptState, turns: int) -> Draft | None:
        """Return the draft of an attempt: the last state if the agent finished with it or no better
        one exists, else the best one.
        """
        state, best, summary = attempt.state, attempt.best, attempt.summary
        if state.refusal is not None and not (best and best.passed) and not attempt.stuck_reason:
            raise state.refusal
        if (
            state.changed
            and state.refusal is None
            and (best is None or self._may_answer or (summary and state.passed))
        ):
            return Draft(attempt.complete_summary(summary), state.patch, state.passed, state.score)
        if self._may_answer and summary and not state.changed:
            return Draft(summary)
        if best is None and not attempt.stuck_reason:
            if all(step.action_digest == FINISH for step in attempt.steps):
                raise NoChanges(NOTHING_CHANGED)
            raise OutOfTurns(f"nothing was changed within {turns} turns")
        return best
