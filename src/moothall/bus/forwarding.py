"""Story events that programs outside publish on another subject than the one that readers look at: they are stored there too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from moothall.bus import registry
from moothall.bus.packing import Packer
from moothall.bus.raw import NO_HEADERS
from moothall.domain.event import Event
from moothall.errors import InvalidRequest, Permanent


class Put(Protocol):
    """`RawStore.put_raw`."""

    async def __call__(self, subject: str, data: bytes, headers: Mapping[str, str] = NO_HEADERS, *, message_id: str = "") -> int:
        """Store and return the seq; a repeated `message_id` returns the seq of the first."""
        ...


def heed_subject(found: Sequence[Event | Permanent], subject: str) -> list[Event | Permanent]:
    """Return what a message of the log holds; an event off its subject becomes an `InvalidRequest`: see `registry.fits`."""
    return [
        _off_subject(each, subject) if isinstance(each, Event) and not registry.fits(each, subject) else each for each in found
    ]


async def forward(
    found: Sequence[Event | Permanent], subject: str, seq: int, packer: Packer, put: Put
) -> list[Event | Permanent]:
    """Return what the message `seq` of the log holds for a consumer. A story event on `agile.events`, or on the subject of its bare
    story id, is stored on its own subject and left out: it comes from there. Any other event off its subject becomes an `InvalidRequest`.
    """
    kept: list[Event | Permanent] = []
    for place, each in enumerate(found):
        if not isinstance(each, Event) or registry.fits(each, subject):
            kept.append(each)
        elif registry.is_forwarded(each, subject):
            # An id of its own: the bus may know the event's from the message that it came in.
            await put(registry.subject_of(each), await packer.pack(each), message_id=f"forwarded:{seq}:{place}")
        else:
            kept.append(_off_subject(each, subject))
    return kept


def _off_subject(event: Event, subject: str) -> InvalidRequest:
    try:
        return InvalidRequest(f"{event.type} does not travel on {subject}; its subject is {registry.subject_of(event)}")
    except InvalidRequest as error:
        return error
