"""A private nats-server with the accounts of `moothall bus keys`; it can be stopped and restarted
on its stored data.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import nats.errors
from nats.aio.client import Client, RawCredentials

from moothall.config import BusSettings
from moothall.events.nats import accounts
from moothall.events.nats.server import _binary


@dataclass(frozen=True, slots=True)
class App:
    """A server's address and the keys of its users."""

    url: str
    keys: Path

    def of(self, name: str) -> BusSettings:
        """Return the bus settings of the user with this name."""
        return BusSettings.model_validate(
            {"url": self.url, "credentials_file": self.keys / f"{name}.creds"}
        )

    @property
    def services(self) -> BusSettings:
        return self.of("services")

    def link(self, name: str, seconds: int = 60) -> BusSettings:
        credentials = accounts.mint(
            (self.keys / "links.json").read_text(encoding="utf-8"), name, seconds
        )
        return BusSettings.model_validate({"url": self.url, "credentials": credentials})


@asynccontextmanager
async def run_accounts_server(folder: Path, keys: Path) -> AsyncIterator[App]:
    """Run the server with these keys while the block runs. It stores its data in `folder`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    conf = folder / "nats.conf"
    store = json.dumps(str(folder / "js"))
    config = (
        f"listen: 127.0.0.1:{port}\njetstream {{ store_dir: {store} }}\n"
        f"{(keys / 'accounts.conf').read_text(encoding='utf-8')}"
    )
    conf.write_text(config, encoding="utf-8")
    server = await asyncio.create_subprocess_exec(
        _binary(), "-c", str(conf), stderr=asyncio.subprocess.PIPE
    )
    assert server.stderr is not None
    try:
        async with asyncio.timeout(20):
            while b"Server is ready" not in (line := await server.stderr.readline()):
                assert line, "the server ended"
        drain = asyncio.ensure_future(server.stderr.read())
        yield App(f"nats://127.0.0.1:{port}", keys)
    finally:
        server.terminate()
        await server.wait()
    await drain


async def try_operation(bus: BusSettings, *, publish: str = "", subscribe: str = "") -> str:
    """Try an operation; return the server's error messages, "" if there are none."""
    errors: list[str] = []

    async def error(problem: Exception) -> None:
        errors.append(str(problem).lower())

    assert bus.credentials is not None
    credentials = RawCredentials(bus.credentials.get_secret_value())
    client = Client()
    try:
        await client.connect(
            str(bus.url), user_credentials=credentials, error_cb=error, allow_reconnect=False
        )
        await (client.publish(publish, b"x") if publish else client.subscribe(subscribe))
        await client.flush()
        async with asyncio.timeout(5):
            while not errors:
                await asyncio.sleep(0.01)
    except (nats.errors.Error, TimeoutError):
        pass
    finally:
        await client.close()
    return " ".join(errors)
