"""What a model may say, in both spellings, and what is told to it when it said something else.

json: one object, constrained by a schema where the server takes one. blocks: `<tool>{json}</tool>`,
`<python>…</python>`, `<finish>…</finish>` in free text. Both parse to the same `Turn`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic_core import from_json

from moothall.domain.chat import ChatReply, ReplyMode, ReplySchema
from moothall.domain.codec import list_of
from moothall.domain.ids import ROLES
from moothall.domain.task import DocumentKind
from moothall.domain.tool import Action
from moothall.tools.catalogue import ToolSpec

# llama.cpp refuses a grammar that repeats a character more than 2,000 times.
MAX_STRING = 2000
MAX_ANSWER = 2000
MAX_ACTIONS = 8
_THOUGHT = 200
_APPROACH_WORDS = 3
_TASKS, _CRITERIA = 32, 60
"""Of a document: a grammar is bounded, whatever the settings allow."""
_KINDS = ("actions", "python", "finish")
_RIGHT = {
    "json": 'Right is, for example, {"thought": "look first", "actions": [{"tool": "files.read", "args": {"path": "README.md"}}]} '
    'or, at the end, {"thought": "done", "finish": "Added the function."}.',
    "blocks": 'Right is, for example, <tool>{"name": "files.read", "args": {"path": "README.md"}}</tool> '
    "or, at the end, <finish>Added the function.</finish>.",
}
_TAG = re.compile(r"<(tool|python|finish)>")
_CLOSING = re.compile(r"</?[finsh]{0,6}\Z")
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
_FENCED = re.compile(r"^\s*```[a-zA-Z]*\s*\n(.*?)\n?\s*```\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply: a thought and exactly one of actions, python, finish."""

    thought: str = ""
    actions: tuple[Action, ...] = ()
    python: str | None = None
    finish: str | None = None


class MalformedReplyError(ValueError):
    """The reply is no turn; the message is meant for the model."""


def turn_schema(specs: Sequence[ToolSpec], *, may_finish: bool = True, python: bool = False) -> ReplySchema:
    """Return the schema of a turn with these tools; without tools only finish is left. `python`: a block of it is a turn too."""
    return _turn_schema(tuple(specs), may_finish=may_finish, python=python)


@lru_cache(maxsize=64)  # the same for every turn of every seat, and large
def _turn_schema(specs: tuple[ToolSpec, ...], *, may_finish: bool, python: bool) -> ReplySchema:
    """As above.

    The alternatives are closed objects told apart by `const`, every string is bounded: what both
    grammar compilers (llama.cpp's and vLLM's) turn into small grammars.
    """
    thought = {"type": "string", "maxLength": _THOUGHT}
    ways = []
    if specs:
        action = {"anyOf": [_closed_object(tool={"const": spec.name}, args=spec.schema(MAX_STRING)) for spec in specs]}
        actions = {"type": "array", "items": action, "minItems": 1, "maxItems": MAX_ACTIONS}
        ways.append(_closed_object(thought=thought, actions=actions))
    if specs and python:
        ways.append(_closed_object(thought=thought, python={"type": "string", "minLength": 1, "maxLength": MAX_STRING}))
    if may_finish or not specs:
        ways.append(_closed_object(thought=thought, finish={"type": "string", "minLength": 1, "maxLength": MAX_ANSWER}))
    return ReplySchema("turn", ways[0] if len(ways) == 1 else {"anyOf": ways})


@lru_cache(maxsize=4)
def document_schema(kind: DocumentKind) -> ReplySchema:
    """Return the schema of a document: `plan` for the tasks of a story, `coach` for a story."""
    text = {"type": "string", "minLength": 1, "maxLength": MAX_ANSWER}
    if kind == "coach":
        criteria = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 400}, "maxItems": _CRITERIA}
        return ReplySchema(
            "coach", _closed_object(title={"type": "string", "maxLength": 200}, description=text, criteria=criteria)
        )
    name = {"type": "string", "minLength": 1, "maxLength": 64}
    task = _closed_object(
        id=name,
        role={"enum": list(ROLES)},
        description=text,
        criteria={"type": "array", "items": {"enum": list(range(1, _CRITERIA + 1))}, "maxItems": _CRITERIA},
        after={"type": "array", "items": name, "maxItems": _TASKS},
    )
    tasks = {"type": "array", "items": task, "minItems": 1, "maxItems": _TASKS}
    return ReplySchema("plan", _closed_object(tasks=tasks))


def approaches_schema(count: int) -> ReplySchema:
    """Return the schema of a list of `count` approaches of a dozen words each."""
    items = {"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 90}, "minItems": count, "maxItems": count}
    return ReplySchema("approaches", _closed_object(approaches=items))


def inputs_schema(most: int) -> ReplySchema:
    """Return the schema of a list of at most so many calls."""
    items = {"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 200}, "minItems": 1, "maxItems": most}
    return ReplySchema("inputs", _closed_object(inputs=items))


@lru_cache(maxsize=64)
def review_schema(criteria: int) -> ReplySchema:
    """Return the schema of a review against `criteria` numbered criteria. The score comes last, after its reasons."""
    number = {"enum": list(range(1, criteria + 1))}
    quote = {"type": "string", "minLength": 1, "maxLength": 120}
    met = {"type": "array", "items": _closed_object(criterion=number, quote=quote), "maxItems": criteria}
    unmet = {"type": "array", "items": number, "maxItems": criteria}
    comment = {"type": "string", "maxLength": 300}
    return ReplySchema("review", _closed_object(comment=comment, met=met, unmet=unmet, score={"enum": list(range(11))}))


def _closed_object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def read_turn(reply: ChatReply, mode: ReplyMode) -> Turn:
    """Return the reply as a turn; raises `MalformedReplyError` saying what was wrong and what is right."""
    text = whole_text(reply)
    try:
        return _read_json_turn(text) if mode == "json" else _read_blocks(text)
    except MalformedReplyError as error:
        raise MalformedReplyError(f"Your reply could not be used: {error} {_RIGHT[mode]}") from error


def read_document(reply: ChatReply) -> Turn:
    """Read a document, or a turn that finishes with one, as a turn that finishes with it.

    Raises `MalformedReplyError` saying what was wrong and what is right.
    """
    text = whole_text(reply)
    try:
        data = _object(text)
        if "finish" in data:
            return _read_json_turn(text)
    except MalformedReplyError as error:
        raise MalformedReplyError(
            f"Your reply could not be used: {error} Right is the one JSON object that the task asks for."
        ) from error
    return Turn(finish=json.dumps(data, ensure_ascii=False).encode("utf-8", "replace").decode())


def answer_so_far(text: str) -> str:
    """Return what a reply that is still being written has of its answer (finish), '' where that has not begun."""
    text = _THINKING.sub("", text)
    if (begin := text.find("{")) >= 0 and not text[:begin].strip():
        try:
            turn = from_json(text[begin:], allow_partial="trailing-strings")
        except ValueError:
            return ""
        answer = turn.get("finish") if isinstance(turn, dict) else None
        return answer.strip() if isinstance(answer, str) else ""
    tag = _TAG.search(text)
    if tag is None or tag.group(1) != "finish":
        return ""
    answer, closed, _ = text[tag.end() :].partition("</finish>")
    return (answer if closed else _CLOSING.sub("", answer)).strip()


def whole_text(reply: ChatReply) -> str:
    """Return a reply's text without what the model thought aloud; raises `MalformedReplyError` where it was cut off."""
    _whole(reply)
    return _THINKING.sub("", reply.text)


def read_approaches(reply: ChatReply, count: int) -> tuple[str, ...]:
    """Return `count` distinct approaches; raises `MalformedReplyError`.

    An approach is an idea in three words or more. A tool's name or a path is none: such a list, as small
    models give it, leads seats astray (one went on to edit the tests because its approach said so).
    """
    _whole(reply)
    found = _object(reply.text).get("approaches")
    if not isinstance(found, list):
        raise MalformedReplyError("there is no list of approaches.")
    lines = (
        " ".join(item.split())[:120]
        for item in found
        if isinstance(item, str) and len(item.split()) >= _APPROACH_WORDS and "/" not in item
    )
    distinct = list({line.casefold(): line for line in lines}.values())
    if len(distinct) < count:
        raise MalformedReplyError(f"{len(distinct)} distinct approaches, and {count} are needed.")
    return tuple(distinct[:count])


def read_inputs(reply: ChatReply, most: int) -> tuple[str, ...]:
    """Return the calls, each once and nothing of them evaluated; raises `MalformedReplyError` where there is no list of them."""
    _whole(reply)
    found = _object(reply.text).get("inputs")
    if not isinstance(found, list):
        raise MalformedReplyError("there is no list of inputs.")
    return tuple(dict.fromkeys(item[:200].strip() for item in found if isinstance(item, str)))[:most]


@dataclass(frozen=True, slots=True)
class ReadReview:
    """A review as the model spelled it: criteria by number from 1, with quotes for those that are met. The score is its mean where the
    server tells how likely others were.
    """

    score: float
    met: tuple[tuple[int, str], ...]
    unmet: tuple[int, ...]
    comment: str


def read_review(reply: ChatReply, criteria: int) -> ReadReview:
    """Return the review; raises `MalformedReplyError` where its score is no whole number from 0 to 10."""
    _whole(reply)
    data = _object(reply.text)
    score = data.get("score")
    if isinstance(score, bool) or not isinstance(score, int) or not 0 <= score <= 10:  # noqa: PLR2004  # the scale
        raise MalformedReplyError("the score is no whole number from 0 to 10.")
    met = tuple(
        (item["criterion"], item["quote"])
        for item in list_of(data.get("met"))
        if isinstance(item, dict) and _is_numbered(item.get("criterion"), criteria) and isinstance(item.get("quote"), str)
    )
    unmet = tuple(item for item in list_of(data.get("unmet")) if _is_numbered(item, criteria))
    comment = data.get("comment")
    return ReadReview(_expected_score(reply, score), met, unmet, comment[:1000] if isinstance(comment, str) else "")


def _expected_score(reply: ChatReply, score: int) -> float:
    """Return the mean of the scores that might have stood there. Where 10 is made of two tokens, what is told of the second says how
    likely 1 was in its place; where it does not stand there, the first alone is looked at.
    """
    if "".join(token[0][0] for token in reply.digits) != str(score):
        return score
    first, *rest = (dict(token) for token in reply.digits)
    if rest:  # a token that is no number, and would have ended it, is the remainder
        ten = first["1"] * min(1.0, rest[0].get("0", 0.0))
        first |= {"1": first["1"] - ten, "10": ten}
    likely = {int(number): chance for number, chance in first.items() if int(number) <= 10}  # noqa: PLR2004  # the scale
    total = math.fsum(likely.values())
    return math.fsum(number * chance for number, chance in likely.items()) / total if total else score


def _is_numbered(value: Any, criteria: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= criteria


def _whole(reply: ChatReply) -> None:
    if reply.finish_reason == "length":
        raise MalformedReplyError(
            "Your reply was cut off because it was too long. Say less in one reply: fewer actions, and a long file in parts "
            "(files.write for the beginning, files.append for the rest)."
        )


def _object(text: str) -> dict[str, Any]:
    """Return the one JSON object in `text`, which may stand in a markdown fence."""
    if fenced := _FENCED.match(text):
        text = fenced.group(1)
    start = text.find("{")
    if start < 0:
        raise MalformedReplyError("there is no JSON object in it.")
    value, end = _decode(text, start)
    if not isinstance(value, dict):
        raise MalformedReplyError("it is no JSON object.")
    if "{" in text[end:]:
        raise MalformedReplyError("there is more than one JSON object in it.")
    return value


def _decode(text: str, start: int) -> tuple[Any, int]:
    try:
        # strict=False: models put raw line breaks into strings, and what they mean is plain.
        return json.JSONDecoder(strict=False, parse_constant=_no_constant).raw_decode(text, start)
    except RecursionError as error:
        raise MalformedReplyError("its JSON is nested too deeply.") from error
    except json.JSONDecodeError as error:
        near = " ".join(text[max(error.pos - 20, 0) : error.pos + 20].split())
        raise MalformedReplyError(f"its JSON is broken near {near!r}: {error.msg}.") from error


def _no_constant(name: str) -> Any:
    raise MalformedReplyError(f"{name} is no JSON.")


def _read_json_turn(text: str) -> Turn:
    data = _object(text)
    if unknown := sorted(set(data) - {"thought", *_KINDS}):
        raise MalformedReplyError(f"it has the unknown field {unknown[0][:40]!r}.")
    said = [kind for kind in _KINDS if data.get(kind) is not None]
    if len(said) != 1:
        raise MalformedReplyError(_how_many(said, "actions, finish"))
    thought = data.get("thought")
    thought = thought[: 2 * _THOUGHT] if isinstance(thought, str) else ""
    if said == ["actions"]:
        actions = data["actions"]
        if not isinstance(actions, list) or not 1 <= len(actions) <= MAX_ACTIONS:
            raise MalformedReplyError(f"'actions' is a list of 1 to {MAX_ACTIONS} tool calls.")
        return Turn(thought, tuple(_action(item) for item in actions))
    value = data[said[0]]
    if not isinstance(value, str) or not value.strip():
        raise MalformedReplyError(f"{said[0]!r} is a text that is not empty.")
    value = value.encode("utf-8", "replace").decode()  # JSON can spell half a character, and no digest takes such a text
    return Turn(thought, python=value) if said == ["python"] else Turn(thought, finish=value)


def _action(item: Any) -> Action:
    if not isinstance(item, dict):
        raise MalformedReplyError("an action is an object with 'tool' and 'args'.")
    tool, args = item.get("tool", item.get("name")), item.get("args", {})
    if not isinstance(tool, str) or not tool:
        raise MalformedReplyError("an action does not name its tool.")
    if not isinstance(args, dict):
        raise MalformedReplyError(f"the args of {tool[:40]} are no object.")
    return Action(tool, args)


def _read_blocks(text: str) -> Turn:
    actions: list[Action] = []
    texts: dict[str, str] = {}
    outside: list[str] = []
    position = 0
    while tag := _TAG.search(text, position):
        outside.append(text[position : tag.start()])
        kind, close = tag.group(1), f"</{tag.group(1)}>"
        if kind == "tool":
            # The decoder says where the JSON ends: a file's content may hold a closing tag.
            begin = text.find("{", tag.end())
            if begin < 0:
                raise MalformedReplyError("a <tool> holds no JSON object.")
            value, end = _decode(text, begin)
            actions.append(_action(value))
            position = text.find(close, end)
        else:
            position = text.find(close, tag.end())
            texts[kind] = text[tag.end() : position].strip()
        if position < 0:
            raise MalformedReplyError(f"<{kind}> is not closed by {close}.")
        position += len(close)
    outside.append(text[position:])
    said = [*(["tool"] if actions else []), *texts]
    if len(said) != 1:
        raise MalformedReplyError(_how_many(said, "<tool>, <finish>"))
    if len(actions) > MAX_ACTIONS:
        raise MalformedReplyError(f"it has {len(actions)} tool calls, and at most {MAX_ACTIONS} are allowed.")
    thought = " ".join(" ".join(outside).split())[: 2 * _THOUGHT]
    if actions:
        return Turn(thought, tuple(actions))
    if not texts[said[0]]:
        raise MalformedReplyError(f"<{said[0]}> is empty.")
    return Turn(thought, python=texts.get("python"), finish=texts.get("finish"))


def _how_many(said: Sequence[str], known: str) -> str:
    if not said:
        return f"it holds none of {known}; exactly one is needed."
    return f"it holds {' and '.join(said)}; exactly one kind is allowed in a reply."
