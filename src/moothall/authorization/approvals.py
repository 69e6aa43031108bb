"""An operator's approval of one parked request: signed, valid for that request only, usable once,
and short-lived.

It is signed with a private key (Ed25519) and checked with the public one, so that a remote host can
check approvals and cannot sign them.
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
    """A genuine approval that has expired."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What an approval covers."""

    tenant: str
    workspace: str
    request_id: str
    tool: str
    arguments_digest: str


@dataclass(frozen=True, slots=True)
class Approval:
    """A checked grant. `id` is recorded as spent when the approval is used."""

    id: str
    approver: str


def public_key(key: bytes) -> bytes:
    """Return the public key of approvals that are signed with the key derived from `key`; 32
    bytes.
    """
    return bytes(_private_key(key).public_key().public_bytes_raw())


def _private_key(key: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(
        hashlib.sha256(b"moothall approval\0" + key).digest()
    )


APPROVAL_SECONDS = 900.0
"""How long an operator's approval of a parked request is valid."""


class Approvals:
    """A signer and checker of approvals, with the root key. With `public` set it only checks.
    `seconds` is the lifetime of an approval.
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
        """Return the grant. Raises `Refused` if only the public key is known."""
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
        return jwt.encode(
            claims, _private_key(self._key), algorithm=_ALGORITHM, headers={"typ": TYPE}
        )

    def check(self, grant: str, subject: Subject) -> Approval:
        """Return the approval of a grant. Raises `Refused` if the grant is forged, expired, or
        covers something else.
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
            else _private_key(self._key).public_key()
        )
