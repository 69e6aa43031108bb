"""The child process of the small local model: `python -m moothall.llm.serve_local`.

Reads one JSON line from stdin (the fields of `Serve`), loads the model, writes one JSON line
`{"port": PORT}` to stdout and serves the OpenAI-compatible protocol on the loopback until stdin
closes,
which happens when the parent ends, however it ends. All other output goes to stderr.

A proxy on the loopback adds what the engine lacks. It checks the key and the model's name (the
engine ignores a wrong one), chooses the slot of each call and streams the answer. The call in the
engine ends if the caller disconnects.
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

_MAX_BODY = 16_000_000
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_WARNINGS = 2  # of the server's log levels


@dataclass(slots=True)
class LocalProxy:
    """The routes."""

    session: aiohttp.ClientSession
    states: KvCacheSlots
    name: str
    api_key: str

    def application(self) -> web.Application:
        """Return the server's routes."""
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[self._authorise])
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
                400, "`messages` is a list of objects with `role` and `content`, both texts"
            )
        if body.get("model") not in {self.name, None}:
            return _error(
                404, f"The model `{body['model']}` does not exist; there is `{self.name}`."
            )
        if body.get("n", 1) != 1:
            return _error(400, "`n` is 1 here: ask again for another answer")
        async with self.states.slot_for(body["messages"]) as slot:
            return await self._pass_on(
                request, {**body, "id_slot": slot.number, "cache_prompt": True}
            )

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        """As vLLM and llama.cpp name it; how many there are is all that is said."""
        try:
            body = await request.json()
        except ValueError:
            return _error(400, "the body is not JSON")
        text = body.get("prompt", body.get("content")) if isinstance(body, dict) else None
        if not isinstance(text, str):
            return _error(400, "`prompt` is a text")
        try:
            async with self.session.post("/tokenize", json={"content": text}) as answer:
                found = (await answer.json())["tokens"]
        except (aiohttp.ClientError, ValueError, KeyError) as error:
            return _error(503, f"the engine did not answer: {error}")
        return web.json_response({"count": len(found)})

    async def _pass_on(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        try:
            async with self.session.post("/v1/chat/completions", json=body) as answer:
                response = web.StreamResponse(
                    status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]}
                )
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
        except aiohttp.ClientError as error:
            if response is None:
                return _error(503, f"the engine did not answer: {error}")
            if request.transport is not None:  # an answer that was cut must look cut
                request.transport.abort()
        return response

    @web.middleware
    async def _authorise(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.api_key}".encode()):
            return _error(401, "wrong or missing API key")
        return await handler(request)


def _are_messages(messages: object) -> bool:
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(
            isinstance(one, dict)
            and isinstance(one.get("role"), str)
            and isinstance(one.get("content"), str)
            for one in messages
        )
    )


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


@asynccontextmanager
async def serve_front(
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
    """Serve before the engine at the URL `engine`, on `port` or a free one; yield the port."""
    async with aiohttp.ClientSession(
        engine,
        headers={"Authorization": f"Bearer {engine_key}"},
        # The engine closes connections whenever it likes; a new one costs nothing on the loopback.
        connector=aiohttp.TCPConnector(force_close=True),
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:
        shared = KvCacheSlots(LocalEngine(session, name), states, slots, salt)
        front = LocalProxy(session, shared, name, api_key)
        runner = web.AppRunner(
            front.application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.5
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()
            shared.close()


@dataclass(frozen=True, slots=True)
class Serve:
    """What the child is told. `slots` calls are worked on side by side, each with `context_tokens`
    of window;
    `states` is the folder for saved prompt states; `port` is 0 for a free one.
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
    """Ask the kernel to end this process with its parent, also while the model is loading."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start_engine(serve: Serve, key: str) -> Any:
    # Threads that spin while they wait take the core from those that they wait for, on a busy
    # machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xllamacpp  # an extra: the parent has looked whether it is there

    params = xllamacpp.CommonParams()
    params.model.path = serve.model
    params.model_alias = {serve.name}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.ui = False
    params.verbosity = _WARNINGS
    params.fit_params = False
    params.n_parallel = serve.slots
    params.n_ctx = serve.context_tokens * serve.slots
    params.cpuparams.n_threads = serve.threads
    params.cpuparams_batch.n_threads = serve.threads
    # The front keeps prompts' states itself, so that slots can share them.
    params.cache_ram_mib = 0
    params.endpoint_slots = True
    params.slot_save_path = f"{serve.states}/"
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        sys.exit(f"the engine cannot load {serve.model}: {error}")


async def _until_parent_ends() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, lambda: ended.set() if not os.read(0, 4096) else None)
    await ended.wait()


async def _serve(serve: Serve, answer: Any) -> None:
    key = secrets.token_hex(16)
    engine = _start_engine(serve, key)
    async with serve_front(
        engine.listening_address,
        key,
        name=serve.name,
        api_key=serve.api_key,
        slots=serve.slots,
        states=Path(serve.states),
        salt=f"{serve.model} {serve.context_tokens}",
        port=serve.port,
    ) as port:
        answer.write(json.dumps({"port": port}) + "\n")
        answer.flush()
        await _until_parent_ends()


def main() -> None:
    """Serve until stdin closes."""
    _die_with_parent()
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    line = b""
    while not line.endswith(b"\n"):  # unbuffered: what follows the line is the parent's end
        line += os.read(0, 1) or b"\n"
    asyncio.run(_serve(Serve(**json.loads(line)), answer))
    # The engine's threads may be in the middle of a call that nobody waits for any more.
    os._exit(0)


if __name__ == "__main__":
    main()
