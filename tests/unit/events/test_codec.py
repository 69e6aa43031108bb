from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.event import Event, EventType, new_event
from moothall.errors import InvalidRequest
from moothall.events import codec, envelope
from moothall.events.envelope import EnvelopeCodec
from moothall.testing.bus import MemoryBlobs


def packer(limit: int) -> EnvelopeCodec:
    blobs = MemoryBlobs()
    return EnvelopeCodec(blobs.put, blobs.get, limit)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
names = st.one_of(text, st.sampled_from(["$blob", "$data", "bytes"]))
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
data = st.dictionaries(names, values, max_size=5)
events = st.builds(
    Event,
    id=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40),
    type=st.sampled_from(EventType),
    subject=text,
    data=data,
    source=st.sampled_from(["serve", "host", "cli"]),
    correlationid=text,
    causationid=text,
    traceparent=text,
    tenant=text,
    time=st.just("2026-01-02T03:04:05Z"),
)


@given(events)
def test_an_event_is_decoded_as_it_was_encoded(event: Event) -> None:
    assert codec.decode(codec.encode(event)) == event


@given(events, st.integers(1, 300))
async def test_an_event_survives_packing_at_any_limit(event: Event, limit: int) -> None:
    packing = packer(limit)
    assert await packing.unpack(await packing.pack(event)) == event


@given(data, st.integers(100, 300))
async def test_offloaded_data_is_within_the_limit(value: dict[str, Any], limit: int) -> None:
    store = MemoryBlobs()
    small = await envelope.offload(store.put, value, limit)
    # A reference alone takes about a hundred bytes; nothing can be smaller than one.
    assert len(codec.dump_json(small)) <= max(limit, 130)
    assert envelope.references(small) <= store.stored.keys()
    assert await envelope.restore(store.get, codec.load_json(codec.dump_json(small))) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        codec.decode(raw)


def test_an_encoded_event_is_a_cloud_event() -> None:
    event = new_event(
        EventType.SEAT_STARTED,
        "task-1",
        {"task_id": "task-1"},
        cause="c",
        tenant="acme",
        source="host",
    )
    assert json.loads(codec.encode(event)) == {
        "specversion": "1.0",
        "id": event.id,
        "type": "moothall.seat.started",
        "source": "host",
        "subject": "task-1",
        "datacontenttype": "application/json",
        "dataschema": "moothall:moothall.seat.started:1",
        "tenant": "acme",
        "correlationid": "task-1",
        "causationid": "c",
        "data": {"task_id": "task-1"},
    }


GOOD = {"specversion": "1.0", "id": "1", "type": "moothall.seat.turn", "source": "x", "data": {}}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"id": ""}, "id"),
        ({"id": 7}, "id"),
        ({"type": "moothall.seat.danced"}, "unknown event type 'moothall.seat.danced'"),
        ({"data": None}, "data"),
        ({"data": [1]}, "data"),
        (
            {"dataschema": "moothall:moothall.seat.turn:9"},
            "newer than version 1 of this program: upgrade the program",
        ),
        (
            {"dataschema": "moothall:moothall.seat.turn:0"},
            "is not moothall:moothall.seat.turn:<version>",
        ),
        (
            {"dataschema": "moothall:moothall.seat.turn:²"},
            "is not moothall:moothall.seat.turn:<version>",
        ),
        (
            {"dataschema": "moothall:moothall.seat.failed:1"},
            "is not moothall:moothall.seat.turn:<version>",
        ),
    ],
)
def test_an_invalid_message_is_refused_with_the_field(
    change: dict[str, Any], complaint: str
) -> None:
    assert codec.decode(json.dumps(GOOD).encode()).type is EventType.SEAT_TURN
    with pytest.raises(InvalidRequest, match=complaint.replace("(", r"\(")):
        codec.decode(json.dumps(GOOD | change).encode())


def test_unknown_attributes_are_ignored() -> None:
    assert codec.decode(
        json.dumps(GOOD | {"newattribute": 1, "data": {"later": 1}}).encode()
    ).data == {"later": 1}


@pytest.mark.parametrize(
    "raw", [b'{"a": NaN}', b"[" * 100_000, b'{"a": "\xff"}', b"", b'"text"', b"[]"]
)
def test_invalid_json_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        codec.decode(raw)


def test_data_that_json_cannot_represent_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for invalid_value in (float("nan"), object(), deep):
        with pytest.raises(InvalidRequest, match="cannot be written as JSON"):
            codec.encode(new_event(EventType.SEAT_TURN, "t", {"x": invalid_value}))


async def test_deeply_nested_data_is_refused_when_packing() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        await packer(1000).pack(new_event(EventType.SEAT_TURN, "t", {"x": deep}))


def test_foreign_json_is_cleaned_of_lone_surrogates_and_infinite_numbers() -> None:
    assert codec.load_json(b'{"hash": "a\\ud800b"}') == {"hash": "a?b"}
    with pytest.raises(InvalidRequest):
        codec.load_json(b'{"seq": 1e999}')


def test_a_lone_surrogate_does_not_break_the_log() -> None:
    event = new_event(EventType.SEAT_TURN, "t", {"answer": "a\ud800b"})
    assert codec.decode(codec.encode(event)).data == {"answer": "a?b"}


def test_old_versions_are_upgraded() -> None:
    steps: dict[tuple[EventType, int], codec.Upcaster] = {
        (EventType.SEAT_TURN, 1): lambda old: {**old, "turn": old["step"]},
        (EventType.SEAT_TURN, 2): lambda old: {**old, "round": 0},
    }

    def brought(version: int) -> Any:
        return codec.upcast(EventType.SEAT_TURN, version, {"step": 4}, current=3, upcasters=steps)

    assert brought(1) == {"step": 4, "turn": 4, "round": 0}
    assert brought(2) == {"step": 4, "round": 0}
    assert brought(3) == {"step": 4}
    with pytest.raises(InvalidRequest, match="version 1 cannot be upgraded to 2"):
        codec.upcast(EventType.SEAT_FAILED, 1, {}, current=2, upcasters=steps)


async def test_a_damaged_blob_is_detected() -> None:
    store = MemoryBlobs()
    small = await envelope.offload(store.put, {"diff": "x" * 1000}, 100)
    store.stored = dict.fromkeys(store.stored, b"y" * 1000)
    with pytest.raises(Exception, match="is damaged"):
        await envelope.restore(store.get, small)


@pytest.mark.parametrize("reference", [1, "../../etc/passwd", "a" * 63, "*" * 64, None])
async def test_a_reference_must_be_a_sha256(reference: Any) -> None:
    with pytest.raises(InvalidRequest, match="is not the sha256 of a stored value"):
        await envelope.restore(MemoryBlobs().get, {"a": {"$blob": reference}})
