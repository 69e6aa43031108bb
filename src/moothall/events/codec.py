"""Converts events to bytes and back: CloudEvents 1.0 in structured JSON. Data of older versions is
upgraded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moothall.domain.codec import describe_errors
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
_TYPES_BY_NAME = {kind.value: kind for kind in EventType}
_MAX_ID_CHARS = 256
_REQUIRED = ("specversion", "id", "type", "source")
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
    """An incoming message. Unknown fields are ignored, so that the format can be extended."""

    model_config = ConfigDict(extra="ignore", strict=True)

    specversion: str = Field(pattern=r"^1\.")
    id: str = Field(min_length=1, max_length=_MAX_ID_CHARS)
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
    """Return compact UTF-8 JSON. A lone surrogate becomes '?'.

    Raises `InvalidRequest` for values without a JSON form (NaN, other objects, endless nesting).
    """
    try:
        raw = orjson.dumps(value, option=_STRICT)
    except orjson.JSONEncodeError:
        # orjson refuses some valid input, such as a lone surrogate
        return _dump_slowly(value)
    # orjson writes NaN as null. If there is a null, use the encoder that refuses NaN.
    return _dump_slowly(value) if b"null" in raw else raw


def _dump_slowly(value: object) -> bytes:
    try:
        text = _ENCODER.encode(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"data cannot be written as JSON: {error}") from error
    return text.encode("utf-8", "replace")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def load_json(raw: bytes) -> Any:
    """Return the value of JSON bytes. Raises `InvalidRequest`."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _load_slowly(raw)


def _load_slowly(raw: bytes) -> Any:
    """Read valid JSON that orjson refuses, such as a lone surrogate. Infinity is never valid."""
    try:
        return orjson.loads(
            _dump_slowly(json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant))
        )
    except (
        ValueError,
        RecursionError,
    ) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise InvalidRequest(f"not JSON: {error}") from error


def encode(event: Event, data: bytes | None = None) -> bytes:
    """Return the event's bytes, with `data` (JSON) in place of its own data if given."""
    optional = {
        "correlationid": event.correlationid,
        "causationid": event.causationid,
        "traceparent": event.traceparent,
        "time": event.time,
    }
    envelope = {
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
    if data is None:
        return dump_json({**envelope, "data": event.data})
    return b'%b,"data":%b}' % (dump_json(envelope)[:-1], data)


@lru_cache(maxsize=256)
def _read_version(dataschema: str, kind: EventType) -> int:
    if not dataschema:
        return 1
    owner, _, name_and_version = dataschema.partition(":")
    name, _, version = name_and_version.rpartition(":")
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
    """Convert data of an older version to the current one, step by step. Raises `InvalidRequest` if
    a step is missing.
    """
    if version > current:
        raise InvalidRequest(
            f"{kind.value} version {version} is newer than version {current} of this program: "
            "upgrade the program"
        )
    for step in range(version, current):
        upcaster = upcasters.get((kind, step))
        if upcaster is None:
            raise InvalidRequest(f"{kind.value} version {step} cannot be upgraded to {step + 1}")
        data = upcaster(data)
    return data


def encode_batch(events: Sequence[bytes]) -> bytes:
    """Return the bytes of one message with several events: a CloudEvents JSON batch, or the event
    itself if there is only one.
    """
    return events[0] if len(events) == 1 else b"[%b]" % b",".join(events)


def decode_all(raw: bytes) -> list[Event | InvalidRequest]:
    """Return the events of a message, one or a batch, in order, with an error in place of each item
    that is not a valid event.

    Raises `InvalidRequest` if the message is neither.
    """
    message = load_json(raw)
    if not isinstance(message, list):
        return [_to_event(message)]
    results: list[Event | InvalidRequest] = []
    for item in message:
        try:
            results.append(_to_event(item))
        except InvalidRequest as error:
            results.append(error)
    return results


def decode(raw: bytes) -> Event:
    """Return the event in `raw`. Raises `InvalidRequest` with what is wrong with it."""
    return _to_event(load_json(raw))


def _to_event(envelope: Any) -> Event:
    if not _is_envelope(envelope):
        envelope = _check_object(envelope)
    kind = _TYPES_BY_NAME.get(envelope["type"])
    if kind is None:
        raise InvalidRequest(f"unknown event type {envelope['type'][:80]!r}")
    current = EVENT_SPECS[kind].version
    return Event(
        id=envelope["id"],
        type=kind,
        subject=envelope.get("subject", ""),
        data=upcast(
            kind,
            _read_version(envelope.get("dataschema", ""), kind),
            envelope["data"],
            current=current,
        ),
        source=envelope["source"],
        version=current,
        correlationid=envelope.get("correlationid", ""),
        causationid=envelope.get("causationid", ""),
        traceparent=envelope.get("traceparent", ""),
        tenant=envelope.get("tenant", "local"),
        time=envelope.get("time", ""),
    )


def _is_envelope(value: Any) -> bool:
    """Return whether the value certainly fits `_Envelope`, as most messages do: a quick check."""
    if not isinstance(value, dict) or not isinstance(value.get("data"), dict):
        return False
    for name in _REQUIRED:
        if not isinstance(value.get(name), str):
            return False
    for name in _OPTIONAL:
        if not isinstance(value.get(name, ""), str):
            return False
    return (
        value["specversion"].startswith("1.")
        and 0 < len(value["id"]) <= _MAX_ID_CHARS
        and value["source"] != ""
    )


def _check_object(value: Any) -> dict[str, Any]:
    try:
        return _Envelope.model_validate(value).model_dump()
    except ValidationError as error:
        raise InvalidRequest(f"not a CloudEvent: {describe_errors(error, 'message')}") from error
