"""Read tool calls that a model wrote into its text because the server has no suitable parser. No
I/O.

The formats: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen),
`<function=NAME><parameter=KEY>…` (Qwen3-Coder), `[TOOL_CALLS][{…}]` (Mistral), and JSON objects
with a name and parameters: alone (Llama), in sequence, or in fenced blocks (Qwen2.5-Coder). Calls
of tools that were not offered are ignored.
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
    rest, position = [], 0
    calls: list[dict[str, Any]] = []
    for begin, end, name, arguments in sorted(matches, key=lambda match: match[:2]):
        if name not in offered:
            continue
        if begin < position and end != position:
            continue  # within the arguments of another call
        rest.append(text[position:begin])
        position = max(position, end)
        calls.append({"function": {"name": name, "arguments": arguments}})
    return calls, _EMPTY_FENCE.sub("", "".join([*rest, text[position:]])).strip() if calls else text


def _find_hermes_calls(text: str) -> Iterator[CallMatch]:
    for opening in _HERMES.finditer(text):
        value, end = _decode(text, opening.end())
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
        value, end = _decode(text, opening.end())
        for call in value if isinstance(value, list) else ():
            yield from _read_call(call, opening.start(), end)


def _find_json_calls(text: str) -> Iterator[CallMatch]:
    """Yield the calls of a text that consists only of JSON objects, and those in fenced blocks of
    JSON.
    """
    matches: list[CallMatch] = []
    end = 0
    while opening := _OBJECT.match(text, end):
        value, end = _decode(text, opening.end())
        if end == opening.end():
            break
        matches += _read_call(value, opening.end(), end)
    if not text[end:].strip():
        yield from matches
    for fence in _FENCED.finditer(text):
        value, end = _decode(fence[1], 0)
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


def _decode(text: str, begin: int) -> tuple[Any, int]:
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
