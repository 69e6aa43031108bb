"""The commands of docs/operating.md that back up and restore a server on one machine."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from command import Command

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TEXT = (Path(__file__).parents[2] / "docs/operating.md").read_text(encoding="utf-8")


def run(mode: str, data: Path, folder: Path) -> None:
    (line,) = re.findall(rf'^    (tar -C "\$MOOTHALL_DATA_DIR" -{mode} .*)$', TEXT, re.MULTILINE)
    subprocess.run(
        ["bash", "-ec", line],
        cwd=folder,
        env={**os.environ, "MOOTHALL_DATA_DIR": str(data)},
        check=True,
    )


async def save_and_restore(by: str, source: Command, target: Command, folder: Path) -> None:
    if by == "tar":
        run("czf", source.data_dir, folder)
        target.data_dir.mkdir()
        run("xzf", target.data_dir, folder)
        return
    file = str(folder / "moothall.tar")
    saved = await source("backup", file)
    assert saved.code == 0, saved.err
    restored = await target("restore", file)
    assert restored.code == 0, restored.err
    assert "events up to seq" in restored.out


@pytest.mark.parametrize("by", ["tar", "moothall"])
async def test_restored_data_equals_the_backup(
    command: Command, repo: Path, tmp_path: Path, by: str
) -> None:
    source = Command(tmp_path / "before", command.model_url)
    arguments = ("deliberate", "--repo", str(repo), "--agents", "1", "--json")
    task = (await source(*arguments, "Add hello_world()")).document["task_id"]
    target = Command(tmp_path / "after", command.model_url)
    await save_and_restore(by, source, target, tmp_path)
    for command_line in (
        ("show", task, "--json"),
        ("log", "tail", "--task", task, "--json"),
        ("list", "--json"),
        ("diff", task),
    ):
        original, restored = await source(*command_line), await target(*command_line)
        assert restored.code == original.code == 0, restored.err
        assert restored.out == original.out, command_line
    audit = await target("audit", "verify")
    assert audit.out.strip().endswith("whole"), audit.out
    new_task = await target(*arguments, "Add hello_world() once more")
    assert new_task.code == 0, new_task.err
    assert new_task.document["task_id"] != task
