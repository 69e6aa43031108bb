"""Which share of the way from chance to the best possible choice selection covers, on small programs with hidden cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moothall.domain.repository import Prepared, with_checks
from moothall.domain.task import VALIDATION
from moothall.ranking import rank
from support.court import Court, court
from support.local import python
from support.small_programs import Generated, Program, pool, recovered


@dataclass(frozen=True, slots=True)
class Choice:
    """What was selected of a pool: whether it is right, how many of the candidates are."""

    program: str
    selected: bool
    right: int
    size: int


async def choose(folder: Path, programs: Sequence[Program], seed: int, tell: Callable[[Choice], object] = id) -> list[Choice]:
    """Judge a pool of each program; its visible and its hidden cases are two checks of the caller. `tell` hears each choice."""
    files = {"programs/__init__.py": "", **{f"programs/{program.name}.py": program.wrong_text for program in programs}}
    choices: list[Choice] = []
    async with court(folder, files, python("import programs")) as place:
        for program in programs:
            choices.append(await _choose_one(place, program, pool(program, seed)))
            tell(choices[-1])
    return choices


async def _choose_one(place: Court, program: Program, generated: Sequence[Generated]) -> Choice:
    checks = {f"{VALIDATION}-{half + 1}": python(_asserting(program, half)) for half in range(2)}
    given: Prepared = place.prepared
    base = with_checks(given.base, checks)
    runs = {name: await place.house.preparer._run_check(replace(given, base=base), name) for name in checks}
    here = Court(place.house, replace(given, base=base, runs={**given.runs, **runs}), place.repo, program.task)
    bench = here.bench()
    judged = []
    for seat, item in enumerate(generated, 1):
        judged.append(await bench.judge(here.proposal({f"programs/{program.name}.py": f"{item.text}\n"}, seat)))
    first = rank([item.candidate for item in judged])[0]
    selected = generated[int(first.seat[-3:]) - 1]
    return Choice(program.name, first.passed_gates and selected.right, sum(item.right for item in generated), len(generated))


def _asserting(program: Program, half: int) -> str:
    """Return a program that fails if one of a half of the cases does not hold."""
    count = len(program.cases[half::2])
    return program.tests(half) + "".join(f"\ntest_{program.name}_{number}()\n" for number in range(1, count + 1))


def recovered_gap(choices: Sequence[Choice]) -> float:
    """Return which share of the way from chance to the best possible choice these choices covered."""
    selected = sum(item.selected for item in choices)
    chance = sum(item.right / item.size for item in choices)
    best = sum(item.right > 0 for item in choices)
    return recovered(selected, chance, best)
