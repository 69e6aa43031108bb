"""An operator's word on one parked request: signed, for that request alone, good once and not for long."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from moothall.errors import Refused

TYPE = "moothall-approval+jwt"
_ALGORITHM = "HS256"


class ExpiredApproval(Refused):
    """It was good once."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What an approval is over."""

    tenant: str
    workspace: str
    request_id: str
    tool: str
    arguments_digest: str


@dataclass(frozen=True, slots=True)
class Approval:
    """A grant that was checked. `id` is spent when it is used."""

    id: str
    approver: str


class Approvals:
    """Signs and checks. `seconds` is how long an approval is good for."""

    def __init__(self, key: bytes, seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._key = hmac.new(key, b"moothall approval", hashlib.sha256).digest()
        self._seconds = seconds
        self._clock = clock

    def sign(self, subject: Subject, approver: str) -> str:
        """Return the grant."""
        import jwt

        now = self._clock()
        claims = {
            "sub": approver,
            "iat": int(now),
            "exp": int(now + self._seconds),
            "jti": secrets.token_hex(12),
            "tenant": subject.tenant,
            "workspace": subject.workspace,
            "request_id": subject.request_id,
            "tool": subject.tool,
            "arguments_digest": subject.arguments_digest,
        }
        return jwt.encode(claims, self._key, algorithm=_ALGORITHM, headers={"typ": TYPE})

    def check(self, grant: str, subject: Subject) -> Approval:
        """Return who approved. Raises `Refused` where the grant is forged, expired, or over something else."""
        import jwt

        try:
            if jwt.get_unverified_header(grant).get("typ") != TYPE:
                raise Refused("the approval has the wrong type")
            claims = jwt.decode(
                grant,
                self._key,
                algorithms=[_ALGORITHM],
                options={"require": ["sub", "iat", "exp", "jti"], "verify_exp": False, "verify_iat": False},
            )
        except (jwt.InvalidTokenError, ValueError, TypeError, RecursionError) as error:
            raise Refused(f"the approval is refused: {str(error)[:200]}") from error
        over = tuple(claims.get(name) for name in ("tenant", "workspace", "request_id", "tool", "arguments_digest"))
        if over != (subject.tenant, subject.workspace, subject.request_id, subject.tool, subject.arguments_digest):
            raise Refused("the approval is over another request")
        if claims["exp"] <= self._clock():
            raise ExpiredApproval("the approval is expired")
        return Approval(str(claims["jti"]), str(claims["sub"]))
