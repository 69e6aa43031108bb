"""What a host makes that comes first on its node is nobody else's."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path

import pytest

HOST = """
import asyncio, os, sys
from pathlib import Path
from moothall.config import BusSettings, Settings
from moothall.settings import load_settings
from moothall.errors import MoothallError
from moothall.fleet.owner import Process
from moothall.wiring.host import host_main

os.umask(0)
settings = load_settings(data_dir=Path(sys.argv[1]), bus=BusSettings(publish_seconds=0.1))
try:
    asyncio.run(host_main("host-1", print, house=Process(0, 0, ""), settings=settings, bus_url="nats://127.0.0.1:1", model_url=""))
except* MoothallError:
    print("no bus")
"""
STRANGER = "import os, sys; os.setgid(65534); os.setuid(65534); os.listdir(sys.argv[1])"


@pytest.mark.e2e  # a host's process
async def test_a_host_that_makes_the_data_directory_makes_it_for_its_owner_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", HOST, str(data), stdout=asyncio.subprocess.PIPE)
    said, _ = await host.communicate()
    assert said.decode().strip() == "no bus"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    if os.geteuid() != 0:
        pytest.skip("who is not root cannot become somebody else")
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(above.stat().st_mode | 0o111)
    stranger = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", STRANGER, str(data)), stderr=asyncio.subprocess.PIPE
    )
    _, refused = await stranger.communicate()
    assert b"Permission denied" in refused
