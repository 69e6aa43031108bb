"""The capabilities of one server and model, learned from its list of models, a probe and refusals.
No I/O.

A request is first built as OpenAI documents it. If a refusal names a parameter, the parameter is
removed or translated in this request and all later ones. `adapt` applies the capabilities to a
request. A request is worth repeating if `adapt` returns another body after `learn_from_refusal`.
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
from moothall.llm.reply_parts import short_id
from moothall.llm.requests import REASONING_FIELDS, strict_schema
from moothall.llm.responses_api import EXTRA_PARAMETERS
from moothall.llm.server_errors import Rejected

log = telemetry.get_logger(__name__)

LOCAL_OWNER = "moothall"
"""The owner that the embedded server gives in its list of models."""
_MIN_REPLY_TOKENS = 16
_REASONING_TOKENS = 8192
_TOO_LARGE = 413
_OVERFLOW_STATUSES = frozenset({400, _TOO_LARGE, 422})
_MIN_WINDOW = 512
_PARAMETER_PATTERNS = {
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
"""How refusals name a parameter. Parameters that are missing here are named as they are."""
_LIMIT_NAMES = ("max_tokens", "max_completion_tokens")
"""Names of the parameter that limits a reply, in the order in which they are tried."""
_REMEDIES = {
    "priority": "--scheduling-policy priority",
    "cache_salt": "a version of vLLM that knows cache_salt",
    "logprobs": "--max-logprobs 11 or more",
    "reasoning_effort": "a value of MOOTHALL_LLM__REASONING_EFFORT that the server accepts, or "
    "none",
}
_ESSENTIAL_PARAMETERS = frozenset({"model", "messages", "tools"})
_STRICT = re.compile(
    r"\bstrict\b.{0,80}(?:extra|unknown|unexpected|unrecogni[sz]ed|permitted|not supported)",
    re.IGNORECASE | re.DOTALL,
)
_REASONING_PATTERN = re.compile(
    r"reasoning_content|reasoning_details|encrypted_content|\bthinking\b|messages\W.{0,40}reasoning|extra_content",
    re.IGNORECASE,
)
_UNKNOWN_KEYWORD = re.compile(
    r"unknown name \W{1,3}([\w$]+)\W{1,3} at \W{0,2}(?:tools|functions)", re.IGNORECASE
)
"""How Google names a keyword of JSON Schema that it does not know."""
_MESSAGE_FORMS: tuple[tuple[re.Pattern[str], str, object, str], ...] = (
    (
        re.compile(r"role .{0,3}user.{0,12} after .{0,12}tool", re.IGNORECASE),
        "joins_tool_messages",
        True,
        "a user message after a tool message",
    ),
    (
        re.compile(r"tool call id.{0,200}length of 9", re.IGNORECASE | re.DOTALL),
        "short_ids",
        True,
        "long call ids",
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
        "requires_alternation",
        True,
        "consecutive messages of one role",
    ),
)
"""Refusals about the form of messages: pattern, attribute of `Capabilities`, its new value, and a
description for the log.
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
_WINDOW_PATTERNS = (
    re.compile(r"\d \+ \d[\d,]* > (\d[\d,]{2,9})"),
    re.compile(
        r"(?:maximum )?context.{0,3}(?:length|window|size|limit)\D{0,40}?(\d[\d,]{2,9})",
        re.IGNORECASE,
    ),
    re.compile(r"> ?(\d[\d,]{2,9}) maximum", re.IGNORECASE),
    re.compile(r"(\d[\d,]{2,9}) maximum context", re.IGNORECASE),
    re.compile(r"maximum number of tokens allowed \(?(\d[\d,]{2,9})", re.IGNORECASE),
)
_INPUT_TOKENS_PATTERNS = (
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
    """Return whether a refusal means that the conversation does not fit the window."""
    if error.status not in _OVERFLOW_STATUSES:
        return False
    has_code = error.code in {"context_length_exceeded", "exceed_context_size_error"}
    return has_code or error.status == _TOO_LARGE or bool(_OVERFLOW.search(error.text))


@dataclass(slots=True)
class Capabilities:
    """The capabilities of one server and model. `window` is 0 if it is unknown; `window_source`
    says where it comes from.
    """

    model: str = ""
    owner: str = ""
    api: Literal["chat", "responses"] = "chat"
    api_fixed: bool = False
    reply_mode: ReplyMode | None = None
    tools: bool | None = None
    writes_calls_as_text: bool = False
    """Whether calls arrived as text, because the server has no parser for this model's format."""
    window: int = 0
    window_source: str = ""
    limit_name: str = _LIMIT_NAMES[0]
    """The name of the parameter that limits the reply's tokens; '' if the server accepts none."""
    max_reply_tokens: int = 0
    """The largest limit that the server accepts; 0 if it never refused one."""
    reasoning_tokens: int = 0
    """Tokens added to the limit of every reply, once reasoning has filled a reply."""
    schema: Literal["any", "strict", "none"] = "any"
    obeys_schema: bool | None = None
    """Whether the reply to a probe followed the probe's schema; None before the probe."""
    strict_flag: bool = True
    system_role: bool = True
    requires_alternation: bool = False
    sends_reasoning: bool = True
    joins_tool_messages: bool = False
    """Whether a user message is joined with the tool message before it, as Mistral requires."""
    short_ids: bool = False
    """Whether call ids are shortened to nine letters and digits, as Mistral requires."""
    refused_keywords: set[str] = field(default_factory=set)
    """JSON Schema keywords that the server refuses in the parameters of tools."""
    refused: dict[str, str] = field(default_factory=dict)
    """Parameters that are no longer sent, with the message of the refusal."""
    reasoning_fields: set[str] = field(default_factory=set)
    only_reasons: bool = False
    """Whether a complete reply arrived as reasoning: the server uses the reasoning parser of
    another model.
    """
    reports_usage: bool | None = None

    @property
    def is_local(self) -> bool:
        """Whether this is the embedded model."""
        return self.owner == LOCAL_OWNER

    def adapt(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body in the form that this server accepts."""
        adapted = {name: value for name, value in body.items() if name not in self.refused}
        if self.api == "responses":
            adapted |= {
                name: value for name, value in EXTRA_PARAMETERS.items() if name not in self.refused
            }
        if "max_tokens" in adapted:
            limit = adapted.pop("max_tokens")
            if self.limit_name:
                adapted[self.limit_name] = (
                    min(limit, self.max_reply_tokens) if self.max_reply_tokens else limit
                )
        if "stream" in self.refused:
            adapted.pop("stream_options", None)
        if "response_format" in adapted:
            if self.schema == "none":
                del adapted["response_format"]
            else:
                adapted["response_format"] = self._adapt_format(adapted["response_format"])
        if self.refused_keywords and "tools" in adapted:
            adapted["tools"] = _without_keywords(adapted["tools"], self.refused_keywords)
        adapted["messages"] = self._adapt_messages(adapted["messages"])
        return adapted

    def _adapt_messages(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        messages = [_for_api(message, self.api) for message in messages]
        if not self.sends_reasoning:
            messages = [_without_reasoning(message) for message in messages]
        if not self.system_role:
            messages = _fold_system(messages)
        if self.short_ids:
            messages = [_shorten_ids(message) for message in messages]
        if self.joins_tool_messages:
            messages = _join_tools(messages)
        return _merge_consecutive(messages) if self.requires_alternation else messages

    def describe(self) -> list[str]:
        """Return the capabilities as lines for people."""
        schema = {"any": "ours", "strict": "the strict subset only", "none": "refused"}[self.schema]
        if self.obeys_schema is False:
            schema = "ignored" if self.schema != "none" else "refused"
        limit = self.limit_name if self.api == "chat" else "max_output_tokens"
        limit = f"{limit}, at most {self.max_reply_tokens:,}" if self.max_reply_tokens else limit
        reasoning = ", ".join(sorted(self.reasoning_fields))
        reasoning_note = "" if self.sends_reasoning else ", not sent back"
        if self.only_reasons:
            reasoning_note += (
                ", which held a complete reply: the server's reasoning parser does not fit the "
                "model"
            )
        unsent = [
            *self.refused,
            *([] if self.strict_flag else ["strict"]),
            *(f"{name} in tools" for name in sorted(self.refused_keywords)),
        ]
        calls = "not tried" if self.tools is None else "yes" if self.tools else "no"
        if self.tools and self.writes_calls_as_text:
            calls += ", read from the text: the server has no parser that fits the model"
        return [
            f"API: /v1/{'responses' if self.api == 'responses' else 'chat/completions'}",
            f"native tool calls: {calls}",
            (
                "JSON schema: "
                f"{'not tried' if self.obeys_schema is None and self.schema == 'any' else schema}"
            ),
            f"reply limit: {limit if self.limit_name else 'not accepted'}",
            f"system role: {'yes' if self.system_role else 'joined with the first message'}",
            f"reasoning: {f'in {reasoning}{reasoning_note}' if reasoning else 'none returned'}",
            "usage: "
            + ("estimated, the server reports none" if self.reports_usage is False else "reported"),
            *([f"not sent: {', '.join(unsent)}"] if unsent else []),
        ]

    def limit_reply(self, adapted: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
        """Return an adapted body with the reply limited to `max_tokens`; 0 changes nothing."""
        return (
            {**adapted, self.limit_name: max_tokens}
            if max_tokens and self.limit_name
            else dict(adapted)
        )

    def add_reasoning_tokens(self, previous: int) -> bool:
        """Allow more tokens for reasoning in every reply. Return whether there are now more than
        `previous`, the number that a reply has just used up.
        """
        if not self.is_local and not self.reasoning_tokens:
            self.reasoning_tokens = (
                min(_REASONING_TOKENS, self.window // 4) if self.window else _REASONING_TOKENS
            )
            log.info(
                "reasoning filled a reply; later replies get more tokens",
                tokens=self.reasoning_tokens,
                model=self.model,
            )
        return self.reasoning_tokens > previous

    def record_reply(
        self, usage: Mapping[str, Any], reasoning: Mapping[str, Any], *, has_no_answer: bool
    ) -> None:
        """Record what a reply shows about the server. `has_no_answer`: the reply ended normally
        without text and calls.
        """
        self.reports_usage = bool(usage)
        self.only_reasons = self.only_reasons or (has_no_answer and bool(reasoning))
        self.reasoning_fields.update(name for name in reasoning if name != "extras")

    def learn_from_refusal(self, error: Rejected, sent_body: Mapping[str, Any]) -> None:
        """Record what the refusal of the chat body `sent_body` says about its parts."""
        if not self.api_fixed and self.api == "chat" and _RESPONSES.search(error.text):
            self._change_parameter("api", "responses", "chat completions for this request", error)
        elif is_overflow(error):
            self._learn_window(error.text)
        elif self._learn_form(error, sent_body) or self._learn_parameters(error, sent_body):
            pass
        elif _REASONING_PATTERN.search(error.text) and not _MISSING.search(error.text):
            self._change_parameter(
                "sends_reasoning", False, "the reasoning of earlier replies", error
            )

    def _learn_form(self, error: Rejected, sent_body: Mapping[str, Any]) -> bool:
        """Record what a refusal says about the form of messages and tools. Return whether it says
        anything.
        """
        if keywords := set(_UNKNOWN_KEYWORD.findall(error.text)):
            self.refused_keywords |= keywords
            self._log_refusal(f"the keywords {', '.join(sorted(keywords))} in tools", error)
            return True
        roles = {message["role"] for message in sent_body["messages"]}
        for pattern, name, value, description in _MESSAGE_FORMS:
            if (
                pattern.search(error.text)
                and getattr(self, name) != value
                and (name != "system_role" or "system" in roles)
            ):
                self._change_parameter(name, value, description, error)
                return True
        return False

    def _learn_parameters(self, error: Rejected, sent_body: Mapping[str, Any]) -> bool:
        """Record which parameters a refusal names. Return whether it names one."""
        names = [
            name
            for name in sent_body
            if name not in _ESSENTIAL_PARAMETERS and self._mentions_name(name, error.text)
        ]
        if error.param in names:
            names = [error.param]
        for name in names:
            self._drop_parameter(name, error, sent_body)
        return bool(names)

    def available_reply_tokens(self, error: Rejected, sent_body: Mapping[str, Any]) -> int:
        """Return how many tokens the refusal says are left for the reply; 0 if it does not say, or
        if they are too few.
        """
        window = read_window(error.text)
        used_tokens = next(
            (
                int(match[1].replace(",", ""))
                for pattern in _INPUT_TOKENS_PATTERNS
                if (match := pattern.search(error.text))
            ),
            0,
        )
        limit = int(sent_body.get(self.limit_name) or 0)
        available = window - used_tokens
        if "at least" in error.text and used_tokens:  # the server stopped counting there
            available = min(available, limit // 4)
        minimum = max(_MIN_REPLY_TOKENS, min(1024, limit // 4))
        return available if window and used_tokens and limit > available >= minimum else 0

    def _learn_window(self, message: str) -> None:
        window = read_window(message)
        if window >= _MIN_WINDOW and (not self.window or window < self.window):
            self.window, self.window_source = window, "a refusal of the server"
            log.warning(
                "the model's window is smaller than assumed", window=window, model=self.model
            )

    def _mentions_name(self, name: str, text: str) -> bool:
        pattern = (
            _PARAMETER_PATTERNS["max_tokens"]
            if name.startswith("max_")
            else _PARAMETER_PATTERNS.get(name, rf"\b{re.escape(name)}\b")
        )
        return bool(re.search(pattern, text, re.IGNORECASE))

    def _drop_parameter(self, name: str, error: Rejected, sent_body: Mapping[str, Any]) -> None:
        if name in _LIMIT_NAMES:
            self._learn_limit(name, error, int(sent_body[name]))
        elif name == "response_format":
            self._learn_schema(error, sent_body)
        else:
            self.refused[name] = one_line(error.message)
            self._log_refusal(name, error)

    def _learn_limit(self, name: str, error: Rejected, value: int) -> None:
        if name != self.limit_name:
            return  # another call has already learned it
        numbers = [int(digits.replace(",", "")) for digits in _NUMBER.findall(error.text)]
        limits = [number for number in numbers if _MIN_REPLY_TOKENS <= number < value]
        if limits:
            self.max_reply_tokens = max(limits)
            self._log_refusal(f"replies of more than {self.max_reply_tokens} tokens", error)
        else:
            self.limit_name = next(iter(_LIMIT_NAMES[_LIMIT_NAMES.index(name) + 1 :]), "")
            self._log_refusal(name, error)

    def _learn_schema(self, error: Rejected, sent_body: Mapping[str, Any]) -> None:
        json_schema = sent_body["response_format"].get("json_schema", {})
        schema = json_schema.get("schema")
        if _STRICT.search(error.text) and self.strict_flag and json_schema.get("strict"):
            self._change_parameter("strict_flag", False, "strict", error)
        elif self.schema == "any" and strict_schema(json_schema.get("schema", {})) != schema:
            self._change_parameter("schema", "strict", "this JSON schema", error)
        elif (
            self.schema != "none"
            and self._adapt_format(sent_body["response_format"]) == sent_body["response_format"]
        ):
            self._change_parameter("schema", "none", "JSON schemas", error)

    def _adapt_format(self, response_format: Mapping[str, Any]) -> dict[str, Any]:
        json_schema = dict(response_format["json_schema"])
        if self.schema == "strict":
            json_schema["schema"] = strict_schema(json_schema["schema"])
        if not self.strict_flag:
            json_schema.pop("strict", None)
        return {**response_format, "json_schema": json_schema}

    def _change_parameter(
        self, name: str, value: object, description: str, error: Rejected
    ) -> None:
        setattr(self, name, value)
        self._log_refusal(description, error)

    def _log_refusal(self, refused: str, error: Rejected) -> None:
        # Most refusals are normal for a service and need no repair; `moothall doctor` lists them.
        write = log.warning if refused in _REMEDIES else log.info
        needs = {"needs": _REMEDIES[refused]} if refused in _REMEDIES else {}
        write(
            "the model server refused a part of the request; later requests omit it",
            refused=refused,
            reason=error.message,
            **needs,
        )


def read_window(message: str) -> int:
    """Return the window that a refusal names, 0 if it names none."""
    for pattern in _WINDOW_PATTERNS:
        if match := pattern.search(message):
            return int(match[1].replace(",", ""))
    return 0


def _for_api(message: Mapping[str, Any], api: str) -> Mapping[str, Any]:
    """Return a message without the reasoning fields of the other API."""
    foreign = {"items"} if api == "chat" else {name for name in REASONING_FIELDS if name != "items"}
    return (
        {name: value for name, value in message.items() if name not in foreign}
        if foreign & set(message)
        else message
    )


def _without_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    stripped = {name: value for name, value in message.items() if name not in REASONING_FIELDS}
    if isinstance(content := stripped.get("content"), list):
        stripped["content"] = (
            "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
            or None
        )
    return stripped


def _without_keywords(schema: Any, keywords: AbstractSet[str]) -> Any:
    """Return JSON data without some JSON Schema keywords. Properties of the same names stay."""
    if isinstance(schema, list):
        return [_without_keywords(item, keywords) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: {key: _without_keywords(value, keywords) for key, value in item.items()}
        if name == "properties" and isinstance(item, Mapping)
        else _without_keywords(item, keywords)
        for name, item in schema.items()
        if name not in keywords
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
    """Move the system messages to the beginning of the first user message."""
    system = "\n\n".join(
        str(message["content"]) for message in messages if message["role"] == "system"
    )
    folded = [dict(message) for message in messages if message["role"] != "system"]
    first = next((message for message in folded if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": system}, *folded]
    first["content"] = f"{system}\n\n{first['content']}" if system else first["content"]
    return folded


def _join_tools(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Append each user message that follows a tool message to that tool message."""
    merged_messages: list[dict[str, Any]] = []
    for message in messages:
        if merged_messages and message["role"] == "user" and merged_messages[-1]["role"] == "tool":
            merged_messages[-1]["content"] = (
                f"{merged_messages[-1]['content']}\n\n{message['content']}"
            )
        else:
            merged_messages.append(dict(message))
    return merged_messages


def _merge_consecutive(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Join consecutive text messages of one role."""
    merged_messages: list[dict[str, Any]] = []
    for message in messages:
        last = merged_messages[-1] if merged_messages else None
        plain = set(message) == {"role", "content"} and isinstance(message["content"], str)
        if last and plain and set(last) == {"role", "content"} and last["role"] == message["role"]:
            last["content"] = f"{last['content']}\n\n{message['content']}"
        else:
            merged_messages.append(dict(message))
    return merged_messages
