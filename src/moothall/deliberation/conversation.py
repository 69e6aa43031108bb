"""A seat's conversation with its model, shortened before it fills the context window: with a model
that replies in text, and with one that calls tools natively.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from moothall.config import LlmSettings
from moothall.deliberation.function_writing import Function
from moothall.deliberation.prompts.reply import (
    MAX_STRING,
    Turn,
    document_schema,
    read_document,
    read_turn,
    turn_schema,
)
from moothall.deliberation.prompts.text_calls import MalformedReplyError
from moothall.deliberation.recorded_model import RecordedModel
from moothall.domain.chat import (
    ChatReply,
    ChatRequest,
    FunctionTool,
    Message,
    ReplyMode,
    ReplySchema,
)
from moothall.domain.ids import TaskKey, seed_of
from moothall.domain.task import DocumentKind
from moothall.domain.text import CHARS_PER_TOKEN, clip, tokens
from moothall.errors import ContextOverflow, DeadlineExceeded
from moothall.tools.catalogue import ToolSpec

_KEPT_TURNS = 2
"""The number of recent turns that stay when a conversation is shortened."""


def _append_to_message(message: Message, text: str) -> Message:
    return replace(message, content=f"{message.content}\n\n{text}".strip())


# A model that replies in text.


Ending = Literal["may", "must", "not"]
"""Whether a turn may be the last one."""

_UNLIMITED_STRINGS_WINDOW = 16_000
"""Context windows of at least this many tokens have no limit for strings in replies."""
_FUNCTION_TOKENS = 512
"""Completion tokens of a call that asks for one function, if its file is not longer."""
_SHRINK_FACTOR = 0.6
"""The share of a conversation that is kept if the server refuses it as too long."""
_TEMPLATE_TOKENS = 8  # what a chat template adds to each message


@dataclass(frozen=True, slots=True)
class Exchange:
    """A reply of the model, the response to it, and a one-line summary of the response."""

    reply: str
    response: str
    summary: str

    @property
    def messages(self) -> tuple[Message, Message]:
        """The messages of the exchange."""
        return (Message("assistant", self.reply or "(nothing)"), Message("user", self.response))


def fit_to_window(
    head: tuple[Message, ...], exchanges: Sequence[Exchange], budget: int
) -> tuple[Message, ...]:
    """Return the conversation within about `budget` tokens.

    `head` (the task) always stays, and so do the last two turns. First the oldest responses are
    reduced to their summaries, then the oldest turns are dropped. If that is not enough, long
    messages of the last turns are cut.
    """
    fitted = list(exchanges)
    for index in range(max(len(fitted) - _KEPT_TURNS, 0)):
        if _count_tokens(head, fitted) <= budget:
            break
        fitted[index] = replace(
            fitted[index], response=f"({fitted[index].summary}; the details were left out)"
        )
    while len(fitted) > _KEPT_TURNS and _count_tokens(head, fitted) > budget:
        fitted.pop(0)
    if fitted and _count_tokens(head, fitted) > budget:
        remaining_tokens = max(budget - _count_tokens(head, ()), 200)
        max_chars = int(remaining_tokens / (2 * len(fitted)) * CHARS_PER_TOKEN)
        fitted = [
            replace(
                exchange,
                reply=clip(exchange.reply, max_chars),
                response=clip(exchange.response, max_chars),
            )
            for exchange in fitted
        ]
    return (*head, *(message for exchange in fitted for message in exchange.messages))


def _count_tokens(head: Sequence[Message], exchanges: Sequence[Exchange]) -> int:
    messages = (*head, *(message for exchange in exchanges for message in exchange.messages))
    return sum(tokens(message.content) + _TEMPLATE_TOKENS for message in messages)


_TEMPERATURE_STEP, _MAX_TEMPERATURE = 0.4, 1.0
"""The increase of the temperature from attempt to attempt, and its limit."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How a seat samples: its temperature, the base of its seeds, and which of a function's prompts
    it starts with.
    """

    mode: ReplyMode
    temperature: float
    seed: int
    prompt_number: int = 0

    def for_attempt(self, attempt: int) -> SamplingSettings:
        """Return the settings of an attempt: from the second on with another seed and prompt, and a
        higher temperature.
        """
        if attempt == 1:
            return self
        raised_temperature = round(
            min(self.temperature + _TEMPERATURE_STEP * (attempt - 1), _MAX_TEMPERATURE), 3
        )
        seed = seed_of(self.seed, attempt)
        return replace(
            self,
            temperature=max(self.temperature, raised_temperature),
            seed=seed,
            prompt_number=self.prompt_number + attempt - 1,
        )


class Conversation:
    """The conversation of a seat or a sub-agent about a task, in text.

    python: the model may reply with blocks of Python. function: the task is this one function,
    without tools. document: the answer is a document of this kind.
    """

    def __init__(
        self,
        task_key: TaskKey,
        seat: str,
        head: tuple[Message, ...],
        sampling: SamplingSettings,
        *,
        model: RecordedModel,
        llm: LlmSettings,
        specs: Sequence[ToolSpec] = (),
        python: bool = False,
        function: Function | None = None,
        document: DocumentKind = "",
    ) -> None:
        self._task_key = task_key
        self.seat = seat
        self._head = head
        self._sampling = sampling
        self.model = model
        self.llm = llm
        self._specs = tuple(specs)
        self._python = python
        self.function = function
        self._document = document
        self._attempt = 1
        self._window = llm.context_tokens
        self.exchanges: list[Exchange] = []

    def begin_attempt(self, attempt: int) -> None:
        """Start an attempt; from the second on, the exchanges are cleared."""
        self._attempt = attempt
        if attempt > 1:
            self.exchanges.clear()

    def add(self, reply: str, response: str, summary: str) -> None:
        """Add an exchange."""
        self.exchanges.append(Exchange(reply, response, summary))

    def append_text(self, text: str) -> None:
        """Append a text to the last response, for example before a revision."""
        if self.exchanges:
            last = self.exchanges[-1]
            self.exchanges[-1] = Exchange(
                last.reply, f"{last.response}\n\n{text}".strip(), last.summary
            )

    @property
    def _max_string(self) -> int | None:
        """The most characters of a string in a schema: few for the local model and small windows,
        no limit for others.
        """
        small = self.llm.base_url is None or self._window < _UNLIMITED_STRINGS_WINDOW
        return MAX_STRING if small else None

    async def request_turn(
        self,
        step: str,
        deadline: datetime,
        *,
        ending: Ending = "may",
        withheld_tools: frozenset[str] = frozenset(),
        can_run_python: bool = False,
    ) -> tuple[Turn | str, str]:
        """Return the turn, or what to tell the model about a malformed reply; and the reply's text.

        `step` is <phase>/<round>.<turn>. Tools in `withheld_tools` are not offered this time; no
        tool is if this has to be the last turn.
        """
        if datetime.now(UTC) >= deadline:
            raise DeadlineExceeded("the seat's time limit was reached")
        sampling = self._sampling.for_attempt(self._attempt)
        function = self.function
        specs = (
            tuple(spec for spec in self._specs if spec.name not in withheld_tools) or self._specs
        )
        max_tokens = min(self.llm.max_tokens, self.llm.context_tokens // 3)
        if function:  # a small model that repeats itself would continue to the limit
            max_tokens = min(max_tokens, max(_FUNCTION_TOKENS, function.file_tokens))
        prompt = function and (
            function.full_prompt if self.exchanges else function.prompt_for(sampling.prompt_number)
        )
        head = prompt.head if prompt else self._head
        call_id = f"{self._task_key}/{self.seat}/{step}"
        steering = "\n\n".join(self.model.steering_for(call_id))
        is_document = bool(self._document) and sampling.mode == "json"
        request = ChatRequest(
            call_id=call_id,
            messages=(),
            max_tokens=max_tokens,
            deadline=deadline,
            schema=self._reply_schema(specs, ending) if sampling.mode == "json" else None,
            temperature=sampling.temperature,
            seed=seed_of(sampling.seed, f"{self.seat}/{step}"),
        )
        reply = await self._ask_within(request, head, steering)
        try:
            if function and prompt:
                turn = function.read_reply(reply, prompt)
            else:
                is_last = ending == "must" or not self._specs
                turn = (
                    read_document(reply)
                    if is_document
                    else read_turn(reply, sampling.mode, self._specs, last=is_last)
                )
        except MalformedReplyError as error:
            return str(error), reply.text
        if turn.python is not None and not can_run_python:
            return "Python is not available here: use actions, or finish.", reply.text
        return turn, reply.text

    def _reply_schema(self, specs: Sequence[ToolSpec], ending: Ending) -> ReplySchema | None:
        """Return the schema of a reply in JSON; None for one with a function."""
        if self._document:
            return document_schema(self._document, self._max_string)
        if self.function:
            return None
        return turn_schema(
            () if ending == "must" else specs,
            may_finish=ending != "not",
            python=self._python,
            max_string=self._max_string,
        )

    async def _ask_within(
        self, request: ChatRequest, head: tuple[Message, ...], steering: str
    ) -> ChatReply:
        """Ask with as much of the conversation as fits. If the server's window is smaller than
        assumed, it refuses the request, and a shorter one is sent.

        Raises `ContextOverflow` if even the shortest form is refused, and the errors of the model.
        """
        budget = self._window - request.max_tokens - (tokens(steering) if steering else 0)
        while True:
            messages = fit_to_window(head, self.exchanges, budget)
            # Always at the end, so that the server's prompt cache matches everything before it.
            if steering:
                messages = (*messages[:-1], _append_to_message(messages[-1], steering))
            try:
                return await self.model.request_reply(replace(request, messages=messages))
            except ContextOverflow as overflow:
                sent_tokens = _count_tokens(messages, ())
                if overflow.window:
                    self._window = min(self._window, overflow.window)
                    request = replace(
                        request, max_tokens=min(request.max_tokens, max(self._window // 4, 256))
                    )
                budget = min(self._window - request.max_tokens, int(sent_tokens * _SHRINK_FACTOR))
                if fit_to_window(head, self.exchanges, budget) == fit_to_window(
                    head, self.exchanges, sent_tokens
                ):
                    raise


# A model that calls tools natively.


_COMPACT_SHARE = 0.7
"""The share of the context window above which the conversation is compacted."""
_MAX_RESULT_CHARS, _MIN_RESULT_CHARS = 8_000, 1_000
_MAX_NOTES_CHARS = 16_000
_MAX_OUTLINE_CALLS, _MAX_OUTLINE_CHARS = 40, 160
_ASK_FOR_NOTES = """The conversation is nearly as long as your context window. It is replaced by notes that you write now; only the task, \
the notes and the last turns stay. Reply with the notes alone, and call no tool. Write what someone who goes on with the work needs: \
what you found (files, functions, lines), what you changed and why, the commands that run the tests and what they showed, what you tried \
that failed, and what is left to do."""  # noqa: E501 - a line of embedded text


@dataclass(frozen=True, slots=True)
class ToolTurn:
    """A reply of the model and its answers: one for each call, or one for a reply without calls."""

    reply: Message
    answers: tuple[Message, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages of the turn, in order."""
        return (self.reply, *self.answers)


@dataclass(frozen=True, slots=True)
class ChatState:
    """A snapshot of a conversation."""

    head: tuple[Message, ...]
    turns: tuple[ToolTurn, ...]
    notes: str
    size: int
    steering_count: int


class ToolChat:
    """The conversation of one seat, with native tool calls. `head` is never compacted: it is the
    system message and the task.
    """

    def __init__(
        self,
        task_key: TaskKey,
        seat: str,
        head: tuple[Message, ...],
        *,
        model: RecordedModel,
        llm: LlmSettings,
        tools: Sequence[FunctionTool],
        temperature: float,
        seed: int,
    ) -> None:
        self.seat = seat
        self.model = model
        self.llm = llm
        self.turns: list[ToolTurn] = []
        self._task_key = task_key
        self._head = head
        self._tools = tuple(tools)
        self._temperature = temperature
        self._seed = seed
        self._notes = ""
        self._size = 0
        self._steering_count = 0

    async def request_reply(self, step: str, deadline: datetime) -> ChatReply:
        """Return the reply to the conversation so far; compact it first if it fills the context
        window.

        Raises the errors of the model: `ContextOverflow` if even the task and the last turns are
        too long.
        """
        if datetime.now(UTC) >= deadline:
            raise DeadlineExceeded("the seat's time limit was reached")
        self._append_steering(step)
        if self._size > self.llm.context_tokens * _COMPACT_SHARE and len(self.turns) > _KEPT_TURNS:
            await self._compact_turns(step, deadline, _MAX_RESULT_CHARS)
        try:
            reply = await self._call_model(step, self._prompt_messages(), deadline)
        except ContextOverflow as error:
            if error.window:
                longest = min(self.llm.max_tokens, error.window // 4)
                self.llm = self.llm.model_copy(
                    update={"context_tokens": error.window, "max_tokens": longest}
                )
            await self._compact_turns(step, deadline, _MIN_RESULT_CHARS)
            reply = await self._call_model(step, self._prompt_messages(), deadline)
        self._size = reply.usage.prompt_tokens + reply.usage.completion_tokens
        return reply

    def add_turn(self, reply: ChatReply, answers: Sequence[Message]) -> None:
        """Add a reply and its answers."""
        message = Message(
            "assistant",
            reply.text or ("" if reply.calls else "(empty reply)"),
            reply.calls,
            reasoning=reply.reasoning,
        )
        self.turns.append(ToolTurn(message, tuple(answers)))
        self._size += sum(tokens(answer.content) for answer in answers)

    def snapshot(self) -> ChatState:
        """Return a snapshot for `restore`."""
        return ChatState(
            self._head, tuple(self.turns), self._notes, self._size, self._steering_count
        )

    def restore(self, state: ChatState) -> None:
        """Undo everything after a snapshot, compactions included."""
        self._head, self.turns, self._notes = state.head, list(state.turns), state.notes
        self._size, self._steering_count = state.size, state.steering_count

    def append_text(self, text: str) -> None:
        """Append a text to the last message; some servers refuse two messages of one role in a
        row.
        """
        if not self.turns:
            self._head = (*self._head[:-1], _append_to_message(self._head[-1], text))
            return
        last = self.turns[-1]
        self.turns[-1] = ToolTurn(
            last.reply, (*last.answers[:-1], _append_to_message(last.answers[-1], text))
        )
        self._size += tokens(text)

    def _append_steering(self, step: str) -> None:
        """Append the steering messages since the last call."""
        messages = self.model.steering_for(self._call_id(step))
        for text in messages[self._steering_count :]:
            self.append_text(text)
        self._steering_count = max(self._steering_count, len(messages))

    def _prompt_messages(self) -> tuple[Message, ...]:
        head = self._head
        if self._notes:
            head = (
                *head[:-1],
                _append_to_message(head[-1], f"Your notes on the work so far:\n{self._notes}"),
            )
        return (*head, *(message for turn in self.turns for message in turn.messages))

    async def _call_model(
        self, step: str, messages: tuple[Message, ...], deadline: datetime
    ) -> ChatReply:
        return await self.model.request_reply(
            ChatRequest(
                call_id=self._call_id(step),
                messages=messages,
                max_tokens=self.llm.max_tokens,
                deadline=deadline,
                temperature=self._temperature,
                seed=seed_of(self._seed, f"{self.seat}/{step}"),
                tools=self._tools,
            )
        )

    def _call_id(self, step: str) -> str:
        return f"{self._task_key}/{self.seat}/{step}"

    async def _compact_turns(self, step: str, deadline: datetime, max_result_chars: int) -> None:
        """Replace all turns but the last ones by notes of the model, or by an outline of its calls
        if it writes none.
        """
        older = self.turns[:-_KEPT_TURNS]
        if older:
            self._notes = (
                await self._write_notes(step, deadline)
                or "\n".join([self._notes, *_outline_calls(older)]).strip()
            )
        self.turns = [_shorten_turn(turn, max_result_chars) for turn in self.turns[-_KEPT_TURNS:]]
        self._size = sum(tokens(message.content) for message in self._prompt_messages())

    async def _write_notes(self, step: str, deadline: datetime) -> str:
        """Return the model's notes, or an empty string. The call is number 0 of the turn, because
        tool calls are numbered from 1.
        """
        *earlier_messages, last_message = self._prompt_messages()
        try:
            reply = await self._call_model(
                f"{step}.0",
                (*earlier_messages, _append_to_message(last_message, _ASK_FOR_NOTES)),
                deadline,
            )
        except ContextOverflow:
            return ""
        return clip(reply.text.strip(), _MAX_NOTES_CHARS)


def _shorten_turn(turn: ToolTurn, max_chars: int) -> ToolTurn:
    return ToolTurn(
        turn.reply,
        tuple(replace(answer, content=clip(answer.content, max_chars)) for answer in turn.answers),
    )


def _outline_calls(turns: Sequence[ToolTurn]) -> list[str]:
    """Return one line for each of the last calls."""
    calls = [call for turn in turns for call in turn.reply.calls]
    return [
        f"{call.name} {' '.join(call.arguments.split())[:_MAX_OUTLINE_CHARS]}"
        for call in calls[-_MAX_OUTLINE_CALLS:]
    ]
