"""What one server takes with one model: learnt from its list of models, a probe and its refusals.
No I/O.

A call is made as OpenAI documents it. A refusal that names a parameter of the call drops the
parameter or translates it, for this call and all later ones. `adapt` renders what is known; a call
is worth repeating if it renders differently after `learn`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Literal

from moothall import telemetry
from moothall.domain.chat import ReplyMode
from moothall.domain.text import one_line
from moothall.llm.calls import short_id
from moothall.llm.requests import REASONING_FIELDS
from moothall.llm.responses_api import ADDED
from moothall.llm.retry import Rejected
from moothall.llm.schemas import strict_schema

log = telemetry.get_logger(__name__)

LOCAL_OWNER = "moothall"
"""Whom the embedded server lists its model as owned by."""
_LEAST_TOKENS = 16
_REASONING_ROOM = 8192
_TOO_LARGE = 413
_OVERFLOWS = frozenset({400, _TOO_LARGE, 422})
_LEAST_WINDOW = 512
_NAMED = {
    "max_tokens": r"max_(?:completion_|output_|new_)?tokens",
    "response_format": r"response_format|text\.format|json_?schema|\bschemas?\b"
    r"|guided|structured.outputs?|\bgrammar",
    "parallel_tool_calls": r"parallel_tool_calls|parallel tool calls?",
    "stream_options": r"stream_options|include_usage",
    "stop": r"['\"`]stop['\"`]|\bstop sequences?\b|\bloc\b.{0,20}\bstop\b",
    "stream": r"['\"`]stream['\"`]|\bstreaming\b",
    "include": r"['\"`]include|encrypted.content",
    "store": r"['\"`]store['\"`]",
    "seed": r"(?<![\w/-])seed(?![\w-])",
    "cache_salt": r"cache.?salt",
    "top_logprobs": r"logprobs",
    "reasoning_effort": r"reasoning_effort|reasoning\.effort",
}
"""How refusals name a parameter, where not by its name alone."""
_REMEDY = {
    "priority": "--scheduling-policy priority",
    "cache_salt": "a version of vLLM that knows cache_salt",
    "logprobs": "--max-logprobs 11 or more",
    "reasoning_effort": "a value that the server takes in MOOTHALL_LLM__REASONING_EFFORT, or none",
}
_ESSENTIAL = frozenset({"model", "messages", "tools"})
_STRICT = re.compile(
    r"\bstrict\b.{0,80}(?:extra|unknown|unexpected|unrecogni[sz]ed|permitted|not supported)",
    re.IGNORECASE | re.DOTALL,
)
_HISTORY = re.compile(
    r"reasoning_content|reasoning_details|encrypted_content|\bthinking\b|messages\W.{0,40}reasoning|extra_content",
    re.IGNORECASE,
)
_KEYWORD = re.compile(
    r"unknown name \W{1,3}([\w$]+)\W{1,3} at \W{0,2}(?:tools|functions)", re.IGNORECASE
)
"""How Google names a keyword of JSON Schema that it does not know."""
_FORMS: tuple[tuple[re.Pattern[str], str, object, str], ...] = (
    (
        re.compile(r"role .{0,3}user.{0,12} after .{0,12}tool", re.IGNORECASE),
        "joins_tools",
        True,
        "a user's message after a tool's",
    ),
    (
        re.compile(r"tool call id.{0,200}length of 9", re.IGNORECASE | re.DOTALL),
        "short_ids",
        True,
        "long ids of calls",
    ),
    (
        re.compile(
            r"(?:system|developer) "
            r"(?:role|message|prompt|instruction)|role.{0,40}['\"`]?system|must alternate",
            re.IGNORECASE,
        ),
        "system_role",
        False,
        "the system role",
    ),
    (
        re.compile(r"(?:must|should) alternate|consecutive|alternating", re.IGNORECASE),
        "alternates",
        True,
        "two messages of one role",
    ),
)
"""What refusals say about the form of messages, the attribute that it changes, its value then, and
the words for people.
"""
_MISSING = re.compile(r"missing|must be passed|required", re.IGNORECASE)
_RESPONSES = re.compile(r"v1/responses|responses api", re.IGNORECASE)
_OVERFLOW = re.compile(
    r"context.{0,3}(?:length|window|size|limit)|exceed_context|prompt (?:is )?too long|input "
    r"(?:is )?too long|too many tokens"
    r"|reduce the length|longer than the model|token count.{0,60}exceed|exceeds? the "
    r"(?:available|maximum).{0,30}(?:context|tokens)"
    r"|too large for model|maximum (?:input|prompt) length|context the overflows|max_tokens must "
    r"be at least 1, got -",
    re.IGNORECASE,
)
_WINDOW = (
    re.compile(r"\d \+ \d[\d,]* > (\d[\d,]{2,9})"),
    re.compile(
        r"(?:maximum )?context.{0,3}(?:length|window|size|limit)\D{0,40}?(\d[\d,]{2,9})",
        re.IGNORECASE,
    ),
    re.compile(r"> ?(\d[\d,]{2,9}) maximum", re.IGNORECASE),
    re.compile(r"(\d[\d,]{2,9}) maximum context", re.IGNORECASE),
    re.compile(r"maximum number of tokens allowed \(?(\d[\d,]{2,9})", re.IGNORECASE),
)
_INPUT = (
    re.compile(
        r"(?:request|prompt|messages?) (?:has|have|contains?) (?:at least )?(\d[\d,]*) (?:input "
        r")?tokens",
        re.IGNORECASE,
    ),
    re.compile(
        r"(\d[\d,]*) (?:tokens )?(?:in|from) the (?:input )?(?:messages|prompt)", re.IGNORECASE
    ),
    re.compile(r"context limit: (\d[\d,]*) \+", re.IGNORECASE),
    re.compile(r"(\d[\d,]*) of text input", re.IGNORECASE),
)
_NUMBER = re.compile(r"(?<![\d.\w-])\d[\d,]*\d(?![\d\w])")


def is_overflow(error: Rejected) -> bool:
    """Return whether a refusal says that the conversation does not fit the window."""
    if error.status not in _OVERFLOWS:
        return False
    named = error.code in {"context_length_exceeded", "exceed_context_size_error"}
    return named or error.status == _TOO_LARGE or bool(_OVERFLOW.search(error.text))


@dataclass(slots=True)
class Capabilities:
    """The record of one server and model. `window` is 0 if it is unknown; `window_source` says
    where it comes from.
    """

    model: str = ""
    owner: str = ""
    api: Literal["chat", "responses"] = "chat"
    api_fixed: bool = False
    reply: ReplyMode | None = None
    tools: bool | None = None
    writes_calls: bool = False
    """Whether calls came as text, because the server has no parser for how this model writes them.
    """
    window: int = 0
    window_source: str = ""
    limit_name: str = "max_tokens"
    """What the limit of a reply's tokens is called; '' if none is taken."""
    most_tokens: int = 0
    """The largest limit that the server takes; 0 if it never refused one."""
    reasoning_room: int = 0
    """Tokens that every reply has beyond its limit, since reasoning once filled one."""
    schema: Literal["any", "strict", "none"] = "any"
    obeys: bool | None = None
    """Whether a probe with a schema was answered in it."""
    strict_flag: bool = True
    system_role: bool = True
    alternates: bool = False
    sends_reasoning: bool = True
    joins_tools: bool = False
    """Whether a user's message right after a tool's is joined with it, as Mistral wants it."""
    short_ids: bool = False
    """Whether ids of calls are nine letters and digits, as Mistral wants those of other servers
    too.
    """
    keywords: set[str] = field(default_factory=set)
    """Keywords of JSON Schema that the parameters of tools must not have."""
    refused: dict[str, str] = field(default_factory=dict)
    """Parameters that are not sent any more, with the refusal."""
    reasoning_fields: set[str] = field(default_factory=set)
    only_reasons: bool = False
    """Whether a whole reply came as reasoning: the server has a parser for another model's
    reasoning.
    """
    counts_usage: bool | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is the embedded model."""
        return self.owner == LOCAL_OWNER

    def adapt(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body as this server takes it."""
        adapted = {name: value for name, value in body.items() if name not in self.refused}
        if self.api == "responses":
            adapted |= {name: value for name, value in ADDED.items() if name not in self.refused}
        if "max_tokens" in adapted:
            limit = adapted.pop("max_tokens")
            if self.limit_name:
                adapted[self.limit_name] = (
                    min(limit, self.most_tokens) if self.most_tokens else limit
                )
        if "stream" in self.refused:
            adapted.pop("stream_options", None)
        if "response_format" in adapted:
            if self.schema == "none":
                del adapted["response_format"]
            else:
                adapted["response_format"] = self._format(adapted["response_format"])
        if self.keywords and "tools" in adapted:
            adapted["tools"] = _without(adapted["tools"], self.keywords)
        adapted["messages"] = self._messages(adapted["messages"])
        return adapted

    def _messages(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        messages = [_for_api(message, self.api) for message in messages]
        if not self.sends_reasoning:
            messages = [_without_reasoning(message) for message in messages]
        if not self.system_role:
            messages = _fold_system(messages)
        if self.short_ids:
            messages = [_shorten_ids(message) for message in messages]
        if self.joins_tools:
            messages = _join_tools(messages)
        return _alternate(messages) if self.alternates else messages

    def lines(self) -> list[str]:
        """Return the record in plain words, for people."""
        schema = {"any": "ours", "strict": "the strict subset only", "none": "refused"}[self.schema]
        if self.obeys is False:
            schema = "ignored" if self.schema != "none" else "refused"
        limit = self.limit_name if self.api == "chat" else "max_output_tokens"
        limit = f"{limit}, at most {self.most_tokens:,}" if self.most_tokens else limit
        reasoning = ", ".join(sorted(self.reasoning_fields))
        told = "" if self.sends_reasoning else ", not sent back"
        if self.only_reasons:
            told += (
                ", which held a whole reply: the server's parser for reasoning does not fit the "
                "model"
            )
        lacks = [
            *self.refused,
            *([] if self.strict_flag else ["strict"]),
            *(f"{name} in tools" for name in sorted(self.keywords)),
        ]
        calls = "not tried" if self.tools is None else "yes" if self.tools else "no"
        if self.tools and self.writes_calls:
            calls += ", read from the text: the server has no parser that fits the model"
        return [
            f"API: /v1/{'responses' if self.api == 'responses' else 'chat/completions'}",
            f"native tool calls: {calls}",
            (
                "JSON schema: "
                f"{'not tried' if self.obeys is None and self.schema == 'any' else schema}"
            ),
            f"limit of a reply: {limit if self.limit_name else 'not taken'}",
            f"system role: {'yes' if self.system_role else 'joined with the first message'}",
            f"reasoning: {f'in {reasoning}{told}' if reasoning else 'none returned'}",
            (
                "usage: "
                f"{'estimated, the server tells none' if self.counts_usage is False else 'told'}"
            ),
            *([f"not sent: {', '.join(lacks)}"] if lacks else []),
        ]

    def limited(self, adapted: Mapping[str, Any], room: int) -> dict[str, Any]:
        """Return an adapted body whose reply has at most `room` tokens; 0 for no such limit."""
        return {**adapted, self.limit_name: room} if room and self.limit_name else dict(adapted)

    def give_room(self, given: int) -> bool:
        """Give replies more room for reasoning, because it filled one that had `given` tokens of
        it; tell whether there is more now.
        """
        if not self.is_local and not self.reasoning_room:
            self.reasoning_room = (
                min(_REASONING_ROOM, self.window // 4) if self.window else _REASONING_ROOM
            )
            log.info(
                "reasoning filled a reply; replies have more room from now on",
                tokens=self.reasoning_room,
                model=self.model,
            )
        return self.reasoning_room > given

    def notice(
        self, usage: Mapping[str, Any], reasoning: Mapping[str, Any], *, whole: bool
    ) -> None:
        """Note what a reply shows of the server. `whole`: it ended, and holds reasoning at most."""
        self.counts_usage = bool(usage)
        self.only_reasons = self.only_reasons or (whole and bool(reasoning))
        self.reasoning_fields.update(name for name in reasoning if name != "extras")

    def learn(self, error: Rejected, sent: Mapping[str, Any]) -> None:
        """Note what a refusal of the chat body `sent` says about its parts."""
        if not self.api_fixed and self.api == "chat" and _RESPONSES.search(error.text):
            self._change("api", "responses", "tools or this model by chat completions", error)
        elif is_overflow(error):
            self._learn_window(error.text)
        elif self._learn_form(error, sent) or self._learn_parameters(error, sent):
            pass
        elif _HISTORY.search(error.text) and not _MISSING.search(error.text):
            self._change("sends_reasoning", False, "the reasoning of earlier replies", error)

    def _learn_form(self, error: Rejected, sent: Mapping[str, Any]) -> bool:
        """Note what a refusal says about the form of messages and tools; tell whether it says
        anything.
        """
        if found := set(_KEYWORD.findall(error.text)):
            self.keywords |= found
            self._log(f"the keywords {', '.join(sorted(found))} in tools", error)
            return True
        roles = {message["role"] for message in sent["messages"]}
        for pattern, name, value, what in _FORMS:
            if (
                pattern.search(error.text)
                and getattr(self, name) != value
                and (name != "system_role" or "system" in roles)
            ):
                self._change(name, value, what, error)
                return True
        return False

    def _learn_parameters(self, error: Rejected, sent: Mapping[str, Any]) -> bool:
        """Note which parameters a refusal names; tell whether it names one."""
        names = [name for name in sent if name not in _ESSENTIAL and self._names(name, error.text)]
        if error.param in names:
            names = [error.param]
        for name in names:
            self._drop(name, error, sent)
        return bool(names)

    def room(self, error: Rejected, sent: Mapping[str, Any]) -> int:
        """Return the tokens of reply for which the refusal says that there is room; 0 if it says
        nothing, or if there is too little.
        """
        window = read_window(error.text)
        used = next(
            (
                int(found[1].replace(",", ""))
                for pattern in _INPUT
                if (found := pattern.search(error.text))
            ),
            0,
        )
        limit = int(sent.get(self.limit_name) or 0)
        left = window - used
        if "at least" in error.text and used:  # the server stopped counting there
            left = min(left, limit // 4)
        return (
            left
            if window and used and limit > left >= max(_LEAST_TOKENS, min(1024, limit // 4))
            else 0
        )

    def _learn_window(self, message: str) -> None:
        window = read_window(message)
        if window >= _LEAST_WINDOW and (not self.window or window < self.window):
            self.window, self.window_source = window, "a refusal of the server"
            log.warning(
                "the model's window is smaller than assumed", window=window, model=self.model
            )

    def _names(self, name: str, text: str) -> bool:
        pattern = (
            _NAMED["max_tokens"]
            if name.startswith("max_")
            else _NAMED.get(name, rf"\b{re.escape(name)}\b")
        )
        return bool(re.search(pattern, text, re.IGNORECASE))

    def _drop(self, name: str, error: Rejected, sent: Mapping[str, Any]) -> None:
        if name in {"max_tokens", "max_completion_tokens"}:
            self._learn_limit(name, error, int(sent[name]))
        elif name == "response_format":
            self._learn_schema(error, sent)
        else:
            self.refused[name] = one_line(error.message)
            self._log(name, error)

    def _learn_limit(self, name: str, error: Rejected, value: int) -> None:
        if name != self.limit_name:
            return  # another call has learnt it meanwhile
        numbers = [int(found.replace(",", "")) for found in _NUMBER.findall(error.text)]
        fitting = [number for number in numbers if _LEAST_TOKENS <= number < value]
        if fitting:
            self.most_tokens = max(fitting)
            self._log(f"more than {self.most_tokens} tokens of reply", error)
        else:
            self.limit_name = "max_completion_tokens" if name == "max_tokens" else ""
            self._log(name, error)

    def _learn_schema(self, error: Rejected, sent: Mapping[str, Any]) -> None:
        described = sent["response_format"].get("json_schema", {})
        if _STRICT.search(error.text) and self.strict_flag and described.get("strict"):
            self._change("strict_flag", False, "strict", error)
        elif self.schema == "any" and strict_schema(described.get("schema", {})) != described.get(
            "schema"
        ):
            self._change("schema", "strict", "this JSON schema", error)
        elif (
            self.schema != "none"
            and self._format(sent["response_format"]) == sent["response_format"]
        ):
            self._change("schema", "none", "JSON schemas", error)

    def _format(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        described = dict(wanted["json_schema"])
        if self.schema == "strict":
            described["schema"] = strict_schema(described["schema"])
        if not self.strict_flag:
            described.pop("strict", None)
        return {**wanted, "json_schema": described}

    def _change(self, name: str, value: object, what: str, error: Rejected) -> None:
        setattr(self, name, value)
        self._log(what, error)

    def _log(self, what: str, error: Rejected) -> None:
        # Most of this is the way of a service and nothing to mend; `moothall doctor` shows it.
        tell = log.warning if what in _REMEDY else log.info
        needs = {"needs": _REMEDY[what]} if what in _REMEDY else {}
        tell(
            "the model server refuses a part of the call; it is left out from now on",
            refused=what,
            said=error.message,
            **needs,
        )


def read_window(message: str) -> int:
    """Return the window that a refusal names, 0 if it names none."""
    for pattern in _WINDOW:
        if found := pattern.search(message):
            return int(found[1].replace(",", ""))
    return 0


def _for_api(message: Mapping[str, Any], api: str) -> Mapping[str, Any]:
    """Return a message with the reasoning that this API takes back."""
    other = {"items"} if api == "chat" else {name for name in REASONING_FIELDS if name != "items"}
    return (
        {name: value for name, value in message.items() if name not in other}
        if other & set(message)
        else message
    )


def _without_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in message.items() if name not in REASONING_FIELDS}
    if isinstance(content := kept.get("content"), list):
        kept["content"] = (
            "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
            or None
        )
    return kept


def _without(value: Any, names: AbstractSet[str]) -> Any:
    """Return JSON data without the keywords of these names; properties of these names stay."""
    if isinstance(value, list):
        return [_without(item, names) for item in value]
    if not isinstance(value, Mapping):
        return value
    kept = {name: item for name, item in value.items() if name not in names}
    return {
        name: {key: _without(one, names) for key, one in item.items()}
        if name == "properties" and isinstance(item, Mapping)
        else _without(item, names)
        for name, item in kept.items()
    }


def _shorten_ids(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if "tool_call_id" in message:
        return {**message, "tool_call_id": short_id(message["tool_call_id"])}
    if "tool_calls" in message:
        return {
            **message,
            "tool_calls": [{**call, "id": short_id(call["id"])} for call in message["tool_calls"]],
        }
    return message


def _fold_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the system's at the beginning of the first user's."""
    system = "\n\n".join(
        str(message["content"]) for message in messages if message["role"] == "system"
    )
    others = [dict(message) for message in messages if message["role"] != "system"]
    first = next((message for message in others if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": system}, *others]
    first["content"] = f"{system}\n\n{first['content']}" if system else first["content"]
    return others


def _join_tools(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with each user's text right after a tool's message at the end of that
    message.
    """
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and message["role"] == "user" and joined[-1]["role"] == "tool":
            joined[-1]["content"] = f"{joined[-1]['content']}\n\n{message['content']}"
        else:
            joined.append(dict(message))
    return joined


def _alternate(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with consecutive texts of one role joined."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        last = joined[-1] if joined else None
        plain = set(message) == {"role", "content"} and isinstance(message["content"], str)
        if last and plain and set(last) == {"role", "content"} and last["role"] == message["role"]:
            last["content"] = f"{last['content']}\n\n{message['content']}"
        else:
            joined.append(dict(message))
    return joined
