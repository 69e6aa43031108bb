"""Dead letters: messages that failed for good, stored with the reason for inspection and replay."""

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
_MAX_REASON_CHARS = 2000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that failed for good: its origin, the reason, and its unchanged bytes."""

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
    """The stream, subject and consumer of a message that failed for good."""

    stream: str
    consumer: str
    subject: str
    seq: int
    deliveries: int


async def bury(store: RawStore, origin: LetterOrigin, data: bytes, verdict: Bury) -> None:
    """Store the dead letter of a message, once. Its body is the message's bytes, unchanged."""
    headers = {
        "Moothall-Subject": origin.subject,
        "Moothall-Stream": origin.stream,
        "Moothall-Consumer": origin.consumer,
        "Moothall-Seq": str(origin.seq),
        "Moothall-Deliveries": str(origin.deliveries),
        "Moothall-Code": verdict.code,
        "Moothall-Reason": json.dumps(
            verdict.reason[:_MAX_REASON_CHARS]
        ),  # one line of ASCII, as headers must be
    }
    message_id = f"dead:{origin.stream}:{origin.seq}:{origin.consumer}"
    await store.put_raw(f"{PREFIX}{origin.subject}", data, headers, message_id=message_id)


def _parse_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


def _parse_reason(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def _parse_letter(raw: Raw) -> DeadLetter:
    headers = raw.headers
    return DeadLetter(
        seq=raw.seq,
        subject=headers.get("Moothall-Subject", raw.subject.removeprefix(PREFIX)),
        stream=headers.get("Moothall-Stream", ""),
        consumer=headers.get("Moothall-Consumer", ""),
        original_seq=_parse_number(headers.get("Moothall-Seq", "")),
        deliveries=_parse_number(headers.get("Moothall-Deliveries", "")),
        code=headers.get("Moothall-Code", ""),
        reason=_parse_reason(headers.get("Moothall-Reason", '""')),
        time=raw.time,
        data=raw.data,
    )


async def letters(store: RawStore) -> AsyncIterator[DeadLetter]:
    """Yield all dead letters, oldest first."""
    async for raw in store.raw(DEAD.name):
        yield _parse_letter(raw)


async def replay(store: RawStore, seq: int) -> int:
    """Send the message of a dead letter again on its own subject, and delete the letter. Returns
    the new seq.

    The message gets a new id on the bus, which would otherwise treat it as a repeat. The event in
    it keeps its own id, by which readers recognise it. Raises `NotFound`.
    """
    async for raw in store.raw(DEAD.name, after_seq=seq - 1):
        if raw.seq != seq:
            break
        letter = _parse_letter(raw)
        new_seq = await store.put_raw(
            letter.subject, letter.data, message_id=f"replay:{seq}:{raw.time.isoformat()}"
        )
        await store.delete_raw(DEAD.name, seq)
        return new_seq
    raise NotFound(f"there is no dead letter {seq}")
