"""Spans and metrics of a council's model calls and checks.

Model calls follow OpenTelemetry's conventions for generative AI.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from moothall import telemetry
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, ChatRequest, Message
from moothall.domain.evidence import CheckRun, Verdict
from moothall.errors import MoothallError

RecordReply = Callable[[ChatReply], ChatReply]
_NO_MODEL = "unknown"


@contextmanager
def model_call(
    request: ChatRequest, messages: Sequence[Message], clean: Callable[[str], str]
) -> Iterator[RecordReply]:
    """Trace one call; pass its reply to the yielded function. `messages` are those that are sent,
    without secrets.
    """
    started = perf_counter()
    model, outcome = _NO_MODEL, "INTERNAL"
    with (
        telemetry.span("chat", _request_attributes(request), kind="client") as span,
        telemetry.metrics.MODEL_CALLS_IN_FLIGHT.track_inprogress(),
    ):

        def record_reply(reply: ChatReply) -> ChatReply:
            nonlocal model, outcome
            model, outcome = reply.model or _NO_MODEL, "ok"
            span.set(_reply_attributes(reply, model))
            if telemetry.wants_content():
                span.set(
                    {
                        "gen_ai.input.messages": _as_json(messages),
                        "gen_ai.output.messages": clean(reply.text),
                    }
                )
            _count_usage(reply.usage, model)
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
            telemetry.metrics.MODEL_CALL_SECONDS.observe(perf_counter() - started, model)


def _request_attributes(request: ChatRequest) -> dict[str, str | int | float]:
    _, seat, phase, _ = request.call_id.split("/")
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.seed": request.seed,
        "gen_ai.output.type": "json" if request.schema else "text",
        "moothall.call_id": request.call_id,
        "moothall.seat": seat,
        "moothall.phase": phase,
    }


def _reply_attributes(reply: ChatReply, model: str) -> dict[str, str | int]:
    return {
        "gen_ai.response.model": model,
        "gen_ai.request.model": model,
        "gen_ai.response.finish_reasons": reply.finish_reason,
        "gen_ai.usage.input_tokens": reply.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": reply.usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": reply.usage.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": reply.usage.reasoning_tokens,
    }


def _count_usage(usage: Usage, model: str) -> None:
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
    return json.dumps(
        [{"role": message.role, "content": message.content} for message in messages],
        ensure_ascii=False,
    )
