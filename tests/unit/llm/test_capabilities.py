"""Capabilities learned from refusals, with the messages of real servers."""

from __future__ import annotations

from typing import Any

import pytest

from moothall.llm.capabilities import Capabilities, is_overflow, read_window
from moothall.llm.server_errors import Rejected

BODY: dict[str, Any] = {
    "model": "seed-coder-stop",
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
    "max_tokens": 8000,
    "temperature": 0.5,
    "seed": 1,
    "stop": ["x"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [],
    "parallel_tool_calls": True,
}


def refuse(*messages: str, status: int = 400, **named: str) -> Capabilities:
    capabilities = Capabilities()
    for message in messages:
        capabilities.learn_from_refusal(
            Rejected(status, message, **named), capabilities.adapt(BODY)
        )
    return capabilities


@pytest.mark.parametrize(
    ("message", "omitted"),
    [
        ("Unsupported value: 'temperature' does not support 0.5 with this model.", {"temperature"}),
        ("`temperature` is deprecated for this model.", {"temperature"}),
        ('Invalid JSON payload received. Unknown name "seed": Cannot find field.', {"seed"}),
        (
            (
                "[{'type': 'extra_forbidden', 'loc': ['body', 'stream_options'], 'msg': 'Extra "
                "inputs are not permitted'}]"
            ),
            {"stream_options"},
        ),
        ("Parallel tool calls are not supported.", {"parallel_tool_calls"}),
        ("Unsupported parameter: 'stop' is not supported with this model.", {"stop"}),
        ("Streaming is not supported for this model", {"stream", "stream_options"}),
        ("the model seed-coder-stop is not happy, stop it", set()),
        ("the prompt names no seedling", set()),
    ],
)
def test_named_parameters_are_omitted(message: str, omitted: set[str]) -> None:
    assert BODY.keys() - refuse(message).adapt(BODY).keys() == omitted


def test_the_parameter_field_of_an_error_takes_precedence() -> None:
    capabilities = refuse("temperature and seed cannot be used together", param="seed")
    assert BODY.keys() - capabilities.adapt(BODY).keys() == {"seed"}


@pytest.mark.parametrize(
    ("messages", "name", "value"),
    [
        (
            ["Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."],
            "max_completion_tokens",
            8000,
        ),
        (
            [
                (
                    "max_tokens: 8000 > 4096, which is the maximum allowed number of output tokens "
                    "for claude-3-opus-20240229"
                )
            ],
            "max_tokens",
            4096,
        ),
        (
            [
                (
                    "max_tokens is too large: 8000. This model supports at most 4,096 completion "
                    "tokens, whereas you provided 8000."
                )
            ],
            "max_tokens",
            4096,
        ),
        (["`max_tokens` must be less than or equal to `4096`"], "max_tokens", 4096),
        (["Unknown parameter: 'max_tokens'", "Unknown parameter: 'max_completion_tokens'"], "", 0),
    ],
)
def test_the_limit_of_a_reply_is_translated(messages: list[str], name: str, value: int) -> None:
    adapted = refuse(*messages).adapt(BODY)
    assert {key: adapted[key] for key in adapted if key.startswith("max_")} == (
        {name: value} if name else {}
    )


@pytest.mark.parametrize(
    ("message", "window"),
    [
        (
            (
                "This model's maximum context length is 16384 tokens. However, you requested "
                "122946 tokens (112946 in the messages, 10000 in the completion)."
            ),
            16_384,
        ),
        (
            (
                "This model's maximum context length is 128000 tokens. However, you requested 8000 "
                "output tokens and your prompt contains at least 120001 input tokens."
            ),
            128_000,
        ),
        ("max_tokens must be at least 1, got -186.", 0),
        ("prompt is too long: 210000 tokens > 200000 maximum", 200_000),
        (
            (
                "input length and `max_tokens` exceed context limit: 198000 + 8000 > 200000, "
                "decrease input length or `max_tokens` and try again"
            ),
            200_000,
        ),
        (
            (
                "The input token count (1200000) exceeds the maximum number of tokens allowed "
                "(1048576)."
            ),
            1_048_576,
        ),
        (
            (
                "Prompt contains 33000 tokens and 0 draft tokens, too large for model with 32768 "
                "maximum context length"
            ),
            32_768,
        ),
        ("The input (4000 tokens) is longer than the model's context length (2048 tokens).", 2048),
        ("the request exceeds the available context size, try increasing it", 0),
    ],
)
def test_an_overflow_changes_no_parameters(message: str, window: int) -> None:
    capabilities = refuse(message)
    assert is_overflow(Rejected(400, message))
    assert read_window(message) == window
    assert capabilities.window == window
    assert capabilities.adapt(BODY) == Capabilities().adapt(BODY)


def test_the_remaining_tokens_are_used_but_a_lower_bound_is_not_trusted() -> None:
    capabilities = Capabilities()
    exact = (
        "This model's maximum context length is 16384 tokens. However, you requested 20000 tokens "
        "(12000 in the messages, 8000 in the completion)."
    )
    bound = (
        "maximum context length is 16384 tokens. However, you requested 8000 output tokens and "
        "your prompt contains at least 8385 input tokens"
    )
    assert capabilities.available_reply_tokens(Rejected(400, exact), BODY) == 4384
    assert capabilities.available_reply_tokens(Rejected(400, bound), BODY) == 2000
    assert (
        capabilities.available_reply_tokens(
            Rejected(400, "prompt is too long: 210000 tokens > 200000 maximum"), BODY
        )
        == 0
    )


@pytest.mark.parametrize(
    "message",
    [
        "System role not supported",
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        "Conversation roles must alternate user/assistant/user/assistant/...",
    ],
)
def test_a_refused_system_message_is_merged_into_the_first_one(message: str) -> None:
    assert refuse(message).adapt(BODY)["messages"] == [{"role": "user", "content": "s\n\nu"}]


def test_a_schema_is_made_strict_and_then_omitted() -> None:
    alternatives = [
        {
            "type": "object",
            "properties": {name: {"type": "string", "maxLength": 9}},
            "required": [name],
        }
        for name in ("a", "b")
    ]
    body = {
        **BODY,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "turn", "strict": True, "schema": {"anyOf": alternatives}},
        },
    }
    capabilities, refusal = (
        Capabilities(),
        Rejected(400, "Invalid schema for response_format 'turn': anyOf at the root"),
    )
    capabilities.learn_from_refusal(refusal, capabilities.adapt(body))
    strict = capabilities.adapt(body)["response_format"]["json_schema"]["schema"]
    either = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert strict == {
        "type": "object",
        "properties": {"a": either, "b": either},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    capabilities.learn_from_refusal(refusal, capabilities.adapt(body))
    assert "response_format" not in capabilities.adapt(body)


def test_long_call_ids_are_shortened_after_a_refusal() -> None:
    calls = [
        {"id": "call_0fypS1hVX", "type": "function", "function": {"name": "x", "arguments": "{}"}}
    ]
    messages = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "", "tool_call_id": "call_0fypS1hVX"},
    ]
    capabilities = refuse(
        "Tool call id was call_0fypS1hVX but must be a-z, A-Z, 0-9, with a length of 9."
    )
    first, second = capabilities.adapt({**BODY, "messages": messages})["messages"]
    assert first["tool_calls"][0]["id"] == second["tool_call_id"]
    assert len(second["tool_call_id"]) == 9


def test_refused_reasoning_is_not_sent_back() -> None:
    capabilities = refuse("messages.1.reasoning_content: Extra inputs are not permitted")
    body = {**BODY, "messages": [{"role": "assistant", "content": "x", "reasoning_content": "why"}]}
    assert capabilities.adapt(body)["messages"] == [{"role": "assistant", "content": "x"}]
    assert refuse("Missing `reasoning_content` in the assistant message").sends_reasoning


@pytest.mark.parametrize(
    "message",
    [
        (
            "Function tools with reasoning_effort are not supported for gpt-5.6 in "
            "/v1/chat/completions. To use function tools, use /v1/responses."
        ),
        "This model is only supported in v1/responses and not in v1/chat/completions.",
    ],
)
def test_a_model_that_needs_the_responses_api_is_called_there(message: str) -> None:
    assert refuse(message, status=404).api == "responses"
    fixed = Capabilities(api_fixed=True)
    fixed.learn_from_refusal(Rejected(400, message), BODY)
    assert fixed.api == "chat"
