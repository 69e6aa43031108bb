"""The steps of action.yml and of the GitLab template, run in a checkout against a scripted model
and a loopback server that takes the comment.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from command import QUICK, SOLVED, Command, git
from moothall.testing.model import ScriptedModel
from support.repos import make_sample

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
JOB = yaml.safe_load((ROOT / "deploy/ci/moothall.gitlab-ci.yml").read_text("utf-8"))["moothall"]
HOSTILE = """Add hello_world(); $(touch MISUSED) `touch MISUSED` "; touch MISUSED; "
/close
@everyone <img src=x> ${{ secrets.KEY }}
::error::forged"""


@dataclass(slots=True)
class Forge:
    """The comments that were posted, with the path and the token of each."""

    url: str = ""
    posts: list[tuple[str, str, str]] = field(default_factory=list)


@contextmanager
def forge(token: str) -> Iterator[Forge]:
    fake_forge = Forge()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            credential = self.headers[token]
            if not self.path.startswith("/closed/"):
                fake_forge.posts.append((self.path, credential, body["body"]))
            self.send_response(403 if self.path.startswith("/closed/") else 201)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    fake_forge.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake_forge
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def run(script: str, checkout: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a script as runners do, and return its exit code and output."""
    command = Command(checkout.parent / "data", extra={**QUICK, **variables})
    environment = command.environment()
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script),
        cwd=checkout,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(300):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


@dataclass(slots=True)
class Runner:
    """A runner of GitHub: it fills in the expressions of a step's variables."""

    checkout: Path
    inputs: dict[str, str]
    variables: dict[str, str]
    outputs: dict[str, str] = field(default_factory=dict)
    event: dict[str, str] = field(default_factory=dict)
    """More values of the event, by the expression."""

    def value(self, expression: str) -> str:
        name = expression.removeprefix("${{ ").removesuffix(" }}")
        if name.startswith("inputs."):
            name = name.removeprefix("inputs.")
            return self.inputs.get(name, str(ACTION["inputs"][name]["default"]))
        if name.startswith("steps."):
            _, step, _, output = name.split(".")
            return self.outputs.get(f"{step}.{output}", "")
        return {"github.event.pull_request.number": "7", **self.event}[name]

    async def step(self, name: str) -> tuple[int, str]:
        (step,) = [step for step in ACTION["runs"]["steps"] if step["name"] == name]
        variables = {key: self.value(value) for key, value in step.get("env", {}).items()}
        file = self.checkout.parent / "outputs"
        file.write_text("", encoding="utf-8")
        result = await run(
            step["run"], self.checkout, self.variables | {"GITHUB_OUTPUT": str(file)} | variables
        )
        lines = file.read_text(encoding="utf-8").splitlines()
        self.outputs.update(
            (f"{step.get('id')}.{line.partition('=')[0]}", line.partition("=")[2]) for line in lines
        )
        return result


def without_commands(output: str) -> str:
    """Return what a runner reads commands in: the lines outside `::stop-commands::TOKEN`."""
    return re.sub(r"(?ms)^::stop-commands::(\w{64})$.*^::\1::$", "", output)


def assert_harmless(body: str, checkout: Path) -> None:
    assert "| 1 | " in body
    assert not re.search(r"(?m)^\s*/", body), "a quick action of GitLab"
    assert "<img" not in body
    assert not re.search(r"(?<![`\w\\])@everyone", body)
    assert not list(checkout.parent.rglob("MISUSED"))


def runner(tmp_path: Path, **inputs: str) -> Runner:
    checkout = make_sample(tmp_path / "sample").path
    variables = {
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_REPOSITORY": "acme/app",
    }
    return Runner(checkout, inputs, variables)


async def test_the_action_checks_deliberates_and_comments(
    model: ScriptedModel, tmp_path: Path
) -> None:
    with forge("Authorization") as github:
        steps = runner(
            tmp_path, task=HOSTILE, **{"model-url": model.base_url, "github-token": "secret"}
        )
        steps.variables["GITHUB_API_URL"] = github.url
        code, output = await steps.step("Check")
        assert (code, "A council can be judged here" in output) == (0, True), output
        assert without_commands(output).strip() == ""
        code, output = await steps.step("Deliberate")
        assert (code, steps.outputs["deliberate.exit-code"]) == (0, "0"), output
        assert "::error" not in without_commands(output)
        assert "hello_world" in Path(steps.outputs["deliberate.patch"]).read_text(encoding="utf-8")
        assert await steps.step("Comment") == (0, "")
        steps.variables["GITHUB_API_URL"] = f"{github.url}/closed"
        code, output = await steps.step("Comment")
        assert (code, "::warning::The comment was not posted" in output) == (0, True)
        ((path, token, body),) = github.posts
    assert (path, token) == ("/repos/acme/app/issues/7/comments", "Bearer secret")
    assert body == Path(steps.variables["GITHUB_STEP_SUMMARY"]).read_text(encoding="utf-8")
    assert_harmless(body, steps.checkout)
    assert (await steps.step("Result"))[0] == 0


async def test_the_action_fails_for_an_unproven_winner_and_without_a_model(
    model: ScriptedModel, tmp_path: Path
) -> None:
    steps = runner(tmp_path, task="Write NOTES down", **{"model-url": model.base_url})
    assert (await steps.step("Deliberate"))[0] == 0, "the comment comes before the failure"
    assert (await steps.step("Result"))[0] == 3
    steps.inputs["model-url"] = ""
    code, output = await steps.step("Deliberate")
    assert (code, "set model-url, or server and token" in output) == (0, True)
    assert (await steps.step("Comment"))[0] == 0, "nothing to say"
    assert (await steps.step("Result"))[0] == 2


@pytest.mark.parametrize(("task", "ends"), [(HOSTILE, 0), ("Write NOTES down", 3)])
async def test_the_gitlab_job_checks_deliberates_and_comments(
    model: ScriptedModel, tmp_path: Path, task: str, ends: int
) -> None:
    checkout = make_sample(tmp_path / "sample").path
    script = "\n".join(JOB["script"])
    variables = {
        "MOOT_TASK": task,
        "MOOT_MODEL_URL": model.base_url,
        "COMMENT_TOKEN": "secret",
        "CI_MERGE_REQUEST_IID": "7",
        "CI_PROJECT_ID": "12",
    }
    with forge("PRIVATE-TOKEN") as gitlab:
        code, output = await run(script, checkout, variables | {"CI_API_V4_URL": gitlab.url})
        assert code == ends, output
        ((path, token, body),) = gitlab.posts
    assert (path, token) == ("/projects/12/merge_requests/7/notes", "secret")
    assert_harmless(body, checkout)
    assert set(JOB["artifacts"]["paths"]) == {"ranking.md", "moothall.patch", "verdict.sarif"}
    for name in ("ranking.md", "moothall.patch"):  # only a judgement writes the other one
        assert (checkout / name).exists()


async def test_the_action_judges_the_pull_request_and_fails_below_the_required_level(
    model: ScriptedModel, tmp_path: Path
) -> None:
    del model
    steps = runner(tmp_path, judge="unproven", **{"github-token": "secret"})
    base = git(steps.checkout, "rev-parse", "HEAD")
    path = steps.checkout / "src/utils.py"
    path.write_text(path.read_text(encoding="utf-8") + SOLVED, encoding="utf-8")
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    git(steps.checkout, *identity, "commit", "--quiet", "--all", "--message", "Solve it")
    prefix = "github.event.pull_request"
    steps.event = {
        f"{prefix}.base.sha": base,
        f"{prefix}.head.sha": git(steps.checkout, "rev-parse", "HEAD"),
        f"{prefix}.title": HOSTILE,
        f"{prefix}.body": "",
    }
    with forge("Authorization") as github:
        steps.variables["GITHUB_API_URL"] = github.url
        code, output = await steps.step("Judge")
        assert (code, steps.outputs["judge.exit-code"]) == (0, "0"), output
        assert "::error" not in without_commands(output)
        assert (await steps.step("Comment"))[0] == 0
        ((_, _, body),) = github.posts
    assert body.startswith("### Moothall: Proven")
    assert json.loads(Path(steps.outputs["judge.sarif"]).read_text(encoding="utf-8"))["runs"]
    assert not list(steps.checkout.parent.rglob("MISUSED"))
    assert (await steps.step("Result"))[0] == 0
    steps.event[f"{prefix}.base.sha"] = steps.event[f"{prefix}.head.sha"]
    assert (await steps.step("Judge"))[0] == 0
    assert steps.outputs["judge.sarif"] == ""
    assert (await steps.step("Result"))[0] == 2
