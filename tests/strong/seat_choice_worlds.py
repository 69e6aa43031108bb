#!/usr/bin/env python3
"""Compare the choice of models with fixed pairs in random worlds, without running anything.

    tests/strong/seat_choice_worlds.py [--worlds N]

A world has four models whose prices differ by up to 100 times, and two kinds of tasks. A model
solves a share of the tasks of a kind; half of its results depend on how difficult the task is for
all models. Models are chosen for each task from the results of all others. They are compared with
the pair that solves most of all tasks, which is only known afterwards, and with the pair that
solves most of the other tasks. A line is printed for each number of tasks, and for worlds in which
models are equally good at both kinds, and in which they are not.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)  # instead of this folder

from moothall.domain.budget import Budget, Usage  # noqa: E402
from moothall.orchestrator.seat_choice import (  # noqa: E402
    Attempt,
    PastTask,
    TaskKind,
    choose_models,
)

NAMES, KINDS = ("a", "b", "c", "d"), ("x", "y")
PAIRS = tuple(combinations(NAMES, 2))
Solved = Mapping[str, bool]


def make_world(
    seed: int, count: int, special: float
) -> tuple[Mapping[str, float], list[tuple[str, Solved]]]:
    """Return the price of a seat by model, and tasks: their kind, and which models solve them.

    special: by how much a model's share may differ from kind to kind.
    """
    draw = random.Random(seed)  # noqa: S311 - the same each time
    prices = {name: 10 ** draw.uniform(-3, -1) for name in NAMES}
    shares = {name: draw.uniform(0.2, 0.9) for name in NAMES}
    skills = {
        (name, kind): min(0.97, max(0.03, shares[name] + special * draw.uniform(-1, 1)))
        for name in NAMES
        for kind in KINDS
    }
    tasks: list[tuple[str, Solved]] = []
    for _ in range(count):
        kind, difficulty = draw.choice(KINDS), draw.random()
        levels = {name: difficulty if draw.random() < 0.5 else draw.random() for name in NAMES}
        tasks.append((kind, {name: levels[name] < skills[name, kind] for name in NAMES}))
    return prices, tasks


def best_pair(tasks: Sequence[tuple[str, Solved]], prices: Mapping[str, float]) -> tuple[str, ...]:
    """Return the pair that solves most tasks, the cheaper one of two."""
    return max(
        PAIRS,
        key=lambda pair: (
            sum(any(solved[name] for name in pair) for _, solved in tasks),
            -sum(prices[name] for name in pair),
        ),
    )


def measure(seed: int, count: int, special: float) -> dict[str, tuple[float, float]]:
    """Return the share of solved tasks and the mean cost of three ways to choose."""
    prices, tasks = make_world(seed, count, special)
    past_tasks = [
        PastTask(
            TaskKind("r", kind, "", "short"),
            tuple(
                Attempt(name, right, right, Usage(1000, 0, 0, 1, prices[name]))
                for name, right in solved.items()
            ),
        )
        for kind, solved in tasks
    ]
    afterwards = best_pair(tasks, prices)
    sums = {"auto": [0.0, 0.0], "fixed": [0.0, 0.0], "afterwards": [0.0, 0.0]}
    for index, (_, solved) in enumerate(tasks):
        other_tasks = [*tasks[:index], *tasks[index + 1 :]]
        other_past = [*past_tasks[:index], *past_tasks[index + 1 :]]
        choice = choose_models(past_tasks[index].kind, other_past, NAMES, 2, Budget())
        chosen = {
            "auto": choice.models,
            "fixed": best_pair(other_tasks, prices),
            "afterwards": afterwards,
        }
        for method, models in chosen.items():
            sums[method][0] += any(solved[name] for name in models)
            sums[method][1] += sum(prices[name] for name in models)
    return {method: (solved / count, cost / count) for method, (solved, cost) in sums.items()}


def main() -> int:
    """Print the figures and return 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=50)
    worlds = parser.parse_args().worlds
    for count in (12, 24, 60):
        for special in (0.0, 0.5):
            runs = [measure(seed, count, special) for seed in range(worlds)]
            figures = [
                f"{method} {100 * fmean(run[method][0] for run in runs):.1f} % of tasks, cost "
                f"{100 * fmean(run[method][1] for run in runs):.2f}"
                for method in runs[0]
            ]
            sys.stdout.write(f"{count} tasks, special {special}: {'; '.join(figures)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
