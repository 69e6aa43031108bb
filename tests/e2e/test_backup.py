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


def run(what: str, data: Path, where: Path) -> None:
    (line,) = re.findall(rf'^    (tar -C "\$MOOTHALL_DATA_DIR" -{what} .*)$', TEXT, re.MULTILINE)
    subprocess.run(
        ["bash", "-ec", line],
        cwd=where,
        env={**os.environ, "MOOTHALL_DATA_DIR": str(data)},
        check=True,
    )


async def save_and_restore(by: str, before: Command, after: Command, folder: Path) -> None:
    if by == "tar":
        run("czf", before.data_dir, folder)
        after.data_dir.mkdir()
        run("xzf", after.data_dir, folder)
        return
    file = str(folder / "moothall.tar")
    saved = await before("backup", file)
    assert saved.code == 0, saved.err
    restored = await after("restore", file)
    assert restored.code == 0, restored.err
    assert "events up to seq" in restored.out


@pytest.mark.parametrize("by", ["tar", "moothall"])
async def test_restored_data_equals_the_backup(
    command: Command, repo: Path, tmp_path: Path, by: str
) -> None:
    before = Command(tmp_path / "before", command.model_url)
    arguments = ("deliberate", "--repo", str(repo), "--agents", "1", "--json")
    task = (await before(*arguments, "Add hello_world()")).document["task_id"]
    after = Command(tmp_path / "after", command.model_url)
    await save_and_restore(by, before, after, tmp_path)
    for command_line in (
        ("show", task, "--json"),
        ("log", "tail", "--task", task, "--json"),
        ("list", "--json"),
        ("diff", task),
    ):
        was, now = await before(*command_line), await after(*command_line)
        assert now.code == was.code == 0, now.err
        assert now.out == was.out, command_line
    audit = await after("audit", "verify")
    assert audit.out.strip().endswith("whole"), audit.out
    again = await after(*arguments, "Add hello_world() once more")
    assert again.code == 0, again.err
    assert again.document["task_id"] != task
