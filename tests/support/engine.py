"""A real, private container engine for tests, with its files in a temporary folder, without
network, removed at the end.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.servers import Missing, running, wait_for

_START_SECONDS = 120.0


@contextmanager
def engine() -> Iterator[str]:
    """Yield the host of an engine, as in docker.host. Raises `Missing`."""
    binary = shutil.which("dockerd")
    if binary is None:
        raise Missing("no container engine: `apt-get install docker.io` brings one")
    if os.getuid() != 0:
        raise Missing("a container engine of the tests' own needs root: run them as root")
    home = Path(tempfile.mkdtemp(prefix="moothall-engine-"))
    try:
        socket_path = home / "engine.sock"
        command = [
            binary,
            "--data-root",
            str(home / "data"),
            "--exec-root",
            str(home / "exec"),
            "--pidfile",
            str(home / "pid"),
            "--host",
            f"unix://{socket_path}",
            "--storage-driver",
            "vfs",
            "--exec-opt",
            "native.cgroupdriver=cgroupfs",
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
            "--ip-masq=false",
        ]
        log = home / "out.log"
        with running(command, log) as process:
            wait_for(lambda: _accepts(socket_path), process, log, _START_SECONDS)
            yield f"unix://{socket_path}"
    finally:
        for line in reversed(Path("/proc/mounts").read_text(encoding="utf-8").splitlines()):
            mounted = line.split(" ")[1]
            if mounted.startswith(f"{home}/"):
                subprocess.run(["umount", "--lazy", mounted], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def _accepts(socket_path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(socket_path)) == 0
