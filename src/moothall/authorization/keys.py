"""The secrets in a server's data directory, and the signing keys that are derived from them."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from moothall.config import GuardSettings
from moothall.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MIN_KEY_CHARS = 32


@dataclass(frozen=True, slots=True)
class Keys:
    """The signing keys of a process. `guard` signs capability tokens; the audit key is derived from
    it. `approvals` is the server's public key, for processes that only check approvals; it is empty
    in the server itself.
    """

    guard: bytes = field(repr=False)
    approvals: bytes = b""

    @property
    def audit(self) -> bytes:
        """The key that signs the heads of audit chains."""
        return hashlib.sha256(b"moothall audit key\0" + self.guard).digest()

    def of_hosts(self) -> Keys:
        """Return the keys of hosts on other machines. They do not reveal these keys: a host can
        neither approve requests nor sign the server's tokens or audit.
        """
        return Keys(
            hashlib.sha256(b"moothall host key\0" + self.guard).digest(),
            approval_key(self.guard).public_key().public_bytes_raw(),
        )


def keys_of(settings: GuardSettings, data_dir: Path) -> Keys:
    """Return the keys of this data directory, derived from the configured secret, or else from one
    in a file that only its owner can read.

    Raises `ConfigurationError` if the secret is too short.
    """
    if settings.key is None:
        return Keys(
            hashlib.sha256(
                b"moothall guard key\0" + ensure_token(data_dir, "guard.key").encode()
            ).digest()
        )
    secret = settings.key.get_secret_value()
    if len(secret) < _MIN_KEY_CHARS:
        raise ConfigurationError(
            f"guard.key has {len(secret)} characters; at least {_MIN_KEY_CHARS} are needed, "
            "at random"
        )
    return Keys(hashlib.sha256(b"moothall guard key\0" + secret.encode()).digest())


def approval_key(guard: bytes) -> Ed25519PrivateKey:
    """Return the key that signs approvals, which is derived from the guard key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(
        hashlib.sha256(b"moothall approval\0" + guard).digest()
    )


def ensure_token(data_dir: Path, name: str = "token") -> str:
    """Return the secret `name` of this data directory. The first run creates it; only its owner can
    read the file.

    Raises `ConfigurationError` if the file is empty, readable by others, or cannot be created.
    """
    path = data_dir / name
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _create_token(path)
        mode = path.stat().st_mode
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the token file {path} cannot be used: {error}") from error
    if mode & 0o077:
        raise ConfigurationError(
            f"the token file {path} can be read by others; run: chmod 600 {path}"
        )
    if not token:
        raise ConfigurationError(
            f"the token file {path} is empty; delete it, and a new one is created"
        )
    return token


def _create_token(path: Path) -> None:
    """Create the complete file atomically. The first of several processes wins."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".token-")  # mode 0600
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(temporary)
    except FileExistsError:
        pass  # another process was first, and its token is used
    finally:
        temporary.unlink()
