"""Forward story events that other programs publish to the subjects that readers follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from moothall.domain.event import Event
from moothall.errors import InvalidRequest, Permanent
from moothall.events import registry
from moothall.events.envelope import EnvelopeCodec
from moothall.events.raw_store import NO_HEADERS


class Put(Protocol):
    """`RawStore.put_raw`."""

    async def __call__(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        message_id: str = "",
    ) -> int:
        """Store and return the seq; a repeated `message_id` returns the seq of the first."""
        ...


def heed_subject(found: Sequence[Event | Permanent], subject: str) -> list[Event | Permanent]:
    """Return a log message's events, with an `InvalidRequest` for each on a subject not its own."""
    return [
        _off_subject(each, subject)
        if isinstance(each, Event) and not _is_home(each, subject, len(found))
        else each
        for each in found
    ]


async def forward(
    found: Sequence[Event | Permanent], subject: str, seq: int, packer: EnvelopeCodec, put: Put
) -> list[Event | Permanent]:
    """Return the events of the log message `seq` for a consumer.

    A story event on `agile.events`, on the subject of its bare story id, or among others in one
    message is stored on its own subject as a message of its own and left out here: the consumer
    gets it from there. Any other event on a subject that is not its own becomes an
    `InvalidRequest`.
    """
    kept: list[Event | Permanent] = []
    for place, each in enumerate(found):
        if not isinstance(each, Event) or _is_home(each, subject, len(found)):
            kept.append(each)
        elif registry.is_understood(each, subject):
            # An id of its own: the bus may know the event's from the message that it came in.
            await put(
                registry.subject_of(each),
                await packer.pack(each),
                message_id=f"forwarded:{seq}:{place}",
            )
        else:
            kept.append(_off_subject(each, subject))
    return kept


def _is_home(event: Event, subject: str, together: int) -> bool:
    """Whether readers find an event in such a message: see `registry.fits`.

    An event of a story needs a message of its own, since watchers of stories resume after a seq.
    """
    return registry.fits(event, subject) and (together == 1 or not registry.is_of_story(event))


def _off_subject(event: Event, subject: str) -> InvalidRequest:
    try:
        return InvalidRequest(
            f"{event.type} does not travel on {subject}; its subject is "
            f"{registry.subject_of(event)}"
        )
    except InvalidRequest as error:
        return error
