"""deploy/k8s/examples/deliberation.yaml in a pipeline: the Job and the exit code of its pod follow
the deliberation.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from k8s.roles.role_deployment import TASK, RoleDeployment

from support.kube.ctl import ask
from support.kube.deployment import OURS, SPACE, TOKEN

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

EXAMPLE = Path(__file__).parents[4] / "deploy/k8s/examples/deliberation.yaml"
QUOTED = f'--{TASK}: it\'s "quoted", $(REPOSITORY)\nand $HOME `id`'


def manifest() -> dict[str, Any]:
    """Return the example with this deployment's names in place of its placeholders."""
    text = EXAMPLE.read_text(encoding="utf-8").replace("moothall.moothall:", f"moothall.{SPACE}:")
    job: dict[str, Any] = yaml.safe_load(text)
    job["metadata"]["namespace"] = SPACE
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "moothall"
    container["image"] = OURS
    return job


@asynccontextmanager
async def secrets(values: Mapping[str, str], authority: bytes) -> AsyncIterator[None]:
    """Create what the example expects: the pipeline's Secret, and the CA beside the server's
    certificate.
    """
    literals = [f"--from-literal={name}={value}" for name, value in values.items()]
    await ask("-n", SPACE, "create", "secret", "generic", "pipeline", *literals)
    patch = json.dumps({"data": {"ca.crt": base64.b64encode(authority).decode()}})
    await ask("-n", SPACE, "patch", "secret", "moothall-tls", "--patch", patch)
    try:
        yield
    finally:
        await ask("-n", SPACE, "delete", "secret", "pipeline")


async def wait_for_end(name: str) -> str:
    """Wait for a Job to end and return its final state."""
    async with asyncio.timeout(300):
        while True:
            job = json.loads(await ask("-n", SPACE, "get", name, "-o", "json"))
            for condition in job.get("status", {}).get("conditions", ()):
                if condition["type"] in {"Complete", "Failed"} and condition["status"] == "True":
                    return str(condition["type"])
            await asyncio.sleep(1)


ENDS = {
    "proven": ({"task": QUOTED}, "Complete", 0),
    "none": ({"task": "WRONG: add hello_world() function to src/utils.py"}, "Failed", 1),
    "a broken part": ({"token": "somebody-elses-token"}, "Failed", 2),
}


@pytest.mark.parametrize("case", ENDS)
async def test_a_pipeline_job_ends_like_its_deliberation(
    case: str, role_deployment: RoleDeployment
) -> None:
    values, end, code = ENDS[case]
    async with secrets(
        {"token": TOKEN, "repository": role_deployment.repository, "task": TASK} | values,
        role_deployment.authority,
    ):
        name = (await ask("create", "-f", "-", "-o", "name", stdin=json.dumps(manifest()))).strip()
        try:
            state = await wait_for_end(name)
            (pod,) = await role_deployment.pods(f"job-name={name.rpartition('/')[2]}")
            text = await ask("-n", SPACE, "logs", name)
        finally:
            await ask("-n", SPACE, "delete", name)
    (container,) = pod.status.container_statuses
    assert (state, container.state.terminated.exit_code) == (end, code), text
    if code < 2:
        result = json.loads(text[text.index("{") : text.rindex("}") + 1])
        assert result["proven"] is (code == 0)
        output = await ask(
            "-n", SPACE, "exec", "deploy/moothall-api", "--", "moothall", "list", "--json"
        )
        (task,) = [
            listed_task
            for listed_task in json.loads(output)["tasks"]
            if listed_task["task_id"] == result["task_id"]
        ]
        assert task["description"] == values["task"], (
            "the request has the exact values of the Secret"
        )
    else:
        assert "token" in text, "the error is reported"
    assert await role_deployment.leftovers() == []
