"""Native tool calls and reasoning: what is sent, and how the streams of different servers are
read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.chat import FunctionCall, FunctionTool, Message
from moothall.llm.stream import PartialReply
from moothall.testing.model import NativeReply
from moothall.testing.server_contract import ask, talking

BASH = FunctionTool(
    "bash",
    "Run a command.",
    {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
)


def read_deltas(deltas: Sequence[Any], *, key: str = "delta") -> PartialReply:
    reply = PartialReply()
    for delta in deltas:
        reply.add_event(json.dumps({"choices": [{"index": 0, key: delta}]}))
    return reply


def calls(*fragments: Any) -> list[tuple[str, str, str]]:
    assembly = read_deltas(
        [
            {"tool_calls": fragment if isinstance(fragment, list) else [fragment]}
            for fragment in fragments
        ]
    )
    return [
        (call.call_id, call.name, call.arguments)
        for call in assembly.calls.finish("t/s/propose/0.1")
    ]


async def test_tools_and_earlier_calls_are_sent() -> None:
    conversation = (
        Message("user", "Fix it."),
        Message(
            "assistant",
            "",
            calls=(
                FunctionCall("c1", "bash", '{"command": "ls"}'),
                FunctionCall("c2", "bash", "{broken"),
            ),
        ),
        Message("tool", "a.py", call_id="c1"),
        Message("tool", "the arguments are not JSON", call_id="c2"),
        Message("assistant", " "),
        Message("user", "Go on."),
    )
    async with talking(lambda _b, _h: "done") as (model, server):
        await model.chat(ask(messages=conversation, tools=(BASH,)))
    body = server.requests[0].body
    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "bash",
                "description": "Run a command.",
                "parameters": dict(BASH.parameters),
            },
        }
    ]
    assert body["parallel_tool_calls"] is True
    assert body["messages"][1:5] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "bash", "arguments": '{"command": "ls"}'},
                },
                {"id": "c2", "type": "function", "function": {"name": "bash", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "content": "a.py", "tool_call_id": "c1"},
        {"role": "tool", "content": "the arguments are not JSON", "tool_call_id": "c2"},
        {"role": "assistant", "content": "(nothing)"},
    ]


@pytest.mark.parametrize("streams", [True, False])
async def test_calls_text_and_reasoning_are_returned(*, streams: bool) -> None:
    native_reply = NativeReply(
        (("bash", {"command": "x" * 200}), ("bash", {"command": "ls"})),
        text="Let me look.",
        reasoning="why " * 40,
        ids=("a", "b"),
    )
    async with talking(lambda _b, _h: native_reply, {"tools": True}) as (model, server):
        server.streams = streams
        reply = await model.chat(ask(tools=(BASH,)))
        reply_message = Message("assistant", reply.text, reply.calls, reasoning=reply.reasoning)
        await model.chat(
            ask(
                messages=(
                    Message("user", "Go"),
                    reply_message,
                    Message("tool", "", call_id="a"),
                    Message("tool", "", call_id="b"),
                )
            )
        )
    assert (reply.text, reply.finish_reason) == ("Let me look.", "tool_calls")
    assert [(call.call_id, json.loads(call.arguments)) for call in reply.calls] == [
        ("a", {"command": "x" * 200}),
        ("b", {"command": "ls"}),
    ]
    assert server.requests[1].body["messages"][1]["reasoning_content"] == "why " * 40


def test_fragments_are_joined_by_index() -> None:
    assert calls(
        {"index": 0, "id": "a", "type": "function", "function": {"name": "ba", "arguments": ""}},
        {"index": 1, "id": "b", "function": {"name": "view", "arguments": '{"pa'}},
        {"index": 0, "function": {"name": "sh"}},
        {"index": 0, "function": {"arguments": '{"command":'}},
        {"index": 1, "function": {"arguments": 'th": "a"}'}},
        {"index": 0, "function": {"arguments": ' "ls"}'}},
    ) == [("a", "bash", '{"command": "ls"}'), ("b", "view", '{"path": "a"}')]


def test_a_name_and_an_id_in_each_fragment_are_one_call() -> None:
    assert calls(
        {"index": 0, "id": "a", "function": {"name": "bash", "arguments": '{"command": '}},
        {"index": 0, "id": "a", "function": {"name": "bash", "arguments": '"ls"}'}},
    ) == [("a", "bash", '{"command": "ls"}')]


@pytest.mark.parametrize("index", [{"index": 0}, {}])
def test_complete_calls_with_the_same_index_are_separate(index: dict[str, int]) -> None:
    ls_call, pwd_call = (
        {**index, "function": {"name": "bash", "arguments": {"command": name}}}
        for name in ("ls", "pwd")
    )
    separate_calls, joined_calls = calls(ls_call, pwd_call), calls([ls_call, pwd_call])
    assert separate_calls == joined_calls
    assert [json.loads(arguments)["command"] for _, _, arguments in separate_calls] == ["ls", "pwd"]


def test_missing_and_repeated_ids_are_replaced_deterministically() -> None:
    fragments = [
        {"index": index, "id": call_id, "function": {"name": "bash", "arguments": "{}"}}
        for index, call_id in enumerate(["", "x", "x"])
    ]
    first, second = calls(*fragments), calls(*fragments)
    assert first == second
    assert len({call_id for call_id, _, _ in first}) == 3
    assert all(call_id.isalnum() for call_id, _, _ in first)


def test_thought_signatures_are_sent_back_with_their_call() -> None:
    signature = {"google": {"thought_signature": "c2ln"}}
    reply = read_deltas(
        [
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "a",
                        "extra_content": signature,
                        "function": {"name": "bash", "arguments": "{}"},
                    }
                ]
            }
        ]
    )
    reply.calls.finish("x")
    assert reply.calls.extras == {"a": {"extra_content": signature}}


def test_reasoning_details_are_joined_and_replace_the_text() -> None:
    reply = read_deltas(
        [
            {
                "reasoning": "I th",
                "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "I th"}],
            },
            {
                "reasoning": "ink",
                "reasoning_details": [
                    {"type": "reasoning.text", "index": 0, "text": "ink", "signature": "s"}
                ],
            },
            {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "abc"}]},
        ]
    )
    assert reply.reasoning.fields() == {
        "reasoning_details": [
            {"type": "reasoning.text", "index": 0, "text": "I think", "signature": "s"},
            {"type": "reasoning.encrypted", "index": 1, "data": "abc"},
        ]
    }


def test_content_in_parts_is_text_and_thinking() -> None:
    reply = read_deltas(
        [
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                    {"type": "text", "text": "Hel"},
                ]
            },
            {"content": ["lo"]},
        ]
    )
    assert ("".join(reply.text), reply.reasoning.fields()) == ("Hello", {"thinking": "hm"})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "tool_calls",
                        "index",
                        "id",
                        "function",
                        "name",
                        "arguments",
                        "reasoning",
                        "reasoning_details",
                        "content",
                        "text",
                    ]
                ),
                inner,
            )
        ),
        max_leaves=15,
    )
)
def test_any_delta_is_accepted(value: object) -> None:
    for key in ("delta", "message"):
        reply = read_deltas(
            [value, {"tool_calls": value}, {"tool_calls": [value]}, {"content": value}], key=key
        )
        assert all(isinstance(call.arguments, str) for call in reply.calls.finish("x"))
