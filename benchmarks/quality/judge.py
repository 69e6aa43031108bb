"""Judging a solution: all assertions on it, in our own sandbox."""

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
    """How many of the assertions hold: of those that could be seen, and of the others."""

    seen: int
    seen_all: int
    hidden: int
    hidden_all: int

    @property
    def solved(self) -> bool:
        """Whether all hold."""
        return (self.seen, self.hidden) == (self.seen_all, self.hidden_all)


@dataclass(frozen=True, slots=True)
class Judge:
    """Runs the assertions. Its repositories lie in `folder`, one for each solution."""

    repositories: RepositoryService
    folder: Path

    async def judge(self, problem: Problem, solution: str) -> Judgement:
        """Return what holds of a solution; nothing does where it cannot even be run."""
        place = self.folder / digest(problem.id, solution)[:16]
        await asyncio.to_thread(make, place, problem.judged(solution))
        registered = await self.repositories.register(str(place))
        try:
            prepared = await self.repositories.prepare(
                await self.repositories.resolve(RepositoryRef(id=registered.id))
            )
            cases = prepared.runs["tests"].cases
        except RepositoryError:
            cases = {}
        return Judgement(
            _green(cases, SEEN),
            len(problem.seen),
            _green(cases, HIDDEN),
            len(problem.hidden),
        )


@asynccontextmanager
async def open_judge(settings: Settings) -> AsyncIterator[Judge]:
    """A judge with workspaces of its own."""
    folder = settings.data_dir / "judged"
    async with open_workspace_services(settings) as services:
        yield Judge(services.repositories, folder)


def make(place: Path, files: dict[str, str]) -> None:
    """Make a git repository with one commit at `place`; one that is there is left as it is."""
    if (place / ".git").exists():
        return
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    repository = git.Repo.init(place, initial_branch="main")
    try:
        author = git.Actor("Moothall", "moothall@localhost")
        repository.index.add(sorted(files))
        repository.index.commit("A problem", author=author, committer=author)
    finally:
        repository.close()


def _green(cases: dict[str, str] | object, path: str) -> int:
    items: Sequence[tuple[str, str]] = list(cases.items()) if isinstance(cases, dict) else []
    return sum(case.startswith(f"{path}::") and outcome == "passed" for case, outcome in items)
