"""The life cycle of a story: the transitions that `lifecycle.yaml` allows, decided from recorded
facts. Validation of story events, which any program may publish.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from moothall.domain.budget import Budget, check_budget
from moothall.domain.codec import load
from moothall.domain.event import Event, EventType
from moothall.domain.ids import check_id
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest, Permanent, Refused

# The life cycle of a story: the transitions that `lifecycle.yaml` allows, decided from recorded
# facts.
#
# A story's state is its log, folded. A recorded transition counts only if the table allows it with
# the facts recorded before it, so nothing written to the log can put a story into a state that it
# did not earn.


SYSTEM = "system"
DEFAULT_RIGOR = "L1"
Role = Literal["po", "qa", "architect", "operator", "system"]
Need = Literal["ready", "planned", "built", "checked", "failed"]
_SEND_BACK_PREFIXES = ("reject", "shelve")
_ASIDE_EVENTS = frozenset({"stop", "archive", "restore"})
"""Events that move a story neither on nor back."""
_Name = Annotated[str, Field(pattern="^[a-z][a-z_]{0,31}$")]
_MISSING_MESSAGES: Mapping[Need, str] = {
    "ready": "the story coach gives it {points} points, and {rigor} needs {ready}",
    "planned": "its tasks are not derived yet",
    "built": "its tasks are not all done with a winner",
    "checked": "its branch is not checked as a whole on a clean checkout, or the check failed",
    "failed": "it still merges with the base that it was approved for",
}


class Blocked(Permanent):
    """The evidence that a transition needs is not recorded; the message says what is missing."""

    code = "BLOCKED"


class _FrozenModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Transition(_FrozenModel):
    """A row of the table: an event that leads from one state to another."""

    event: _Name
    source: Annotated[_Name, Field(alias="from")]
    target: Annotated[_Name, Field(alias="to")]
    by: Annotated[tuple[Role, ...], Field(min_length=1)]
    needs: tuple[Need, ...] = ()


class Lifecycle(_FrozenModel):
    """The table of states and transitions."""

    start: _Name
    end: tuple[_Name, ...]
    off_board: tuple[_Name, ...] = ()
    ready: Mapping[str, Annotated[int, Field(ge=0, le=100)]]
    roles: Mapping[str, tuple[_Name, ...]]
    transitions: tuple[Transition, ...]

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        """Raise `ValueError` unless the table is consistent and every state is reachable."""
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
        """Return the transitions that lead out of a state."""
        return tuple(item for item in self.transitions if item.source == state)

    def next_transition(self, state: str, *, back: bool = False) -> Transition | None:
        """Return the transition by which people move a story on from a state, or send it back.
        Return None otherwise.
        """
        by_people = [
            item
            for item in self.transitions_from(state)
            if SYSTEM not in item.by and item.event not in _ASIDE_EVENTS
        ]
        return next(
            (item for item in by_people if item.event.startswith(_SEND_BACK_PREFIXES) == back), None
        )

    @cached_property
    def order(self) -> tuple[str, ...]:
        """All states, in the order in which the table reaches them."""
        return tuple(dict.fromkeys((self.start, *(item.target for item in self.transitions))))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The states that the board shows, in order."""
        return tuple(state for state in self.order if state not in self.off_board)


@cache
def lifecycle() -> Lifecycle:
    """Return the table. An invalid file is a bug in Moothall and raises a pydantic error."""
    text = files("moothall.stories").joinpath("lifecycle.yaml").read_text(encoding="utf-8")
    return Lifecycle.model_validate(yaml.safe_load(text))


@dataclass(frozen=True, slots=True)
class StoryPosition:
    """The position of a story: its state, its rigor level, the coach's points, and the facts
    recorded since it entered the state.
    """

    state: str
    rigor: str = DEFAULT_RIGOR
    points: int = 0
    facts: frozenset[Need] = frozenset()

    def record(self, fact: Need) -> Self:
        """Return the position with one more fact."""
        return replace(self, facts=self.facts | {fact})


def decide(position: StoryPosition, event: str, roles: Collection[str]) -> StoryPosition:
    """Return the position of a story after an event by a caller with these roles.

    Raises `InvalidRequest` for an event that the state does not allow, `Refused` without the role,
    and `Blocked` without the evidence.
    """
    table = lifecycle()
    transitions = table.transitions_from(position.state)
    transition = next((item for item in transitions if item.event == event), None)
    if transition is None:
        possible = (
            "none: the story has ended"
            if position.state in table.end
            else ", ".join(item.event for item in transitions)
        )
        raise InvalidRequest(
            f"{event[:40]!r} is not possible for a story in {position.state}; possible "
            f"are {possible}"
        )
    if not set(transition.by) & set(roles):
        raise Refused(f"{event} needs one of the roles {', '.join(transition.by)}")
    missing = [need for need in transition.needs if not _is_met(need, position, table)]
    if missing:
        ready = table.ready.get(position.rigor, 100)
        raise Blocked(
            "; ".join(
                _MISSING_MESSAGES[need].format(
                    points=position.points, rigor=position.rigor, ready=ready
                )
                for need in missing
            )
        )
    return replace(position, state=transition.target, facts=frozenset())


def _is_met(need: Need, position: StoryPosition, table: Lifecycle) -> bool:
    if need == "ready":
        return position.points >= table.ready.get(position.rigor, 100)
    return need in position.facts


# Validation of story events, which any program may publish. An invalid one becomes a dead letter.


_DESCRIPTIVE_EVENTS = {
    EventType.STORY_CREATED,
    EventType.STORY_CHANGED,
    EventType.STORY_TRANSITIONED,
}
"""The event types whose fields describe a story."""
_TEXT_FIELDS = (
    "title",
    "brief",
    "ref",
    "plan_id",
    "actor",
    "event",
    "from_state",
    "to_state",
    "comment",
)


def check_event(event: Event) -> str:
    """Return the id of an event's story. Raises `InvalidRequest` naming the invalid field."""
    data = event.data
    story_id = data.get("story_id")
    if not isinstance(story_id, str):
        raise InvalidRequest("the event's data has no story_id: expected an id")
    check_id(story_id, "story_id")
    check_id(event.tenant, "tenant")
    if event.type not in _DESCRIPTIVE_EVENTS:
        return story_id
    for name in _TEXT_FIELDS:
        if name in data and not isinstance(data[name], str):
            raise InvalidRequest(f"{name} is not a text")
    _check_fields(data)
    if (
        event.type is EventType.STORY_CREATED
        and not str(data.get("title") or data.get("brief") or "").strip()
    ):
        raise InvalidRequest("the story has neither a title nor a brief")
    if event.type is EventType.STORY_TRANSITIONED and not str(data.get("to_state") or "").strip():
        raise InvalidRequest("to_state is empty; give the new state, for example planning")
    return story_id


def _check_fields(data: Mapping[str, object]) -> None:
    criteria, repository, rigor = (
        data.get("ac", ()),
        data.get("repository", ""),
        data.get("rigor_level", ""),
    )
    if not isinstance(criteria, list | tuple) or not all(
        isinstance(line, str) for line in criteria
    ):
        raise InvalidRequest("ac is not a list of texts")
    if isinstance(repository, Mapping):
        load(RepositoryRef, repository)
    elif not isinstance(repository, str):
        raise InvalidRequest("repository is neither a text nor an object with id, url and ref")
    if rigor and str(rigor) not in lifecycle().ready:  # it may be of any type
        raise InvalidRequest(
            f"rigor_level is {str(rigor)[:40]!r}; allowed are {', '.join(lifecycle().ready)}"
        )
    if not isinstance(data.get("metadata", {}), Mapping):
        raise InvalidRequest("metadata is not an object")
    if "budget" in data:
        check_budget(load(Budget, data["budget"]))
