"""What becomes of a delivered message: the same rules for every bus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from moothall.config import BusSettings
from moothall.domain.event import Recorded
from moothall.errors import Permanent, Superseded, Temporary
from moothall.ports import Handler

LONGEST_DELAY = 60.0


@dataclass(frozen=True, slots=True)
class Ack:
    """Done."""


@dataclass(frozen=True, slots=True)
class Nak:
    """Again, after `delay` seconds."""

    delay: float
    reason: str


@dataclass(frozen=True, slots=True)
class Bury:
    """Never: to the dead letters."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """No answer: another has it."""


Verdict = Ack | Nak | Bury | Leave


def delay_of(settings: BusSettings, deliveries: int, asked: float | None) -> float:
    """Return the seconds before the next delivery: what the error asked for, else doubling, never
    over a minute.
    """
    grown = settings.retry_seconds * 2.0 ** min(deliveries - 1, 16)
    return min(asked if asked is not None else grown, LONGEST_DELAY)


async def judge(
    settings: BusSettings,
    handler: Handler,
    unpack: Callable[[], Awaitable[Sequence[Recorded | Permanent]]],
    *,
    deliveries: int,
) -> Verdict:
    """Decode, handle and say what becomes of the message. A bug in the handler is not caught.

    `unpack` returns the message's events, and in place of each that cannot be had what is wrong
    with it. Each event is handled though another of its message cannot be; then the message is
    buried, for the first of them.

    The bound on deliveries is kept here and not in the bus, which would stop delivering without a
    word.
    """
    if deliveries > settings.max_deliver:
        return Bury(
            "UNANSWERED", f"delivered {settings.max_deliver} times, and nobody lived to answer"
        )
    try:
        wrong: list[Permanent] = []
        for recorded in await unpack():
            if isinstance(recorded, Permanent):
                wrong.append(recorded)
                continue
            try:
                await handler(recorded)
            except Superseded:
                raise
            except Permanent as error:
                wrong.append(error)
    except Superseded:
        return Leave()
    except Temporary as error:
        if deliveries >= settings.max_deliver:
            return Bury(error.code, f"still failing at delivery {deliveries}: {error.message}")
        return Nak(delay_of(settings, deliveries, error.retry_after), error.message)
    except Permanent as error:
        return Bury(error.code, error.message)
    return Bury(wrong[0].code, wrong[0].message) if wrong else Ack()
