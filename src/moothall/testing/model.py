"""A real HTTP server with the OpenAI-compatible protocol whose replies a test scripts.

    async with scripted_model(lambda body, headers: "hello") as server:
        ... server.base_url, server.requests

`answer(body, headers)` returns the text, a `NativeReply` with tool calls, or a `Fault`. It may be a
coroutine function, and may use `phase_of(headers)` and `seat_of(headers)`. The reply is streamed if
the client requests a stream.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakSet

from aiohttp import web

Body = Mapping[str, Any]
Headers = Mapping[str, str]

FaultKind = Literal[
    "status",
    "drop",
    "cut",
    "unfinished",
    "broken_json",
    "empty",
    "endless",
    "silent",
    "content_type",
    "length",
]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, after `delay` seconds and after `text` was sent (if there is a stream to send it
    on).

    status: an error response with `status`, `retry_after` and `message` (status 200: only the
    delay, then `text`) · drop: the connection closes before any response · cut: it closes in the
    middle of the stream · unfinished: the stream ends properly but without a finish_reason ·
    broken_json: a chunk is not JSON · empty: finished, without text · endless: the stream never
    ends · silent: the stream stops but stays open · content_type: a web page instead of a response
    · length: the text, cut by the token limit.
    """

    kind: FaultKind
    text: str = ""
    status: int = 500
    retry_after: str = ""
    message: str = "scripted fault"
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class NativeReply:
    """A reply with native tool calls, as (name, arguments); arguments that are a text are sent
    unchanged. `ids` are those of the calls, generated if there are none. `reasoning` is sent as
    `reasoning_content` before anything else.
    """

    calls: tuple[tuple[str, Mapping[str, Any] | str], ...] = ()
    text: str = ""
    reasoning: str = ""
    ids: tuple[str, ...] = ()
    finish_reason: str = ""

    def message(self, number: int) -> dict[str, Any]:
        """Return the reply as an assistant's message; `number` makes its ids distinct."""
        ids = self.ids or tuple(f"call_{number}_{index}" for index in range(len(self.calls)))
        calls = [
            {
                "id": call_id,
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for call_id, (name, arguments) in zip(ids, self.calls, strict=True)
        ]
        return {
            "role": "assistant",
            "content": self.text or None,
            **({"reasoning_content": self.reasoning} if self.reasoning else {}),
            **({"tool_calls": calls} if calls else {}),
        }


Reply = str | Fault | NativeReply
Answer = Callable[[dict[str, Any], Headers], "Reply | Awaitable[Reply]"]


@dataclass(frozen=True, slots=True)
class Call:
    """A chat request. `call_id` is its X-Request-Id, empty if it had none."""

    call_id: str
    body: dict[str, Any]
    headers: Headers

    @property
    def prompt(self) -> str:
        """The text of all messages, in order."""
        return _prompt(self.body)


def call_id_of(headers: Headers) -> str:
    """Return <task_id>/<seat>/<phase>/<round>.<turn>[.<n>], '' if there is no id."""
    return headers.get("X-Request-Id", "")


def seat_of(headers: Headers) -> str:
    """Return the calling seat; `-` if the call belongs to none."""
    return (call_id_of(headers).split("/") + [""] * 4)[1]


def phase_of(headers: Headers) -> str:
    """Return the phase of the call: plan, propose, critique, revise, verify, derive or coach."""
    return (call_id_of(headers).split("/") + [""] * 4)[2]


def step_of(headers: Headers) -> str:
    """Return the last part of the call id: <round>.<turn>[.<n>]."""
    return (call_id_of(headers).split("/") + [""] * 4)[3]


@dataclass(slots=True)
class ScriptedModel:
    """The running server. `requests` has all chat calls except the client's schema probes (in
    `probes`).

    `schemas` False: a json_schema is answered with 400, as by a server without support.
    `chunk_delay` is the time in seconds between two chunks of `chunk_chars` characters; without a
    delay they are sent in one write. `in_flight` is the number of running calls, `peak` its
    maximum, `connections` the number of connections with a call. `streams` False: complete replies
    only. `counts` False: no usage is sent; `details` False: no cached tokens either. `tools`: the
    probe for native tool calls is answered by a call. `owner` is the owner of the listed models.
    `metrics` is the response of /metrics (404 if it is empty), `tokenize` computes that of
    /tokenize from a body (404 without it), which was called `tokenized` times.
    """

    answer: Answer
    models: tuple[str, ...] = ("scripted",)
    schemas: bool = True
    api_key: str = ""
    tools: bool = False
    chunk_chars: int = 48
    chunk_delay: float = 0.0
    base_url: str = ""
    requests: list[Call] = field(default_factory=list)
    probes: list[Call] = field(default_factory=list)
    model_lists: int = 0
    peak: int = 0
    connections: int = 0
    streams: bool = True
    counts: bool = True
    details: bool = True
    owner: str = "moothall"
    metrics: str = ""
    tokenize: Callable[[Mapping[str, Any]], Any] | None = None
    tokenized: int = 0
    probe_answer: str = '{"wet": true}'
    in_flight: int = 0
    _blocks: set[int] = field(default_factory=set)
    _seen_connections: WeakSet[asyncio.BaseTransport] = field(default_factory=WeakSet)

    def application(self) -> web.Application:
        """Return the server's routes."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._serve_metrics)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/tokenize", self._serve_tokenize)
        return app

    async def _serve_tokenize(self, request: web.Request) -> web.StreamResponse:
        self.tokenized += 1
        if refusal := self._check_key(request):
            return refusal
        if self.tokenize is None:
            return web.Response(status=404)
        return web.json_response(self.tokenize(await request.json()))

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self.model_lists += 1
        if refusal := self._check_key(request):
            return refusal
        models = [{"id": name, "object": "model", "owned_by": self.owner} for name in self.models]
        return web.json_response({"object": "list", "data": models})

    async def _serve_metrics(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text=self.metrics) if self.metrics else web.Response(status=404)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._check_key(request):
            return refusal
        if request.transport is not None and request.transport not in self._seen_connections:
            self._seen_connections.add(request.transport)
            self.connections += 1
        body = await request.json()
        call = Call(request.headers.get("X-Request-Id", ""), body, dict(request.headers))
        response_format = body.get("response_format", {})
        is_probe = phase_of(request.headers) == "probe"
        (self.probes if is_probe else self.requests).append(call)
        if body.get("model") not in self.models:
            return _error(404, f"The model `{body.get('model')}` does not exist.")
        if response_format.get("type") == "json_schema" and not self.schemas:
            return _error(400, "response_format of type json_schema is not supported")
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            reply = self._probe(body) if is_probe else self.answer(body, request.headers)
            if inspect.isawaitable(reply):
                reply = await reply
            if isinstance(reply, NativeReply):
                return await self._send_native(request, body, reply)
            fault = Fault("status", status=200, text=reply) if isinstance(reply, str) else reply
            return await self._send_text(request, body, fault)
        finally:
            self.in_flight -= 1

    def _probe(self, body: Body) -> Reply:
        if not body.get("tools"):
            return self.probe_answer
        if not self.tools:
            return "Yes."
        return NativeReply(((body["tools"][0]["function"]["name"], {"wet": True}),))

    async def _send_native(
        self, request: web.Request, body: Body, reply: NativeReply
    ) -> web.StreamResponse:
        message = reply.message(len(self.requests))
        finish = reply.finish_reason or ("tool_calls" if reply.calls else "stop")
        usage = self._usage(body, json.dumps(message))
        if not (self.streams and body.get("stream")):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return web.json_response({"model": body["model"], "choices": [choice], "usage": usage})
        deltas: list[dict[str, Any]] = [
            {"reasoning_content": part} for part in pieces(reply.reasoning, self.chunk_chars)
        ]
        deltas += [{"content": part} for part in pieces(reply.text, self.chunk_chars)]
        for index, call in enumerate(message.get("tool_calls", ())):
            arguments = call["function"]["arguments"]
            deltas.append(
                {
                    "tool_calls": [
                        {**call, "index": index, "function": {**call["function"], "arguments": ""}}
                    ]
                }
            )
            deltas += [
                {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
                for part in pieces(arguments, self.chunk_chars)
            ]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chunks: list[dict[str, Any]] = [
            {"index": 0, "delta": delta, "finish_reason": None} for delta in deltas
        ]
        chunks.append({"index": 0, "delta": {}, "finish_reason": finish})
        for chunk in chunks:
            await response.write(_event({"model": body["model"], "choices": [chunk]}))
        if self.counts:
            await response.write(_event({"model": body["model"], "choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _check_key(self, request: web.Request) -> web.Response | None:
        if self.api_key and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return _error(401, "wrong API key")
        return None

    async def _send_text(
        self, request: web.Request, body: Body, fault: Fault
    ) -> web.StreamResponse:
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.kind == "drop":
            _abort_connection(request)
            return web.Response()
        if fault.kind == "content_type":
            return web.Response(text="<html>It works!</html>", content_type="text/html")
        if fault.kind == "status" and fault.status != web.HTTPOk.status_code:
            return _error(fault.status, fault.message, fault.retry_after)
        if not (self.streams and body.get("stream")):
            return web.json_response(self._complete_reply(body, fault))
        return await self._stream(request, body, fault)

    def _complete_reply(self, body: Body, fault: Fault) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": fault.text},
            "finish_reason": _finish(fault),
        }
        return {
            "object": "chat.completion",
            "model": body["model"],
            "choices": [choice],
            "usage": self._usage(body, fault.text),
        }

    async def _stream(self, request: web.Request, body: Body, fault: Fault) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        def delta(text: str, finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
            return _event(
                {"object": "chat.completion.chunk", "model": body["model"], "choices": [choice]}
            )

        chunks = [delta(part) for part in pieces(fault.text, self.chunk_chars)]
        if self.chunk_delay:
            for chunk in chunks:
                await response.write(chunk)
                await asyncio.sleep(self.chunk_delay)
        elif chunks:
            await response.write(b"".join(chunks))
        if fault.kind == "cut":
            _abort_connection(request)
            return response
        if fault.kind == "silent":
            await asyncio.Event().wait()
        while fault.kind == "endless":
            await response.write(delta("and so on " * 100))
        if fault.kind == "broken_json":
            await response.write(b'data: {"choices": [{"delta": \n\n')
        elif fault.kind != "unfinished":
            sends_usage = self.counts and body.get("stream_options", {}).get("include_usage")
            usage = (
                _event(
                    {"model": body["model"], "choices": [], "usage": self._usage(body, fault.text)}
                )
                if sends_usage
                else b""
            )
            await response.write(delta("", _finish(fault)) + usage + b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _usage(self, body: Body, text: str) -> dict[str, Any]:
        """Count four characters as a token, and blocks of the beginning shared with earlier prompts
        as cached.
        """
        prompt = _prompt(body)
        cached, chain, is_cached = 0, 0, True
        for start in range(0, len(prompt) - 64, 64):
            chain = hash((chain, prompt[start : start + 64]))
            is_cached = is_cached and chain in self._blocks
            cached += 16 if is_cached else 0
            self._blocks.add(chain)
        return {
            "prompt_tokens": len(prompt) // 4 + 1,
            "completion_tokens": len(text) // 4 + 1,
            "total_tokens": len(prompt) // 4 + len(text) // 4 + 2,
            **({"prompt_tokens_details": {"cached_tokens": cached}} if self.details else {}),
        }


def _prompt(body: Body) -> str:
    return "\n".join(str(message.get("content") or "") for message in body["messages"])


def pieces(text: str, size: int) -> list[str]:
    """Split a text into pieces of `size` characters."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def _finish(fault: Fault) -> str:
    return "length" if fault.kind == "length" else "stop"


def _event(data: object) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def _error(status: int, message: str, retry_after: str = "") -> web.Response:
    headers = {"Retry-After": retry_after} if retry_after else {}
    return web.json_response(
        {"error": {"message": message, "type": "scripted", "code": status}},
        status=status,
        headers=headers,
    )


def _abort_connection(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


@asynccontextmanager
async def scripted_model(
    answer: Answer,
    *,
    models: tuple[str, ...] = ("scripted",),
    schemas: bool = True,
    api_key: str = "",
    tools: bool = False,
    chunk_delay: float = 0.0,
    owner: str = "",
    metrics: str = "",
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncIterator[ScriptedModel]:
    """Serve on `port` (0: a free one) until the context ends. Without `owner`, a server with
    `tools` has no known owner, and any other one looks like the local model.
    """
    owner = owner or ("scripted" if tools else "moothall")
    server = ScriptedModel(
        answer,
        models,
        schemas,
        api_key,
        tools,
        chunk_delay=chunk_delay,
        owner=owner,
        metrics=metrics,
    )
    runner = web.AppRunner(
        server.application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.2
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        server.base_url = f"http://{host}:{runner.addresses[0][1]}/v1"
        yield server
    finally:
        await runner.cleanup()
