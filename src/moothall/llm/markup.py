"""Read tool calls that a model wrote into its text because the server has no parser for its format,
or the wrong one. No I/O.

The formats: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen),
`<function=NAME><parameter=KEY>…` (Qwen3-Coder), `[TOOL_CALLS][{…}]` (Mistral), and JSON objects
with a name and parameters: alone (Llama), one after the other, or in fenced blocks (Qwen2.5-Coder).
Only tools that were offered are called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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

Found = tuple[int, int, str, str]
"""Where a call begins and ends in the text, the tool's name, and the arguments as JSON."""


def split_calls(text: str, tools: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the calls in a text, as fragments of native ones, and the text without them."""
    offered = {
        tool["function"]["name"]: tool["function"]["parameters"].get("properties", {})
        for tool in tools
    }
    found = [
        one
        for one in (*_hermes(text), *_functions(text, offered), *_mistral(text), *_bare(text))
        if one[2] in offered
    ]
    rest, position = [], 0
    calls: list[dict[str, Any]] = []
    for begin, end, name, arguments in sorted(found, key=lambda one: one[:2]):
        if begin < position and end != position:
            continue  # within the arguments of another call
        rest.append(text[position:begin])
        position = max(position, end)
        calls.append({"function": {"name": name, "arguments": arguments}})
    return calls, _EMPTY_FENCE.sub("", "".join([*rest, text[position:]])).strip() if calls else text


def _hermes(text: str) -> Iterator[Found]:
    for opened in _HERMES.finditer(text):
        value, end = _decode(text, opened.end())
        closed = _CLOSED.match(text, end)
        yield from _described(value, opened.start(), closed.end() if closed else end)


def _functions(text: str, offered: Mapping[str, Mapping[str, Any]]) -> Iterator[Found]:
    for found in _FUNCTION.finditer(text):
        shapes = offered.get(found[1], {})
        arguments = {
            key: _value(raw, shapes.get(key, {})) for key, raw in _PARAMETER.findall(found[2])
        }
        yield found.start(), found.end(), found[1], json.dumps(arguments, ensure_ascii=False)


def _mistral(text: str) -> Iterator[Found]:
    for opened in _MISTRAL.finditer(text):
        value, end = _decode(text, opened.end())
        for one in value if isinstance(value, list) else ():
            yield from _described(one, opened.start(), end)


def _bare(text: str) -> Iterator[Found]:
    """Yield the calls of a text that consists of JSON objects alone, and those in fenced blocks of
    JSON.
    """
    found: list[Found] = []
    end = 0
    while opened := _OBJECT.match(text, end):
        value, end = _decode(text, opened.end())
        if end == opened.end():
            break
        found += _described(value, opened.end(), end)
    if not text[end:].strip():
        yield from found
    for fence in _FENCED.finditer(text):
        value, end = _decode(fence[1], 0)
        if not fence[1][end:].strip():
            yield from _described(value, *fence.span())


def _described(value: object, begin: int, end: int) -> Iterator[Found]:
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


def _decode(text: str, begin: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None, begin


def _value(raw: str, shape: Any) -> Any:
    """Return a parameter's value: text where its schema says so, else what it is as JSON."""
    if isinstance(shape, Mapping) and shape.get("type") == "string":
        return raw
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw
