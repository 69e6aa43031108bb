"""Who comes in on a bus of one's own: an operator, the server's account, a user for each role, and
one for each link, minted by a host.

Tokens are NATS's own JWTs. The key with which hosts mint is one of the account's signing keys with
a scope: whatever a host writes into a token that it signs, the server allows its user the two
subjects of the link that the user is named after, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nkeys

from moothall.domain.topic import Channel
from moothall.errors import ConfigurationError
from moothall.events import registry
from moothall.events.nats.permissions import USERS, claims

_FREE = {"subs": -1, "data": -1, "payload": -1}
_ACCOUNT = {
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
    "mem_storage": -1,
    "disk_storage": -1,
}
_ACCOUNT |= {"streams": -1, "consumer": -1, "max_ack_pending": -1, **_FREE}
_CREDENTIALS = """-----BEGIN NATS USER JWT-----
{token}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""

FILES: Mapping[str, str] = {
    "accounts.conf": "include it in the configuration of each nats-server",
    "services.creds": "bus.credentials_file of whoever does everything",
    **{f"{name}.creds": f"bus.credentials_file of {user.about}" for name, user in USERS.items()},
    "links.json": (
        "jobs.link_keys_file of hosts and tools: each workspace's link gets credentials of its own"
    ),
}
"""What each of the files is for."""


def make(folder: Path, renew: Path | None = None) -> dict[str, Path]:
    """Make an operator with the server's account; write what the servers, the services and the
    hosts
    each need of it.

    Returns the files by their name, which are those of `FILES`, all 0600. With `renew`, an
    `accounts.conf` of before, the account is that one, so that all that is stored stays its own,
    and what was issued for it until now is refused. No other key is kept: the operator's is made
    anew each time. Raises `ConfigurationError` where one of them is there already or cannot be
    written, or `renew` is not what we wrote.
    """
    now = int(time.time())
    system, account = (
        _accounts(renew)
        if renew
        else (_public(_key(nkeys.PREFIX_BYTE_ACCOUNT)), _public(_key(nkeys.PREFIX_BYTE_ACCOUNT)))
    )
    operator, issuer, hosts = (
        _key(nkeys.PREFIX_BYTE_OPERATOR),
        _key(nkeys.PREFIX_BYTE_ACCOUNT),
        _key(nkeys.PREFIX_BYTE_ACCOUNT),
    )
    link = registry.literal(Channel.LINK.of("x")).removesuffix("x") + "{{name()}}"
    scope = {
        "kind": "user_scope",
        "key": _public(hosts),
        "role": "links",
        "template": {"pub": {"allow": [f"{link}-out"]}, "sub": {"allow": [f"{link}-in"]}, **_FREE},
    }
    own = _token(
        operator, _public(operator), "moothall", {"type": "operator", "system_account": system}
    )
    systems = _token(
        operator,
        system,
        "system",
        {"type": "account", "limits": {**_ACCOUNT, "disk_storage": 0, "mem_storage": 0}},
    )
    app = {"type": "account", "limits": _ACCOUNT, "signing_keys": [_public(issuer), scope]}
    if renew:
        app["revocations"] = {
            "*": now - 1
        }  # what is issued in the second that is named is revoked too
    apps = _token(operator, account, "house", app)
    preload = f"{system}: {systems}\n  {account}: {apps}"
    texts = {
        "accounts.conf": (
            f"operator: {own}\nresolver: MEMORY\nresolver_preload: {{\n  {preload}\n}}\n"
        ),
        "services.creds": _credentials(issuer, account, "services", _FREE),
        **{
            f"{name}.creds": _credentials(issuer, account, name, {**_FREE, **claims(name)})
            for name in USERS
        },
        "links.json": json.dumps({"account": account, "seed": hosts.seed.decode()}),
    }
    files = {name: folder / name for name in texts}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, path in files.items():
            with os.fdopen(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
            ) as file:
                file.write(texts[name])
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename}: {error.strerror}; name a folder that holds no keys yet"
        ) from error
    return files


def mint(keys: str, name: str, seconds: int) -> str:
    """Return credentials for the link of that name, good for so many seconds. `keys`: what
    `links.json` holds.

    Raises `ConfigurationError` where it does not.
    """
    signer, account = _read(keys)
    return _credentials(signer, account, name, {}, until=int(time.time()) + seconds)


def _accounts(conf: Path) -> tuple[str, str]:
    """Return the system's account and the server's, of an `accounts.conf`. Raises
    `ConfigurationError`.
    """
    try:
        text = conf.read_text(encoding="utf-8")
        _, body, _ = re.findall(r"^operator: (\S+)$", text, re.MULTILINE)[0].split(".")
        system = json.loads(base64.urlsafe_b64decode(body + "=="))["nats"]["system_account"]
        [app] = {*re.findall(r"^ *(A[A-Z2-7]{55}): ", text, re.MULTILINE)} - {system}
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename}: {error.strerror}; name the accounts.conf that the servers have now"
        ) from error
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"{conf} is not the accounts.conf that `moothall bus keys` wrote"
        ) from error
    return str(system), app


def _credentials(
    signer: Any, account: str, name: str, more: Mapping[str, Any], until: int | None = None
) -> str:
    user = _key(nkeys.PREFIX_BYTE_USER)
    token = _token(
        signer, _public(user), name, {"type": "user", "issuer_account": account, **more}, until
    )
    return _CREDENTIALS.format(token=token, seed=user.seed.decode())


def account_of(keys: str) -> str:
    """Return the account of which `keys` are. Raises `ConfigurationError`."""
    return _read(keys)[1]


def _read(keys: str) -> tuple[Any, str]:
    try:
        said = json.loads(keys)
        return nkeys.from_seed(bytearray(said["seed"].encode())), str(said["account"])
    except (ValueError, KeyError, TypeError, AttributeError, nkeys.NkeysError) as error:
        raise ConfigurationError(
            "jobs.link_keys is not what `moothall bus keys` wrote into links.json"
        ) from error


def _key(kind: int) -> Any:
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), kind)))


def _public(key: Any) -> str:
    public: bytes = key.public_key
    return public.decode()


def _token(
    signer: Any, subject: str, name: str, claims: Mapping[str, Any], until: int | None = None
) -> str:
    body = {
        "iat": int(time.time()),
        "iss": _public(signer),
        "name": name,
        "sub": subject,
        "nats": {**claims, "version": 2},
    }
    if until is not None:
        body["exp"] = until
    body["jti"] = base64.b32encode(hashlib.sha256(_json(body)).digest()).decode().rstrip("=")
    said = f"{_base64(_json({'typ': 'JWT', 'alg': 'ed25519-nkey'}))}.{_base64(_json(body))}"
    return f"{said}.{_base64(signer.sign(said.encode()))}"


def _json(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
