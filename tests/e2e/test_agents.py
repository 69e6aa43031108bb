"""Agents from files, run by the real command: the shipped examples on the sample repository."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from command import QUICK, SOLVED, Command, answer_turns_with, git, most_at_once, turn
from moothall.agents.runner import load
from moothall.cli.demo import make_sample_repository
from moothall.testing.model import scripted_model
from support.repos import make_repo

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

EXAMPLES = Path(__file__).parents[2] / "agents"
NAMES = {
    "greeting",
    "negative-numbers",
    "handbook",
    "build",
    "security",
    "performance",
    "refactoring",
    "licences",
    "api",
}
SCAN = """import ast, pathlib, sys

BAD = {"eval", "exec", "system"}
found = 0
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in BAD:
                found = 1
                print(f"{path}:{node.lineno}: {name}()")
sys.exit(found)
"""
BENCH = """import json, timeit

from src.utils import add

print(json.dumps({"add_per_second": 10_000 / timeit.timeit(lambda: add(2, 3), number=10_000)}))
"""
BUILD = """import pathlib, zipfile

with zipfile.ZipFile("sample.zip", "w") as made:
    for path in sorted(pathlib.Path("src").rglob("*.py")):
        made.write(path)
"""


def write(**files: str) -> str:
    """Return a turn that writes files; `_` in a name stands for its dot."""
    calls = [
        {"tool": "files.write", "args": {"path": name.replace("_", "."), "content": text}}
        for name, text in files.items()
    ]
    return json.dumps({"thought": "do it", "actions": calls})


WORK = {
    "Write HANDBOOK.md": write(HANDBOOK_md="hello_world() greets, add() adds.\n"),
    "negative numbers": turn(
        "files.write",
        path="tests/test_negative.py",
        content="from src import utils\n\n\ndef test_negative():\n    assert utils.add(-2, "
        "-3) == -5\n",
    ),
    "Write build.py": write(build_py=BUILD),
    "Write scan.py": write(
        scan_py=SCAN, SECURITY_md="Looked for eval(), exec() and os.system() in src/: none.\n"
    ),
    "Write bench.py": write(bench_py=BENCH),
    "Annotate add()": turn(
        "files.edit",
        path="src/utils.py",
        old="def add(a, b):",
        new="def add(a: int, b: int) -> int:",
    ),
    "Write LICENCES.md": write(LICENCES_md="It has no dependencies: none.\n"),
    "Write api.txt": write(api_txt="add(a: int, b: int) -> int\nhello_world()\n"),
    "Add hello_world()": turn("files.append", path="src/utils.py", content=SOLVED),
}


def work(body: dict[str, Any], _headers: Mapping[str, str]) -> str:
    """Reply as an agent's seat: write the files that its objective names."""
    prompt = "\n".join(str(message["content"]) for message in body["messages"])
    return next(reply for marker, reply in WORK.items() if marker in prompt)


async def test_the_nine_examples_fail_before_and_pass_after_with_at_most_four_running(
    tmp_path: Path,
) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    specs = load([EXAMPLES]).specs.values()
    assert {spec.name for spec in specs} == NAMES
    for spec in specs:
        for validation in spec.validations:
            argv = [
                sys.executable if word == "python" else word for word in shlex.split(validation)
            ]
            red = await asyncio.to_thread(
                subprocess.run, argv, cwd=repo, capture_output=True, check=False
            )
            assert red.returncode, f"{spec.name} passes before any work: {validation}"
    async with scripted_model(answer_turns_with(work)) as model:
        command = Command(tmp_path / "data", model.base_url, QUICK)
        result = await command(
            "agents",
            "run",
            str(EXAMPLES),
            "--repo",
            str(repo),
            "--run",
            "first",
            "--json",
            seconds=540,
        )
        assert result.code == 0, result.out + result.err
        listed = await command("list", "--json", "--limit", "100")
    results = {end["name"]: end for end in result.document["agents"]}
    assert {name: end["state"] for name, end in results.items()} == dict.fromkeys(
        NAMES, "completed"
    ), result.err
    assert all(
        end["wall_ms"] and end["tools"]["cpu_ms"] and end["tools"]["max_rss_bytes"]
        for end in results.values()
    )
    runs = [task for task in listed.document["tasks"] if task["agent"]]
    assert {task["agent"] for task in runs} == NAMES
    assert 2 <= most_at_once(runs) <= 4
    files = git(repo, "ls-tree", "-r", "--name-only", results["handbook"]["branch"]).split()
    assert {"HANDBOOK.md", "tests/test_negative.py"} <= set(files)
    content = git(repo, "show", f"{results['api']['branch']}:src/utils.py")
    assert "hello_world" in content
    assert "add(a: int, b: int) -> int" in content


HOG = """metadata: {name: hog}
objectives:
  - {description: Write done.txt, validation: test -f done.txt}
security:
  resource_limits: {max_memory: 128MB}
restart: {max_restarts: 1, backoff_seconds: 0}
"""


async def test_an_agent_over_its_memory_limit_is_stopped_and_restarted_by_its_policy(
    tmp_path: Path,
) -> None:
    repo, files = tmp_path / "repo", tmp_path / "agents"
    await make_sample_repository(repo)
    files.mkdir()
    (files / "hog.yaml").write_text(HOG, encoding="utf-8")
    test = (
        "def test_hog():\n    held = []\n    while True:\n        held.append(bytearray(b'x' * "
        "4_000_000))\n"
    )
    hogging = turn("files.write", path="tests/test_hog.py", content=test)
    async with scripted_model(answer_turns_with(lambda *_: hogging)) as model:
        command = Command(tmp_path / "data", model.base_url, QUICK)
        result = await command("agents", "run", str(files), "--repo", str(repo), "--json")
    assert result.code == 1
    (end,) = result.document["agents"]
    assert (end["state"], end["runs"]) == ("failed", 2), result.err
    assert (
        end["reason"]
        == "tests hit the agent's own limit (max_memory, 128 MB), and the agent was stopped"
    )
    assert end["tools"]["max_rss_bytes"] > 64_000_000


LATE = """metadata: {name: late}
objectives:
  - {description: Take your time, validation: test -f done.txt}
security:
  resource_limits: {timeout: 3s}
"""
NOSY = """metadata: {name: nosy}
objectives:
  - {description: Write done.txt, validation: test -f done.txt}
security:
  capabilities_required: [filesystem-read]
"""


async def test_a_slow_agent_is_stopped_and_an_undeclared_tool_is_refused_and_audited(
    tmp_path: Path,
) -> None:
    repo, files = tmp_path / "repo", tmp_path / "agents"
    make_repo(repo, {"Makefile": "test:\n\ttrue\n"})
    files.mkdir()
    for name, text in (("late", LATE), ("nosy", NOSY)):
        (files / f"{name}.yaml").write_text(text, encoding="utf-8")

    async def answer_slowly(body: dict[str, Any], _headers: Mapping[str, str]) -> str:
        if "Take your time" in str(body["messages"]):
            await asyncio.Event().wait()
        if "not granted" in str(body["messages"]):
            return '{"thought": "", "finish": "I may not."}'
        return write(done_txt="x\n")

    async with scripted_model(answer_turns_with(answer_slowly)) as model:
        command = Command(tmp_path / "data", model.base_url, QUICK)
        result = await command(
            "agents", "run", str(files), "--repo", str(repo), "--json", seconds=540
        )
    assert result.code == 1, result.err
    results = {end["name"]: end for end in result.document["agents"]}
    assert {name: (end["state"], end["runs"]) for name, end in results.items()} == {
        "late": ("failed", 1),
        "nosy": ("failed", 1),
    }
    # The seat's own deadline or the council's, whichever is first.
    assert re.search("deadline|not done in time", results["late"]["reason"])
    assert "changed nothing" in results["nosy"]["reason"]
    records = [
        json.loads(line)
        for file in (tmp_path / "data/audit/local").glob("*.jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    refused = {
        (record["task_id"], record["tool"])
        for record in records
        if record.get("status") == "blocked"
    }
    assert refused == {(results["nosy"]["task_id"], "files.write")}


async def test_an_agent_paused_from_another_shell_stays_paused_after_a_kill_and_resumes(
    tmp_path: Path,
) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    called = asyncio.Event()
    released = asyncio.Event()

    async def slowly(body: dict[str, Any], headers: Mapping[str, str]) -> str:
        """Make a first turn that changes nothing and waits for a signal, then do the work."""
        if not called.is_set():
            called.set()
            await released.wait()
            return turn("files.list")
        return work(body, headers)

    async with scripted_model(answer_turns_with(slowly)) as model:
        command = Command(tmp_path / "data", model.base_url, QUICK)
        run = (
            "agents",
            "run",
            str(EXAMPLES / "build.yaml"),
            "--repo",
            str(repo),
            "--run",
            "once",
            "--json",
        )
        first = await command.start(*run)
        async with asyncio.timeout(120):
            await called.wait()
        paused = await command("agents", "pause", "build")
        assert (paused.code, paused.out.split(": ")[1]) == (0, "paused\n"), paused.err
        assert "was already paused" in (await command("agents", "pause", "build")).out
        released.set()
        first.kill()
        await first.wait()
        calls = len(model.requests)
        second = await command.start(*run)
        async with asyncio.timeout(120):
            while '"paused": true' not in (await command("list", "--json")).out:
                await asyncio.sleep(0.2)
        assert len(model.requests) == calls, "a restarted host keeps it waiting"
        resumed = await command("agents", "resume", "build")
        assert (resumed.code, resumed.out.split(": ")[1]) == (0, "goes on\n"), resumed.err
        async with asyncio.timeout(240):
            out, err = await second.communicate()
        assert second.returncode == 0, err.decode()
        assert json.loads(out)["agents"][0]["state"] == "completed"
        refused = await command("agents", "pause", "build")
        assert (refused.code, "no agent 'build' is running; none is" in refused.err) == (2, True), (
            refused.err
        )


async def test_an_agent_stopped_from_another_shell_ends_and_is_not_restarted(
    tmp_path: Path,
) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    called = asyncio.Event()

    async def wait_forever(*_: Any) -> str:
        called.set()
        await asyncio.Event().wait()
        return ""

    async with scripted_model(answer_turns_with(wait_forever)) as model:
        command = Command(tmp_path / "data", model.base_url, QUICK)
        first = await command.start(
            "agents", "run", str(EXAMPLES / "refactoring.yaml"), "--repo", str(repo), "--json"
        )
        async with asyncio.timeout(120):
            await called.wait()
        stopped = await command("agents", "stop", "refactoring")
        assert (stopped.code, "cancelled" in stopped.out) == (0, True), stopped.err
        async with asyncio.timeout(120):
            out, _ = await first.communicate()
    (end,) = json.loads(out)["agents"]
    assert (first.returncode, end["state"], end["runs"]) == (1, "failed", 1)
    assert "stopped on the command line" in end["reason"]


async def test_invalid_files_are_named_and_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(
        "metadata: {name: a}\nobjectives:\n  - descripton: x\n", encoding="utf-8"
    )
    command = Command(tmp_path / "data", "http://127.0.0.1:9/v1")
    result = await command("agents", "validate", str(EXAMPLES), str(tmp_path / "bad.yaml"))
    assert (result.code, result.out.splitlines()[-1]) == (1, "agents: 9 read, errors: 1")
    assert (
        "bad.yaml, line 3: objectives.0: 'descripton' is not a known key; did you mean description?"
        in result.err
    )
    lone = (
        "metadata: {name: lone}\nobjectives: [{description: x, validation: make}]\ndependencies: "
        "{nobody: all}\n"
    )
    (tmp_path / "lone.yaml").write_text(lone, encoding="utf-8")
    result = await command("agents", "validate", str(tmp_path / "lone.yaml"))
    assert (result.code, result.out.splitlines()[-1]) == (1, "agents: 1 read, errors: 1")
    assert "nobody" in result.err
    result = await command("agents", "run", str(tmp_path / "bad.yaml"))
    assert (result.code, "nothing is run" in result.err) == (2, True)
    refused = lone.replace(
        "dependencies: {nobody: all}", "spec: {seats: 100}\nmodel: {profile: huge}"
    )
    (tmp_path / "lone.yaml").write_text(refused, encoding="utf-8")
    result = await command("agents", "validate", str(tmp_path / "lone.yaml"))
    assert (
        result.code,
        "lone.yaml: unknown model_profile 'huge'; the settings have: default" in result.err,
    ) == (1, True), result.err
    (tmp_path / "lone.yaml").write_text(
        refused.replace("profile: huge", "seed: 1"), encoding="utf-8"
    )
    result = await command("agents", "run", str(tmp_path / "lone.yaml"))
    assert (
        result.code,
        "lone.yaml: num_agents is 100; allowed are 1 to 16 here (limits.agents)" in result.err,
    ) == (2, True), result.err
    forever = lone.replace(
        "dependencies: {nobody: all}", "security: {resource_limits: {timeout: 99999999h}}"
    )
    (tmp_path / "lone.yaml").write_text(forever, encoding="utf-8")
    result = await command("agents", "validate", str(tmp_path / "lone.yaml"))
    assert (
        result.code,
        "its timeout is over the limit of 1800 s, which applies instead "
        "(limits.deliberation_seconds)" in result.out,
    ) == (0, True), result.out
    result = await command("agents", "list", str(EXAMPLES))
    listed = [line.split()[0] for line in result.out.splitlines()]
    assert set(listed) == NAMES
    assert listed[:2] == ["security", "greeting"]
    assert listed.index("api") > listed.index("refactoring")
