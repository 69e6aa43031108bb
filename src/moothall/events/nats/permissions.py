"""Who of a server may do what on its bus: for each set of credentials what it sends, hears, takes
and writes.

Whoever reads one stream may read all; what is held apart is who may say what. A request for a
council, and that it is to end, travel on the subjects of what hosts and collectors say of it: doors
may send there. That nobody says what is another's to say under his own subject is seen by whoever
reads: `registry.fits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moothall.domain.ids import ROLES
from moothall.domain.topic import REPOSITORY_SERVICE, Channel
from moothall.events import registry
from moothall.events.buckets import BUCKETS
from moothall.events.dead_letters import PREFIX
from moothall.events.nats.layout import BLOB_CHUNKS, BLOB_ENTRIES, bucket_prefix

INBOX = "_INBOX"
_ANSWER_NANOSECONDS = 600 * 10**9


@dataclass(frozen=True, slots=True)
class User:
    """What one set of credentials is for. `lends`: it is asked for the server's repositories;
    `keeps`: it makes the streams and consumers, and prunes.
    """

    about: str
    sends: frozenset[Channel]
    hears: frozenset[Channel] = frozenset()
    takes: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    lends: bool = True
    keeps: bool = False


_ASKED = frozenset({Channel.HOSTS, Channel.GRAPH, Channel.REPOSITORIES})
_HEARD = frozenset(
    {
        Channel.CANCEL,
        Channel.STEER,
        Channel.GROWING,
        Channel.TAKEN,
        Channel.FIGURES,
        Channel.REPOSITORIES,
    }
)
"""What says nothing that the log does not say, and who has which repository."""
_DESK = frozenset(
    {Channel.RESULTS, Channel.RESPONSES, Channel.WORDS, Channel.WORK, Channel.CANCEL, Channel.STEER}
)
"""What whoever asks for a council sends."""
_SEATS = frozenset({Channel.TOOLS, Channel.AUDIT, Channel.LINK})
"""What whoever has workspaces and tools sends."""
_GUARD = frozenset({"parked", "spent", "rates"})

USERS: Mapping[str, User] = {
    "api": User(
        "the doors and the page",
        _DESK | {Channel.STORIES, Channel.COUNCILS},
        writes=frozenset({"budgets", "bundles", "hidden"}),
    ),
    "collector": User(
        "whoever decides, plans and writes the graph; it makes the streams, and operators' "
        "commands run beside it",
        _DESK | {Channel.STORIES, Channel.COUNCILS, Channel.AUDIT, Channel.CALLS},
        hears=frozenset({Channel.GRAPH}),
        takes=frozenset({"collector", "planning"}),
        writes=frozenset(BUCKETS),
        keeps=True,
    ),
    "tools": User(
        "whoever has workspaces for callers",
        _DESK | _SEATS,
        hears=frozenset({Channel.LINK}),
        takes=frozenset({"tools"}),
        writes=_GUARD | {"budgets", "hidden", "leases", "sessions", "workflows"},
    ),
    "hosts": User(
        "hosts, which run the seats of councils",
        _SEATS
        | {Channel.RESULTS, Channel.PROGRESS, Channel.GROWING, Channel.TAKEN, Channel.FIGURES},
        hears=frozenset({Channel.LINK, Channel.HOSTS}),
        takes=frozenset(f"host-{role}" for role in ROLES),
        writes=_GUARD | {"budgets"},
        # what another host is told of a repository says by which checks its seats are judged
        lends=False,
    ),
}
"""By the name of the credentials, which are those of one Deployment each."""

_READS = (
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
_OWNED = (
    "CONSUMER.CREATE.{}",
    "CONSUMER.CREATE.{}.>",
    "CONSUMER.MSG.NEXT.{}",
    "CONSUMER.DELETE.{}",
)
"""Of a durable consumer: what only whoever takes from it does, and whoever keeps the bus."""


def inbox(name: str) -> str:
    """Return what the addresses for answers to whoever has these credentials begin with: nobody
    else hears there.
    """
    return f"{INBOX}.{name}"


def claims(name: str) -> Mapping[str, Any]:
    """Return what a NATS token says of the permissions of `USERS[name]`. What a message asks to be
    answered may be answered once.
    """
    user, own = USERS[name], f"{inbox(name)}.>"
    sent = [registry.subject(channel.all) for channel in sorted(user.sends | _ASKED)]
    sent += [registry.STORIES_BARE] if Channel.STORIES in user.sends else []
    kept = [f"{bucket_prefix(BUCKETS[bucket])}>" for bucket in sorted(user.writes)]
    stored = [f"{PREFIX}>", f"{BLOB_CHUNKS}>", f"{BLOB_ENTRIES}>"]
    takes = [registry.durable(one) for one in sorted(user.takes)]
    acks = [f"$JS.ACK.{where}{one.stream}.{one.name}.>" for one in takes for where in ("", "*.*.")]
    asks = ["$JS.API.>"] if user.keeps else [f"$JS.API.{one}" for one in _READS]
    if any(one.stream == registry.WORK.name for one in takes):
        asks.append(
            f"$JS.API.STREAM.MSG.DELETE.{registry.WORK.name}"
        )  # work that was done and is still there
    denied = [
        f"$JS.API.{what.format(f'{one.stream}.{one.name}')}"
        for one in registry.DURABLES.values()
        if one not in takes
        for what in _OWNED
        if not user.keeps or "MSG.NEXT" in what
    ]
    return {
        "pub": {"allow": [own, *sent, *kept, *stored, *acks, *asks], "deny": denied},
        "sub": {
            "allow": [
                own,
                *(registry.subject(channel.all) for channel in sorted(user.hears | _HEARD)),
            ],
            "deny": [] if user.lends else [registry.literal(REPOSITORY_SERVICE)],
        },
        "resp": {"max": 1, "ttl": _ANSWER_NANOSECONDS},
    }
