"""An attempt of an agent while it is under way: where it works, how far it came, and why it may not end yet."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from moothall.council.checking import State
from moothall.council.coding import TurnContext
from moothall.council.draft import Draft
from moothall.council.stuck import TurnStep
from moothall.council.text import fence
from moothall.council.turns import Did
from moothall.domain.repository import Prepared
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
    state: State
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


def brief_of(did: Did, state: State) -> str:
    """Return what a turn did and what its checks said, in a line."""
    checks = ", ".join(f"{name} {run.verdict}" for name, run in state.runs.items())
    return f"{did.brief}; {checks}" if checks else did.brief
