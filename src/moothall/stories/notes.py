"""Notes on stories: what external callers record about a story, beside what the server records.
Access to a story's context by role: the table `scopes.yaml`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from moothall.domain.codec import dump, load
from moothall.domain.event import Channel, Event, EventType, Recorded
from moothall.domain.ids import ROLES, Principal, check_id, digest, key_of, read_role
from moothall.domain.plan import Story
from moothall.domain.text import scrub
from moothall.errors import AlreadyExists, ConcurrentUpdate, InvalidRequest, NotFound, Refused
from moothall.ports import Log
from moothall.stories import story_state as stories
from moothall.telemetry.tracing import write

# Access to a story's context by role: the table `scopes.yaml`. No caller can widen it.


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
            raise ValueError(f"worth has no value for {', '.join(sorted(unknown))}")
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


# Notes on stories: what external callers record about a story, beside what the server records.
#
# Notes are events on the bus, and councils see them in their context. A note cannot change anything
# that the server recorded: a note about a decision approves nothing.


_MAX_CHANGES, _MAX_NOTES, _MAX_PAYLOAD_CHARS, _MAX_REASON_CHARS = 50, 500, 2_000, 400
_OPERATIONS = ("create", "update", "delete")
_PEOPLE = "po"
"""A role for people only: a caller who lacks it may not write notes for it."""


@dataclass(frozen=True, slots=True)
class NoteChange:
    """A change of one note. `payload` is a JSON object; an update replaces the whole payload."""

    operation: str
    entity_type: str
    entity_id: str
    payload: str = ""
    reason: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The entity that the note is about."""
        return self.entity_type, self.entity_id


@dataclass(frozen=True, slots=True)
class Update:
    """Changes that are recorded together or not at all. `at` is the caller's own time; `expected`
    is the version that the caller saw, None for any.
    """

    story_id: str
    role: str
    changes: tuple[NoteChange, ...]
    task_id: str = ""
    at: str = ""
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class NotesVersion:
    """The current version of a story's notes: the number of updates, a hash of the content, and
    warnings about the caller's update.
    """

    version: int
    hash: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """A story's events, folded. `seq` is that of the last event, `updates` has the ids of the
    events that changed notes.
    """

    story: Story
    seq: int = 0
    notes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    updates: tuple[str, ...] = ()

    def result(self, *warnings: str) -> NotesVersion:
        content = [
            part
            for (kind, name), payload in sorted(self.notes.items())
            for part in (kind, name, payload)
        ]
        return NotesVersion(len(self.updates), digest(*content), warnings)


class Notes:
    """The notes of all tenants' stories. `clean` removes secrets from a text, as the bus does."""

    def __init__(self, bus: Log, clean: Callable[[str], str] = scrub) -> None:
        self._bus = bus
        self._clean = clean

    async def update(self, update: Update, principal: Principal) -> NotesVersion:
        """Record changes and return the new version.

        Nothing is recorded if the changes have no effect, or if the same update with the same time
        was recorded before. Raises `InvalidRequest`, `Refused` for what the role may not write,
        `NotFound` for an unknown story or note, `AlreadyExists` if a note to create exists, and
        `ConcurrentUpdate` if the version is not the expected one.
        """
        update, warnings = self._check_update(update, principal)
        sent_id = ""
        while True:
            state = await self._read_state(update.story_id, principal.tenant)
            version = len(state.updates)
            event = _update_event(update, version + 1, principal)
            if sent_id in state.updates:  # ours, and its ack was lost
                return state.result(*warnings)
            if update.at and event.id in state.updates:
                return state.result(
                    *warnings, "this was asked before, at the same time: nothing was changed"
                )
            if update.expected not in {None, version}:
                expectation = f"you expected {update.expected}"
                raise ConcurrentUpdate(
                    f"the context of {update.story_id} is at version {version}, and {expectation}: "
                    "look again"
                )
            changed_state, change_warnings = _apply_changes(state, update.changes)
            if changed_state.notes == state.notes:
                return state.result(
                    *warnings, *change_warnings, "all was so already: nothing was changed"
                )
            if len(changed_state.notes) > _MAX_NOTES:
                raise InvalidRequest(f"a story has at most {_MAX_NOTES} notes; delete some")
            sent_id = event.id
            try:
                await self._bus.create(event, state.seq)
            except AlreadyExists:
                continue  # something else happened to the story, or our ack was lost
            return replace(changed_state, updates=(*state.updates, event.id)).result(
                *warnings, *change_warnings
            )

    def _check_update(self, update: Update, principal: Principal) -> tuple[Update, list[str]]:
        """Return the update as it will be recorded, and warnings for the caller."""
        role = read_role(update.role)
        if role == _PEOPLE and role not in principal.roles:
            raise Refused(f"notes of the {role} can be written only with the role {role}")
        if update.task_id:
            check_id(update.task_id, "task_id")
        if update.at:
            _check_time(update.at)
        if not 1 <= len(update.changes) <= _MAX_CHANGES:
            raise InvalidRequest(
                f"there are {len(update.changes)} changes; allowed are 1 to {_MAX_CHANGES}"
            )
        changes, warnings = [], []
        for raw_change in update.changes:
            change = _normalize_change(raw_change)
            scopes().check_note(role, change.entity_type)
            cleaned = replace(
                change, payload=self._clean(change.payload), reason=self._clean(change.reason)
            )
            if cleaned != change:
                warnings.append(f"{change.entity_type} {change.entity_id}: a secret was removed")
            changes.append(cleaned)
        if len({change.key for change in changes}) < len(changes):
            raise InvalidRequest(
                "an entity is named by two of the changes; one update changes each once"
            )
        return replace(
            update,
            story_id=check_id(update.story_id, "story_id"),
            role=role,
            changes=tuple(changes),
        ), warnings

    async def _read_state(self, story_id: str, tenant: str) -> _State:
        state = _State(Story(story_id))
        async for recorded in self._bus.replay((Channel.STORIES.of(key_of(story_id, tenant)),)):
            state = _fold_event(state, recorded, tenant)
        if not state.story.has_content:
            raise NotFound(f"no story {story_id!r}")
        return state


def _fold_event(state: _State, recorded: Recorded, tenant: str) -> _State:
    event = recorded.event
    state = replace(state, seq=recorded.seq)
    if event.tenant != tenant:
        return state
    state = replace(state, story=stories.fold_story(state.story, event))
    if event.type is not EventType.STORY_NOTED or event.data.get("story_id") != state.story.id:
        return state
    notes = dict(state.notes)
    try:
        changes = load(tuple[NoteChange, ...], event.data.get("changes"))
    except InvalidRequest:  # a malformed event changes nothing
        changes = ()
    for change in changes:
        if change.operation == "delete":
            notes.pop(change.key, None)
        else:
            notes[change.key] = change.payload
    return replace(state, notes=notes, updates=(*state.updates, event.id))


def _apply_changes(state: _State, changes: Sequence[NoteChange]) -> tuple[_State, list[str]]:
    """Return the state after some changes, and warnings for the caller."""
    notes, warnings = dict(state.notes), []
    for change in changes:
        label = f"{change.entity_type} {change.entity_id}"
        current = notes.get(change.key)
        if change.operation == "delete":
            if notes.pop(change.key, None) is None:
                warnings.append(f"{label}: there is none to delete")
            continue
        if change.operation == "create" and current not in {None, change.payload}:
            raise AlreadyExists(f"{label} is noted already, with another payload; update it")
        if change.operation == "update" and current is None:
            raise NotFound(f"no {label} is noted; create it")
        notes[change.key] = change.payload
    return replace(state, notes=notes), warnings


def _normalize_change(change: NoteChange) -> NoteChange:
    """Return a change in its canonical form: equal payloads have equal bytes. Raises
    `InvalidRequest`.
    """
    operation, kind = change.operation.strip().lower(), change.entity_type.strip().lower()
    if operation not in _OPERATIONS:
        raise InvalidRequest(
            f"unknown operation {change.operation[:40]!r}; it is one of {', '.join(_OPERATIONS)}"
        )
    check_id(change.entity_id, "entity_id")
    if len(change.payload) > _MAX_PAYLOAD_CHARS or len(change.reason) > _MAX_REASON_CHARS:
        raise InvalidRequest(
            f"a payload has at most {_MAX_PAYLOAD_CHARS} characters, a reason {_MAX_REASON_CHARS}"
        )
    payload = "" if operation == "delete" else _canonical_json(change.payload)
    return NoteChange(operation, kind, change.entity_id, payload, change.reason.strip())


def _canonical_json(payload: str) -> str:
    try:
        document: Any = json.loads(payload)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not document:
        raise InvalidRequest(
            'payload must be a JSON object with content, such as {"text": "we keep the old format"}'
        )
    return json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(", ", ": "))


def _check_time(text: str) -> None:
    try:
        has_zone = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        has_zone = False
    if not has_zone:
        raise InvalidRequest(
            f"timestamp {text[:40]!r} is not a time; write it as 2026-01-31T12:00:00Z, or leave "
            "it out"
        )


def _update_event(update: Update, version: int, principal: Principal) -> Event:
    """Return the event that records an update. With the caller's own time, a repeated update gives
    the same event.
    """
    changes = [dump(change) for change in update.changes]
    data = {
        "story_id": update.story_id,
        "task_id": update.task_id,
        "role": update.role,
        "version": version,
        "changes": changes,
        "actor": principal.name,
        "at": update.at,
    }
    ordinal = digest(
        principal.name,
        update.role,
        update.task_id,
        json.dumps(changes),
        update.at or f"after {version - 1}",
    )
    return write(
        EventType.STORY_NOTED, update.story_id, data, ordinal=ordinal, tenant=principal.tenant
    )
