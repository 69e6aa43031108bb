"""The model server that a harness sees."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, FunctionCall, ModelQuestion, Prompts
from moothall.errors import (
    BudgetExceeded,
    ContextOverflow,
    InvalidRequest,
    ModelReplyInvalid,
    ModelUnavailable,
)
from moothall.harnesses.chat_api import CHAT, ModelApi
from moothall.harnesses.model_api import MESSAGES, RESPONSES, HttpReply, answer

CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"a": 1}'}}
BODY: dict[str, Any] = {
    "model": "any",
    "stream": True,
    "max_completion_tokens": 100,
    "temperature": 0.5,
    "messages": [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ],
    "tools": [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}],
}
REPLY = ChatReply(
    "I do", "stop", Usage(10, 2, 5, 1), calls=(FunctionCall("c2", "bash", '{"a": 2}'),)
)


async def _reply(question: ModelQuestion) -> ChatReply:
    del question
    return REPLY


def test_a_request_is_read_with_its_calls_and_without_images() -> None:
    request = CHAT.parse(json.dumps(BODY))
    question = request.question
    assert request.streamed
    assert [message.role for message in question.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert question.messages[1].content == "hi\n[image_url: left out]"
    assert question.messages[2].calls == (FunctionCall("c1", "bash", '{"a": 1}'),)
    assert question.messages[3].call_id == "c1"
    assert [tool.name for tool in question.tools] == ["bash"]
    assert (question.max_tokens, question.temperature) == (100, 0.5)


async def test_a_stream_and_a_document_have_the_same_content() -> None:
    path = "/v1/chat/completions"
    document = await answer("POST", path, json.dumps({**BODY, "stream": False}), "own", _reply)
    choice = json.loads(document.content)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": 2}'
    streamed = await answer("POST", path, json.dumps(BODY), "own", _reply)
    events = streamed.content.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas[0]["content"] == "I do"
    call = deltas[1]["tool_calls"][0]
    assert {**call, "index": 0} == {**choice["message"]["tool_calls"][0], "index": 0}
    assert chunks[-1]["usage"] == json.loads(document.content)["usage"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("no"), 400),
        (BudgetExceeded("no"), 402),
        (ModelReplyInvalid("no"), 422),
    ],
)
async def test_errors_are_returned_with_their_status(error: Exception, status: int) -> None:
    async def fail(question: ModelQuestion) -> ChatReply:
        raise error

    reply = await answer("POST", "/v1/chat/completions", json.dumps(BODY), "own", fail)
    assert reply.status == status
    assert json.loads(reply.content)["error"]["message"] == "no"


async def test_an_error_that_ends_the_deliberation_is_raised() -> None:
    async def fail(question: ModelQuestion) -> ChatReply:
        raise ModelUnavailable("away")

    with pytest.raises(ModelUnavailable):
        await answer("POST", "/v1/chat/completions", json.dumps(BODY), "own", fail)


async def test_unknown_paths_are_named() -> None:
    models = await answer("GET", "/v1/models", "", "own", _reply)
    assert json.loads(models.content)["data"][0]["id"] == "own"
    missing = await answer("POST", "/v1/embeddings", "{}", "own", _reply)
    assert missing.status == 404
    assert "/v1/embeddings" in missing.content
    assert "/responses" in missing.content


MESSAGES_BODY: dict[str, Any] = {
    "model": "any",
    "max_tokens": 100,
    "temperature": 0.5,
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image"}]},
        {"role": "system", "content": "the date"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "c1", "name": "bash", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "done"}],
                },
                {"type": "text", "text": "go on"},
            ],
        },
    ],
    "tools": [
        {"name": "bash", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
}
RESPONSES_BODY: dict[str, Any] = {
    "model": "any",
    "max_output_tokens": 100,
    "temperature": 0.5,
    "instructions": "be brief",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"role": "developer", "content": "the date"},
        {"type": "reasoning", "encrypted_content": "x"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
        {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"a": 1}'},
        {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "*** Begin"},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "done"},
    ],
    "tools": [
        {"type": "function", "name": "bash", "parameters": {"type": "object"}},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "definition": "start:"}},
        {"type": "web_search"},
    ],
}


def test_messages_are_read_without_thinking_and_with_tool_results_as_messages() -> None:
    question = MESSAGES.parse(json.dumps(MESSAGES_BODY)).question
    assert [(message.role, message.content) for message in question.messages] == [
        ("system", "be brief"),
        ("user", "hi\n[image: left out]\n\nthe date"),
        ("assistant", "so"),
        ("tool", "done"),
        ("user", "go on"),
    ]
    assert question.messages[2].calls == (FunctionCall("c1", "bash", '{"a": 1}'),)
    assert question.messages[3].call_id == "c1"
    assert [tool.name for tool in question.tools] == ["bash"]
    assert (question.max_tokens, question.temperature) == (100, 0.5)


def test_responses_are_read_with_calls_as_parts_of_the_assistant_message() -> None:
    request = RESPONSES.parse(json.dumps(RESPONSES_BODY))
    question = request.question
    assert [(message.role, message.content) for message in question.messages] == [
        ("system", "be brief"),
        ("user", "hi\n\nthe date"),
        ("assistant", "so"),
        ("tool", "done"),
        ("tool", "done"),
    ]
    assert question.messages[2].calls == (
        FunctionCall("c1", "bash", '{"a": 1}'),
        FunctionCall("c3", "patch", '{"input": "*** Begin"}'),
    )
    assert [message.call_id for message in question.messages[3:]] == ["c1", "c3"]
    assert [tool.name for tool in question.tools] == ["bash", "patch"]
    assert "start:" in question.tools[1].description
    assert request.free_tools == {"patch"}
    assert (question.max_tokens, question.temperature) == (100, 0.5)


def _events(reply: HttpReply) -> list[dict[str, Any]]:
    """Return the events of a stream, whose names are the types of their data."""
    assert reply.type == "text/event-stream"
    events = []
    for part in reply.content.removesuffix("\n\n").split("\n\n"):
        name, _, data = part.partition("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def test_a_stream_of_messages_has_the_content_of_the_document() -> None:
    body, path = json.dumps(MESSAGES_BODY), "/v1/messages?beta=true"
    document = json.loads((await answer("POST", path, body, "own", _reply)).content)
    assert document["content"] == [
        {"type": "text", "text": "I do"},
        {"type": "tool_use", "id": "c2", "name": "bash", "input": {"a": 2}},
    ]
    assert document["stop_reason"] == "tool_use"
    assert document["usage"]["input_tokens"] + document["usage"]["cache_read_input_tokens"] == 10
    streaming = json.dumps({**MESSAGES_BODY, "stream": True})
    events = _events(await answer("POST", path, streaming, "own", _reply))
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "text_delta":
                blocks[-1]["text"] += delta["text"]
            else:
                blocks[-1]["input"] = json.loads(delta["partial_json"])
    assert blocks == document["content"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"] == document["usage"]


async def test_a_stream_of_responses_has_the_content_of_the_document() -> None:
    async def reply(question: ModelQuestion) -> ChatReply:
        free = FunctionCall("c4", "patch", '{"input": "*** End"}')
        return ChatReply("I do", "stop", Usage(10, 2, 5, 1), calls=(*REPLY.calls, free))

    body, path = json.dumps(RESPONSES_BODY), "/v1/responses"
    document = json.loads((await answer("POST", path, body, "own", reply)).content)
    text, function, free = document["output"]
    assert text["content"][0]["text"] == "I do"
    assert (function["type"], function["arguments"]) == ("function_call", '{"a": 2}')
    assert (free["type"], free["input"]) == ("custom_tool_call", "*** End")
    assert document["status"] == "completed"
    streaming = json.dumps({**RESPONSES_BODY, "stream": True})
    events = _events(await answer("POST", path, streaming, "own", reply))
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    finished_items = [
        event["item"] for event in events if event["type"] == "response.output_item.done"
    ]
    ids = [{**item, "id": ""} for item in finished_items]
    assert ids == [{**item, "id": ""} for item in document["output"]]
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"] == finished_items


async def test_a_truncated_reply_is_marked_as_such() -> None:
    async def cut_reply(question: ModelQuestion) -> ChatReply:
        return ChatReply("I d", "length", Usage(10, 2, 5, 1))

    reply = await answer("POST", "/v1/messages", json.dumps(MESSAGES_BODY), "own", cut_reply)
    assert json.loads(reply.content)["stop_reason"] == "max_tokens"
    reply = await answer("POST", "/v1/responses", json.dumps(RESPONSES_BODY), "own", cut_reply)
    assert json.loads(reply.content)["status"] == "incomplete"


async def test_a_context_overflow_is_refused_in_the_words_that_clients_know() -> None:
    async def overflow(question: ModelQuestion) -> ChatReply:
        raise ContextOverflow("9 of 8 tokens")

    reply = await answer("POST", "/v1/messages", json.dumps(MESSAGES_BODY), "own", overflow)
    error = json.loads(reply.content)["error"]
    assert (reply.status, error["type"]) == (400, "invalid_request_error")
    assert error["message"] == "prompt is too long: 9 of 8 tokens"
    counted = await answer("POST", "/v1/messages/count_tokens", "x" * 400, "own", overflow)
    assert json.loads(counted.content) == {"input_tokens": 100}


async def test_invalid_arguments_reach_the_harness_as_text() -> None:
    async def reply(question: ModelQuestion) -> ChatReply:
        return ChatReply("", "stop", Usage(), calls=(FunctionCall("c2", "bash", "{oops"),))

    document = await answer("POST", "/v1/messages", json.dumps(MESSAGES_BODY), "own", reply)
    (block,) = json.loads(document.content)["content"]
    assert block["input"] == {"arguments": "{oops"}


def test_a_response_that_continues_another_is_refused() -> None:
    body = json.dumps({**RESPONSES_BODY, "previous_response_id": "resp_1"})
    with pytest.raises(InvalidRequest, match="send the whole conversation"):
        RESPONSES.parse(body)


APIS = [
    ("/chat/completions", CHAT, BODY, "messages"),
    ("/messages", MESSAGES, MESSAGES_BODY, "messages"),
    ("/responses", RESPONSES, RESPONSES_BODY, "input"),
]
API_NAMES = [path for path, *_ in APIS]


@pytest.mark.parametrize(("path", "api", "body", "field"), APIS, ids=API_NAMES)
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e999", f"1{'0' * 400}", '"nan"'])
async def test_numbers_that_are_none_do_not_reach_the_model(
    path: str, api: ModelApi, body: dict[str, Any], field: str, number: str
) -> None:
    async def reply(question: ModelQuestion) -> ChatReply:
        json.dumps(question.temperature, allow_nan=False)
        return REPLY

    for name in ("temperature", "max_tokens", "max_completion_tokens", "max_output_tokens"):
        text = json.dumps({**body, name: "HERE"}).replace('"HERE"', number)
        assert (await answer("POST", path, text, "own", reply)).status in {200, 400}


@pytest.mark.parametrize(("path", "api", "body", "field"), APIS, ids=API_NAMES)
async def test_no_lone_surrogate_reaches_the_model(
    path: str, api: ModelApi, body: dict[str, Any], field: str
) -> None:
    text = json.dumps(body).replace("c1", "\\ud800").replace("bash", "\\ud800")
    question = api.parse(text).question
    Prompts().record("seat/propose/0.1", question.messages)
    names = [call.name for message in question.messages for call in message.calls]
    assert names[0] == question.tools[0].name == "?"


@pytest.mark.parametrize(("path", "api", "body", "field"), APIS, ids=API_NAMES)
def test_tools_that_are_too_deep_or_too_long_are_refused(
    path: str, api: ModelApi, body: dict[str, Any], field: str
) -> None:
    def tools(parameters: Any) -> list[Any]:
        (tool, *_) = json.loads(json.dumps(body["tools"]))
        holder = tool.get("function", tool)
        holder["input_schema" if "input_schema" in holder else "parameters"] = parameters
        return [tool]

    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    for parameters in (deep, {"enum": ["x" * 10] * 100_000}):
        with pytest.raises(InvalidRequest, match="not a chat request"):
            api.parse(json.dumps({**body, "tools": tools(parameters)}))
    with pytest.raises(InvalidRequest, match="at most 16000000 characters"):
        api.parse(" " * 16_000_001)


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers(-(10**400), 10**400)
    | st.text(st.characters(categories=["L", "N", "Cs"]), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    "role",
                    "content",
                    "messages",
                    "tools",
                    "function",
                    "name",
                    "id",
                    "type",
                    "input",
                    "output",
                    "call_id",
                    "text",
                    "tool_calls",
                    "arguments",
                    "parameters",
                    "input_schema",
                    "description",
                )
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("path", "body", "field"), [(path, *rest) for path, _, *rest in APIS], ids=API_NAMES
)
@given(name=st.sampled_from(sorted({*BODY, *MESSAGES_BODY, *RESPONSES_BODY})), value=_json)
async def test_nonsense_is_answered(
    path: str, body: dict[str, Any], field: str, name: str, value: Any
) -> None:
    for data in (value, {**body, field: value}, {**body, field: [value]}, {**body, name: value}):
        reply = await answer("POST", path, json.dumps(data), "own", _reply)
        assert reply.status == 200 or "not a chat request" in reply.content
