"""A seat's conversation with a model that calls tools natively: its messages, and their compaction
before the context window is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from moothall.config import LlmSettings
from moothall.deliberation.prompts.text import clip, tokens
from moothall.deliberation.recorded_model import RecordedModel
from moothall.domain.chat import ChatReply, ChatRequest, FunctionTool, Message
from moothall.domain.ids import TaskKey, seed_of
from moothall.errors import ContextOverflow, DeadlineExceeded

_COMPACT_SHARE = 0.7
"""The share of the context window above which the conversation is compacted."""
_KEPT_TURNS = 2
"""The number of recent turns that a compaction keeps."""
_MAX_RESULT_CHARS, _MIN_RESULT_CHARS = 8_000, 1_000
_MAX_NOTES_CHARS = 16_000
_MAX_OUTLINE_CALLS, _MAX_OUTLINE_CHARS = 40, 160
_ASK_FOR_NOTES = """The conversation is nearly as long as your context window. It is replaced by notes that you write now; only the task, \
the notes and the last turns stay. Reply with the notes alone, and call no tool. Write what someone who goes on with the work needs: \
what you found (files, functions, lines), what you changed and why, the commands that run the tests and what they showed, what you tried \
that failed, and what is left to do."""  # noqa: E501 - a line of embedded text


@dataclass(frozen=True, slots=True)
class Turn:
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
    turns: tuple[Turn, ...]
    notes: str
    size: int
    steering_count: int


class ToolChat:
    """The conversation of one seat. `head`, the system message and the task, is never compacted."""

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
        self.turns: list[Turn] = []
        self._task_key = task_key
        self._head = head
        self._tools = tuple(tools)
        self._temperature = temperature
        self._seed = seed
        self._notes = ""
        self._size = 0
        self._steering_count = 0

    async def ask(self, step: str, deadline: datetime) -> ChatReply:
        """Return the reply to the conversation so far; compact it first if it fills the context
        window.

        Raises the errors of the model: `ContextOverflow` if even the task and the last turns are
        too long.
        """
        if datetime.now(UTC) >= deadline:
            raise DeadlineExceeded("the seat's time is over")
        self._append_steering(step)
        if self._size > self.llm.context_tokens * _COMPACT_SHARE and len(self.turns) > _KEPT_TURNS:
            await self._compact(step, deadline, _MAX_RESULT_CHARS)
        try:
            reply = await self._call(step, self._messages(), deadline)
        except ContextOverflow as error:
            if error.window:
                longest = min(self.llm.max_tokens, error.window // 4)
                self.llm = self.llm.model_copy(
                    update={"context_tokens": error.window, "max_tokens": longest}
                )
            await self._compact(step, deadline, _MIN_RESULT_CHARS)
            reply = await self._call(step, self._messages(), deadline)
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
        self.turns.append(Turn(message, tuple(answers)))
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
        self.turns[-1] = Turn(
            last.reply, (*last.answers[:-1], _append_to_message(last.answers[-1], text))
        )
        self._size += tokens(text)

    def _append_steering(self, step: str) -> None:
        """Append the steering messages since the last call."""
        messages = self.model.steering_for(self._call_id(step))
        for text in messages[self._steering_count :]:
            self.append_text(text)
        self._steering_count = max(self._steering_count, len(messages))

    def _messages(self) -> tuple[Message, ...]:
        head = self._head
        if self._notes:
            head = (
                *head[:-1],
                _append_to_message(head[-1], f"Your notes on the work so far:\n{self._notes}"),
            )
        return (*head, *(message for turn in self.turns for message in turn.messages))

    async def _call(
        self, step: str, messages: tuple[Message, ...], deadline: datetime
    ) -> ChatReply:
        return await self.model.ask(
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

    async def _compact(self, step: str, deadline: datetime, max_result_chars: int) -> None:
        """Replace all turns but the last ones by notes of the model, or by an outline of its calls
        if it writes none.
        """
        older = self.turns[:-_KEPT_TURNS]
        if older:
            self._notes = (
                await self._write_notes(step, deadline)
                or "\n".join([self._notes, *_outline(older)]).strip()
            )
        self.turns = [_shorten(turn, max_result_chars) for turn in self.turns[-_KEPT_TURNS:]]
        self._size = sum(tokens(message.content) for message in self._messages())

    async def _write_notes(self, step: str, deadline: datetime) -> str:
        """Return the model's notes, or an empty string. The call is number 0 of the turn, because
        tool calls are numbered from 1.
        """
        *before, last = self._messages()
        try:
            reply = await self._call(
                f"{step}.0", (*before, _append_to_message(last, _ASK_FOR_NOTES)), deadline
            )
        except ContextOverflow:
            return ""
        return clip(reply.text.strip(), _MAX_NOTES_CHARS)


def _append_to_message(message: Message, text: str) -> Message:
    return replace(message, content=f"{message.content}\n\n{text}".strip())


def _shorten(turn: Turn, max_chars: int) -> Turn:
    return Turn(
        turn.reply,
        tuple(replace(answer, content=clip(answer.content, max_chars)) for answer in turn.answers),
    )


def _outline(turns: Sequence[Turn]) -> list[str]:
    """Return one line for each of the last calls."""
    calls = [call for turn in turns for call in turn.reply.calls]
    return [
        f"{call.name} {' '.join(call.arguments.split())[:_MAX_OUTLINE_CHARS]}"
        for call in calls[-_MAX_OUTLINE_CALLS:]
    ]
