"""Two hosts share only the bus and the model, and one is killed: the other ends the work, and the
branch is the same as on one machine.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import simulated_machines
from command import Command, answer_turns_with, by_task, git
from moothall.config import BusSettings
from moothall.events.nats.server import embedded_server
from moothall.testing.model import Fault, ScriptedModel, scripted_model
from ray_nodes import TOKEN
from serving import serving, until_begun
from support.repos import Repo, make_repo

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"
TESTS = """import unittest

from src import utils


class Utils(unittest.TestCase):
    def test_add(self):
        self.assertEqual(utils.add(2, 3), 5)

    def test_hello_world(self):
        self.assertEqual(utils.hello_world(), "Hello, World!")
"""
FILES = {
    "src/__init__.py": "",
    "src/utils.py": "def add(a, b):\n    return a + b\n",
    "tests/__init__.py": "",
    "tests/test_utils.py": TESTS,
    ".moothall.toml": (
        'setup = ["/env/bin/python --version"]\n[checks]\ntests = "python3 -m unittest -v"\n'
    ),
}


def one_machine(folder: Path, model: ScriptedModel) -> Command:
    """The same work on one machine, as a reference."""
    return Command(folder / "alone", model.base_url, {"MOOTHALL_WORKSPACE__SETUP_NETWORK": "off"})


@pytest_asyncio.fixture(loop_scope="session")
async def folder() -> AsyncIterator[Path]:
    """A folder with a short name, for Ray's sockets."""
    path = Path(tempfile.mkdtemp(prefix="mh-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


async def test_work_continues_on_hosts_without_a_shared_disk_after_one_is_killed(
    folder: Path,
) -> None:
    if missing := simulated_machines.missing():
        pytest.skip(f"simulated machines are unavailable here; missing: {missing}")
    repo, other_repo = make_repo(folder / "repo", FILES), make_repo(folder / "other", FILES)

    async def slowly(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        await asyncio.sleep(2)
        return by_task(body, headers)

    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(scripted_model(answer_turns_with(slowly)))
        bus_url = await stack.enter_async_context(embedded_server(BusSettings(), folder / "bus"))
        await stack.enter_async_context(simulated_machines.bridge())
        machines = [
            await stack.enter_async_context(simulated_machines.machine(number, folder))
            for number in (1, 2)
        ]
        bus_there, model_there = [
            await stack.enter_async_context(simulated_machines.relay(url))
            for url in (bus_url, model.base_url)
        ]
        address, nodes = await stack.enter_async_context(simulated_machines.nodes(folder, machines))
        data = folder / "data"
        extra = {
            **TOKEN,
            "MOOTHALL_RAY__ADDRESS": address,
            "MOOTHALL_RAY__HOSTS": "2",
            "MOOTHALL_RAY__SEATS_PER_HOST": "1",  # two deliberations, one for each host
            "MOOTHALL_BUS__URL": bus_there,
            "MOOTHALL_BUS__ACK_WAIT_SECONDS": "3",
            "MOOTHALL_WORKSPACE__SETUP_NETWORK": "off",
        }
        command = Command(data, model_there, extra)
        async with serving(command) as port, asyncio.TaskGroup() as group:
            for machine in machines:  # only the bus and the model are reachable
                assert not machine.sees(repo.path).exists()
                assert not machine.sees(data / "token").exists()
                assert not any(
                    [
                        await machine.reaches(host, port)
                        for host in ("127.0.0.1", simulated_machines.SERVER)
                    ]
                )
            ask = ("deliberate", "--repo", str(repo.path), "--json", "--task-id")
            deliberations = [
                group.create_task(command(*ask, name, TASK, seconds=300)) for name in ("one", "two")
            ]
            await until_begun(model, 2, data, *(machine.sees(data) for machine in machines))
            for machine in machines:
                assert len(list(machine.sees(data / "repos").glob("far-*.git"))) == 1
            fleet = (await command("fleet", "--json")).document["hosts"]
            assert {host["node"] for host in fleet} == {machine.ip for machine in machines}
            assert sorted(work["task_id"] for host in fleet for work in host["holds"]) == [
                "one",
                "two",
            ]
            nodes[1].kill()
        for result in (task.result() for task in deliberations):
            assert result.code == 0, result.err
            assert result.document["proven"] is True
        verified = await command("audit", "verify")
        assert verified.code == 0, verified.out
        assert ": whole" in verified.out
        assert len(list(machines[0].sees(data / "audit" / "local").glob("host-*.jsonl"))) == 1
        assert not list((data / "audit" / "local").glob("host-*.jsonl"))
        records = int(verified.out.strip().splitlines()[-1].split()[0])
        assert records > 0  # all events come from the stream
        # The files are the same as on one machine, from the same commit.
        local = await one_machine(folder, model)(
            "deliberate", "--repo", str(other_repo.path), "--json", "--task-id", "one", TASK
        )
        assert local.code == 0, local.err
        trees = {
            tree(other_repo, "moothall/one"),
            tree(repo, "moothall/one"),
            tree(repo, "moothall/two"),
        }
        assert len(trees) == 1


def tree(repo: Repo, branch: str) -> str:
    return git(repo.path, "rev-parse", f"{branch}^{{tree}}")
