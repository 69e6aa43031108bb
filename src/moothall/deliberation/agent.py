"""The one loop of agents: turn → gate → checks → repair, until the work is proven, finished, out of
turns, or goes in circles.

A seat's turns are held and recorded, and what they changed is checked. About text there is nothing
to do but to answer. A sub-agent's turns are part of one of its seat's: neither recorded nor
checked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime

from moothall import telemetry
from moothall.config import LimitSettings
from moothall.deliberation.attempt_state import (
    NOTHING_CHANGED,
    Attempt,
    AttemptState,
    Draft,
    NoChanges,
    OutOfTurns,
    TurnReply,
    malformed_replies,
)
from moothall.deliberation.code_blocks import BlockRunner
from moothall.deliberation.conversation import Conversation, Ending
from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.examples import find_broken
from moothall.deliberation.local_checks import CheckedWorkspace, WorkspaceState, stand
from moothall.deliberation.prompts.reply import Turn
from moothall.deliberation.prompts.report import check_text, ignored_text, verdict_text
from moothall.deliberation.prompts.text import CHARS_PER_TOKEN, fence
from moothall.deliberation.resource_usage import check_bounds, sum_usage
from moothall.deliberation.turns import (
    DOUBTED,
    FINISH,
    NOT_GREEN,
    TurnResult,
    TurnStep,
    digest_turn,
    do,
    is_again,
    record_calls,
    stuck,
)
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import CheckRun
from moothall.domain.ids import digest
from moothall.domain.proposal import Operation
from moothall.domain.tool import Action, ToolResult, ToolUsage
from moothall.errors import BudgetExceeded, DeadlineExceeded

_LOOKING = 2  # turns without a change after which a seat may also give up
_COPIED = (
    "That is the example from the instructions, and it was not run: it has nothing to do with "
    "this task. Read the task again, and "
    "reply with actions on the files that it is about."
)
_NO_TOOLS = "There are no tools here: reply with finish, which is the whole answer."
_GO_ON = "This is not the end: look at the task once more, and go on from here."
_AGAIN = "You did just that before, and nothing changed. Reply with actions that change something."


class AgentLoop:
    """One agent. Its conversation and operations go on from the proposal into the revisions.
    `facts`: where its turns are recorded, None of a sub-agent. `asked`: it may end with an answer
    and no change. `example`: the actions of the worked example, which are no answer. `resumes`: the
    recorded turn, as <phase>/<round>.<turn>, after which it goes on, however that one ended.
    """

    def __init__(
        self,
        talk: Conversation,
        limits: LimitSettings,
        coding: BlockRunner | None = None,
        *,
        facts: EventWriter | None = None,
        role: str = "",
        asked: bool = False,
        example: Sequence[Action] = (),
        resumes: str = "",
    ) -> None:
        self.talk = talk
        self.operations: list[Operation] = []
        self.results: list[ToolResult] = []
        self.used = ToolUsage()
        self.unusable = ""
        """The last reply that was no turn, without secrets."""
        self._limits = limits
        self._coding = coding
        self._facts = facts
        self._role = role
        self._asked = asked
        self._example = tuple(example)
        self._resumes = resumes
        self._attempt = 1

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that forgets what comes from now on: it is done again."""
        exchanges, operations = len(self.talk.exchanges), len(self.operations)

        def restore() -> None:
            del self.talk.exchanges[exchanges:], self.operations[operations:]

        return restore

    def begin(self, attempt: int) -> None:
        """Begin an attempt, from 1: from the second on with fresh context, another seed, and a
        little warmer.
        """
        self._attempt = attempt
        self.talk.begin(attempt)

    async def answer(self, where: str, until: datetime) -> Draft:
        """Return an answer in text to a round, <phase>/<round>; raises `MalformedReplies` and what
        the model raises.
        """
        course = AttemptState(where, until, begun=self._resume_after(where))
        await self.run(course, range(1, course.begun + self._limits.malformed_replies + 2))
        return Draft(course.summary)

    async def work(
        self, place: CheckedWorkspace, where: str, turns: range, start: Draft | None = None
    ) -> Attempt:
        """Change the workspace until the work is proven, finished, out of turns or going in
        circles. `start` is what it holds already.

        Raises `NoChanges`, `OutOfTurns`, `MalformedReplies`, `PatchRefused`, and what model, budget
        and
        workspace raise. Changes that are not green are returned too: the gates decide.
        """
        state = WorkspaceState(start.patch, green=start.green) if start else WorkspaceState()
        course = AttemptState(
            where, place.turn.context.deadline, place, state, begun=self._resume_after(where)
        )
        turn = await self.run(course, turns)
        return Attempt(self._end(course, len(turns)), turn, course.circle, course.state.refused)

    def _resume_after(self, where: str) -> int:
        """Return the number of the turn after which it goes on in a round, 0 for none."""
        resumed, _, turn = self._resumes.rpartition(".")
        return int(turn) if resumed == where else 0

    async def run(self, course: AttemptState, turns: range) -> int:
        """Take turns, and return the number of the last. Raises `MalformedReplies`, `NoChanges`,
        and what model, budget, gate and workspace raise.
        """
        turn = turns.start
        for turn in turns:
            at = course.at(turn)
            if turn == course.begun:
                course.stay()
            async with self._hold(at):
                await self._take(course, at, self._ending(course, turn, turns))
            # A recorded turn that was gone on from was the end only of the run before.
            if ((course.over and turn < course.begun) or turn == course.begun) and course.stay():
                self.talk.tell(_GO_ON)
            if course.over or course.circle:
                break
        return turn

    @asynccontextmanager
    async def _hold(self, at: TurnReply) -> AsyncIterator[None]:
        """One turn: it begins where the deliberation is not paused. A sub-agent's is within one
        that is held.
        """
        if self._facts is None:
            yield
            return
        about: dict[str, str | int] = {
            "moothall.seat": self.talk.seat,
            "moothall.phase": at.phase,
            "moothall.round": int(at.round),
            "moothall.turn": at.turn,
        }
        async with self.talk.model.turn():
            with telemetry.span("turn", about):
                yield

    def _ending(self, course: AttemptState, turn: int, turns: range) -> Ending:
        """Say whether a turn is the end: a sub-agent's last one is, and a seat that has something
        to change looks round first.
        """
        if self._facts is None and turn == turns[-1]:
            return "must"
        may = (
            self._asked
            or course.place is None
            or course.state.changed
            or turn - turns.start >= _LOOKING
        )
        return "may" if may else "not"

    async def _take(self, course: AttemptState, at: TurnReply, ending: Ending) -> None:
        """Ask, and do what the model replies."""
        try:
            said, text = await self.talk.ask(
                at.step,
                course.until,
                ending=ending,
                without=course.stale,
                runs_python=self._coding is not None,
            )
        except (DeadlineExceeded, BudgetExceeded):
            if not (course.state.changed or course.best):
                raise
            course.over = True  # what there is may still win
            return
        at = replace(at, text=text)
        if isinstance(said, Turn) and any(action in self._example for action in said.actions):
            said = _COPIED
        if isinstance(said, Turn) and said.finish is None and course.place is None:
            said = _NO_TOOLS
        if isinstance(said, str):
            await self._unusable(course, at, said)
        elif said.finish is not None:
            await self._finish(course, at, said.finish.strip(), said.thought)
        elif course.place is not None:
            await self._do(course, course.place, at, said)

    async def _unusable(self, course: AttemptState, at: TurnReply, wrong: str) -> None:
        """Say what was wrong with a reply that is no turn."""
        course.malformed += 1
        self.unusable = self.talk.model.clean(at.text)
        course.steps.append(TurnStep(digest(at.text), course.tree, malformed=True))
        course.circle = await self._record(course, at)
        self.talk.add(at.text, wrong, "malformed")
        if course.malformed > self._limits.malformed_replies:
            if course.best is None:
                problem = (
                    f"{course.malformed} replies were no turn; the last: {wrong[:300].rstrip('.')}"
                )
                raise malformed_replies(
                    problem, self.unusable, self._facts.d.task_id if self._facts else ""
                )
            course.over = True

    async def _finish(
        self, course: AttemptState, at: TurnReply, summary: str, thought: str
    ) -> None:
        """End, or say why it is too early for that."""
        course.summary, most = summary, self._limits.malformed_replies
        too_early = course.why_not(answered=self._asked and bool(summary))
        course.over = not too_early or (course.state.changed and course.refusals >= most)
        if course.over:
            await self._record(course, at, thought)
            self.talk.add(at.text, "", "finished")
            return
        course.refusals += 1
        course.steps.append(TurnStep(FINISH, course.tree))
        course.circle = await self._record(course, at, thought)
        self.talk.add(at.text, too_early, "finished too early")
        if course.refusals > most:
            raise NoChanges(NOTHING_CHANGED)

    async def _do(
        self, course: AttemptState, place: CheckedWorkspace, at: TurnReply, said: Turn
    ) -> None:
        """Do what the turn asks for, look at what it changed, and say what came of it."""
        did = await do(
            said,
            self._coding,
            replace(place.turn, step=at.step, caller=replace(place.turn.caller, turn=at.turn)),
        )
        self.operations += did.operations
        self.results += did.results
        changed = await self._look(course, place, at, did, said.thought)
        runs = course.state.runs if changed else {}
        self.used += sum_usage(did.results, runs)
        red = course.state.red if changed else frozenset[str]()
        course.steps.append(TurnStep(digest_turn(said), course.tree, changed=changed, red=red))
        course.circle = await self._record(course, at, said.thought, did=did, runs=runs)
        if place.prepared is not None:
            check_bounds(place.prepared.bounds, did.results, runs)
        again = is_again(course.steps)
        # Small models get stuck in such turns: what they repeat is not offered in the next.
        course.stale = frozenset(action.tool for action in said.actions) if again else frozenset()
        self.talk.add(
            at.text,
            self._report(course, place, did, changed=changed, again=again),
            course.brief(did),
        )

    async def _look(
        self,
        course: AttemptState,
        place: CheckedWorkspace,
        at: TurnReply,
        did: TurnResult,
        thought: str,
    ) -> bool:
        """Look at what a turn did, and return whether it changed anything. A sub-agent's changes
        are its seat's to look at.
        """
        if not did.may_have_changed:
            return False
        if place.prepared is None:
            course.changed = at.turn
            return True
        state, function, seconds = course.state, self.talk.function, self._limits.own_check_seconds
        message = f"turn {at.round}.{at.turn}"
        course.state, ran = await stand(
            place, place.prepared, state, message, clean=self.talk.model.clean, seconds=seconds
        )
        course.note_ignored(did, state.patch, course.state.patch)
        if not ran:
            return False
        state = course.state
        # A function that is green is all that was asked for; with tools there may be more to do.
        course.over = (
            state.green
            and (state.proven or (function is not None and not state.partly))
            and not course.untold
        )
        if course.over and function is not None:
            wrong = await find_broken(function.examples, function.path, place.turn.context, seconds)
            course.state = state = replace(state, doubts=tuple(call for call, _ in wrong))
            course.over = not wrong
        if state.changed and (course.best is None or state.worth >= course.best.worth):
            course.best = Draft(course.words(thought), state.patch, state.green, state.worth)
        if course.over:
            course.summary = thought
        return True

    def _report(
        self,
        course: AttemptState,
        place: CheckedWorkspace,
        did: TurnResult,
        *,
        changed: bool,
        again: bool,
    ) -> str:
        """Say what came of a turn, fenced, within a fifth of the window."""
        state, function = course.state, self.talk.function
        share = int(self.talk.llm.context_tokens * CHARS_PER_TOKEN / 5) // (len(did.texts) + 1)
        # A small model hands back what a tool says of its success as its next reply.
        parts = [text(share) for text in did.texts] if function is None or not did.succeeded else []
        if state.refused is not None:
            parts.append(fence("the changes cannot be taken over", state.refused.message))
        if course.untold:
            parts.append(ignored_text(course.untold))
        if changed and place.prepared is not None:
            parts += [
                check_text(run, place.prepared.runs.get(name), share)
                for name, run in state.runs.items()
            ]
            parts.append(verdict_text(state))
            parts += (
                [fence("what the docstring shows, and what does not hold", "\n".join(state.doubts))]
                if state.doubts
                else []
            )
        if function is not None:
            parts.append(function.again if changed or not did.succeeded else function.unchanged)
        elif again:
            parts.append(_AGAIN)
        return "\n\n".join(parts)

    async def _record(
        self,
        course: AttemptState,
        at: TurnReply,
        thought: str = "",
        *,
        did: TurnResult | None = None,
        runs: Mapping[str, CheckRun] | None = None,
    ) -> str:
        """Record the turn, and return why it shows that the agent goes in circles, or nothing."""
        # About text it is asked again a few times, whatever it replies; and what is over goes
        # nowhere any more.
        steps = () if course.over or course.place is None else course.steps
        circle = stuck(steps, self._limits.stuck_turns)
        if self._facts is None:
            return circle
        if (
            not circle
            and self.talk.function is not None
            and len(steps) >= self.talk.llm.function_turns
        ):
            circle = DOUBTED if did and did.operations and course.state.doubts else NOT_GREEN
        step = f"{self.talk.seat}/{at.step}"
        circle = self.talk.model.circle(step, circle)
        await self._facts.say(
            EventType.SEAT_TURN,
            step,
            seat=self.talk.seat,
            role=self._role,
            phase=at.phase,
            round=int(at.round),
            turn=at.turn,
            operations=[dump(item) for item in did.operations] if did else [],
            **({"calls": record_calls(did)} if did and self._facts.d.records_calls else {}),
            thought=thought,
            usage=dump(self.talk.model.usage_of(self.talk.seat)),
            tools=dump(self.used),
            checks={name: str(run.verdict) for name, run in (runs or {}).items()},
            attempt=self._attempt,
            attempts=self._limits.attempts,
            stuck=circle,
        )
        return circle

    def _end(self, course: AttemptState, turns: int) -> Draft | None:
        """Return what an attempt came to: its last state where that is good, or was meant to be the
        end; else its best.
        """
        state, best, summary = course.state, course.best, course.summary
        if state.refused is not None and not (best and best.green) and not course.circle:
            raise state.refused
        if (
            state.changed
            and state.refused is None
            and (best is None or self._asked or (summary and state.green))
        ):
            return Draft(course.words(summary), state.patch, state.green, state.worth)
        if self._asked and summary and not state.changed:
            return Draft(summary)
        if best is None and not course.circle:
            if all(step.asked == FINISH for step in course.steps):
                raise NoChanges(NOTHING_CHANGED)
            raise OutOfTurns(f"nothing was changed within {turns} turns")
        return best
