"""An attempt of an agent: where it works, how far it came, why it may not end yet, and what it came to."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from moothall.council.checking import Standing
from moothall.council.coding import TurnContext
from moothall.council.prompting.text import fence
from moothall.council.turns import Did, TurnStep
from moothall.domain.repository import Patch, Prepared
from moothall.errors import PatchRefused, Permanent
from moothall.guard.gate import Gate
from moothall.guard.seat import SeatContext


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where an agent works: its seat in a workspace, behind the gate, on a base. `also` are cases that are run after each change,
    whatever it touches.
    """

    context: SeatContext
    gate: Gate
    prepared: Prepared
    also: AbstractSet[str] = frozenset()

    def at(self, step: str) -> TurnContext:
        """Return where one turn acts."""
        return TurnContext(self.context, self.gate, step)


@dataclass(slots=True)
class Course:
    """An attempt under way. `over`: it ends with this turn; `circle`: because it goes in circles."""

    place: Workplace
    state: Standing
    steps: list[TurnStep] = field(default_factory=list)
    best: Draft | None = None
    malformed: int = 0
    refusals: int = 0
    stale: frozenset[str] = frozenset()
    summary: str = ""
    circle: str = ""
    over: bool = False

    def stay(self) -> bool:
        """Go on whatever has come so far; whether it was over."""
        was = self.over or bool(self.circle)
        self.over, self.circle, self.malformed, self.refusals = False, "", 0, 0
        self.steps.clear()
        return was


@dataclass(frozen=True, slots=True)
class Said:
    """A reply: the turn's place (phase, round, number), and its text."""

    phase: str
    round: int
    turn: int
    text: str = ""

    @property
    def step(self) -> str:
        """As in call ids."""
        return f"{self.phase}/{self.round}.{self.turn}"


def why_not(course: Course, *, answered: bool) -> str:
    """Why a seat may not finish yet, or nothing."""
    state, prepared = course.state, course.place.prepared
    if state.refused is not None:
        return f"Your changes cannot be taken over, so this is not done. {fence('reason', state.refused.message)}"
    if not state.changed:
        return "" if answered else "Nothing is changed yet, so the task is not done. Reply with the actions that make the change."
    if not state.green:
        red = [name for name, run in state.runs.items() if run.verdict != "passed"] or list(prepared.base.profile.checks)
        return f"This is not done: not green is {', '.join(red)}. Repair it with further actions."
    return ""


def brief_of(did: Did, state: Standing) -> str:
    """Return what a turn did and what its checks said, in a line."""
    checks = ", ".join(f"{name} {run.verdict}" for name, run in state.runs.items())
    return f"{did.brief}; {checks}" if checks else did.brief


class NoChanges(Permanent):
    """A seat ended without having changed anything: never a proposal."""

    code = "NO_CHANGES"


class MalformedReplies(Permanent):
    """The model kept replying with what is no turn."""

    code = "MALFORMED_REPLIES"


class OutOfTurns(Permanent):
    """All turns are used and nothing was changed."""

    code = "OUT_OF_TURNS"


class InCircles(Permanent):
    """Every attempt went in circles, and nothing was changed."""

    code = "IN_CIRCLES"


@dataclass(frozen=True, slots=True)
class Draft:
    """What a seat's work came to. `patch` is None about text and for an answer. `green` and `worth` (more is better) as the
    seat's own workspace saw it.
    """

    content: str
    patch: Patch | None = None
    green: bool = False
    worth: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """How an attempt ended: the best that came of it, if anything; its last turn; where it went in circles, how; and why its last
    change could not be taken over, if it could not.
    """

    draft: Draft | None
    turn: int
    stuck: str
    refused: PatchRefused | None = None
