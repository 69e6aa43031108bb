"""Spans and metrics of a council's model calls and checks.

Model calls follow OpenTelemetry's conventions for generative AI.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter

from moothall import telemetry
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, ChatRequest, Message
from moothall.domain.evidence import CheckRun, Verdict
from moothall.errors import MoothallError
from moothall.telemetry.genai import provider_name, server_attributes

RecordReply = Callable[[ChatReply], ChatReply]
_NO_MODEL, _CHAT = "unknown", "chat"


@dataclass(frozen=True, slots=True)
class CalledModel:
    """The model that a call is sent to, and the URL of its first server; '' for the local one."""

    name: str
    base_url: str


@contextmanager
def model_call(
    request: ChatRequest,
    messages: Sequence[Message],
    called: CalledModel,
    clean: Callable[[str], str],
) -> Iterator[RecordReply]:
    """Trace one call; pass its reply to the yielded function. `messages` are those that are sent,
    without secrets.
    """
    started = perf_counter()
    model, outcome = _NO_MODEL, "INTERNAL"
    with (
        telemetry.span("chat", _request_attributes(request, called), kind="client") as span,
        telemetry.metrics.MODEL_CALLS_IN_FLIGHT.track_inprogress(),
    ):

        def record_reply(reply: ChatReply) -> ChatReply:
            nonlocal model, outcome
            model, outcome = reply.model or _NO_MODEL, "ok"
            span.set(_reply_attributes(reply, called.name or model, model))
            if telemetry.wants_content():
                span.set(
                    {
                        "gen_ai.input.messages": _as_json(messages),
                        "gen_ai.output.messages": _output_json(reply, clean),
                    }
                )
            _count_usage(reply.usage, model, called)
            return reply

        try:
            yield record_reply
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except MoothallError as error:
            outcome = error.code
            raise
        finally:
            telemetry.metrics.MODEL_CALLS.add(model, outcome)
            seconds = perf_counter() - started
            telemetry.metrics.MODEL_CALL_SECONDS.observe(seconds, model)
            error_type = "" if outcome == "ok" else outcome
            telemetry.metrics.GENAI_SECONDS.observe(
                seconds, *_metric_labels(called, model), error_type
            )


def _metric_labels(called: CalledModel, model: str) -> tuple[str, str, str, str]:
    return _CHAT, provider_name(called.base_url), called.name or model, model


def _request_attributes(
    request: ChatRequest, called: CalledModel
) -> dict[str, str | int | float | tuple[str, ...]]:
    task_key, seat, phase, _ = request.call_id.split("/")
    return {
        **server_attributes(called.base_url),
        "gen_ai.operation.name": _CHAT,
        "gen_ai.conversation.id": task_key,
        "gen_ai.request.model": called.name,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.seed": request.seed,
        "gen_ai.request.stop_sequences": request.stop,
        "gen_ai.output.type": "json" if request.schema else "text",
        "moothall.call_id": request.call_id,
        "moothall.seat": seat,
        "moothall.phase": phase,
    }


def _reply_attributes(
    reply: ChatReply, requested: str, model: str
) -> dict[str, str | int | tuple[str, ...]]:
    return {
        "gen_ai.response.model": model,
        "gen_ai.request.model": requested,
        "gen_ai.response.finish_reasons": (reply.finish_reason,) if reply.finish_reason else (),
        "gen_ai.usage.input_tokens": reply.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": reply.usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": reply.usage.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": reply.usage.reasoning_tokens,
    }


def _count_usage(usage: Usage, model: str, called: CalledModel) -> None:
    labels = _metric_labels(called, model)
    telemetry.metrics.GENAI_TOKENS.observe(usage.prompt_tokens, *labels, "input")
    telemetry.metrics.GENAI_TOKENS.observe(usage.completion_tokens, *labels, "output")
    tokens = telemetry.metrics.MODEL_TOKENS
    tokens.add(model, "prompt", amount=usage.prompt_tokens)
    tokens.add(model, "cached", amount=usage.cached_tokens)
    tokens.add(model, "completion", amount=usage.completion_tokens)
    tokens.add(model, "reasoning", amount=usage.reasoning_tokens)
    if usage.cost_usd:
        telemetry.metrics.MODEL_COST.add(model, amount=usage.cost_usd)


@contextmanager
def watch_check(check: str, workspace: str) -> Iterator[Callable[[CheckRun], CheckRun]]:
    """Trace one check on a clean checkout; pass its run to the yielded function."""
    label = telemetry.metrics.check_label(check)
    attributes = {"moothall.check": check, "moothall.workspace": workspace}
    with telemetry.span("check", attributes) as span, telemetry.metrics.CHECK_SECONDS.time(label):

        def record_run(run: CheckRun) -> CheckRun:
            span.set({"moothall.verdict": run.verdict, "moothall.duration_ms": run.duration_ms})
            # A failed test is a result, not an error.
            if run.verdict in {Verdict.ERRORED, Verdict.MISSING}:
                span.fail(run.verdict)
            telemetry.metrics.CHECKS.add(label, run.verdict)
            return run

        yield record_run


def _as_json(messages: Sequence[Message]) -> str:
    """Return messages as `gen_ai.input.messages`."""
    documents = [{"role": message.role, "parts": _parts(message)} for message in messages]
    return json.dumps(documents, ensure_ascii=False)


def _parts(message: Message) -> list[dict[str, str]]:
    if message.role == "tool":
        return [{"type": "tool_call_response", "id": message.call_id, "response": message.content}]
    text = [{"type": "text", "content": message.content}] if message.content else []
    calls = [
        {"type": "tool_call", "id": call.call_id, "name": call.name, "arguments": call.arguments}
        for call in message.calls
    ]
    return text + calls


def _output_json(reply: ChatReply, clean: Callable[[str], str]) -> str:
    """Return a reply as `gen_ai.output.messages`, without secrets."""
    calls = tuple(replace(call, arguments=clean(call.arguments)) for call in reply.calls)
    parts = _parts(Message("assistant", clean(reply.text), calls))
    document = {"role": "assistant", "parts": parts, "finish_reason": reply.finish_reason}
    return json.dumps([document], ensure_ascii=False)
