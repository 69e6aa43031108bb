"""Who calls: a bearer token becomes a principal before anything of the request is read."""

from __future__ import annotations

import hmac
import ipaddress
import os
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import grpc
import grpc.aio
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from moothall import config
from moothall.api.status import OPEN_SERVICES, abort
from moothall.authorization.keys import ensure_token
from moothall.domain.codec import wrong
from moothall.domain.identity import LOCAL, Principal
from moothall.domain.ids import ID_PATTERN
from moothall.errors import ConfigurationError
from moothall.telemetry import metrics

_SHORTEST = 16
_caller: ContextVar[Principal | None] = ContextVar("caller", default=None)


def caller() -> Principal:
    """Return the principal of the call that is being answered; a `LookupError` elsewhere is a
    bug.
    """
    if (found := _caller.get()) is None:
        raise LookupError("nobody calls")
    return found


def is_known() -> bool:
    """Whether who calls gave a token; only a door that is open to anybody has to ask."""
    return _caller.get() is not None


def call_as(principal: Principal | None) -> None:
    """Let what runs in this task be done for `principal`; None: a stranger."""
    _caller.set(principal)


def check_address(what: str, url: str) -> None:
    """Raise `ConfigurationError` for an address over which others could read along; http:// is for
    this machine alone.
    """
    at = urlsplit(url)
    if not at.hostname or (
        at.scheme != "https" and not (at.scheme == "http" and is_loopback(at.hostname))
    ):
        raise ConfigurationError(
            f"{what} {url[:200]!r} is no https:// address; http:// is for this machine alone"
        )


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine alone. A name other than localhost is not trusted to be."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def read_tokens(settings: config.GrpcSettings, data_dir: Path) -> Mapping[str, Principal]:
    """Return who each accepted token stands for: those of the file and the configured one, else on
    loopback the first-run one.

    Raises `ConfigurationError` where anything but loopback is bound without a configured token, and
    where the
    file of tokens is wrong.
    """
    known = {} if settings.token is None else {settings.token.get_secret_value(): LOCAL}
    if settings.tokens_file is not None:
        named = _principals(settings.tokens_file)
        if known.keys() & named.keys():
            raise ConfigurationError(
                f"grpc.token is in the file of tokens {settings.tokens_file} too: whom does it "
                "stand for?"
            )
        return {**known, **named}
    if known:
        return known
    if not is_loopback(settings.host):
        raise ConfigurationError(
            f"grpc.host {settings.host} is no loopback address: set grpc.token "
            "(MOOTHALL_GRPC__TOKEN) or grpc.tokens_file"
        )
    return {ensure_token(data_dir): LOCAL}


class _Named(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    token: SecretStr = Field(min_length=_SHORTEST)
    name: str = Field(pattern=f"^{ID_PATTERN}$")
    tenant: str = Field(pattern=f"^{ID_PATTERN}$")
    operator: bool = False
    roles: frozenset[Literal["po", "qa", "architect"]] = frozenset()


def is_open(about: os.stat_result, uid: int) -> bool:
    """Whether others than `uid` may read a file. Of root's, as Kubernetes mounts a Secret, the
    group is the pod's own.
    """
    return bool(about.st_mode & (0o037 if about.st_uid == 0 != uid else 0o077))


class _Tokens(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    principals: tuple[_Named, ...] = Field(min_length=1)


def _principals(path: Path) -> dict[str, Principal]:
    """Return the principals of a file of tokens. No error of it shows a token."""
    try:
        about = path.stat()
        found = _Tokens.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigurationError(
            f"the file of tokens {path} cannot be read: {error.strerror}"
        ) from error
    except ValidationError as error:
        raise ConfigurationError(f"the file of tokens {path} is wrong: {wrong(error)}") from None
    except (ValueError, RecursionError):
        raise ConfigurationError(f"the file of tokens {path} is not TOML") from None
    if is_open(about, os.geteuid()):
        raise ConfigurationError(
            f"the file of tokens {path} can be read by others; run: chmod 600 {path} (of a Secret: "
            "defaultMode 0440)"
        )
    named = {
        item.token.get_secret_value(): Principal(
            item.name, item.tenant, item.operator, frozenset(item.roles)
        )
        for item in found.principals
    }
    if len(named) != len(found.principals):
        raise ConfigurationError(
            f"the file of tokens {path} has a token twice: whom does it stand for?"
        )
    return named


class BearerTokens:
    """The accepted tokens, and whom each stands for: the one look-up of every door."""

    def __init__(self, tokens: Mapping[str, Principal]) -> None:
        self._tokens = [(token.encode(), principal) for token, principal in tokens.items()]

    def find(self, authorizations: Sequence[str]) -> Principal | None:
        """Return whose the one `Bearer TOKEN` is; None for no header, several, or a token that
        nobody has.
        """
        if len(authorizations) != 1:
            return None
        scheme, _, token = authorizations[0].partition(" ")
        if scheme.lower() != "bearer":
            return None
        found = None
        for known, principal in self._tokens:  # all of them, so that time says nothing
            if hmac.compare_digest(known, token.strip().encode("utf-8", "surrogateescape")):
                found = principal
        return found


class IdentityInterceptor(grpc.aio.ServerInterceptor):
    """Lets calls with a known token through, as their principal. Health and reflection are open to
    all.
    """

    def __init__(self, tokens: Mapping[str, Principal]) -> None:
        self._bearers = BearerTokens(tokens)

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the call's handler, or one that refuses it."""
        if handler_call_details.method.startswith(OPEN_SERVICES):
            return await continuation(handler_call_details)
        metadata: Any = handler_call_details.invocation_metadata or ()
        principal = self._bearers.find(
            [str(value) for key, value in metadata if key == "authorization"]
        )
        if principal is None:
            # A stream on both sides: it is refused before any of the request is read.
            return grpc.stream_stream_rpc_method_handler(_refuse)
        # The handler runs in this call's own task, and so in this context.
        call_as(principal)
        return await continuation(handler_call_details)


WHO_ASKS = (
    "a valid token is needed: 'authorization: Bearer TOKEN'; on this machine the token is in the "
    "data directory's file 'token'"
)


async def _refuse(_request: Any, context: Any) -> None:
    metrics.GRPC_CALLS.add("other", grpc.StatusCode.UNAUTHENTICATED.name)
    await abort(
        context,
        grpc.StatusCode.UNAUTHENTICATED,
        "UNAUTHENTICATED",
        WHO_ASKS,
    )
