"""Model calls: charged to the budget, recorded afterwards, and never repeated once recorded. The
gate at which a paused deliberation stops: between turns, with no model call running.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

from moothall import telemetry
from moothall.authorization.budgets import Reservation
from moothall.concurrency import run_in_background_if_slow
from moothall.config import LlmSettings
from moothall.deliberation.event_writer import (
    CalledModel,
    EventWriter,
    PublishPartial,
    StreamedReply,
    model_call,
)
from moothall.domain.budget import Ledger, Usage
from moothall.domain.chat import (
    ChatReply,
    ChatRequest,
    Message,
    ModelDescription,
    Prompts,
    is_same_conversation,
    step_of,
)
from moothall.domain.codec import dump, load, mapping_of
from moothall.domain.event import Data, Event, EventType
from moothall.domain.ids import digest
from moothall.domain.text import fence, scrub, tokens
from moothall.errors import BudgetExceeded, InvalidRequest
from moothall.ports import ChatModel

# The gate at which a paused deliberation stops: between turns, with no model call running.


class PauseGate:
    """A gate for the turns of one run of a deliberation. While closed, no new turn starts; running
    turns finish.
    """

    def __init__(self) -> None:
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._idle.set()
        self._running = 0

    @property
    def closed(self) -> bool:
        """True if no turn may start."""
        return not self._open.is_set()

    @asynccontextmanager
    async def hold_turn(self) -> AsyncIterator[None]:
        """Wait until turns may start, and hold one."""
        await self._open.wait()
        with self.hold():
            yield

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold work that must not be interrupted, within a turn or outside of turns."""
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def close_and_drain(self) -> None:
        """Let no further turn start, and return once nothing is running."""
        self._open.clear()
        await self._idle.wait()


# Model calls: charged to the budget, recorded afterwards, and never repeated once recorded.


log = telemetry.get_logger(__name__)

_TOKENS_PER_PRICE = 1_000_000
_RECORDED_FIELDS = (
    "finish_reason",
    "usage",
    "model",
    "duration_ms",
    "digits",
    "earlier_digits",
    "calls",
    "reasoning",
)
"""The fields of a reply that are recorded under their own names."""
REMOTE = "elsewhere"
"""The phase of a call to a remote agent."""
_MAX_CACHED_CHARS = 50_000_000


@dataclass(frozen=True, slots=True)
class Recording:
    """What earlier runs of the same deliberation recorded.

    answers: replies by call id. stuck_reasons: by
    `<seat>/<phase>/<round>.<turn>`, why the seat was stuck after that turn, or an empty string.
    steering: steering messages by event id. steering_by_call: the ids of the messages that each
    call received. prompts: recorded prompts by step.
    """

    answers: Mapping[str, ChatReply] = field(default_factory=dict)
    stuck_reasons: Mapping[str, str] = field(default_factory=dict)
    steering: Mapping[str, str] = field(default_factory=dict)
    steering_by_call: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prompts: Mapping[str, Data] = field(default_factory=dict)
    recorded_ids: frozenset[str] = frozenset()
    """The ids of all recorded events."""
    progress: float = 0.0
    """The last published progress of the deliberation's agent."""

    @property
    def spent(self) -> Usage:
        """The total usage of the answers."""
        return sum((reply.usage for reply in self.answers.values()), Usage())

    @classmethod
    def of(cls, events: Iterable[Event]) -> Recording:
        """Read a recording from a replay; skip other events and malformed ones."""
        answers: dict[str, ChatReply] = {}
        stuck_reasons: dict[str, str] = {}
        steering: dict[str, str] = {}
        steering_by_call: dict[str, tuple[str, ...]] = {}
        prompts: dict[str, Data] = {}
        recorded_ids: set[str] = set()
        progress = 0.0
        for event in events:
            recorded_ids.add(event.id)
            if event.type is EventType.AGENT_PROGRESS and isinstance(
                progress_value := event.data.get("progress"), int | float
            ):
                progress = max(progress, progress_value)
            if event.type is EventType.DELIBERATION_STEERED:
                steering[event.id] = steering_text(event)
            if event.type == EventType.SEAT_TURN and isinstance(event.data.get("stuck"), str):
                parts = (str(event.data.get(name)) for name in ("seat", "phase", "round", "turn"))
                stuck_reasons.setdefault("{}/{}/{}.{}".format(*parts), event.data["stuck"])
            if event.type == EventType.MODEL_CALLED:
                data = event.data
                prompts.setdefault(
                    step_of(str(data.get("call_id"))), mapping_of(data.get("prompt"))
                )
                if isinstance(message_ids := data.get("told"), list | tuple):
                    steering_by_call.setdefault(
                        str(data.get("call_id")), tuple(map(str, message_ids))
                    )
                fields = {name: data[name] for name in _RECORDED_FIELDS if name in data}
                try:
                    answers.setdefault(
                        str(data.get("call_id")),
                        load(ChatReply, {"text": data.get("answer"), **fields}),
                    )
                except InvalidRequest as error:
                    log.warning(
                        "a recorded call is malformed, and not used",
                        id=event.id,
                        reason=error.message,
                    )
        return cls(
            answers,
            stuck_reasons,
            steering,
            steering_by_call,
            prompts,
            frozenset(recorded_ids),
            progress,
        )


def steering_text(event: Event) -> str:
    """Return a steering message, fenced, with its author."""
    return fence(
        f"added to the task later, by {event.data.get('by', '')}",
        str(event.data.get("message", "")),
    )


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model of the settings, its client, and what its server reports about it."""

    llm: LlmSettings
    model: ChatModel
    about: ModelDescription = field(default_factory=ModelDescription)


class RecordedModel:
    """Makes all model calls of a council. Belongs to one event loop.

    seat_models: the models of seats; the default one serves calls that belong to no seat.
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
        reservation: Reservation | None = None,
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
        self._prompts = Prompts(recording.prompts)
        # A cache, because the system message and the task are part of every prompt.
        self._cleaned_messages: dict[Message, Message] = {}
        self._cached_chars = 0

    def clean(self, text: str) -> str:
        """Return a text without secrets."""
        return self._clean(text)

    def usage_of(self, seat: str) -> Usage:
        """Return the usage of a seat's calls, including earlier runs."""
        return self._used.get(seat, Usage())

    def steering_for(self, call_id: str) -> tuple[str, ...]:
        """Return the steering messages for a call: all so far or, for a recorded call, those it
        received then.
        """
        messages = {**self._recording.steering, **self._steering}
        if call_id not in self._steering_by_call:
            is_recorded = call_id in self._recording.answers
            self._steering_by_call[call_id] = (
                self._recording.steering_by_call.get(call_id, ())
                if is_recorded
                else tuple(messages)
            )
        return tuple(messages[name] for name in self._steering_by_call[call_id] if name in messages)

    def recorded_calls(self, prefix: str) -> Sequence[str]:
        """Return the ids of recorded calls that begin with `prefix`."""
        return [call_id for call_id in self._recording.answers if call_id.startswith(prefix)]

    def is_repeated(self, call_id: str, messages: Sequence[Message]) -> bool:
        """Return whether these messages match a recorded call, see `is_same_conversation`."""
        recorded = self._prompts.messages_of(step_of(call_id))
        return is_same_conversation(
            recorded, [self._clean_message(message) for message in messages]
        )

    def first_stuck_reason(self, step: str, reason: str) -> str:
        """Return why the seat was stuck after a turn, as recorded by an earlier run or a lost
        workspace; `reason` if the turn is new. Repeated checks may have other results, and the seat
        must take the same course all the same.
        """
        return self._stuck_reasons.setdefault(step, reason)

    async def request_reply(self, request: ChatRequest) -> ChatReply:
        """Return the reply to a request. Concurrent and repeated requests with the same call id
        make one call. Secrets are removed from the request.

        Raises the errors of the model, and `BudgetExceeded`.
        """
        async with self._locks.setdefault(request.call_id, asyncio.Lock()):
            return await self._request_reply_once(request)

    async def _request_reply_once(self, request: ChatRequest) -> ChatReply:
        if (reply := self._replies.get(request.call_id)) is not None:
            return reply  # a turn that is repeated in a new workspace
        _, seat, phase, _ = request.call_id.split("/")
        recorded = self._recording.answers.get(request.call_id)
        if recorded is not None:
            self._ledger.settle(request.call_id, recorded.usage)
            self._count_usage(seat, recorded.usage)
            self._replies[request.call_id] = recorded
            telemetry.metrics.MODEL_REPLAYED.add()
            return recorded
        messages = tuple(self._clean_message(message) for message in request.messages)
        named = self._seat_models.get(f"{seat}/{phase}", self._seat_models.get(seat, self._default))
        estimate = _estimate_usage(named.llm, messages, request)
        try:
            self._ledger.reserve(request.call_id, estimate)
        except BudgetExceeded:
            telemetry.metrics.BUDGET_REFUSALS.add("model")
            raise
        with self._pause_gate.hold():
            reply = await self._call_and_record(request, messages, named, estimate)
            await self._flush_events()
        return reply

    @asynccontextmanager
    async def hold_turn(self) -> AsyncIterator[None]:
        """Hold one turn of a seat; it starts when the deliberation is not paused."""
        async with self._pause_gate.hold_turn():
            yield
            await self._flush_events()

    async def _flush_events(self) -> None:
        """Make events durable before the deliberation is suspended."""
        if self._pause_gate.closed:
            await self._events.flush()

    async def _call_and_record(
        self,
        request: ChatRequest,
        messages: tuple[Message, ...],
        named: NamedModel,
        estimate: Usage,
    ) -> ChatReply:
        """Make a call whose estimate is reserved, and record it."""
        seat = request.call_id.split("/")[1]
        try:
            if self._reservation is not None:
                await self._reservation.cover(self._ledger, estimate)
            called = CalledModel(named.about.model or named.llm.model, named.llm.base_url or "")
            with model_call(request, messages, called, self._clean) as record_reply:
                cleaned_request = replace(
                    request, messages=messages, tenant=self._events.deliberation.tenant
                )
                reply = record_reply(await self._call_model(named.model, cleaned_request, seat))
        except BaseException:
            self._ledger.release(request.call_id)
            raise
        self._ledger.settle(request.call_id, reply.usage)
        self._count_usage(seat, reply.usage)
        await self._publish_call(request, messages, reply)
        self._replies[request.call_id] = reply
        return reply

    async def _publish_call(
        self, request: ChatRequest, messages: tuple[Message, ...], reply: ChatReply
    ) -> None:
        """Record a call and its reply, without secrets. Fields without a value are left out."""
        _, seat, phase, _ = request.call_id.split("/")
        await self._events.publish(
            EventType.MODEL_CALLED,
            request.call_id,
            seat=seat,
            call_id=request.call_id,
            phase=phase,
            prompt_sha256=_digest_prompt(messages),
            prompt=self._prompts.record(step_of(request.call_id), messages),
            model=reply.model,
            **(
                {"profile": model_name}
                if (model_name := self._events.deliberation.model_of(seat))
                else {}
            ),
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
            **({"earlier_digits": dump(reply)["earlier_digits"]} if reply.earlier_digits else {}),
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
                {"told": list(message_ids)}
                if (message_ids := self._steering_by_call.get(request.call_id))
                else {}
            ),
        )

    async def _call_model(self, model: ChatModel, request: ChatRequest, seat: str) -> ChatReply:
        """Make the call, and publish its partial reply if that is enabled.

        The client checks `owns_work` before it sends: another process may have taken over while
        this one was stalled.
        """
        if self._publish_partial is None:
            return await model.chat(request, owns_work=self._owns_work)
        partial_reply = StreamedReply(seat, self._publish_partial, self._clean)
        publishing = partial_reply.publish_periodically
        async with run_in_background_if_slow(publishing, partial_reply.interval_seconds, "growing"):
            reply = await model.chat(request, partial_reply.add, owns_work=self._owns_work)
        await partial_reply.publish_end()
        return reply

    async def close(self) -> None:
        """Return unused budget. Raises `BusUnavailable`."""
        if self._reservation is not None:
            await self._reservation.close(self._ledger.spent)

    def _clean_message(self, message: Message) -> Message:
        cleaned = self._cleaned_messages.get(message)
        if cleaned is None:
            content = self._clean(message.content)
            calls = tuple(
                replace(call, arguments=self._clean(call.arguments)) for call in message.calls
            )
            unchanged = content == message.content and calls == message.calls
            cleaned = message if unchanged else replace(message, content=content, calls=calls)
            self._cached_chars += _message_size(message)
            if self._cached_chars > _MAX_CACHED_CHARS:
                self._cleaned_messages.clear()
                self._cached_chars = _message_size(message)
            self._cleaned_messages[message] = cleaned
        return cleaned

    def _count_usage(self, seat: str, usage: Usage) -> None:
        self._used[seat] = self.usage_of(seat) + usage


def _digest_prompt(messages: Iterable[Message]) -> str:
    return digest(*(part for message in messages for part in (message.role, message.content)))


def _message_texts(message: Message) -> Iterator[str]:
    yield message.content
    for call in message.calls:
        yield call.arguments


def _message_size(message: Message) -> int:
    return sum(map(len, _message_texts(message)))


def _estimate_usage(llm: LlmSettings, messages: tuple[Message, ...], request: ChatRequest) -> Usage:
    """Return the usage of a request with these messages, rather too high than too low."""
    prompt = sum(tokens(text) for message in messages for text in _message_texts(message))
    for tool in request.tools:
        prompt += tokens(f"{tool.name}{tool.description}{json.dumps(dict(tool.parameters))}")
    price = (prompt * llm.price_in + request.max_tokens * llm.price_out) / _TOKENS_PER_PRICE
    return Usage(
        prompt_tokens=prompt, completion_tokens=request.max_tokens, calls=1, cost_usd=price
    )
