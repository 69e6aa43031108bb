"""A seat's conversation, condensed when it outgrows the model's window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moothall.council.text import CHARS_PER_TOKEN, clip, tokens
from moothall.domain.chat import Message

_KEPT = 2
_MESSAGE_TOKENS = 8  # what a chat template adds to each message


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the model said, what came back, and the same in a line."""

    said: str
    came: str
    brief: str

    @property
    def messages(self) -> tuple[Message, Message]:
        """As the model sees it."""
        return (Message("assistant", self.said or "(nothing)"), Message("user", self.came))


def window(head: tuple[Message, ...], exchanges: Sequence[Exchange], budget: int) -> tuple[Message, ...]:
    """Return the conversation within about `budget` tokens.

    `head` (the task) always stays, and so do the last two turns. The oldest results shrink to a line first,
    then the oldest turns go; where even that is too much, long messages of the last turns are cut.
    """
    kept = list(exchanges)
    for index in range(max(len(kept) - _KEPT, 0)):
        if _size(head, kept) <= budget:
            break
        kept[index] = replace(kept[index], came=f"({kept[index].brief}; the details were left out)")
    while len(kept) > _KEPT and _size(head, kept) > budget:
        kept.pop(0)
    if kept and _size(head, kept) > budget:
        room = max(budget - _size(head, ()), 200) / (2 * len(kept)) * CHARS_PER_TOKEN
        kept = [replace(item, said=clip(item.said, int(room)), came=clip(item.came, int(room))) for item in kept]
    return (*head, *(message for item in kept for message in item.messages))


def _size(head: Sequence[Message], exchanges: Sequence[Exchange]) -> int:
    messages = (*head, *(message for item in exchanges for message in item.messages))
    return sum(tokens(message.content) + _MESSAGE_TOKENS for message in messages)
