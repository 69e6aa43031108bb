"""The bus that the server runs on: beside `bus/nats` itself the one file that names it, but for who
makes credentials, which are NATS's own kind.

Another bus is a folder beside `nats` that does what `ports.Bus` and `bus.raw.RawStore` ask
(`testing/bus_contract.py` tries it), and the same names here.
"""

from moothall.events.nats import pruning
from moothall.events.nats.asyncapi import asyncapi
from moothall.events.nats.core_messages import open_carrying
from moothall.events.nats.jetstream import JetStreamBus as Bus
from moothall.events.nats.jetstream import open_bus
from moothall.events.nats.server import embedded_server

__all__ = ["Bus", "asyncapi", "embedded_server", "open_bus", "open_carrying", "pruning"]
