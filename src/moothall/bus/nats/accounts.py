"""Who may do what on a bus of one's own: an operator, the house's account, and a user for each link, minted by a host.

Tokens are NATS's own JWTs. The key with which hosts mint is one of the account's signing keys with a scope: whatever a host writes into
a token that it signs, the server allows its user the two subjects of the link that the user is named after, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nkeys

from moothall.bus import registry
from moothall.domain.topic import Channel
from moothall.errors import ConfigurationError

_FREE = {"subs": -1, "data": -1, "payload": -1}
_ACCOUNT = {"imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1}
_ACCOUNT |= {"streams": -1, "consumer": -1, "max_ack_pending": -1, **_FREE}
_CREDENTIALS = """-----BEGIN NATS USER JWT-----
{token}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""


def make(folder: Path) -> dict[str, Path]:
    """Make an operator with the house's account; write what the servers, the services and the hosts each need of it.

    Returns the files by their name: `accounts.conf` (include it in the servers' configuration), `services.creds` (`bus.credentials_file`),
    `links.json` (`jobs.link_keys_file`), all 0600. The operator's own key is not kept: to change something, make all anew.
    Raises `ConfigurationError` where one of them is there already or cannot be written.
    """
    operator, system, account = _key(nkeys.PREFIX_BYTE_OPERATOR), _key(nkeys.PREFIX_BYTE_ACCOUNT), _key(nkeys.PREFIX_BYTE_ACCOUNT)
    hosts, services = _key(nkeys.PREFIX_BYTE_ACCOUNT), _key(nkeys.PREFIX_BYTE_USER)
    link = registry.literal(Channel.LINK.of("x")).removesuffix("x") + "{{name()}}"
    scope = {
        "kind": "user_scope",
        "key": _public(hosts),
        "role": "links",
        "template": {"pub": {"allow": [f"{link}-out"]}, "sub": {"allow": [f"{link}-in"]}, **_FREE},
    }
    own = _token(operator, _public(operator), "moothall", {"type": "operator", "system_account": _public(system)})
    systems = _token(
        operator, _public(system), "system", {"type": "account", "limits": {**_ACCOUNT, "disk_storage": 0, "mem_storage": 0}}
    )
    house = {"type": "account", "limits": _ACCOUNT, "signing_keys": [scope]}
    houses = _token(operator, _public(account), "house", house)
    user = _token(account, _public(services), "services", {"type": "user", **_FREE})
    preload = f"{_public(system)}: {systems}\n  {_public(account)}: {houses}"
    texts = {
        "accounts.conf": f"operator: {own}\nresolver: MEMORY\nresolver_preload: {{\n  {preload}\n}}\n",
        "services.creds": _CREDENTIALS.format(token=user, seed=services.seed.decode()),
        "links.json": json.dumps({"account": _public(account), "seed": hosts.seed.decode()}),
    }
    files = {name: folder / name for name in texts}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, path in files.items():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(texts[name])
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}; name a folder that holds no keys yet") from error
    return files


def mint(keys: str, name: str, seconds: int) -> str:
    """Return credentials for the link of that name, good for so many seconds. `keys`: what `links.json` holds.

    Raises `ConfigurationError` where it does not.
    """
    signer, account = _read(keys)
    user = _key(nkeys.PREFIX_BYTE_USER)
    claims = {"type": "user", "issuer_account": account}
    token = _token(signer, _public(user), name, claims, until=int(time.time()) + seconds)
    return _CREDENTIALS.format(token=token, seed=user.seed.decode())


def account_of(keys: str) -> str:
    """Return the account of which `keys` are. Raises `ConfigurationError`."""
    return _read(keys)[1]


def _read(keys: str) -> tuple[Any, str]:
    try:
        said = json.loads(keys)
        return nkeys.from_seed(bytearray(said["seed"].encode())), str(said["account"])
    except (ValueError, KeyError, TypeError, AttributeError, nkeys.NkeysError) as error:
        raise ConfigurationError("jobs.link_keys is not what `moothall bus keys` wrote into links.json") from error


def _key(kind: int) -> Any:
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), kind)))


def _public(key: Any) -> str:
    public: bytes = key.public_key
    return public.decode()


def _token(signer: Any, subject: str, name: str, claims: Mapping[str, Any], until: int | None = None) -> str:
    body = {"iat": int(time.time()), "iss": _public(signer), "name": name, "sub": subject, "nats": {**claims, "version": 2}}
    if until is not None:
        body["exp"] = until
    body["jti"] = base64.b32encode(hashlib.sha256(_json(body)).digest()).decode().rstrip("=")
    said = f"{_base64(_json({'typ': 'JWT', 'alg': 'ed25519-nkey'}))}.{_base64(_json(body))}"
    return f"{said}.{_base64(signer.sign(said.encode()))}"


def _json(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
