"""Dead letters: what could not be handled, kept with the reason, to be looked at and sent again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from moothall.bus.delivery import Bury
from moothall.bus.raw import Raw, RawStore
from moothall.bus.registry import DEAD
from moothall.errors import NotFound

PREFIX = "dead."
MESSAGE_ID = "Nats-Msg-Id"
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


def subject_for(subject: str) -> str:
    """Return the subject of a message's dead letter."""
    return f"{PREFIX}{subject}"


def headers_for(*, stream: str, consumer: str, subject: str, seq: int, deliveries: int, why: Bury) -> dict[str, str]:
    """Return the headers of a dead letter. The body stays the message's own bytes, whatever they are."""
    return {
        MESSAGE_ID: f"dead:{stream}:{seq}:{consumer}",
        "Moothall-Subject": subject,
        "Moothall-Stream": stream,
        "Moothall-Consumer": consumer,
        "Moothall-Seq": str(seq),
        "Moothall-Deliveries": str(deliveries),
        "Moothall-Code": why.code,
        "Moothall-Reason": json.dumps(why.reason[:_REASON_CHARS]),  # one line of ASCII, as headers must be
    }


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
    """Send a dead letter's message again, on its own subject, and drop the letter. Returns the new seq.

    The message gets a new id for the bus, which would take it for a repeat; the event in it keeps its
    own, by which readers know it. Raises `NotFound`.
    """
    async for raw in store.raw(DEAD.name, after_seq=seq - 1):
        if raw.seq != seq:
            break
        letter = _read(raw)
        again = await store.put_raw(letter.subject, letter.data, {MESSAGE_ID: f"replay:{seq}:{raw.time.isoformat()}"})
        await store.delete_raw(DEAD.name, seq)
        return again
    raise NotFound(f"there is no dead letter {seq}")
