#!/usr/bin/env python3
"""Measure how much selection recovers of the gap between chance and the best possible choice.

    .venv/bin/python tests/strong/recovered_gap.py [SEED]

Each of 24 small programs has five candidates, each right with a probability of 0.34. Half of the
cases are visible in the task, the others hidden; both halves are checks of the caller.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from support.gap import Choice, choose, recovered_gap  # noqa: E402
from support.small_programs import PROGRAMS  # noqa: E402


async def main(seed: int) -> None:
    """Judge all pools, and print what was selected."""

    def report(item: Choice) -> None:
        verdict = "right" if item.selected else "wrong"
        sys.stdout.write(f"{item.program}: {verdict}; {item.right} of {item.size} are right\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory() as folder:
        choices = await choose(Path(folder), PROGRAMS, seed, report)
    chance = sum(item.right / item.size for item in choices)
    selected, best = (
        sum(item.selected for item in choices),
        sum(item.right > 0 for item in choices),
    )
    sys.stdout.write(
        f"selected {selected}, chance {chance:.1f}, best {best} of {len(choices)}; recovered gap "
        f"{recovered_gap(choices):.3f}\n"
    )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
