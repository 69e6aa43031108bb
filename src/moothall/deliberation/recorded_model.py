"""Model calls: paid from the budget, recorded after they came, never repeated once they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from moothall import telemetry
from moothall.authorization.story_budgets import BudgetReservation
from moothall.concurrency import beside
from moothall.config import LlmSettings
from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.instrumentation import model_call
from moothall.deliberation.pause_gate import PauseGate
from moothall.deliberation.prompts.text import fence, tokens
from moothall.deliberation.streaming import PublishPartial, StreamedReply
from moothall.domain.budget import Ledger, Usage
from moothall.domain.chat import ChatReply, ChatRequest, Message, ModelDescription
from moothall.domain.codec import dump, load
from moothall.domain.event import Event, EventType
from moothall.domain.ids import digest
from moothall.domain.secrets import scrub
from moothall.errors import BudgetExceeded, InvalidRequest
from moothall.ports import ChatModel

log = telemetry.get_logger(__name__)

_TOKENS_PER_PRICE = 1_000_000
_RECORDED_FIELDS = (
    "finish_reason",
    "usage",
    "model",
    "duration_ms",
    "digits",
    "calls",
    "reasoning",
)
"""The fields of a reply that are recorded under their own names."""
REMOTE = "elsewhere"
"""The phase of a call that asks a remote agent."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What an earlier run of the same deliberation left: its answers by call id, and by
    `<seat>/<phase>/<round>.<turn>` what it found of a turn (why the seat went in circles, or
    nothing). `words` is what was said to it, by event id; `told` which of that a call heard.
    """

    answers: Mapping[str, ChatReply] = field(default_factory=dict)
    stuck_reasons: Mapping[str, str] = field(default_factory=dict)
    steering: Mapping[str, str] = field(default_factory=dict)
    steering_by_call: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    recorded_ids: frozenset[str] = frozenset()
    """The ids of what is on record."""
    progress: float = 0.0
    """How far its agent was told to be."""

    @property
    def spent(self) -> Usage:
        """What its answers cost."""
        return sum((reply.usage for reply in self.answers.values()), Usage())

    @classmethod
    def of(cls, events: Iterable[Event]) -> Recording:
        """Read the answers out of a replay; other events, and those that are malformed, are passed
        over.
        """
        answers: dict[str, ChatReply] = {}
        stuck_reasons: dict[str, str] = {}
        steering: dict[str, str] = {}
        steering_by_call: dict[str, tuple[str, ...]] = {}
        recorded_ids: set[str] = set()
        progress = 0.0
        for event in events:
            recorded_ids.add(event.id)
            if event.type is EventType.AGENT_PROGRESS and isinstance(
                far := event.data.get("progress"), int | float
            ):
                progress = max(progress, far)
            if event.type is EventType.DELIBERATION_STEERED:
                steering[event.id] = steering_text(event)
            if event.type == EventType.SEAT_TURN and isinstance(event.data.get("stuck"), str):
                where = (str(event.data.get(name)) for name in ("seat", "phase", "round", "turn"))
                stuck_reasons.setdefault("{}/{}/{}.{}".format(*where), event.data["stuck"])
            if event.type == EventType.MODEL_CALLED:
                data = event.data
                if isinstance(heard := data.get("told"), list | tuple):
                    steering_by_call.setdefault(str(data.get("call_id")), tuple(map(str, heard)))
                said = {name: data[name] for name in _RECORDED_FIELDS if name in data}
                try:
                    answers.setdefault(
                        str(data.get("call_id")),
                        load(ChatReply, {"text": data.get("answer"), **said}),
                    )
                except InvalidRequest as error:
                    log.warning(
                        "a recorded call is malformed, and not used",
                        id=event.id,
                        reason=error.message,
                    )
        return cls(
            answers, stuck_reasons, steering, steering_by_call, frozenset(recorded_ids), progress
        )


def steering_text(event: Event) -> str:
    """Return what an event says to a council, fenced: who says it is known, and the system message
    says what counts.
    """
    return fence(
        f"the task, added to by {event.data.get('by', '')} meanwhile",
        str(event.data.get("message", "")),
    )


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model of the settings, what calls it, and what its server tells of it once that was
    asked.
    """

    llm: LlmSettings
    model: ChatModel
    about: ModelDescription = field(default_factory=ModelDescription)


class RecordedModel:
    """The one way in which a council calls its models. `seats` are those of seats, the first one is
    asked for what they share. Belongs to one event loop.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        ledger: Ledger,
        events: EventWriter,
        recording: Recording,
        settings: LlmSettings,
        seat_models: Mapping[str, NamedModel] | None = None,
        clean: Callable[[str], str] = scrub,
        owns_work: Callable[[], bool] = lambda: True,
        reservation: BudgetReservation | None = None,
        steering: Mapping[str, str] | None = None,
        publish_partial: PublishPartial | None = None,
        pause_gate: PauseGate | None = None,
    ) -> None:
        self._ledger = ledger
        self._events = events
        self._recording = recording
        self._default = NamedModel(settings, model)
        self._seat_models = seat_models or {}
        self._clean = clean
        self._owns_work = owns_work
        self._reservation = reservation
        self._steering = steering if steering is not None else {}
        self._publish_partial = publish_partial
        self._pause_gate = pause_gate or PauseGate()
        self._steering_by_call: dict[str, tuple[str, ...]] = {}
        self._used: dict[str, Usage] = {}
        self._replies: dict[str, ChatReply] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._stuck_reasons = dict(recording.stuck_reasons)
        self._cleaned_messages: dict[
            Message, Message
        ] = {}  # the system message and the task are in every prompt

    def clean(self, text: str) -> str:
        """Return a text without secrets."""
        return self._clean(text)

    def usage_of(self, seat: str) -> Usage:
        """Return what a seat's calls used, those of earlier runs included."""
        return self._used.get(seat, Usage())

    def steering_for(self, call_id: str) -> tuple[str, ...]:
        """Return what was said to the council that this call hears: all until now, or, of one that
        was made before, what it heard then.
        """
        steering = {**self._recording.steering, **self._steering}
        if call_id not in self._steering_by_call:
            known = call_id in self._recording.answers
            self._steering_by_call[call_id] = (
                self._recording.steering_by_call.get(call_id, ()) if known else tuple(steering)
            )
        return tuple(steering[name] for name in self._steering_by_call[call_id] if name in steering)

    def first_stuck_reason(self, step: str, reason: str) -> str:
        """Return what was found of a turn the first time, in an earlier run or in a workspace that
        was lost; `found` where this is the first. Checks may say something else when they are run
        again, and the seat must go the same way all the same.
        """
        return self._stuck_reasons.setdefault(step, reason)

    async def ask(self, request: ChatRequest) -> ChatReply:
        """Return the answer. The same call is made once, also if it is asked for twice at the same
        time. No secret is in what is sent.

        Raises what the model raises, and `BudgetExceeded`.
        """
        async with self._locks.setdefault(request.call_id, asyncio.Lock()):
            return await self._ask(request)

    async def _ask(self, request: ChatRequest) -> ChatReply:
        if (heard := self._replies.get(request.call_id)) is not None:
            return heard  # a turn that is done again, in a fresh workspace
        _, seat, phase, _ = request.call_id.split("/")
        recorded = self._recording.answers.get(request.call_id)
        if recorded is not None:
            self._ledger.settle(request.call_id, recorded.usage)
            self._count(seat, recorded.usage)
            self._replies[request.call_id] = recorded
            telemetry.metrics.MODEL_REPLAYED.add()
            return recorded
        messages = tuple(self._clean_message(message) for message in request.messages)
        named = self._seat_models.get(f"{seat}/{phase}", self._seat_models.get(seat, self._default))
        estimate = _estimate(named.llm, messages, request.max_tokens)
        try:
            self._ledger.reserve(request.call_id, estimate)
        except BudgetExceeded:
            telemetry.metrics.BUDGET_REFUSALS.add("model")
            raise
        with self._pause_gate.hold():
            reply = await self._call_and_record(request, messages, named, estimate)
            await self._flush()
        return reply

    @asynccontextmanager
    async def hold_turn(self) -> AsyncIterator[None]:
        """Hold one turn of a seat: it begins where the deliberation is not paused."""
        async with self._pause_gate.hold_turn():
            yield
            await self._flush()

    async def _flush(self) -> None:
        """What was said is on record before the deliberation is put down."""
        if self._pause_gate.closed:
            await self._events.flush()

    async def _call_and_record(
        self,
        request: ChatRequest,
        messages: tuple[Message, ...],
        named: NamedModel,
        estimate: Usage,
    ) -> ChatReply:
        """Make a call for which there is room, and record it."""
        _, seat, phase, _ = request.call_id.split("/")
        try:
            if self._reservation is not None:
                await self._reserve(self._reservation, estimate)
            with model_call(request, messages, self._clean) as record_reply:
                # Where this process stood still another may have asked meanwhile: not a word more.
                cleaned_request = replace(
                    request, messages=messages, tenant=self._events.deliberation.tenant
                )
                reply = record_reply(await self._chat(named.model, cleaned_request, seat))
        except BaseException:
            self._ledger.release(request.call_id)
            raise
        self._ledger.settle(request.call_id, reply.usage)
        self._count(seat, reply.usage)
        await self._events.publish(
            EventType.MODEL_CALLED,
            request.call_id,
            seat=seat,
            call_id=request.call_id,
            phase=phase,
            prompt_sha256=digest(*(part for m in messages for part in (m.role, m.content))),
            model=reply.model,
            **({"profile": name} if (name := self._events.deliberation.model_of(seat)) else {}),
            sampling={
                "temperature": request.temperature,
                "seed": request.seed,
                "max_tokens": request.max_tokens,
            },
            usage=dump(reply.usage),
            answer=self._clean(reply.text),
            finish_reason=reply.finish_reason,
            duration_ms=reply.duration_ms,
            **({"digits": dump(reply)["digits"]} if reply.digits else {}),
            **(
                {
                    "calls": [
                        dump(replace(call, arguments=self._clean(call.arguments)))
                        for call in reply.calls
                    ]
                }
                if reply.calls
                else {}
            ),
            **({"reasoning": reply.reasoning} if reply.reasoning else {}),
            **(
                {"told": list(told)}
                if (told := self._steering_by_call.get(request.call_id))
                else {}
            ),
        )
        self._replies[request.call_id] = reply
        return reply

    async def _chat(self, model: ChatModel, request: ChatRequest, seat: str) -> ChatReply:
        """Make the call, and tell its answer while it grows, where that is wanted."""
        if self._publish_partial is None:
            return await model.chat(request, ours=self._owns_work)
        partial_reply = StreamedReply(seat, self._publish_partial, self._clean)
        async with beside(partial_reply.publish_periodically(), "growing"):
            reply = await model.chat(request, partial_reply.add, ours=self._owns_work)
        await partial_reply.publish_end()
        return reply

    async def close(self) -> None:
        """Give back to the story what its budget held for calls that were not made. Raises
        `BusUnavailable`.
        """
        if self._reservation is not None:
            await self._reservation.close(self._ledger.spent)

    async def _reserve(self, reservation: BudgetReservation, estimate: Usage) -> None:
        try:
            await reservation.cover(self._ledger, estimate)
        except BudgetExceeded:
            telemetry.metrics.BUDGET_REFUSALS.add("story")
            raise

    def _clean_message(self, message: Message) -> Message:
        known = self._cleaned_messages.get(message)
        if known is None:
            content = self._clean(message.content)
            calls = tuple(
                replace(call, arguments=self._clean(call.arguments)) for call in message.calls
            )
            same = content == message.content and calls == message.calls
            known = message if same else replace(message, content=content, calls=calls)
            self._cleaned_messages[message] = known
        return known

    def _count(self, seat: str, usage: Usage) -> None:
        self._used[seat] = self.usage_of(seat) + usage


def _estimate(llm: LlmSettings, messages: tuple[Message, ...], max_tokens: int) -> Usage:
    prompt = sum(
        tokens(text)
        for message in messages
        for text in (message.content, *(call.arguments for call in message.calls))
    )
    price = (prompt * llm.price_in + max_tokens * llm.price_out) / _TOKENS_PER_PRICE
    return Usage(prompt_tokens=prompt, completion_tokens=max_tokens, calls=1, cost_usd=price)
