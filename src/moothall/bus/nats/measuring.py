"""How far behind the bus's readers are, and what its streams hold. Asked of the server, when somebody wants to know."""

from __future__ import annotations

import nats.errors

from moothall.bus.nats.heeding import heeding
from moothall.bus.nats.stored import Stored
from moothall.bus.registry import DURABLES, STREAMS
from moothall.telemetry import metrics


async def measure(stored: Stored) -> None:
    """Set the bus's figures. A bus that does not answer leaves them as they were."""
    try:
        for spec in STREAMS:
            info = await heeding(stored.js.stream_info(spec.name))
            metrics.BUS_STORED_BYTES.set(info.state.bytes, spec.name)
            if not info.state.consumer_count:
                continue
            for consumer in await heeding(stored.js.consumers_info(spec.name)):
                if consumer.name in DURABLES:  # a reader's passing consumer is no label
                    metrics.BUS_LAG.set(consumer.num_pending or 0, consumer.name)
                    metrics.BUS_UNACKED.set(consumer.num_ack_pending or 0, consumer.name)
    except (nats.errors.Error, TimeoutError, OSError):
        return
