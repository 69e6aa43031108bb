"""Prompts and replies of comparisons: a structured summary of each answer, an order of a few, and
notes for a second wave.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from moothall.deliberation.prompts.reply import find_object, whole_text
from moothall.deliberation.prompts.text import fence
from moothall.deliberation.prompts.variants import MalformedReplyError
from moothall.domain.chat import ChatReply, Message, ReplySchema

_FIELD_CHARS = 600
_WHY_CHARS = 500
_FIELDS: Mapping[str, str] = {
    "approach": "how it goes about the task, in one or two sentences",
    "behaviour": (
        "what is different afterwards for a caller or user, with the exact inputs and results that "
        "change"
    ),
    "left_out": "what the task asks for and it does not do; empty if nothing",
    "risks": "what else may break, such as other callers and edge cases; empty if nothing",
}


@dataclass(frozen=True, slots=True)
class AnswerSummary:
    """A model's summary of one answer. A missing field is empty."""

    fields: Mapping[str, str]

    @property
    def text(self) -> str:
        """The summary as a text for the next model."""
        return "\n".join(f"{name}: {value or '(nothing)'}" for name, value in self.fields.items())


def summary_schema() -> ReplySchema:
    """Return the schema of a summary."""
    fields = {name: {"type": "string", "maxLength": _FIELD_CHARS} for name in _FIELDS}
    return ReplySchema("summary", _closed(fields))


def order_schema(count: int) -> ReplySchema:
    """Return the schema of an order of `count` answers, best first."""
    letter = {"enum": list(ascii_uppercase[:count])}
    order = {"type": "array", "items": letter, "minItems": count, "maxItems": count}
    return ReplySchema(
        "order", _closed({"why": {"type": "string", "maxLength": _WHY_CHARS}, "order": order})
    )


def _closed(fields: Mapping[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": dict(fields),
        "required": list(fields),
        "additionalProperties": False,
    }


def summary_prompt(system: str, shared: str, answer: str, facts: str) -> tuple[Message, ...]:
    """Ask for a structured summary of one answer. Nobody is named."""
    field_list = "\n".join(f"- {name}: {text}" for name, text in _FIELDS.items())
    checks = f"\n\n{fence('what its checks said', facts)}" if facts else ""
    shape = json.dumps(dict.fromkeys(_FIELDS, "…"), ensure_ascii=False)
    return _pair(
        system,
        shared,
        "Now summarize a colleague's answer for someone who compares several of them, instead of "
        "doing the task.\n\n"
        f"{fence('answer', answer)}{checks}\n\n{field_list}\n\n"
        f"Be exact and neutral: no praise. Reply with one JSON object {shape}, and nothing else.",
    )


def comparison_prompt(system: str, shared: str, summaries: Sequence[str]) -> tuple[Message, ...]:
    """Ask for the order of a few answers, best first."""
    shown = "\n\n".join(
        fence(f"answer {letter}", text)
        for letter, text in zip(ascii_uppercase, summaries, strict=False)
    )
    letters = ", ".join(f'"{letter}"' for letter in ascii_uppercase[: len(summaries)])
    return _pair(
        system,
        shared,
        "Now compare colleagues' answers by their summaries, instead of doing the task.\n\n"
        f"{shown}\n\n"
        "Which does what the task asks for, all of it and nothing else? A right answer may be "
        "longer than a wrong one, and the "
        'order in which they stand means nothing. Say in "why" what decides; then order all of '
        "them, the best first. "
        f'Reply with one JSON object {{"why": "…", "order": [{letters}]}}, and nothing else.',
    )


def notes_prompt(system: str, shared: str, attempts: Sequence[str]) -> tuple[Message, ...]:
    """Ask for notes about the first attempts, for colleagues who start again."""
    shown = "\n\n".join(fence(f"attempt {number}", text) for number, text in enumerate(attempts, 1))
    return _pair(
        system,
        shared,
        "Colleagues have tried this task, and no test shows that one of them is right:\n\n"
        f"{shown}\n\n"
        "Others begin anew now, from the original code, and see your notes but none of these "
        "attempts. Write the notes: what was "
        "found out about the code and the cause, what was tried and why it may be wrong or "
        "incomplete, what is still open, and "
        "which test would show the problem. At most 300 words. Reply with the notes alone.",
    )


def notes_text(notes: str) -> str:
    """Return notes in the form that the seats of a second wave read."""
    return (
        f"{fence('notes from earlier attempts at this task', notes)}\n\nThose attempts were not "
        "convincing, and their changes are "
        "not in your copy. The notes may be wrong: check what you use."
    )


def rivals_text(rivals: Sequence[str]) -> str:
    """Return summaries of the other answers for an author's revision, or ''."""
    return "\n\n".join(
        fence(f"answer {letter} of a colleague", text)
        for letter, text in zip(ascii_uppercase, rivals, strict=False)
    )


def read_summary(reply: ChatReply) -> AnswerSummary:
    """Read a summary. Raises `MalformedReplyError` if it is empty."""
    data = find_object(whole_text(reply), *_FIELDS)
    found = {name: _one_line(data.get(name)) for name in _FIELDS}
    if not any(found.values()):
        raise MalformedReplyError(f"it has none of the fields {', '.join(_FIELDS)}.")
    return AnswerSummary(found)


def read_order(reply: ChatReply, count: int) -> tuple[tuple[int, ...], str]:
    """Return the answers in order, as numbers from 0, and the reason. Raises `MalformedReplyError`
    if one is missing or named twice.
    """
    data = find_object(whole_text(reply), "order")
    named = data.get("order")
    letters = [str(item).strip().upper() for item in named] if isinstance(named, list) else []
    if sorted(letters) != list(ascii_uppercase[:count]):
        raise MalformedReplyError(
            f'"order" does not hold each of {", ".join(ascii_uppercase[:count])} once.'
        )
    return tuple(ascii_uppercase.index(letter) for letter in letters), _one_line(data.get("why"))[
        :_WHY_CHARS
    ]


def _one_line(value: object) -> str:
    return " ".join(value.split())[:_FIELD_CHARS] if isinstance(value, str) else ""


def _pair(system: str, shared: str, last: str) -> tuple[Message, ...]:
    return (Message("system", system), Message("user", f"{shared}\n\n{last}"))
