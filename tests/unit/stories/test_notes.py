"""Notes of a story: recorded once and atomically, at the expected version, by permitted users,
without secrets.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from moothall.domain.event import Event, EventType
from moothall.domain.ids import LOCAL, Principal
from moothall.errors import (
    AlreadyExists,
    ConcurrentUpdate,
    InvalidRequest,
    MoothallError,
    NotFound,
    Refused,
)
from moothall.stories.board import Board
from moothall.stories.notes import NoteChange, Notes, NotesVersion, Update
from moothall.testing.bus import MemoryBus
from support.working import DRAFT

DECIDED = NoteChange("CREATE", "Decision", "format", '{"text": "old format"}', "it is in use")
AT = "2026-01-31T12:00:00Z"


class Lossy(MemoryBus):
    """A bus that records an event and, if `loses` is set, loses the ack."""

    loses = False

    async def create(self, event: Event, after_seq: int = 0) -> int:
        seq = await super().create(event, after_seq)
        if self.loses:
            raise AlreadyExists("it is there")
        return seq


class NoteBoard:
    """A story on the board, and its notes."""

    def __init__(self) -> None:
        self.bus = Lossy()
        self.story_id = ""

    async def on_board(self) -> NoteBoard:
        self.story_id = (await Board(self.bus).create(DRAFT, LOCAL, key="1")).story.id
        return self

    async def note(
        self,
        *changes: NoteChange,
        role: str = "dev",
        at: str = "",
        expected: int | None = None,
        principal: Principal = LOCAL,
    ) -> NotesVersion:
        return await Notes(self.bus).update(
            Update(self.story_id, role, changes, at=at, expected=expected), principal
        )

    async def recorded(self) -> int:
        events = await Board(self.bus).history(self.story_id, LOCAL)
        return sum(event.type is EventType.STORY_NOTED for event in events)


@pytest.fixture
async def note_board() -> NoteBoard:
    return await NoteBoard().on_board()


async def test_notes_are_created_changed_and_deleted(note_board: NoteBoard) -> None:
    first = await note_board.note(DECIDED)
    assert (first.version, first.warnings) == (1, ())
    second = await note_board.note(
        NoteChange("update", "decision", "format", '{"text": "new format"}')
    )
    assert (second.version, second.hash == first.hash) == (2, False)
    back = await note_board.note(
        NoteChange("update", "decision", "format", '{ "text":"old format" }')
    )
    assert (back.version, back.hash) == (3, first.hash), "the same content has the same hash"
    deletion = await note_board.note(
        NoteChange("delete", "decision", "format"), NoteChange("delete", "task", "none")
    )
    assert (deletion.version, deletion.warnings) == (4, ("task none: there is none to delete",))


async def test_a_repeated_request_is_recorded_once(note_board: NoteBoard) -> None:
    first = await note_board.note(DECIDED, at=AT)
    await note_board.note(NoteChange("delete", "decision", "format"))
    late = await note_board.note(DECIDED, at=AT)
    assert (late.version, late.hash == first.hash, "asked before" in late.warnings[0]) == (
        2,
        False,
        True,
    )
    await note_board.note(DECIDED)
    repeated = await note_board.note(DECIDED)
    assert (repeated.version, repeated.warnings, await note_board.recorded()) == (
        3,
        ("all was so already: nothing was changed",),
        3,
    )


async def test_a_lost_ack_does_no_harm(note_board: NoteBoard) -> None:
    note_board.bus.loses = True
    assert ((await note_board.note(DECIDED, expected=0)).version, await note_board.recorded()) == (
        1,
        1,
    )


async def test_one_of_two_writers_with_the_same_version_gets_a_conflict(
    note_board: NoteBoard,
) -> None:
    changes = [replace(DECIDED, entity_id=name) for name in ("one", "two")]
    ends = await asyncio.gather(
        *(note_board.note(change, expected=0) for change in changes), return_exceptions=True
    )
    (conflict,) = (end for end in ends if isinstance(end, ConcurrentUpdate))
    assert "at version 1, and you expected 0" in conflict.message
    unversioned = await asyncio.gather(
        *(note_board.note(replace(DECIDED, entity_id=name)) for name in ("three", "four"))
    )
    assert sorted(noted.version for noted in unversioned) == [2, 3], (
        "without a version both are recorded"
    )


async def test_changes_are_recorded_together_or_not_at_all(note_board: NoteBoard) -> None:
    with pytest.raises(NotFound, match="no milestone m-1 is noted"):
        await note_board.note(DECIDED, NoteChange("update", "milestone", "m-1", '{"text": "x"}'))
    assert await note_board.recorded() == 0
    await note_board.note(DECIDED)
    with pytest.raises(AlreadyExists, match="with another payload"):
        await note_board.note(replace(DECIDED, payload='{"text": "other"}'))


async def test_secrets_are_removed_and_the_removal_is_reported(note_board: NoteBoard) -> None:
    secret = "ghp_" + "a" * 36
    noted = await note_board.note(
        replace(DECIDED, payload=f'{{"text": "use {secret}"}}', reason=f"it is {secret}")
    )
    assert noted.warnings == ("decision format: a secret was removed",)
    (event,) = (
        item
        for item in await Board(note_board.bus).history(note_board.story_id, LOCAL)
        if item.type is EventType.STORY_NOTED
    )
    assert secret not in str(event.data)
    assert "[redacted]" in str(event.data)


@pytest.mark.parametrize(
    ("change", "role", "kind", "message"),
    [
        (
            replace(DECIDED, entity_type="comment"),
            "data",
            Refused,
            "data cannot see comments, so it may not write a comment note",
        ),
        (
            replace(DECIDED, entity_type="story"),
            "dev",
            InvalidRequest,
            "unknown entity_type 'story'; allowed are decision",
        ),
        (
            replace(DECIDED, operation="approve"),
            "dev",
            InvalidRequest,
            "it is one of create, update, delete",
        ),
        (replace(DECIDED, payload="[1]"), "dev", InvalidRequest, "payload must be a JSON object"),
        (
            replace(DECIDED, payload='{"a": "' + "x" * 2000 + '"}'),
            "dev",
            InvalidRequest,
            "at most 2000 characters",
        ),
        (
            replace(DECIDED, payload="[" * 1900),
            "dev",
            InvalidRequest,
            "payload must be a JSON object",
        ),
        (replace(DECIDED, entity_id="a/b"), "dev", InvalidRequest, "entity_id 'a/b' is not an id"),
        (DECIDED, "boss", InvalidRequest, "unknown role"),
        (DECIDED, "", InvalidRequest, "unknown role"),
    ],
)
async def test_invalid_notes_are_refused(
    note_board: NoteBoard,
    change: NoteChange,
    role: str,
    kind: type[MoothallError],
    message: str,
) -> None:
    with pytest.raises(kind, match=message):
        await note_board.note(change, role=role)
    assert await note_board.recorded() == 0


async def test_notes_for_the_product_owner_or_another_tenants_story_are_refused(
    note_board: NoteBoard,
) -> None:
    with pytest.raises(Refused, match="only with the role po"):
        await note_board.note(DECIDED, role="po", principal=Principal("ann", "local"))
    with pytest.raises(NotFound):
        await note_board.note(DECIDED, principal=Principal("eve", "elsewhere"))
    for changes in ((), (DECIDED, DECIDED), (DECIDED,) * 51):
        with pytest.raises(InvalidRequest):
            await note_board.note(*changes)
    with pytest.raises(InvalidRequest, match="timestamp 'today' is not a time"):
        await note_board.note(DECIDED, at="today")
    assert (await note_board.note(DECIDED, role="po")).version == 1


async def test_a_note_changes_no_state_of_a_story(note_board: NoteBoard) -> None:
    card_before = await Board(note_board.bus).card(note_board.story_id, LOCAL)
    await note_board.note(
        replace(DECIDED, payload='{"title": "x", "to_state": "done", "decision": "approved"}')
    )
    card_after = await Board(note_board.bus).card(note_board.story_id, LOCAL)
    assert replace(card_after, seq=card_before.seq) == card_before
