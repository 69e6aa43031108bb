"""Dead letters: what could not be handled, kept with the reason, to be looked at and sent again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from moothall.errors import NotFound
from moothall.events.delivery import Bury
from moothall.events.raw_store import Raw, RawStore
from moothall.events.registry import DEAD

PREFIX = "dead."
_REASON_CHARS = 2000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up: where it was, why, and its bytes as they were."""

    seq: int
    subject: str
    stream: str
    consumer: str
    original_seq: int
    deliveries: int
    code: str
    reason: str
    time: datetime
    data: bytes


@dataclass(frozen=True, slots=True)
class LetterOrigin:
    """Where a message was when it was given up."""

    stream: str
    consumer: str
    subject: str
    seq: int
    deliveries: int


async def bury(store: RawStore, origin: LetterOrigin, data: bytes, why: Bury) -> None:
    """Store the dead letter of a message, once. Its body stays the message's own bytes, whatever
    they are.
    """
    headers = {
        "Moothall-Subject": origin.subject,
        "Moothall-Stream": origin.stream,
        "Moothall-Consumer": origin.consumer,
        "Moothall-Seq": str(origin.seq),
        "Moothall-Deliveries": str(origin.deliveries),
        "Moothall-Code": why.code,
        "Moothall-Reason": json.dumps(
            why.reason[:_REASON_CHARS]
        ),  # one line of ASCII, as headers must be
    }
    message_id = f"dead:{origin.stream}:{origin.seq}:{origin.consumer}"
    await store.put_raw(f"{PREFIX}{origin.subject}", data, headers, message_id=message_id)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


def _reason(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def _read(raw: Raw) -> DeadLetter:
    headers = raw.headers
    return DeadLetter(
        seq=raw.seq,
        subject=headers.get("Moothall-Subject", raw.subject.removeprefix(PREFIX)),
        stream=headers.get("Moothall-Stream", ""),
        consumer=headers.get("Moothall-Consumer", ""),
        original_seq=_number(headers.get("Moothall-Seq", "")),
        deliveries=_number(headers.get("Moothall-Deliveries", "")),
        code=headers.get("Moothall-Code", ""),
        reason=_reason(headers.get("Moothall-Reason", '""')),
        time=raw.time,
        data=raw.data,
    )


async def letters(store: RawStore) -> AsyncIterator[DeadLetter]:
    """Yield all dead letters, oldest first."""
    async for raw in store.raw(DEAD.name):
        yield _read(raw)


async def replay(store: RawStore, seq: int) -> int:
    """Send a dead letter's message again, on its own subject, and drop the letter. Returns the new
    seq.

    The message gets a new id for the bus, which would take it for a repeat; the event in it keeps
    its
    own, by which readers know it. Raises `NotFound`.
    """
    async for raw in store.raw(DEAD.name, after_seq=seq - 1):
        if raw.seq != seq:
            break
        letter = _read(raw)
        again = await store.put_raw(
            letter.subject, letter.data, message_id=f"replay:{seq}:{raw.time.isoformat()}"
        )
        await store.delete_raw(DEAD.name, seq)
        return again
    raise NotFound(f"there is no dead letter {seq}")
