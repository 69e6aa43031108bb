"""Looking after the log: its end, its size, its age."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from moothall.bus.raw import RawStore, StreamState
from moothall.bus.registry import EVENTS, STREAMS
from moothall.domain.event import Recorded
from moothall.domain.topic import Topic
from moothall.errors import InvalidRequest
from moothall.ports import Log


async def sizes(store: RawStore) -> dict[str, StreamState]:
    """Return what each stream holds, by name."""
    return {spec.name: await store.state(spec.name) for spec in STREAMS}


async def tail(log: Log, count: int, topics: Sequence[Topic] = ()) -> tuple[Recorded, ...]:
    """Return the last `count` events about `topics` (the whole log by default). Go on with `follow` after the last seq."""
    if count < 1:
        return ()
    last: deque[Recorded] = deque(maxlen=count)
    async for recorded in log.replay(topics):
        last.append(recorded)
    return tuple(last)


async def prune(store: RawStore, *, before_seq: int | None = None, keep: int | None = None, stream: str = EVENTS.name) -> int:
    """Drop the oldest records: those under `before_seq`, or all but the last `keep`. Returns how many went.

    What projections have not taken in yet is gone for them: prune only what all have read. Raises `InvalidRequest`.
    """
    if (before_seq is None) == (keep is None):
        raise InvalidRequest("prune needs either before_seq or keep")
    if before_seq is None:
        if keep is None or keep < 0:
            raise InvalidRequest(f"keep {keep} is not 0 or more")
        before_seq = await _seq_of_last(store, stream, keep)
    state = await store.state(stream)
    if not 1 <= before_seq <= state.last_seq + 1:
        raise InvalidRequest(f"before_seq {before_seq} is not between 1 and {state.last_seq + 1}, the log's end")
    return await store.purge(stream, before_seq)


async def _seq_of_last(store: RawStore, stream: str, keep: int) -> int:
    """Return the seq of the record from which on there are `keep`."""
    state = await store.state(stream)
    if keep == 0:
        return state.last_seq + 1
    # Seqs have gaps, so the record that far from the end may be further back than its number says.
    kept: deque[int] = deque(maxlen=keep)
    async for raw in store.raw(stream):
        kept.append(raw.seq)
    return kept[0] if kept else state.last_seq + 1
