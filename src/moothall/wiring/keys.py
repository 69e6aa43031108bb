"""The key that signs capability tokens."""

from __future__ import annotations

import hashlib

from moothall.config import Settings
from moothall.errors import ConfigurationError
from moothall.services.identity import ensure_token

_SHORTEST = 32


def guard_key(settings: Settings) -> bytes:
    """Return the configured key, else one made from the secret of this data directory, which only its owner can read.

    Raises `ConfigurationError` for one that can be guessed.
    """
    given = settings.guard.key
    if given is None:
        return hashlib.sha256(b"moothall guard key\0" + ensure_token(settings.data_dir, "guard.key").encode()).digest()
    secret = given.get_secret_value()
    if len(secret) < _SHORTEST:
        raise ConfigurationError(f"guard.key has {len(secret)} characters; at least {_SHORTEST} are needed, at random")
    return hashlib.sha256(b"moothall guard key\0" + secret.encode()).digest()
