"""Three NATS servers that form a cluster, each with fixed ports and a fixed folder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from moothall.config import BusSettings
from moothall.events.nats.server import _binary
from support.servers import free_port


@dataclass(slots=True)
class Three:
    """The servers by number, each with fixed ports and a fixed folder."""

    folder: Path
    ports: list[int] = field(default_factory=lambda: [free_port() for _ in range(3)])
    routes: list[int] = field(default_factory=lambda: [free_port() for _ in range(3)])
    running: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)

    async def start(self, number: int, keys: Path) -> None:
        """Start a server with keys, on the data that it stored before."""
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in self.routes)
        store = json.dumps(str(self.folder / f"js-{number}"))
        config = (
            f"listen: 127.0.0.1:{self.ports[number]}\nserver_name: nats-{number}\njetstream {{ "
            f"store_dir: {store} }}\n"
            f"cluster {{ name: moothall, listen: 127.0.0.1:{self.routes[number]}, routes: "
            f"[{routes}] }}\n"
        )
        conf = self.folder / f"{number}.conf"
        conf.write_text(
            config + (keys / "accounts.conf").read_text(encoding="utf-8"), encoding="utf-8"
        )
        log = str(self.folder / f"{number}.log")
        self.running[number] = await asyncio.create_subprocess_exec(
            _binary(), "-c", str(conf), "-l", log
        )

    async def stop(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self.running[number].terminate()
        await self.running[number].wait()

    def of(self, keys: Path, name: str, *numbers: int) -> BusSettings:
        """Return the bus settings of a user, for some of the servers."""
        url = ",".join(f"nats://127.0.0.1:{self.ports[number]}" for number in numbers or range(3))
        return BusSettings.model_validate(
            {
                "url": url,
                "credentials_file": keys / f"{name}.creds",
                "replicas": 3,
                "wait_seconds": 60,
            }
        )


@asynccontextmanager
async def three_servers(folder: Path) -> AsyncIterator[Three]:
    """Yield three servers that are not started, and stop those that run at the end."""
    servers = Three(folder)
    try:
        yield servers
    finally:
        for number in tuple(servers.running):
            await servers.stop(number)
