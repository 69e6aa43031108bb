"""The model server that a harness sees."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, FunctionCall, ModelQuestion
from moothall.errors import BudgetExceeded, InvalidRequest, ModelReplyInvalid, ModelUnavailable
from moothall.harnesses.model_api import answer, read_question

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


def test_a_request_is_read_with_its_calls_and_without_its_pictures() -> None:
    streamed, question = read_question(json.dumps(BODY))
    assert streamed
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


async def test_a_stream_and_a_document_say_the_same() -> None:
    path = "/v1/chat/completions"
    whole = await answer("POST", path, json.dumps({**BODY, "stream": False}), "own", _reply)
    choice = json.loads(whole.content)["choices"][0]
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
    assert chunks[-1]["usage"] == json.loads(whole.content)["usage"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("no"), 400),
        (BudgetExceeded("no"), 402),
        (ModelReplyInvalid("no"), 422),
    ],
)
async def test_errors_are_errors_of_the_server(error: Exception, status: int) -> None:
    async def fail(question: ModelQuestion) -> ChatReply:
        raise error

    reply = await answer("POST", "/v1/chat/completions", json.dumps(BODY), "own", fail)
    assert reply.status == status
    assert json.loads(reply.content)["error"]["message"] == "no"


async def test_what_ends_the_deliberation_is_no_reply() -> None:
    async def fail(question: ModelQuestion) -> ChatReply:
        raise ModelUnavailable("away")

    with pytest.raises(ModelUnavailable):
        await answer("POST", "/v1/chat/completions", json.dumps(BODY), "own", fail)


async def test_other_paths_are_named() -> None:
    models = await answer("GET", "/v1/models", "", "own", _reply)
    assert json.loads(models.content)["data"][0]["id"] == "own"
    missing = await answer("POST", "/v1/responses", "{}", "own", _reply)
    assert missing.status == 404
    assert "/v1/responses" in missing.content


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("role", "content", "messages", "tools", "function", "name", "id")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_json)
def test_nonsense_is_an_invalid_request(value: Any) -> None:
    for body in (json.dumps(value), json.dumps({**BODY, "messages": value})):
        try:
            read_question(body)
        except InvalidRequest as error:
            assert "not a chat request" in error.message  # noqa: PT017 - either way is right
