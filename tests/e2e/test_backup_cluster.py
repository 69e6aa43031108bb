"""The CronJob and the Job of deploy/k8s/examples, run as processes: a backup of a bus of three
servers under load, and its restoration on three empty ones with other keys.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from moothall.config import LimitSettings
from moothall.domain.event import Channel, EventType
from moothall.domain.ids import Principal
from moothall.domain.task import DeliberationRequest
from moothall.events.adapter import Bus, open_bus
from moothall.events.nats import accounts
from moothall.events.raw_store import Raw
from moothall.events.registry import EVENTS, WORK
from moothall.orchestrator.request_planning import Defaults
from moothall.orchestrator.service import DeliberationService
from moothall.testing.bus_contract import seat
from support.story import Remembering
from support.three_servers import Three, three_servers

pytestmark = pytest.mark.e2e

KUBERNETES = Path(__file__).parents[2] / "deploy/k8s"
SERVED = {
    "MOOTHALL_GRPC__HOST": "0.0.0.0",  # noqa: S104 - as in `prod`; nothing listens here
    "MOOTHALL_GRPC__TLS_CERT": "/etc/moothall/tls/tls.crt",
    "MOOTHALL_GRPC__TLS_KEY": "/etc/moothall/tls/tls.key",
    "MOOTHALL_GRPC__TOKEN": "t" * 32,
}
"""Settings of `prod` and its Secret, whose files the pods of backups do not have."""


def pod_of(file: str) -> dict[str, Any]:
    """Return the pod of the Job or CronJob in an example."""
    for document in yaml.safe_load_all(
        (KUBERNETES / "examples" / file).read_text(encoding="utf-8")
    ):
        spec = document["spec"].get("jobTemplate", document)["spec"]
        if "template" in spec:
            pod: dict[str, Any] = spec["template"]["spec"]
            return pod
    pytest.fail(f"{file} has no Job")


async def run_pod(file: str, servers: Three, keys: Path, root: Path) -> str:
    """Run the container of an example with its volumes below `root`, and return its output."""
    pod = pod_of(file)
    (container,) = pod["containers"]
    paths = {mount["mountPath"] for mount in container["volumeMounts"]}
    for path in paths:
        (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (secret,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    for item in secret["items"]:
        shutil.copy(keys / item["key"], root / "etc/moothall/bus" / item["path"])

    def below_root(text: str) -> str:
        return re.sub(
            rf"(?<![\w/.])({'|'.join(map(re.escape, paths))})(?=/|$| )", rf"{root}\1", text
        )

    documents = yaml.safe_load_all((KUBERNETES / "base/moothall.yaml").read_text(encoding="utf-8"))
    settings = {name: below_root(value) for name, value in next(documents)["data"].items()}
    settings["MOOTHALL_BUS__URL"] = str(servers.of(keys, "collector").url)
    variables = {item["name"]: below_root(item["value"]) for item in container["env"]}
    process = await asyncio.create_subprocess_exec(
        *map(below_root, [*container["command"], *container["args"]]),
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            **SERVED,
            **settings,
            **variables,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Three, Path]]:
    """Yield three empty servers with new keys, and the folder of the keys."""
    folder.mkdir()
    accounts.create_account_files(folder / "keys")
    async with three_servers(folder) as servers:
        for number in range(3):
            await servers.start(number, folder / "keys")
        yield servers, folder / "keys"


async def write(bus: Bus, stopped: asyncio.Event) -> None:
    service = DeliberationService(bus, Remembering(), Defaults(LimitSettings()))
    number = 0
    while not stopped.is_set():
        request = DeliberationRequest("Write a haiku", "dev", task_id=f"t-{number}")
        task = await service.submit(request, Principal("ann", "team-a"))
        await bus.publish(seat(1, task.task_id, answer="x" * 2000))
        number += 1


async def read(bus: Bus) -> list[Raw]:
    return [raw async for raw in bus.raw(EVENTS.name)]


async def test_a_cluster_is_backed_up_under_load_and_restored(tmp_path: Path) -> None:
    stopped = asyncio.Event()
    async with running(tmp_path / "before") as (servers, keys):
        settings = servers.of(keys, "services")
        async with open_bus(settings, str(settings.url)) as bus, asyncio.TaskGroup() as group:
            group.create_task(write(bus, stopped))
            while len(await read(bus)) < 50:
                await asyncio.sleep(0.1)
            saved = await run_pod("backup.yaml", servers, keys, tmp_path / "pod")
            stopped.set()
        async with open_bus(settings, str(settings.url)) as bus:
            original = await read(bus)
    mark = int(re.findall(r"up to seq (\d+)", saved)[0])
    assert original[-1].seq > mark
    (file,) = (tmp_path / "pod/backups").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    (tmp_path / "new/backups").mkdir(parents=True)
    file.rename(tmp_path / "new/backups/moothall.tar")
    async with running(tmp_path / "after") as (servers, keys):
        restored = await run_pod("restore-backup.yaml", servers, keys, tmp_path / "new")
        assert f"up to seq {mark}" in restored
        settings = servers.of(keys, "services")
        async with open_bus(settings, str(settings.url)) as bus:
            log = await read(bus)
            assert log == [raw for raw in original if raw.seq <= mark]
            requests = [
                recorded
                async for recorded in bus.replay((Channel.RESULTS.all,))
                if recorded.event.type is EventType.DELIBERATION_REQUESTED
            ]
            assert (await bus.state(WORK.name)).messages == len(requests) > 10, "all are queued"
