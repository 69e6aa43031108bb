"""The child process of the small local model: `python -m moothall.llm.serve_local`. Choose a
slot of the local engine for each call, and share computed prompt prefixes.
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
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from aiohttp import web
from aiohttp.typedefs import Handler

from moothall.domain.ids import digest

# Choose a slot of the local engine for each call, and share computed prompt prefixes.
#
# On a CPU a prompt costs more than its reply: 800 tokens take 10 to 20 seconds. The prompts of a
# council share a prefix, but the engine's slots share no state. So the state of a slot is saved
# (milliseconds, 12 KB per token) and restored into other slots. If several calls arrive together,
# one computes the common prefix for all. The state of the system message, which all deliberations
# share, is also stored across runs.


Messages = Sequence[Mapping[str, Any]]

_MIN_GAIN_CHARS = 400  # computing fewer characters is faster than saving and restoring them
_GATHER_SECONDS = 0.05  # calls that belong together arrive within this time
_KEPT_PREFIX = "kept-"
_HTTP_OK = 200


class EngineRefused(Exception):
    """The engine refused a request. The call continues without its result."""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """A client for the slot operations of llama.cpp's server. All methods raise `EngineRefused`."""

    session: aiohttp.ClientSession
    name: str

    async def compute(self, slot: int, messages: Messages) -> None:
        """Process a prompt. The engine always generates at least one token."""
        body = {
            "model": self.name,
            "messages": list(messages),
            "max_tokens": 1,
            "temperature": 0.0,
            "id_slot": slot,
        }
        await self._post_json("/v1/chat/completions", body)

    async def save(self, slot: int, name: str) -> None:
        """Save the slot's state to a file."""
        await self._post_json(f"/slots/{slot}?action=save", {"filename": name})

    async def restore(self, slot: int, name: str) -> None:
        """Restore the slot's state from a file."""
        await self._post_json(f"/slots/{slot}?action=restore", {"filename": name})

    async def _post_json(self, path: str, body: dict[str, Any]) -> None:
        try:
            async with self.session.post(path, json=body) as response:
                text = await response.text()
        except aiohttp.ClientError as error:
            raise EngineRefused(str(error)) from error
        if response.status != _HTTP_OK:
            raise EngineRefused(text[:300])


@dataclass(slots=True)
class Slot:
    """A slot of the engine. `text` is the prompt at the beginning of its state."""

    number: int
    text: str = ""
    busy: bool = False
    last_use: int = 0
    saved: bool = True


@dataclass(slots=True)
class KvCacheSlots:
    """The slots and their saved states: at most `limit` of this run, and at most `kept_limit` that
    are stored across runs.
    """

    engine: LocalEngine
    folder: Path
    count: int
    salt: str = ""
    limit: int = 12
    kept_limit: int = 4
    slots: list[Slot] = field(init=False)
    _saved: dict[str, str] = field(
        default_factory=dict
    )  # file names by text, least recently used first
    _prompts: list[str] = field(default_factory=list)  # the prompts of waiting and running calls
    _free: asyncio.Semaphore = field(init=False)
    _preparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _clock: int = 0

    def __post_init__(self) -> None:
        self.slots = [Slot(number) for number in range(self.count)]
        self._free = asyncio.Semaphore(self.count)
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.folder.glob("run-*"):
            pid = file.name.split("-")[1]
            if not (pid.isdigit() and psutil.pid_exists(int(pid))):
                file.unlink(missing_ok=True)

    @asynccontextmanager
    async def slot_for(self, messages: Messages) -> AsyncIterator[Slot]:
        """Reserve and prepare the slot in which the prompt costs least."""
        prompt = as_text(messages)
        self._prompts.append(prompt)
        try:
            await asyncio.sleep(_GATHER_SECONDS)
            async with self._free:
                async with self._preparing:
                    slot = await self._prepare_slot(messages, prompt)
                try:
                    yield slot
                finally:
                    slot.busy = False
        finally:
            self._prompts.remove(prompt)

    def close(self) -> None:
        """Remove the files of this run."""
        for name in self._saved.values():
            if not name.startswith(_KEPT_PREFIX):
                (self.folder / name).unlink(missing_ok=True)

    async def _prepare_slot(self, messages: Messages, prompt: str) -> Slot:
        free = [slot for slot in self.slots if not slot.busy]
        slot = max(free, key=lambda slot: (common_prefix_length(slot.text, prompt), -slot.last_use))
        if (
            common_prefix_length(self._nearest_saved(prompt), prompt)
            > common_prefix_length(slot.text, prompt) + _MIN_GAIN_CHARS
        ):
            slot = min(free, key=lambda slot: slot.last_use)
        self._clock += 1
        slot.busy, slot.last_use = True, self._clock
        try:
            await self._fill_slot(slot, messages, prompt)
        except EngineRefused:
            slot.text = ""  # its state is unknown, so the prompt is computed again
        except BaseException:
            slot.busy, slot.text = False, ""
            raise
        slot.text, slot.saved = prompt, False
        return slot

    def _nearest_saved(self, prompt: str) -> str:
        return max(self._saved, key=lambda text: common_prefix_length(text, prompt), default="")

    async def _fill_slot(self, slot: Slot, messages: Messages, prompt: str) -> None:
        if not slot.saved and len(slot.text) > _MIN_GAIN_CHARS and not prompt.startswith(slot.text):
            await self._save_slot(slot, slot.text)
        saved = self._nearest_saved(prompt)
        if (
            common_prefix_length(saved, prompt)
            > common_prefix_length(slot.text, prompt) + _MIN_GAIN_CHARS
        ):
            await self._restore_slot(slot, saved)
        system = (
            as_text(messages[:1])
            if len(messages) > 1 and messages[0].get("role") == "system"
            else ""
        )
        if len(system) > common_prefix_length(slot.text, prompt) + _MIN_GAIN_CHARS:
            await self._load_system(slot, system, messages[:1])
        other_prompts = list(self._prompts)
        other_prompts.remove(prompt)
        shared_chars = max(
            (common_prefix_length(other_prompt, prompt) for other_prompt in other_prompts),
            default=0,
        )
        if shared_chars > common_prefix_length(slot.text, prompt) + _MIN_GAIN_CHARS:
            await self.engine.compute(slot.number, truncate(messages, shared_chars))
            await self._save_slot(slot, prompt[:shared_chars])

    async def _load_system(self, slot: Slot, system: str, messages: Messages) -> None:
        """Restore the system message's state from an earlier run, or compute and store it for later
        runs.
        """
        name = f"{_KEPT_PREFIX}{digest(self.salt, system)[:32]}"
        if (self.folder / name).exists():
            with suppress(EngineRefused):  # a damaged file is replaced
                await self.engine.restore(slot.number, name)
                os.utime(self.folder / name)
                self._saved[system], slot.text = name, system
                return
        await self.engine.compute(slot.number, messages)
        await self._save_slot(slot, system)
        (self.folder / self._saved[system]).replace(self.folder / name)
        self._saved[system] = name
        files = sorted(self.folder.glob(f"{_KEPT_PREFIX}*"), key=lambda file: file.stat().st_mtime)
        for file in files[: -self.kept_limit]:
            file.unlink(missing_ok=True)
            self._saved = {text: name for text, name in self._saved.items() if name != file.name}

    async def _save_slot(self, slot: Slot, text: str) -> None:
        name = f"run-{os.getpid()}-{digest(text)[:32]}"
        await self.engine.save(slot.number, name)
        slot.text, slot.saved = text, True
        self._saved[text] = name
        run_texts = [
            text for text, name in self._saved.items() if not name.startswith(_KEPT_PREFIX)
        ]
        for old_text in run_texts[: -self.limit]:
            (self.folder / self._saved.pop(old_text)).unlink(missing_ok=True)

    async def _restore_slot(self, slot: Slot, text: str) -> None:
        name = self._saved.pop(text)
        await self.engine.restore(slot.number, name)
        self._saved[text] = name  # the most recently used is last
        slot.text, slot.saved = text, True


def as_text(messages: Messages) -> str:
    """Return a conversation as one text. Equal prefixes mean equal prefixes of the prompt."""
    return "".join(f"\x00{message.get('role')}\x00{message.get('content')}" for message in messages)


def truncate(messages: Messages, length: int) -> list[Mapping[str, Any]]:
    """Return the messages that correspond to the first `length` characters of `as_text`."""
    truncated: list[Mapping[str, Any]] = []
    for message in messages:
        content, space = (
            str(message.get("content")),
            length - len(as_text(truncated)) - len(str(message.get("role"))) - 2,
        )
        if space <= 0:
            break
        truncated.append({**message, "content": content[:space]})
    return truncated


def common_prefix_length(first: str, second: str) -> int:
    """Return the length of the longest common prefix."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        is_equal = first[low:middle] == second[low:middle]
        low, high = (middle, high) if is_equal else (low, middle - 1)
    return low


# The child process of the small local model: `python -m moothall.llm.serve_local`.
#
# Reads one JSON line from stdin (the fields of `ServerParameters`), loads the model, writes one
# JSON line `{"port": PORT}` to stdout, and serves the OpenAI-compatible protocol on the loopback
# until stdin closes, which happens however the parent ends. All other output goes to stderr.
#
# A proxy on the loopback adds the features that the engine lacks. It checks the key and the model's
# name (the engine ignores a wrong name), chooses the slot of each call and streams the response. If
# the caller disconnects, the call in the engine is cancelled.


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
        app = web.Application(
            client_max_size=_MAX_BODY_BYTES, middlewares=[self._authorize_request]
        )
        app.router.add_get("/v1/models", self._handle_models)
        app.router.add_post("/v1/chat/completions", self._handle_chat)
        app.router.add_post("/tokenize", self._handle_tokenize)
        return app

    async def _handle_models(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {
                "object": "list",
                "data": [{"id": self.name, "object": "model", "owned_by": "moothall"}],
            }
        )

    async def _handle_chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await request.json()
        except ValueError:
            return _error_response(400, "the body is not JSON")
        if not isinstance(body, dict) or not _are_messages(body.get("messages")):
            return _error_response(
                400, "`messages` must be a list of objects with the strings `role` and `content`"
            )
        if body.get("model") not in {self.name, None}:
            return _error_response(
                404, f"the model `{body['model']}` does not exist; this server has `{self.name}`"
            )
        if body.get("n", 1) != 1:
            return _error_response(400, "`n` must be 1; repeat the request for another reply")
        async with self.states.slot_for(body["messages"]) as slot:
            return await self._forward_request(
                request, {**body, "id_slot": slot.number, "cache_prompt": True}
            )

    async def _handle_tokenize(self, request: web.Request) -> web.StreamResponse:
        """Return the number of tokens, for the request format of vLLM and of llama.cpp."""
        try:
            body = await request.json()
        except ValueError:
            return _error_response(400, "the body is not JSON")
        text = body.get("prompt", body.get("content")) if isinstance(body, dict) else None
        if not isinstance(text, str):
            return _error_response(400, "`prompt` must be a string")
        try:
            async with self.session.post("/tokenize", json={"content": text}) as reply:
                tokens = (await reply.json())["tokens"]
        except (aiohttp.ClientError, ValueError, KeyError) as error:
            return _error_response(503, f"the engine did not answer: {error}")
        return web.json_response({"count": len(tokens)})

    async def _forward_request(
        self, request: web.Request, body: dict[str, Any]
    ) -> web.StreamResponse:
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
                return _error_response(503, f"the engine did not answer: {error}")
            if request.transport is not None:  # the caller must see that the response is incomplete
                request.transport.abort()
        return response

    @web.middleware
    async def _authorize_request(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        authorization = request.headers.get("Authorization", "")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self.api_key}".encode()):
            return _error_response(401, "wrong or missing API key")
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


def _error_response(status: int, message: str) -> web.Response:
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


async def _run_server(parameters: ServerParameters, output: Any) -> None:
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
    asyncio.run(_run_server(ServerParameters(**json.loads(line)), output))
    # The engine's threads may still be processing a call that no caller waits for.
    os._exit(0)


if __name__ == "__main__":
    main()
