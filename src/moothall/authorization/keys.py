"""What a server signs with: the secrets in its data directory, and the keys that are made of
them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from moothall.authorization.approvals import public_key
from moothall.config import GuardSettings
from moothall.errors import ConfigurationError

_KEY_CHARS = 32


@dataclass(frozen=True, slots=True)
class Keys:
    """What a process signs with. `guard` signs its capability tokens, and from it is made what
    signs its audit. `approvals` is the public key that checks those of the server, for whoever may
    not sign any; empty for the server itself.
    """

    guard: bytes = field(repr=False)
    approvals: bytes = b""

    @property
    def audit(self) -> bytes:
        """Signs the heads of audit chains."""
        return hashlib.sha256(b"moothall audit key\0" + self.guard).digest()

    def of_hosts(self) -> Keys:
        """Return those of hosts on other machines, from which nobody learns these: a host can
        neither approve anything, nor sign the server's tokens or audit.
        """
        return Keys(
            hashlib.sha256(b"moothall host key\0" + self.guard).digest(), public_key(self.guard)
        )


def keys_of(settings: GuardSettings, data_dir: Path) -> Keys:
    """Return the keys of this data directory: made of the configured secret, else of one in a file
    there that only its owner can read.

    Raises `ConfigurationError` for one that can be guessed.
    """
    if settings.key is None:
        return Keys(
            hashlib.sha256(
                b"moothall guard key\0" + ensure_token(data_dir, "guard.key").encode()
            ).digest()
        )
    secret = settings.key.get_secret_value()
    if len(secret) < _KEY_CHARS:
        raise ConfigurationError(
            f"guard.key has {len(secret)} characters; at least {_KEY_CHARS} are needed, at random"
        )
    return Keys(hashlib.sha256(b"moothall guard key\0" + secret.encode()).digest())


def ensure_token(data_dir: Path, name: str = "token") -> str:
    """Return the secret `name` of this data directory, made at the first run; only its owner can
    read the file.

    Raises `ConfigurationError` where the file is empty, readable by others, or cannot be made.
    """
    path = data_dir / name
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make_token(path)
        mode = path.stat().st_mode
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the token file {path} cannot be used: {error}") from error
    if mode & 0o077:
        raise ConfigurationError(
            f"the token file {path} can be read by others; run: chmod 600 {path}"
        )
    if not token:
        raise ConfigurationError(f"the token file {path} is empty; delete it and a new one is made")
    return token


def _make_token(path: Path) -> None:
    """Put a complete file in place, whoever of several processes comes first."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".token-")  # mode 0600
    fresh = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(fresh)
    except FileExistsError:
        pass  # another process was first: its token is the one
    finally:
        fresh.unlink()
