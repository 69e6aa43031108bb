"""The child process of the small local model: `python -m moothall.llm.serve_local`.

Reads one JSON line from stdin (the fields of `Serve`), loads the model, writes one JSON line
`{"port": PORT}` to stdout and serves the OpenAI-compatible protocol on the loopback until stdin
closes,
which happens when the parent ends, however it ends. All else that it says goes to stderr.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import secrets
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moothall.llm.local_proxy import serve_front

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_WARNINGS = 2  # of the server's log levels


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
