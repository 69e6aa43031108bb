"""Tasks in Harbor's format, and trajectories as ATIF."""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from moothall.domain.event import Event, EventType
from moothall.errors import InvalidRequest
from moothall.evaluate.harbor import Harbor, trajectories
from moothall.evaluate.tasks import Task
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.profile import Commands
from support.repos import Repo, make_sample

_COMMANDS = Commands.model_validate(
    {"setup": ["/env/bin/pip install -e ."], "checks": {"tests": "/env/bin/python -m pytest"}}
)


def _task(repo: Repo) -> Task:
    return Task(
        id="sample-1",
        repository=str(repo.path),
        parent=repo.head,
        commit="b" * 40,
        text='Fix "hello"\n\n[metadata]\n\x7f\\u0041 in C:\\new',
        cases={"tests": ('tests/test_utils.py::test_x["a.b"]',)},
        kept={"tests": ("tests/test_utils.py::test_greet",)},
        paths={"tests": ("tests/test_utils.py",)},
        tests="diff --git a/tests/test_utils.py b/tests/test_utils.py\n--- a/tests/test_utils.py\n"
        "+++ b/tests/test_utils.py\n@@ -1 +1 @@\n-a\n+b\n",
        fix="diff --git a/src/utils.py b/src/utils.py\n",
        commands={"checks": {"tests": ["pytest", "-q"]}},
    )


async def test_a_task_is_read_back_as_written(tmp_path: Path) -> None:
    repo = make_sample(tmp_path / "repo")
    task, harbor = _task(repo), Harbor(tmp_path / "harbor", GitRunner(tmp_path / "git", 60))
    place = await harbor.write(task, repo.path / ".git", _COMMANDS)
    (parsed,) = await harbor.read(tmp_path / "clones")
    assert replace(parsed, repository=task.repository) == task
    assert Repo(Path(parsed.repository)).git("cat-file", "-t", task.parent) == "commit"
    config = tomllib.loads((place / "task.toml").read_text(encoding="utf-8"))
    assert (config["schema_version"], config["task"]["name"]) == ("1.3", "moothall/sample-1")
    assert config["environment"]["network_mode"] == "no-network"
    script = (place / "tests" / "test.sh").read_text(encoding="utf-8")
    assert "/logs/verifier/reward.txt" in script
    assert "'tests/test_utils.py::test_x[\"a.b\"]' tests/test_utils.py::test_greet" in script
    assert "RUN /env/bin/pip install -e ." in (place / "environment" / "Dockerfile").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("check", "image"),
    [
        ("cargo test", "rust:"),
        ("go test ./...", "golang:"),
        ("/env/bin/python -m pytest", "python:"),
        ("pytest tests/django", "python:"),
        ("npm test", "node:"),
    ],
)
async def test_the_image_matches_the_language_of_the_checks(
    tmp_path: Path, check: str, image: str
) -> None:
    repo = make_sample(tmp_path / "repo")
    harbor = Harbor(tmp_path / "harbor", GitRunner(tmp_path / "git", 60))
    commands = Commands.model_validate({"checks": {"tests": check}})
    place = await harbor.write(_task(repo), repo.path / ".git", commands)
    dockerfile = (place / "environment" / "Dockerfile").read_text(encoding="utf-8")
    assert dockerfile.startswith(f"FROM {image}")
    assert ("RUN python -m venv" in dockerfile) == (image == "python:")


async def test_a_check_without_a_command_is_refused(tmp_path: Path) -> None:
    """Without a command, the script would reward every answer."""
    repo = make_sample(tmp_path / "repo")
    commands = Commands.model_validate({"checks": {"lint": "ruff check ."}})
    harbor = Harbor(tmp_path / "harbor", GitRunner(tmp_path / "git", 60))
    with pytest.raises(InvalidRequest, match="check tests has no command"):
        await harbor.write(_task(repo), repo.path / ".git", commands)


async def test_two_tasks_with_the_same_name_are_refused(tmp_path: Path) -> None:
    repo = make_sample(tmp_path / "repo")
    harbor = Harbor(tmp_path / "harbor", GitRunner(tmp_path / "git", 60))
    place = await harbor.write(_task(repo), repo.path / ".git", _COMMANDS)
    shutil.copytree(place, place.with_name("copy"))
    with pytest.raises(InvalidRequest, match="another task"):
        await harbor.read(tmp_path / "clones")


async def test_an_incomplete_foreign_task_is_refused_with_the_reason(tmp_path: Path) -> None:
    place = tmp_path / "harbor" / "hello"
    place.mkdir(parents=True)
    (place / "task.toml").write_text(
        'version = "1.0"\n[metadata]\nauthor_name = "Ada"\n', encoding="utf-8"
    )
    (place / "instruction.md").write_text("Write hello.txt\n", encoding="utf-8")
    with pytest.raises(InvalidRequest, match="container"):
        await Harbor(tmp_path / "harbor", GitRunner(tmp_path / "git", 60)).read(tmp_path / "clones")


async def test_a_task_with_links_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    repo = make_sample(tmp_path / "repo")
    harbor = Harbor(tmp_path / "harbor", GitRunner(tmp_path / "git", 60))
    place = await harbor.write(_task(repo), repo.path / ".git", _COMMANDS)
    secret = tmp_path / "secret"
    secret.write_text("key", encoding="utf-8")
    (place / "instruction.md").unlink()
    (place / "instruction.md").symlink_to(secret)
    with pytest.raises(InvalidRequest, match="out of its folder"):
        await harbor.read(tmp_path / "clones")


def test_a_seat_is_shown_as_steps_with_their_calls() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 4, "cost_usd": 0.5}
    call = {
        "id": "c1",
        "tool": "files.read",
        "arguments": {"path": "a"},
        "output": {"text": "x"},
        "status": "success",
        "error": None,
    }
    common = {"task_id": "t", "seat": "agent-dev-001"}
    events = [
        Event("1", EventType.MODEL_CALLED, "t", {**common, "model": "small", "usage": usage}),
        Event(
            "2",
            EventType.SEAT_TURN,
            "t",
            {**common, "thought": "look", "calls": [call], "checks": {}},
            time="2024-05-06T07:08:09Z",
        ),
        Event(
            "3",
            EventType.MODEL_CALLED,
            "t",
            {**common, "model": "small", "usage": usage, "answer": "Sure!"},
        ),
        Event("5", EventType.SEAT_TURN, "t", {**common, "thought": ""}),
        Event("4", EventType.SEAT_TURN, "t", {**common, "seat": 5, "calls": "none"}),
    ]
    by_seat = trajectories(events, "Fix it")
    assert [*by_seat] == ["agent-dev-001"]
    document = by_seat["agent-dev-001"]
    assert document["schema_version"] == "ATIF-v1.6"
    first, second, third = document["steps"]
    assert (first["step_id"], first["source"], first["message"]) == (1, "user", "Fix it")
    assert second["tool_calls"] == [
        {"tool_call_id": "c1", "function_name": "files.read", "arguments": {"path": "a"}}
    ]
    assert second["observation"] == {
        "results": [{"source_call_id": "c1", "content": '{"text": "x"}'}]
    }
    assert second["metrics"]["prompt_tokens"] == 10
    assert document["final_metrics"]["total_prompt_tokens"] == 20
    assert document["final_metrics"]["total_steps"] == 3
    assert (second["message"], third["message"]) == ("look", "Sure!")
