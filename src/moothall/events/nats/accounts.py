"""Accounts of a self-hosted bus: an operator, an account, a user with permissions for each role,
and a user for each link, whose credentials a host creates.

Tokens are NATS JWTs. Hosts sign with a scoped signing key of the account. Whatever a host writes
into such a token, the server allows its user only the two subjects of the link named in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moothall.domain.event import REPOSITORY_SERVICE, Channel
from moothall.domain.ids import ROLES
from moothall.errors import ConfigurationError
from moothall.events import registry
from moothall.events.nats.connection import inbox
from moothall.events.nats.setup import bucket_prefix
from moothall.events.nats.stream_store import BLOB_CHUNKS, BLOB_ENTRIES
from moothall.events.raw_store import PREFIX
from moothall.events.registry import BUCKETS

# Permissions of each role on the bus: what its credentials may publish, subscribe to, consume and
# write.
#
# Read access is not separated: a user that can read one stream can read all of them. Publishing is
# separated. The API may publish on the result and response subjects, since requests and
# cancellations of deliberations travel there. Readers reject event types that do not belong on a
# subject; see `registry.fits`.


_ANSWER_NANOSECONDS = 600 * 10**9


@dataclass(frozen=True, slots=True)
class User:
    """The purpose and permissions of one set of credentials.

    `serves_repositories`: may answer requests for repositories. `manages_streams`: may create
    streams and consumers, and prune.
    """

    purpose: str
    publishes: frozenset[Channel]
    subscribes: frozenset[Channel] = frozenset()
    consumes: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    serves_repositories: bool = True
    manages_streams: bool = False


_REQUESTED = frozenset({Channel.HOSTS, Channel.GRAPH, Channel.REPOSITORIES})
_ANNOUNCED = frozenset(
    {
        Channel.CANCEL,
        Channel.STEER,
        Channel.GROWING,
        Channel.TAKEN,
        Channel.FIGURES,
        Channel.REPOSITORIES,
    }
)
"""Channels to which every user may subscribe: signals that only repeat the log, and repository
requests.
"""
_DELIBERATION = frozenset(
    {Channel.RESULTS, Channel.RESPONSES, Channel.WORDS, Channel.WORK, Channel.CANCEL, Channel.STEER}
)
"""Channels on which a user that requests deliberations publishes."""
_TOOLS = frozenset({Channel.TOOLS, Channel.AUDIT, Channel.LINK})
"""Channels on which a user that runs tools in workspaces publishes."""
_TOOL_BUCKETS = frozenset({"parked", "spent", "rates"})

USERS: Mapping[str, User] = {
    "api": User(
        "the APIs and the web page",
        _DELIBERATION | {Channel.STORIES, Channel.COUNCILS},
        writes=frozenset({"budgets", "bundles", "hidden"}),
    ),
    "collector": User(
        "the collector, which decides, plans and writes the graph; it creates the streams, and "
        "operators' commands run with its credentials",
        _DELIBERATION | {Channel.STORIES, Channel.COUNCILS, Channel.AUDIT, Channel.CALLS},
        subscribes=frozenset({Channel.GRAPH}),
        consumes=frozenset({"collector", "planning"}),
        writes=frozenset(BUCKETS),
        manages_streams=True,
    ),
    "tools": User(
        "the tool service, which opens workspaces for callers",
        _DELIBERATION | _TOOLS,
        subscribes=frozenset({Channel.LINK}),
        consumes=frozenset({"tools"}),
        writes=_TOOL_BUCKETS | {"budgets", "hidden", "leases", "sessions", "workflows"},
    ),
    "hosts": User(
        "hosts, which run the seats of councils",
        _TOOLS
        | {Channel.RESULTS, Channel.PROGRESS, Channel.GROWING, Channel.TAKEN, Channel.FIGURES},
        subscribes=frozenset({Channel.LINK, Channel.HOSTS}),
        consumes=frozenset(f"host-{role}" for role in ROLES),
        writes=_TOOL_BUCKETS | {"budgets"},
        # the answers decide which checks judge the seats of other hosts
        serves_repositories=False,
    ),
}
"""Users by the name of their credentials; each belongs to one Kubernetes Deployment."""

_READ_APIS = (
    "INFO",
    "STREAM.INFO.*",
    "STREAM.MSG.GET.*",
    "DIRECT.GET.*",
    "DIRECT.GET.*.>",
    "CONSUMER.LIST.*",
    "CONSUMER.INFO.*.*",
    "CONSUMER.CREATE.*.*",
    "CONSUMER.CREATE.*.*.>",
    "CONSUMER.MSG.NEXT.*.*",
    "CONSUMER.DELETE.*.*",
)
_CONSUMER_APIS = (
    "CONSUMER.CREATE.{}",
    "CONSUMER.CREATE.{}.>",
    "CONSUMER.MSG.NEXT.{}",
    "CONSUMER.DELETE.{}",
)
"""APIs of a durable consumer, for its own user and the user that manages the streams."""


def permissions_of(name: str) -> Mapping[str, Any]:
    """Return the permissions of `USERS[name]` as claims of a NATS token. Each request may be
    answered once.
    """
    user, inbox_subjects = USERS[name], f"{inbox(name)}.>"
    channels = [registry.subject(channel.all) for channel in sorted(user.publishes | _REQUESTED)]
    channels += [registry.STORIES_BARE] if Channel.STORIES in user.publishes else []
    buckets = [f"{bucket_prefix(BUCKETS[bucket])}>" for bucket in sorted(user.writes)]
    stored = [f"{PREFIX}>", f"{BLOB_CHUNKS}>", f"{BLOB_ENTRIES}>"]
    consumers = [registry.durable(spec) for spec in sorted(user.consumes)]
    acks = [
        f"$JS.ACK.{domain}{spec.stream}.{spec.name}.>"
        for spec in consumers
        for domain in ("", "*.*.")
    ]
    api = (
        ["$JS.API.>", "$JS.SNAPSHOT.>"]  # the second for `moothall backup` and `restore`
        if user.manages_streams
        else [f"$JS.API.{name}" for name in _READ_APIS]
    )
    if any(spec.stream == registry.WORK.name for spec in consumers):
        api.append(
            f"$JS.API.STREAM.MSG.DELETE.{registry.WORK.name}"
        )  # to remove finished work that is still stored
    denied = [
        f"$JS.API.{template.format(f'{spec.stream}.{spec.name}')}"
        for spec in registry.DURABLES.values()
        if spec not in consumers
        for template in _CONSUMER_APIS
        if not user.manages_streams or "MSG.NEXT" in template
    ]
    return {
        "pub": {
            "allow": [inbox_subjects, *channels, *buckets, *stored, *acks, *api],
            "deny": denied,
        },
        "sub": {
            "allow": [
                inbox_subjects,
                *(
                    registry.subject(channel.all)
                    for channel in sorted(user.subscribes | _ANNOUNCED)
                ),
            ],
            "deny": [] if user.serves_repositories else [registry.literal(REPOSITORY_SERVICE)],
        },
        "resp": {"max": 1, "ttl": _ANSWER_NANOSECONDS},
    }


# Accounts, and the tokens of their users.


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
    "services.creds": "bus.credentials_file of a process with all roles",
    **{f"{name}.creds": f"bus.credentials_file of {user.purpose}" for name, user in USERS.items()},
    "links.json": (
        "jobs.link_keys_file of hosts and tools: each workspace's link gets credentials of its own"
    ),
}
"""The purpose of each file."""


def create_account_files(folder: Path, renew: Path | None = None) -> dict[str, Path]:
    """Create an operator and an account, and write the files that NATS servers, services and hosts
    need.

    Return the path of each file in `FILES`; their mode is 0600. `renew` is an earlier
    `accounts.conf`: its account is kept, so that stored data stays accessible, and all credentials
    issued for it until now are revoked. All other keys are new, including the operator's. Raises
    `ConfigurationError` if a file exists already or cannot be written, or if `renew` was not
    written by this function.
    """
    now = int(time.time())
    system, account = (
        _accounts(renew) if renew else (_public(_key("account")), _public(_key("account")))
    )
    operator, issuer, hosts = _key("operator"), _key("account"), _key("account")
    link = registry.literal(Channel.LINK.of("x")).removesuffix("x") + "{{name()}}"
    scope = {
        "kind": "user_scope",
        "key": _public(hosts),
        "role": "links",
        "template": {"pub": {"allow": [f"{link}-out"]}, "sub": {"allow": [f"{link}-in"]}, **_FREE},
    }
    operator_token = _token(
        operator, _public(operator), "moothall", {"type": "operator", "system_account": system}
    )
    system_token = _token(
        operator,
        system,
        "system",
        {"type": "account", "limits": {**_ACCOUNT, "disk_storage": 0, "mem_storage": 0}},
    )
    app = {"type": "account", "limits": _ACCOUNT, "signing_keys": [_public(issuer), scope]}
    if renew:
        app["revocations"] = {"*": now - 1}  # revocation includes tokens issued in the given second
    app_token = _token(operator, account, "house", app)
    preload = f"{system}: {system_token}\n  {account}: {app_token}"
    texts = {
        "accounts.conf": (
            f"operator: {operator_token}\nresolver: MEMORY\nresolver_preload: {{\n  {preload}\n}}\n"
        ),
        "services.creds": _credentials(issuer, account, "services", _FREE),
        **{
            f"{name}.creds": _credentials(issuer, account, name, {**_FREE, **permissions_of(name)})
            for name in USERS
        },
        "links.json": json.dumps({"account": account, "seed": hosts.seed.decode()}),
    }
    return _write_new_files(folder, texts)


def _write_new_files(folder: Path, texts: Mapping[str, str]) -> dict[str, Path]:
    """Write files that do not exist yet, and return their paths. Raises `ConfigurationError`."""
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
            f"{error.filename}: {error.strerror}; choose a folder without keys"
        ) from error
    return files


def mint(keys: str, name: str, seconds: int) -> str:
    """Return credentials for the link `name` that are valid for `seconds`.

    `keys` is the content of `links.json`. Raises `ConfigurationError` if it is invalid.
    """
    signer, account = _parse_link_keys(keys)
    return _credentials(signer, account, name, {}, expires_at=int(time.time()) + seconds)


def _accounts(conf: Path) -> tuple[str, str]:
    """Read an `accounts.conf`; return its system account and the application's account. Raises
    `ConfigurationError`.
    """
    try:
        text = conf.read_text(encoding="utf-8")
        _, body, _ = re.findall(r"^operator: (\S+)$", text, re.MULTILINE)[0].split(".")
        system = json.loads(base64.urlsafe_b64decode(body + "=="))["nats"]["system_account"]
        [app] = {*re.findall(r"^ *(A[A-Z2-7]{55}): ", text, re.MULTILINE)} - {system}
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename}: {error.strerror}; give the current accounts.conf of the servers"
        ) from error
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"{conf} is not an accounts.conf written by `moothall bus keys`"
        ) from error
    return str(system), app


def _credentials(
    signer: Any, account: str, name: str, claims: Mapping[str, Any], expires_at: int | None = None
) -> str:
    user = _key("user")
    token = _token(
        signer,
        _public(user),
        name,
        {"type": "user", "issuer_account": account, **claims},
        expires_at,
    )
    return _CREDENTIALS.format(token=token, seed=user.seed.decode())


def read_account(keys: str) -> str:
    """Return the account named in `keys`. Raises `ConfigurationError`."""
    return _parse_link_keys(keys)[1]


def _parse_link_keys(keys: str) -> tuple[Any, str]:
    nkeys = _nkeys()
    try:
        document = json.loads(keys)
        return nkeys.from_seed(bytearray(document["seed"].encode())), str(document["account"])
    except (ValueError, KeyError, TypeError, AttributeError, nkeys.NkeysError) as error:
        raise ConfigurationError(
            "jobs.link_keys is not the content of a links.json written by `moothall bus keys`"
        ) from error


def _nkeys() -> Any:
    """Return the library of the keys. Raises `ConfigurationError` if it is not installed."""
    try:
        import nkeys
    except ImportError as error:
        raise ConfigurationError(
            "keys of the bus need nkeys, which is not installed: pip install 'moothall[server]'"
        ) from error
    return nkeys


def _key(kind: str) -> Any:
    """Return a new key of a kind: account, operator or user."""
    nkeys = _nkeys()
    prefix = getattr(nkeys, f"PREFIX_BYTE_{kind.upper()}")
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), prefix)))


def _public(key: Any) -> str:
    public: bytes = key.public_key
    return public.decode()


def _token(
    signer: Any, subject: str, name: str, claims: Mapping[str, Any], expires_at: int | None = None
) -> str:
    body = {
        "iat": int(time.time()),
        "iss": _public(signer),
        "name": name,
        "sub": subject,
        "nats": {**claims, "version": 2},
    }
    if expires_at is not None:
        body["exp"] = expires_at
    body["jti"] = base64.b32encode(hashlib.sha256(_json(body)).digest()).decode().rstrip("=")
    signed_part = f"{_base64(_json({'typ': 'JWT', 'alg': 'ed25519-nkey'}))}.{_base64(_json(body))}"
    return f"{signed_part}.{_base64(signer.sign(signed_part.encode()))}"


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
