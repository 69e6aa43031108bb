"""Which share of the way from chance to the best possible choice selection covers, on small programs with hidden cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moothall.domain.repository import Prepared, with_checks
from moothall.domain.task import VALIDATION
from moothall.ranking import rank
from moothall.sandbox.bubblewrap import interpreter
from support.court import PYTEST, Court, court
from support.small_programs import Generated, Program, pool, recovered


@dataclass(frozen=True, slots=True)
class Choice:
    """What was selected of a pool: whether it is right, how many of the candidates are."""

    program: str
    selected: bool
    right: int
    size: int


async def choose(folder: Path, programs: Sequence[Program], seed: int) -> list[Choice]:
    """Judge a pool of each program; the hidden cases are a check of the caller."""
    files = {"programs/__init__.py": ""}
    for program in programs:
        files |= {f"programs/{program.name}.py": program.wrong_text, f"tests/test_{program.name}.py": program.tests(0)}
    async with court(folder, files, PYTEST) as place:
        return [await _choose_one(place, program, pool(program, seed)) for program in programs]


async def _choose_one(place: Court, program: Program, generated: Sequence[Generated]) -> Choice:
    name = f"{VALIDATION}-1"
    hidden = program.tests(1) + "".join(
        f"\ntest_{program.name}_{number}()\n" for number in range(1, len(program.cases[1::2]) + 1)
    )
    given: Prepared = place.prepared
    base = with_checks(given.base, {name: (str(interpreter()), "-c", hidden)})
    run = await place.house.preparer._run_check(replace(given, base=base), name)
    here = Court(place.house, replace(given, base=base, runs={**given.runs, name: run}), place.repo, program.task)
    bench = here.bench()
    judged = []
    for seat, item in enumerate(generated, 1):
        judged.append(await bench.judge(here.proposal({f"programs/{program.name}.py": f"{item.text}\n"}, seat)))
    first = rank([item.candidate for item in await bench.cross(judged)])[0]
    selected = generated[int(first.seat[-3:]) - 1]
    return Choice(program.name, first.passed_gates and selected.right, sum(item.right for item in generated), len(generated))


def recovered_gap(choices: Sequence[Choice]) -> float:
    """Return which share of the way from chance to the best possible choice these choices covered."""
    selected = sum(item.selected for item in choices)
    chance = sum(item.right / item.size for item in choices)
    best = sum(item.right > 0 for item in choices)
    return recovered(selected, chance, best)
