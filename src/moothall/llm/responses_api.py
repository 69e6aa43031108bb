"""The Responses API: calls and answers of `/v1/responses` in the terms of chat completions. No I/O.

Nothing is stored at the server: each call sends the conversation, and with it the reasoning items
of earlier replies as they came, encrypted or not, each in its place among the reply's messages and
calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moothall.domain.text import encodable, one_line
from moothall.llm.server_errors import describe_error
from moothall.llm.stream import BrokenStream, PartialReply, read_chunk

ADDED: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}
"""Parameters of this API that chat completions do not have."""
_SAME = (
    "model",
    "temperature",
    "parallel_tool_calls",
    "stream",
    "store",
    "include",
    "top_logprobs",
)
_CONTENTS = frozenset({"content", "arguments", "status"})
_NAME = 200
_ENDS = {"response.completed", "response.incomplete", "response.failed"}


def responses_body(body: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return an adapted body of chat completions as `/v1/responses` takes it. `limit`: tokens of
    the reply, 0 for none.
    """
    made = {name: body[name] for name in _SAME if name in body}
    made["input"] = [item for message in body["messages"] for item in _items(message)]
    if limit:
        made["max_output_tokens"] = limit
    if tools := body.get("tools"):
        # Strict mode, the default here, takes only schemas of its subset.
        made["tools"] = [
            {"type": "function", "strict": False, **tool["function"]} for tool in tools
        ]
    if wanted := body.get("response_format"):
        made["text"] = {"format": {"type": "json_schema", **wanted["json_schema"]}}
    if effort := body.get("reasoning_effort"):
        made["reasoning"] = {"effort": effort}
    return made


def _items(message: Mapping[str, Any]) -> list[dict[str, Any]]:
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
    return _in_order(message.get("items"), content if isinstance(content, str) else "", calls)


def _in_order(
    stored: object, content: str, calls: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the items of a reply: reasoning as it came, with the reply's text and calls in the
    places of the stored ones.
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
    """A reply of `/v1/responses` in the making."""

    output: dict[int, dict[str, Any]] = field(default_factory=dict)

    def take(self, data: str) -> str:
        """Add one event; return the text that it brought. Raises `BrokenStream`."""
        event = read_chunk(data)
        if event is None:
            self.done = self.done or bool(data.strip() == "[DONE]")
            return ""
        kind = str(event.get("type") or "")
        if kind == "error":
            error = describe_error(event)
            raise BrokenStream(f"the server reported: {error.message}", error)
        if kind == "response.output_text.delta":
            return self._add(event.get("delta"))
        if kind == "response.refusal.delta" and isinstance(delta := event.get("delta"), str):
            self.refusal.append(encodable(delta))
            self.size += len(delta)
        if kind == "response.output_item.done":
            self._take_item(event.get("output_index"), event.get("item"))
        whole = event.get("response") if kind else event
        if isinstance(whole, dict) and (kind in _ENDS or not kind):
            return self._end(whole)
        return ""

    def reasoning_fields(self) -> dict[str, Any]:
        """Return the reply's items: reasoning whole, others without their contents."""
        items = [_kept(item) for _, item in sorted(self.output.items())]
        return {"items": items} if any(item.get("type") == "reasoning" for item in items) else {}

    def _add(self, text: object) -> str:
        if not isinstance(text, str) or not text:
            return ""
        self.text.append(encodable(text))
        self.size += len(text)
        return self.text[-1]

    def _take_item(self, index: object, item: object) -> None:
        if not isinstance(item, dict):
            return
        self.output[index if isinstance(index, int) else len(self.output)] = item
        self.size += len(str(item))

    def _end(self, whole: Mapping[str, Any]) -> str:
        """Take the complete response. Raises `BrokenStream` for one that failed."""
        if isinstance(whole.get("error"), dict):
            error = describe_error({"error": whole["error"]})
            raise BrokenStream(f"the server reported: {error.message}", error)
        output = whole.get("output")
        if isinstance(output, list) and output:
            self.output.clear()
            for number, item in enumerate(output):
                self._take_item(number, item)
        self.model = self.model or one_line(str(whole.get("model") or ""), _NAME)
        self.usage = _usage(whole.get("usage"))
        for _, item in sorted(self.output.items()):
            if item.get("type") == "function_call":
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                self.calls.read([{"id": item.get("call_id"), "function": function}], whole=True)
        details = whole.get("incomplete_details")
        reason = str(details.get("reason") or "") if isinstance(details, dict) else ""
        cut = {"max_output_tokens": "length", "max_tokens": "length"}.get(
            reason, one_line(reason, _NAME)
        )
        self.finish_reason = cut or ("tool_calls" if self.calls.calls else "stop")
        self.done = True
        return (
            ""
            if self.text
            else self._add("".join(_texts([item for _, item in sorted(self.output.items())])))
        )


def _texts(items: Sequence[Mapping[str, Any]]) -> list[str]:
    parts = [
        part
        for item in items
        if item.get("type") == "message"
        for part in item.get("content") or ()
        if isinstance(part, dict)
    ]
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


def _kept(item: Mapping[str, Any]) -> dict[str, Any]:
    if item.get("type") == "reasoning":
        return {
            name: value for name, value in item.items() if value is not None and name != "status"
        }
    return {
        name: value for name, value in item.items() if value is not None and name not in _CONTENTS
    }


def _usage(told: object) -> dict[str, Any]:
    """Return a usage under the names of chat completions."""
    if not isinstance(told, dict):
        return {}
    return {
        "prompt_tokens": told.get("input_tokens"),
        "completion_tokens": told.get("output_tokens"),
        "prompt_tokens_details": told.get("input_tokens_details"),
        "completion_tokens_details": told.get("output_tokens_details"),
    }
