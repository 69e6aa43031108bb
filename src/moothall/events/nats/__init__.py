"""NATS JetStream behind the ports of `moothall.ports`: the only package that knows the client, its
subject prefixes and its headers.
"""

from __future__ import annotations

import importlib
import sys


def _import_nats() -> None:
    """Import the client without aiohttp, which it needs only for websockets. Those are not
    supported here, and the import would take half of the start-up time.
    """
    if "aiohttp" in sys.modules or "nats" in sys.modules:
        return
    sys.modules["aiohttp"] = None  # type: ignore[assignment]  # Python's marker for a failed import
    try:
        importlib.import_module("nats.aio.transport")
    finally:
        del sys.modules["aiohttp"]


_import_nats()
