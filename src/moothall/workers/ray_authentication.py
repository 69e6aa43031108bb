"""Check whether a Ray cluster accepts drivers without a token.

Anyone who can start a driver on a cluster runs code as its nodes do and reads the arguments of
actors: the credentials of the bus and the model, and the keys that hosts sign with.
"""

from __future__ import annotations

import os
from enum import StrEnum

import grpc
import grpc.aio

from moothall.config import RaySettings
from moothall.errors import ConfigurationError
from moothall.telemetry import get_logger

log = get_logger(__name__)

_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""A call that Ray answers to every driver. An empty message is a valid request of it."""
_SECONDS = 5.0
HELP = (
    "Start every node with RAY_AUTH_MODE=token and a RAY_AUTH_TOKEN, and give both to this process "
    "(docs/operating.md, A Ray cluster of your own). If only you can reach its ports, set "
    "MOOTHALL_RAY__ALLOW_NO_TOKEN=true instead"
)


class Access(StrEnum):
    """Who may start a driver on a cluster."""

    RESTRICTED = "restricted"
    OPEN = "open"
    UNKNOWN = "unknown"


async def probe_access(address: str) -> tuple[Access, str]:
    """Return who may start a driver on the cluster at HOST:PORT, with a reason for UNKNOWN."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_METHOD)
            await ask(b"", timeout=_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
                return Access.RESTRICTED, ""
            if os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}:
                return Access.RESTRICTED, ""  # a driver needs a certificate, which we did not show
            return Access.UNKNOWN, f"{error.code().name}: {error.details() or 'no reason given'}"
    return Access.OPEN, ""


async def check_access(settings: RaySettings, address: str) -> None:
    """Raise `ConfigurationError` for a cluster without a token, unless `ray.allow_no_token`."""
    access, reason = await probe_access(address)
    if access is Access.RESTRICTED:
        return
    about = describe(access, address, reason)
    if not settings.allow_no_token:
        raise ConfigurationError(
            f"{about}: it would get the credentials of the bus and the model. {HELP}"
        )
    log.warning(
        "the Ray cluster takes drivers without a token (ray.allow_no_token)", address=address
    )


async def explain_refusal(address: str) -> str:
    """Return the next step if a cluster refused us without its token; '' for other reasons."""
    access, _ = await probe_access(address)
    return (
        ". It wants its token: set RAY_AUTH_TOKEN as its nodes have it"
        if access is Access.RESTRICTED
        else ""
    )


def describe(access: Access, address: str, reason: str = "") -> str:
    """Return a clause about the access to a cluster."""
    match access:
        case Access.RESTRICTED:
            return f"the Ray cluster at {address} takes no driver without its token"
        case Access.OPEN:
            return f"the Ray cluster at {address} takes drivers without a token"
    return (
        f"it is not known whether the Ray cluster at {address} takes drivers without a token "
        f"({reason})"
    )
