"""The event contract as an AsyncAPI 3 document, generated from the registry."""

from __future__ import annotations

import re
from typing import Any

from moothall import __version__
from moothall.domain.event import Channel
from moothall.events.event_specs import ADDRESSES, EVENT_SPECS, EventSpec
from moothall.events.nats.stream_store import MESSAGE_ID
from moothall.events.registry import DEAD, DURABLES, SIGNALS, STREAMS, WORK, SignalSpec, stream_of

_PARAMETER = re.compile(r"\{(\w+)\}")
_TEXT = {"type": "string"}


def _name(address: str) -> str:
    return re.sub(r"\W+", "_", address).strip("_")


def _parameters(address: str) -> dict[str, Any]:
    return {
        name: {"description": f"the {name.replace('_', ' ')}"}
        for name in _PARAMETER.findall(address)
    }


def _data_schema(spec: EventSpec) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [name for name in _PARAMETER.findall(spec.subject) if name != "tenant"],
        "properties": {name: {"description": about} for name, about in spec.fields.items()},
    }


def _message(spec: EventSpec) -> dict[str, Any]:
    return {
        "name": spec.type.value,
        "title": spec.type.value,
        "contentType": "application/cloudevents+json",
        "headers": {
            "type": "object",
            "properties": {MESSAGE_ID: {"type": "string", "description": "the event's id"}},
        },
        "payload": {
            "type": "object",
            "required": ["specversion", "id", "type", "source", "data"],
            "properties": {
                "specversion": {"const": "1.0"},
                "id": {
                    "type": "string",
                    "description": "made from subject, cause and ordinal: a repeat has the same id",
                },
                "type": {"const": spec.type.value},
                "source": {"type": "string", "description": "the kind of process"},
                "subject": {"type": "string", "description": "the thing's id"},
                "time": {"type": "string", "format": "date-time"},
                "datacontenttype": {"const": "application/json"},
                "dataschema": {"const": f"moothall:{spec.type.value}:{spec.version}"},
                "correlationid": {"type": "string", "description": "the story or task"},
                "causationid": {
                    "type": "string",
                    "description": "the id of the event that led here",
                },
                "traceparent": _TEXT,
                "tenant": _TEXT,
                "data": _data_schema(spec),
            },
        },
    }


def _batch(names: list[str]) -> dict[str, Any]:
    return {
        "name": "batch",
        "title": "several of these events, in the order of publication",
        "contentType": "application/cloudevents-batch+json",
        "headers": {
            "type": "object",
            "properties": {
                MESSAGE_ID: {"type": "string", "description": "made of the events' ids"}
            },
        },
        "payload": {
            "type": "array",
            "minItems": 2,
            "items": {
                "anyOf": [{"$ref": f"#/components/messages/{name}/payload"} for name in names]
            },
        },
    }


def asyncapi() -> dict[str, Any]:
    """Return the document: a channel for each subject, a message for each event type, streams and
    consumers as extensions.
    """
    messages = {_name(spec.type.value): _message(spec) for spec in EVENT_SPECS.values()}
    channels = _event_channels()
    results = channels[_name(ADDRESSES[Channel.RESULTS])]
    messages["batch"] = _batch(list(results["messages"]))
    results["messages"]["batch"] = {"$ref": "#/components/messages/batch"}
    channels |= _work_channel()
    for signal in SIGNALS:
        name = _name(signal.subject)
        messages[name] = _signal_message(signal)
        channels[name] = {
            "address": signal.subject,
            "parameters": _parameters(signal.subject),
            "messages": {name: {"$ref": f"#/components/messages/{name}"}},
        }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Moothall events",
            "version": __version__,
            "description": "CloudEvents 1.0 in structured JSON over NATS JetStream. Large "
            "values are "
            '{"$blob": sha256, "bytes": n} and lie in the object store `blobs`. '
            f"What could not be handled is under `dead.<subject>` in {DEAD.name}.",
        },
        "defaultContentType": "application/cloudevents+json",
        "channels": channels,
        "operations": {
            name: {"action": "send", "channel": {"$ref": f"#/channels/{name}"}} for name in channels
        },
        "components": {"messages": messages},
        "x-streams": _streams(),
        "x-consumers": _consumers(),
    }


def _event_channels() -> dict[str, dict[str, Any]]:
    """Return a channel for each subject of events, with the events on it."""
    channels: dict[str, dict[str, Any]] = {}
    for spec in EVENT_SPECS.values():
        channel = channels.setdefault(
            _name(spec.subject),
            {
                "address": spec.subject,
                "parameters": _parameters(spec.subject),
                "messages": {},
                "x-stream": stream_of(_PARAMETER.sub("*", spec.subject)).name,
            },
        )
        channel["messages"][_name(spec.type.value)] = {
            "$ref": f"#/components/messages/{_name(spec.type.value)}"
        }
    return channels


def _work_channel() -> dict[str, dict[str, Any]]:
    """Return the channel from which hosts take deliberations."""
    requested = _name("moothall.deliberation.requested")
    address = ADDRESSES[Channel.WORK]
    return {
        _name(address): {
            "address": address,
            "parameters": _parameters(address),
            "messages": {requested: {"$ref": f"#/components/messages/{requested}"}},
            "x-stream": WORK.name,
        }
    }


def _signal_message(signal: SignalSpec) -> dict[str, Any]:
    return {
        "name": signal.subject,
        "summary": signal.about,
        "contentType": "application/json",
        "payload": {
            "type": "object",
            "properties": {key: {"description": about} for key, about in signal.fields.items()},
        },
    }


def _streams() -> dict[str, Any]:
    return {
        spec.name: {
            "subjects": list(spec.subjects),
            "retention": spec.retention,
            "maxAgeSeconds": spec.max_age,
            "description": spec.about,
        }
        for spec in STREAMS
    }


def _consumers() -> dict[str, Any]:
    return {
        spec.name: {
            "stream": spec.stream,
            "filters": list(spec.filters),
            "description": spec.about,
        }
        for spec in DURABLES.values()
    }
