"""The life cycle of a story: what `lifecycle.yaml` allows, decided from recorded facts and never
from a caller's word.

A story's state is its log folded: a recorded transition counts only where the table allowed it with
the facts that stand before it in the log, so that whatever is written there, no story is in a state
that it did not earn.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from moothall.errors import InvalidRequest, Permanent, Refused

SYSTEM = "system"
DEFAULT_RIGOR = "L1"
Role = Literal["po", "qa", "architect", "operator", "system"]
Need = Literal["ready", "planned", "built", "checked", "failed"]
_BACK = ("reject", "shelve")
_Name = Annotated[str, Field(pattern="^[a-z][a-z_]{0,31}$")]
_WORDS: Mapping[Need, str] = {
    "ready": "the story coach gives it {points} points, and {rigor} needs {ready}",
    "planned": "its tasks are not derived yet",
    "built": "its tasks are not all done with a winner",
    "checked": "its branch is not checked as a whole on a clean checkout, or the check was red",
    "failed": "it goes together with the base that it was approved for",
}


class Blocked(Permanent):
    """The evidence that a transition needs is not recorded; the message says what is missing."""

    code = "BLOCKED"


class _Read(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Transition(_Read):
    """A line of the table."""

    event: _Name
    source: Annotated[_Name, Field(alias="from")]
    target: Annotated[_Name, Field(alias="to")]
    by: Annotated[tuple[Role, ...], Field(min_length=1)]
    needs: tuple[Need, ...] = ()


class Lifecycle(_Read):
    """The table."""

    start: _Name
    end: tuple[_Name, ...]
    ready: Mapping[str, Annotated[int, Field(ge=0, le=100)]]
    roles: Mapping[str, tuple[_Name, ...]]
    transitions: tuple[Transition, ...]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        keys = [(item.source, item.event) for item in self.transitions]
        if len(set(keys)) != len(keys):
            raise ValueError("an event leads from one state to two")
        if set(self.roles) != set(self.ready):
            raise ValueError("ready and roles name different rigor levels")
        reached = {self.start}
        for _ in self.transitions:
            reached |= {item.target for item in self.transitions if item.source in reached}
        named = {item.source for item in self.transitions} | set(self.end)
        if named != reached:
            raise ValueError(
                "not every state is reached, or one is left by no transition: "
                f"{', '.join(sorted(named ^ reached))}"
            )
        return self

    def transitions_from(self, state: str) -> tuple[Transition, ...]:
        """Return the lines that lead out of a state."""
        return tuple(item for item in self.transitions if item.source == state)

    def way(self, state: str, *, back: bool = False) -> Transition | None:
        """Return the line by which people move a story on from a state, or send it back; None where
        there is none.
        """
        ahead = [item for item in self.transitions_from(state) if SYSTEM not in item.by]
        return next((item for item in ahead if item.event.startswith(_BACK) == back), None)

    @property
    def order(self) -> tuple[str, ...]:
        """All states, in the order in which the table reaches them."""
        return tuple(dict.fromkeys((self.start, *(item.target for item in self.transitions))))

    @property
    def states(self) -> frozenset[str]:
        """All states."""
        return frozenset(self.order)


@cache
def lifecycle() -> Lifecycle:
    """Return the table. A file that is wrong is a bug of ours, and an error of pydantic."""
    text = files("moothall.stories").joinpath("lifecycle.yaml").read_text(encoding="utf-8")
    return Lifecycle.model_validate(yaml.safe_load(text))


@dataclass(frozen=True, slots=True)
class StoryPosition:
    """Where a story is: its state, its rigor level, the points that the coach gives it now, and
    what was recorded since it entered the state.
    """

    state: str
    rigor: str = DEFAULT_RIGOR
    points: int = 0
    facts: frozenset[Need] = frozenset()

    def record(self, fact: Need) -> Self:
        """Return it with one more fact."""
        return replace(self, facts=self.facts | {fact})


def decide(stand: StoryPosition, event: str, roles: Collection[str]) -> StoryPosition:
    """Return where the story is after an event of somebody who has these roles. Raises
    `InvalidRequest` for an event that does not happen there, `Refused` without the role, and
    `Blocked` without the evidence.
    """
    table = lifecycle()
    leaving = table.transitions_from(stand.state)
    found = next((item for item in leaving if item.event == event), None)
    if found is None:
        possible = (
            "nothing: it has ended"
            if stand.state in table.end
            else ", ".join(item.event for item in leaving)
        )
        raise InvalidRequest(
            f"{event[:40]!r} does not happen to a story in {stand.state}; possible are {possible}"
        )
    if not set(found.by) & set(roles):
        raise Refused(f"{event} needs one of the roles {', '.join(found.by)}")
    missing = [need for need in found.needs if not _holds(need, stand, table)]
    if missing:
        ready = table.ready.get(stand.rigor, 100)
        raise Blocked(
            "; ".join(
                _WORDS[need].format(points=stand.points, rigor=stand.rigor, ready=ready)
                for need in missing
            )
        )
    return replace(stand, state=found.target, facts=frozenset())


def _holds(need: Need, stand: StoryPosition, table: Lifecycle) -> bool:
    if need == "ready":
        return stand.points >= table.ready.get(stand.rigor, 100)
    return need in stand.facts
