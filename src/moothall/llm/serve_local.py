"""The child process of the small local model: `python -m moothall.llm.serve_local`.

Reads one JSON line from stdin (the fields of `ServerParameters`), loads the model, writes one JSON
line `{"port": PORT}` to stdout, and serves the OpenAI-compatible protocol on the loopback until
stdin closes, which happens however the parent ends. All other output goes to stderr.

A proxy on the loopback adds the features that the engine lacks. It checks the key and the model's
name (the engine ignores a wrong name), chooses the slot of each call and streams the response. If
the caller disconnects, the call in the engine is cancelled.
"""

from __future__ import annotations

import asyncio
import ctypes
import hmac
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler

from moothall.llm.kv_cache_slots import KvCacheSlots, LocalEngine

_MAX_BODY_BYTES = 16_000_000
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_WARNINGS = 2  # a log level of the engine


@dataclass(slots=True)
class LocalProxy:
    """The proxy before the engine."""

    session: aiohttp.ClientSession
    states: KvCacheSlots
    name: str
    api_key: str

    def application(self) -> web.Application:
        """Return the server's routes."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._authorize])
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/tokenize", self._tokenize)
        return app

    async def _models(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {
                "object": "list",
                "data": [{"id": self.name, "object": "model", "owned_by": "moothall"}],
            }
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await request.json()
        except ValueError:
            return _error(400, "the body is not JSON")
        if not isinstance(body, dict) or not _are_messages(body.get("messages")):
            return _error(
                400, "`messages` must be a list of objects with the strings `role` and `content`"
            )
        if body.get("model") not in {self.name, None}:
            return _error(
                404, f"the model `{body['model']}` does not exist; this server has `{self.name}`"
            )
        if body.get("n", 1) != 1:
            return _error(400, "`n` must be 1; repeat the request for another reply")
        async with self.states.slot_for(body["messages"]) as slot:
            return await self._forward(
                request, {**body, "id_slot": slot.number, "cache_prompt": True}
            )

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        """Return the number of tokens, for the request format of vLLM and of llama.cpp."""
        try:
            body = await request.json()
        except ValueError:
            return _error(400, "the body is not JSON")
        text = body.get("prompt", body.get("content")) if isinstance(body, dict) else None
        if not isinstance(text, str):
            return _error(400, "`prompt` must be a string")
        try:
            async with self.session.post("/tokenize", json={"content": text}) as reply:
                tokens = (await reply.json())["tokens"]
        except (aiohttp.ClientError, ValueError, KeyError) as error:
            return _error(503, f"the engine did not answer: {error}")
        return web.json_response({"count": len(tokens)})

    async def _forward(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        try:
            async with self.session.post("/v1/chat/completions", json=body) as reply:
                response = web.StreamResponse(
                    status=reply.status, headers={"Content-Type": reply.headers["Content-Type"]}
                )
                await response.prepare(request)
                async for piece in reply.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
        except aiohttp.ClientError as error:
            if response is None:
                return _error(503, f"the engine did not answer: {error}")
            if request.transport is not None:  # the caller must see that the response is incomplete
                request.transport.abort()
        return response

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        authorization = request.headers.get("Authorization", "")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self.api_key}".encode()):
            return _error(401, "wrong or missing API key")
        return await handler(request)


def _are_messages(messages: object) -> bool:
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
            for message in messages
        )
    )


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


@asynccontextmanager
async def serve_proxy(
    engine: str,
    engine_key: str,
    *,
    name: str,
    api_key: str,
    slots: int,
    states: Path,
    salt: str,
    port: int = 0,
) -> AsyncIterator[int]:
    """Serve a proxy for the engine at the URL `engine` on `port`, 0 for a free one; yield the
    port.
    """
    async with aiohttp.ClientSession(
        engine,
        headers={"Authorization": f"Bearer {engine_key}"},
        # The engine may close connections at any time; a new one costs nothing on the loopback.
        connector=aiohttp.TCPConnector(force_close=True),
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:
        cache_slots = KvCacheSlots(LocalEngine(session, name), states, slots, salt)
        proxy = LocalProxy(session, cache_slots, name, api_key)
        runner = web.AppRunner(
            proxy.application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.5
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()
            cache_slots.close()


@dataclass(frozen=True, slots=True)
class ServerParameters:
    """The parameters of the child process. It works on `slots` calls at a time, each with a window
    of `context_tokens`. `states` is the folder for saved prompt states; `port` is 0 for a free one.
    """

    model: str
    name: str
    threads: int
    slots: int
    context_tokens: int
    api_key: str
    states: str
    port: int = 0


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, even while the model is loading."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start_engine(parameters: ServerParameters, key: str) -> Any:
    # On a busy machine, threads that spin take CPU time from the threads that they wait for.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xllamacpp  # an extra; the parent has checked that it is installed

    engine_params = xllamacpp.CommonParams()
    engine_params.model.path = parameters.model
    engine_params.model_alias = {parameters.name}
    engine_params.hostnames = ["127.0.0.1"]
    engine_params.port = 0
    engine_params.api_keys = [key]
    engine_params.ui = False
    engine_params.verbosity = _WARNINGS
    engine_params.fit_params = False
    engine_params.n_parallel = parameters.slots
    engine_params.n_ctx = parameters.context_tokens * parameters.slots
    engine_params.cpuparams.n_threads = parameters.threads
    engine_params.cpuparams_batch.n_threads = parameters.threads
    # The proxy stores prompt states itself, so that slots can share them.
    engine_params.cache_ram_mib = 0
    engine_params.endpoint_slots = True
    engine_params.slot_save_path = f"{parameters.states}/"
    try:
        return xllamacpp.Server(engine_params)
    except RuntimeError as error:
        sys.exit(f"the engine cannot load {parameters.model}: {error}")


async def _wait_for_parent_end() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, lambda: ended.set() if not os.read(0, 4096) else None)
    await ended.wait()


async def _serve(parameters: ServerParameters, output: Any) -> None:
    key = secrets.token_hex(16)
    engine = _start_engine(parameters, key)
    async with serve_proxy(
        engine.listening_address,
        key,
        name=parameters.name,
        api_key=parameters.api_key,
        slots=parameters.slots,
        states=Path(parameters.states),
        salt=f"{parameters.model} {parameters.context_tokens}",
        port=parameters.port,
    ) as port:
        output.write(json.dumps({"port": port}) + "\n")
        output.flush()
        await _wait_for_parent_end()


def main() -> None:
    """Serve until stdin closes."""
    _die_with_parent()
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    line = b""
    while not line.endswith(b"\n"):  # unbuffered, since the next read must see the closed pipe
        line += os.read(0, 1) or b"\n"
    asyncio.run(_serve(ServerParameters(**json.loads(line)), output))
    # The engine's threads may still be processing a call that no caller waits for.
    os._exit(0)


if __name__ == "__main__":
    main()
