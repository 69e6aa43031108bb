"""Files that the first host on a node creates are private."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from moothall.app.host import Hosting, first_ready
from moothall.errors import FleetUnavailable
from moothall.testing.bus import MemoryBus
from moothall.workers.subprocesses import Alive

HOST = """
import asyncio, os, sys
from pathlib import Path
from moothall.config import Settings
from moothall.settings import load_settings
from moothall.errors import MoothallError
from moothall.workers.owner import Process
from moothall.app.host import host_main

os.umask(0)
settings = load_settings(data_dir=Path(sys.argv[1]))
try:
    asyncio.run(host_main("host-1", print, app=Process(0, 0, ""), settings=settings, bus_url="nats://127.0.0.1:1", model_url=""))
except* MoothallError:
    print("no bus")
"""  # noqa: E501 - a line of embedded text
OUTSIDER = "import os, sys; os.setgid(65534); os.setuid(65534); os.listdir(sys.argv[1])"


@pytest.mark.e2e  # a host's process
async def test_a_host_creates_the_data_directory_for_its_owner_only(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOST, str(data), stdout=asyncio.subprocess.PIPE
    )
    stdout, _ = await host.communicate()
    assert stdout.decode().strip() == "no bus"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    if os.geteuid() != 0:
        pytest.skip("only root can change the user")
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(above.stat().st_mode | 0o111)
    outsider = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", OUTSIDER, str(data), stderr=asyncio.subprocess.PIPE
    )
    _, refused = await outsider.communicate()
    assert b"Permission denied" in refused


def starting(error: Exception | None) -> Hosting:
    """Return a function that starts hosts, or fails like Ray's: the error comes in a group."""

    @asynccontextmanager
    async def hosting(*_: Any) -> AsyncIterator[Alive]:
        async with asyncio.TaskGroup():
            if error is not None:
                raise error
        yield _count

    return hosting


LATE = FleetUnavailable("the hosts on Ray were not ready within 120 s")


async def _count() -> tuple[int, int]:
    return 1, 1


async def test_hosts_that_ray_starts_too_late_run_in_this_process() -> None:
    messages: list[str] = []
    async with first_ready(starting(LATE), starting(None), messages.append)(
        MemoryBus(),  # type: ignore[arg-type] # not used
        "",
        "",
    ) as alive:
        assert await alive() == (1, 1)
    assert messages == [
        "hosts run in this process instead of Ray: the hosts on Ray were not ready within 120 s"
    ]


async def test_a_server_reports_late_hosts_as_an_error_with_the_setting() -> None:
    with pytest.raises(FleetUnavailable, match="MOOTHALL_RAY__MODE=subprocess") as caught:
        async with first_ready(starting(LATE), starting(None), None)(MemoryBus(), "", ""):  # type: ignore[arg-type] # not used
            pass
    assert caught.value.code == "RAY_UNAVAILABLE"


async def test_a_bug_of_a_host_is_not_treated_as_a_late_ray() -> None:
    with pytest.raises(ExceptionGroup):
        async with first_ready(starting(ValueError("a bug of a host")), starting(None), print)(
            MemoryBus(),  # type: ignore[arg-type] # not used
            "",
            "",
        ):
            pass
