"""Tool calls and reasoning in the text of replies."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.chat import FunctionTool
from moothall.llm.reply_parts import split_calls, split_thinking
from moothall.testing.server_contract import ask, talking

TOOLS = [
    {
        "function": {
            "name": "bash",
            "parameters": {
                "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}}
            },
        }
    },
    {"function": {"name": "view", "parameters": {"properties": {"path": {"type": "string"}}}}},
]


@pytest.mark.parametrize(
    ("text", "calls", "rest"),
    [
        (
            'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>',
            [("bash", {"command": "ls"})],
            "I look.",
        ),
        (
            (
                '<tool_call>{"name": "bash", "arguments": {"command": "a"}}</tool_call>\n'
                '<tool_call>{"name": "view", "arguments": {"path": "b"}}</tool_call>'
            ),
            [("bash", {"command": "a"}), ("view", {"path": "b"})],
            "",
        ),
        (
            (
                "Now.\n<tool_call>\n<function=bash>\n<parameter=command>\ncat <<'E'\n1\nE\n"
                "</parameter>\n<parameter=timeout>\n5\n</parameter>\n</function>\n</tool_call>"
            ),
            [("bash", {"command": "cat <<'E'\n1\nE", "timeout": 5})],
            "Now.",
        ),
        (
            "<function=bash><parameter=command>7</parameter></function>",
            [("bash", {"command": "7"})],
            "",
        ),
        (
            (
                '[TOOL_CALLS][{"name": "bash", "arguments": {"command": "x"}}, {"name": "view", '
                '"arguments": {"path": "y"}}]'
            ),
            [("bash", {"command": "x"}), ("view", {"path": "y"})],
            "",
        ),
        ('{"name": "bash", "parameters": {"command": "ls"}}', [("bash", {"command": "ls"})], ""),
        (
            (
                '{"name": "bash", "arguments": {"command": "a"}}\n{"name": "view", "arguments": '
                '{"path": "b"}}'
            ),
            [("bash", {"command": "a"}), ("view", {"path": "b"})],
            "",
        ),
        (
            (
                'I look.\n```json\n{\n  "name": "bash",\n  "arguments": {\n    "command": "ls"\n  '
                "}\n"
                '}\n```\n```\n{"name": "view", "arguments": {"path": "b"}}\n```'
            ),
            [("bash", {"command": "ls"}), ("view", {"path": "b"})],
            "I look.",
        ),
        (
            (
                '```json\n<tool_call>\n  {"name": "bash", "arguments": {"command": "ls"}}\n'
                "</tool_call>\n```"
            ),
            [("bash", {"command": "ls"})],
            "",
        ),
        (
            '```json\n{"name": "rm", "arguments": {}}\n```',
            [],
            '```json\n{"name": "rm", "arguments": {}}\n```',
        ),
        (
            '```json\n{"name": "bash", "arguments": {"command": "ls"}',
            [],
            '```json\n{"name": "bash", "arguments": {"command": "ls"}',
        ),
        (
            '{"name": "bash", "arguments": {"command": "ls"}} is what I would call',
            [],
            '{"name": "bash", "arguments": {"command": "ls"}} is what I would call',
        ),
        (
            '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
            [],
            '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        ),
        ('{"thought": "x", "actions": []}', [], '{"thought": "x", "actions": []}'),
        ("<tool_call>{broken", [], "<tool_call>{broken"),
    ],
)
def test_calls_in_the_text_are_read(
    text: str, calls: list[tuple[str, dict[str, object]]], rest: str
) -> None:
    reasoning, remaining_text = split_calls(text, TOOLS)
    assert [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in reasoning
    ] == calls
    assert remaining_text == rest


async def test_calls_in_the_text_need_offered_tools() -> None:
    text = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
    tool = FunctionTool(
        "bash", "", {"type": "object", "properties": {"command": {"type": "string"}}}
    )
    async with talking(lambda _b, _h: text) as (model, _):
        with_tools, without_tools = await model.chat(ask(tools=(tool,))), await model.chat(ask())
    assert ([call.name for call in with_tools.calls], with_tools.text) == (["bash"], "")
    assert (without_tools.calls, without_tools.text) == ((), text)


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<think>hm</think>\n\nYes.", "hm", "Yes."),
        ('hm {x}\n</think>\n\n{"a": 1}', "hm {x}\n", '{"a": 1}'),
        ("<think>still at it", "still at it", ""),
        ("[THINK]hm[/THINK]Yes.", "hm", "Yes."),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
            "…",
            "Yes.",
        ),
        ('{"finish": "write </think> at the end"}', "", '{"finish": "write </think> at the end"}'),
        (
            '<tool>{"args": {"content": "a\n</think>\nb"}}</tool>',
            "",
            '<tool>{"args": {"content": "a\n</think>\nb"}}</tool>',
        ),
        ("```\n</think>\n```", "", "```\n</think>\n```"),
        ("Nothing of it.", "", "Nothing of it."),
    ],
)
def test_reasoning_in_the_text_is_separated(text: str, thought: str, answer: str) -> None:
    reasoning, rest = split_thinking(text)
    assert rest == answer
    assert bool(reasoning) == bool(thought)
    assert thought in {reasoning, "…"}


@given(st.text(st.sampled_from("<>/{}[]\"'=`\n thinktool_callfunctionparameter")))
def test_any_text_is_accepted(text: str) -> None:
    split_calls(text, TOOLS)
    split_thinking(text)
