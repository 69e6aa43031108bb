"""Notes: what callers hold of a story beside what the server records. Facts on the bus like all
else; councils are told of them as of the rest.

Nothing that the server recorded can be changed by them: a note of a decision is told as somebody's
note, and approves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from moothall.domain.codec import dump, load
from moothall.domain.event import Event, EventType, Recorded
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, digest, key_of, read_role
from moothall.domain.plan import Story
from moothall.domain.secrets import scrub
from moothall.domain.topic import Channel
from moothall.errors import AlreadyExists, ConcurrentUpdate, InvalidRequest, NotFound, Refused
from moothall.ports import Log
from moothall.stories import story as stories
from moothall.stories.scopes import scopes
from moothall.telemetry.events import write

_CHANGES, _NOTES, _PAYLOAD, _REASON = 50, 500, 2_000, 400
_OPERATIONS = ("create", "update", "delete")
_PEOPLE = "po"
"""The role that stands for people alone: nobody notes anything for it without having it."""


@dataclass(frozen=True, slots=True)
class NoteChange:
    """One note put in its place, or taken away. `payload` is a JSON object; of an update it takes
    the place of the whole payload before.
    """

    operation: str
    entity_type: str
    entity_id: str
    payload: str = ""
    reason: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What it is about."""
        return self.entity_type, self.entity_id


@dataclass(frozen=True, slots=True)
class Update:
    """Changes that are recorded together or not at all. `at`: the caller's own time; `expected`:
    the version that the caller saw, None for any.
    """

    story_id: str
    role: str
    changes: tuple[NoteChange, ...]
    task_id: str = ""
    at: str = ""
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class NotesVersion:
    """A story's notes as they stand: how often they were changed, a hash of their content, and what
    a caller should know of its update.
    """

    version: int
    hash: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """The story's events folded; `seq` is that of the last one, `updates` are the ids of those that
    changed notes.
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
    """The notes of all tenants' stories. `clean` takes secrets out of a text, as the bus does."""

    def __init__(self, bus: Log, clean: Callable[[str], str] = scrub) -> None:
        self._bus = bus
        self._clean = clean

    async def update(self, asked: Update, who: Principal) -> NotesVersion:
        """Record changes. What leaves all as it is, and what was asked before with the same time,
        records nothing.

        Raises `InvalidRequest`, `Refused` for what is not for the role, `NotFound` for a story or
        note that there is not, `AlreadyExists` for a note to create that there is,
        `ConcurrentUpdate`
        where the version is not the expected one.
        """
        asked, warnings = self._check_update(asked, who)
        sent = ""
        while True:
            state = await self._state(asked.story_id, who.tenant)
            version = len(state.updates)
            told = _update_event(asked, version + 1, who)
            if sent in state.updates:  # ours, and its ack was lost
                return state.result(*warnings)
            if asked.at and told.id in state.updates:
                return state.result(
                    *warnings, "this was asked before, at the same time: nothing was changed"
                )
            if asked.expected not in {None, version}:
                seen = f"you expected {asked.expected}"
                raise ConcurrentUpdate(
                    f"the context of {asked.story_id} is at version {version}, and {seen}: look "
                    "again"
                )
            after, more = _apply(state, asked.changes)
            if after.notes == state.notes:
                return state.result(*warnings, *more, "all was so already: nothing was changed")
            if len(after.notes) > _NOTES:
                raise InvalidRequest(f"a story has at most {_NOTES} notes; delete some")
            sent = told.id
            try:
                await self._bus.create(told, state.seq)
            except AlreadyExists:
                continue  # something else happened to the story, or our ack was lost
            return replace(after, updates=(*state.updates, told.id)).result(*warnings, *more)

    def _check_update(self, asked: Update, who: Principal) -> tuple[Update, list[str]]:
        """Return the update as it is recorded, and what to warn of."""
        role = read_role(asked.role)
        if role == _PEOPLE and role not in who.roles:
            raise Refused(f"what the {role} notes is noted by who has the role {role}")
        if asked.task_id:
            check_id(asked.task_id, "task_id")
        if asked.at:
            _check_time(asked.at)
        if not 1 <= len(asked.changes) <= _CHANGES:
            raise InvalidRequest(
                f"there are {len(asked.changes)} changes; allowed are 1 to {_CHANGES}"
            )
        changes, warnings = [], []
        for given in asked.changes:
            change = _change(given)
            scopes().check_note(role, change.entity_type)
            cleaned = replace(
                change, payload=self._clean(change.payload), reason=self._clean(change.reason)
            )
            if cleaned != change:
                warnings.append(f"{change.entity_type} {change.entity_id}: a secret was taken out")
            changes.append(cleaned)
        if len({change.key for change in changes}) < len(changes):
            raise InvalidRequest(
                "an entity is named by two of the changes; one update changes each once"
            )
        return replace(
            asked, story_id=check_id(asked.story_id, "story_id"), role=role, changes=tuple(changes)
        ), warnings

    async def _state(self, story_id: str, tenant: str) -> _State:
        state = _State(Story(story_id))
        async for recorded in self._bus.replay((Channel.STORIES.of(key_of(story_id, tenant)),)):
            state = _fold(state, recorded, tenant)
        if not state.story.told:
            raise NotFound(f"no story {story_id!r}")
        return state


def _fold(state: _State, recorded: Recorded, tenant: str) -> _State:
    event = recorded.event
    state = replace(state, seq=recorded.seq)
    if event.tenant != tenant:
        return state
    state = replace(state, story=stories.fold(state.story, event))
    if event.type is not EventType.STORY_NOTED or event.data.get("story_id") != state.story.id:
        return state
    notes = dict(state.notes)
    try:
        changes = load(tuple[NoteChange, ...], event.data.get("changes"))
    except InvalidRequest:  # malformed, it says nothing
        changes = ()
    for change in changes:
        if change.operation == "delete":
            notes.pop(change.key, None)
        else:
            notes[change.key] = change.payload
    return replace(state, notes=notes, updates=(*state.updates, event.id))


def _apply(state: _State, changes: Sequence[NoteChange]) -> tuple[_State, list[str]]:
    """Return what changes make of the notes, and what to warn of."""
    notes, warnings = dict(state.notes), []
    for change in changes:
        named = f"{change.entity_type} {change.entity_id}"
        known = notes.get(change.key)
        if change.operation == "delete":
            if notes.pop(change.key, None) is None:
                warnings.append(f"{named}: there is none to delete")
            continue
        if change.operation == "create" and known not in {None, change.payload}:
            raise AlreadyExists(f"{named} is noted already, with another payload; update it")
        if change.operation == "update" and known is None:
            raise NotFound(f"no {named} is noted; create it")
        notes[change.key] = change.payload
    return replace(state, notes=notes), warnings


def _change(given: NoteChange) -> NoteChange:
    """Return a change in one form: the same payload has the same bytes. Raises `InvalidRequest`."""
    operation, kind = given.operation.strip().lower(), given.entity_type.strip().lower()
    if operation not in _OPERATIONS:
        raise InvalidRequest(
            f"unknown operation {given.operation[:40]!r}; it is one of {', '.join(_OPERATIONS)}"
        )
    check_id(given.entity_id, "entity_id")
    if len(given.payload) > _PAYLOAD or len(given.reason) > _REASON:
        raise InvalidRequest(f"a payload has at most {_PAYLOAD} characters, a reason {_REASON}")
    payload = "" if operation == "delete" else _canonical(given.payload)
    return NoteChange(operation, kind, given.entity_id, payload, given.reason.strip())


def _canonical(payload: str) -> str:
    try:
        read: Any = json.loads(payload)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict) or not read:
        raise InvalidRequest(
            'payload is a JSON object that says something, such as {"text": "we keep the old '
            'format"}'
        )
    return json.dumps(read, sort_keys=True, ensure_ascii=False, separators=(", ", ": "))


def _check_time(text: str) -> None:
    try:
        known = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        known = False
    if not known:
        raise InvalidRequest(
            f"timestamp {text[:40]!r} is no time; write it as 2026-01-31T12:00:00Z, or leave it out"
        )


def _update_event(asked: Update, version: int, who: Principal) -> Event:
    """Return what is recorded. With a time of the caller's it is the same event whenever it is
    asked for.
    """
    changes = [dump(change) for change in asked.changes]
    data = {
        "story_id": asked.story_id,
        "task_id": asked.task_id,
        "role": asked.role,
        "version": version,
        "changes": changes,
        "actor": who.name,
        "at": asked.at,
    }
    ordinal = digest(
        who.name, asked.role, asked.task_id, json.dumps(changes), asked.at or f"after {version - 1}"
    )
    return write(EventType.STORY_NOTED, asked.story_id, data, ordinal=ordinal, tenant=who.tenant)
