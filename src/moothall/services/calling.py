"""Calling the gRPC server of this data directory, as a command does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio

from moothall import config
from moothall.domain.identity import LOCAL
from moothall.errors import ConfigurationError, Permanent, Temporary
from moothall.services.identity import read_tokens

_AGAIN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}


@asynccontextmanager
async def calling(
    settings: config.Grpc, data_dir: Path, port: int
) -> AsyncIterator[tuple[grpc.aio.Channel, tuple[tuple[str, str], ...]]]:
    """Yield a channel to this machine's server and the metadata that says who calls: the operator of this data directory.

    A refusal comes out as `Permanent`, what may pass as `Temporary`. Raises `ConfigurationError` where no token is the operator's.
    """
    tokens = (token for token, principal in read_tokens(settings, data_dir).items() if principal.tenant == LOCAL.tenant)
    token = next(tokens, None)
    if token is None:
        raise ConfigurationError(f"no token of the gRPC server stands for tenant {LOCAL.tenant}: a command cannot call it")
    target = f"127.0.0.1:{port}" if settings.host in {"0.0.0.0", "::", ""} else f"{settings.host}:{port}"  # noqa: S104 - not bound here
    try:
        async with _channel(settings, target) as channel:
            yield channel, (("authorization", f"Bearer {token}"),)
    except grpc.aio.AioRpcError as error:
        kind = Temporary if error.code() in _AGAIN else Permanent
        raise kind(f"the process that serves says: {error.details()}") from error


def _channel(settings: config.Grpc, target: str) -> grpc.aio.Channel:
    if settings.tls_cert is None:
        return grpc.aio.insecure_channel(target)
    try:
        root = settings.tls_cert.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"the certificate {settings.tls_cert} cannot be read: {error.strerror}") from error
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(root))
