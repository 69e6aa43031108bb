"""Publishing of a deliberation: its events, each once, its partial replies, spans and metrics; and
the resource usage of agents, with their progress and limits.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from moothall import telemetry
from moothall.deliberation.prompts.reply import answer_so_far
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, ChatRequest, Message, Writing
from moothall.domain.codec import dump, load
from moothall.domain.event import Event, EventType
from moothall.domain.evidence import CheckRun, Evidence, Verdict
from moothall.domain.proposal import Proposal, seat_progress
from moothall.domain.task import Deliberation
from moothall.domain.tool import Bounds, ToolResult, ToolStatus, ToolUsage
from moothall.errors import LimitExceeded, MoothallError, Temporary
from moothall.ports import Log, Receipt
from moothall.telemetry.metrics import provider_name, server_attributes
from moothall.telemetry.tracing import write_of

# Resource usage of agents: totals, progress, and their own limits.


_MB = 10**6


def sum_usage(results: Iterable[ToolResult], runs: Mapping[str, CheckRun]) -> ToolUsage:
    """Return the usage of tools and checks, as measured by the kernel."""
    return sum(
        (*(result.usage for result in results), *(run.usage for run in runs.values())), ToolUsage()
    )


def check_bounds(
    bounds: Bounds, results: Iterable[ToolResult], runs: Mapping[str, CheckRun]
) -> None:
    """Raise `LimitExceeded` if a tool or check was stopped by the agent's own limits."""
    limits: dict[str, str] = {}
    if bounds.memory_bytes:
        limits[ToolStatus.MEMORY] = f"max_memory, {bounds.memory_bytes / _MB:g} MB"
    if bounds.cpu_share:
        limits[ToolStatus.CPU] = (
            f"max_cpu, {bounds.cpu_share:.0%} of a processor over the time that it may take"
        )
    for name, status in (
        *((result.tool, result.status) for result in results),
        *((name, run.status) for name, run in runs.items()),
    ):
        if limit := limits.get(status):
            raise LimitExceeded(
                f"{name} hit the agent's own limit ({limit}), and the agent was stopped"
            )


@dataclass(slots=True)
class ProgressEstimate:
    """The progress of a deliberation's agent, event by event.

    `progress` never falls, not even over a restart: it starts with the recorded value.
    """

    deliberation: Deliberation
    progress: float = 0.0
    _seat_progress: dict[str, float] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=dict)
    _calls: int = 0
    _spent: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _tools: dict[str, ToolUsage] = field(default_factory=dict)
    _checks: Mapping[str, str] = field(default_factory=dict)

    def update(self, kind: EventType, data: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the data of `agent.progress` after an event; None if the event changes nothing."""
        seat = str(data.get("seat") or "")
        if (
            self.deliberation.agent is None
            or seat not in self.deliberation.seats
            or kind not in _CURRENT_TASKS
        ):
            return None
        if kind is EventType.SEAT_TURN:
            self._add_turn(seat, data)
        completed_share = seat_progress(
            self._turns.get(seat, 0),
            self.deliberation.max_turns,
            proposed=kind in _PROPOSAL_EVENTS,
            ended=kind is EventType.SEAT_FINISHED,
        )
        self._seat_progress[seat] = max(completed_share, self._seat_progress.get(seat, 0.0))
        self.progress = max(
            self.progress,
            round(sum(self._seat_progress.values()) / len(self.deliberation.seats), 3),
        )
        return {
            "agent_id": self.deliberation.task_id,
            "agent": self.deliberation.agent.name,
            "seat": seat,
            "workstream": self.deliberation.agent.workstream,
            "progress": self.progress,
            "current_task": _CURRENT_TASKS[kind],
            "metrics": self._progress_metrics(),
        }

    def _add_turn(self, seat: str, data: Mapping[str, Any]) -> None:
        self._turns[seat] = self._turns.get(seat, 0) + 1
        self._calls += len(data["operations"])
        self._spent[seat], self._tools[seat] = data["usage"], load(ToolUsage, data["tools"])
        self._checks = data["checks"] or self._checks

    def _progress_metrics(self) -> Mapping[str, float]:
        spent = self._spent.values()
        tools = sum(self._tools.values(), ToolUsage())
        return {
            "turns": sum(self._turns.values()),
            "tool_calls": self._calls,
            "tokens": sum(usage["prompt_tokens"] + usage["completion_tokens"] for usage in spent),
            "cost_usd": sum(usage["cost_usd"] for usage in spent),
            "checks": len(self._checks),
            "checks_passed": sum(verdict == "passed" for verdict in self._checks.values()),
            **dump(tools),
        }


_CURRENT_TASKS: Mapping[EventType, str] = {
    EventType.SEAT_STARTED: "begun",
    EventType.SEAT_TURN: "at work",
    EventType.SEAT_PROPOSED: "proposed, being re-checked",
    EventType.SEAT_REVISED: "revised, being re-checked",
    EventType.SEAT_FINISHED: "ended",
}
_PROPOSAL_EVENTS = {EventType.SEAT_PROPOSED, EventType.SEAT_REVISED}


# Publishing.


# Publishing the events of a deliberation: each event once, with an id that a repeat shares.


@dataclass(frozen=True, slots=True)
class EventWriter:
    """Publishes to the log of one deliberation.

    Publishing does not wait for the acknowledgement; only `flush` does. A crash loses the last
    events together with the last steps: what is recorded is always a prefix of what was published.
    """

    log: Log
    deliberation: Deliberation
    source: str = "host"
    recorded_ids: frozenset[str] = frozenset()
    """The ids of the events of earlier runs; they are not published again."""
    progress: ProgressEstimate | None = None
    """The progress of the deliberation's agent, if it has one."""
    _receipts: deque[Receipt] = field(default_factory=deque)

    async def publish(self, kind: EventType, ordinal: str, **data: Any) -> None:
        """Publish `data` and the task's id. `ordinal` distinguishes events of one type, across
        restarts.

        Raises `BusUnavailable` if an earlier event could not be recorded.
        """
        while self._receipts and self._receipts[0].done():
            await self._receipts.popleft()
        event = write_of(self.deliberation, kind, data, ordinal=ordinal, source=self.source)
        await self._post_event(event)
        if self.progress is not None and (progress := self.progress.update(kind, data)) is not None:
            await self._post_event(
                write_of(
                    self.deliberation,
                    EventType.AGENT_PROGRESS,
                    progress,
                    ordinal=event.id,
                    source=self.source,
                )
            )

    async def publish_evidence(
        self, proposal: Proposal, evidence: Evidence, at: str = "", **data: Any
    ) -> None:
        """Publish evidence about a proposal, once for each `at`; by default, that is the check of
        the evidence.
        """
        await self.publish(
            EventType.CHECK_FINISHED,
            f"{proposal.candidate}/{proposal.fingerprint}/{at or f'check/{evidence.check}'}",
            seat=proposal.seat,
            candidate=proposal.candidate,
            fingerprint=proposal.fingerprint,
            evidence=dump(evidence),
            **data,
        )

    async def _post_event(self, event: Event) -> None:
        if event.id not in self.recorded_ids:
            self._receipts.append(await self.log.post(event))

    async def flush(self) -> None:
        """Wait until all published events are durable. Raises `BusUnavailable` if one cannot be
        recorded.
        """
        while self._receipts:
            await self._receipts.popleft()


# Spans and metrics of a council's model calls and checks.
#
# Model calls follow OpenTelemetry's conventions for generative AI.


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
    started_at = perf_counter()
    model, outcome = _NO_MODEL, "INTERNAL"
    attributes = _request_attributes(request, called) if telemetry.is_recording() else None
    with (
        telemetry.span("chat", attributes, kind="client") as span,
        telemetry.metrics.MODEL_CALLS_IN_FLIGHT.track_inprogress(),
    ):

        def record_reply(reply: ChatReply) -> ChatReply:
            nonlocal model, outcome
            model, outcome = reply.model or _NO_MODEL, "ok"
            if attributes is not None:
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
            seconds = perf_counter() - started_at
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
    documents = [{"role": message.role, "parts": _message_parts(message)} for message in messages]
    return json.dumps(documents, ensure_ascii=False)


def _message_parts(message: Message) -> list[dict[str, str]]:
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
    parts = _message_parts(Message("assistant", clean(reply.text), calls))
    document = {"role": "assistant", "parts": parts, "finish_reason": reply.finish_reason}
    return json.dumps([document], ensure_ascii=False)


# Partial replies: what a model is writing, published to current observers and stored nowhere.


log = telemetry.get_logger(__name__)

PublishPartial = Callable[[Writing], Awaitable[None]]
"""Publishes a partial reply of a seat. The message may be lost."""
_PUBLISH_INTERVAL_SECONDS = 0.5
_REPEAT_AFTER_INTERVALS = 4  # without new text
_MAX_PARTIAL_CHARS = 2_000
_PRIVATE_KEY_HEADER = "-----BEGIN "


class StreamedReply:
    """The partial reply of one call.

    Published text ends with a whole word, so that no part of a secret is shown before the whole is
    recognised. A key in lines of its own is held back until it is complete.
    """

    def __init__(
        self,
        seat: str,
        publish_partial: PublishPartial,
        clean: Callable[[str], str],
        interval_seconds: float = _PUBLISH_INTERVAL_SECONDS,
    ) -> None:
        self._seat = seat
        self._publish_partial = publish_partial
        self._clean = clean
        self.interval_seconds = interval_seconds
        self._pieces: list[str] = []
        self._published_pieces = 0

    def add(self, piece: str) -> None:
        """Add the next piece."""
        self._pieces.append(piece)

    async def publish_periodically(self) -> None:
        """Publish the text, and again at an interval, until cancelled; stop if publishing fails."""
        idle = 0
        try:
            while True:
                idle += 1
                has_new_text = len(self._pieces) > self._published_pieces
                # Text that stays the same is repeated for new observers.
                is_repeat_due = self._published_pieces > 0 and idle >= _REPEAT_AFTER_INTERVALS
                if has_new_text or is_repeat_due:
                    self._published_pieces, idle = len(self._pieces), 0
                    await self._publish_partial(self.writing)
                await asyncio.sleep(self.interval_seconds)
        except Temporary as error:
            log.debug(
                "a partial reply of a seat is not shown", seat=self._seat, reason=error.message
            )

    async def publish_end(self) -> None:
        """Publish that the reply is complete, if any of it was published."""
        if self._published_pieces:
            try:
                await self._publish_partial(Writing(self._seat, ""))
            except Temporary as error:
                log.debug(
                    "a partial reply of a seat is not withdrawn",
                    seat=self._seat,
                    reason=error.message,
                )

    @property
    def writing(self) -> Writing:
        """The text so far, without secrets."""
        text = re.sub(r"\S+\Z", "", "".join(self._pieces))
        key_start = text.rfind(_PRIVATE_KEY_HEADER)
        if key_start >= 0 and "-----END " not in text[key_start:]:
            text = text[:key_start]
        clean = self._clean(text)
        return Writing(self._seat, clean[-_MAX_PARTIAL_CHARS:], answer_so_far(clean))
