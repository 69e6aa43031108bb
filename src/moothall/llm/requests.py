"""The body of a chat request, and the usage of its reply. Translate schemas to the subset that
strict servers accept, and replies back. Extensions of the common protocol, and vLLM's
metrics.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import orjson

from moothall import telemetry
from moothall.config import LlmSettings
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatRequest, FunctionCall, Message
from moothall.domain.ids import digest
from moothall.llm.server_errors import read_count

# Translate schemas to the subset that strict servers accept, and replies back.
#
# In the subset, the root is an object without `anyOf`, every property is required (optional ones
# may be null), additional properties are forbidden, and keywords that limit sizes are not allowed.


_UNSUPPORTED_KEYWORDS = frozenset(
    {
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "default",
        "title",
    }
)


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema in the strict subset. Alternatives at the root are merged into one object in
    which the properties of the other alternatives are null.
    """
    alternatives = schema.get("anyOf")
    if not isinstance(alternatives, list) or not all(
        isinstance(alternative, Mapping) and "properties" in alternative
        for alternative in alternatives
    ):
        return _strict_schema(schema)
    properties: dict[str, list[Any]] = {}
    for alternative in alternatives:
        for name, value in alternative["properties"].items():
            if value not in properties.setdefault(name, []):
                properties[name].append(value)
    required = set.intersection(
        *(set(alternative.get("required", ())) for alternative in alternatives)
    )
    merged = {
        "type": "object",
        "properties": {
            name: values[0] if len(values) == 1 else {"anyOf": values}
            for name, values in properties.items()
        },
        "required": [name for name in properties if name in required],
    }
    return _strict_schema(merged)


def _strict_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    strict: dict[str, Any] = _translate_schema(schema)
    return strict


def _translate_schema(value: Any) -> Any:
    if isinstance(value, list):
        return [_translate_schema(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    supported = {name: item for name, item in value.items() if name not in _UNSUPPORTED_KEYWORDS}
    if not isinstance(supported.get("properties"), Mapping):
        translated = {
            name: item if name in {"enum", "const"} else _translate_schema(item)
            for name, item in supported.items()
        }
        if translated.get("type") == "object":
            translated |= {"properties": {}, "required": [], "additionalProperties": False}
        return translated
    required = set(supported.get("required", ()))
    properties = {
        name: _translate_schema(item)
        if name in required
        else _make_nullable(_translate_schema(item))
        for name, item in value["properties"].items()
    }
    other_fields = {
        name: _translate_schema(item)
        for name, item in supported.items()
        if name not in {"properties", "required", "additionalProperties"}
    }
    return other_fields | {
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _make_nullable(schema: Any) -> dict[str, Any]:
    return (
        {"anyOf": [*schema["anyOf"], {"type": "null"}]}
        if set(schema) == {"anyOf"}
        else {"anyOf": [schema, {"type": "null"}]}
    )


def without_nulls(text: str) -> str:
    """Return a JSON reply without its null fields. In the strict subset, null stands for a missing
    optional field.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return (
        json.dumps(_drop_nulls(value), ensure_ascii=False).encode("utf-8", "replace").decode()
        if isinstance(value, dict)
        else text
    )


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _drop_nulls(item) for name, item in value.items() if item is not None}
    return [_drop_nulls(item) for item in value] if isinstance(value, list) else value


# Extensions of the common protocol, and vLLM's metrics. No I/O.
#
# vLLM lists its models as `owned_by: vllm`. Only vLLM is sent these fields:
#
# - `cache_salt`, one for each tenant: a tenant cannot learn by timing how the prompts of another
#   tenant begin.
# - `priority`: lower is served first, so that nearly finished work comes before new work.
# - `logprobs`, for calls that end in a number: the probabilities of the other numbers.
#
# vLLM's metrics show its load and the share of prompt tokens from its cache.


log = telemetry.get_logger(__name__)

_VLLM_OWNER = "vllm"
_TOP_LOGPROBS = 11  # scores are numbers from 0 to 10
# A person waits for the coach. Reviews and revisions end deliberations, proposals start them.
_PHASE_PRIORITIES = {
    "coach": 0,
    "verify": 1,
    "critique": 2,
    "revise": 3,
    "propose": 4,
    "plan": 5,
    "derive": 5,
}
_LOWEST_PRIORITY = 5


class Dialect:
    """The extra fields for one server. `Capabilities` removes those that the server refuses."""

    def __init__(self, settings: LlmSettings, owners: Iterable[str] = ()) -> None:
        self.is_vllm = _VLLM_OWNER in owners
        self._sent = {"cache_salt", "priority", "logprobs"} if self.is_vllm else set[str]()
        self._secret = settings.api_key.get_secret_value() if settings.api_key else ""
        self._logged: set[str] = set()

    def additions(self, request: ChatRequest) -> dict[str, Any]:
        """Return the extra fields for this request."""
        fields: dict[str, Any] = {}
        if "cache_salt" in self._sent:
            fields["cache_salt"] = digest("cache", request.tenant, self._secret)[:32]
        if "priority" in self._sent:
            fields["priority"] = priority_of(request.call_id)
        if "logprobs" in self._sent and request.scored:
            fields |= {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
        return fields

    def check_usage(self, usage: Mapping[str, Any]) -> None:
        """Warn once if vLLM does not report cached tokens, since every number about caching would
        be 0.
        """
        if self.is_vllm and usage and not isinstance(usage.get("prompt_tokens_details"), dict):
            self._warn_once(
                "the model server does not report cached tokens; they are counted as 0",
                "--enable-prompt-tokens-details",
            )

    def check_metrics(self, metrics: ServerMetrics) -> None:
        """Warn once about metrics that vLLM does not report. Their names differ between its
        versions.
        """
        if metrics.missing:
            self._warn_once(
                "the model server does not report " + ", ".join(metrics.missing),
                "a version of vLLM near 0.32",
            )

    def check_whitespace(self, text: str) -> None:
        """Warn once if a truncated reply within a schema is mostly white space, as small models
        produce it.
        """
        if self.is_vllm and len(text) > 2 * len("".join(text.split())):
            backend = '{"backend": "xgrammar", "disable_any_whitespace": true}'
            needs = f"--structured-outputs-config '{backend}'"
            self._warn_once(
                "a reply within a schema was truncated, and most of it was white space", needs
            )

    def _warn_once(self, message: str, needs: str) -> None:
        if message not in self._logged:
            self._logged.add(message)
            log.warning(message, needs=needs)


def priority_of(call_id: str) -> int:
    """Return a call's priority in the server's queue, from its phase; 0 is served first."""
    phase = (call_id.split("/") + [""] * 3)[2]
    return _PHASE_PRIORITIES.get(phase, _LOWEST_PRIORITY)


# The names are those of vLLM 0.32; they differ between versions. A missing metric is None and
# listed in `missing`, never read as 0.
_METRIC_NAMES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "cache_used": "vllm:kv_cache_usage_perc",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "cached_tokens": "vllm:prompt_tokens_cached_total",
}


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """Metrics of a vLLM server. `running` and `waiting` are current requests, `cache_used` is a
    share from 0 to 1, and tokens are counted since the server's start.
    """

    running: float | None = None
    waiting: float | None = None
    cache_used: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the metrics that the server did not report."""
        return tuple(name for field, name in _METRIC_NAMES.items() if getattr(self, field) is None)


def read_metrics(text: str) -> ServerMetrics:
    """Read metrics in the Prometheus text format. Values of several engines are added; of shares
    the largest is used.
    """
    samples: dict[str, list[float]] = {}
    for line in text.splitlines():
        name, value = _read_sample(line)
        if value is not None:
            samples.setdefault(name, []).append(value)
    return ServerMetrics(
        **{
            field: _aggregate_values(field, samples.get(name))
            for field, name in _METRIC_NAMES.items()
        }
    )


def _aggregate_values(field: str, values: list[float] | None) -> float | None:
    if not values:
        return None
    return max(values) if field == "cache_used" else sum(values)


def _read_sample(line: str) -> tuple[str, float | None]:
    """Return name and value of a line. The value is None for a comment, and for anything but a
    finite number of at least 0.
    """
    if line.startswith("#"):
        return "", None
    name = line.partition("{")[0].partition(" ")[0]
    _, _, value_text = line.rpartition("}") if "{" in line else line.partition(" ")
    try:
        value = float(value_text.split()[0])
    except (IndexError, ValueError):
        return name, None
    return name, value if isfinite(value) and value >= 0 else None


# The body of a chat request, and the usage of its reply.


JSON = {"Content-Type": "application/json"}
STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
_EMPTY = "(nothing)"
"""Sent for an empty reply in later requests, since some servers refuse messages without content."""


def chat_body(request: ChatRequest, model: str) -> dict[str, Any]:
    """Return the body of `/v1/chat/completions` as OpenAI documents it."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [render_message(message) for message in request.messages],
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        **STREAMED,
    }
    if request.stop:
        body["stop"] = list(request.stop)
    if request.schema:
        json_schema = {
            "name": request.schema.name,
            "strict": True,
            "schema": dict(request.schema.schema),
        }
        body["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                },
            }
            for tool in request.tools
        ]
        body["parallel_tool_calls"] = True
    return body


def render_message(message: Message) -> dict[str, Any]:
    """Return a message in the form of chat completions."""
    rendered: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        rendered["tool_call_id"] = message.call_id
    if message.role != "assistant":
        return rendered
    reasoning = read_reasoning(message.reasoning)
    extras = reasoning.pop("extras", {})
    if message.calls:
        rendered["content"] = message.content or None
        rendered["tool_calls"] = [_render_call(call, extras) for call in message.calls]
    elif not message.content.strip():
        rendered["content"] = _EMPTY
    if isinstance(thinking := reasoning.pop("thinking", None), str):
        parts = [{"type": "thinking", "thinking": [{"type": "text", "text": thinking}]}]
        rendered["content"] = [*parts, {"type": "text", "text": message.content}]
    if isinstance(tagged := reasoning.pop("think", None), str):
        rendered["content"] = f"<think>{tagged}</think>\n\n{message.content}"
    return rendered | {name: value for name, value in reasoning.items() if name in REASONING_FIELDS}


REASONING_TEXT_FIELDS = ("reasoning_content", "reasoning")
"""The fields of a reply in which servers return the text of the reasoning."""
REASONING_FIELDS = (*REASONING_TEXT_FIELDS, "reasoning_details", "items")
"""The fields of reasoning that are sent back."""


def read_reasoning(text: str) -> dict[str, Any]:
    """Return the fields of stored reasoning; an empty object if there are none."""
    try:
        fields = json.loads(text) if text else {}
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _render_call(call: FunctionCall, extras: object) -> dict[str, Any]:
    """Return a call of an earlier reply. Arguments that are not a JSON object are replaced by an
    empty one, because servers fail to parse them.
    """
    function = {
        "name": call.name,
        "arguments": call.arguments if is_object(call.arguments) else "{}",
    }
    extra = extras.get(call.call_id) if isinstance(extras, dict) else None
    return {"id": call.call_id, "type": "function", "function": function} | (
        extra if isinstance(extra, dict) else {}
    )


def is_object(text: str) -> bool:
    """Return whether a text is a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def encode(body: dict[str, Any]) -> bytes:
    """Return the body's bytes."""
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:  # a lone surrogate, which a file may contain
        return json.dumps(body, default=dict).encode()


_CHARS_PER_TOKEN = 3  # low, so that estimates are high and stay within a budget


def count_usage(
    reported: Mapping[str, Any], prompt_chars: int, reply_bytes: int, settings: LlmSettings
) -> Usage:
    """Return the usage that the server reported; a high estimate if it reported none or an
    impossible one.
    """
    prompt, completion = (
        read_count(reported.get("prompt_tokens")),
        read_count(reported.get("completion_tokens")),
    )
    cached = _usage_detail(reported, "prompt_tokens_details", "cached_tokens") or read_count(
        reported.get("prompt_cache_hit_tokens")
    )
    reasoning = _usage_detail(reported, "completion_tokens_details", "reasoning_tokens")
    if completion and read_count(reported.get("total_tokens")) == prompt + completion + reasoning:
        completion += reasoning  # some servers count reasoning beside the completion
    prompt = prompt or prompt_chars // _CHARS_PER_TOKEN + 1
    completion = completion or reply_bytes // _CHARS_PER_TOKEN + 1
    cached, reasoning = min(cached, prompt), min(reasoning, completion)
    cost = (
        (prompt - cached) * settings.price_in
        + cached * _price(settings.price_cached, settings.price_in)
        + completion * settings.price_out
    )
    return Usage(prompt, cached, completion, 1, cost / 1_000_000, reasoning)


def _usage_detail(reported: Mapping[str, Any], group: str, name: str) -> int:
    details = reported.get(group)
    return read_count(details.get(name)) if isinstance(details, dict) else 0


def _price(price: float | None, default: float) -> float:
    return default if price is None else price
