"""Replies as models write them, one row per spelling."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.authorization.rules import grant_for
from moothall.deliberation.prompts import reply
from moothall.deliberation.prompts.reply import Turn, answer_so_far, whole_text
from moothall.deliberation.prompts.text_calls import MalformedReplyError
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, ReplyMode
from moothall.domain.tool import Action
from moothall.tools.catalogue import list_tools

SPECS = list_tools(grant_for("dev"))
NO_SHELL = tuple(spec for spec in SPECS if spec.name != "code.shell")
MODES: tuple[ReplyMode, ...] = ("json", "blocks")
READ = Action("files.read", {"path": "a.py"})
LINES = Action("files.read", {"path": "a.py", "start": 3, "lines": 20})
EDIT = Action("files.edit", {"path": "a.py", "old": "    x = 1\n", "new": "    x = 2\n"})
SHELL = Action("code.shell", {"command": "git log -3"})
CALL = '{"name": "files.read", "arguments": {"path": "a.py"}}'
ACTIONS = '{"thought": "t", "actions": [{"tool": "files.read", "args": {"path": "a.py"}}]}'
BLOCK = '<tool>{"name": "files.read", "args": {"path": "a.py"}}</tool>'
BAR = "\uff5c"


def chat_reply(text: str, finish_reason: str = "stop") -> ChatReply:
    return ChatReply(text, finish_reason, Usage())


def actions_of(text: str, mode: ReplyMode) -> tuple[Action, ...]:
    return reply.read_turn(chat_reply(text), mode, SPECS).actions


CALLS: dict[str, tuple[str, tuple[Action, ...]]] = {
    # Prose and several objects.
    "prose around an object": (
        f"Let me look at {{the file}} first.\n\n{ACTIONS}\n\nThen I will edit it.",
        (READ,),
    ),
    "several objects": (f"{ACTIONS}\n{ACTIONS}", (READ, READ)),
    "objects of a stream": (f"{ACTIONS}{ACTIONS}", (READ, READ)),
    "a fenced object in prose": (
        f"I begin with the file.\n\n```json\n{ACTIONS}\n```\n\nMore after that.",
        (READ,),
    ),
    "two fenced objects": (
        f"First:\n```json\n{ACTIONS}\n```\nsecond:\n```\n{ACTIONS}\n```",
        (READ, READ),
    ),
    "another object in prose": (f'The config is {{"debug": true}} now.\n{ACTIONS}', (READ,)),
    "code with braces before": (
        f'```python\nx = {{"tool": "files.delete", "args": {{}}}}\n```\n{ACTIONS}',
        (READ,),
    ),
    "a list of actions": (
        (
            '[{"tool": "files.read", "args": {"path": "a.py"}}, {"tool": "files.read", "args": '
            '{"path": "a.py"}}]'
        ),
        (READ, READ),
    ),
    "both spellings of ours": (f"{BLOCK}\n{ACTIONS}", (READ, READ)),
    "tags that prose mentions": (
        f"I reply with <tool> calls, and with <finish> at the end.\n{ACTIONS}",
        (READ,),
    ),
    "a block without its end": (f"{BLOCK.removesuffix('</tool>')}\n{BLOCK}", (READ, READ)),
    # The fields of an action.
    "arguments": ('{"actions": [{"tool": "files.read", "arguments": {"path": "a.py"}}]}', (READ,)),
    "parameters": (
        '{"actions": [{"tool": "files.read", "parameters": {"path": "a.py"}}]}',
        (READ,),
    ),
    "input": (
        (
            '{"actions": [{"type": "tool_use", "id": "toolu_1", "name": "files.read", "input": '
            '{"path": "a.py"}}]}'
        ),
        (READ,),
    ),
    "arguments as text": (
        '{"actions": [{"name": "files.read", "arguments": "{\\"path\\": \\"a.py\\"}"}]}',
        (READ,),
    ),
    "arguments beside the name": (
        '{"actions": [{"id": 1, "tool": "files.read", "path": "a.py"}]}',
        (READ,),
    ),
    "no arguments": ('{"actions": [{"tool": "git.status"}]}', (Action("git.status", {}),)),
    "one action without a list": ('{"tool": "files.read", "args": {"path": "a.py"}}', (READ,)),
    "one action with its name": ('{"name": "files.read", "args": {"path": "a.py"}}', (READ,)),
    "one action in the place of the list": (
        '{"thought": "t", "actions": {"tool": "files.read", "args": {"path": "a.py"}}}',
        (READ,),
    ),
    "a list as text": (
        '{"actions": "[{\\"tool\\": \\"files.read\\", \\"args\\": {\\"path\\": \\"a.py\\"}}]"}',
        (READ,),
    ),
    "one action under action": (
        '{"thought": "t", "action": {"tool": "files.read", "args": {"path": "a.py"}}}',
        (READ,),
    ),
    "action and action_input": (
        '{"action": "files.read", "action_input": {"path": "a.py"}}',
        (READ,),
    ),
    "further fields": (
        (
            '{"plan": "p", "actions": [{"tool": "files.read", "args": {"path": "a.py"}}], '
            '"confidence": 0.9}'
        ),
        (READ,),
    ),
    "a name as the key": ('{"actions": [{"files.read": {"path": "a.py"}}]}', (READ,)),
    "Gemini": ('{"functionCall": {"name": "files.read", "args": {"path": "a.py"}}}', (READ,)),
    "OpenAI, an item of a response": (
        (
            '{"type": "function_call", "call_id": "c", "name": "files.read", "arguments": '
            '"{\\"path\\": \\"a.py\\"}"}'
        ),
        (READ,),
    ),
    "an object around": (f'{{"response": {ACTIONS}}}', (READ,)),
    "a name with an underscore": ('{"name": "files_read", "arguments": {"path": "a.py"}}', (READ,)),
    # What model families write where their server does not read calls.
    "OpenAI": (
        (
            '{"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": '
            '"function", "function": {"name": "files.read", "arguments": "{\\"path\\": '
            '\\"a.py\\"}"}}]}'
        ),
        (READ,),
    ),
    "OpenAI, the older one": (
        '{"function_call": {"name": "files.read", "arguments": "{\\"path\\": \\"a.py\\"}"}}',
        (READ,),
    ),
    "OpenAI, parallel": (
        (
            '{"tool_uses": [{"recipient_name": "functions.files_read", "parameters": {"path": '
            '"a.py"}}]}'
        ),
        (READ,),
    ),
    "gpt-oss": (
        (
            "<|channel|>analysis<|message|>I call "
            "it.<|end|><|start|>assistant<|channel|>commentary to=functions.files_read "
            '<|constrain|>json<|message|>{"path": "a.py"}<|call|>'
        ),
        (READ,),
    ),
    "gpt-oss, recipient first": (
        (
            "<|start|>assistant to=functions.files_read<|channel|>commentary "
            'json<|message|>{"path": '
            '"a.py"}<|call|>'
        ),
        (READ,),
    ),
    "Hermes and Qwen": (f"I will look.\n<tool_call>\n{CALL}\n</tool_call>", (READ,)),
    "Hermes, arguments first": (
        '<tool_call>\n{"arguments": {"path": "a.py"}, "name": "files.read"}\n</tool_call>',
        (READ,),
    ),
    "Hermes, two calls": (
        f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>",
        (READ, READ),
    ),
    "Hermes, two calls in one": (f"<tool_call>\n{CALL}\n{CALL}\n</tool_call>", (READ, READ)),
    "Hermes, in a fence": (f"```xml\n<tool_call>\n{CALL}\n</tool_call>\n```", (READ,)),
    "Qwen2.5-Coder": (f"<tools>\n{CALL}\n</tools>", (READ,)),
    "Qwen3-Coder": (
        (
            "<tool_call>\n<function=files.edit>\n<parameter=path>\na.py\n</parameter>\n"
            "<parameter=old>\n    x = 1\n\n</parameter>\n"
            "<parameter=new>\n    x = 2\n\n</parameter>\n</function>\n</tool_call>"
        ),
        (EDIT,),
    ),
    "Qwen3-Coder, numbers": (
        (
            "<tool_call>\n<function=files.read>\n<parameter=path>\na.py\n</parameter>\n"
            "<parameter=start>\n3\n</parameter>\n"
            "<parameter=lines>\n20\n</parameter>\n</function>\n</tool_call>"
        ),
        (LINES,),
    ),
    "Qwen3-Coder without its first tag": (
        (
            "I look.\n\n<function=files.read>\n<parameter=path>\na.py\n</parameter>\n</function>\n"
            "</tool_call>"
        ),
        (READ,),
    ),
    "Qwen3-Coder without closing tags": (
        (
            "I look.\n\n<function=files.read>\n<parameter=path> a.py\n<parameter=start> 3\n"
            "<parameter=lines> 20\n"
        ),
        (LINES,),
    ),
    "Qwen3-Coder, tags in a value": (
        (
            "<tool_call>\n<function=files.write>\n<parameter=path>\na.xml\n</parameter>\n"
            "<parameter=content>\n"
            "<a></parameter></a> </function> {\n</parameter>\n</function>\n</tool_call>"
        ),
        (Action("files.write", {"path": "a.xml", "content": "<a></parameter></a> </function> {"}),),
    ),
    "Qwen3-Coder without the end of the function": (
        "<function=files.read>\n<parameter=path>\na.py\n</parameter>\nI wait for the result.",
        (READ,),
    ),
    "Qwen3-Coder, two calls": (
        (
            "<tool_call>\n<function=files.read>\n<parameter=path>\na.py\n</parameter>\n"
            "</function>\n</tool_call>\n"
            "<tool_call>\n<function=git.status>\n</function>\n</tool_call>"
        ),
        (READ, Action("git.status", {})),
    ),
    "Seed-OSS": (
        (
            "<seed:tool_call>\n<function=files.read>\n<parameter=path>a.py</parameter>\n"
            "</function>\n"
            "</seed:tool_call>"
        ),
        (READ,),
    ),
    "Claude": (
        (
            '<function_calls>\n<invoke name="files.read">\n<parameter '
            'name="path">a.py</parameter>\n'
            "</invoke>\n</function_calls>"
        ),
        (READ,),
    ),
    "MiniMax": (
        (
            '<minimax:tool_call>\n<invoke name="files.read">\n<parameter '
            'name="path">a.py</parameter>\n<parameter name="start">3</parameter>\n'
            '<parameter name="lines">20</parameter>\n</invoke>\n</minimax:tool_call>'
        ),
        (LINES,),
    ),
    "DeepSeek V3.2": (
        (
            f'<{BAR}DSML{BAR}function_calls>\n<{BAR}DSML{BAR}invoke name="files.read">\n'
            f'<{BAR}DSML{BAR}parameter name="path" string="true">a.py</{BAR}DSML{BAR}parameter>\n'
            f'<{BAR}DSML{BAR}parameter name="start" string="false">3</{BAR}DSML{BAR}parameter>\n'
            f'<{BAR}DSML{BAR}parameter name="lines" string="false">20</{BAR}DSML{BAR}parameter>\n'
            f"</{BAR}DSML{BAR}invoke>\n</{BAR}DSML{BAR}function_calls>"
        ),
        (LINES,),
    ),
    "DeepSeek V3.1": (
        (
            f'<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>files.read<{BAR}tool▁sep{BAR}>{{"path": '
            f'"a.py"}}'
            f"<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>"
        ),
        (READ,),
    ),
    "DeepSeek V3": (
        (
            f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>function<{BAR}tool▁sep{BAR}>files.read\n"
            "```json\n"
            f'{{"path": "a.py"}}\n```<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>'
        ),
        (READ,),
    ),
    "Kimi K2": (
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.files.read:0<|tool_call_argument_begin|>"
            '{"path": "a.py"}<|tool_call_end|><|tool_calls_section_end|>'
        ),
        (READ,),
    ),
    "GLM": (
        (
            "Look.\n<tool_call>files.read\n<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>\n"
            "<arg_key>start</arg_key>\n"
            "<arg_value>3</arg_value>\n<arg_key>lines</arg_key>\n<arg_value>20</arg_value>\n"
            "</tool_call>"
        ),
        (LINES,),
    ),
    "Mistral": (f"[TOOL_CALLS] [{CALL}, {CALL}]", (READ, READ)),
    "Mistral from version 11 on": (
        'Look.[TOOL_CALLS]files.read{"path": "a.py"}[TOOL_CALLS]git.status{}',
        (READ, Action("git.status", {})),
    ),
    "Mistral from version 13 on": (
        '[TOOL_CALLS]files_read[CALL_ID]abc123xyz[ARGS]{"path": "a.py"}',
        (READ,),
    ),
    "Llama 3": ('<|python_tag|>{"name": "files.read", "parameters": {"path": "a.py"}}', (READ,)),
    "Llama 3, two calls": (
        (
            '<|python_tag|>{"type": "function", "name": "files.read", "parameters": {"path": '
            '"a.py"}}; {"type": "function", "name": "files.read", "parameters": {"path": '
            '"a.py"}}<|eom_id|>'
        ),
        (READ, READ),
    ),
    "Llama 3, a function tag": ('<function=files.read>{"path": "a.py"}</function>', (READ,)),
    "Granite": (f"<|tool_call|>[{CALL}]", (READ,)),
    "Phi-4": (f"functools[{CALL}]", (READ,)),
    "Command R": (
        'Action: ```json\n[{"tool_name": "files.read", "parameters": {"path": "a.py"}}]\n```',
        (READ,),
    ),
    "mini-swe-agent": ("THOUGHT: see what changed.\n\n```bash\ngit log -3\n```", (SHELL,)),
    "two shell blocks": (
        "First\n```sh\ngit log -3\n```\nthen\n```shell\ngit log -3\n```\n",
        (SHELL, SHELL),
    ),
    "bash by its name": (
        '<tool_call>{"name": "bash", "arguments": {"command": "git log -3"}}</tool_call>',
        (SHELL,),
    ),
    # Reasoning that the server did not separate.
    "a thought before": (f"<think>I could {ACTIONS} or not.</think>\n{ACTIONS}", (READ,)),
    "a thought without its beginning": (
        (
            f'It may be {{"actions": [{{"tool": "git.log"}}]}} or {{"finish": "no.\n</think>\n\n'
            f"{ACTIONS}"
        ),
        (READ,),
    ),
    "a thought without its end": (f"<think>\nI look at the file.\n\n{ACTIONS}", (READ,)),
    "a thought in two parts": (f"<think>a</think>Well.<think>b</think>{ACTIONS}", (READ,)),
    "a thought of Magistral": (f"[THINK]Is it {BLOCK}?[/THINK]{ACTIONS}", (READ,)),
    "a closing mark at the end": (f"{ACTIONS}\n</think>", (READ,)),
    "a closing mark in a text": (
        (
            'Sure: {"tool": "files.write", "args": {"path": "a.py", "content": "<think> </think> '
            '</tool_call>"}}'
        ),
        (Action("files.write", {"path": "a.py", "content": "<think> </think> </tool_call>"}),),
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_tool_calls_are_read(name: str, mode: ReplyMode) -> None:
    text, actions = CALLS[name]
    assert actions_of(text, mode) == actions


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "text",
    [
        'All done.\n\n{"thought": "t", "finish": "Added it."}\n\nBest regards',
        '{"finish": "A draft."}\n{"finish": "Added it."}',
        '{"thought": "t", "actions": [], "finish": "Added it."}',
        '{"actions": null, "finish": "Added it.", "python": ""}',
        '{"actions": [{"tool": "finish", "args": {"summary": "Added it."}}]}',
        '<tool_call>{"name": "submit", "arguments": {"summary": "Added it."}}</tool_call>',
        '<tool>{"name": "finish", "args": "Added it."}</tool>',
        '{"actions": [{"finish": "Added it."}]}',
        '{"action": "finish", "action_input": "Added it."}',
        '<thought>{"finish": "no"}</thought>{"tool": "submit", "summary": "Added it."}',
        "<function=submit>\n<parameter=summary>\nAdded it.\n</parameter>\n</function>",
        'Not yet <finish>no</finish>, now:</think>{"finish": "Added it."}',
        "<finish>Added it.</finish>",
    ],
)
def test_a_finish_is_read(text: str, mode: ReplyMode) -> None:
    assert reply.read_turn(chat_reply(text), mode, SPECS).finish == "Added it."


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "text",
    [
        (
            '{"thought": "look", "actions": [{"tool": "files.read", "args": {"path": "a.py"}}], '
            '"finish": "Read it."}'
        ),
        f'{{"thought": "look", "actions": [{CALL}]}}\n{{"finish": "Read it."}}',
        f"look {BLOCK}<finish>Read it.</finish>",
    ],
)
def test_a_finish_beside_actions_is_deferred_unless_it_is_the_last_turn(
    text: str, mode: ReplyMode
) -> None:
    assert reply.read_turn(chat_reply(text), mode, SPECS) == Turn("look Read it.", (READ,))
    assert reply.read_turn(chat_reply(text), mode, SPECS, last=True) == Turn(
        "look", finish="Read it."
    )


def test_a_long_thought_is_kept_and_bounded() -> None:
    thought = "word " * 500
    assert (
        reply.read_turn(chat_reply(json.dumps({"thought": thought, "finish": "x"})), "json").thought
        == thought
    )
    assert (
        len(
            reply.read_turn(
                chat_reply(json.dumps({"thought": thought * 10, "finish": "x"})), "json"
            ).thought
        )
        == 4000
    )
    assert len(reply.read_turn(chat_reply(f"{thought * 10}{BLOCK}"), "blocks").thought) == 4000


def test_surrounding_prose_becomes_the_thought_without_markup() -> None:
    text = f"I look.\n<tool_call>\n{CALL}\n</tool_call>\nThen I edit."
    assert reply.read_turn(chat_reply(text), "json", SPECS).thought == "I look. Then I edit."
    assert reply.read_turn(chat_reply(f"[TOOL_CALLS] [{CALL}]"), "json", SPECS).thought == ""


def test_shell_blocks_are_read_only_if_there_are_no_other_calls() -> None:
    text = f"I would run\n```bash\nrm -r build\n```\nbut first:\n{ACTIONS}"
    assert actions_of(text, "json") == (READ,)


@pytest.mark.parametrize(
    ("mode", "text", "reason"),
    [
        ("json", "I run\n```bash\nls\n```", "there is no shell here: use the tools"),
        (
            "json",
            f'{ACTIONS}\n{{"tool": "files.write", "args": {{"path": "a',
            "JSON is broken near",
        ),
        (
            "json",
            (
                f'<tool_call>{CALL}</tool_call><tool_call>{{"name": "files.read", "arguments": '
                f'{{"path"}}}}</tool_call>'
            ),
            "JSON is broken",
        ),
        (
            "json",
            "<tool_call>files.read\n<arg_key>path</arg_key>\n<arg_value>a.py",
            "<arg_value> is not closed",
        ),
        ("json", '[TOOL_CALLS]files.read{"path": ', "JSON is broken"),
        (
            "json",
            '{"actions": {"tool": "files.read", "args": 3}}',
            "args of files.read are no object",
        ),
        ("json", '{"actions": "look"}', "'actions' is a list of 1 to 8 tool calls"),
        (
            "json",
            '{"actions": [{"tool": "files.read"}], "python": "x"}',
            "actions and python; exactly one kind",
        ),
        ("json", '{"tool": "a", "args": {"x": 1' + "0" * 5000 + "}}", "a number that is too long"),
        ("json", '{"tool": "a", "args": {"x": 1e999}}', "too large"),
        (
            "json",
            '{"tool": "a", "args": ' + '{"x": ' * 100 + "1" + "}" * 100 + "}",
            "nested too deeply",
        ),
        ("json", "<think>I only think about it", "there is no JSON object"),
        (
            "json",
            '{"answer": {"text": "x"}}',
            (
                "holds none of actions, finish; exactly one is needed. It has the unknown field "
                "'answer'"
            ),
        ),
        ("blocks", "<tool> </tool>", "a <tool> holds no JSON object"),
        ("blocks", "<python>1</python><python>2</python>", "2 blocks of python"),
        (
            "blocks",
            "".join(f"<tool_call>{CALL}</tool_call>" for _ in range(9)),
            "9 tool calls, and at most 8",
        ),
    ],
)
def test_errors_of_a_reply_are_named(mode: ReplyMode, text: str, reason: str) -> None:
    with pytest.raises(MalformedReplyError) as caught:
        reply.read_turn(chat_reply(text), mode, NO_SHELL)
    assert reason in str(caught.value)
    assert "Right is, for example" in str(caught.value)


def test_lone_surrogates_are_replaced_everywhere() -> None:
    text = (
        r'{"thought": "\ud83d", "actions": [{"tool": "a\ud83d", "args": {"\ud83d": ["\ud83d"]}}]}'
    )
    turn = reply.read_turn(chat_reply(text), "json")
    assert turn == Turn("?", (Action("a?", {"?": ["?"]}),))
    assert reply.read_turn(chat_reply("<finish>\ud83d</finish>"), "blocks").finish == "?"


THOUGHTS = [
    "",
    '<think>It is {score} or {"score": 1}.</think>',
    'Perhaps {"score": 1, "approaches": [], "inputs": []}.\n</think>\n',
]


@pytest.mark.parametrize("thought", THOUGHTS)
@pytest.mark.parametrize(
    "template", ["{}", "Here it is:\n```json\n{}\n```\nI hope it helps.", '{{"result": {}}}']
)
def test_reviews_approaches_and_documents_are_read_among_thoughts_and_prose(
    thought: str, template: str
) -> None:
    def as_reply(data: Any) -> ChatReply:
        return chat_reply(thought + template.format(json.dumps(data)))

    review = {"comment": "c", "met": [{"criterion": 1, "quote": "q"}], "unmet": [2], "score": 8}
    assert reply.read_review(as_reply(review), 2) == reply.ReadReview(8, ((1, "q"),), (2,), "c")
    ideas = ["use a plain loop", "use a lookup table"]
    assert reply.read_approaches(as_reply({"approaches": ideas}), 2) == tuple(ideas)
    plan = {"tasks": [{"id": "a", "role": "dev", "description": "d", "criteria": [1], "after": []}]}
    assert json.loads(reply.read_document(as_reply(plan)).finish or "") == plan
    assert (
        reply.read_document(as_reply({"thought": "t", "finish": "the plan"})).finish == "the plan"
    )


def test_a_bare_list_is_read() -> None:
    text = (
        '<think>["no idea at all"]</think>\n```json\n["use a plain loop", "use a lookup table"]\n'
        "```"
    )
    assert reply.read_approaches(chat_reply(text), 2) == ("use a plain loop", "use a lookup table")


def test_the_code_of_a_function_is_read_without_thoughts() -> None:
    assert whole_text(chat_reply("so <think>or</think> x = 1")) == "so  x = 1"
    assert whole_text(chat_reply("is it x = 2?\n</think>\nx = 1")) == "\nx = 1"
    code = '```python\ndef f(text):\n    return text.partition("</think>")[2] or "<think>"\n```'
    assert whole_text(chat_reply(code)) == code
    assert whole_text(chat_reply(f"<think>```</think>{code}")) == code


@pytest.mark.parametrize(
    "prefix", ["", "Sure:\n```json\n", '<think>{"finish": "no"}</think>', "hm\n</think>"]
)
def test_a_partial_answer_is_shown_while_it_is_written(prefix: str) -> None:
    assert answer_so_far(prefix + '{"thought": "t", "finish": "Added') == "Added"
    assert (
        answer_so_far(prefix + '{"thought": "t", "finish": "Added it."}\n```\nbye') == "Added it."
    )


def test_a_schema_without_a_maximum_has_no_limits_on_strings() -> None:
    for schema in (
        reply.turn_schema(SPECS, python=True, max_string=None),
        reply.document_schema("plan", None),
        reply.document_schema("coach", None),
    ):
        assert "maxLength" not in json.dumps(schema.schema)
        assert json.loads(json.dumps(schema.schema)) == schema.schema
    jsonschema = pytest.importorskip("jsonschema", reason="comes with ray")
    turn = {
        "thought": "t" * 5000,
        "actions": [{"tool": "files.write", "args": {"path": "a.py", "content": "x" * 50_000}}],
    }
    assert jsonschema.Draft202012Validator(
        dict(reply.turn_schema(SPECS, max_string=None).schema)
    ).is_valid(turn)
    assert not jsonschema.Draft202012Validator(dict(reply.turn_schema(SPECS).schema)).is_valid(turn)


MARKS = [
    "<tool>",
    "</tool>",
    "<python>",
    "</python>",
    "<finish>",
    "</finish>",
    "<think>",
    "</think>",
    "[THINK]",
    "<tool_call>",
    "</tool_call>",
    "<function=a>",
    "</function>",
    "<parameter=b>",
    "</parameter>",
    '<invoke name="a">',
    "</invoke>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    f"<{BAR}tool▁call▁begin{BAR}>",
    f"<{BAR}tool▁sep{BAR}>",
    "to=functions.a",
    "<|message|>",
    "<|channel|>analysis<|message|>",
    "```",
    "```bash\n",
    "```json\n",
    "```python\n",
    "\n",
    " ",
    "a",
    "{",
    "}",
    "[",
    "]",
    '"',
    ":",
    ",",
    '{"tool": "a", "args": ',
    '{"name": "a", "arguments": ',
    '{"actions": [',
    '{"finish": ',
    '"x"',
    "\\",
    "\ud83d",
    "1",
    BLOCK,
    ACTIONS,
]


def read_anything(text: str) -> None:
    """Parse a text in every mode. Raises only errors that report it as malformed."""
    for mode in MODES:
        for specs in (SPECS, ()):
            try:
                turn = reply.read_turn(chat_reply(text), mode, specs)
            except MalformedReplyError:
                continue
            assert sum([bool(turn.actions), turn.python is not None, turn.finish is not None]) == 1
            assert len(turn.actions) <= 8
            assert len(turn.thought) <= 4000
            json.dumps(
                [
                    turn.thought,
                    turn.finish,
                    turn.python,
                    *(action.arguments for action in turn.actions),
                ]
            ).encode()
            "".join(action.tool for action in turn.actions).encode()
    for read in (
        lambda r: reply.read_approaches(r, 2),
        lambda r: reply.read_review(r, 2),
        reply.read_document,
    ):
        try:
            read(chat_reply(text))
        except MalformedReplyError:
            continue
    answer_so_far(text)


@given(st.lists(st.sampled_from(MARKS) | st.text(max_size=8), max_size=30).map("".join))
def test_any_text_of_marks_is_a_turn_or_malformed(text: str) -> None:
    read_anything(text)


@given(
    st.lists(st.sampled_from(MARKS), min_size=1, max_size=4).map("".join),
    st.sampled_from(["", "x", '"}]}', "</think>"]),
)
def test_a_text_that_repeats_itself_is_a_turn_or_malformed(piece: str, end: str) -> None:
    read_anything(piece * (2_000 // len(piece)) + end)


HUGE = [
    "{",
    "[",
    '{"a":',
    '{"a":[',
    '[{"a":1},',
    '{"a":1}',
    '{"a',
    "<think>",
    "</think>",
    "```python\n",
    "```bash\n",
    "```",
    "<tool>",
    "<finish>",
    "<tool_call>",
    "<function=a>",
    "<function=a>\n<parameter=b>\n",
    "<function=a><parameter=b></parameter>x",
    "<parameter=b>\n",
    "[TOOL_CALLS]a ",
    " ",
    "\n",
    "<|message|>",
    "to=functions.a ",
    "to=functions.a<|channel|>",
    '{"a": "',
    '</think>{"a":[',
    "<think>{",
    "<tool_call>a<arg_key>b</arg_key><arg_value>",
    "[TOOL_CALLS]a" + " " * 5000,
    '"',
    "\\",
    '{"tool":"a"}',
    f"{BLOCK}\n",
    "</parameter>\n",
    f"<{BAR}tool▁call▁begin{BAR}>a ",
]


@pytest.mark.parametrize("piece", HUGE)
def test_a_huge_text_is_read_in_time_linear_in_its_size(piece: str) -> None:
    """Quadratic searches take many seconds here."""
    huge = piece * (30_000 // len(piece))
    for text in (huge, '{"a":[' * 900 + huge, "<function=a><parameter=b>" + huge):
        with suppress(MalformedReplyError):
            reply.read_turn(chat_reply(text), "json", SPECS)
    for read in (lambda r: reply.read_approaches(r, 2), reply.read_document):
        with suppress(MalformedReplyError):
            read(chat_reply(huge))
    answer_so_far(huge)
