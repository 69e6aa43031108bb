"""Harnesses: agents of other projects that work on a seat with our models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from moothall.domain.chat import ChatReply, FunctionTool, Message


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
