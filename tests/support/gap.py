"""The share of the gap between chance and the best possible choice that selection covers, on small
programs with hidden cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.judging.clean_runs import CleanCheckoutRunner
from moothall.deliberation.judging.evaluator import Evaluator
from moothall.domain.ids import TaskKey
from moothall.domain.proposal import Proposal
from moothall.domain.repository import Profile
from moothall.domain.task import VALIDATION, Deliberation, RepositoryRef
from moothall.ranking import rank
from moothall.testing.bus import MemoryBus
from support.local import python
from support.repos import Repo, make_repo
from support.small_programs import Generated, Program, pool, recovered_share
from support.workspace import TempWorkspaces


@dataclass(frozen=True, slots=True)
class Choice:
    """The selection from a pool: whether it is right, and how many candidates are."""

    program: str
    selected: bool
    right: int
    size: int


async def choose(
    folder: Path, programs: Sequence[Program], seed: int, announce: Callable[[Choice], object] = id
) -> list[Choice]:
    """Judge a pool of each program, in workspaces without a sandbox. `announce` receives each
    choice.
    """
    choices: list[Choice] = []
    for program in programs:
        choices.append(await _choose_one(folder / program.name, program, pool(program, seed)))
        announce(choices[-1])
    return choices


async def _choose_one(folder: Path, program: Program, generated: Sequence[Generated]) -> Choice:
    """Judge one pool. The visible and the hidden cases are two checks of the caller."""
    path = f"programs/{program.name}.py"
    repo = make_repo(folder / "repo", {"programs/__init__.py": "", path: program.wrong_text})
    checks = {f"{VALIDATION}-{half + 1}": python(_asserting(program, half)) for half in range(2)}
    workspaces = TempWorkspaces(
        repo, folder, Profile(checks={"tests": python("import programs"), **checks})
    )
    prepared = await workspaces.prepare()
    d = Deliberation(
        task_id=TaskKey(program.name.replace("_", "-")),
        description=program.task,
        role="dev",
        protocol="vote",
        seats=tuple(f"agent-dev-{seat:03d}" for seat in range(1, len(generated) + 1)),
        rounds=0,
        deadline=datetime.now(UTC) + timedelta(seconds=1200),
        max_turns=1,
        repository=RepositoryRef(id=prepared.base.repository),
        base_sha=prepared.base.sha,
    )
    runs = CleanCheckoutRunner(d, prepared, workspaces, workspaces.read, asyncio.Semaphore(1))
    evaluator = Evaluator(runs, EventWriter(MemoryBus(), d))
    judged = [
        await evaluator.evaluate(Proposal(seat, "dev", "", _diff(repo, path, f"{item.text}\n")))
        for seat, item in zip(d.seats, generated, strict=True)
    ]
    judged = list(await evaluator.run_cross_tests(judged))
    first = rank(await evaluator.confirm_first(judged))[0]
    selected = generated[d.seats.index(first.seat)]
    return Choice(
        program.name,
        first.passed_gates and selected.right,
        sum(item.right for item in generated),
        len(generated),
    )


def _diff(repo: Repo, path: str, text: str) -> str:
    repo.write({path: text})
    diff = repo.git("diff")
    repo.git("checkout", "--quiet", "--", path)
    return f"{diff}\n"


def _asserting(program: Program, half: int) -> str:
    """Return a program that fails if one of half of the cases does not hold."""
    count = len(program.cases[half::2])
    return program.tests(half) + "".join(
        f"\ntest_{program.name}_{number}()\n" for number in range(1, count + 1)
    )


def recovered_gap(choices: Sequence[Choice]) -> float:
    """Return the share of the gap between chance and the best possible choice that these choices
    cover.
    """
    selected = sum(item.selected for item in choices)
    chance = sum(item.right / item.size for item in choices)
    best = sum(item.right > 0 for item in choices)
    return recovered_share(selected, chance, best)
