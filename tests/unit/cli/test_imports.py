from __future__ import annotations

import subprocess
import sys

import pytest

_COSTLY = {"aiohttp", "git", "grpc", "kglite", "neo4j", "ray", "rich"}


@pytest.mark.parametrize(
    "modules",
    [
        "moothall.cli.config",
        "moothall.cli.log, moothall.wiring.log, moothall.bus.nats.server",
        "moothall.cli.graph, moothall.wiring.graph",
    ],
)
def test_commands_that_need_no_ray_import_nothing_costly(modules: str) -> None:
    code = f"import sys, {modules}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(ran.stdout.split())
    assert modules.rpartition(" ")[2] in loaded
    assert not loaded & _COSTLY


def test_a_command_with_hosts_of_its_own_imports_no_ray() -> None:
    modules = (
        "moothall.cli.deliberate, moothall.wiring.house, moothall.wiring.fleet, moothall.wiring.host, moothall.fleet.in_process"
    )
    code = f"import sys, {modules}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert "ray" not in ran.stdout.split()
