"""A verdict is published on a pull request: as a check run with annotations, or as a status."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from moothall.cli.judge import set_status
from moothall.cli.verdict import MatrixRow, VerdictDocument
from moothall.config import ForgeSettings
from moothall.domain.task import CHANGE
from moothall.settings import AllSettings
from support.forge import REPOSITORY, TOKENS, fake_forge

VERDICT = VerdictDocument(
    "task-1",
    "app",
    "a" * 40,
    "b" * 40,
    "Do it",
    "broken",
    "unproven",
    "unproven",
    accepted=False,
    matrix=(MatrixRow("tests/test_a.py::test_x", "repository", "passed", {CHANGE: "failed"}),),
    unnoticed=("src/a.py:3-7: if x:", "src/b.py (new)"),
    look=("a note about no file",),
)


@pytest.mark.parametrize("kind", ["gitea", "github", "github app"])
async def test_a_verdict_is_a_check_run_if_the_token_may_create_one(
    tmp_path: Path, kind: str
) -> None:
    with fake_forge(tmp_path, kind.partition(" ")[0]) as forge:
        if kind == "github app":
            forge.apps.add("moothall-bot")
        settings = AllSettings(
            data_dir=tmp_path,
            forge=ForgeSettings.model_validate(
                {
                    "kind": forge.kind,
                    "url": forge.url,
                    "token": SecretStr(TOKENS["moothall-bot"]),
                }
            ),
        )
        url = f"{forge.url}/{REPOSITORY}/pull/7"
        await set_status(settings, url, VERDICT)
        await set_status(settings, url, replace(VERDICT, accepted=True, finding="passed"))
        statuses, runs = forge.statuses.get("b" * 40, []), forge.check_runs.get("b" * 40, [])
    if kind != "github app":
        states = [status.get("state") or status["status"] for status in statuses]
        assert (states, runs) == (["failure", "success"], [])
        assert {status["context"] for status in statuses} == {"moothall/judge"}
        return
    assert statuses == []
    assert [run["conclusion"] for run in runs] == ["failure", "success"]
    output = runs[0]["output"]
    assert output["title"].startswith("Broken: bbbbbbbbbbbb on aaaaaaaaaaaa")
    assert "Broken" in output["summary"]
    assert [
        (note["path"], note["start_line"], note["end_line"], note["annotation_level"])
        for note in output["annotations"]
    ] == [
        ("tests/test_a.py", 1, 1, "failure"),
        ("src/a.py", 3, 7, "notice"),
        ("src/b.py", 1, 1, "notice"),
    ]
    assert "tests/test_a.py::test_x" in output["annotations"][0]["message"]
