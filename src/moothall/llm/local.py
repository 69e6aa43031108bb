"""The small local model as a child process: started, waited for, ended with its parent."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

from moothall.config import LlmSettings
from moothall.errors import ConfigurationError, ModelUnavailable
from moothall.llm.serve_local import Serve
from moothall.llm.weights import fetch_weights
from moothall.processes import start_process
from moothall.telemetry import get_logger

log = get_logger(__name__)

_READY_SECONDS = 180.0
_STOP_SECONDS = 3.0
_PAUSE_SECONDS, _LONGEST_PAUSE = 0.5, 30.0
_STEADY_SECONDS = 60.0
_LOG_BYTES = 5_000_000
_STEP = 10  # percent of a download


@asynccontextmanager
async def local_model_server(
    settings: LlmSettings, data_dir: Path, on_progress: Callable[[str], None]
) -> AsyncIterator[str]:
    """Yield the base URL of a running local model, with its key in the user part; `open_model`
    understands that.

    Fetches the weights first where they are not here; `on_progress` is told in sentences. Raises
    `ConfigurationError` (the extra is not installed, no weights) and `ModelUnavailable` (it does
    not start, with the
    end of its log).
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigurationError(
            "the local model needs the extra `embedded` (pip install 'moothall[embedded]'); or "
            "name a server with MOOTHALL_LLM__BASE_URL"
        )
    weights = await fetch_weights(settings, data_dir, download_progress(on_progress))
    serve = Serve(
        model=str(weights),
        name=settings.model or weights.name.removesuffix(".gguf"),
        threads=settings.local_threads or max(1, _cores() - 1),
        slots=settings.local_slots,
        context_tokens=settings.assumed_window,
        api_key=secrets.token_hex(16),
        states=str(data_dir / "models" / "states"),
    )
    on_progress(f"loading {serve.name} ({serve.threads} threads, {serve.slots} calls side by side)")
    log_path = data_dir / "logs" / "local-model.log"
    async with _child(serve, log_path) as port:
        on_progress("the local model is ready")
        yield f"http://{serve.api_key}@127.0.0.1:{port}/v1"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def download_progress(report_progress: Callable[[str], None]) -> Callable[[int, int], None]:
    """Report each tenth of a download once, and never go back: another source starts from 0."""
    last = -_STEP

    def tell_percent(done: int, total: int) -> None:
        nonlocal last
        percent = min(done * 100 // total, 100) // _STEP * _STEP
        if percent > last:
            last = percent
            report_progress(
                f"fetching the local model, once: {percent} % of {total // 1_000_000} MB"
            )

    return tell_percent


@dataclass(slots=True)
class _Child:
    """One run after another of the server, on one port, each in a process group of its own: Ctrl-C
    reaches it through
    its parent only.
    """

    serve: Serve
    log_path: Path
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> int:
        """Start it and return its port once it can be called. Raises `ModelUnavailable`; then it
        does not run.
        """
        with _open_log(self.log_path) as output:
            start = output.tell()
            self.process = await start_process(
                sys.executable,
                "-m",
                "moothall.llm.serve_local",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        try:
            port = await _ready(self.process, self.serve, self.log_path, start)
        except BaseException:
            await self.stop()
            raise
        self.serve = replace(
            self.serve, port=port
        )  # callers have it: another run answers there too
        return port

    async def watch(self) -> None:
        """Start it again, after a growing pause, whenever it ends without being told to. Callers'
        retries bridge the gap.
        """
        pause = _PAUSE_SECONDS
        while self.process is not None:
            began = time.monotonic()
            code = await self.process.wait()
            pause = (
                _PAUSE_SECONDS
                if time.monotonic() - began > _STEADY_SECONDS
                else min(pause * 2, _LONGEST_PAUSE)
            )
            log.warning("the local model ended; starting it again", exit_code=code, after=pause)
            await asyncio.sleep(pause)
            try:
                await self.start()
            except (ModelUnavailable, OSError) as error:
                log.warning("the local model did not come back", reason=str(error))
            else:
                log.info("the local model is back")

    async def stop(self) -> None:
        """End it, and wait until it has ended."""
        if self.process is not None:
            await _stop(self.process)


@asynccontextmanager
async def _child(serve: Serve, log_path: Path) -> AsyncIterator[int]:
    """Run the server, again and again should it die. What the body raises comes out as it is."""
    child = _Child(serve, log_path)
    failure: BaseException | None = None
    port = await child.start()
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(child.watch(), name="local model: watch")
            try:
                yield port
            except BaseException as error:  # noqa: BLE001 raised again below
                failure = error
            finally:
                watching.cancel()
    finally:
        await child.stop()
    if failure is not None:
        raise failure


def _open_log(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    grown = path.exists() and path.stat().st_size >= _LOG_BYTES
    return path.open("wb" if grown else "ab")


async def _ready(
    process: asyncio.subprocess.Process, serve: Serve, log_path: Path, start: int
) -> int:
    if process.stdin is None or process.stdout is None:
        raise AssertionError  # both are pipes
    process.stdin.write((json.dumps(asdict(serve)) + "\n").encode())
    try:
        async with asyncio.timeout(_READY_SECONDS):
            line = await process.stdout.readline()
    except TimeoutError as error:
        raise ModelUnavailable(
            f"the local model was not ready within {_READY_SECONDS:g} s; {_tail(log_path, start)}"
        ) from error
    if not line:
        code = await process.wait()
        raise ModelUnavailable(
            f"the local model ended with {code} while it started; {_tail(log_path, start)}"
        )
    return int(json.loads(line)["port"])


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Close its stdin, which is its sign to end; what does not end is killed."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _tail(path: Path, start: int) -> str:
    """Return what the log has had to say since `start`, its last lines."""
    with path.open("rb") as said:
        said.seek(start)
        lines = said.read()[-20_000:].decode(errors="replace").strip().splitlines()
    return f"the end of its log ({path}):\n" + "\n".join(lines[-12:])
