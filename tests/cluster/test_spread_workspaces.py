"""The workspaces of one council lie on two Ray nodes, and one of them is killed in the middle."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from command import Command, answer_turns_with, by_task, git
from moothall.cli.demo import make_sample_repository
from moothall.config import BusSettings
from moothall.events.nats.server import embedded_server
from moothall.testing.model import Fault, ScriptedModel, scripted_model
from ray_nodes import TOKEN, growing_nodes
from serving import serving
from support.processes import all_gone, command_line, descendants

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


def sandboxes_below(raylet: psutil.Process) -> list[psutil.Process]:
    """Return the processes of the executors that a node runs."""
    return [child for child in descendants(raylet.pid) if "executor" in command_line(child)]


def seats_at_work(model: ScriptedModel) -> set[str]:
    """Return the seats whose model was asked, each from its open workspace."""
    calls = [request.call_id.split("/") for request in model.requests]
    return {call[1] for call in calls if "propose" in call}


def raylets_beside(raylet: psutil.Process) -> list[psutil.Process]:
    """Return the raylets of the same cluster."""
    cluster = raylet.parent()
    assert cluster is not None
    return [child for child in cluster.children() if child.name() == "raylet" and child != raylet]


async def until(condition: Any, description: str, *folders: Path, seconds: float = 120) -> None:
    """Wait until something is true, or fail with the logs."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.1)
    except TimeoutError:
        logs = [path for folder in folders for path in sorted(folder.glob("logs/*.log"))]
        text = "\n".join(f"{path}:\n{path.read_text(errors='replace')[-4000:]}" for path in logs)
        raise AssertionError(f"{description}\n{text}") from None


async def test_a_council_on_two_nodes_finishes_after_one_is_killed(tmp_path: Path) -> None:
    repo, data = tmp_path / "repo", tmp_path / "data"
    await make_sample_repository(repo)

    async def slowly(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        await asyncio.sleep(2)
        return by_task(body, headers)

    def host_log() -> str:
        return "".join(path.read_text() for path in data.glob("logs/host-1*.log"))

    async with (
        scripted_model(answer_turns_with(slowly)) as model,
        embedded_server(BusSettings(), tmp_path / "bus") as bus_url,
        growing_nodes(1) as (address, first, add_node),
    ):
        extra = {
            **TOKEN,
            "MOOTHALL_WORKSPACE__KIND": "ray",
            "MOOTHALL_RAY__ADDRESS": address,
            "MOOTHALL_BUS__URL": bus_url,
            "MOOTHALL_BUS__ACK_WAIT_SECONDS": "3",
        }
        command = Command(data, model.base_url, extra)
        async with serving(command), asyncio.TaskGroup() as group:
            add_node()  # the host is on the first one
            await until(
                lambda: host_log().count("a node runs sandboxes") == 2, "no second node", data
            )
            (second,) = raylets_beside(first)
            deliberation = group.create_task(
                command("deliberate", "--repo", str(repo), "--json", TASK, seconds=300)
            )
            await until(lambda: len(seats_at_work(model)) == 3, "not all seats began", data)
            assert sandboxes_below(first)
            assert sandboxes_below(second)
            killed = [second, *descendants(second.pid)]
            for child in killed:
                with suppress(psutil.NoSuchProcess):
                    child.send_signal(signal.SIGKILL)
            assert await all_gone(killed) == []
        result = deliberation.result()
        assert result.code == 0, result.err
        assert result.document["proven"] is True
        assert git(repo, "branch", "--list", result.document["branch"])
        assert "a node is given up" in host_log()
        assert "workspace lost; repeating its turns" in host_log()
