"""How NATS stores buckets and objects: their streams and subjects, and the headers of a write.
Permissions of each role on the bus: what its credentials may publish, subscribe to, consume
and write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moothall.domain.event import REPOSITORY_SERVICE, Channel
from moothall.domain.ids import ROLES
from moothall.events import registry
from moothall.events.raw_store import PREFIX
from moothall.events.registry import BUCKETS, BucketSpec

# How NATS stores buckets and objects: their streams and subjects, and the headers of a write.


MESSAGE_ID = "Nats-Msg-Id"
LAST_SEQ = "Nats-Expected-Last-Subject-Sequence"
FIRST: Mapping[str, str] = {LAST_SEQ: "0"}
"""Headers of a write that must be the first on its subject."""
FRESH: Mapping[str, str] = {"Moothall-Fresh": "1"}
"""Marks work that no consumer can have begun yet. It is not part of the event, so a dead letter
that is sent again lacks it.
"""

BLOBS = "blobs"
BLOBS_STREAM = f"OBJ_{BLOBS}"
BLOB_CHUNKS = f"$O.{BLOBS}.C."
BLOB_ENTRIES = f"$O.{BLOBS}.M."


def bucket_stream(spec: BucketSpec) -> str:
    """Return the name of the stream behind a bucket."""
    return f"KV_{spec.name}"


def bucket_prefix(spec: BucketSpec) -> str:
    """Return the prefix of the subjects of a bucket's keys."""
    return f"$KV.{spec.name}."


def key_subject(spec: BucketSpec, key: str) -> str:
    """Return the subject of a key. Raises `InvalidRequest`."""
    return bucket_prefix(spec) + spec.check(key)


# Permissions of each role on the bus: what its credentials may publish, subscribe to, consume and
# write.
#
# Read access is not separated: a user that can read one stream can read all of them. Publishing is
# separated. The API may publish on the result and response subjects, since requests and
# cancellations of deliberations travel there. Readers reject event types that do not belong on a
# subject; see `registry.fits`.


INBOX = "_INBOX"
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


def inbox(name: str) -> str:
    """Return the inbox prefix of a user. No other user may subscribe to it."""
    return f"{INBOX}.{name}"


def claims(name: str) -> Mapping[str, Any]:
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
