"""Requests to models and their replies, prompts as the log records them, and harnesses."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from moothall.domain.budget import Usage
from moothall.domain.codec import list_of, mapping_of, text_of
from moothall.domain.event import Data
from moothall.domain.ids import digest

# Requests to models and their replies.


ReplyMode = Literal["tools", "json", "blocks"]
"""How a model calls tools: natively, in a JSON object that a schema constrains, or in tagged blocks
of text.
"""


Likely = tuple[tuple[str, float], ...]
"""Alternatives for a token, with their probabilities; the chosen one is first."""


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool offered to the model. `parameters` is the JSON schema of its arguments, an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A native tool call. `arguments` is the text that the model wrote, usually a JSON object."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `calls`: the native calls of an assistant's message.
    `call_id`: the call that a tool's message answers.
    `reasoning`: what the server returned of an assistant's reasoning, as JSON, to be sent back
    unchanged.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[FunctionCall, ...] = ()
    call_id: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ReplySchema:
    """A JSON schema that constrains the reply; `name` is turn, review, verdict, plan, approaches,
    inputs or coach.
    """

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One model call. `call_id` is deterministic: <task_id>/<seat>/<phase>/<round>.<turn>[.<n>].
    `tenant` pays for it.
    """

    call_id: str
    messages: tuple[Message, ...]
    max_tokens: int
    deadline: datetime
    schema: ReplySchema | None = None
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    tenant: str = ""
    tools: tuple[FunctionTool, ...] = ()
    scored: bool = False
    """Whether the server is asked for the probabilities of the numbers at the end."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model at its server. `window` is 0 if the server does not report it; `source` says where
    the window comes from.
    """

    model: str = ""
    reply: ReplyMode = "blocks"
    api: str = "chat"
    window: int = 0
    source: str = ""
    most_tokens: int = 0
    """The maximum length of replies at the server, 0 if it is unknown."""


@dataclass(frozen=True, slots=True)
class Writing:
    """The reply that a seat is writing: its last part, '' when it is complete, and its answer so
    far, if it has started one.
    """

    seat: str
    text: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A complete reply, possibly empty. `finish_reason` length means that it was cut."""

    text: str
    finish_reason: str
    usage: Usage
    model: str = ""
    duration_ms: int = 0
    calls: tuple[FunctionCall, ...] = ()
    reasoning: str = ""
    """The server's reasoning items as JSON; they are stored and sent back, never read."""
    digits: tuple[Likely, ...] = ()
    """The alternatives for each token of the last number; empty if the server does not tell."""
    earlier_digits: tuple[tuple[Likely, ...], ...] = ()
    """The same for the numbers before the last one, in their order; the last few of them."""


# Harnesses: agents of other projects that work on a seat with our models.


@dataclass(frozen=True, slots=True)
class ModelQuestion:
    """A model call of a harness. `max_tokens` is 0 if it names no limit."""

    messages: Sequence[Message]
    tools: Sequence[FunctionTool] = ()
    max_tokens: int = 0
    temperature: float = 0.0


AnswerModel = Callable[[ModelQuestion], Awaitable[ChatReply]]
"""Makes a model call of a harness. Raises the errors of the model and of the budget."""


@dataclass(frozen=True, slots=True)
class HarnessTask:
    """The work of a harness.

    argv: its command, which speaks the Agent Client Protocol. variables: the operator's additions
    to its environment. model: the model's name; window, max_tokens: its context window and the
    longest reply in tokens. seconds: when it is asked to stop. may_execute, may_write: whether it
    gets permission to run commands and to change files, if it asks.
    """

    argv: tuple[str, ...]
    prompt: str
    model: str
    window: int
    max_tokens: int
    seconds: float
    variables: tuple[tuple[str, str], ...] = ()
    may_execute: bool = True
    may_write: bool = True


@dataclass(frozen=True, slots=True)
class HarnessReport:
    """The last message of a harness, the name and version that it reports, and why it stopped
    early; '' if it did not.
    """

    text: str
    agent: str = ""
    stopped: str = ""


# The prompts of model calls as the log records them: what a prompt shares with that of an earlier
# call is recorded once, with that call.
#
# Calls are named by their step, `<seat>/<phase>/<round>.<turn>`. A recorded prompt is an object:
#
# of: the step of the earlier call with which it begins; missing if there is none. kept: the number
# of whole messages that it shares with that call. chars: the number of characters that its next
# message shares with the next one of that call. messages: the other messages. The first one lacks
# the shared characters.


Messages = tuple[Message, ...]
_NUMBER = re.compile(r"(?<![0-9a-fA-F])[a-fA-F]*[0-9][0-9a-fA-F]*")  # and hexadecimal ids

_MIN_SHARED_CHARS = 200
"""Fewer shared characters of a message are recorded again."""


def step_of(call_id: str) -> str:
    """Return the step of a call, which is its id without the task."""
    return call_id.partition("/")[2]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as it was sent.

    The first `shared_messages` messages are those of the call `base_step`. The next message shares
    its first `shared_chars` characters with that call.
    """

    messages: Messages
    base_step: str = ""
    shared_messages: int = 0
    shared_chars: int = 0

    @property
    def new(self) -> Messages:
        """The messages that no earlier call has as a whole."""
        return self.messages[self.shared_messages :]


class Prompts:
    """The prompts of a deliberation so far."""

    def __init__(self, recorded: Mapping[str, Data] | None = None) -> None:
        """Start from the prompts of an earlier run, by step in order. Those that cannot be read are
        skipped.
        """
        self._prompts: dict[str, Messages] = {}
        self._steps: dict[str, list[str]] = {}
        """By the digest of the first messages of a prompt, the first and the last step with it."""
        for step, data in (recorded or {}).items():
            self.read(step, data)

    def record(self, step: str, messages: Iterable[Message]) -> Data:
        """Add a prompt and return its recorded form."""
        recorded_messages = tuple(
            replace(message, reasoning="") if message.reasoning else message for message in messages
        )
        starts = _prefix_digests(recorded_messages)
        prompt = self._compare_with_earlier(recorded_messages, starts)
        self._add_prompt(step, recorded_messages, starts)
        new = [_dump_message(message) for message in prompt.new]
        if prompt.shared_chars:
            new[0]["content"] = prompt.new[0].content[prompt.shared_chars :]
        shared = {
            "of": prompt.base_step,
            "kept": prompt.shared_messages,
            "chars": prompt.shared_chars,
        }
        return {**{name: value for name, value in shared.items() if value}, "messages": new}

    def read(self, step: str, data: object) -> Prompt | None:
        """Add a recorded prompt and return it, None if it is malformed or the earlier call is
        missing.
        """
        fields = mapping_of(data)
        base_step, shared_messages, shared_chars = (
            text_of(fields.get("of")),
            fields.get("kept", 0),
            fields.get("chars", 0),
        )
        base = self._prompts.get(base_step, ())
        new = [_load_message(item) for item in list_of(fields.get("messages"))]
        if not (
            isinstance(shared_messages, int)
            and isinstance(shared_chars, int)
            and 0 <= shared_messages <= len(base)
        ):
            return None
        messages = [message for message in new if message is not None]
        if len(messages) < len(new) or not (messages or shared_messages):
            return None
        if shared_chars:
            if (
                shared_messages == len(base)
                or not messages
                or not 0 < shared_chars <= len(base[shared_messages].content)
            ):
                return None
            begin = base[shared_messages].content[:shared_chars]
            messages[0] = replace(messages[0], content=begin + messages[0].content)
        prompt = Prompt(
            (*base[:shared_messages], *messages),
            base_step if shared_messages or shared_chars else "",
            shared_messages,
            shared_chars,
        )
        self._add_prompt(step, prompt.messages, _prefix_digests(prompt.messages))
        return prompt

    def messages_of(self, step: str) -> Messages:
        """Return the messages of a step's prompt, none if it is unknown."""
        return self._prompts.get(step, ())

    def _add_prompt(self, step: str, messages: Messages, starts: Sequence[str]) -> None:
        self._prompts[step] = messages
        for start in starts:
            steps = self._steps.setdefault(start, [step])
            steps[1:] = [step] if step != steps[0] else []

    def _compare_with_earlier(self, messages: Messages, starts: Sequence[str]) -> Prompt:
        """Return a prompt with what it shares with the most similar earlier one."""
        shared_messages = next(
            (n for n in range(len(messages), 0, -1) if starts[n] in self._steps), 0
        )
        best = Prompt(messages)
        for step in self._steps.get(starts[shared_messages], ()):
            chars = _count_shared_chars(
                messages[shared_messages : shared_messages + 1],
                self._prompts[step][shared_messages : shared_messages + 1],
            )
            if not best.base_step or chars > best.shared_chars:
                best = Prompt(messages, step, shared_messages, chars)
        return best if best.shared_messages or best.shared_chars else Prompt(messages)


def is_same_conversation(first: Sequence[Message], second: Sequence[Message]) -> bool:
    """Return whether two conversations differ at most in what tools returned and in numbers.

    So do those of two runs of one agent that was given the same replies: times, process ids and
    durations differ.
    """
    return len(first) == len(second) and all(map(_are_alike, first, second))


def _are_alike(first: Message, second: Message) -> bool:
    if first.role != second.role or _called_functions(first) != _called_functions(second):
        return False
    is_output = first.role == "tool" or first.content == second.content
    return is_output or _NUMBER.sub("0", first.content) == _NUMBER.sub("0", second.content)


def _called_functions(message: Message) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in message.calls]


def _prefix_digests(messages: Messages) -> list[str]:
    """Return the digests of the first 0, 1, 2 … messages."""
    starts = [""]
    for message in messages:
        calls = (part for call in message.calls for part in (call.name, call.arguments))
        parts = (message.role, message.call_id, message.content, *calls)
        starts.append(digest(starts[-1], *parts))
    return starts


def _count_shared_chars(first: Messages, second: Messages) -> int:
    """Return the length of the common prefix of two messages, 0 if it is short."""
    if not first or not second or first[0].role != second[0].role:
        return 0
    text, other_text = first[0].content, second[0].content
    low, high = 0, min(len(text), len(other_text))
    while low < high:  # binary search for the longest common prefix
        middle = (low + high + 1) // 2
        if text[low:middle] == other_text[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low if low >= _MIN_SHARED_CHARS else 0


def _dump_message(message: Message) -> dict[str, object]:
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.calls]
    optional = {"calls": calls, "call_id": message.call_id}
    filled = {name: value for name, value in optional.items() if value}
    return {"role": message.role, "content": message.content, **filled}


def _load_message(data: object) -> Message | None:
    fields = mapping_of(data)
    calls = tuple(
        FunctionCall("", text_of(call.get("name")), text_of(call.get("arguments")))
        for call in map(mapping_of, list_of(fields.get("calls")))
    )
    content = text_of(fields.get("content"))
    call_id = text_of(fields.get("call_id"))
    match fields.get("role"):
        case "system" | "user" | "assistant" | "tool" as role:
            return Message(role, content, calls, call_id)
        case _:
            return None
