from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import moothall
from moothall.domain.event import Channel, EventType, new_event
from moothall.domain.ids import ROLES, key_of
from moothall.errors import InvalidRequest
from moothall.events import registry
from moothall.events.event_specs import ADDRESSES, EVENT_SPECS
from moothall.events.nats.asyncapi import asyncapi

IDS = {"task_id": "task-1", "story_id": "story-1", "workspace": "ws-1", "agent_id": "agent-dev-001"}


@pytest.mark.parametrize("kind", EventType)
def test_every_event_type_has_a_stored_subject(kind: EventType) -> None:
    subject = registry.subject_of(new_event(kind, "x", IDS, tenant="acme"))
    stream = registry.stream_of(subject)
    assert stream in {registry.EVENTS, registry.WORK, registry.AUDIT, registry.COUNCILS}
    assert any(registry.matches(pattern, subject) for pattern in stream.subjects)


@pytest.mark.parametrize(
    ("kind", "subject"),
    [
        (EventType.DELIBERATION_REQUESTED, "agent.results.task-1"),
        (EventType.DELIBERATION_DECIDED, "agent.responses.task-1"),
        (EventType.DELIBERATION_CANCELLED, "agent.responses.task-1"),
        (EventType.SEAT_TURN, "agent.results.task-1"),
        (EventType.MODEL_CALLED, "agent.results.task-1"),
        (EventType.CHECK_FINISHED, "agent.results.task-1"),
        (EventType.TOOL_FINISHED, "tool.results.ws-1"),
        (EventType.STORY_CREATED, "agile.events.story-1"),
        (EventType.PLAN_DERIVED, "agile.events.story-1"),
        (EventType.DECISION_MADE, "agile.events.story-1"),
        (EventType.AGENT_PROGRESS, "agent.progress.agent-dev-001"),
        (EventType.AUDIT_RECORDED, "audit.local"),
        (EventType.COUNCIL_CREATED, "council.local"),
        (EventType.PLAN_FINISHED, "agile.events.story-1"),
    ],
)
def test_event_types_have_their_specified_subjects(kind: EventType, subject: str) -> None:
    assert registry.subject_of(new_event(kind, "x", IDS)) == subject


def test_each_tenant_has_its_own_topics() -> None:
    foreign_event = new_event(EventType.STORY_CREATED, "x", IDS, tenant="acme")
    assert (
        registry.subject_of(foreign_event)
        == registry.subject(Channel.STORIES.of(key_of("story-1", "acme")))
        == "agile.events.acme_story-1"
    )
    assert (
        registry.subject_of(new_event(EventType.AUDIT_RECORDED, "x", IDS, tenant="acme"))
        == "audit.acme"
    )
    assert (
        registry.subject_of(new_event(EventType.COUNCIL_CREATED, "x", IDS, tenant="acme"))
        == "council.acme"
    )


def _texts(path: Path, needles: Iterable[str]) -> Iterator[str]:
    """Yield the strings of a module if it contains one of the needles."""
    source = path.read_text()
    if not any(needle in source for needle in needles):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_only_the_registry_contains_subject_and_stream_names() -> None:
    source = Path(moothall.__file__).parent
    addresses = (address.partition("{")[0] for address in ADDRESSES.values())
    starts = (*addresses, "nats://", "Nats-", "$JS.", "$KV.", "$O.")
    streams = {spec.name for spec in registry.STREAMS}
    inner = [path for path in source.rglob("*.py") if not path.is_relative_to(source / "events")]
    assert len(inner) > 200
    occurrences = [
        (path.name, text)
        for path in inner
        for text in _texts(path, (*starts, *streams))
        if text.startswith(starts) or text in streams
    ]
    assert occurrences == []


@given(st.sampled_from(Channel), st.text())
def test_a_topic_has_one_valid_subject(channel: Channel, about: str) -> None:
    try:
        subject = registry.subject(channel.of(about))
    except InvalidRequest:
        return
    assert registry.topic_id_of(subject) == about
    assert registry.covers(registry.subject(channel.all), subject)


def test_an_event_without_its_subject_id_is_refused() -> None:
    with pytest.raises(
        InvalidRequest,
        match=r"moothall.seat.turn needs task_id in its data: its subject is agent.results",
    ):
        registry.subject_of(new_event(EventType.SEAT_TURN, "x", {}))


def test_streams_do_not_overlap() -> None:
    for stream, other_stream in itertools.combinations(registry.STREAMS, 2):
        for a, b in itertools.product(stream.subjects, other_stream.subjects):
            assert not registry.covers(a, b)
            assert not registry.covers(b, a)


def test_work_consumers_do_not_overlap() -> None:
    filters = [
        f for spec in registry.DURABLES.values() if spec.stream == "WORK" for f in spec.filters
    ]
    assert sorted(filters) == sorted(
        {"tool.requests.*", *(f"agent.requests.{role}" for role in ROLES)}
    )


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.b", "a.b", True),
        ("*.b", "a.b", True),
        ("a.b", "a.c", False),
    ],
)
def test_patterns_match_subjects(pattern: str, subject: str, *, expected: bool) -> None:
    assert registry.matches(pattern, subject) is expected
    assert registry.covers(pattern, subject) is expected


def test_a_pattern_covers_a_narrower_one() -> None:
    assert registry.covers("a.>", "a.*")
    assert registry.covers("a.>", "a.b.>")
    assert registry.covers("a.*", "a.*")
    assert not registry.covers("a.*", "a.>")
    assert not registry.covers("a.b", "a.*")


def test_the_decision_lists_the_levels_of_evidence_in_order() -> None:
    fields = EVENT_SPECS[EventType.DELIBERATION_DECIDED].fields
    assert fields["evidence_level"] == "proven, reproduced, self_tested, unproven"


def test_asyncapi_documents_every_event_and_stream() -> None:
    document = asyncapi()
    assert document["asyncapi"].startswith("3.")
    messages = document["components"]["messages"]
    assert {m["name"] for m in messages.values()} >= {kind.value for kind in EventType}
    assert set(document["x-streams"]) == {spec.name for spec in registry.STREAMS}
    assert set(document["x-consumers"]) == set(registry.DURABLES)
    used_messages = set()
    for channel in document["channels"].values():
        assert set(channel["parameters"]) == {
            part[1:-1] for part in channel["address"].split(".") if part.startswith("{")
        }
        for message in channel["messages"].values():
            used_messages.add(message["$ref"].removeprefix("#/components/messages/"))
    assert used_messages == set(messages)
    for operation in document["operations"].values():
        assert operation["channel"]["$ref"].removeprefix("#/channels/") in document["channels"]
