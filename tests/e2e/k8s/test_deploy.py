"""deploy/k8s as installed: the overlay `dev` runs, a council in it ends proven, and its permissions
are as documented.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support import gobuilt
from support.kube import crds
from support.kube.ctl import ask
from support.kube.reached import DEPLOY

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

SAMPLE = """
import subprocess, sys
from pathlib import Path
repo = Path(sys.argv[1])
files = {
    ".moothall.toml": 'setup = []\\n[checks]\\ntests = "/usr/bin/python3 -m unittest -v"\\n',  # the image's: no environment to bring
    "src/__init__.py": "",
    "src/utils.py": "def add(a, b):\\n    return a + b\\n",
    "tests/__init__.py": "",
    "tests/test_utils.py": "import unittest\\nfrom src import utils\\n\\nclass Utils(unittest.TestCase):\\n"
    "    def test_hello_world(self):\\n        self.assertEqual(utils.hello_world(), 'Hello, World!')\\n",
}
for name, text in files.items():
    (repo / name).parent.mkdir(parents=True, exist_ok=True)
    (repo / name).write_text(text)
who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
for words in (("init", "-q", "-b", "main"), ("add", "."), (*who, "commit", "-q", "-m", "first")):
    subprocess.run(("git", "-C", repo, *words), check=True)
"""  # noqa: E501 - a line of embedded text


async def run_in_pod(*command: str, check: bool = True) -> str:
    return await ask("-n", "moothall", "exec", "deploy/moothall", "--", *command, check=check)


async def deliberate(name: str, task: str) -> dict[str, Any]:
    """Run a council in the cluster on a fresh sample repository."""
    await run_in_pod("python", "-c", SAMPLE, f"/data/{name}")
    output = await run_in_pod(
        "moothall", "deliberate", "--repo", f"/data/{name}", "--agents", "3", "--json", task
    )
    outcome: dict[str, Any] = json.loads(output[output.index("{") : output.rindex("}") + 1])
    return outcome


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def custom_resources() -> None:
    """The custom resource definitions of KubeRay and of the Prometheus operator."""
    try:
        definitions = crds.files()
    except gobuilt.Missing as missing:
        pytest.skip(str(missing))
    for definition in definitions:
        await ask("apply", "--server-side", "-f", str(definition))
        # `kubectl wait` gives up on a new object, which has no conditions yet.
        async with asyncio.timeout(60):
            while "condition met" not in await ask(
                "wait", "--for=condition=Established", "-f", str(definition), check=False
            ):
                await asyncio.sleep(0.5)


OVERLAYS = sorted(path.name for path in (DEPLOY / "overlays").iterdir())


@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_the_cluster_accepts_every_overlay(overlay: str, custom_resources: None) -> None:
    output = await ask("apply", "--dry-run=server", "-k", str(DEPLOY / "overlays" / overlay))
    assert "would violate PodSecurity" not in output
    assert "(server dry run)" in output


@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_the_cluster_accepts_the_chart(overlay: str, custom_resources: None) -> None:
    try:
        helm = gobuilt.program("helm")
    except gobuilt.Missing as missing:
        pytest.skip(str(missing))
    chart = DEPLOY.parent / "helm/moothall"
    command = [
        str(helm),
        "template",
        "--kube-version=1.34",
        "moothall",
        str(chart),
        "-n",
        "moothall",
        "-f",
        f"{chart}/ci/{overlay}-values.yaml",
    ]
    rendered = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=True
    )
    output = await ask("apply", "--dry-run=server", "-f", "-", stdin=rendered.stdout)
    assert "would violate PodSecurity" not in output
    assert "(server dry run)" in output


async def test_a_council_in_the_cluster_ends_proven_and_leaves_no_job(
    installed: dict[str, Path],
) -> None:
    result = await deliberate("first", "Add hello_world() function to src/utils.py")
    assert result["proven"] is True
    assert len(result["results"]) == 3
    diff = await run_in_pod("git", "-C", "/data/first", "show", "--format=", result["branch"])
    assert "def hello_world():" in diff
    await ask(
        "-n", "moothall-workspaces", "wait", "--for=delete", "jobs,pods", "--all", "--timeout=30s"
    )


async def test_doctor_in_the_cluster_finds_no_problem(
    installed: dict[str, Path],
) -> None:
    output = await run_in_pod("moothall", "doctor", "--json")  # fails if the exit code is not 0
    parts = {
        finding["part"]: finding["detail"]
        for finding in json.loads(output[output.index("[") : output.rindex("]") + 1])
    }
    assert parts["cluster quota"].startswith("pods ")
    assert parts["workspace job"].startswith("ready after ")
    assert parts["python blocks"].startswith("pydantic-monty")
    assert not [part for part in parts if part.startswith("sandbox")]
    await ask(
        "-n", "moothall-workspaces", "wait", "--for=delete", "jobs,pods", "--all", "--timeout=30s"
    )


async def test_a_killed_bus_server_does_not_affect_a_council(installed: dict[str, Path]) -> None:
    second = asyncio.create_task(deliberate("second", "Add hello_world() function to src/utils.py"))
    await asyncio.sleep(6)  # while its seats work
    await ask("-n", "moothall", "delete", "pod", "nats-1", "--grace-period=0", "--force")
    assert (await second)["proven"] is True


@pytest.mark.parametrize(
    ("verb", "resource", "namespace", "answer"),
    [
        ("create", "jobs", "moothall-workspaces", "yes"),
        ("list", "resourcequotas", "moothall-workspaces", "yes"),
        ("update", "resourcequotas", "moothall-workspaces", "no"),
        ("get", "secrets", "moothall-workspaces", "no"),
        ("list", "secrets", "moothall", "no"),
        ("create", "pods/exec", "moothall-workspaces", "no"),
        ("create", "jobs", "moothall", "no"),
        ("get", "nodes", "default", "no"),
    ],
)
async def test_the_service_account_may_create_workspace_jobs_and_nothing_else(
    verb: str, resource: str, namespace: str, answer: str
) -> None:
    output = await ask(
        "auth",
        "can-i",
        verb,
        resource,
        "-n",
        namespace,
        "--as=system:serviceaccount:moothall:moothall",
        check=False,
    )
    assert output.split()[-1] == answer, output
