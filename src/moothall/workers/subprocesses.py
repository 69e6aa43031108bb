"""Hosts on one machine without Ray: in this process for one command, or in child processes of a
server.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import gc
import importlib
import os
import pickle
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, BinaryIO

from moothall.concurrency import loop_factory
from moothall.errors import FleetUnavailable
from moothall.processes import start_process
from moothall.telemetry import get_logger

# Hosts in this process, for one command: only their tasks are started. The other ways to run hosts
# are child processes (below) and `ray_fleet`.


HostMain = Callable[[str, Callable[[], None]], Coroutine[Any, Any, None]]
"""Runs a host with the given name until cancelled, and calls its second argument when ready."""


Alive = Callable[[], Awaitable[tuple[int, int]]]
"""Returns how many hosts pull work, and how many there should be."""


@asynccontextmanager
async def hosting_in_process(hosts: int, main: HostMain) -> AsyncIterator[Alive]:
    """Start the hosts, wait until all pull work, and yield a function that counts them. They have
    released all work when the context ends.

    A host that ends by itself has a bug. Its error ends the body, and is raised in a group.
    """
    ready_waits: list[Coroutine[Any, Any, object]] = []
    running: list[asyncio.Task[None]] = []

    async def count_alive() -> tuple[int, int]:
        return sum(not host.done() for host in running), len(running)

    async with asyncio.TaskGroup() as group:
        for number in range(1, hosts + 1):
            ready = asyncio.Event()
            name = f"host-{number}"
            running.append(group.create_task(main(name, ready.set), name=name))
            ready_waits.append(ready.wait())
        await asyncio.gather(*ready_waits)
        try:
            yield count_alive
        finally:
            for host in running:
                host.cancel()


# Hosts in child processes of a server, on one machine and without Ray.
#
# A child imports the modules named by its arguments and reads its pickled `HostMain` from stdin. It
# writes lines to stdout: that it is ready, or the error with which it ended. This module is also
# the main module of the child.


log = get_logger(__name__)

_STOP_SECONDS, _RESTART_SECONDS = 10.0, 0.5
_READY, _FAILED = b"ready", b"failed "
_LINE_BYTES = 1_000_000


@asynccontextmanager
async def starting(hosts: int, module: str) -> AsyncIterator[list[Process]]:
    """Start processes for `hosting` early, and yield them. They import `module`, which takes about
    a second, and then wait for a host. Processes that `hosting` does not use end with the context.
    """
    processes: list[Process] = []
    try:
        while len(processes) < hosts:
            processes.append(await _start_process(module))
        yield processes
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())


@asynccontextmanager
async def hosting(
    hosts: int,
    main: HostMain,
    ready_seconds: float = 120.0,
    started: list[Process] | None = None,
) -> AsyncIterator[Alive]:
    """Start the hosts, wait until all pull work, and yield a function that counts them. They end
    with the context. `main` must be picklable. Processes in `started` are used first.

    A host that was killed by a signal is restarted. A host that ends with an error has a bug, and
    its error ends the body. Errors are raised in a group. They include `FleetUnavailable` if a host
    exits without an error of its own or is not ready in time.
    """
    children = [_Child(f"host-{number}", main, started or []) for number in range(1, hosts + 1)]

    async def count_alive() -> tuple[int, int]:
        return sum(child.ready.is_set() for child in children), len(children)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(child.keep_running(), name=child.name) for child in children]
        try:
            async with asyncio.timeout(ready_seconds):
                for child in children:
                    await child.ready.wait()
        except TimeoutError as error:
            raise FleetUnavailable(
                f"the hosts were not ready within {ready_seconds:g} s"
            ) from error
        try:
            yield count_alive
        finally:
            for task in tasks:
                task.cancel()


class _Child:
    """A host and its process."""

    def __init__(self, name: str, main: HostMain, started: list[Process]) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self._started = started
        self._program = pickle.dumps((name, main))

    async def keep_running(self) -> None:
        """Run the host until cancelled. Raise the error that ended it, or `FleetUnavailable`."""
        while True:
            code = await self._run_process()
            if code >= 0:
                raise FleetUnavailable(f"{self.name} ended with exit code {code}")
            log.warning("a host was killed; restarting it", host=self.name, signal=-code)
            await asyncio.sleep(_RESTART_SECONDS)

    async def _run_process(self) -> int:
        process = self._started.pop() if self._started else await _start_process()
        if process.stdin is None or process.stdout is None:
            raise AssertionError  # both are pipes
        try:
            with suppress(ConnectionError, RuntimeError):  # uvloop: the process has ended
                process.stdin.write(self._program)
                await process.stdin.drain()
            async for line in process.stdout:
                if line.strip() == _READY:
                    self.ready.set()
                elif line.startswith(_FAILED):
                    dumped = base64.b64decode(line.removeprefix(_FAILED))
                    raise pickle.loads(dumped)  # noqa: S301 - written by `_run_host`
            return await process.wait()
        finally:
            self.ready.clear()
            await asyncio.shield(_stop_process(process))


async def _start_process(*modules: str) -> Process:
    # -P: the working folder may be a repository with modules of the same names.
    return await start_process(
        *(sys.executable, "-P", "-m", __name__, *modules),
        stdin=PIPE,
        stdout=PIPE,
        start_new_session=True,  # Ctrl-C stops the server, which then stops its hosts
        limit=_LINE_BYTES,
    )


async def _stop_process(process: Process) -> None:
    """Close the process's stdin, which ends it; kill it if it does not end."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _run_host(name: str, main: HostMain, lines: BinaryIO) -> None:
    """Run a host until stdin is closed, and write its state to `lines`."""

    def send(line: bytes) -> None:
        with suppress(BrokenPipeError):  # the server has ended, and this process ends soon
            lines.write(line + b"\n")
            lines.flush()

    host = asyncio.ensure_future(main(name, lambda: send(_READY)))
    stop = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, host.cancel)
    threading.Thread(target=_call_at_end, args=(sys.stdin.fileno(), stop), daemon=True).start()
    try:
        await host
    except asyncio.CancelledError:
        return
    except Exception as error:  # noqa: BLE001 - raised again by the server
        send(_FAILED + base64.b64encode(_dump_error(error)))


def _call_at_end(stdin: int, function: Callable[[], object]) -> None:
    # A blocked read of `sys.stdin.buffer` holds a lock, which would abort the process at its end.
    while os.read(stdin, 1):
        pass
    with suppress(RuntimeError):  # the host has ended by itself, so the loop is closed
        function()


def _dump_error(error: Exception) -> bytes:
    """Pickle an error, or its text if it cannot be restored."""
    with suppress(Exception):
        dumped = pickle.dumps(error)
        pickle.loads(dumped)  # noqa: S301 - written one line above
        return dumped
    return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    # Other output is redirected from stdout to stderr, so that the server does not read it.
    with os.fdopen(os.dup(1), "wb") as own_lines:
        os.dup2(2, 1)
        gc.disable()  # until the host is ready: importing leaves nearly no garbage
        for imported_early in sys.argv[1:]:
            importlib.import_module(imported_early)
        try:
            host_name, host_main = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by `_Child`
        except EOFError:  # the server has ended
            sys.exit()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_run_host(host_name, host_main, own_lines))
