"""Authentication: a bearer token is mapped to a principal before the request is read."""

from __future__ import annotations

import functools
import hmac
import ipaddress
import os
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import grpc
import grpc.aio
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from moothall import config
from moothall.api.protobuf import OPEN_SERVICES, abort, grpc_code
from moothall.authorization.keys import ensure_token
from moothall.domain.codec import describe_errors
from moothall.domain.ids import ID_PATTERN, LOCAL, Principal
from moothall.errors import ConfigurationError, MoothallError, Temporary, Unauthenticated
from moothall.telemetry import metrics

_MIN_TOKEN_CHARS = 16
_caller: ContextVar[Principal | None] = ContextVar("caller", default=None)


def caller() -> Principal:
    """Return the principal of the current call. Raises `LookupError` outside a call, which is a
    bug.
    """
    if (principal := _caller.get()) is None:
        raise LookupError("nobody calls")
    return principal


def is_known() -> bool:
    """Return whether the caller sent a valid token. Only endpoints that are open to anybody need
    this.
    """
    return _caller.get() is not None


def call_as(principal: Principal | None) -> None:
    """Set the principal of the current task; None for an unauthenticated caller."""
    _caller.set(principal)


def check_address(setting: str, url: str) -> None:
    """Raise `ConfigurationError` for a URL without encryption. http:// is allowed on loopback."""
    address = urlsplit(url)
    if not address.hostname or (
        address.scheme != "https"
        and not (address.scheme == "http" and is_loopback(address.hostname))
    ):
        raise ConfigurationError(
            f"{setting} {url[:200]!r} is not an https:// address; http:// is allowed only for this "
            "machine"
        )


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address. No name other than localhost is trusted."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def read_tokens(
    settings: config.GrpcSettings, data_dir: Path, *, has_others: bool = False
) -> Mapping[str, Principal]:
    """Return the principal of each accepted token: those of the token file and the configured one.
    If there are none, on loopback, it is the token created at the first start.

    `has_others`: callers may also have other tokens. Raises `ConfigurationError` if a non-loopback
    address is bound without any token, or if the token file is invalid.
    """
    configured = {} if settings.token is None else {settings.token.get_secret_value(): LOCAL}
    if settings.tokens_file is not None:
        file_tokens = _principals(settings.tokens_file)
        if configured.keys() & file_tokens.keys():
            raise ConfigurationError(
                f"grpc.token is also in the file of tokens {settings.tokens_file}; "
                "remove one of them"
            )
        return {**configured, **file_tokens}
    if configured:
        return configured
    if not is_loopback(settings.host):
        if has_others:
            return {}
        raise ConfigurationError(
            f"grpc.host {settings.host} is not a loopback address: set grpc.token "
            "(MOOTHALL_GRPC__TOKEN), grpc.tokens_file or oidc.audience"
        )
    return {ensure_token(data_dir): LOCAL}


class _TokenEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    token: SecretStr = Field(min_length=_MIN_TOKEN_CHARS)
    name: str = Field(pattern=f"^{ID_PATTERN}$")
    tenant: str = Field(pattern=f"^{ID_PATTERN}$")
    operator: bool = False
    roles: frozenset[Literal["po", "qa", "architect"]] = frozenset()


def is_open(file_stat: os.stat_result, uid: int) -> bool:
    """Return whether users other than `uid` can read a file. The group of a file owned by root, as
    in a Kubernetes Secret, is the pod's own.
    """
    return bool(file_stat.st_mode & (0o037 if file_stat.st_uid == 0 != uid else 0o077))


class _Tokens(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    principals: tuple[_TokenEntry, ...] = Field(min_length=1)


def _principals(path: Path) -> dict[str, Principal]:
    """Return the principals of a token file. Its errors never contain a token."""
    try:
        file_stat = path.stat()
        token_file = _Tokens.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigurationError(
            f"the token file {path} cannot be read: {error.strerror}"
        ) from error
    except ValidationError as error:
        raise ConfigurationError(
            f"the token file {path} is invalid: {describe_errors(error)}"
        ) from None
    except (ValueError, RecursionError):
        raise ConfigurationError(f"the token file {path} is not TOML") from None
    if is_open(file_stat, os.geteuid()):
        raise ConfigurationError(
            f"the token file {path} can be read by others; run: chmod 600 {path} (for a Secret: "
            "defaultMode 0440)"
        )
    principals = {
        item.token.get_secret_value(): Principal(
            item.name, item.tenant, item.operator, frozenset(item.roles)
        )
        for item in token_file.principals
    }
    if len(principals) != len(token_file.principals):
        raise ConfigurationError(f"the token file {path} contains a token twice")
    return principals


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller. `is_valid` returns whether the credentials are still valid, for
    sessions that were opened with them.
    """

    principal: Principal
    is_valid: Callable[[], bool] = lambda: True


class TokenSource(Protocol):
    """Tokens that change while the server runs."""

    async def find(self, token: str) -> Caller | None:
        """Return the caller of a token; None if it is not a token of this source. Raises
        `Unauthenticated`, `Temporary`.
        """


class BearerTokens:
    """The accepted bearer tokens and their callers, for gRPC and HTTP: those of the settings, and
    those of `sources`.
    """

    def __init__(
        self, tokens: Mapping[str, Principal], sources: Sequence[TokenSource] = ()
    ) -> None:
        """Raise `ConfigurationError` if no token could be accepted."""
        if not all(tokens) or not (tokens or sources):
            raise ConfigurationError("the server needs a non-empty token: set grpc.token")
        self._tokens = [(token.encode(), principal) for token, principal in tokens.items()]
        self._sources = sources

    def accept(self, principal: Principal) -> bool:
        """Return whether a token of the settings belongs to this principal."""
        return any(owner == principal for _, owner in self._tokens)

    async def find(self, authorizations: Sequence[str]) -> Caller:
        """Return the caller of a single `Bearer TOKEN` header. Raises `Unauthenticated` for no
        header, several headers or a token that is not accepted, `Temporary` if it cannot be checked
        now.
        """
        scheme, _, token = (authorizations[0] if len(authorizations) == 1 else "").partition(" ")
        if scheme.lower() != "bearer" or not (token := token.strip()):
            raise Unauthenticated(CREDENTIALS_HINT)
        matching_principal = None
        for accepted, principal in self._tokens:  # no early exit, so that timing reveals nothing
            if hmac.compare_digest(accepted, token.encode("utf-8", "surrogateescape")):
                matching_principal = principal
        if matching_principal is not None:
            return Caller(matching_principal)
        for source in self._sources:
            if (caller := await source.find(token)) is not None:
                return caller
        raise Unauthenticated(CREDENTIALS_HINT)


class IdentityInterceptor(grpc.aio.ServerInterceptor):
    """An interceptor that lets calls with a valid token pass and sets their principal. Health and
    reflection need no token.
    """

    def __init__(self, bearers: BearerTokens) -> None:
        self._bearers = bearers

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the call's handler, or one that refuses the call."""
        if handler_call_details.method.startswith(OPEN_SERVICES):
            return await continuation(handler_call_details)
        metadata: Any = handler_call_details.invocation_metadata or ()
        try:
            caller = await self._bearers.find(
                [str(value) for key, value in metadata if key == "authorization"]
            )
        except MoothallError as error:
            # Streaming on both sides, so that the call is refused before the request is read.
            return grpc.stream_stream_rpc_method_handler(functools.partial(_refuse, error))
        # The handler runs in this call's task, and therefore in this context.
        call_as(caller.principal)
        return await continuation(handler_call_details)


CREDENTIALS_HINT = (
    "a valid token is needed: 'authorization: Bearer TOKEN'; on this machine the token is in the "
    "data directory's file 'token'"
)


async def _refuse(error: MoothallError, _request: Any, context: Any) -> None:
    code = grpc_code(error)
    metrics.GRPC_CALLS.add("other", code.name)
    retry_after = error.retry_after if isinstance(error, Temporary) else None
    await abort(context, code, error.code, error.message, retry_after)
