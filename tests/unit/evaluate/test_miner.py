"""The tasks of an evaluation whose folder already has some."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from moothall.config import WorkspaceSettings
from moothall.domain.task import RepositoryRef
from moothall.evaluate.miner import COMMITS, Miner
from moothall.evaluate.tasks import Judge, Lines, Task, write_task
from moothall.repositories.service import RepositoryService
from support.repos import make_repo


async def _prepare(*_: Any) -> Any:
    raise NotImplementedError


async def test_tasks_of_other_repositories_and_deleted_tasks_do_not_count(tmp_path: Path) -> None:
    """One folder has tasks of two repositories. A person deleted a task, which is not mined again;
    the next commit is tried.
    """
    repo = make_repo(tmp_path / "repo", {"shop.py": "a = 1\n"})
    older = repo.commit({"README.md": "# Shop\n"}, "Say in the README what the shop is")
    newer = repo.commit({"README.md": "# The shop\n"}, "Say in the README that it is the shop")
    repositories = RepositoryService(tmp_path / "data", WorkspaceSettings(), _prepare)
    entry = await repositories.register(str(repo.path))
    folder = tmp_path / "evaluation"
    rejected = Lines(folder / COMMITS)
    own_task = Task(
        "shop-1", entry.origin, repo.head, newer, "Fix it", {"tests": ("t::x",)}, "diff"
    )
    other_task = replace(own_task, id="other-1", repository="/other", commit="c" * 40)
    for task in (other_task, own_task):
        write_task(folder, task)
        rejected.add(
            {"repository": task.repository, "commit": task.commit, "why": "", "task": task.id}
        )
    # No commit here changes tests, so nothing runs.
    miner = Miner(
        repositories, Judge(repositories, cast("Any", None)), folder, rejected, lambda _: None
    )
    assert await miner.mine_tasks(RepositoryRef(id=entry.id), 1, 10) == [own_task]
    assert not [*rejected.of(commit=older)]
    (folder / "tasks" / "shop-1.json").unlink()
    assert await miner.mine_tasks(RepositoryRef(id=entry.id), 1, 10) == []
    assert len([*rejected.of(commit=newer)]) == 1
    assert [row["why"] for row in rejected.of(commit=older)] == ["it changes no source"]
