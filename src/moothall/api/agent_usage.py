"""The usage of a query in AgentService: `TokenUsage`, and `usage_metrics` on a stream."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from google.protobuf import struct_pb2

from moothall.config import LlmSettings
from moothall.domain.budget import Usage
from moothall.pb.shannon.common import common_pb2 as common

USAGE = "usage_metrics"
"""The id of the tool result that reports usage on a stream."""
MAX_INT32 = 2**31 - 1
"""The largest value of an int32 field."""
_TIERS = {
    "": common.MODEL_TIER_UNSPECIFIED,
    "small": common.MODEL_TIER_SMALL,
    "medium": common.MODEL_TIER_MEDIUM,
    "large": common.MODEL_TIER_LARGE,
}
_INPUT, _OUTPUT = ("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")
"""Spellings, the preferred one first."""


def token_usage(usage: Usage, llm: LlmSettings, served: str) -> common.TokenUsage:
    """Return usage as a message, which names no model if none was called.

    `served`: the model's name at its server.
    """
    message = common.TokenUsage(
        prompt_tokens=min(usage.prompt_tokens, MAX_INT32),
        completion_tokens=min(usage.completion_tokens, MAX_INT32),
        total_tokens=min(usage.tokens, MAX_INT32),
        cost_usd=usage.cost_usd,
    )
    if usage.calls:
        message.model, message.tier, message.provider = (
            llm.model or served,
            _TIERS[llm.tier],
            provider_name(llm),
        )
    return message


def usage_metrics(usage: common.TokenUsage) -> dict[str, Any]:
    """Return the output of the tool result `usage_metrics`, with both spellings of the tokens."""
    metrics: dict[str, Any] = dict.fromkeys(_INPUT, usage.prompt_tokens) | dict.fromkeys(
        _OUTPUT, usage.completion_tokens
    )
    totals = {
        "total_tokens": usage.total_tokens,
        "cost_usd": usage.cost_usd,
        "model": usage.model,
        "provider": usage.provider,
    }
    return metrics | totals


def read_usage(output: struct_pb2.Value) -> common.TokenUsage:
    """Read the usage that a remote agent reports, in either spelling.

    Implausible fields are treated as missing.
    """
    metrics = dict(output.struct_value.fields)
    return common.TokenUsage(
        prompt_tokens=_first_positive(metrics, _INPUT),
        completion_tokens=_first_positive(metrics, _OUTPUT),
        total_tokens=_first_positive(metrics, ("total_tokens",)),
        cost_usd=max(0.0, _number(metrics.get("cost_usd"))),
        model=_text(metrics.get("model")),
        provider=_text(metrics.get("provider")),
    )


def provider_name(llm: LlmSettings) -> str:
    """Return the name of a model's provider: `llm.provider`, else a name for the kind of server."""
    return llm.provider or ("openai-compatible" if llm.base_url else "llama.cpp")


def _first_positive(metrics: Mapping[str, struct_pb2.Value], names: tuple[str, ...]) -> int:
    """Return the first of these fields that is a count above 0; 0 if none is."""
    numbers = (_number(metrics.get(name)) for name in names)
    return next((int(number) for number in numbers if 1 <= number <= MAX_INT32), 0)


def _number(value: struct_pb2.Value | None) -> float:
    """Return a number, which some servers write as text; 0 for anything else."""
    if value is None or value.WhichOneof("kind") not in {"number_value", "string_value"}:
        return 0.0
    try:
        number = value.number_value or float(value.string_value or 0)
    except ValueError:
        return 0.0
    return number if isfinite(number) else 0.0


def _text(value: struct_pb2.Value | None) -> str:
    return "" if value is None else value.string_value
