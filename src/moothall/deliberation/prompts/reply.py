"""JSON schemas and the reading of replies.

json: one object, constrained by a schema if the server accepts one. blocks: `<tool>{json}</tool>`,
`<python>…</python>`, `<finish>…</finish>` in free text. Both give the same `Turn`, and both accept
the spellings of `variants`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic_core import from_json

from moothall.deliberation.prompts.text_calls import (
    MAX_ACTIONS,
    SHELL,
    MalformedReplyError,
    OfferedTools,
    ReplyParts,
    decode,
    find_values,
    read_parts,
    without_thinking,
)
from moothall.domain.chat import ChatReply, Likely, ReplyMode, ReplySchema
from moothall.domain.codec import list_of
from moothall.domain.ids import ROLES
from moothall.domain.task import DocumentKind
from moothall.domain.tool import Action
from moothall.tools.catalogue import ToolSpec

MAX_STRING = 2000
"""Characters of a string in the schema of a small model: llama.cpp refuses a grammar that repeats a
character more often.
"""
_SHORT_THOUGHT_CHARS = 200
"""Characters of a thought in the schema of a small model."""
_MAX_THOUGHT_CHARS = 4000
"""Characters of a thought that are kept."""
_APPROACH_WORDS = 3
"""Characters of an input: a longer one is left out, as its beginning alone would be broken code."""
_MAX_TASKS, _MAX_CRITERIA = 32, 60
"""Of a document: a grammar is bounded, whatever the settings allow."""
_CORRECT_EXAMPLES = {
    "json": 'Right is, for example, {"thought": "look first", "actions": [{"tool": "files.read", '
    '"args": {"path": "README.md"}}]} or, at the end, {"thought": "done", "finish": "Added the '
    'function."}.',
    "blocks": 'Right is, for example, <tool>{"name": "files.read", "args": {"path": '
    '"README.md"}}</tool> '
    "or, at the end, <finish>Added the function.</finish>.",
}
_ANSWER_BEGIN = re.compile(r'<(?P<tag>tool|python|finish)>|\{\s*"(?:thought|finish)"')
_CLOSING = re.compile(r"</?[finsh]{0,6}\Z")
_DOCUMENT_FIELDS = ("finish", "tasks", "title", "description", "criteria")


@dataclass(frozen=True, slots=True)
class Turn:
    """A reply: a thought, and exactly one of actions, python and finish."""

    thought: str = ""
    actions: tuple[Action, ...] = ()
    python: str | None = None
    finish: str | None = None


def turn_schema(
    specs: Sequence[ToolSpec],
    *,
    may_finish: bool = True,
    python: bool = False,
    max_string: int | None = MAX_STRING,
) -> ReplySchema:
    """Return the schema of a turn with these tools; without tools, only finish is allowed.

    python: a block of Python is a turn too. max_string: the most characters of a string; None: no
    limit.
    """
    return _turn_schema(tuple(specs), may_finish=may_finish, python=python, max_string=max_string)


@lru_cache(maxsize=64)  # the same for every turn of every seat, and large
def _turn_schema(
    specs: tuple[ToolSpec, ...], *, may_finish: bool, python: bool, max_string: int | None
) -> ReplySchema:
    """Return the schema, cached.

    The alternatives are closed objects with a `const`, which the grammar compilers of llama.cpp and
    vLLM turn into small grammars.
    """
    thought = {"type": "string", "maxLength": _SHORT_THOUGHT_CHARS}
    text = {"type": "string", "minLength": 1, "maxLength": max_string}
    alternatives = []
    if specs:
        action = {
            "anyOf": [
                closed_object(tool={"const": spec.name}, args=spec.schema(max_string))
                for spec in specs
            ]
        }
        actions = {"type": "array", "items": action, "minItems": 1, "maxItems": MAX_ACTIONS}
        alternatives.append(closed_object(thought=thought, actions=actions))
    if specs and python:
        alternatives.append(closed_object(thought=thought, python=text))
    if may_finish or not specs:
        alternatives.append(closed_object(thought=thought, finish=text))
    schema = alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}
    return ReplySchema("turn", schema if max_string is not None else _without_max_length(schema))


@lru_cache(maxsize=4)
def document_schema(kind: DocumentKind, max_string: int | None = MAX_STRING) -> ReplySchema:
    """Return the schema of a document: `plan` for the tasks of a story, `coach` for a story.
    `max_string` as in `turn_schema`.
    """
    text = {"type": "string", "minLength": 1, "maxLength": max_string}
    if kind == "coach":
        criteria = {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": 400},
            "maxItems": _MAX_CRITERIA,
        }
        schema = closed_object(
            title={"type": "string", "maxLength": 200}, description=text, criteria=criteria
        )
    else:
        name = {"type": "string", "minLength": 1, "maxLength": 64}
        task = closed_object(
            id=name,
            role={"enum": list(ROLES)},
            description=text,
            criteria={
                "type": "array",
                "items": {"enum": list(range(1, _MAX_CRITERIA + 1))},
                "maxItems": _MAX_CRITERIA,
            },
            after={"type": "array", "items": name, "maxItems": _MAX_TASKS},
        )
        schema = closed_object(
            tasks={"type": "array", "items": task, "minItems": 1, "maxItems": _MAX_TASKS}
        )
    return ReplySchema(
        kind or "plan", schema if max_string is not None else _without_max_length(schema)
    )


def _without_max_length(schema: Any) -> Any:
    """Return a schema without limits on strings. A property named maxLength is a schema, not a
    number.
    """
    if isinstance(schema, Mapping):
        unlimited = {
            key: value
            for key, value in schema.items()
            if key != "maxLength" or isinstance(value, Mapping)
        }
        return {key: _without_max_length(value) for key, value in unlimited.items()}
    return [_without_max_length(item) for item in schema] if isinstance(schema, list) else schema


def approaches_schema(count: int) -> ReplySchema:
    """Return the schema of a list of `count` approaches of a dozen words each."""
    items = {
        "type": "array",
        "items": {"type": "string", "minLength": 3, "maxLength": 90},
        "minItems": count,
        "maxItems": count,
    }
    return ReplySchema("approaches", closed_object(approaches=items))


@lru_cache(maxsize=64)
def review_schema(criteria: int) -> ReplySchema:
    """Return the schema of a review against `criteria` numbered criteria. The score comes last,
    after its reasons. With several criteria, each has a score.
    """
    number = {"enum": list(range(1, criteria + 1))}
    quote = {"type": "string", "minLength": 1, "maxLength": 120}
    met = {
        "type": "array",
        "items": closed_object(criterion=number, quote=quote),
        "maxItems": criteria,
    }
    unmet = {"type": "array", "items": number, "maxItems": criteria}
    comment = {"type": "string", "maxLength": 300}
    score = {"enum": list(range(11))}
    fields: dict[str, Any] = {"comment": comment, "met": met, "unmet": unmet}
    if criteria > 1:
        fields["scores"] = {
            "type": "array",
            "items": score,
            "minItems": criteria,
            "maxItems": criteria,
        }
    else:
        fields["score"] = score
    return ReplySchema("review", closed_object(**fields))


def claim_schema() -> ReplySchema:
    """Return the schema of the answer whether tests show that a task is already done."""
    return ReplySchema(
        "claim", closed_object(why={"type": "string", "maxLength": 300}, done={"type": "boolean"})
    )


def numbered_schema(field: str, max_items: int) -> ReplySchema:
    """Return the schema of a list of at most `max_items` numbered tests under a field, each with a
    reason.
    """
    item = closed_object(
        test={"type": "integer", "minimum": 1}, why={"type": "string", "maxLength": 300}
    )
    return ReplySchema(
        field, closed_object(**{field: {"type": "array", "items": item, "maxItems": max_items}})
    )


def contradiction_schema() -> ReplySchema:
    """Return the schema of the answer whether tests contradict a task. The reason comes first."""
    return ReplySchema(
        "contradiction",
        closed_object(why={"type": "string", "maxLength": 300}, contradicts={"type": "boolean"}),
    )


def closed_object(**fields: Any) -> dict[str, Any]:
    """Return the schema of an object with exactly these fields."""
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def read_turn(
    reply: ChatReply, mode: ReplyMode, specs: Sequence[ToolSpec] = (), *, last: bool = False
) -> Turn:
    """Return the reply as a turn. Raises `MalformedReplyError`, which says what was wrong and what
    would be right.

    specs: the tools that it may call. A finish in a reply with actions is only a thought, since the
    actions run first and may fail. last: no turn follows, so a finish counts.
    """
    _require_whole(reply)
    tools = OfferedTools(tuple(specs))
    try:
        return _turn_of(read_parts(reply.text, tools), mode, tools, last=last)
    except MalformedReplyError as error:
        raise MalformedReplyError(
            f"Your reply could not be used: {error} {_CORRECT_EXAMPLES[mode]}"
        ) from error


def _turn_of(parts: ReplyParts, mode: ReplyMode, tools: OfferedTools, *, last: bool) -> Turn:
    actions, finish = parts.actions, parts.finish[-1] if parts.finish else ""
    if parts.commands and not (actions or finish or parts.python):
        if not tools.has_shell:
            raise MalformedReplyError(
                "it holds a block of shell commands, and there is no shell here: use the tools."
            )
        actions = [Action(SHELL, {"command": command}) for command in parts.commands]
    if len(actions) > MAX_ACTIONS:
        raise MalformedReplyError(
            f"it has {len(actions)} tool calls, and at most {MAX_ACTIONS} are allowed."
        )
    if parts.python and actions:
        kind = "actions" if mode == "json" else "tool"
        raise MalformedReplyError(
            f"it holds {kind} and python; exactly one kind is allowed in a reply."
        )
    if len(parts.python) > 1:
        raise MalformedReplyError(
            f"it holds {len(parts.python)} blocks of python, and one is allowed."
        )
    if finish and (last or not (actions or parts.python)):
        return Turn(parts.thought[:_MAX_THOUGHT_CHARS], finish=finish)
    thought = " ".join(filter(None, (parts.thought, finish)))[:_MAX_THOUGHT_CHARS]
    if actions:
        return Turn(thought, tuple(actions))
    if parts.python:
        return Turn(thought, python=parts.python[0])
    raise _nothing_usable(parts, mode)


def _nothing_usable(parts: ReplyParts, mode: ReplyMode) -> MalformedReplyError:
    if parts.broken is not None:
        return parts.broken
    if mode == "json" and not parts.objects:
        return MalformedReplyError("there is no JSON object in it.")
    known_fields = "actions, finish" if mode == "json" else "<tool>, <finish>"
    fields = f" It has the unknown field {parts.fields[0][:40]!r}." if parts.fields else ""
    return MalformedReplyError(f"it holds none of {known_fields}; exactly one is needed.{fields}")


def read_document(reply: ChatReply) -> Turn:
    """Read a document, or a turn that finishes with one, as a turn that finishes with it. Raises
    `MalformedReplyError`.
    """
    _require_whole(reply)
    try:
        data = find_object(reply.text, *_DOCUMENT_FIELDS)
        finish = data.get("finish", data)
        if not isinstance(finish, Mapping):
            return _turn_of(
                read_parts(reply.text, OfferedTools()), "json", OfferedTools(), last=True
            )
    except MalformedReplyError as error:
        raise MalformedReplyError(
            f"Your reply could not be used: {error} Right is the one JSON object that the task "
            "asks for."
        ) from error
    return Turn(finish=json.dumps(finish, ensure_ascii=False))


def answer_so_far(text: str) -> str:
    """Return the part of the answer (finish) that an unfinished reply has, or ''."""
    text = without_thinking(text)
    begin = _ANSWER_BEGIN.search(text)
    if begin is None:
        return ""
    if begin.group("tag") is None:
        answer = _begun_object(text[begin.start() :]).get("finish")
        return answer.strip() if isinstance(answer, str) else ""
    if begin.group("tag") != "finish":
        return ""
    answer, closing_tag, _ = text[begin.end() :].partition("</finish>")
    return (answer if closing_tag else _CLOSING.sub("", answer)).strip()


def _begun_object(text: str) -> Mapping[str, Any]:
    """Return the object at the beginning of a text, as far as it is complete."""
    try:
        value = from_json(text, allow_partial="trailing-strings")
    except ValueError:
        try:
            value, _ = decode(text)
        except MalformedReplyError:
            return {}
    return value if isinstance(value, dict) else {}


def whole_text(reply: ChatReply) -> str:
    """Return a reply's text without reasoning. Raises `MalformedReplyError` if it was cut off."""
    _require_whole(reply)
    return without_thinking(reply.text)


def read_approaches(reply: ChatReply, count: int) -> tuple[str, ...]:
    """Return `count` distinct approaches. Raises `MalformedReplyError`.

    An approach is an idea of three words or more. Names of tools and paths, which small models
    list, do not count: one seat edited the tests because its approach named them.
    """
    lines = (
        " ".join(item.split())[:120]
        for item in _find_list(reply, "approaches")
        if isinstance(item, str) and len(item.split()) >= _APPROACH_WORDS and "/" not in item
    )
    distinct = list({line.casefold(): line for line in lines}.values())
    if len(distinct) < count:
        raise MalformedReplyError(f"{len(distinct)} distinct approaches, and {count} are needed.")
    return tuple(distinct[:count])


@dataclass(frozen=True, slots=True)
class ReadReview:
    """A review as the model wrote it: criteria by number from 1, with quotes for those that are
    met.

    score: 0 to 10, the mean of the scores by criterion. Each is an expected value if the server
    reports probabilities.
    """

    score: float
    met: tuple[tuple[int, str], ...]
    unmet: tuple[int, ...]
    comment: str


def read_review(reply: ChatReply, criteria: int) -> ReadReview:
    """Return the review; raises `MalformedReplyError` if a score is not an integer from 0 to 10.

    One score for everything is accepted where a score for each criterion was requested.
    """
    _require_whole(reply)
    data = find_object(reply.text, "scores", "score")
    met = tuple(
        (item["criterion"], item["quote"])
        for item in list_of(data.get("met"))
        if isinstance(item, dict)
        and _is_numbered(item.get("criterion"), criteria)
        and isinstance(item.get("quote"), str)
    )
    unmet = tuple(item for item in list_of(data.get("unmet")) if _is_numbered(item, criteria))
    comment = data.get("comment")
    return ReadReview(
        _mean_score(reply, _read_scores(data, criteria)),
        met,
        unmet,
        comment[:1000] if isinstance(comment, str) else "",
    )


def _read_scores(data: Mapping[str, Any], criteria: int) -> list[int]:
    if criteria > 1 and isinstance(scores := data.get("scores"), list):
        if len(scores) != criteria or not all(_is_score(score) for score in scores):
            raise MalformedReplyError(
                f'"scores" is not a list of {criteria} integers from 0 to 10, one per criterion.'
            )
        return scores
    score = data.get("score")
    if not isinstance(score, int) or not _is_score(score):
        raise MalformedReplyError("the score is no whole number from 0 to 10.")
    return [score]


def _is_score(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10  # noqa: PLR2004  # the scale


def _mean_score(reply: ChatReply, scores: Sequence[int]) -> float:
    """Return the mean of the scores, each as its expected value if the last numbers of the reply
    are the scores.
    """
    numbers = [*reply.earlier_digits, reply.digits][-len(scores) :]
    if [_number(digits) for digits in numbers] != [str(score) for score in scores]:
        return math.fsum(scores) / len(scores)
    expected = [_expected_score(*pair) for pair in zip(numbers, scores, strict=True)]
    return math.fsum(expected) / len(expected)


def _number(digits: Sequence[Likely]) -> str:
    return "".join(token[0][0] for token in digits)


def _expected_score(digits: Sequence[Likely], score: int) -> float:
    """Return the expected value of a score.

    If 10 consists of two tokens, the second token's alternatives tell how likely 1 was instead.
    """
    first, *rest = (dict(token) for token in digits)
    if rest:  # a token that is no number, and would have ended it, is the remainder
        ten = first["1"] * min(1.0, rest[0].get("0", 0.0))
        first |= {"1": first["1"] - ten, "10": ten}
    likely = {int(number): chance for number, chance in first.items() if int(number) <= 10}  # noqa: PLR2004  # the scale
    total = math.fsum(likely.values())
    return (
        math.fsum(number * chance for number, chance in likely.items()) / total if total else score
    )


def _is_numbered(value: Any, criteria: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= criteria


def _require_whole(reply: ChatReply) -> None:
    if reply.finish_reason == "length":
        raise MalformedReplyError(
            "Your reply was cut off because it was too long. Say less in one reply: fewer actions, "
            "and a long file in parts (files.write for the beginning, files.append for the rest)."
        )


def read_contradiction(reply: ChatReply) -> str:
    """Return why tests contradict the task, or ''. Raises `MalformedReplyError` if the reply does
    not say.
    """
    contradicts, reason = _read_verdict(reply, "contradicts")
    return reason if contradicts else ""


def read_numbered(reply: ChatReply, field: str, count: int) -> dict[int, str]:
    """Return the numbers of the tests that a reply lists under a field, with the reasons. Raises
    `MalformedReplyError` if there is no list.
    """
    _require_whole(reply)
    data = find_object(reply.text, field)
    if not isinstance(data.get(field), list):
        raise MalformedReplyError(f'"{field}" is no list.')
    return {
        item["test"]: " ".join(str(item.get("why") or "no reason is given").split())[:300]
        for item in data[field]
        if isinstance(item, dict) and _is_numbered(item.get("test"), count)
    }


def read_claim(reply: ChatReply) -> str:
    """Return why tests do not show that the task is done, or ''. Raises `MalformedReplyError` if
    the reply does not say.
    """
    is_done, reason = _read_verdict(reply, "done")
    return "" if is_done else f"its tests do not show that the task is done: {reason}"


def _read_verdict(reply: ChatReply, field: str) -> tuple[bool, str]:
    """Return the boolean under a field of a reply, and its reason. Raises `MalformedReplyError`."""
    _require_whole(reply)
    data = find_object(reply.text, field)
    if not isinstance(data.get(field), bool):
        raise MalformedReplyError(f'"{field}" is neither true nor false.')
    explanation = data.get("why")
    reason = " ".join(explanation.split())[:300] if isinstance(explanation, str) else ""
    return data[field], reason or "no reason is given"


def find_object(text: str, *fields: str) -> Mapping[str, Any]:
    """Return the last object with one of these fields, also inside another object, or else the last
    object.

    Earlier objects are drafts and quotes, such as reasoning that the server did not separate.
    """
    last_match: Mapping[str, Any] | None = None
    last: Mapping[str, Any] | None = None
    for value in find_values(text):
        last = value
        for candidate in (value, *(inner for inner in value.values() if isinstance(inner, dict))):
            if any(field in candidate for field in fields):
                last_match = candidate
                break
    result = last_match if last_match is not None else last
    if result is None:
        raise MalformedReplyError("there is no JSON object in it.")
    return result


def _find_list(reply: ChatReply, field: str) -> Sequence[Any]:
    """Return the list under a field, or else the last list of texts outside an object."""
    _require_whole(reply)
    text = without_thinking(reply.text)
    with suppress(MalformedReplyError):  # a list by itself is in no object
        if isinstance(items := find_object(text, field).get(field), list):
            return items
    lists = [
        value
        for value in find_values(text, "[")
        if value and all(isinstance(item, str) for item in value)
    ]
    if not lists:
        raise MalformedReplyError(f"there is no list of {field}.")
    return list_of(lists[-1])
