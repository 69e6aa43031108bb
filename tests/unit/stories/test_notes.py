"""Notes of a story: recorded once, together or not at all, at the version that was seen, by who
may, without secrets.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from moothall.domain.event import Event, EventType
from moothall.domain.identity import LOCAL, Principal
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
    """A bus that records an event and loses the ack, where `loses`."""

    loses = False

    async def create(self, event: Event, after_seq: int = 0) -> int:
        seq = await super().create(event, after_seq)
        if self.loses:
            raise AlreadyExists("it is there")
        return seq


class Received:
    """A story on the board, and its notes."""

    def __init__(self) -> None:
        self.bus = Lossy()
        self.story_id = ""

    async def on_board(self) -> Received:
        self.story_id = (await Board(self.bus).create(DRAFT, LOCAL, key="1")).story.id
        return self

    async def note(
        self,
        *changes: NoteChange,
        role: str = "dev",
        at: str = "",
        expected: int | None = None,
        who: Principal = LOCAL,
    ) -> NotesVersion:
        return await Notes(self.bus).update(
            Update(self.story_id, role, changes, at=at, expected=expected), who
        )

    async def recorded(self) -> int:
        events = await Board(self.bus).history(self.story_id, LOCAL)
        return sum(event.type is EventType.STORY_NOTED for event in events)


@pytest.fixture
async def received() -> Received:
    return await Received().on_board()


async def test_notes_are_created_changed_and_deleted(received: Received) -> None:
    first = await received.note(DECIDED)
    assert (first.version, first.warnings) == (1, ())
    second = await received.note(
        NoteChange("update", "decision", "format", '{"text": "new format"}')
    )
    assert (second.version, second.hash == first.hash) == (2, False)
    back = await received.note(
        NoteChange("update", "decision", "format", '{ "text":"old format" }')
    )
    assert (back.version, back.hash) == (3, first.hash), "the same content has the same hash"
    gone = await received.note(
        NoteChange("delete", "decision", "format"), NoteChange("delete", "task", "none")
    )
    assert (gone.version, gone.warnings) == (4, ("task none: there is none to delete",))


async def test_what_is_asked_twice_is_recorded_once(received: Received) -> None:
    first = await received.note(DECIDED, at=AT)
    await received.note(NoteChange("delete", "decision", "format"))
    late = await received.note(DECIDED, at=AT)
    assert (late.version, late.hash == first.hash, "asked before" in late.warnings[0]) == (
        2,
        False,
        True,
    )
    await received.note(DECIDED)
    again = await received.note(DECIDED)
    assert (again.version, again.warnings, await received.recorded()) == (
        3,
        ("all was so already: nothing was changed",),
        3,
    )


async def test_an_ack_that_was_lost_costs_nothing(received: Received) -> None:
    received.bus.loses = True
    assert ((await received.note(DECIDED, expected=0)).version, await received.recorded()) == (1, 1)


async def test_of_two_at_once_with_one_version_one_is_told_so(received: Received) -> None:
    changes = [replace(DECIDED, entity_id=name) for name in ("one", "two")]
    ends = await asyncio.gather(
        *(received.note(change, expected=0) for change in changes), return_exceptions=True
    )
    (lost,) = (end for end in ends if isinstance(end, ConcurrentUpdate))
    assert "at version 1, and you expected 0" in lost.message
    both = await asyncio.gather(
        *(received.note(replace(DECIDED, entity_id=name)) for name in ("three", "four"))
    )
    assert sorted(noted.version for noted in both) == [2, 3], "without a version both are recorded"


async def test_all_changes_or_none(received: Received) -> None:
    with pytest.raises(NotFound, match="no milestone m-1 is noted"):
        await received.note(DECIDED, NoteChange("update", "milestone", "m-1", '{"text": "x"}'))
    assert await received.recorded() == 0
    await received.note(DECIDED)
    with pytest.raises(AlreadyExists, match="with another payload"):
        await received.note(replace(DECIDED, payload='{"text": "other"}'))


async def test_secrets_are_taken_out_and_it_is_said(received: Received) -> None:
    secret = "ghp_" + "a" * 36
    noted = await received.note(
        replace(DECIDED, payload=f'{{"text": "use {secret}"}}', reason=f"it is {secret}")
    )
    assert noted.warnings == ("decision format: a secret was taken out",)
    (event,) = (
        item
        for item in await Board(received.bus).history(received.story_id, LOCAL)
        if item.type is EventType.STORY_NOTED
    )
    assert secret not in str(event.data)
    assert "[redacted]" in str(event.data)


@pytest.mark.parametrize(
    ("change", "role", "kind", "output_text"),
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
        (replace(DECIDED, payload="[1]"), "dev", InvalidRequest, "payload is a JSON object"),
        (
            replace(DECIDED, payload='{"a": "' + "x" * 2000 + '"}'),
            "dev",
            InvalidRequest,
            "at most 2000 characters",
        ),
        (replace(DECIDED, payload="[" * 1900), "dev", InvalidRequest, "payload is a JSON object"),
        (replace(DECIDED, entity_id="a/b"), "dev", InvalidRequest, "entity_id 'a/b' is not an id"),
        (DECIDED, "boss", InvalidRequest, "unknown role"),
        (DECIDED, "", InvalidRequest, "unknown role"),
    ],
)
async def test_what_may_not_be_noted_is_refused(
    received: Received, change: NoteChange, role: str, kind: type[MoothallError], output_text: str
) -> None:
    with pytest.raises(kind, match=output_text):
        await received.note(change, role=role)
    assert await received.recorded() == 0


async def test_nobody_notes_for_the_product_owner_or_of_anothers_story(received: Received) -> None:
    with pytest.raises(Refused, match="who has the role po"):
        await received.note(DECIDED, role="po", who=Principal("ann", "local"))
    with pytest.raises(NotFound):
        await received.note(DECIDED, who=Principal("eve", "elsewhere"))
    for changes in ((), (DECIDED, DECIDED), (DECIDED,) * 51):
        with pytest.raises(InvalidRequest):
            await received.note(*changes)
    with pytest.raises(InvalidRequest, match="timestamp 'today' is no time"):
        await received.note(DECIDED, at="today")
    assert (await received.note(DECIDED, role="po")).version == 1


async def test_a_note_moves_no_story(received: Received) -> None:
    before = await Board(received.bus).card(received.story_id, LOCAL)
    await received.note(
        replace(DECIDED, payload='{"title": "x", "to_state": "done", "decision": "approved"}')
    )
    after = await Board(received.bus).card(received.story_id, LOCAL)
    assert replace(after, seq=before.seq) == before
