"""NATS JetStream behind the ports of `moothall.ports`: the only room that knows the client, its
subjects' prefixes and headers.
"""

from __future__ import annotations

import importlib
import sys


def _import_nats() -> None:
    """Import the client without the HTTP client that it has for websockets, which we don't offer:
    half of the whole start.
    """
    if "aiohttp" in sys.modules or "nats" in sys.modules:
        return
    sys.modules["aiohttp"] = None  # type: ignore[assignment]  # what Python itself says of a module that cannot be had
    try:
        importlib.import_module("nats.aio.transport")
    finally:
        del sys.modules["aiohttp"]


_import_nats()
