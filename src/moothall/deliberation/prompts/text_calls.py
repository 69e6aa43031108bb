"""Find tool calls and answers in a model's text, in the spelling that it was trained on.

One scan from left to right. JSON objects are decoded where they begin, so that nothing inside
a string counts as markup. All searches are linear in the size of the text, which may be
hostile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from moothall.domain.codec import list_of, mapping_of
from moothall.domain.tool import Action
from moothall.tools.catalogue import ToolSpec

SHELL: Final = "code.shell"
MAX_ACTIONS: Final = 8
"""Tool calls of one reply."""
_SHELL_NAMES = frozenset({"bash", "shell", "sh"})
_FINISH_NAMES = frozenset({"finish", "submit"})
_MAX_DEPTH = 64
"""Levels of objects and lists. Arguments of tools have three at most."""
_MAX_NAME_CHARS = 100
_MAX_MENTION_CHARS = 1000
"""Characters after <tool> within which its end shows that it is a call, and not prose about calls.
"""
_SCAN_SHARE, _SCAN_FLOOR = 4, 100_000
"""Characters of broken JSON that are read before a text is given up: a multiple of its size, and a
floor.
"""
_MAX_FAILURES = 200
"""Broken objects that are read before a text is given up."""

_BAR = r"\uff5c"  # the full-width bar in DeepSeek's marks
_DSML = f"(?:{_BAR}DSML{_BAR})?"
_NAME = rf"[\w.:/-]{{1,{_MAX_NAME_CHARS}}}"
_THINKING = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<reasoning>": "</reasoning>",
    "<thought>": "</thought>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
}
_ANALYSIS, _ANALYSIS_END = "<|channel|>analysis<|message|>", "<|end|>"
_OPENING = "|".join(map(re.escape, (*_THINKING, _ANALYSIS)))
_CLOSING = "|".join(map(re.escape, _THINKING.values()))
_THOUGHT_MARK = re.compile(f"(?P<open>{_OPENING})|(?P<close>{_CLOSING})")
_MARK = re.compile(
    # The spellings of our prompts.
    r"<(?P<tag>tool|python|finish)>"
    # Reasoning that the server did not separate from the answer.
    rf"|(?P<think>{_OPENING})|(?P<thought>{_CLOSING})"
    # Qwen3-Coder and Seed-OSS: <function=NAME><parameter=KEY>VALUE</parameter></function>. Llama:
    # <function=NAME>JSON</function>. Claude, MiniMax and DeepSeek V3.2: <invoke
    # name="NAME"><parameter name="KEY">VALUE</parameter></invoke>.
    rf"|<{_DSML}(?:function=|invoke name=)[\"']?(?P<xml>{_NAME})[\"']?>"
    # GLM: <tool_call>NAME <arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>.
    rf"|<tool_call>\s*+(?P<pairs>{_NAME})\s*+(?=<arg_key>|</tool_call>)"
    # A name, then an object of arguments: Mistral from version 11 on, Kimi, DeepSeek V3 and V3.1,
    # gpt-oss.
    rf"|\[TOOL_CALLS\]\s*+(?P<mistral>{_NAME})\s*+(?:\[CALL_ID\][\w-]{{0,64}})?\s*+(?:\[ARGS\])?\s*+(?=\{{)"
    rf"|<\|tool_call_begin\|>\s*+(?P<kimi>{_NAME})\s*+<\|tool_call_argument_begin\|>\s*+(?=\{{)"
    rf"|<{_BAR}tool▁call▁begin{_BAR}>\s*+(?:function<{_BAR}tool▁sep{_BAR}>)?(?P<deepseek>{_NAME})\s*+"
    rf"(?:<{_BAR}tool▁sep{_BAR}>)?\s*+(?:```json)?\s*+(?=\{{)"
    rf"|\bto=(?P<harmony>functions\.{_NAME})(?:[^{{}}<]{{0,40}}<\|(?:channel|constrain)\|>){{0,2}}"
    r"[^{}<]{0,40}<\|message\|>\s*+(?=\{)"
    # A fenced block, and any JSON object.
    r"|^[ \t]{0,8}```[ \t]{0,8}(?P<fence>[\w+-]{0,40})[^\n`]{0,80}\n"
    r"|(?P<json>\{)(?=\s*[\"}])",
    re.MULTILINE,
)
_KINDS_WITH_NAME = frozenset({"mistral", "kimi", "deepseek", "harmony"})
_SHELL_FENCES = frozenset({"bash", "sh", "shell", "mswea_bash_command"})
_READ_FENCES = frozenset(
    {
        "",
        "json",
        "jsonc",
        "json5",
        "xml",
        "text",
        "txt",
        "tool",
        "tool_call",
        "tool_calls",
        "tool_use",
    }
)
"""Languages of fenced blocks in which calls are looked for. The others hold code."""
_FENCE_END = re.compile(r"^[ \t]{0,8}```[ \t]*$", re.MULTILINE)
_PARAMETER = re.compile(
    rf"\s*<{_DSML}parameter(?:=|\s{{1,4}}name=)[\"']?(?P<key>{_NAME})[\"']?(?P<rest>\s[^<>\n]{{0,80}})?>"
)
# A value may hold such tags itself: those that end it are followed by what can come next.
_VALUE_END = re.compile(
    rf"(?P<closed></{_DSML}parameter>)"
    rf"(?=\s*(?:<{_DSML}parameter[ =]|</{_DSML}(?:function|invoke)>|</[\w:]{{0,20}}tool_call>|\Z))"
    rf"|\n(?=[ \t]*<{_DSML}parameter[ =])"
    rf"|(?=</{_DSML}(?:function|invoke)>\s*(?:</|<function=|<invoke |<tool_call>|\Z))"
)
_PARAMETER_END = re.compile(rf"(?P<closed></{_DSML}parameter>)")
_CALL_END = re.compile(rf"\s*</{_DSML}(?:function|invoke)>")
_PAIR = re.compile(rf"\s*<arg_key>\s*(?P<key>{_NAME})\s*</arg_key>\s*<arg_value>")
_PAIR_END = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>|\Z))")
_TOOL_BODY = re.compile(r"\s*(?:```\w{0,20}\s*)?(?=(?P<next>.|\Z))", re.DOTALL)
_TOOL_END = re.compile(r"\s*(?:```\s*)?</tool>")
_CODE_FENCE = re.compile(r"\A\s*```\w{0,20}[ \t]*\n(?P<code>.*\n)?[ \t]*```\s*\Z", re.DOTALL)
_OBJECT_BEGIN = re.compile(r'\{\s*+(?:\}|"(?:[^"\\]|\\.){0,200}+"\s*+:)', re.DOTALL)
_LIST_BEGIN = re.compile(r'\[\s*+"')
_TURN_BEGIN = re.compile(r'\{\s*"(?:thought|actions?|tool|python|finish|tool_calls|function_call)"')
_CALL_BEGIN = re.compile(rf'\{{\s*"(?:name|tool_name|recipient_name)"\s*:\s*"({_NAME})"')
_NOISE = re.compile(
    rf"</?[\w:{_BAR}]{{0,20}}(?:tool|tools|tool_calls?|function_calls?|function|invoke|think|thinking)>"
    rf"|<[|{_BAR}][^|{_BAR}<>\n]{{1,40}}[|{_BAR}]>|\[/?(?:TOOL_CALLS|THINK|ARGS)\]|\bfunctools(?=\[)|```\w{{0,40}}"
)

_LIST_KEYS = ("actions", "tool_calls", "tool_uses", "calls")
_SINGLE_KEYS = ("action", "function_call", "tool_call")
_TOOL_KEYS = ("tool", "name", "tool_name", "recipient_name", "function", "action")
_ARGUMENT_KEYS = (
    "args",
    "arguments",
    "parameters",
    "input",
    "action_input",
    "tool_input",
    "params",
)
_THOUGHT_KEYS = ("thought", "thoughts", "reasoning")
_CALL_METADATA_KEYS = frozenset(
    {"id", "call_id", "tool_call_id", "type", "index", "status", *_THOUGHT_KEYS}
)
"""Fields of a call that are not arguments where these stand beside the name."""
_LITERALS = {"True": True, "False": False, "None": None}


class MalformedReplyError(ValueError):
    """The reply is no turn. The message is for the model."""


def clean_text(text: str) -> str:
    """Return the text with lone surrogates replaced. JSON can contain them, and no encoder accepts
    them.
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def without_thinking(text: str) -> str:
    """Return a text without its reasoning: marked blocks, and everything before a closing mark
    without an opening one.

    A text that begins with a JSON object, or a fenced block, is content, and is returned unchanged.
    """
    text = clean_text(text)
    if text.lstrip().startswith("{"):
        return text
    pieces: list[str] = []
    position, search_start, fences = 0, 0, 0
    while mark := _THOUGHT_MARK.search(text, search_start):
        opening_mark = mark.group("open")
        fences += text.count("```", search_start, mark.start())
        search_start = mark.end()
        if fences % 2:
            continue
        if opening_mark is None:
            pieces.clear()
            position = search_start
            continue
        pieces.append(text[position : mark.start()])
        position = _end_of_thinking(text, search_start, opening_mark)
        if position < 0:
            position = mark.end()
            break
        search_start = position
    return "".join((*pieces, text[position:]))


def _end_of_thinking(text: str, position: int, opening_mark: str) -> int:
    close = _THINKING.get(opening_mark, _ANALYSIS_END)
    end = text.find(close, position)
    return end if end < 0 else end + len(close)


# --- JSON ---


def _no_constant(name: str) -> Any:
    raise MalformedReplyError(f"{name} is no JSON.")


def _parse_finite(number: str) -> float:
    value = float(number)
    if value in {float("inf"), float("-inf")}:
        raise MalformedReplyError(f"the number {number[:20]} is too large.")
    return value


# strict=False: models put raw line breaks into strings, and what they mean is plain.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_constant, parse_float=_parse_finite)


def decode(text: str, start: int = 0) -> tuple[Any, int]:
    """Return the JSON value at `start`, and its end. Raises `MalformedReplyError`."""
    try:
        value, end = _DECODER.raw_decode(text, start)
        return _clean_value(value, 0), end
    except RecursionError as error:
        raise MalformedReplyError("its JSON is nested too deeply.") from error
    except json.JSONDecodeError as error:
        context = " ".join(text[max(error.pos - 20, 0) : error.pos + 20].split())
        raise MalformedReplyError(f"its JSON is broken near {context!r}: {error.msg}.") from error
    except MalformedReplyError:
        raise
    except ValueError as error:  # an integer of more digits than Python converts
        raise MalformedReplyError("its JSON holds a number that is too long.") from error


def _clean_value(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise MalformedReplyError("its JSON is nested too deeply.")
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_clean_value(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): _clean_value(item, depth + 1) for key, item in value.items()}
    return value


class _Allowance:
    """A limit on broken JSON in a text. Decoding errors count lines, so each takes time too."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._characters = _SCAN_SHARE * len(text) + _SCAN_FLOOR
        self._failures = _MAX_FAILURES

    def spend(self, start: int, error: MalformedReplyError) -> bool:
        """Count a failed decoding at `start`. Return whether reading may continue."""
        cause = error.__cause__
        has_position = isinstance(cause, json.JSONDecodeError) and not cause.msg.startswith(
            "Unterminated"
        )
        characters_read = (
            cause.pos - start
            if has_position and isinstance(cause, json.JSONDecodeError)
            else len(self._text) - start
        )
        self._characters -= characters_read
        self._failures -= 1
        return self._characters > 0 and self._failures > 0


def find_values(text: str, opening: str = "{") -> Iterator[Any]:
    """Yield the outermost JSON objects of a text in order (with `opening` "[", its lists of texts).

    Broken ones are skipped. Raises `MalformedReplyError` if there are too many of them, or nothing
    else.
    """
    text = clean_text(text)
    begins = _OBJECT_BEGIN if opening == "{" else _LIST_BEGIN
    allowance = _Allowance(text)
    broken: MalformedReplyError | None = None
    position, count = 0, 0
    while (position := text.find(opening, position)) >= 0:
        if broken is not None and not begins.match(text, position):
            position += 1
            continue
        try:
            value, position = decode(text, position)
        except MalformedReplyError as error:
            broken = broken or error
            if not allowance.spend(position, error):
                raise
            position += 1
        else:
            count += 1
            yield value
    if broken is not None and not count:
        raise broken


# --- tools ---


@dataclass(frozen=True)
class OfferedTools:
    """The tools that a reply may call. Without any, names are not checked, and values of markup are
    texts.
    """

    specs: Sequence[ToolSpec] = ()

    @cached_property
    def _names(self) -> Mapping[str, str]:
        return {_plain_name(spec.name): spec.name for spec in self.specs}

    @property
    def has_shell(self) -> bool:
        """Return whether shell commands can run."""
        return SHELL in self._names.values()

    def name_of(self, name: str) -> str:
        """Return the offered tool that a name such as `functions.files_read:0` means, or the name
        unchanged.
        """
        name = name.strip()
        short = name.removeprefix("functions.").partition(":")[0]
        for candidate in (name, short):
            if (tool := self._names.get(_plain_name(candidate))) is not None:
                return tool
        return SHELL if short.lower() in _SHELL_NAMES and self.has_shell else name

    def is_offered(self, name: str) -> bool:
        """Return whether a name means an offered tool."""
        return self.name_of(name) in self._names.values()

    def shapes_of(self, tool: str) -> Mapping[str, Any]:
        """Return the JSON schemas of a tool's arguments, or {}."""
        spec = next((spec for spec in self.specs if spec.name == tool), None)
        return mapping_of(spec.schema(None).get("properties")) if spec else {}


def _plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name[:_MAX_NAME_CHARS].lower())


def _convert_value(value: str, shape: Mapping[str, Any]) -> Any:
    """Return a value of markup in the type of its argument's schema, or as text."""
    kinds = {
        shape.get("type"),
        *(mapping_of(alternative).get("type") for alternative in list_of(shape.get("anyOf"))),
    } - {None}
    text = value.strip()
    if not kinds or "string" in kinds or not text:
        return value
    if text in _LITERALS:
        return _LITERALS[text]
    try:
        data, end = decode(text)
    except MalformedReplyError:
        return value
    return data if end == len(text) else value


# --- what a reply holds ---


@dataclass(slots=True)
class ReplyParts:
    """The parts of a reply in order. commands: fenced shell blocks. fields: those of objects that
    request nothing.
    """

    actions: list[Action] = field(default_factory=list)
    python: list[str] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    objects: int = 0
    broken: MalformedReplyError | None = None

    @property
    def usable(self) -> bool:
        """True if the reply requests anything."""
        return bool(self.actions or self.python or self.finish or self.commands)

    @property
    def thought(self) -> str:
        """Its own thought field, or else the prose around."""
        if thoughts := " ".join(filter(None, self.thoughts)):
            return thoughts
        prose = " ".join(_NOISE.sub(" ", " ".join(self.outside)).split())
        return prose if any(char.isalnum() for char in prose) else ""


def read_parts(text: str, tools: OfferedTools) -> ReplyParts:
    """Return the parts of a text. Raises `MalformedReplyError` for a broken call or answer."""
    return _Scan(clean_text(text), tools).run()


class _Scan:
    """One pass over a text."""

    def __init__(self, text: str, tools: OfferedTools) -> None:
        self._text = text
        self._tools = tools
        self._parts = ReplyParts()
        self._at = 0
        self._missing: set[str] = set()
        """Closing marks that do not occur in the rest of the text."""
        self._allowance = _Allowance(text)

    def run(self) -> ReplyParts:
        """Scan the whole text.

        Text before a closing mark of reasoning without an opening one was reasoning, unless nothing
        follows.
        """
        usable_parts: ReplyParts | None = None
        first: MalformedReplyError | None = None
        last: MalformedReplyError | None = None
        position = 0
        while position >= 0:
            self._parts = ReplyParts()
            try:
                position = self._scan_from(position)
                last = None
                usable_parts = self._parts if self._parts.usable else usable_parts
            except MalformedReplyError as error:
                first, last = first or error, error
                position = self._next_close() if self._allowance.spend(self._at, error) else -1
        failed = last or (first if usable_parts is None else None)
        if failed is not None:
            raise failed
        return usable_parts or self._parts

    def _scan_from(self, position: int) -> int:
        """Collect until a closing mark of reasoning without an opening one. Return the position
        after it, or -1 at the end.
        """
        text = self._text
        while mark := _MARK.search(text, position):
            self._parts.outside.append(text[position : mark.start()])
            self._at = mark.start()
            kind = mark.lastgroup or ""
            if kind == "thought":
                return mark.end()
            if kind == "tag":
                position = self._read_tag(mark)
            elif kind == "think":
                position = self._after_thinking(mark)
            elif kind == "xml":
                position = self._read_markup(mark)
            elif kind == "pairs":
                position = self._read_pairs(mark)
            elif kind in _KINDS_WITH_NAME:
                arguments, position = decode(text, mark.end())
                self._add_call(mark.group(kind), arguments)
            elif kind == "fence":
                position = self._read_fence(mark)
            else:
                position = self._read_json(mark.start())
        self._parts.outside.append(text[position:])
        return -1

    def _next_close(self) -> int:
        """Return the position after the next unopened closing mark of reasoning, or -1."""
        position = self._at
        while mark := _THOUGHT_MARK.search(self._text, position):
            if mark.group("open") is None:
                return mark.end()
            position = self._after_thinking(mark)
        return -1

    def _after_thinking(self, mark: re.Match[str]) -> int:
        """Return the position after a block of reasoning. An open block may hold the reply."""
        opening_mark = mark.group()
        end = (
            -1
            if opening_mark in self._missing
            else _end_of_thinking(self._text, mark.end(), opening_mark)
        )
        if end < 0:
            self._missing.add(opening_mark)
            return mark.end()
        return end

    def _read_tag(self, mark: re.Match[str]) -> int:
        """Read <tool>, <python> or <finish>."""
        text, tag = self._text, mark.group("tag")
        if tag != "tool":
            return self._read_text(tag, mark.end())
        body = _TOOL_BODY.match(text, mark.end())
        following = body.group("next") if body else ""
        if following == "<" and _MARK.match(text, body.end() if body else mark.end()):
            return mark.end()  # another spelling within the tag
        if following != "{" or body is None:
            error = MalformedReplyError("a <tool> holds no JSON object.")
            if text.find("</tool>", mark.end(), mark.end() + _MAX_MENTION_CHARS) >= 0:
                raise error
            return self._pass_over(mark.end(), error)
        # The decoder says where the JSON ends: a file's content may hold a closing tag.
        value, position = decode(text, body.end())
        if not self._add_object(value):
            self._add_action(value)
        closing_tag = _TOOL_END.match(text, position)
        return closing_tag.end() if closing_tag else position

    def _read_text(self, tag: str, start: int) -> int:
        """Read the content of <python> or <finish>. A tag without end or content is skipped, since
        prose may mention it.
        """
        close = f"</{tag}>"
        end = -1 if close in self._missing else self._text.find(close, start)
        if end < 0:
            self._missing.add(close)
            return self._pass_over(start, MalformedReplyError(f"<{tag}> is not closed by {close}."))
        content = self._text[start:end].strip()
        fenced = _CODE_FENCE.match(content) if tag == "python" else None
        if fenced:
            content = (fenced.group("code") or "").rstrip()
        if not content:
            return self._pass_over(end + len(close), MalformedReplyError(f"<{tag}> is empty."))
        (self._parts.finish if tag == "finish" else self._parts.python).append(content)
        return end + len(close)

    def _pass_over(self, position: int, error: MalformedReplyError) -> int:
        """Continue at a position. The error counts if the reply is otherwise empty."""
        self._parts.broken = self._parts.broken or error
        return position

    def _read_markup(self, mark: re.Match[str]) -> int:
        """Read <function=NAME> or <invoke name="NAME">, with parameters or with one JSON object."""
        text, position = self._text, mark.end()
        body = _TOOL_BODY.match(text, position)
        arguments: Any = {}
        if body and body.group("next") == "{":
            arguments, position = decode(text, body.end())
        else:
            shapes = self._tools.shapes_of(self._tools.name_of(mark.group("xml")))
            while parameter := _PARAMETER.match(text, position):
                end = self._end_of_value(parameter.end())
                value = text[parameter.end() : end.start() if end else len(text)]
                value = (
                    value.removeprefix("\n").removesuffix("\n")
                    if end and end.group("closed")
                    else value.strip()
                )
                key = parameter.group("key")
                raw = 'string="true"' in (parameter.group("rest") or "")
                arguments[key] = (
                    value if raw else _convert_value(value, mapping_of(shapes.get(key)))
                )
                position = end.end() if end else len(text)
        self._add_call(mark.group("xml"), arguments)
        closing_tag = _CALL_END.match(text, position)
        return closing_tag.end() if closing_tag else position

    def _end_of_value(self, start: int) -> re.Match[str] | None:
        """Return the end of a parameter's value: an unambiguous one, or the first closing tag."""
        end = None if "value" in self._missing else _VALUE_END.search(self._text, start)
        if end is None:
            self._missing.add("value")
            end = None if "parameter" in self._missing else _PARAMETER_END.search(self._text, start)
        if end is None:
            self._missing.add("parameter")
        return end

    def _read_pairs(self, mark: re.Match[str]) -> int:
        """Read pairs of <arg_key> and <arg_value>."""
        text, position = self._text, mark.end()
        shapes = self._tools.shapes_of(self._tools.name_of(mark.group("pairs")))
        arguments: dict[str, Any] = {}
        while pair := _PAIR.match(text, position):
            end = _PAIR_END.search(text, pair.end())
            if end is None:
                raise MalformedReplyError("<arg_value> is not closed by </arg_value>.")
            arguments[pair.group("key")] = _convert_value(
                text[pair.end() : end.start()], mapping_of(shapes.get(pair.group("key")))
            )
            position = end.end()
        self._add_call(mark.group("pairs"), arguments)
        return position

    def _read_fence(self, mark: re.Match[str]) -> int:
        """Read a fenced block: of shell, or of data; skip code."""
        language = mark.group("fence").lower()
        if language in _READ_FENCES:
            return mark.end()
        end = None if "```" in self._missing else _FENCE_END.search(self._text, mark.end())
        if end is None:
            self._missing.add("```")
            return mark.end()
        if language in _SHELL_FENCES and (command := self._text[mark.end() : end.start()].strip()):
            self._parts.commands.append(command)
        return end.end()

    def _read_json(self, start: int) -> int:
        """Read an object. Skip one that is no call and no turn, and a broken one unless it begins
        like one.
        """
        text = self._text
        if self._parts.broken is not None and not (
            _OBJECT_BEGIN.match(text, start) or _TURN_BEGIN.match(text, start)
        ):
            return start + 1
        try:
            value, end = decode(text, start)
        except MalformedReplyError as error:
            call = _CALL_BEGIN.match(text, start)
            begun = _TURN_BEGIN.match(text, start) or (
                call and (not self._tools.specs or self._tools.is_offered(call.group(1)))
            )
            if begun or not self._allowance.spend(start, error):
                raise
            self._parts.broken = self._parts.broken or error
            return start + 1
        self._parts.objects += 1
        if not self._add_object(value):
            self._parts.fields += [key for key in value if key not in _THOUGHT_KEYS]
        return end

    def _add_object(self, data: Mapping[str, Any]) -> bool:
        """Add the requests of an object. Return whether it has any."""
        list_key = next((key for key in _LIST_KEYS if data.get(key) is not None), "")
        single_key = next((key for key in _SINGLE_KEYS if isinstance(data.get(key), dict)), "")
        text_fields = [name for name in ("python", "finish") if data.get(name) is not None]
        if not (list_key or single_key or text_fields or self._is_call(data)):
            inner = [value for value in data.values() if isinstance(value, dict)]
            return len(data) == len(inner) == 1 and self._add_object(inner[0])
        parts = self._parts
        parts.thoughts += [
            thought for key in _THOUGHT_KEYS if isinstance(thought := data.get(key), str)
        ]
        if list_key:
            self._add_list(data, list_key, may_be_empty=bool(text_fields or single_key))
        if single_key:
            self._add_action(data[single_key])
        if not (list_key or single_key) and self._is_call(data):
            self._add_action(data)
        texts = [name for name in text_fields if isinstance(data[name], str) and data[name].strip()]
        if text_fields and not (texts or single_key or (list_key and data[list_key])):
            raise MalformedReplyError(f"{text_fields[0]!r} is a text that is not empty.")
        for name in texts:
            (parts.python if name == "python" else parts.finish).append(data[name])
        return True

    def _add_list(self, data: Mapping[str, Any], key: str, *, may_be_empty: bool) -> None:
        items = data[key]
        if isinstance(items, str):
            items = _decode_or_none(items)
        if isinstance(items, dict):
            items = [items]
        if not isinstance(items, list) or not (items or may_be_empty):
            raise MalformedReplyError(f"{key!r} is a list of 1 to {MAX_ACTIONS} tool calls.")
        for item in items:
            self._add_action(item)

    def _is_call(self, data: Mapping[str, Any]) -> bool:
        """Return whether an object is a call: it names a tool, and has arguments or an offered
        name.
        """
        if isinstance(data.get("tool"), str) or isinstance(data.get("function"), dict):
            return True
        name = next((data[key] for key in _TOOL_KEYS if isinstance(data.get(key), str)), "")
        has_arguments = any(isinstance(data.get(key), dict | str) for key in _ARGUMENT_KEYS)
        return bool(name) and (
            has_arguments or self._tools.is_offered(name) or name in _FINISH_NAMES
        )

    def _add_call(self, name: str, arguments: Any) -> None:
        self._add_action({"tool": name, "args": arguments})

    def _add_action(self, item: Any) -> None:
        """Add a call. A call of `finish` or `submit` is the end."""
        if isinstance(item, str):
            item = _decode_or_none(item)
        if not isinstance(item, dict):
            raise MalformedReplyError("an action is an object with 'tool' and 'args'.")
        data: Mapping[str, Any] = item
        if isinstance(inner := data.get("function"), dict):
            data = inner
        key = next(
            (key for key in _TOOL_KEYS if isinstance(data.get(key), str) and data[key].strip()), ""
        )
        if not key and len(data) == 1:  # {"finish": TEXT} or {NAME: ARGUMENTS}
            ((name, arguments),) = data.items()
            if name in _FINISH_NAMES or self._tools.is_offered(name):
                data, key = {"tool": name, "args": arguments}, "tool"
        if not key:
            raise MalformedReplyError("an action does not name its tool.")
        name = self._tools.name_of(data[key])
        if name not in _FINISH_NAMES or self._tools.is_offered(name):
            self._parts.actions.append(Action(name, _call_arguments(data, key)))
            return
        answer = next((data[field] for field in _ARGUMENT_KEYS if data.get(field)), "")
        texts = (
            [answer]
            if answer and isinstance(answer, str) and _decode_or_none(answer) is None
            else _call_arguments(data, key).values()
        )
        self._parts.finish.append(
            next((text for text in texts if isinstance(text, str) and text.strip()), "Done.")
        )


def _call_arguments(data: Mapping[str, Any], name_key: str) -> Mapping[str, Any]:
    """Return a call's arguments: an object, one as text, or the fields other than the name."""
    tool = str(data[name_key])[:40]
    for key in _ARGUMENT_KEYS:
        value = data.get(key)
        if value is None or key == name_key:
            continue
        if isinstance(value, str):
            value = _decode_or_none(value) if value.strip() else {}
        if isinstance(value, dict):
            return value
        if key in {"args", "arguments"}:
            raise MalformedReplyError(f"the args of {tool} are no object.")
    other_fields = {
        key: value
        for key, value in data.items()
        if key not in _CALL_METADATA_KEYS and key != name_key
    }
    return {
        key: value
        for key, value in other_fields.items()
        if value is not None or key not in _ARGUMENT_KEYS
    }


def _decode_or_none(text: str) -> Any:
    """Return the JSON value of a text, or None."""
    try:
        value, end = decode(text.strip())
    except MalformedReplyError:
        return None
    return value if not text.strip()[end:].strip() else None
