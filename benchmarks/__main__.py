"""The one command: `python -m benchmarks [PART …] [--quick]`, from the repository's root."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.served import served
from benchmarks.stub import running_stub
from benchmarks.workload import Case, measure

console = Console(stderr=True)
PARTS = ("text",)


async def _text(*, quick: bool) -> None:
    count, seconds = (5, 4.0) if quick else (20, 10.0)
    cases = (Case(0, 1, count), Case(50, 1, count), Case(500, 1, max(count // 4, 2)), Case(50, 64, seconds=seconds))
    table = Table("case", "wall ms (median)", "over critical path", "/s", "CPU ms each", "of it", "caller", "stub")
    with tempfile.TemporaryDirectory(prefix="mh-bench-") as folder:
        async with running_stub() as stub, served(Path(folder), stub.base_url) as house:
            await measure(house, stub, Case(0, 1, 3))
            for case in cases:
                console.print(f"moothall, {case.name} …")
                run = await measure(house, stub, case)
                each = {part: f"{value * 1000 / run.count:.2f}" for part, value in run.cpu.items()}
                parts = " ".join(f"{part} {value:.1f}" for part, value in run.parts_ms().items())
                over = f"{case.over_critical(run):.3f}" if case.delay_ms and case.at_once == 1 else ""
                table.add_row(
                    case.name,
                    f"{run.wait * 1000:.1f}",
                    over,
                    f"{run.rate:.1f}",
                    f"{run.cpu_ms:.1f}",
                    parts,
                    each["caller"],
                    each["stub"],
                )
            held = house.system.held()
    console.print(table)
    console.print("memory, PSS in MB: " + ", ".join(f"{part} {value / 1e6:.0f}" for part, value in held.pss.items()))


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=(*PARTS, []), help="what to measure; all by default")
    parser.add_argument("--quick", action="store_true", help="short runs: to see that it works, not to publish")
    asked = parser.parse_args()
    uvloop.run(_text(quick=asked.quick))


if __name__ == "__main__":
    main()
