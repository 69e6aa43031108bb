"""Forward story events that other programs publish to the subjects that readers follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from moothall.domain.event import Event
from moothall.errors import InvalidRequest, Permanent
from moothall.events import registry
from moothall.events.envelope import EnvelopeCodec
from moothall.events.raw_store import NO_HEADERS


class PutRaw(Protocol):
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


def check_subjects(items: Sequence[Event | Permanent], subject: str) -> list[Event | Permanent]:
    """Return the events of a log message, with an `InvalidRequest` in place of each event that is
    not on its own subject.
    """
    return [
        _wrong_subject_error(item, subject)
        if isinstance(item, Event) and not _is_well_placed(item, subject, len(items))
        else item
        for item in items
    ]


async def forward(
    items: Sequence[Event | Permanent],
    subject: str,
    seq: int,
    packer: EnvelopeCodec,
    put_raw: PutRaw,
) -> list[Event | Permanent]:
    """Return the events of the log message `seq` for a consumer.

    A story event on `agile.events`, on the subject of its bare story id, or together with others in
    one message is stored on its own subject as a separate message and left out here: the consumer
    gets it from there. Any other event that is not on its own subject becomes an `InvalidRequest`.
    """
    accepted: list[Event | Permanent] = []
    for index, item in enumerate(items):
        if not isinstance(item, Event) or _is_well_placed(item, subject, len(items)):
            accepted.append(item)
        elif registry.is_accepted(item, subject):
            # A separate message id: the bus may know the event's id from the original message.
            await put_raw(
                registry.subject_of(item),
                await packer.pack(item),
                message_id=f"forwarded:{seq}:{index}",
            )
        else:
            accepted.append(_wrong_subject_error(item, subject))
    return accepted


def _is_well_placed(event: Event, subject: str, count: int) -> bool:
    """Whether readers find an event in such a message: see `registry.fits`.

    An event of a story needs its own message, since watchers of stories resume after a seq.
    """
    return registry.fits(event, subject) and (count == 1 or not registry.is_of_story(event))


def _wrong_subject_error(event: Event, subject: str) -> InvalidRequest:
    try:
        return InvalidRequest(
            f"{event.type} does not travel on {subject}; its subject is "
            f"{registry.subject_of(event)}"
        )
    except InvalidRequest as error:
        return error
