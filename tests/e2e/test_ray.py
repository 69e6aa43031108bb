"""Ray under the fleet: metrics and drivers without a token, and a host whose raylet has died."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.client import BadStatusLine
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import psutil
import pytest

from command import Command
from moothall.config import BusSettings
from moothall.events.nats.server import embedded_server
from moothall.testing.model import scripted_model
from moothall.workers.ray_setup import Access, probe_access
from ray_nodes import NO_TOKEN, TOKEN, hosts_below, ray_nodes
from serving import until_serving
from support.processes import all_gone, command_line, descendants

pytestmark = pytest.mark.e2e

LONE_HOST = Path(__file__).parent.parent / "cluster" / "lone_host.py"


@asynccontextmanager
async def run_server(command: Command) -> AsyncIterator[psutil.Process]:
    """Yield the process of a running server."""
    server = await command.start("serve", "--port", "0")
    assert server.stderr is not None
    try:
        await until_serving(server)
        drain = asyncio.ensure_future(server.stderr.read())
        yield psutil.Process(server.pid)
    finally:
        if server.returncode is None:
            server.terminate()
        async with asyncio.timeout(120):
            await server.wait()
    await drain


def listening_ports(process: psutil.Process) -> Iterator[int]:
    """Yield the TCP ports on which a process listens."""
    for connection in process.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN:
            yield connection.laddr.port


def is_readable(port: int, path: str) -> bool:
    """True if the page is readable without a token."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
            return True
    except HTTPError as error:
        return error.code not in {401, 404}
    except (URLError, OSError, BadStatusLine):  # a gRPC server does not answer with HTTP
        return False


async def test_our_own_ray_discloses_nothing_without_its_token(tmp_path: Path) -> None:
    async with scripted_model(lambda *_: "") as model:
        # Ignore tokens of the environment: they are for another Ray cluster.
        extra = {**NO_TOKEN, "MOOTHALL_RAY__MODE": "ray"}
        async with run_server(Command(tmp_path / "data", model.base_url, extra)) as server:
            processes = [
                process for process in descendants(server.pid) if "nats" not in process.name()
            ]
            ports = {
                port: process.name() for process in processes for port in listening_ports(process)
            }
            assert {"gcs_server", "raylet"} <= set(ports.values())
            leaks = [
                (name, path)
                for port, name in ports.items()
                for path in ("/metrics", "/api/version")
                if is_readable(port, path)
            ]
            assert leaks == []
            drivers = [
                name
                for port, name in ports.items()
                if (await probe_access(f"127.0.0.1:{port}"))[0] is Access.OPEN
            ]
            assert drivers == []
            check_that_no_other_user_gets_in(server)


def check_that_no_other_user_gets_in(server: psutil.Process) -> None:
    """Check that the folder of Ray is private, and that its token lies in no common file."""
    (folder,) = Path(tempfile.gettempdir()).glob(f"mh-{server.pid}-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (raylet,) = [
        child
        for child in descendants(server.pid)
        if f"--raylet_socket_name={folder}" in command_line(child)
    ]
    token = raylet.environ()["RAY_AUTH_TOKEN"]
    assert len(token) == 64
    common = Path.home() / ".ray" / "auth_token"
    assert not common.exists() or common.read_text(encoding="utf-8").strip() != token


async def test_a_cluster_without_a_token_is_refused_unless_a_setting_allows_it(
    tmp_path: Path,
) -> None:
    async with (
        scripted_model(lambda *_: "") as model,
        embedded_server(BusSettings(), tmp_path / "bus") as bus_url,
        ray_nodes(1, NO_TOKEN) as (address, raylet),
    ):
        extra = {
            "MOOTHALL_RAY__ADDRESS": address,
            "MOOTHALL_BUS__URL": bus_url,
            "RAY_AUTH_MODE": "disabled",
        }
        refused = await Command(tmp_path / "refused", model.base_url, extra)("serve", "--port", "0")
        assert refused.code == 2, refused.err
        assert f"the Ray cluster at {address} accepts drivers without a token" in refused.err
        assert "MOOTHALL_RAY__ALLOW_NO_TOKEN" in refused.err
        assert hosts_below(raylet) == []

        finding = await doctor_findings(Command(tmp_path / "refused", model.base_url, extra))
        assert (finding["ok"], "without a token" in finding["detail"]) == (False, True)
        assert "MOOTHALL_RAY__ALLOW_NO_TOKEN" in finding["mend"]

        allowed = Command(
            tmp_path / "allowed", model.base_url, {**extra, "MOOTHALL_RAY__ALLOW_NO_TOKEN": "true"}
        )
        async with run_server(allowed):
            assert len(hosts_below(raylet)) == 1
        assert (await doctor_findings(allowed))["ok"] is True


async def doctor_findings(command: Command) -> dict[str, Any]:
    """Return the findings of `doctor` about the Ray cluster."""
    findings: Any = (await command("doctor", "--json")).document
    (finding,) = [item for item in findings if item["part"] == "ray cluster"]
    return dict(finding)


async def test_a_host_ends_with_its_raylet_even_if_that_is_not_reaped(tmp_path: Path) -> None:
    async with ray_nodes(1) as (address, raylet):
        assert (await probe_access(address))[0] is Access.RESTRICTED
        driver = await asyncio.create_subprocess_exec(
            sys.executable,
            str(LONE_HOST),
            address,
            env={**os.environ, **TOKEN},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert driver.stdout is not None
        try:
            async with asyncio.timeout(240):
                assert await driver.stdout.readline() == b"ready\n"
            (host,) = hosts_below(raylet)
            raylet.kill()
            assert await all_gone([host]) == []
            assert raylet.status() == psutil.STATUS_ZOMBIE
        finally:
            driver.kill()
            await driver.wait()
