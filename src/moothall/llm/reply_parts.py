"""Read tool calls and reasoning from a reply: from the chunks of an answer, or from its text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moothall.domain.chat import FunctionCall
from moothall.domain.ids import digest
from moothall.domain.text import encodable
from moothall.llm.requests import REASONING_TEXT_FIELDS

# Split a reply into reasoning and answer if the server left the reasoning in the text. No I/O.


_OPENING_TAG = re.compile(r"\s*(?:<(think|thinking|thought|seed:think)>|\[(THINK)\])")
_CLOSING_TAG = re.compile(r"</(?:think|thinking|seed:think)>|\[/THINK\]")
_FINAL_CHANNEL = re.compile(r"<\|channel\|>final(?:\s*<\|constrain\|>\w+)?<\|message\|>")
_ANSWER_TAG = re.compile(r"<(?:tool|python|finish|tool_call|function)\b[^>]*>")
_FENCE = "```"


def split_thinking(text: str) -> tuple[str, str]:
    """Return reasoning and answer. The reasoning is between tags at the beginning, or everything
    before a lone closing tag, because some chat templates put the opening tag into the prompt. A
    closing tag in a string of a JSON reply or in a code block belongs to the answer.
    """
    if final := _FINAL_CHANNEL.search(text):
        return text[: final.start()], text[final.end() :].partition("<|")[0]
    if opening := _OPENING_TAG.match(text):
        closing = f"</{opening[1]}>" if opening[1] else f"[/{opening[2]}]"
        reasoning, closed, answer = text[opening.end() :].partition(closing)
        return reasoning, answer.lstrip("\n") if closed else ""
    closed_tag = _CLOSING_TAG.search(text)
    if closed_tag is None or _is_answer(text[: closed_tag.start()]):
        return "", text
    return text[: closed_tag.start()], text[closed_tag.end() :].lstrip("\n")


def _is_answer(preceding_text: str) -> bool:
    """Return whether the text before a lone closing tag is part of the answer."""
    if _ANSWER_TAG.search(preceding_text) or preceding_text.count(_FENCE) % 2:
        return True
    if not preceding_text.lstrip().startswith("{"):
        return False
    try:
        json.JSONDecoder(strict=False).raw_decode(preceding_text.lstrip())
    except (ValueError, RecursionError):
        return True  # the tag is inside an object that is not complete before it
    return False


# Read tool calls that a model wrote into its text because the server has no suitable parser. No
# I/O.
#
# The formats: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen),
# `<function=NAME><parameter=KEY>…` (Qwen3-Coder), `[TOOL_CALLS][{…}]` (Mistral), and JSON objects
# with a name and parameters: alone (Llama), in sequence, or in fenced blocks (Qwen2.5-Coder). Calls
# of tools that were not offered are ignored.


_HERMES = re.compile(r"<tool_call>\s*(?=\{)")
_FUNCTION = re.compile(
    r"(?:<tool_call>\s*)?<function=([\w.-]+)>(.*?)(?:</function>(?:\s*</tool_call>)?|\Z)", re.DOTALL
)
_PARAMETER = re.compile(
    r"<parameter=([\w.-]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL
)
_MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*(?=\[)")
_OBJECT = re.compile(r"[\s;,]*(?=\{)")
_FENCED = re.compile(
    r"^```(?:json|tool_call)?[ \t]*\n\s*(\{(?:(?!\n[ \t]*```).)*)\n[ \t]*```[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
_EMPTY_FENCE = re.compile(r"```\w*\s*```")
_CLOSED = re.compile(r"\s*</tool_call>")
_ARGUMENTS = ("arguments", "parameters", "args")

CallMatch = tuple[int, int, str, str]
"""A call in the text: its begin and end, the tool's name, and the arguments as JSON."""


def split_calls(text: str, tools: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the calls in a text, in the form of native calls, and the text without them."""
    offered = {
        tool["function"]["name"]: tool["function"]["parameters"].get("properties", {})
        for tool in tools
    }
    matches = (
        *_find_hermes_calls(text),
        *_find_function_tags(text, offered),
        *_find_mistral_calls(text),
        *_find_json_calls(text),
    )
    remaining_pieces, position = [], 0
    calls: list[dict[str, Any]] = []
    for begin, end, name, arguments in sorted(matches, key=lambda match: match[:2]):
        if name not in offered:
            continue
        if begin < position and end != position:
            continue  # within the arguments of another call
        remaining_pieces.append(text[position:begin])
        position = max(position, end)
        calls.append({"function": {"name": name, "arguments": arguments}})
    return calls, _EMPTY_FENCE.sub(
        "", "".join([*remaining_pieces, text[position:]])
    ).strip() if calls else text


def _find_hermes_calls(text: str) -> Iterator[CallMatch]:
    for opening in _HERMES.finditer(text):
        value, end = _decode_json(text, opening.end())
        closing = _CLOSED.match(text, end)
        yield from _read_call(value, opening.start(), closing.end() if closing else end)


def _find_function_tags(text: str, offered: Mapping[str, Mapping[str, Any]]) -> Iterator[CallMatch]:
    for match in _FUNCTION.finditer(text):
        schemas = offered.get(match[1], {})
        arguments = {
            key: _read_parameter(raw, schemas.get(key, {}))
            for key, raw in _PARAMETER.findall(match[2])
        }
        yield match.start(), match.end(), match[1], json.dumps(arguments, ensure_ascii=False)


def _find_mistral_calls(text: str) -> Iterator[CallMatch]:
    for opening in _MISTRAL.finditer(text):
        value, end = _decode_json(text, opening.end())
        for call in value if isinstance(value, list) else ():
            yield from _read_call(call, opening.start(), end)


def _find_json_calls(text: str) -> Iterator[CallMatch]:
    """Yield the calls of a text that consists only of JSON objects, and those in fenced blocks of
    JSON.
    """
    matches: list[CallMatch] = []
    end = 0
    while opening := _OBJECT.match(text, end):
        value, end = _decode_json(text, opening.end())
        if end == opening.end():
            break
        matches += _read_call(value, opening.end(), end)
    if not text[end:].strip():
        yield from matches
    for fence in _FENCED.finditer(text):
        value, end = _decode_json(fence[1], 0)
        if not fence[1][end:].strip():
            yield from _read_call(value, *fence.span())


def _read_call(value: object, begin: int, end: int) -> Iterator[CallMatch]:
    if isinstance(value, dict) and isinstance(name := value.get("name"), str):
        arguments = next(
            (value[key] for key in _ARGUMENTS if isinstance(value.get(key), dict)), None
        )
        if arguments is not None:
            yield (
                begin,
                end,
                name,
                json.dumps(arguments, ensure_ascii=False).encode("utf-8", "replace").decode(),
            )


def _decode_json(text: str, begin: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None, begin


def _read_parameter(raw: str, schema: Any) -> Any:
    """Return a parameter's value: the text if its schema is a string, else the JSON value."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return raw
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw


# Read native tool calls and reasoning from the chunks of a chat answer. No I/O.
#
# Servers differ a lot here. They identify the fragments of a call by `index`, by id or by order.
# They send an id once, in each fragment, or never; a name complete, in parts, or repeatedly;
# arguments as text in parts, or as a complete object.


MAX_CALLS = 64
_ID_CHARS = 9  # Mistral accepts only ids of nine letters and digits
_EXTRA_FIELDS = ("extra_content",)
"""Fields beside a call that must be sent back with it, such as Google's thought signatures."""


@dataclass(slots=True)
class _Call:
    index: object = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class CallReader:
    """Assembles the calls of one reply."""

    calls: list[_Call] = field(default_factory=list)

    def read(self, fragments: object, *, complete: bool = False) -> int:
        """Add fragments and return their size in bytes. `complete`: each fragment is a complete
        call.
        """
        size = 0
        for fragment in fragments if isinstance(fragments, list) else ():
            if isinstance(fragment, dict):
                size += self._read_fragment(fragment, complete=complete)
        return size

    def finish(self, seed: str) -> tuple[FunctionCall, ...]:
        """Return the calls. Missing and repeated ids are replaced by ids derived from `seed`, so
        that the same reply always gets the same ids.
        """
        used_ids: set[str] = set()
        calls = []
        for number, call in enumerate(self.calls):
            call_id = call.call_id
            if not call_id or call_id in used_ids:
                call_id = short_id(seed, str(number))
            used_ids.add(call_id)
            call.call_id = call_id
            calls.append(FunctionCall(call_id, call.name, call.arguments))
        return tuple(calls)

    @property
    def extras(self) -> dict[str, Any]:
        """The fields to send back with each call, by call id. Complete after `finish`."""
        return {call.call_id: call.extra for call in self.calls if call.extra}

    def _read_fragment(self, fragment: Mapping[str, Any], *, complete: bool) -> int:
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        call_id, name, arguments = (
            _text_or_empty(fragment.get("id")),
            _text_or_empty(function.get("name")),
            function.get("arguments"),
        )
        call = None if complete else self._find_call(fragment.get("index"), call_id, name)
        if call is None:
            if len(self.calls) >= MAX_CALLS:
                return 0
            call = _Call(fragment.get("index"))
            self.calls.append(call)
        call.call_id = call.call_id or call_id
        if name != call.name:  # some servers repeat the name in each fragment
            call.name += name
        if isinstance(arguments, str):
            call.arguments += encodable(arguments)
        elif isinstance(arguments, dict):
            call.arguments = encodable(json.dumps(arguments, ensure_ascii=False))
        call.extra |= {key: fragment[key] for key in _EXTRA_FIELDS if fragment.get(key)}
        size = (
            len(arguments)
            if isinstance(arguments, str)
            else len(call.arguments)
            if arguments
            else 0
        )
        return size + len(name) + (len(json.dumps(call.extra)) if call.extra else 0)

    def _find_call(self, index: object, call_id: str, name: str) -> _Call | None:
        """Return the call that a fragment continues, or None if it begins a new call."""
        if isinstance(index, int):
            call = next((call for call in reversed(self.calls) if call.index == index), None)
        elif call_id:
            call = next((call for call in reversed(self.calls) if call.call_id == call_id), None)
        else:
            call = self.calls[-1] if self.calls else None
        if call is None or not name:
            return call
        differs = bool(call_id and call.call_id and call_id != call.call_id)
        repeated = bool(call_id) and call_id == call.call_id
        return None if differs or (not repeated and _is_object(call.arguments)) else call


@dataclass(slots=True)
class ReasoningReader:
    """Collects the model's reasoning from a reply, to be sent back unchanged."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    details: list[dict[str, Any]] = field(default_factory=list)

    def read(self, delta: Mapping[str, Any]) -> int:
        """Add a delta and return the size of its reasoning in bytes."""
        size = 0
        for name in REASONING_TEXT_FIELDS:
            text = delta.get(name)
            if isinstance(text, dict):  # some gateways wrap the text in an object
                text = text.get("content") or text.get("text")
            if isinstance(text, str) and text:
                self.add(name, text)
                size += len(text)
        details = delta.get("reasoning_details")
        for item in details if isinstance(details, list) else ():
            if isinstance(item, dict):
                size += self._read_detail(item)
        return size

    def add(self, name: str, text: str) -> None:
        """Add a text to one of the fields."""
        self.texts.setdefault(name, []).append(encodable(text))

    def fields(self) -> dict[str, Any]:
        """Return the fields to send back. A text that repeats another field is left out."""
        texts = {name: "".join(parts) for name, parts in self.texts.items()}
        if texts.get("reasoning") == texts.get("reasoning_content") or self.details:
            texts.pop("reasoning", None)
        return texts | ({"reasoning_details": self.details} if self.details else {})

    def _read_detail(self, item: dict[str, Any]) -> int:
        """Add a fragment of OpenRouter's `reasoning_details`. Consecutive fragments of one index
        and type form one item.
        """
        last = self.details[-1] if self.details else None
        if (
            last is None
            or any(last.get(key) != item.get(key) for key in ("type", "index"))
            or item.get("index") is None
        ):
            self.details.append(dict(item))
        else:
            for key, value in item.items():
                joined = (
                    key in {"text", "summary", "data"}
                    and isinstance(value, str)
                    and isinstance(last.get(key), str)
                )
                if value is not None:
                    last[key] = last[key] + value if joined else value
        return len(json.dumps(item))


def short_id(*parts: str) -> str:
    """Return an id that every server accepts, the same for the same parts."""
    if len(parts) == 1 and len(parts[0]) == _ID_CHARS and parts[0].isalnum() and parts[0].isascii():
        return parts[0]
    return digest(*parts)[:_ID_CHARS]


def _text_or_empty(value: object) -> str:
    return encodable(value[:200]) if isinstance(value, str) else ""


def _is_object(text: str) -> bool:
    if not text.rstrip().endswith("}"):
        return False
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
