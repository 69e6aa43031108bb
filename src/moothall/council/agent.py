"""The agent loop: turn → gate → checks → repair, until the work is proven, finished, out of turns, or goes in circles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime

from moothall import telemetry
from moothall.config import Limits, Llm
from moothall.council.checking import Standing, look
from moothall.council.coding import Coding
from moothall.council.conversation import Conversation, Voice
from moothall.council.course import (
    Attempt,
    Course,
    Draft,
    MalformedReplies,
    NoChanges,
    OutOfTurns,
    Said,
    Workplace,
    brief_of,
    why_not,
)
from moothall.council.examples import broken
from moothall.council.facts import Facts
from moothall.council.function import Function
from moothall.council.measuring import check_bounds, measured
from moothall.council.prompting.context import is_test
from moothall.council.prompting.reply import Action, Turn
from moothall.council.prompting.report import check_text, verdict_text
from moothall.council.prompting.text import CHARS_PER_TOKEN, fence
from moothall.council.recording import RecordedModel
from moothall.council.turns import DOUBTED, FINISH, NOT_GREEN, Did, TurnStep, again, asked_of, do, stuck
from moothall.domain.chat import Message
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import CheckRun
from moothall.domain.ids import digest
from moothall.domain.proposal import Operation
from moothall.domain.repository import Patch, Prepared
from moothall.domain.secrets import brings_secret
from moothall.domain.tool import ToolUsage
from moothall.errors import BudgetExceeded, DeadlineExceeded, PatchRefused
from moothall.guard.paths import first_covered
from moothall.ranking.joined import joined_secrets
from moothall.tools.catalogue import ToolSpec

_LOOKING = 2  # turns without a change after which a seat may also give up
_COPIED = (
    "That is the example from the instructions, and it was not run: it has nothing to do with this task. Read the task again, and "
    "reply with actions on the files that it is about."
)
_GO_ON = "This is not the end: look at the task once more, and go on from here."
_HELD = "{!r} may not be changed by this role; put it back as it was"
_NOT_TAKEN_OVER = (
    "the change writes what looks like a key or password into a file; take it out again: read it from the environment, or in a "
    "test make it of parts"
)


class Agent:
    """One seat's loop. Its conversation and operations go on from the proposal into the revisions. `asked`: it may end with an
    answer and no change. `example`: the actions of the worked example, which are no answer. `function`: the one function that the task is about.
    `resumes`: the recorded turn, as <phase>/<round>.<turn>, after which it goes on, however that one ended.
    """

    def __init__(
        self,
        *,
        seat: str,
        role: str,
        head: tuple[Message, ...],
        voice: Voice,
        model: RecordedModel,
        facts: Facts,
        llm: Llm,
        limits: Limits,
        specs: Sequence[ToolSpec] = (),
        coding: Coding | None = None,
        python: bool = False,
        asked: bool = False,
        example: Sequence[Action] = (),
        function: Function | None = None,
        resumes: str = "",
    ) -> None:
        self.seat = seat
        self.role = role
        self.operations: list[Operation] = []
        self.talk = Conversation(
            f"{facts.d.task_id}/{seat}",
            head,
            voice,
            model=model,
            llm=llm,
            specs=specs,
            python=python,
            function=function,
        )
        self._model = model
        self._facts = facts
        self._llm = llm
        self._limits = limits
        self._coding = coding
        self._asked = asked
        self._example = tuple(example)
        self._resumes = resumes
        self._attempt = 1
        self.used = ToolUsage()

    def place(self) -> tuple[int, int]:
        """Say how far it has come; `back_to` goes back there."""
        return len(self.talk.exchanges), len(self.operations)

    def back_to(self, place: tuple[int, int]) -> None:
        """Forget what came after `place`: it will be done again."""
        del self.talk.exchanges[place[0] :], self.operations[place[1] :]

    def begin(self, attempt: int) -> None:
        """Begin an attempt, from 1: from the second on with fresh context, another seed, and a little warmer."""
        self._attempt = attempt
        self.talk.begin(attempt)

    async def answer(self, phase: str, round_: int, deadline: datetime) -> Draft:
        """Return an answer in text; raises `MalformedReplies` and what the model raises."""
        begun = int(self._resumes.rpartition(".")[2]) if self._resumes.startswith(f"{phase}/{round_}.") else 0
        for turn in range(1, begun + self._limits.malformed_replies + 2):
            at = Said(phase, round_, turn)
            async with self._turn(at):
                said, text = await self.talk.ask(at.step, deadline, may_finish=True)
                if isinstance(said, Turn) and said.finish is not None:
                    await self._tell_turn(at, said.thought)
                    self.talk.add(text, "", "answered")
                    if turn > begun:
                        return Draft(said.finish.strip())
                    self.talk.tell(_GO_ON)
                    continue
                wrong = (
                    said if isinstance(said, str) else "There are no tools here: reply with finish, which is the whole answer."
                )
                await self._tell_turn(at)
                self.talk.add(text, wrong, "malformed")
        raise MalformedReplies(f"{self._limits.malformed_replies + 1} replies in a row were no answer")

    async def work(self, place: Workplace, *, phase: str, round_: int, turns: range, start: Draft | None = None) -> Attempt:
        """Change the workspace until the work is proven, finished, out of turns or going in circles. `start` is what it holds
        already.

        Raises `NoChanges`, `OutOfTurns`, `MalformedReplies`, `PatchRefused`, and what model, budget and
        workspace raise. Changes that are not green are returned too: the gates decide.
        """
        course = Course(place, Standing(start.patch, green=start.green) if start else Standing())
        turn = turns.start
        for turn in turns:
            at = Said(phase, round_, turn)
            resumes = at.step == self._resumes
            if resumes:
                course.stay()
            async with self._turn(at):
                may_finish = self._asked or course.state.changed or turn - turns.start >= _LOOKING
                try:
                    said, text = await self.talk.ask(
                        at.step,
                        place.context.deadline,
                        may_finish=may_finish,
                        without=course.stale,
                        runs_python=self._coding is not None,
                    )
                except (DeadlineExceeded, BudgetExceeded):
                    if course.state.changed or course.best:
                        break  # what there is may still win
                    raise
                at = replace(at, text=text)
                if isinstance(said, Turn) and any(action in self._example for action in said.actions):
                    said = _COPIED
                if isinstance(said, str):
                    await self._unusable(course, at, said)
                elif said.finish is not None:
                    await self._finish(course, at, said.finish.strip(), said.thought)
                else:
                    await self._do(course, at, said)
            if resumes and course.stay():
                self.talk.tell(_GO_ON)
            if course.over or course.circle:
                break
        return Attempt(self._end(course, len(turns)), turn, course.circle, course.state.refused)

    async def _unusable(self, course: Course, at: Said, wrong: str) -> None:
        """Say what was wrong with a reply that is no turn."""
        course.malformed += 1
        course.steps.append(TurnStep(digest(at.text), course.state.tree, malformed=True))
        course.circle = await self._tell_turn(at, steps=course.steps)
        self.talk.add(at.text, wrong, "malformed")
        if course.malformed > self._limits.malformed_replies:
            if course.best is None:
                raise MalformedReplies(f"{course.malformed} replies were no turn; the last: {wrong[:300]}")
            course.over = True

    async def _finish(self, course: Course, at: Said, summary: str, thought: str) -> None:
        """End, or say why it is too early for that."""
        course.summary, state = summary, course.state
        too_early = why_not(course, answered=self._asked and bool(summary))
        if not too_early or (state.changed and course.refusals >= self._limits.malformed_replies):
            await self._tell_turn(at, thought)
            self.talk.add(at.text, "", "finished")
            course.over = True
            return
        course.refusals += 1
        course.steps.append(TurnStep(FINISH, state.tree))
        course.circle = await self._tell_turn(at, thought, steps=course.steps)
        self.talk.add(at.text, too_early, "finished too early")
        if course.refusals > self._limits.malformed_replies:
            raise NoChanges("the seat says that it is done and has changed nothing")

    async def _do(self, course: Course, at: Said, said: Turn) -> None:
        """Do what the turn asks for, look at what it changed, and say what came of it."""
        place, bounds = course.place, course.place.prepared.bounds
        did = await do(said, self._coding, place.at(at.step))
        self.operations += did.operations
        course.state, ran = await self._look(course, did, f"turn {at.round}.{at.turn}")
        state, function = course.state, self.talk.function
        # A function that is green is all that was asked for; with tools there may be more to do.
        course.over = ran and state.green and (state.proven or (function is not None and not state.partly))
        if course.over and function is not None:
            wrong = await broken(function.examples, function.path, place.context, self._limits.own_check_seconds)
            course.state = state = replace(state, doubts=tuple(call for call, _ in wrong))
            course.over = not wrong
        runs = state.runs if ran else {}
        self.used += measured(did.results, runs)
        course.steps.append(TurnStep(asked_of(said), state.tree, changed=ran, red=state.red if ran else frozenset()))
        course.circle = await self._tell_turn(
            at,
            said.thought,
            operations=did.operations,
            runs=runs,
            steps=() if course.over else course.steps,
            doubted=bool(state.doubts),
        )
        check_bounds(bounds, did.results, runs)
        repeated = again(course.steps)
        # Small models get stuck in such turns: what they repeat is not offered in the next.
        course.stale = frozenset(action.tool for action in said.actions) if repeated else frozenset()
        self.talk.add(at.text, self._report(did, state, place.prepared, ran=ran, again=repeated), brief_of(did, state))
        if ran and state.changed and (course.best is None or state.worth >= course.best.worth):
            course.best = Draft(said.thought or "(no summary)", state.patch, state.green, state.worth)
        if course.over:
            course.summary = said.thought

    def _end(self, course: Course, turns: int) -> Draft | None:
        """Return what an attempt came to: its last state where that is good, or was meant to be the end; else its best."""
        state, best, summary = course.state, course.best, course.summary
        if state.refused is not None and not (best and best.green) and not course.circle:
            raise state.refused
        if state.changed and state.refused is None and (best is None or self._asked or (summary and state.green)):
            return Draft(summary or "(no summary)", state.patch, state.green, state.worth)
        if self._asked and summary and not state.changed:
            return Draft(summary)
        if best is None and not course.circle:
            if all(step.asked == FINISH for step in course.steps):
                raise NoChanges("the seat says that it is done and has changed nothing")
            raise OutOfTurns(f"nothing was changed within {turns} turns")
        return best

    def _brings_secret(self, patch: Patch) -> bool:
        """Whether a patch certainly writes a key, whole or in parts; what is doubtful is shown when it is judged."""
        tests = (path for path in patch.paths if is_test(path))
        return brings_secret(patch.diff, self._model.clean) or bool(
            joined_secrets(patch.diff, {}, tests, self._model.clean).certain
        )

    async def _look(self, course: Course, did: Did, message: str) -> tuple[Standing, bool]:
        """Commit what changed and run the checks near it. Return how it stands, and whether checks were run."""
        state, context = course.state, course.place.context
        if not did.may_have_changed:
            return state, False
        try:
            patch = await context.workspace.patch(message)
        except PatchRefused as error:
            return replace(state, refused=error, green=False, proven=False), False
        held = first_covered(context.grant.protected, patch.paths)
        if held or self._brings_secret(patch):
            return replace(
                state, refused=PatchRefused(_HELD.format(held) if held else _NOT_TAKEN_OVER), green=False, proven=False
            ), False
        if patch.diff == (state.patch.diff if state.patch is not None else ""):
            return replace(state, refused=None), False
        found = await look(
            context,
            course.place.prepared,
            patch,
            task=self._facts.d.description,
            also=course.place.also,
            seconds=self._limits.own_check_seconds,
        )
        return found, True

    def _report(self, did: Did, state: Standing, prepared: Prepared, *, ran: bool, again: bool) -> str:
        """Say what came of a turn, fenced, within a fifth of the window."""
        room = int(self._llm.context_tokens * CHARS_PER_TOKEN / 5)
        share = room // (len(did.texts) + 1)
        function = self.talk.function
        # A small model hands back what a tool says of its success as its next reply.
        parts = [text(share) for text in did.texts] if function is None or not did.succeeded else []
        if state.refused is not None:
            parts.append(fence("the changes cannot be taken over", state.refused.message))
        if ran:
            parts += [check_text(run, prepared.runs.get(name), share) for name, run in state.runs.items()]
            parts.append(verdict_text(state))
            parts += [fence("what the docstring shows, and what does not hold", "\n".join(state.doubts))] if state.doubts else []
        if function is not None:
            parts.append(function.again if ran or not did.succeeded else function.unchanged)
        elif again:
            parts.append("You did just that before, and nothing changed. Reply with actions that change something.")
        return "\n\n".join(parts)

    @asynccontextmanager
    async def _turn(self, at: Said) -> AsyncIterator[None]:
        """One turn: it begins where the deliberation is not paused."""
        about: dict[str, str | int] = {
            "moothall.seat": self.seat,
            "moothall.phase": at.phase,
            "moothall.round": at.round,
            "moothall.turn": at.turn,
        }
        async with self._model.turn():
            with telemetry.span("turn", about):
                yield

    async def _tell_turn(
        self,
        at: Said,
        thought: str = "",
        *,
        operations: Sequence[Operation] = (),
        runs: Mapping[str, CheckRun] | None = None,
        steps: Sequence[TurnStep] = (),
        doubted: bool = False,
    ) -> str:
        """Record the turn, and return why it shows that the seat goes in circles, or nothing."""
        step = f"{self.seat}/{at.step}"
        found = stuck(steps, self._limits.stuck_turns)
        if not found and self.talk.function is not None and len(steps) >= self._llm.function_turns:
            found = DOUBTED if doubted else NOT_GREEN
        found = self._model.circle(step, found)
        await self._facts.say(
            EventType.SEAT_TURN,
            step,
            seat=self.seat,
            role=self.role,
            phase=at.phase,
            round=at.round,
            turn=at.turn,
            operations=[dump(item) for item in operations],
            thought=thought,
            usage=dump(self._model.used(self.seat)),
            tools=dump(self.used),
            checks={name: str(run.verdict) for name, run in (runs or {}).items()},
            attempt=self._attempt,
            attempts=self._limits.attempts,
            stuck=found,
        )
        return found
