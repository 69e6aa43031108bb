"""The pipeline examples of docs/api.md, run against a real server with a repository by URL."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from served import run_server

from command import QUICK, Command
from moothall.testing.model import ScriptedModel
from support.githttp import git_server
from support.repos import Repo, make_sample

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

PAGE = (Path(__file__).parents[2] / "docs/api.md").read_text(encoding="utf-8")
SERVER = "grpc.moothall.example:443"
PROVEN, UNPROVEN = (
    'Add hello_world() function to src/utils.py; say "hi" and $(touch MISUSED)',
    "Write NOTES down",
)


def example(name: str) -> Any:
    """Return the block of the page below a line that names it."""
    block = re.search(rf"^{re.escape(name)}:\n\n((?:    .*\n|\n)+)", PAGE, re.MULTILINE)
    assert block is not None, f"the page has no example for {name}"
    return yaml.safe_load(block[1])


@dataclass(frozen=True, slots=True)
class App:
    """A running server, and the inputs of a pipeline: the repository's base URL, its last commit,
    and the token file.
    """

    at: str
    url: str
    sha: str
    token: Path


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def app(model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[App]:
    folder = tmp_path_factory.mktemp("pipelines")
    sample = make_sample(folder / "sample")
    sha = sample.head
    (folder / "git/acme").mkdir(parents=True)
    sample.git("clone", "--quiet", "--bare", str(sample.path), str(folder / "git/acme/app"))
    with git_server(folder / "git") as server:
        settings = {
            **QUICK,
            "MOOTHALL_RAY__MODE": "process",
            "MOOTHALL_WORKSPACE__ALLOWED_SCHEMES": '["http"]',
            "MOOTHALL_HTTP__ALLOW": json.dumps([server.url.removeprefix("http://")]),
        }
        command = Command(folder / "data", model.base_url, settings)
        async with run_server(command):
            yield App(command.served_at, server.url, sha, command.data_dir / "token")
        assert Repo(folder / "git/acme/app").git("branch", "--list", "moothall/*") == "", (
            "nothing is pushed without a request"
        )


async def run(script: str, folder: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a step's script as both kinds of runners do: in bash with `set -e`."""
    # A machine without configuration of the server.
    command = Command(folder / "mine", extra={"MOOTHALL_LOG__LEVEL": "error", **variables})
    environment = command.environment()
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    process = await asyncio.create_subprocess_exec(
        "bash",
        "--noprofile",
        "--norc",
        "-eo",
        "pipefail",
        "-c",
        script,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(300):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


def check(folder: Path, summary: Path, result: tuple[int, str], task: str) -> None:
    """Assert the exit code and the ranking of a task that is proven, or not."""
    code, output = result
    assert code == (0 if task == PROVEN else 3), output
    summary_text = summary.read_text(encoding="utf-8")
    assert "| 1 | " in summary_text
    assert re.search(r"branch `moothall/[\w-]+`", summary_text)
    assert ("unproven" in summary_text.lower()) == (task == UNPROVEN), summary_text
    assert not (folder / "MISUSED").exists()


@pytest.mark.parametrize("task", [PROVEN, UNPROVEN], ids=["proven", "unproven"])
async def test_the_github_step_ends_like_the_deliberation(
    app: App, tmp_path: Path, task: str
) -> None:
    install, step = example("GitHub Actions")
    assert install == {"run": "pip install moothall"}
    assert step["shell"] == "bash"
    inputs = {
        "${{ secrets.MOOTHALL_TOKEN }}": app.token.read_text(encoding="utf-8"),
        "${{ inputs.task }}": task,
    }
    assert "${{" not in step["run"], "a caller's text would be part of the script"
    summary = tmp_path / "summary.md"
    variables = {name: inputs[value] for name, value in step["env"].items()} | {
        "GITHUB_SERVER_URL": app.url,
        "GITHUB_REPOSITORY": "acme/app",
        "GITHUB_SHA": app.sha,
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    assert step["run"].count(SERVER) == 1
    check(
        tmp_path,
        summary,
        await run(step["run"].replace(SERVER, app.at), tmp_path, variables),
        task,
    )


@pytest.mark.parametrize("task", [PROVEN, UNPROVEN], ids=["proven", "unproven"])
async def test_the_gitlab_job_ends_like_the_deliberation(
    app: App, tmp_path: Path, task: str
) -> None:
    job = example("GitLab CI")["deliberate"]
    install, line = job["script"]
    assert install == "pip install moothall"
    variables = {
        "SERVER_TOKEN": str(app.token),
        "TASK": task,
        "CI_PROJECT_URL": f"{app.url}/acme/app",
        "CI_COMMIT_SHA": app.sha,
    }
    assert line.count(SERVER) == 1
    result = await run(line.replace(SERVER, app.at), tmp_path, variables)
    (summary,) = job["artifacts"]["paths"]
    assert job["artifacts"]["when"] == "always"
    check(tmp_path, tmp_path / summary, result, task)
