"""An operator's word on one parked request: signed, for that request alone, good once and not for
long.

Signed with a private key (Ed25519) and checked with the public one, so that a host elsewhere can
check and not sign.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from moothall.errors import Refused

if TYPE_CHECKING:  # a tenth of a second, which only approvals need
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

TYPE = "moothall-approval+jwt"
_ALGORITHM = "EdDSA"


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


def public_key(key: bytes) -> bytes:
    """Return what checks the approvals that are signed with what is made from `key`; 32 bytes."""
    return bytes(_private(key).public_key().public_bytes_raw())


def _private(key: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(
        hashlib.sha256(b"moothall approval\0" + key).digest()
    )


class Approvals:
    """Signs and checks with the root key, or, of another's, checks with the `public` one alone.
    `seconds` is how long an approval is good for.
    """

    def __init__(
        self,
        key: bytes,
        seconds: float,
        clock: Callable[[], float] = time.time,
        *,
        public: bytes = b"",
    ) -> None:
        self._key, self._public = key, public
        self._seconds = seconds
        self._clock = clock

    def sign(self, subject: Subject, approver: str) -> str:
        """Return the grant. Raises `Refused` where only the public key is here."""
        import jwt

        if self._public:
            raise Refused("approvals are given where the server is, not by a host")

        now = self._clock()
        claims = {
            "sub": approver,
            "iat": int(now),
            "exp": int(now + self._seconds),
            "jti": secrets.token_hex(12),
            **asdict(subject),
        }
        return jwt.encode(claims, _private(self._key), algorithm=_ALGORITHM, headers={"typ": TYPE})

    def check(self, grant: str, subject: Subject) -> Approval:
        """Return who approved. Raises `Refused` where the grant is forged, expired, or over
        something else.
        """
        import jwt

        try:
            if jwt.get_unverified_header(grant).get("typ") != TYPE:
                raise Refused("the approval has the wrong type")
            claims = jwt.decode(
                grant,
                self._public_key(),
                algorithms=[_ALGORITHM],
                options={
                    "require": ["sub", "iat", "exp", "jti"],
                    "verify_exp": False,
                    "verify_iat": False,
                },
            )
        except (jwt.InvalidTokenError, ValueError, TypeError, RecursionError) as error:
            raise Refused(f"the approval is refused: {str(error)[:200]}") from error
        if any(claims.get(name) != value for name, value in asdict(subject).items()):
            raise Refused("the approval is over another request")
        if claims["exp"] <= self._clock():
            raise ExpiredApproval("the approval is expired")
        return Approval(str(claims["jti"]), str(claims["sub"]))

    def _public_key(self) -> Ed25519PublicKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        return (
            Ed25519PublicKey.from_public_bytes(self._public)
            if self._public
            else _private(self._key).public_key()
        )
