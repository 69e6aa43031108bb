"""The bus of the server. Only this file, `events/nats` and the makers of NATS credentials
(`cli/bus.py`, `app/jobs.py`) name NATS.

Another bus is a package beside `nats` that implements `ports.Bus` and `events.raw_store.RawStore`
(`testing/bus_contract.py` is the suite), exported here under the same names.
"""

from moothall.events.nats import pruning
from moothall.events.nats.asyncapi import asyncapi
from moothall.events.nats.core_messages import open_carrying
from moothall.events.nats.jetstream import JetStreamBus as Bus
from moothall.events.nats.jetstream import open_bus
from moothall.events.nats.server import embedded_server

__all__ = ["Bus", "asyncapi", "embedded_server", "open_bus", "open_carrying", "pruning"]
