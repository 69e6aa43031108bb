"""When a deliberation was paused, and when it went on: the time between is not counted against its
deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, takewhile
from typing import Self

from moothall.domain.event import Event, EventType

NEVER = datetime(9999, 12, 30, tzinfo=UTC)
"""No deadline: what is paused has none. The end of time would leave no room for a grace."""
_TURNS = {EventType.DELIBERATION_PAUSED: 0, EventType.DELIBERATION_RESUMED: 1}


@dataclass(frozen=True, slots=True)
class Pauses:
    """The instants at which it was paused and went on, by number: the even ones paused it. Deaf to
    order and to repetition.
    """

    moments: Mapping[int, datetime] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        """Read them out of events; others, and those that are malformed, are passed over."""
        found = cls()
        for event in events:
            if event.type in _TURNS:
                found = found.with_event(event)
        return found

    def with_event(self, event: Event) -> Self:
        """Return them with one event more."""
        number = event.data.get("number")
        try:
            time = datetime.fromisoformat(event.time)
        except ValueError:
            return self
        if not isinstance(number, int) or number % 2 != _TURNS[event.type] or time.tzinfo is None:
            return self
        return self.with_all(type(self)({number: time}))

    def with_all(self, other: Self) -> Self:
        """Return what both know: what was read before something came may be heard of after it."""
        joined = {**self.moments}
        for number, time in other.moments.items():
            joined[number] = min(time, joined.get(number, time))
        return type(self)(joined)

    @property
    def turns(self) -> list[datetime]:
        """The instants in order, as far as none is missing."""
        return [self.moments[number] for number in takewhile(self.moments.__contains__, count())]

    @property
    def held(self) -> bool:
        """Whether it is paused now."""
        return len(self.turns) % 2 == 1

    def later(self, deadline: datetime) -> datetime:
        """Return a deadline moved by as long as it was paused; `NEVER` while it is."""
        turns = self.turns
        if len(turns) % 2:
            return NEVER
        lost = sum(
            (max(on - off, timedelta()) for off, on in zip(turns[::2], turns[1::2], strict=True)),
            timedelta(),
        )
        return deadline + min(lost, max(NEVER - deadline, timedelta()))
