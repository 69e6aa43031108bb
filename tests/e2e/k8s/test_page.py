"""Commands of docs/operating.md about the single Deployment, run in the overlay `dev`."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from pathlib import Path

import grpc.aio
import pytest
from k8s.test_deploy import run_in_pod

from support.kube import page
from support.kube.ctl import ask

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]


async def test_the_deployment_is_scaled_to_zero_and_back(installed: dict[str, Path]) -> None:
    down, up = (
        page.lines(f"kubectl -n moothall scale deployment/moothall --replicas={count}")[0]
        for count in (0, 1)
    )
    await page.run(down)
    async with asyncio.timeout(120):
        while "NAME" in await ask(
            "-n", "moothall", "get", "pods", "-l", "app.kubernetes.io/name=moothall"
        ):
            await asyncio.sleep(0.5)
    await page.run(up)
    await ask("-n", "moothall", "rollout", "status", "deployment/moothall", "--timeout=180s")
    assert "moothall" in await run_in_pod("moothall", "--version")


async def test_the_apis_are_reached_by_port_forward(installed: dict[str, Path]) -> None:
    (documented,) = re.findall(r"`(kubectl [^`]*port-forward [^`]*)`", page.TEXT)
    command = re.sub(r" (50055|8080)\b", r" :\1", documented)  # use free local ports
    process = await asyncio.create_subprocess_exec(*command.split(), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    dependencies: dict[str, str] = {}
    try:
        async with asyncio.timeout(30):
            while set(dependencies) != {"50055", "8080"}:
                if match := re.match(
                    rb"Forwarding from (127\.0\.0\.1:\d+) -> (\d+)", await process.stdout.readline()
                ):
                    dependencies[match[2].decode()] = match[1].decode()
        answered = await asyncio.to_thread(
            urllib.request.urlopen, f"http://{dependencies['8080']}/ready", timeout=30
        )
        assert answered.status == 200
        async with grpc.aio.insecure_channel(dependencies["50055"]) as channel:
            await asyncio.wait_for(channel.channel_ready(), 30)
    finally:
        process.terminate()
        await process.wait()


async def test_doctor_and_fleet_report_working_parts(installed: dict[str, Path]) -> None:
    (documented,) = re.findall(
        r"`(kubectl -n moothall exec deploy/moothall -- moothall doctor)`", page.TEXT
    )
    text = await ask(*documented.split()[1:], check=False)
    for part in ("bus", "fleet", "model"):
        assert re.search(rf"^ok +{part} ", text, re.MULTILINE), text
    assert json.loads(await run_in_pod("moothall", "fleet", "--json"))["hosts"]
