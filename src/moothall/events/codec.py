"""Between events and bytes: CloudEvents 1.0 in structured JSON, and bringing old versions up to
date.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moothall.domain.codec import wrong
from moothall.domain.event import Event, EventType
from moothall.errors import InvalidRequest
from moothall.events.event_specs import EVENT_SPECS

Upcaster = Callable[[Mapping[str, Any]], Mapping[str, Any]]
UPCASTERS: Mapping[tuple[EventType, int], Upcaster] = {}
"""From (type, version n) to a function that turns data of version n into data of version n + 1.

Empty while every type is at its first version.
"""

_CONTENT = "application/json"
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_KINDS = {kind.value: kind for kind in EventType}
_MOST_ID = 256
_NEEDED = ("specversion", "id", "type", "source")
_OPTIONAL = (
    "subject",
    "dataschema",
    "correlationid",
    "causationid",
    "traceparent",
    "tenant",
    "time",
)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class _Envelope(BaseModel):
    """A message from outside. What we don't know is ignored: the format grows at its end."""

    model_config = ConfigDict(extra="ignore", strict=True)

    specversion: str = Field(pattern=r"^1\.")
    id: str = Field(min_length=1, max_length=_MOST_ID)
    type: str
    source: str = Field(min_length=1)
    subject: str = ""
    data: dict[str, Any]
    dataschema: str = ""
    correlationid: str = ""
    causationid: str = ""
    traceparent: str = ""
    tenant: str = "local"
    time: str = ""


def dump_json(value: object) -> bytes:
    """Return compact UTF-8 JSON. Half a surrogate pair, which is no character, becomes '?'.

    Raises `InvalidRequest` for what JSON cannot say (NaN, other objects, endless nesting).
    """
    try:
        raw = orjson.dumps(value, option=_STRICT)
    except orjson.JSONEncodeError:
        return _dump_slowly(
            value
        )  # what it does not take may be right all the same, such as half a pair
    # It writes NaN as null: where there is a null, the one that refuses NaN writes.
    return _dump_slowly(value) if b"null" in raw else raw


def _dump_slowly(value: object) -> bytes:
    try:
        text = _ENCODER.encode(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"data cannot be written as JSON: {error}") from error
    return text.encode("utf-8", "replace")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def load_json(raw: bytes) -> Any:
    """Return what JSON bytes say. Raises `InvalidRequest`."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _load_slowly(raw)


def _load_slowly(raw: bytes) -> Any:
    """What may be right all the same, such as half a pair, is read as `dump_json` writes it;
    Infinity is none, however it is written.
    """
    try:
        return orjson.loads(
            _dump_slowly(json.loads(raw.decode("utf-8"), parse_constant=_no_constant))
        )
    except (
        ValueError,
        RecursionError,
    ) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise InvalidRequest(f"not JSON: {error}") from error


def encode(event: Event, data: bytes | None = None) -> bytes:
    """Return the event's bytes, with `data` (JSON) in place of its own where given."""
    optional = {
        "correlationid": event.correlationid,
        "causationid": event.causationid,
        "traceparent": event.traceparent,
        "time": event.time,
    }
    envelope = dump_json(
        {
            "specversion": "1.0",
            "id": event.id,
            "type": event.type.value,
            "source": event.source,
            "subject": event.subject,
            "datacontenttype": _CONTENT,
            "dataschema": f"moothall:{event.type.value}:{event.version}",
            "tenant": event.tenant,
            **{name: value for name, value in optional.items() if value},
        }
    )
    return b'%b,"data":%b}' % (envelope[:-1], dump_json(event.data) if data is None else data)


@lru_cache(maxsize=256)
def _read_version(dataschema: str, kind: EventType) -> int:
    if not dataschema:
        return 1
    owner, _, rest = dataschema.partition(":")
    name, _, version = rest.rpartition(":")
    if (
        owner != "moothall"
        or name != kind.value
        or not version.isdecimal()
        or not version.isascii()
        or int(version) < 1
    ):
        raise InvalidRequest(
            f"dataschema {dataschema[:120]!r} is not moothall:{kind.value}:<version>"
        )
    return int(version)


def upcast(
    kind: EventType,
    version: int,
    data: Mapping[str, Any],
    *,
    current: int,
    upcasters: Mapping[tuple[EventType, int], Upcaster] = UPCASTERS,
) -> Mapping[str, Any]:
    """Return data of an older version as the current one, step by step. Raises `InvalidRequest`
    where a step is missing.
    """
    if version > current:
        raise InvalidRequest(
            f"{kind.value} version {version} is newer than this program, which knows {current}: "
            "upgrade it"
        )
    for step in range(version, current):
        change = upcasters.get((kind, step))
        if change is None:
            raise InvalidRequest(f"{kind.value} version {step} cannot be brought to {step + 1}")
        data = change(data)
    return data


def encode_batch(events: Sequence[bytes]) -> bytes:
    """Return several events' bytes as those of one message: CloudEvents' JSON batch; one event is
    its own message.
    """
    return events[0] if len(events) == 1 else b"[%b]" % b",".join(events)


def decode_all(raw: bytes) -> list[Event | InvalidRequest]:
    """Return the events of a message, one or a batch, in order; in place of each that is none, what
    is wrong with it.

    Raises `InvalidRequest` where the message is neither.
    """
    said = load_json(raw)
    if not isinstance(said, list):
        return [_event(said)]
    found: list[Event | InvalidRequest] = []
    for each in said:
        try:
            found.append(_event(each))
        except InvalidRequest as error:
            found.append(error)
    return found


def decode(raw: bytes) -> Event:
    """Return the event in `raw`. Raises `InvalidRequest` naming what is wrong with it."""
    return _event(load_json(raw))


def _event(said: Any) -> Event:
    if not _is_envelope(said):
        said = _check_object(said)
    kind = _KINDS.get(said["type"])
    if kind is None:
        raise InvalidRequest(f"unknown event type {said['type'][:80]!r}")
    current = EVENT_SPECS[kind].version
    return Event(
        id=said["id"],
        type=kind,
        subject=said.get("subject", ""),
        data=upcast(
            kind, _read_version(said.get("dataschema", ""), kind), said["data"], current=current
        ),
        source=said["source"],
        version=current,
        correlationid=said.get("correlationid", ""),
        causationid=said.get("causationid", ""),
        traceparent=said.get("traceparent", ""),
        tenant=said.get("tenant", "local"),
        time=said.get("time", ""),
    )


def _is_envelope(said: Any) -> bool:
    """Whether it is one without doubt: what `_Envelope` says, for the many messages that are
    well-formed.
    """
    if not isinstance(said, dict) or not isinstance(said.get("data"), dict):
        return False
    for name in _NEEDED:
        if not isinstance(said.get(name), str):
            return False
    for name in _OPTIONAL:
        if not isinstance(said.get(name, ""), str):
            return False
    return (
        said["specversion"].startswith("1.")
        and 0 < len(said["id"]) <= _MOST_ID
        and said["source"] != ""
    )


def _check_object(said: Any) -> dict[str, Any]:
    try:
        return _Envelope.model_validate(said).model_dump()
    except ValidationError as error:
        raise InvalidRequest(f"not a CloudEvent: {wrong(error, 'message')}") from error
