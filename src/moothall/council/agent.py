"""The agent loop: turn → gate → checks → repair, until the work is proven, finished or out of turns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from moothall import telemetry
from moothall.config import Limits, Llm
from moothall.council.coding import Coding
from moothall.council.facts import Facts
from moothall.council.history import Exchange, window
from moothall.council.recording import RecordedModel
from moothall.council.reply import Action, MalformedReplyError, Turn, read_turn, turn_schema
from moothall.council.report import block_text, check_text, result_text
from moothall.council.text import CHARS_PER_TOKEN, fence
from moothall.domain.chat import ChatRequest, Message, ReplyMode
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import CheckRun
from moothall.domain.ids import digest
from moothall.domain.proposal import Candidate, Operation, Proposal
from moothall.domain.repository import Patch, Prepared
from moothall.domain.secrets import brings_secret
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import BudgetExceeded, DeadlineExceeded, PatchRefused, Permanent
from moothall.guard.gate import Gate
from moothall.guard.seat import SeatContext
from moothall.ranking import assess, passes_gates
from moothall.tools.arguments import arguments_digest
from moothall.tools.catalogue import CATALOGUE, Danger, ToolSpec

_LOOKING = 2  # turns without a change after which a seat may also give up


class NoChanges(Permanent):
    """A seat ended without having changed anything: never a proposal."""

    code = "NO_CHANGES"


class MalformedReplies(Permanent):
    """The model kept replying with what is no turn."""

    code = "MALFORMED_REPLIES"


class OutOfTurns(Permanent):
    """All turns are used and nothing was changed."""

    code = "OUT_OF_TURNS"


@dataclass(frozen=True, slots=True)
class Draft:
    """What a seat's work came to. `patch` is None about text and for an answer. `green` as the seat's own workspace saw it."""

    content: str
    patch: Patch | None = None
    green: bool = False


_NOT_TAKEN_OVER = (
    "the change writes what looks like a key or password into a file; take it out again: read it from the environment, or in a "
    "test make it of parts"
)


@dataclass(frozen=True, slots=True)
class Voice:
    """How a seat speaks: its temperature and the base of its sampling seeds."""

    mode: ReplyMode
    temperature: float
    seed: int


@dataclass(slots=True)
class _Checked:
    """The workspace after its last change: its patch and what the checks said of it."""

    patch: Patch | None = None
    runs: dict[str, CheckRun] = field(default_factory=dict)
    refused: PatchRefused | None = None
    green: bool = False
    proven: bool = False

    @property
    def changed(self) -> bool:
        """Whether there is anything to propose."""
        return self.patch is not None and bool(self.patch.diff.strip())


@dataclass(frozen=True, slots=True)
class _Did:
    """What a turn did: its tools' results; what is told of them, each within some characters; and the same in a line."""

    results: Sequence[ToolResult]
    texts: Sequence[Callable[[int], str]]
    brief: str


class Agent:
    """One seat's loop. Its conversation and operations go on from the proposal into the revisions. `asked`: it may end with an
    answer and no change.
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
    ) -> None:
        self.seat = seat
        self.role = role
        self.operations: list[Operation] = []
        self._head = head
        self._voice = voice
        self._model = model
        self._facts = facts
        self._llm = llm
        self._limits = limits
        self._specs = tuple(specs)
        self._coding = coding
        self._python = python
        self._asked = asked
        self._exchanges: list[Exchange] = []

    def place(self) -> tuple[int, int]:
        """Say how far it has come; `back_to` goes back there."""
        return len(self._exchanges), len(self.operations)

    def back_to(self, place: tuple[int, int]) -> None:
        """Forget what came after `place`: it will be done again."""
        del self._exchanges[place[0] :], self.operations[place[1] :]

    def tell(self, text: str) -> None:
        """Add something to what the model hears next, as before a revision."""
        last = self._exchanges[-1]
        self._exchanges[-1] = Exchange(last.said, f"{last.came}\n\n{text}".strip(), last.brief)

    async def answer(self, phase: str, round_: int, deadline: datetime) -> Draft:
        """Return an answer in text; raises `MalformedReplies` and what the model raises."""
        for turn in range(1, self._limits.malformed_replies + 2):
            with self._turn(phase, round_, turn):
                said, text = await self._ask(phase, round_, turn, deadline, may_finish=True)
                if isinstance(said, Turn) and said.finish is not None:
                    await self._tell_turn(phase, round_, turn, said.thought)
                    self._exchanges.append(Exchange(text, "", "answered"))
                    return Draft(said.finish.strip())
                wrong = (
                    said if isinstance(said, str) else "There are no tools here: reply with finish, which is the whole answer."
                )
                await self._tell_turn(phase, round_, turn)
                self._exchanges.append(Exchange(text, wrong, "malformed"))
        raise MalformedReplies(f"{self._limits.malformed_replies + 1} replies in a row were no answer")

    async def work(
        self,
        context: SeatContext,
        gate: Gate,
        prepared: Prepared,
        *,
        phase: str,
        round_: int,
        max_turns: int,
        start: Draft | None = None,
    ) -> Draft:
        """Change the workspace until the work is proven, finished or out of turns. `start` is what it holds already.

        Raises `NoChanges`, `OutOfTurns`, `MalformedReplies`, `PatchRefused`, and what model, budget and
        workspace raise. Changes that are not green are returned too: the gates decide.
        """
        state = _Checked(start.patch, green=start.green) if start else _Checked()
        malformed = refusals = 0
        before = Turn()
        stale: frozenset[str] = frozenset()
        summary = ""
        for turn in range(1, max_turns + 1):
            with self._turn(phase, round_, turn):
                may_finish = self._asked or state.changed or turn > _LOOKING
                try:
                    said, text = await self._ask(phase, round_, turn, context.deadline, may_finish=may_finish, without=stale)
                except (DeadlineExceeded, BudgetExceeded):
                    if state.changed:
                        break  # what there is may still win
                    raise
                if isinstance(said, str):
                    malformed += 1
                    await self._tell_turn(phase, round_, turn)
                    self._exchanges.append(Exchange(text, said, "malformed"))
                    if malformed > self._limits.malformed_replies:
                        raise MalformedReplies(f"{malformed} replies were no turn; the last: {said[:300]}")
                    continue
                if said.finish is not None:
                    summary = said.finish.strip()
                    await self._tell_turn(phase, round_, turn, said.thought)
                    objection = _objection(state, prepared, answered=self._asked and bool(summary))
                    if not objection or (state.changed and refusals >= self._limits.malformed_replies):
                        self._exchanges.append(Exchange(text, "", "finished"))
                        break
                    refusals += 1
                    self._exchanges.append(Exchange(text, objection, "finished too early"))
                    if refusals > self._limits.malformed_replies:
                        raise NoChanges("the seat says that it is done and has changed nothing")
                    continue
                begun = len(self.operations)
                did = await self._do(said, context, gate, f"{phase}/{round_}.{turn}")
                ran = await self._look(state, context, prepared, did.results, f"turn {round_}.{turn}")
                operations = self.operations[begun:]
                await self._tell_turn(phase, round_, turn, said.thought, operations=operations, runs=state.runs if ran else None)
                again = (said.actions, said.python) == (before.actions, before.python) and not ran
                # Small models get stuck in such turns: what they repeat is not offered in the next.
                stale = frozenset(action.tool for action in said.actions) if again else frozenset()
                came = self._report(did, state, prepared, ran=ran, again=again)
                before = said
                self._exchanges.append(Exchange(text, came, _brief(did, state)))
                if ran and state.green and state.proven:
                    summary = said.thought
                    break
        return _draft(state, summary, max_turns, asked=self._asked)

    def _turn(self, phase: str, round_: int, turn: int) -> telemetry.Span:
        about: dict[str, str | int] = {
            "moothall.seat": self.seat,
            "moothall.phase": phase,
            "moothall.round": round_,
            "moothall.turn": turn,
        }
        return telemetry.span("turn", about)

    async def _ask(
        self, phase: str, round_: int, turn: int, deadline: datetime, *, may_finish: bool, without: frozenset[str] = frozenset()
    ) -> tuple[Turn | str, str]:
        """Return the turn, or what to tell the model about a reply that is none; and the reply's text."""
        if datetime.now(UTC) >= deadline:
            raise DeadlineExceeded("the seat's time is over")
        step = f"{self.seat}/{phase}/{round_}.{turn}"
        specs = tuple(spec for spec in self._specs if spec.name not in without) or self._specs
        schema = turn_schema(specs, may_finish=may_finish, python=self._python) if self._voice.mode == "json" else None
        most = min(self._llm.max_tokens, self._llm.context_tokens // 3)
        reply = await self._model.ask(
            ChatRequest(
                call_id=f"{self._facts.d.task_id}/{step}",
                messages=window(self._head, self._exchanges, self._llm.context_tokens - most),
                max_tokens=most,
                deadline=deadline,
                schema=schema,
                temperature=self._voice.temperature,
                seed=int(digest(str(self._voice.seed), step)[:7], 16),
            )
        )
        try:
            said = read_turn(reply, self._voice.mode)
        except MalformedReplyError as error:
            return str(error), reply.text
        if said.python is not None and self._coding is None:
            return "Python is not available here: use actions, or finish.", reply.text
        return said, reply.text

    async def _do(self, said: Turn, context: SeatContext, gate: Gate, step: str) -> _Did:
        """Run what the turn asks for."""
        if said.python is None or self._coding is None:
            return await self._act(said.actions, context, gate, step)
        coded = await self._coding.run(said.python, context, gate, step)
        self.operations += coded.operations
        return _Did(coded.results, [lambda room: block_text(coded.run, room)], f"python {coded.run.status}")

    async def _act(self, actions: Sequence[Action], context: SeatContext, gate: Gate, step: str) -> _Did:
        """Run the actions in order and stop at the first that does not succeed."""
        results: list[ToolResult] = []
        for number, action in enumerate(actions, 1):
            request_id = f"{context.task_id}/{self.seat}/{step}.{number}"
            result = await gate.call(context, ToolCall(request_id, action.tool, action.args, context.deadline))
            results.append(result)
            self.operations.append(Operation(result.tool, arguments_digest(action.args), str(result.status), result.duration_ms))
            if result.status is not ToolStatus.SUCCESS:
                break
        texts: list[Callable[[int], str]] = [
            functools.partial(result_text, number, result) for number, result in enumerate(results, 1)
        ]
        if len(results) < len(actions):
            texts.append(lambda _room: f"The {len(actions) - len(results)} actions after it were not run.")
        return _Did(results, texts, ", ".join(f"{result.tool[:40]} {result.status}" for result in results))

    async def _look(
        self, state: _Checked, context: SeatContext, prepared: Prepared, results: Sequence[ToolResult], message: str
    ) -> bool:
        """Commit what changed and run the checks on it; False where nothing changed."""
        if not any(_may_change(result) for result in results):
            return False
        before = state.patch.diff if state.patch is not None else ""
        try:
            patch = await context.workspace.patch(message)
        except PatchRefused as error:
            state.refused, state.green, state.proven = error, False, False
            return False
        if brings_secret(patch.diff, self._model.clean):
            state.refused, state.green, state.proven = PatchRefused(_NOT_TAKEN_OVER), False, False
            return False
        state.refused = None
        if patch.diff == before:
            return False
        profile = prepared.base.profile
        state.patch = patch
        with telemetry.span("own checks", {"moothall.workspace": context.workspace_id}):
            state.runs = {name: await context.workspace.check(name, deadline=context.deadline) for name in profile.checks}
        found = assess(
            prepared.runs,
            state.runs,
            profile,
            own_tests=patch.tests,
            applies=True,
            flaky=prepared.flaky,
            changed=patch.paths,
            task=self._facts.d.description,
        )
        seen = Candidate(
            Proposal(self.seat, self.role, "", patch.diff),
            evidence=found.evidence,
            required=found.required,
            regressions=found.regressions,
        )
        state.green, state.proven = passes_gates(seen), found.done
        return True

    def _report(self, did: _Did, state: _Checked, prepared: Prepared, *, ran: bool, again: bool) -> str:
        """Say what came of a turn, fenced, within a fifth of the window."""
        room = int(self._llm.context_tokens * CHARS_PER_TOKEN / 5)
        share = room // (len(did.texts) + 1)
        parts = [text(share) for text in did.texts]
        if state.refused is not None:
            parts.append(fence("the changes cannot be taken over", state.refused.message))
        if ran:
            parts += [check_text(run, prepared.runs.get(name), share) for name, run in state.runs.items()]
            parts.append("All checks are green. If the task is done, finish." if state.green else "Repair this.")
        if again:
            parts.append("You did just that before, and nothing changed. Reply with actions that change something.")
        return "\n\n".join(parts)

    async def _tell_turn(
        self,
        phase: str,
        round_: int,
        turn: int,
        thought: str = "",
        *,
        operations: Sequence[Operation] = (),
        runs: Mapping[str, CheckRun] | None = None,
    ) -> None:
        await self._facts.say(
            EventType.SEAT_TURN,
            f"{self.seat}/{phase}/{round_}.{turn}",
            seat=self.seat,
            role=self.role,
            round=round_,
            turn=turn,
            operations=[dump(item) for item in operations],
            thought=thought,
            usage=dump(self._model.used(self.seat)),
            checks={name: str(run.verdict) for name, run in (runs or {}).items()},
        )


def _may_change(result: ToolResult) -> bool:
    """A tool that failed half-way may have changed something too; one that never ran has not."""
    spec = CATALOGUE.get(result.tool)
    never_ran = {ToolStatus.INVALID, ToolStatus.BLOCKED, ToolStatus.PARKED, ToolStatus.RATE_LIMITED}
    return spec is not None and spec.danger is not Danger.READ and result.status not in never_ran


def _objection(state: _Checked, prepared: Prepared, *, answered: bool) -> str:
    """Why a seat may not finish yet, or nothing."""
    if state.refused is not None:
        return f"Your changes cannot be taken over, so this is not done. {fence('reason', state.refused.message)}"
    if not state.changed:
        return "" if answered else "Nothing is changed yet, so the task is not done. Reply with the actions that make the change."
    if not state.green:
        red = [name for name, run in state.runs.items() if run.verdict != "passed"] or list(prepared.base.profile.checks)
        return f"This is not done: not green is {', '.join(red)}. Repair it with further actions."
    return ""


def _draft(state: _Checked, summary: str, max_turns: int, *, asked: bool) -> Draft:
    if state.refused is not None:
        raise state.refused
    if not state.changed or state.patch is None:
        if asked and summary:
            return Draft(summary)
        raise OutOfTurns(f"nothing was changed within {max_turns} turns")
    return Draft(summary or "(no summary)", state.patch, state.green)


def _brief(did: _Did, state: _Checked) -> str:
    checks = ", ".join(f"{name} {run.verdict}" for name, run in state.runs.items())
    return f"{did.brief}; {checks}" if checks else did.brief
