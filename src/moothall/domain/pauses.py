"""The pauses of a deliberation, which do not count against its deadline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, takewhile
from typing import Self

from moothall.domain.event import Event, EventType

NEVER = datetime(9999, 12, 30, tzinfo=UTC)
"""The deadline of a paused deliberation. It leaves room for adding a grace period."""
_PARITIES = {EventType.DELIBERATION_PAUSED: 0, EventType.DELIBERATION_RESUMED: 1}


@dataclass(frozen=True, slots=True)
class Pauses:
    """The times of pauses and resumptions, by number; even numbers are pauses. Order and repetition
    of events do not matter.
    """

    moments: Mapping[int, datetime] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        """Read pauses from events; other and malformed events are ignored."""
        pauses = cls()
        for event in events:
            if event.type in _PARITIES:
                pauses = pauses.with_event(event)
        return pauses

    def with_event(self, event: Event) -> Self:
        """Return the pauses with one more event."""
        number = event.data.get("number")
        try:
            time = datetime.fromisoformat(event.time)
        except ValueError:
            return self
        if (
            not isinstance(number, int)
            or number % 2 != _PARITIES[event.type]
            or time.tzinfo is None
        ):
            return self
        return self.with_all(type(self)({number: time}))

    def with_all(self, other: Self) -> Self:
        """Return the union of two sets of pauses; of two times for one number, the earlier
        counts.
        """
        joined = {**self.moments}
        for number, time in other.moments.items():
            joined[number] = min(time, joined.get(number, time))
        return type(self)(joined)

    @property
    def turns(self) -> list[datetime]:
        """The times in order, up to the first missing one."""
        return [self.moments[number] for number in takewhile(self.moments.__contains__, count())]

    @property
    def is_paused(self) -> bool:
        """Whether the deliberation is paused."""
        return len(self.turns) % 2 == 1

    def extend(self, deadline: datetime) -> datetime:
        """Return a deadline extended by all pauses; `NEVER` while paused."""
        turns = self.turns
        if len(turns) % 2:
            return NEVER
        paused_time = sum(
            (
                max(resumed_at - paused_at, timedelta())
                for paused_at, resumed_at in zip(turns[::2], turns[1::2], strict=True)
            ),
            timedelta(),
        )
        return deadline + min(paused_time, max(NEVER - deadline, timedelta()))
