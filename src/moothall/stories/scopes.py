"""Access to a story's context by role: the table `scopes.yaml`. No caller can widen it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from moothall.domain.ids import ROLES
from moothall.errors import InvalidRequest, Refused

Scope = Literal[
    "story",
    "brief",
    "decisions",
    "comments",
    "summaries",
    "plan",
    "tasks",
    "similar",
    "milestones",
    "timeline",
]


class Scopes(BaseModel):
    """The table of scopes. They are in the order in which a context is laid out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    phase: str
    worth: Mapping[Scope, Annotated[int, Field(gt=0)]]
    notes: Mapping[str, Scope]
    roles: Mapping[str, tuple[Scope, ...]]
    phases: Mapping[str, tuple[Scope, ...]]

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if set(self.roles) != set(ROLES):
            raise ValueError(f"the roles are {', '.join(ROLES)}")
        if self.phase not in self.phases:
            raise ValueError(f"there is no phase {self.phase}")
        if unknown := {
            scope
            for row in (*self.roles.values(), *self.phases.values(), self.notes.values())
            for scope in row
        } - set(self.worth):
            raise ValueError(f"nothing says what {', '.join(sorted(unknown))} is worth")
        return self

    def allowed_scopes(self, role: str, phase: str) -> tuple[Scope, ...]:
        """Return the scopes that a role may see in a phase. An empty role or phase means all roles
        or the default phase. Raises `InvalidRequest`.
        """
        phase = phase.strip().lower() or self.phase
        if phase not in self.phases:
            raise InvalidRequest(
                f"unknown phase {phase[:40]!r}; the phases are {', '.join(self.phases)}"
            )
        if role and role not in self.roles:
            raise InvalidRequest(
                f"unknown role {role[:40]!r}; the roles are {', '.join(self.roles)}"
            )
        rows = [self.phases[phase], *([self.roles[role]] if role else self.roles.values())]
        return tuple(scope for scope in self.worth if all(scope in row for row in rows))

    def check_note(self, role: str, kind: str) -> None:
        """Raise `InvalidRequest` for an unknown kind of note, `Refused` if the role may not write
        it.
        """
        if kind not in self.notes:
            raise InvalidRequest(
                f"unknown entity_type {kind[:40]!r}; allowed are {', '.join(self.notes)}"
            )
        if self.notes[kind] not in self.roles[role]:
            raise Refused(
                f"{role} cannot see {self.notes[kind]}, so it may not write a {kind} note"
            )

    def note_kinds(self, visible: Sequence[str]) -> tuple[str, ...]:
        """Return the kinds of notes that belong to these scopes."""
        return tuple(kind for kind, scope in self.notes.items() if scope in visible)

    def check(self, names: tuple[str, ...]) -> tuple[Scope, ...]:
        """Return scopes by their names, in order. Raises `InvalidRequest` naming the unknown
        ones.
        """
        normalized = {scope.strip().lower() for scope in names}
        if unknown := sorted(normalized - set(self.worth)):
            raise InvalidRequest(
                f"unknown scope {', '.join(name[:40] for name in unknown)}; the scopes are "
                f"{', '.join(self.worth)}"
            )
        return tuple(scope for scope in self.worth if scope in normalized)


@cache
def scopes() -> Scopes:
    """Return the built-in table."""
    return Scopes.model_validate(
        yaml.safe_load(files(__package__).joinpath("scopes.yaml").read_text(encoding="utf-8"))
    )
