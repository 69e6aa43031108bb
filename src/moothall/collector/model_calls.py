"""The prompts and replies of a deliberation's model calls, from the events of its log."""

from __future__ import annotations

from dataclasses import dataclass

from moothall.domain.codec import list_of, mapping_of, text_of
from moothall.domain.event import EventType, Recorded
from moothall.domain.prompts import Prompt, Prompts, step_of


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model call. `prompt` is None if the log does not have it, because an older version recorded
    the call. `tool_calls` are the native tool calls of the reply: names and arguments.
    """

    prompt: Prompt | None
    reply: str
    tool_calls: tuple[tuple[str, str], ...]


class ModelCallReader:
    """Reads the model calls from a deliberation's events, one after the other."""

    def __init__(self) -> None:
        self._prompts = Prompts()
        self.calls: dict[str, ModelCall] = {}
        """The calls by step; the first event about a call counts."""

    def add(self, recorded: Recorded) -> None:
        """Add an event. Malformed fields are ignored."""
        event = recorded.event
        step = step_of(text_of(event.data.get("call_id")))
        if event.type is not EventType.MODEL_CALLED or not step or step in self.calls:
            return
        tool_calls = tuple(
            (text_of(call.get("name")), text_of(call.get("arguments")))
            for call in map(mapping_of, list_of(event.data.get("calls")))
        )
        prompt = self._prompts.read(step, event.data.get("prompt"))
        self.calls[step] = ModelCall(prompt, text_of(event.data.get("answer")), tool_calls)
