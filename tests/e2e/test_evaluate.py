"""`moothall evaluate` end to end: a small history is mined, two configurations are measured, and an
interruption loses and repeats nothing.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from command import QUICK, Command, answer_turns_with, turn
from moothall.testing.model import Answer, ScriptedModel, scripted_model
from support.history import PROJECTS, Project, make_history

pytestmark = [pytest.mark.e2e, pytest.mark.evidence, pytest.mark.asyncio(loop_scope="session")]


def _writing_seats(project: Project, text: str) -> Answer:
    """Return seats that write `text` as the source and finish."""

    def propose(body: dict[str, Any], headers: Mapping[str, str]) -> str:
        del body, headers
        return turn("files.write", path=project.source, content=text)

    return answer_turns_with(propose)


def _settings(path: Path, server: ScriptedModel) -> str:
    path.write_text(f'[llm]\nbase_url = "{server.base_url}"\n', encoding="utf-8")
    return f"{path.stem}={path}"


async def _kill_after_first_result(command: Command, args: Sequence[str], results: Path) -> None:
    process = await command.start(*args)
    async with asyncio.timeout(900):
        while (
            not (results.exists() and results.read_bytes().count(b"\n"))
            and process.returncode is None
        ):
            await asyncio.sleep(0.05)
    assert process.returncode is None, (await process.communicate())[1].decode()
    process.kill()
    await process.communicate()


@pytest.mark.parametrize("name", PROJECTS)
async def test_a_history_is_mined_and_two_configurations_are_measured(
    tmp_path: Path, name: str
) -> None:
    """One configuration is right and one is wrong. The run is killed and restarted, and nothing is
    done twice.
    """
    project = PROJECTS[name]
    if shutil.which(project.program) is None:
        pytest.skip(f"{project.program} is not installed; apt-get install golang brings it")
    repo = make_history(project, tmp_path / "repo")
    folder = tmp_path / "evaluation"
    command = Command(tmp_path / "data", extra=QUICK)
    async with (
        scripted_model(_writing_seats(project, project.right_source)) as right,
        scripted_model(_writing_seats(project, project.wrong_source)) as wrong_model,
        scripted_model(_writing_seats(project, project.right_source)) as chosen,
    ):
        args = (
            "evaluate",
            str(repo.path),
            "--folder",
            str(folder),
            "--agents",
            "1",
            "--protocol",
            "single",
            "--json",
            "--config",
            _settings(tmp_path / "right.toml", right),
            "--config",
            _settings(tmp_path / "wrong.toml", wrong_model),
            "--config",
            f"{_settings(tmp_path / 'auto.toml', chosen)},model=auto",
        )
        results = folder / "results.jsonl"
        await _kill_after_first_result(command, args, results)
        calls = len(right.requests)
        first = results.read_text(encoding="utf-8")
        with results.open("a", encoding="utf-8") as file:
            file.write('{"task": "torn')  # a write truncated by the kill
        result = await command(*args, seconds=900)
        assert result.code == 0, result.err
        assert len(right.requests) == calls
        assert results.read_text(encoding="utf-8").startswith(first)
        second_run = await command(*args, "--report")
        harbor = tmp_path / "harbor"
        export = await command(
            "evaluate",
            str(repo.path),
            "--folder",
            str(folder),
            "--mine",
            "--to-harbor",
            str(harbor),
            "--json",
            "--config",
            # measured with other agents, which mining does not request
            f"right={tmp_path / 'wrong.toml'}",
        )
        read = await command(
            "evaluate",
            "--from-harbor",
            str(harbor),
            "--folder",
            str(tmp_path / "b"),
            "--mine",
            "--json",
        )
    report = result.document
    assert second_run.document == report
    (task,) = report["tasks"]
    assert (
        task["text"]
        == "Fix the discount: percent is a share of the price\n\n10 percent off 200 has to be 180."
    )
    assert [
        (item["config"], item["solved"]["count"], item["solved"]["total"])
        for item in report["configurations"]
    ] == [
        ("right", 1, 1),
        ("wrong", 0, 1),
        ("auto", 1, 1),
    ]
    _check_rows(report, name)
    rows = [
        json.loads(line)
        for line in (folder / "commits.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [row["why"] for row in rows] == [
        "it changes no source",
        "it changes no tests",
        "",
        "it has no parent",
    ]
    assert export.code == read.code == 0, (export.err, read.err)
    (exported,), (imported,) = export.document["tasks"], read.document["tasks"]
    assert imported | {"repository": exported["repository"]} == exported
    sealed = folder / "sealed" / f"{task['id']}.git"
    (clone,) = (folder / "data" / "repos").glob(f"{task['id']}*.git")
    for repository in (sealed, clone):
        assert _has_object(repository, task["parent"])
        assert not _has_object(repository, task["commit"])
        assert not _has_object(repository, repo.head)
    trajectory = json.loads(
        (folder / "trajectories" / "right" / task["id"] / "agent-dev-001.json").read_text(
            encoding="utf-8"
        )
    )
    assert trajectory["steps"][1]["tool_calls"][0]["function_name"] == "files.write"
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    for server in (right, wrong_model, chosen):
        assert not any(
            "TestPercentOfThePrice" in call.prompt or "test_percent_of" in call.prompt
            for call in server.requests
        )


def _check_rows(report: Mapping[str, Any], language: str) -> None:
    """Check the wrong row, and that the models of `auto` were left to the settings, because there
    is no other task.
    """
    rows = {row["config"]: row for row in report["results"]}
    wrong_row = rows["wrong"]
    assert (wrong_row["level"], wrong_row["failing"]) == ("unproven", [PROJECTS[language].hidden])
    row = rows["auto"]
    assert row["choice"].startswith("auto: nothing to learn from yet (0 earlier tasks")
    assert (row["kind"]["language"], row["kind"]["size"]) == (language, "short")
    (seat,) = row["seats"]
    assert (seat["seat"], seat["model"]) == ("agent-dev-001", "")
    assert seat["usage"]["calls"] > 0


def _has_object(repository: Path, sha: str) -> bool:
    """True if a repository has the object of a commit."""
    return not subprocess.run(
        ["git", "-C", str(repository), "cat-file", "-e", sha], check=False, capture_output=True
    ).returncode
