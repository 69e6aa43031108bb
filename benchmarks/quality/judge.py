"""Judge a solution: run all assertions in a sandbox of Moothall."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import git

from benchmarks.quality.problems import HIDDEN, SEEN, Problem
from moothall.app.workspaces import open_workspace_services
from moothall.config import Settings
from moothall.domain.ids import digest
from moothall.domain.task import RepositoryRef
from moothall.errors import RepositoryError
from moothall.repositories.service import RepositoryService


@dataclass(frozen=True, slots=True)
class Judgement:
    """The number of assertions that pass and their total: the visible ones, and the hidden ones."""

    seen: int
    seen_all: int
    hidden: int
    hidden_all: int

    @property
    def solved(self) -> bool:
        """Whether all assertions pass."""
        return (self.seen, self.hidden) == (self.seen_all, self.hidden_all)


@dataclass(frozen=True, slots=True)
class Judge:
    """A judge that runs the assertions. Its `folder` contains a repository for each solution."""

    repositories: RepositoryService
    folder: Path

    async def judge(self, problem: Problem, solution: str) -> Judgement:
        """Judge a solution. No assertion passes if it cannot be run."""
        path = self.folder / digest(problem.id, solution)[:16]
        await asyncio.to_thread(make_repository, path, problem.judged_files(solution))
        registered = await self.repositories.register(str(path))
        try:
            prepared = await self.repositories.prepare(
                await self.repositories.resolve(RepositoryRef(id=registered.id))
            )
            cases = prepared.runs["tests"].cases
        except RepositoryError:
            cases = {}
        return Judgement(
            _count_passed(cases, SEEN),
            len(problem.seen),
            _count_passed(cases, HIDDEN),
            len(problem.hidden),
        )


@asynccontextmanager
async def open_judge(settings: Settings) -> AsyncIterator[Judge]:
    """Open a judge with its own workspaces."""
    folder = settings.data_dir / "judged"
    async with open_workspace_services(settings) as services:
        yield Judge(services.repositories, folder)


def make_repository(root: Path, files: dict[str, str]) -> None:
    """Create a git repository with one commit; keep an existing one."""
    if (root / ".git").exists():
        return
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    repository = git.Repo.init(root, initial_branch="main")
    try:
        author = git.Actor("Moothall", "moothall@localhost")
        repository.index.add(sorted(files))
        repository.index.commit("A problem", author=author, committer=author)
    finally:
        repository.close()


def _count_passed(cases: dict[str, str] | object, path: str) -> int:
    items: Sequence[tuple[str, str]] = list(cases.items()) if isinstance(cases, dict) else []
    return sum(case.startswith(f"{path}::") and outcome == "passed" for case, outcome in items)
