"""The small local model as a child process that ends with its parent."""

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
from moothall.llm.serve_local import ServerParameters
from moothall.llm.weights import fetch_weights
from moothall.processes import start_process
from moothall.telemetry import get_logger

log = get_logger(__name__)

_SLOTS = 3
"""Concurrent calls of the local model."""
_READY_SECONDS = 180.0
_STOP_SECONDS = 3.0
_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 30.0
_STABLE_SECONDS = 60.0
_MAX_LOG_BYTES = 5_000_000
_PROGRESS_STEP = 10  # percent of a download


@asynccontextmanager
async def local_model_server(
    settings: LlmSettings, data_dir: Path, on_progress: Callable[[str], None]
) -> AsyncIterator[str]:
    """Run the local model and yield its base URL. The URL contains the key in its user part, as
    `open_model` accepts it.

    Fetches the weights first if they are missing. `on_progress` receives sentences. Raises
    `ConfigurationError` if the extra is not installed or the weights cannot be fetched, and
    `ModelUnavailable` with the end of the log if the model does not start.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigurationError(
            "the local model needs the extra `local`: pip install 'moothall[local]', or set "
            "MOOTHALL_LLM__BASE_URL to another server"
        )
    weights = await fetch_weights(settings, data_dir, download_progress(on_progress))
    parameters = ServerParameters(
        model=str(weights),
        name=settings.model or weights.name.removesuffix(".gguf"),
        threads=max(1, _count_cores() - 1),
        slots=_SLOTS,
        context_tokens=settings.assumed_window,
        api_key=secrets.token_hex(16),
        states=str(data_dir / "models" / "states"),
    )
    on_progress(
        f"loading {parameters.name} ({parameters.threads} threads, {parameters.slots} concurrent "
        "calls)"
    )
    log_path = data_dir / "logs" / "local-model.log"
    async with _run_child(parameters, log_path) as port:
        on_progress("the local model is ready")
        yield f"http://{parameters.api_key}@127.0.0.1:{port}/v1"


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def download_progress(report_progress: Callable[[str], None]) -> Callable[[int, int], None]:
    """Return a callback that reports each tenth of a download once. If another source starts from
    0, the callback is silent until it has passed the last reported tenth.
    """
    last = -_PROGRESS_STEP

    def report_percent(received_bytes: int, total_bytes: int) -> None:
        nonlocal last
        percent = min(received_bytes * 100 // total_bytes, 100) // _PROGRESS_STEP * _PROGRESS_STEP
        if percent > last:
            last = percent
            report_progress(
                f"fetching the local model, once: {percent} % of {total_bytes // 1_000_000} MB"
            )

    return report_percent


@dataclass(slots=True)
class _Child:
    """The server process, which is restarted on the same port when it ends. It has its own process
    group, so that only the parent handles Ctrl-C.
    """

    parameters: ServerParameters
    log_path: Path
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> int:
        """Start the process and return its port once it serves requests. Raises `ModelUnavailable`
        if it does not start; the process is stopped then.
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
            port = await _wait_until_ready(self.process, self.parameters, self.log_path, start)
        except BaseException:
            await self.stop()
            raise
        self.parameters = replace(
            self.parameters, port=port
        )  # callers use this port, so a restart must use it too
        return port

    async def watch(self) -> None:
        """Restart the process after a growing pause whenever it ends by itself. The retries of
        callers bridge the gap.
        """
        pause = _PAUSE_SECONDS
        while self.process is not None:
            started_at = time.monotonic()
            code = await self.process.wait()
            pause = (
                _PAUSE_SECONDS
                if time.monotonic() - started_at > _STABLE_SECONDS
                else min(pause * 2, _MAX_PAUSE_SECONDS)
            )
            log.warning("the local model ended; restarting it", exit_code=code, delay=pause)
            await asyncio.sleep(pause)
            try:
                await self.start()
            except (ModelUnavailable, OSError) as error:
                log.warning("the local model did not restart", reason=str(error))
            else:
                log.info("the local model has restarted")

    async def stop(self) -> None:
        """Stop the process and wait for its end."""
        if self.process is not None:
            await _stop_process(self.process)


@asynccontextmanager
async def _run_child(parameters: ServerParameters, log_path: Path) -> AsyncIterator[int]:
    """Run the server, and restart it when it ends. Errors of the body are raised unchanged."""
    child = _Child(parameters, log_path)
    failure: BaseException | None = None
    port = await child.start()
    try:
        async with asyncio.TaskGroup() as group:
            watch_task = group.create_task(child.watch(), name="local model: watch")
            try:
                yield port
            except BaseException as error:  # noqa: BLE001 raised again below
                failure = error
            finally:
                watch_task.cancel()
    finally:
        await child.stop()
    if failure is not None:
        raise failure


def _open_log(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_full = path.exists() and path.stat().st_size >= _MAX_LOG_BYTES
    return path.open("wb" if is_full else "ab")


async def _wait_until_ready(
    process: asyncio.subprocess.Process, parameters: ServerParameters, log_path: Path, start: int
) -> int:
    if process.stdin is None or process.stdout is None:
        raise AssertionError  # both are pipes
    process.stdin.write((json.dumps(asdict(parameters)) + "\n").encode())
    try:
        async with asyncio.timeout(_READY_SECONDS):
            line = await process.stdout.readline()
    except TimeoutError as error:
        raise ModelUnavailable(
            f"the local model was not ready within {_READY_SECONDS:g} s; "
            f"{_log_tail(log_path, start)}"
        ) from error
    if not line:
        code = await process.wait()
        raise ModelUnavailable(
            f"the local model ended with exit code {code} while it started; "
            f"{_log_tail(log_path, start)}"
        )
    return int(json.loads(line)["port"])


async def _stop_process(process: asyncio.subprocess.Process) -> None:
    """Close the process's stdin, which ends it; kill it if it does not end."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _log_tail(path: Path, start: int) -> str:
    """Return the last lines of the log after the position `start`."""
    with path.open("rb") as file:
        file.seek(start)
        lines = file.read()[-20_000:].decode(errors="replace").strip().splitlines()
    return f"the end of its log ({path}):\n" + "\n".join(lines[-12:])
