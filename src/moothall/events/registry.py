"""The only registry of streams, subjects, durable consumers and buckets; `event_specs` is the
registry of event types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from string import Formatter
from typing import Literal

from moothall.domain.event import Channel, Event, EventType, Topic
from moothall.domain.ids import ROLES, key_of
from moothall.errors import InvalidRequest
from moothall.events.event_specs import ADDRESSES, EVENT_SPECS

# The only registry of streams, subjects and durable consumers; `event_specs` is the registry of
# event types, `buckets` that of buckets.
#
# Publishers, consumers, the AsyncAPI document and the setup of a bus are all made from them.


DAY = 86_400.0
DUPLICATE_WINDOW = 3600.0
"""Seconds in which the bus itself refuses a repeated id; after that, readers recognise repeats."""

_TOKEN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream. `max_age` in seconds, 0 for ever."""

    name: str
    subjects: tuple[str, ...]
    retention: Literal["limits", "workqueue"]
    about: str
    max_age: float = 0.0


@dataclass(frozen=True, slots=True)
class DurableSpec:
    """A durable pull consumer. `prefetch` is the number of messages held beyond those being
    handled. It is 0 for work: work that a busy host holds is not available to an idle one.
    """

    name: str
    stream: str
    filters: tuple[str, ...]
    about: str
    prefetch: int = 0


def check_token(value: object, name: str) -> str:
    """Return `value` if it can be one token of a subject; `name` is used in the error."""
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise InvalidRequest(
            f"{name} {str(value)[:80]!r} cannot be part of a subject: letters, digits, '_' and "
            "'-', 1 to 128 characters"
        )
    return value


def subject(topic: Topic) -> str:
    """Return the subject of a topic; a pattern if the topic names no single thing. Raises
    `InvalidRequest`.
    """
    prefix, _, name = ADDRESSES[topic.channel].partition("{")
    return prefix + (check_token(topic.about, name.rstrip("}")) if topic.about is not None else "*")


def subjects(topics: Sequence[Topic]) -> tuple[str, ...]:
    """Return the subject of each topic."""
    return tuple(map(subject, topics))


def _all_subjects(*channels: Channel) -> tuple[str, ...]:
    """Return all subjects of channels, including those that name no single thing."""
    return tuple(
        pattern
        for channel in channels
        for pattern in (subject(channel.all).removesuffix(".*"), subject(channel.all))
    )


STORIES_BARE = _all_subjects(Channel.STORIES)[0]
"""The subject of story events without a story."""
EVENTS = StreamSpec(
    "EVENTS",
    _all_subjects(
        Channel.STORIES,
        Channel.RESULTS,
        Channel.RESPONSES,
        Channel.WORDS,
        Channel.PROGRESS,
        Channel.TOOLS,
    ),
    "limits",
    "The log. Its sequence is `seq` everywhere. Kept until pruned.",
)
WORK = StreamSpec(
    "WORK",
    subjects((Channel.WORK.all, Channel.CALLS.all)),
    "workqueue",
    "Work for exactly one consumer, stored until acked or a day old.",
    max_age=DAY,
)
AUDIT = StreamSpec(
    "AUDIT",
    _all_subjects(Channel.AUDIT),
    "limits",
    "The audit log: a hash chain for each tenant and writer.",
)
DEAD = StreamSpec("DEAD", ("dead.>",), "limits", "Messages that failed for good, with the reason.")
COUNCILS = StreamSpec(
    "COUNCILS",
    subjects((Channel.COUNCILS.all,)),
    "limits",
    "The councils of each tenant. Separate from the log, so that pruning forgets no council.",
)
STREAMS = (EVENTS, WORK, AUDIT, DEAD, COUNCILS)


def host_durable(role: str) -> str:
    """Return the name of the durable consumer of a role's work."""
    return f"host-{role}"


DURABLES: Mapping[str, DurableSpec] = {
    spec.name: spec
    for spec in (
        DurableSpec(
            "collector",
            EVENTS.name,
            ("agent.results.>", "agent.responses.>", "agent.words.>"),
            "builds the outcome of each deliberation from its events",
            prefetch=128,
        ),
        DurableSpec(
            "planning",
            EVENTS.name,
            _all_subjects(Channel.STORIES),
            "checks the events of stories, and derives the tasks of stories in planning",
        ),
        DurableSpec(
            "tools",
            WORK.name,
            subjects((Channel.CALLS.all,)),
            "tool calls of callers on the bus, answered by the tool service",
        ),
        *(
            DurableSpec(
                host_durable(role),
                WORK.name,
                subjects((Channel.WORK.of(role),)),
                f"{role} deliberations, run by hosts",
            )
            for role in ROLES
        ),
    )
}


@dataclass(frozen=True, slots=True)
class SignalSpec:
    """A plain subject whose messages are not stored."""

    channel: Channel
    about: str
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """The subject template; names in braces are filled in."""
        return ADDRESSES[self.channel]


SIGNALS = (
    SignalSpec(
        Channel.CANCEL,
        "Stop a deliberation now.",
        {"task_id": "the deliberation", "reason": "why it is stopped"},
    ),
    SignalSpec(
        Channel.STEER,
        "A deliberation was steered, paused or resumed; the log has the event.",
        {"task_id": "the deliberation"},
    ),
    SignalSpec(
        Channel.GROWING,
        "The partial reply of a seat, at most twice a second; the log has the complete answer.",
        {
            "task_id": "the deliberation",
            "seat": "the seat",
            "text": "the end of the partial reply, without secrets; empty once it is complete",
        },
    ),
    SignalSpec(
        Channel.TAKEN,
        "A host started work that was delivered before; its previous host has lost it.",
        {
            "task_id": "the deliberation",
            "host": "the host that has it now",
            "deliveries": "the number of deliveries",
        },
    ),
    SignalSpec(
        Channel.LINK,
        "Bytes between a host and the pod of one of its workspaces, in a binary format.",
    ),
    SignalSpec(
        Channel.FIGURES,
        "All metrics of a host, every few seconds.",
        {"process": "the host", "figures": "by metric name: rows of labels and value"},
    ),
    SignalSpec(
        Channel.HOSTS, "Every host answers with its state as a line of JSON.", {"ask": "state"}
    ),
    SignalSpec(
        Channel.GRAPH,
        "A process without the embedded graph queries the process that writes it; the answer is a "
        "line of JSON.",
        {
            "question": "the question's name",
            "parameters": "its parameters by name",
            "position": "true: return the seq up to which the graph is written",
        },
    ),
    SignalSpec(
        Channel.REPOSITORIES,
        "A host that shares no disk with the repositories requests a commit, a part of a bundle or "
        "a push; the answer is a line of JSON, followed by bytes.",
        {
            "ask": "base, commits, push or part",
            "repository": "the repository's id",
            "tenant": "the owner of the repository",
            "haves": "commits that the host already has",
        },
    ),
)


@cache
def _template(kind: EventType) -> tuple[str, tuple[str, ...]]:
    """Return the subject template of an event type, and the names in it."""
    subject = EVENT_SPECS[kind].subject
    return subject, tuple(name for _, name, _, _ in Formatter().parse(subject) if name is not None)


def subject_of(event: Event) -> str:
    """Return the subject of an event. Raises `InvalidRequest` if its data lacks an id that is part
    of it.
    """
    subject, names = _template(event.type)
    values = {}
    for name in names:
        value = event.tenant if name == "tenant" else event.data.get(name)
        if value is None:
            raise InvalidRequest(f"{event.type} needs {name} in its data: its subject is {subject}")
        token = check_token(value, name)
        values[name] = (
            check_token(key_of(token, event.tenant), name) if name == "story_id" else token
        )
    return subject.format(**values)


def fits(event: Event, subject: str) -> bool:
    """Return whether an event's type belongs on a subject of the log. Permissions are granted by
    subject.

    On the subjects of stories, where other programs publish, the story and its tenant must match.
    """
    if is_of_story(event):
        try:
            return subject_of(event) == subject
        except InvalidRequest:
            return False
    return subject.startswith(_fixed_part(event.type))


@cache
def _fixed_part(kind: EventType) -> str:
    """Return the beginning that the subjects of all events of a type share."""
    return _template(kind)[0].partition("{")[0]


def is_of_story(event: Event) -> bool:
    """Return whether an event is about a story. Other programs publish such events."""
    return EVENT_SPECS[event.type].channel is Channel.STORIES


def is_accepted(event: Event, subject: str) -> bool:
    """Return whether a story event is accepted on a subject.

    Accepted are its own subject, `agile.events`, and `agile.events.<story_id>`.
    """
    if not is_of_story(event):
        return False
    try:
        return subject in {
            subject_of(event),
            STORIES_BARE,
            f"{STORIES_BARE}.{event.data.get('story_id')}",
        }
    except InvalidRequest:
        return False


def is_consumed(subject: str) -> bool:
    """Return whether a durable consumer of the log receives messages on a subject."""
    return any(
        matches(pattern, subject)
        for spec in DURABLES.values()
        if spec.stream == EVENTS.name
        for pattern in spec.filters
    )


def matches(pattern: str, subject: str) -> bool:
    """Return whether a subject matches a NATS pattern (`*` one token, a last `>` one or more)."""
    parts, tokens = pattern.split("."), subject.split(".")
    for index, part in enumerate(parts):
        if part == ">":
            return len(tokens) > index
        if index >= len(tokens) or part not in {"*", tokens[index]}:
            return False
    return len(parts) == len(tokens)


def covers(pattern: str, narrower: str) -> bool:
    """Return whether `pattern` also matches every subject that `narrower` matches."""
    wide, narrow = pattern.split("."), narrower.split(".")
    for index, part in enumerate(wide):
        if part == ">":
            return len(narrow) > index
        if index >= len(narrow) or narrow[index] == ">" or (part != "*" and part != narrow[index]):
            return False
    return len(wide) == len(narrow)


def stream_of(subject: str) -> StreamSpec:
    """Return the stream that stores a subject or pattern. Raises `InvalidRequest` if none does."""
    for stream in STREAMS:
        if any(covers(stored, subject) or covers(subject, stored) for stored in stream.subjects):
            return stream
    raise InvalidRequest(
        f"no stream stores {subject[:120]!r}; the subjects are "
        f"{', '.join(s for t in STREAMS for s in t.subjects)}"
    )


def common_stream(subjects: Sequence[str]) -> str:
    """Return the name of the stream that stores all of `subjects`. Raises `InvalidRequest` if there
    is no single one.
    """
    names = {stream_of(subject).name for subject in subjects}
    if len(names) != 1:
        raise InvalidRequest(
            "subjects of one stream are read at a time, not of "
            f"{', '.join(sorted(names)) or 'none'}"
        )
    return names.pop()


def sources(topics: Sequence[Topic]) -> tuple[str, tuple[str, ...]]:
    """Return the stream that stores topics, and their subjects; without topics, the whole log.
    Raises `InvalidRequest` if there is no single stream.
    """
    stored_subjects = subjects(topics) or EVENTS.subjects
    return common_stream(stored_subjects), stored_subjects


def literal(topic: Topic) -> str:
    """Return the subject of a single thing. Raises `InvalidRequest` for a topic of many."""
    if topic.about is None:
        raise InvalidRequest(f"a topic on {topic.channel} must have an id")
    return subject(topic)


def work_subject(topic: Topic) -> str:
    """Return the subject of work of one kind. Raises `InvalidRequest` if it is not work."""
    address = literal(topic)
    if stream_of(address) is not WORK:
        raise InvalidRequest(
            f"{address} is not work; the subjects of work are {', '.join(WORK.subjects)}"
        )
    return address


def topic_id_of(subject: str) -> str:
    """Return the id of the thing that messages on a subject are about."""
    return subject.rpartition(".")[2]


def durable(name: str) -> DurableSpec:
    """Return the registered consumer. Raises `InvalidRequest`."""
    if name not in DURABLES:
        raise InvalidRequest(
            f"no durable consumer {name!r}; the consumers are {', '.join(DURABLES)}"
        )
    return DURABLES[name]


# The only registry of key-value buckets. The setup of a bus creates them from it.


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """A key-value bucket: the newest document under each key. `max_age` in seconds, 0 for ever."""

    name: str
    about: str
    max_age: float = 0.0

    def check(self, key: str) -> str:
        """Return a key if it may be one; its parts may be divided by dots. Raises
        `InvalidRequest`.
        """
        return ".".join(check_token(part, "key") for part in key.split("."))


DOCUMENTS = BucketSpec("deliberations", "the status document of each deliberation, for polling")
BUCKETS: Mapping[str, BucketSpec] = {
    spec.name: spec
    for spec in (
        DOCUMENTS,
        BucketSpec(
            "tools",
            "<tenant>.<tool>: whether an operator allowed a tool for a tenant, by whom and why",
        ),
        BucketSpec(
            "parked",
            "<tenant>.<id>: denied requests that an operator may allow, and the decisions",
            max_age=7 * DAY,
        ),
        BucketSpec(
            "budgets",
            "<tenant>.<story_id>: a story's budget, with the amounts that each of its "
            "deliberations has reserved and spent",
        ),
        BucketSpec("webhooks", "the seq of the last decision delivered to each URL"),
        BucketSpec("spent", "ids of approvals that were used", max_age=7 * DAY),
        BucketSpec(
            "rates",
            "<tenant>.<tool>: the times of its last calls, from all processes",
            max_age=DAY,
        ),
        BucketSpec(
            "workflows",
            "<tenant>.<workspace>.<id>: whether a workflow is running, and how to reopen its "
            "workspace",
            max_age=7 * DAY,
        ),
        BucketSpec(
            "sessions",
            "<tenant>.<digest>: the state of a session of the agent service",
            max_age=7 * DAY,
        ),
        BucketSpec(
            "bundles",
            "<tenant>.<digest>: contexts of a story that a caller stored, and their expiry",
            max_age=7 * DAY,
        ),
        BucketSpec(
            "leases",
            "<name>: the process that holds a lease; renewed while the process lives",
            max_age=DAY,
        ),
        BucketSpec(
            "hidden", "<tenant>.<digest>: callers' tests, hidden from all seats", max_age=30 * DAY
        ),
        BucketSpec(
            "revoked",
            "ids of revoked capability tokens, and of workspaces whose tokens are revoked",
            max_age=7 * DAY,
        ),
    )
}


def bucket_of(name: str) -> BucketSpec:
    """Return a bucket by its name. Raises `InvalidRequest` for one that isn't registered."""
    if name not in BUCKETS:
        raise InvalidRequest(f"no bucket {name!r}; the buckets are {', '.join(BUCKETS)}")
    return BUCKETS[name]
