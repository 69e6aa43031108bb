"""A lane's processes, supervised as by Ray and systemd: a process that dies is restarted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from moothall.config import BusSettings, environment
from moothall.events.nats.connection import connection
from moothall.events.nats.server import embedded_server
from moothall.events.registry import DURABLES, STREAMS
from support.recovery.scene import PACKAGES
from support.servers import free_port

Kind = Literal["serve", "collector", "host", "executor", "bus", "model"]
KINDS: tuple[Kind, ...] = ("serve", "collector", "host", "executor", "bus", "model")
_STOP_SECONDS = 40.0
_AGAIN_SECONDS = 0.05
_CONSUMER_SECONDS = 90.0  # a killed reader's own consumer expires after a minute


@dataclass(slots=True)
class Part:
    """One supervised process."""

    argv: tuple[str, ...]
    env: dict[str, str]
    log_file: Path
    process: asyncio.subprocess.Process | None = None
    starts: int = 0

    async def keep(self) -> None:
        """Run the process and restart it whenever it ends. On cancellation, terminate it and wait
        for its end.
        """
        try:
            while True:
                with self.log_file.open("ab") as log:
                    self.process = await asyncio.create_subprocess_exec(
                        *self.argv,
                        env=self.env,
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                self.starts += 1
                await self.process.wait()
                await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            await self._end()

    async def _end(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            with self.log_file.open("a", encoding="utf-8") as log:
                log.write("\nKILLED: it did not end after SIGTERM\n")

    @property
    def pid(self) -> int:
        """The process id; 0 while it does not run."""
        return (
            self.process.pid if self.process is not None and self.process.returncode is None else 0
        )


@dataclass(slots=True)
class App:
    """All processes of a lane. `journal` is the model server's."""

    folder: Path
    bus_url: str
    grpc_port: int
    model_port: int
    parts: dict[str, Part] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    instances: set[str] = field(default_factory=set)
    left: list[str] = field(default_factory=list)
    """What remained on the bus after the other processes had ended."""

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    @property
    def journal(self) -> Path:
        """The model server's received calls, with their times."""
        return self.folder / "calls.jsonl"

    def part(self, name: str, *arguments: str) -> Part:
        """Return a part that does not run yet."""
        argv = (sys.executable, "-m", "support.recovery.parts", name.partition("-")[0], *arguments)
        self.parts[name] = Part(argv, self.env, self.folder / "logs" / f"{name}.out")
        return self.parts[name]

    def pids(self, kind: Kind) -> list[int]:
        """Return the processes that a blow at `kind` hits now."""
        if kind == "bus":
            return [
                int(path.stem.rpartition("_")[2])
                for path in (self.folder / "bus").glob("nats-server_*.ports")
            ]
        if kind == "executor":
            return [pid for host in ("host", "host-2") for pid in self._children(host)]
        pid = self.parts[kind].pid
        return [pid] if pid else []

    def _children(self, name: str) -> list[int]:
        part = self.parts.get(name)
        with suppress(psutil.Error):
            if part is not None and part.pid:
                sandboxes = [
                    child
                    for child in psutil.Process(part.pid).children()
                    if child.name() == "bwrap"
                ]
                return [
                    process.pid
                    for sandbox in sandboxes
                    for process in (sandbox, *sandbox.children(recursive=True))
                ]
        return []

    def host_is_up(self) -> bool:
        """True if the running host opens workspaces; its sandboxes' code is in place after it has
        swept.
        """
        pid = self.parts["host"].pid
        return pid > 0 and any((self.data / "run").glob(f"{pid}-*/code"))

    def note_instances(self) -> None:
        """Record the names under which hosts store their workspaces."""
        run = self.data / "run"
        self.instances |= {folder.name for folder in run.iterdir()} if run.is_dir() else set()


def hit(pids: list[int], number: signal.Signals) -> int:
    """Send a signal to each process and return their number."""
    count = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            count += 1
    return count


async def consumers_left(bus_url: str) -> list[str]:
    """Return the consumers on the bus that no registered durable explains, after the time in which
    they expire.
    """
    async with connection(BusSettings(), bus_url, on_lost=lambda: None) as client:
        until = time.monotonic() + _CONSUMER_SECONDS
        while True:
            names = {
                f"{stream.name}/{info.name}"
                for stream in STREAMS
                for info in await client.jetstream().consumers_info(stream.name)
                if info.name not in DURABLES
            }
            if not names or time.monotonic() > until:
                return [f"consumer {name}" for name in sorted(names)]
            await asyncio.sleep(1)


@asynccontextmanager
async def app(folder: Path, ack_wait: float) -> AsyncIterator[App]:
    """Start a lane's processes below `folder`, and end them in the order in which serve does."""
    for name in ("data", "logs", "tmp", "bus"):
        (folder / name).mkdir(parents=True)
    async with embedded_server(BusSettings(), folder / "bus") as url:
        lane_app = App(folder, url, free_port(), free_port())
        inherited = {
            name: value for name, value in environment().items() if not name.startswith("MOOTHALL_")
        }
        lane_app.env = inherited | {
            "PYTHONPATH": str(Path(__file__).parents[2]),  # where `support` is
            "TMPDIR": str(folder / "tmp"),
            "MOOTHALL_DATA_DIR": str(lane_app.data),
            "MOOTHALL_BUS__URL": url,
            "MOOTHALL_BUS__ACK_WAIT_SECONDS": str(ack_wait),
            "MOOTHALL_GRPC__PORT": str(lane_app.grpc_port),
            "MOOTHALL_LLM__BASE_URL": f"http://127.0.0.1:{lane_app.model_port}/v1",
            "MOOTHALL_LLM__MODEL": "scripted",
            "MOOTHALL_LLM__REPLY": "json",
            "MOOTHALL_SANDBOX__TOOLCHAINS": f'["{PACKAGES}"]',
        }
        async with asyncio.TaskGroup() as group:
            named = [
                ("model", (str(lane_app.model_port), str(lane_app.journal))),
                ("collector", ()),
                ("serve", ()),
                ("host", ("host-1",)),
            ]
            running = [
                group.create_task(lane_app.part(name, *arguments).keep(), name=name)
                for name, arguments in named
            ]
            try:
                yield lane_app
            finally:
                for task in reversed(running):
                    task.cancel()
                    await asyncio.wait({task})
        lane_app.left += await consumers_left(url)
