"""Stubs of model servers with the refusals, ignored fields and metadata that their makers document.

    async with served(SERVERS["openai"], answer) as server: ...

`answer` is as for `scripted_model`, without faults, and receives each call as a chat completion,
whatever its API.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from moothall.domain.ids import digest
from moothall.testing.model import Answer, Body, NativeReply, Reply, phase_of, pieces

Refuse = Callable[["ServerKind", Mapping[str, Any]], "Refusal | None"]
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error response."""

    status: int
    body: Any


@dataclass(frozen=True, slots=True)
class ServerKind:
    """A kind of server. `refuse` checks each call. `listed` are additional fields of its model in
    the list of models, `paths` the responses of other paths. `reasoning`: the field of reasoning,
    `think` for tags in the text, '' for none. `obeys`: it supports JSON schemas. `calls`: it calls
    tools; `whole` in one piece with arguments as an object. `swallows`: all text is sent as
    reasoning. `expect` is the reply mode that a probe detects, `window` the detected window.
    """

    name: str
    expect: str
    window: int = 0
    model: str = "coder"
    owner: str = "system"
    listed: Mapping[str, Any] = field(default_factory=dict)
    paths: Mapping[str, Any] = field(default_factory=dict)
    refuse: Refuse = lambda _kind, _body: None
    responses: bool = False
    obeys: bool = True
    calls: str = "parts"
    reasoning: str = ""
    swallows: bool = False


def error(
    message: str,
    *,
    status: int = 400,
    param: str | None = None,
    code: Any = None,
    kind: str = "invalid_request_error",
) -> Refusal:
    """Return an error in OpenAI's format."""
    return Refusal(
        status, {"error": {"message": message, "type": kind, "param": param, "code": code}}
    )


def _openai(kind: ServerKind, body: Mapping[str, Any]) -> Refusal | None:
    """GPT-5.6: reasoning by default, and therefore tools only by the Responses API."""
    if "input" in body:
        return _openai_responses(body)
    temperature = body.get("temperature", 1)
    if "max_tokens" in body:
        return error(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead.",
            param="max_tokens",
            code="unsupported_parameter",
        )
    if temperature != 1:
        return error(
            f"Unsupported value: 'temperature' does not support {temperature} with this model. "
            "Only the default (1) value is supported.",
            param="temperature",
            code="unsupported_value",
        )
    if body.get("tools") and body.get("reasoning_effort") != "none":
        return error(
            f"Function tools with reasoning_effort are not supported for {kind.model} in "
            "/v1/chat/completions. To use function tools, use /v1/responses or set "
            "reasoning_effort to 'none'.",
            param="reasoning_effort",
        )
    return _strict(
        body.get("response_format", {}).get("json_schema", {}).get("schema"), "response_format"
    )


_RESPONSES = frozenset(
    [
        "model",
        "input",
        "max_output_tokens",
        "tools",
        "parallel_tool_calls",
        "stream",
        "store",
        "include",
        "reasoning",
        "text",
        "temperature",
    ]
)


def _openai_responses(body: Mapping[str, Any]) -> Refusal | None:
    if unknown := sorted(set(body) - _RESPONSES):
        return error(
            f"Unknown parameter: '{unknown[0]}'.", param=unknown[0], code="unknown_parameter"
        )
    if "temperature" in body:
        return error(
            "Unsupported parameter: 'temperature' is not supported with this model.",
            param="temperature",
        )
    return _strict(
        body.get("text", {}).get("format", {}).get("schema"), "text.format.schema"
    ) or _check_history(body)


def _strict(schema: Any, param: str) -> Refusal | None:
    if schema is None:
        return None
    if schema.get("type") != "object" or "anyOf" in schema:
        return error(
            "Invalid schema for response_format 'turn': schema must be a JSON Schema of 'type: "
            f'"object"\', got {schema.get("type")!r}.',
            param=param,
        )
    for object_schema in _objects(schema):
        if set(object_schema.get("required", ())) != set(object_schema.get("properties", ())):
            return error(
                "Invalid schema for response_format 'turn': In context=(), 'required' is required "
                "to be supplied and to be an array including every key in properties.",
                param=param,
            )
        if object_schema.get("additionalProperties") is not False:
            return error(
                "Invalid schema for response_format 'turn': 'additionalProperties' is required to "
                "be supplied and to be false.",
                param=param,
            )
    return None


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _objects(item)
    elif isinstance(value, Mapping):
        if value.get("type") == "object":
            yield value
        for item in value.values():
            yield from _objects(item)


def _check_history(body: Mapping[str, Any]) -> Refusal | None:
    """Refuse a call of an earlier reply without the reasoning before it, and an output without its
    call.
    """
    has_reasoning, call_ids = False, set()
    for item in body["input"]:
        item_type = item.get("type", "message")
        if item_type == "reasoning":
            if not item.get("encrypted_content"):
                return error(
                    f"Item with id '{item.get('id')}' not found. Items are not persisted when "
                    "`store` is set to false.",
                    status=404,
                )
            has_reasoning = True
        elif item_type == "function_call":
            if not has_reasoning:
                return error(
                    "Item of type 'function_call' was provided without its required 'reasoning' "
                    "item."
                )
            call_ids.add(item["call_id"])
        elif item_type == "function_call_output":
            if item["call_id"] not in call_ids:
                return error(
                    f"No tool call found for function call output with call_id {item['call_id']}."
                )
        elif item.get("role") == "user":
            has_reasoning = False
    return None


def _anthropic(_kind: ServerKind, body: Mapping[str, Any]) -> Refusal | None:
    """Claude Opus 4.8 at Anthropic's OpenAI-compatible endpoint; it ignores response_format, seed
    and strict.
    """
    if "temperature" in body:
        return error("`temperature` is deprecated for this model.")
    if body.get("max_tokens", 0) > 64_000:  # noqa: PLR2004 - the longest reply
        return error(
            f"max_tokens: {body['max_tokens']} > 64000, which is the maximum allowed number of "
            "output tokens for claude-opus-4-8"
        )
    if any(
        message["role"] != "assistant" and not str(message["content"]).strip()
        for message in body["messages"]
    ):
        return error("messages: text content blocks must be non-empty")
    return None


def _google(_kind: ServerKind, body: Mapping[str, Any]) -> Refusal | None:
    """Gemini's OpenAI-compatible endpoint."""

    def refused(message: str) -> Refusal:
        return Refusal(
            400, [{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}]
        )

    if unknown := sorted({"seed", "cache_salt", "priority"} & set(body)):
        return refused(
            "\n".join(
                f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
                for name in unknown
            )
        )
    for tool in body.get("tools", ()):
        if "additionalProperties" in tool["function"]["parameters"]:
            location = "tools[0].function_declarations[0].parameters"
            return refused(
                'Invalid JSON payload received. Unknown name "additionalProperties" at '
                f"'{location}': Cannot find field."
            )
    for message in body["messages"]:
        for call in message.get("tool_calls", ()):
            if not call.get("extra_content", {}).get("google", {}).get("thought_signature"):
                return refused(
                    "Function call is missing a thought_signature in functionCall parts."
                )
    return None


def _mistral(_kind: ServerKind, body: Mapping[str, Any]) -> Refusal | None:
    known_fields = {
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "stream",
        "stop",
        "response_format",
        "tools",
        "parallel_tool_calls",
    }
    if unknown := sorted(set(body) - known_fields):
        detail = [
            {
                "type": "extra_forbidden",
                "loc": ["body", name],
                "msg": "Extra inputs are not permitted",
            }
            for name in unknown
        ]
        return Refusal(
            422,
            {
                "object": "error",
                "message": {"detail": detail},
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            },
        )
    roles = [message["role"] for message in body["messages"]]
    if ("tool", "user") in itertools.pairwise(roles):
        text = "Unexpected role 'user' after role 'tool'"
        return Refusal(
            400,
            {
                "object": "error",
                "message": text,
                "type": "invalid_request_message_order",
                "code": "3230",
            },
        )
    return _check_mistral_call_ids(body)


def _check_mistral_call_ids(body: Mapping[str, Any]) -> Refusal | None:
    for message in body["messages"]:
        call_ids = [call["id"] for call in message.get("tool_calls", ())]
        for call_id in (
            (*call_ids, message["tool_call_id"]) if "tool_call_id" in message else call_ids
        ):
            if not re.fullmatch("[a-zA-Z0-9]{9}", call_id):
                text = f"Tool call id was {call_id} but must be a-z, A-Z, 0-9, with a length of 9."
                return Refusal(
                    400,
                    {
                        "object": "error",
                        "message": text,
                        "type": "invalid_function_call",
                        "param": None,
                        "code": "3280",
                    },
                )
    return None


def _vllm(kind: ServerKind, body: Mapping[str, Any]) -> Refusal | None:
    """VLLM 0.32, recorded from a real one; without a parser for tool calls if it does not call any.
    A limit that exceeds the rest of the window is lowered silently.
    """
    prompt_tokens, max_tokens = _tokens(body), int(body.get("max_tokens") or 0)
    if max_tokens > kind.window:
        return error(
            f"max_tokens={max_tokens} cannot be greater than max_model_len={kind.window}. Please "
            f"request fewer output tokens. (parameter=max_tokens, value={max_tokens})",
            kind="BadRequestError",
            param="max_tokens",
            code=400,
        )
    if prompt_tokens > kind.window:  # it stops counting at the window
        return error(
            f"This model's maximum context length is {kind.window} tokens. However, your prompt "
            f"contains at least {kind.window + 1} input tokens, which exceeds this limit even "
            "without any output tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={kind.window + 1})",
            kind="BadRequestError",
            param="input_tokens",
            code=400,
        )
    return _vllm_tools(kind, body)


def _vllm_tools(kind: ServerKind, body: Mapping[str, Any]) -> Refusal | None:
    if not body.get("tools") or kind.calls:
        return None
    flags = "--enable-auto-tool-choice and --tool-call-parser to be set"
    return error(f'"auto" tool choice requires {flags}', kind="BadRequestError", code=400)


def _older_vllm(kind: ServerKind, body: Mapping[str, Any]) -> Refusal | None:
    """Earlier versions of vLLM refuse a limit that exceeds the rest of the window."""
    prompt_tokens, max_tokens = _tokens(body), int(body.get("max_tokens") or 0)
    if prompt_tokens + max_tokens > kind.window:
        return error(
            f"'max_tokens' or 'max_completion_tokens' is too large: {max_tokens}. This model's "
            f"maximum context length is {kind.window} tokens and your request has {prompt_tokens} "
            f"input tokens ({max_tokens} > {kind.window} - {prompt_tokens}).",
            kind="BadRequestError",
            param="max_tokens",
            code=400,
        )
    return _vllm_tools(kind, body)


def _llamacpp(kind: ServerKind, body: Mapping[str, Any]) -> Refusal | None:
    """llama.cpp's server; started without --jinja if it calls no tools."""
    if body.get("tools") and not kind.calls:
        return Refusal(
            500,
            {
                "error": {
                    "code": 500,
                    "message": "tools param requires --jinja flag",
                    "type": "server_error",
                }
            },
        )
    if _tokens(body) > kind.window:
        return Refusal(
            400,
            {
                "error": {
                    "code": 400,
                    "message": "the request exceeds the available context size, try increasing it",
                    "type": "exceed_context_size_error",
                    "n_ctx": kind.window,
                }
            },
        )
    return None


def _ollama(kind: ServerKind, body: Mapping[str, Any]) -> Refusal | None:
    if body.get("tools") and not kind.calls:
        return error(f"registry.ollama.ai/library/{kind.model} does not support tools")
    return None


def _openrouter(kind: ServerKind, body: Mapping[str, Any]) -> Refusal | None:
    if body.get("tools") and not kind.calls:
        return Refusal(
            404, {"error": {"message": "No endpoints found that support tool use.", "code": 404}}
        )
    prompt_tokens, max_tokens = _tokens(body), int(body.get("max_tokens") or 0)
    if prompt_tokens + max_tokens > kind.window:  # an error in a body whose status is 200
        return Refusal(
            200,
            {
                "error": {
                    "message": f"This endpoint's maximum context length is {kind.window} tokens. "
                    f"However, you requested about {prompt_tokens + max_tokens} tokens "
                    f"({prompt_tokens} of text input, {max_tokens} in the output). Please reduce "
                    "the length of either one.",
                    "code": 400,
                }
            },
        )
    return None


def _minimal(kind: ServerKind, body: Mapping[str, Any]) -> Refusal | None:
    """A server without tools, schemas, system role or sampling, and with a window of 4,096
    tokens.
    """
    if unknown := sorted(set(body) - {"model", "messages", "max_tokens", "stream"}):
        return error(f"Unrecognized request argument supplied: {unknown[0]}", param=unknown[0])
    if any(message["role"] == "system" for message in body["messages"]):
        return error("System role not supported", kind="BadRequestError")
    if (prompt_tokens := _tokens(body)) + int(body.get("max_tokens") or 0) > kind.window:
        return error(
            f"This model's maximum context length is {kind.window} tokens. However, your messages "
            f"resulted in {prompt_tokens} tokens.",
            code="context_length_exceeded",
        )
    return None


def _tokens(body: Mapping[str, Any]) -> int:
    return len(json.dumps(body.get("messages") or body.get("input"))) // _CHARS_PER_TOKEN


UNFITTING = ServerKind(
    "vllm with another model's parser for reasoning",
    "blocks",
    8192,
    owner="vllm",
    listed={"max_model_len": 8192},
    refuse=_vllm,
    obeys=False,
    calls="",
    reasoning="reasoning",
    swallows=True,
)
"""A misconfigured server, with which no council can work."""

SERVERS: Mapping[str, ServerKind] = {
    kind.name: kind
    for kind in (
        ServerKind(
            "openai",
            "tools",
            model="gpt-6.1-sol",
            owner="system",
            refuse=_openai,
            responses=True,
            reasoning="items",
        ),
        ServerKind(
            "anthropic",
            "tools",
            model="claude-opus-4-8",
            owner="anthropic",
            refuse=_anthropic,
            obeys=False,
        ),
        ServerKind("google", "tools", owner="google", refuse=_google, reasoning="signature"),
        ServerKind(
            "mistral",
            "tools",
            131_072,
            owner="mistralai",
            listed={"max_context_length": 131_072},
            refuse=_mistral,
            reasoning="thinking",
        ),
        ServerKind(
            "vllm",
            "tools",
            32_768,
            owner="vllm",
            listed={"max_model_len": 32_768},
            refuse=_vllm,
            reasoning="reasoning",
        ),
        ServerKind(
            "vllm without a tool parser",
            "json",
            8192,
            owner="vllm",
            listed={"max_model_len": 8192},
            refuse=_vllm,
            calls="",
            reasoning="think",
        ),
        replace(
            UNFITTING, name="vllm with a parser for reasoning alone", reasoning="", swallows=False
        ),
        ServerKind(
            "older vllm",
            "tools",
            32_768,
            owner="vllm",
            listed={"max_model_len": 32_768},
            refuse=_older_vllm,
        ),
        ServerKind(
            "sglang",
            "tools",
            65_536,
            owner="sglang",
            listed={"max_model_len": 65_536},
            reasoning="reasoning_content",
        ),
        ServerKind(
            "llama.cpp",
            "tools",
            16_384,
            owner="llamacpp",
            listed={"meta": {"n_ctx_train": 131_072}},
            paths={"/props": {"default_generation_settings": {"n_ctx": 16_384}}},
            refuse=_llamacpp,
            reasoning="reasoning_content",
        ),
        ServerKind(
            "llama.cpp without --jinja",
            "json",
            16_384,
            owner="llamacpp",
            paths={"/props": {"default_generation_settings": {"n_ctx": 16_384}}},
            refuse=_llamacpp,
            calls="",
        ),
        ServerKind(
            "ollama",
            "tools",
            32_768,
            owner="library",
            paths={
                "/api/version": {"version": "0.12.0"},
                "/api/show": {
                    "parameters": 'num_ctx    32768\nstop "x"',
                    "model_info": {"qwen3.context_length": 262_144},
                },
                "/api/ps": {"models": []},
            },
            refuse=_ollama,
            calls="whole",
            reasoning="reasoning",
        ),
        ServerKind(
            "lm studio",
            "tools",
            12_288,
            owner="organization_owner",
            paths={
                "/api/v0/models": {
                    "data": [
                        {
                            "id": "coder",
                            "max_context_length": 131_072,
                            "loaded_context_length": 12_288,
                        }
                    ]
                }
            },
        ),
        ServerKind(
            "openrouter",
            "tools",
            200_000,
            owner="",
            listed={"context_length": 200_000},
            refuse=_openrouter,
            reasoning="details",
        ),
        ServerKind(
            "bare",
            "blocks",
            4096,
            owner="",
            listed={"max_model_len": 4096},
            refuse=_minimal,
            obeys=False,
            calls="",
        ),
    )
}


_THOUGHT = "First I look at what is asked, then at what is there. " * 30
_SIGNATURE = {"google": {"thought_signature": "c2lnbmF0dXJl"}}


@dataclass(slots=True)
class ScriptedServer:
    """A running server of a kind. `requests` are the accepted calls, as (path, body), `refused` its
    refusals; probes are in neither.
    """

    kind: ServerKind
    answer: Answer
    base_url: str = ""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    probes: int = 0

    def application(self) -> web.Application:
        """Return the server's routes."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._call)
        if self.kind.responses:
            app.router.add_post("/v1/responses", self._call)
        for path in self.kind.paths:
            app.router.add_route("*", path, self._path)
        return app

    async def _models(self, _request: web.Request) -> web.StreamResponse:
        model = {
            "id": self.kind.model,
            "object": "model",
            "owned_by": self.kind.owner,
            **self.kind.listed,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _path(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.kind.paths[request.path])

    async def _call(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        is_probe = phase_of(request.headers) == "probe"
        if refusal := self.kind.refuse(self.kind, body):
            self.refused += [] if is_probe else [refusal]
            return web.json_response(refusal.body, status=refusal.status)
        if is_probe:
            self.probes += 1
        else:
            self.requests.append((request.path, body))
        chat = _as_chat(body) if "input" in body else body
        reply = self._probe(chat) if is_probe else self.answer(chat, request.headers)
        reply = await reply if inspect.isawaitable(reply) else reply
        native = reply if isinstance(reply, NativeReply) else NativeReply(text=str(reply))
        if "input" in body:
            return await _stream(request, self._events(native, body))
        return await _stream(request, self._chunks(native, body))

    def _probe(self, body: Body) -> Reply:
        if body.get("tools"):
            return NativeReply(((body["tools"][0]["function"]["name"], {"wet": True}),))
        return '{"wet": true}' if body.get("response_format") and self.kind.obeys else "Yes, it is."

    def _message(self, reply: NativeReply) -> dict[str, Any]:
        message = reply.message(len(self.requests))
        if self.kind.name == "mistral":
            for call in message.get("tool_calls", ()):
                call["id"] = digest(call["id"])[:9]
        return message

    def _chunks(self, reply: NativeReply, body: Body) -> Iterator[Any]:
        """Yield a reply as this kind streams it."""
        message, field_name = self._message(reply), self.kind.reasoning
        thought = (
            (reply.reasoning or _THOUGHT) if field_name not in {"", "signature", "items"} else ""
        )
        if self.kind.swallows:
            thought, message = str(message["content"] or ""), {"content": None}
        limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or 1_000_000)
        is_cut = len(thought) // _CHARS_PER_TOKEN >= limit
        parts: list[Any] = list(_thought_deltas(field_name, thought[: limit * _CHARS_PER_TOKEN]))
        calls = message.get("tool_calls", ())
        if not is_cut:
            parts += [{"content": part} for part in pieces(message["content"] or "", 40)]
            parts += list(self._call_deltas(calls))
        finish = "length" if is_cut else reply.finish_reason or ("tool_calls" if calls else "stop")
        prompt_tokens = _tokens(body)
        for delta in parts:
            yield {
                "model": self.kind.model,
                "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
            }
        yield {
            "model": self.kind.model,
            "choices": [{"index": 0, "delta": {}, "finish_reason": finish}],
        }
        reply_tokens = len(json.dumps(message)) // _CHARS_PER_TOKEN + 1
        reasoning_tokens = len(thought) // _CHARS_PER_TOKEN
        details = (
            {"completion_tokens_details": {"reasoning_tokens": reasoning_tokens}}
            if reasoning_tokens
            else {}
        )
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": reply_tokens + reasoning_tokens,
            **details,
        }
        yield {
            "model": self.kind.model,
            "choices": [],
            "usage": {**usage, "prompt_tokens_details": {"cached_tokens": prompt_tokens // 2}},
        }
        yield None

    def _call_deltas(self, calls: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for index, call in enumerate(calls):
            function = call["function"]
            if self.kind.calls == "whole":
                yield {
                    "tool_calls": [
                        {"index": 0, "id": call["id"], "type": "function", "function": function}
                    ]
                }
                continue
            extra = {"extra_content": _SIGNATURE} if self.kind.reasoning == "signature" else {}
            yield {
                "tool_calls": [
                    {
                        **call,
                        "index": index,
                        "function": {"name": function["name"], "arguments": ""},
                        **extra,
                    }
                ]
            }
            for part in pieces(function["arguments"], 11):
                yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}

    def _events(self, reply: NativeReply, body: Body) -> Iterator[Any]:
        """Yield a reply as the events of the Responses API."""
        message, number = self._message(reply), len(self.requests)
        output: list[dict[str, Any]] = [
            {
                "type": "reasoning",
                "id": f"rs_{number}",
                "summary": [],
                "encrypted_content": f"sealed-{number}",
                "status": None,
            }
        ]
        if message["content"]:
            content = [{"type": "output_text", "text": message["content"], "annotations": []}]
            output.append(
                {
                    "type": "message",
                    "id": f"msg_{number}",
                    "role": "assistant",
                    "status": "completed",
                    "content": content,
                }
            )
        for index, call in enumerate(message.get("tool_calls", ())):
            item = {
                "type": "function_call",
                "id": f"fc_{number}_{index}",
                "call_id": call["id"],
                "status": "completed",
                **call["function"],
            }
            output.append(item)
        yield {
            "type": "response.created",
            "response": {"model": self.kind.model, "status": "in_progress", "output": []},
        }
        for part in pieces(message["content"] or "", 40):
            yield {"type": "response.output_text.delta", "delta": part}
        for index, item in enumerate(output):
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        prompt_tokens = _tokens(body)
        usage = {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": prompt_tokens // 2},
            "output_tokens": 50,
            "output_tokens_details": {"reasoning_tokens": 30},
        }
        response = {
            "model": self.kind.model,
            "status": "completed",
            "output": output,
            "usage": usage,
            "error": None,
            "incomplete_details": None,
        }
        yield {"type": "response.completed", "response": response}


def _thought_deltas(name: str, thought: str) -> Iterator[dict[str, Any]]:
    if name == "think" and thought:
        yield from ({"content": part} for part in pieces(f"{thought}</think>\n\n", 60))
        return
    for part in pieces(thought, 60):
        if name == "details":
            yield {
                "reasoning": part,
                "reasoning_details": [
                    {"type": "reasoning.text", "index": 0, "text": part, "format": "unknown"}
                ],
            }
        elif name == "thinking":
            yield {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": part}]}]}
        else:
            yield {name: part}


def _as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a body of the Responses API to chat completions."""
    messages: list[dict[str, Any]] = []
    for item in body["input"]:
        item_type = item.get("type", "message")
        if item_type == "function_call_output":
            messages.append(
                {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            )
        elif item_type == "function_call":
            call = {
                "id": item["call_id"],
                "function": {"name": item["name"], "arguments": item["arguments"]},
            }
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif item_type == "message":
            content = item["content"]
            text = (
                content if isinstance(content, str) else "".join(part["text"] for part in content)
            )
            messages.append({"role": item["role"], "content": text})
    text_format = body.get("text", {}).get("format")
    return {
        "model": body["model"],
        "messages": messages,
        **({"max_tokens": body["max_output_tokens"]} if "max_output_tokens" in body else {}),
        **(
            {"response_format": {"type": "json_schema", "json_schema": text_format}}
            if text_format
            else {}
        ),
        "tools": [{"type": "function", "function": tool} for tool in body.get("tools", ())],
    }


async def _stream(request: web.Request, events: Iterator[Any]) -> web.StreamResponse:
    """Send events; None ends the stream as in chat completions. A comment keeps the connection open
    meanwhile.
    """
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b": PROCESSING\n\n")
    for event in events:
        content = b"[DONE]" if event is None else json.dumps(event).encode()
        await response.write(b"data: " + content + b"\n\n")
    await response.write_eof()
    return response


@asynccontextmanager
async def served(kind: ServerKind, answer: Answer) -> AsyncIterator[ScriptedServer]:
    """Run a server of a kind on a free port until the context ends."""
    server = ScriptedServer(kind, answer)
    runner = web.AppRunner(
        server.application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.2
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield server
    finally:
        await runner.cleanup()
