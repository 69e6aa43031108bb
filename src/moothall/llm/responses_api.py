"""The Responses API: translate between `/v1/responses` and chat completions. No I/O.

Nothing is stored at the server. Each request sends the conversation with the reasoning items of
earlier replies unchanged, encrypted or not, each at its position among the reply's messages and
calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moothall.domain.text import encodable, one_line
from moothall.llm.server_errors import describe_error
from moothall.llm.stream import BrokenStream, PartialReply, read_chunk

EXTRA_PARAMETERS: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}
"""Parameters of this API that chat completions do not have."""
_SHARED_PARAMETERS = (
    "model",
    "temperature",
    "parallel_tool_calls",
    "stream",
    "store",
    "include",
    "top_logprobs",
)
_CONTENT_FIELDS = frozenset({"content", "arguments", "status"})
_MAX_NAME_CHARS = 200
_FINAL_EVENTS = {"response.completed", "response.incomplete", "response.failed"}


def responses_body(body: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Translate an adapted body of chat completions for `/v1/responses`. `limit` is the number of
    reply tokens, 0 for no limit.
    """
    payload = {name: body[name] for name in _SHARED_PARAMETERS if name in body}
    payload["input"] = [item for message in body["messages"] for item in _input_items(message)]
    if limit:
        payload["max_output_tokens"] = limit
    if tools := body.get("tools"):
        # Strict mode, the default here, accepts only a subset of JSON Schema.
        payload["tools"] = [
            {"type": "function", "strict": False, **tool["function"]} for tool in tools
        ]
    if response_format := body.get("response_format"):
        payload["text"] = {"format": {"type": "json_schema", **response_format["json_schema"]}}
    if effort := body.get("reasoning_effort"):
        payload["reasoning"] = {"effort": effort}
    return payload


def _input_items(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        return [
            {
                "type": "function_call_output",
                "call_id": message["tool_call_id"],
                "output": message["content"],
            }
        ]
    if message["role"] != "assistant":
        return [{"role": message["role"], "content": message["content"]}]
    content = message.get("content")
    calls = {
        call["id"]: {"type": "function_call", "call_id": call["id"], **call["function"]}
        for call in message.get("tool_calls") or ()
    }
    return _reply_items(message.get("items"), content if isinstance(content, str) else "", calls)


def _reply_items(
    stored: object, content: str, calls: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the items of a reply in the order of the stored items. Reasoning stays unchanged; text
    and calls are those of the reply.
    """
    items: list[dict[str, Any]] = []
    for item in stored if isinstance(stored, list) else ():
        if not isinstance(item, dict):
            continue
        if item.get("type") == "message":
            if content:
                items.append(
                    {
                        "role": "assistant",
                        **item,
                        "content": [{"type": "output_text", "text": content}],
                    }
                )
                content = ""
        elif item.get("type") == "function_call":
            if call := calls.pop(str(item.get("call_id")), None):
                items.append({**item, **call})
        else:
            items.append(item)
    if content:
        items.append({"role": "assistant", "content": content})
    return [*items, *calls.values()]


@dataclass(slots=True)
class ResponsesReply(PartialReply):
    """A reply of `/v1/responses` that is still arriving."""

    output: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add_event(self, data: str) -> str:
        """Add one event; return its text. Raises `BrokenStream`."""
        event = read_chunk(data)
        if event is None:
            self.done = self.done or bool(data.strip() == "[DONE]")
            return ""
        kind = str(event.get("type") or "")
        if kind == "error":
            error = describe_error(event)
            raise BrokenStream(f"the server reported: {error.message}", error)
        if kind == "response.output_text.delta":
            return self._add_text(event.get("delta"))
        if kind == "response.refusal.delta" and isinstance(delta := event.get("delta"), str):
            self.refusal.append(encodable(delta))
            self.size += len(delta)
        if kind == "response.output_item.done":
            self._add_item(event.get("output_index"), event.get("item"))
        response = event.get("response") if kind else event
        if isinstance(response, dict) and (kind in _FINAL_EVENTS or not kind):
            return self._read_response(response)
        return ""

    def reasoning_fields(self) -> dict[str, Any]:
        """Return the reply's items: reasoning items complete, others without their contents."""
        items = [_item_to_store(item) for _, item in sorted(self.output.items())]
        return {"items": items} if any(item.get("type") == "reasoning" for item in items) else {}

    def _add_text(self, text: object) -> str:
        if not isinstance(text, str) or not text:
            return ""
        self.text.append(encodable(text))
        self.size += len(text)
        return self.text[-1]

    def _add_item(self, index: object, item: object) -> None:
        if not isinstance(item, dict):
            return
        self.output[index if isinstance(index, int) else len(self.output)] = item
        self.size += len(str(item))

    def _read_response(self, response: Mapping[str, Any]) -> str:
        """Read the complete response. Raise `BrokenStream` if it failed."""
        if isinstance(response.get("error"), dict):
            error = describe_error({"error": response["error"]})
            raise BrokenStream(f"the server reported: {error.message}", error)
        output = response.get("output")
        if isinstance(output, list) and output:
            self.output.clear()
            for number, item in enumerate(output):
                self._add_item(number, item)
        self.model = self.model or one_line(str(response.get("model") or ""), _MAX_NAME_CHARS)
        self.usage = _read_usage(response.get("usage"))
        for _, item in sorted(self.output.items()):
            if item.get("type") == "function_call":
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                self.calls.read([{"id": item.get("call_id"), "function": function}], complete=True)
        details = response.get("incomplete_details")
        reason = str(details.get("reason") or "") if isinstance(details, dict) else ""
        incomplete_reason = {"max_output_tokens": "length", "max_tokens": "length"}.get(
            reason, one_line(reason, _MAX_NAME_CHARS)
        )
        self.finish_reason = incomplete_reason or ("tool_calls" if self.calls.calls else "stop")
        self.done = True
        if self.text:
            return ""
        items = [item for _, item in sorted(self.output.items())]
        return self._add_text("".join(_message_texts(items)))


def _message_texts(items: Sequence[Mapping[str, Any]]) -> list[str]:
    parts = [
        part
        for item in items
        if item.get("type") == "message"
        for part in item.get("content") or ()
        if isinstance(part, dict)
    ]
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


def _item_to_store(item: Mapping[str, Any]) -> dict[str, Any]:
    if item.get("type") == "reasoning":
        return {
            name: value for name, value in item.items() if value is not None and name != "status"
        }
    return {
        name: value
        for name, value in item.items()
        if value is not None and name not in _CONTENT_FIELDS
    }


def _read_usage(usage: object) -> dict[str, Any]:
    """Translate a usage to the names of chat completions."""
    if not isinstance(usage, dict):
        return {}
    return {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": usage.get("input_tokens_details"),
        "completion_tokens_details": usage.get("output_tokens_details"),
    }
