"""The bus that this server uses. Only this file imports `events.nats`.

Another bus would be a package beside `nats` that implements `ports.Bus` and
`events.raw_store.RawStore` (`testing/bus_contract.py` is the test suite), exported here under the
same names.
"""

from moothall.events.nats import accounts, maintenance
from moothall.events.nats.asyncapi import asyncapi
from moothall.events.nats.jetstream import JetStreamBus as Bus
from moothall.events.nats.jetstream import open_bus
from moothall.events.nats.maintenance import Snapshots, open_snapshots, ordered_streams
from moothall.events.nats.requests import open_core_messages
from moothall.events.nats.server import PACKAGE as SERVER_PACKAGE
from moothall.events.nats.server import embedded_server

__all__ = [
    "SERVER_PACKAGE",
    "Bus",
    "Snapshots",
    "accounts",
    "asyncapi",
    "embedded_server",
    "maintenance",
    "open_bus",
    "open_core_messages",
    "open_snapshots",
    "ordered_streams",
]
