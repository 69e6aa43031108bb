"""All blows: `python -m support.recovery.matrix`; exits with 1 if anything differed."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from moothall.domain.event import EventType
from moothall.events.event_specs import EVENT_SPECS
from support.recovery.app import KINDS, Kind
from support.recovery.lane import Blow, Lane, Plan, lane
from support.recovery.leftovers import find_leftovers
from support.recovery.report import Report
from support.recovery.scene import NOT_SCRIPTED

STOPS: tuple[tuple[EventType, bool], ...] = (
    (EventType.MODEL_CALLED, False),
    (EventType.SEAT_PROPOSED, False),
    (EventType.CHECK_FINISHED, True),
)
"""The events at which processes are stopped for a minute: the first, or the last of a type."""


@dataclass(slots=True)
class Matrix:
    """A runner of plans in parallel lanes."""

    folder: Path
    report: Report = field(default_factory=Report)
    total: int = 0
    opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    async def references(self) -> list[Plan]:
        """Run without a blow: on a fresh commit, on a known one, and cancelled. Return every
        boundary that occurred.

        Raises `AssertionError` for an event type that no run produced and nobody explained.
        """
        async with self._lane("reference") as test_lane:
            cold, warm = await test_lane.run(Plan(fresh=True)), await test_lane.run(Plan())
            cancelled = await test_lane.run(Plan(cancelled=True))
        if warm.end is None or cancelled.end is None or cold.end != warm.end:
            raise AssertionError(
                f"no reference run: {cold.trouble} {warm.trouble} {cancelled.trouble}"
            )
        self.report.reference = {False: warm.end, True: cancelled.end}
        boundaries = [
            *_boundaries(warm.types, Plan()),
            *_boundaries(cold.types - warm.types, Plan(fresh=True), known_types=warm.types),
            *_boundaries(cancelled.types, Plan(cancelled=True), known_types=warm.types),
        ]
        check_covered(kind for result in (cold, warm, cancelled) for kind in result.types)
        return boundaries

    async def run(
        self, plans: Sequence[Plan], lanes: int, ack_wait: float = 5.0, name: str = "lane"
    ) -> None:
        """Run all plans, `lanes` at a time."""
        waiting = list(reversed(plans))
        self.total += len(plans)

        async def work(number: int) -> None:
            apps = 0
            while waiting:
                apps += 1
                async with self._lane(f"{name}-{number}-{apps}", ack_wait) as test_lane:
                    while waiting and not await self._run_plan(test_lane, waiting.pop()):
                        pass  # after trouble the next plan starts in a fresh lane

        async with asyncio.TaskGroup() as group:
            for number in range(1, min(lanes, len(plans)) + 1):
                group.create_task(work(number))

    async def _run_plan(self, test_lane: Lane, plan: Plan) -> bool:
        result = await test_lane.run(plan)
        self.report.results.append(result)
        problems = self.report.problems(result)
        print_progress(
            f"[{len(self.report.results):3}/{self.total}] "
            f"{time.monotonic() - self.report.began:4.0f} s  {plan.blow}: "
            f"{'; '.join(problems) or 'the same end'} ({result.seconds:.1f} s, "
            f"{result.calls} calls, {result.hit} hit)"
        )
        return bool(problems)

    @asynccontextmanager
    async def _lane(self, name: str, ack_wait: float = 5.0) -> AsyncIterator[Lane]:
        async with AsyncExitStack() as stack:
            async with self.opening:  # four simultaneous process starts are enough
                test_lane = await stack.enter_async_context(lane(self.folder / name, ack_wait))
            yield test_lane
        self.report.lanes += 1
        leftovers = [
            *test_lane.app.left,
            *await asyncio.to_thread(find_leftovers, test_lane.app, test_lane.repo),
        ]
        self.report.left += [f"{name}: {leftover}" for leftover in leftovers]


def check_covered(produced: Iterable[EventType]) -> None:
    """Raise `AssertionError` unless each type of the registry is either produced or explained."""
    covered = set(produced)
    missing = EVENT_SPECS.keys() - covered - NOT_SCRIPTED.keys()
    if missing:
        raise AssertionError(
            f"no run produces {', '.join(sorted(missing))}: script it, or say in scene.py why not"
        )
    if contradicting := covered & NOT_SCRIPTED.keys():
        raise AssertionError(
            f"scene.py explains why {', '.join(sorted(contradicting))} cannot come, and it came"
        )


def _boundaries(
    types: Counter[EventType], plan: Plan, known_types: Iterable[EventType] = ()
) -> list[Plan]:
    """Return the first and last event of each type not in `known_types`, without victims yet."""
    covered = set(known_types)
    return [
        replace(plan, blow=Blow("host", kind, nth))
        for kind, count in types.items()
        if kind not in covered
        for nth in sorted({1, count})
    ]


def kills(boundaries: Sequence[Plan], kinds: Sequence[Kind]) -> list[Plan]:
    """Return every boundary with every kind."""
    return [
        replace(plan, blow=replace(plan.blow, kind=kind))
        for plan in boundaries
        if plan.blow
        for kind in kinds
    ]


def stops(boundaries: Sequence[Plan], kind: Kind) -> list[Plan]:
    """Return the boundaries at which a kind is stopped for a minute."""
    plans = []
    for event_type, last in STOPS:
        at = [plan for plan in boundaries if plan.blow and plan.blow.type is event_type]
        plans += [
            replace(plan, blow=replace(plan.blow, kind=kind, stop=True))
            for plan in (at[-1:] if last else at[:1])
            if plan.blow
        ]
    return plans


def print_progress(text: str) -> None:
    """Print progress."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def run_matrix(options: argparse.Namespace, folder: Path) -> bool:
    """Run what the options select and report the result."""
    matrix = Matrix(folder)
    boundaries = await matrix.references()
    print_progress(
        f"{len(boundaries)} boundaries of "
        f"{len({plan.blow.type for plan in boundaries if plan.blow})} event types; without: "
    )
    for kind, reason in NOT_SCRIPTED.items():
        print_progress(f"  {kind.removeprefix('moothall.')}: {reason}")
    if options.types:
        boundaries = [
            plan
            for plan in boundaries
            if plan.blow and plan.blow.type.removeprefix("moothall.") in options.types
        ]
    killed = kills(boundaries, options.kinds)[:: options.every] if options.kill else []
    async with asyncio.TaskGroup() as group:
        for kind in options.kinds if options.stop else ():
            group.create_task(matrix.run(stops(boundaries, kind), 1, 5.0, f"stop-{kind}"))
        group.create_task(matrix.run(killed, options.lanes))
    report = matrix.report
    text = f"{report.table(boundaries)}\n\n{report.summary()}"
    print_progress(f"\n{text}")
    if options.report:
        await asyncio.to_thread(options.report.write_text, f"{text}\n", encoding="utf-8")
    return report.fine


def main() -> int:
    """Run as a command."""
    parser = argparse.ArgumentParser(prog="scripts/test-recovery", description=__doc__)
    parser.add_argument(
        "--kinds",
        type=lambda text: text.split(","),
        default=list(KINDS),
        help="process kinds, with commas",
    )
    parser.add_argument(
        "--types",
        type=lambda text: text.split(","),
        default=[],
        help="event types such as seat.turn",
    )
    parser.add_argument("--every", type=int, default=1, help="only each n-th kill")
    parser.add_argument("--lanes", type=int, default=3, help="servers side by side")
    parser.add_argument(
        "--no-stop",
        dest="stop",
        action="store_false",
        help="leave the minutes of standing still out",
    )
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="leave the kills out")
    parser.add_argument("--report", type=Path, help="a file for the table too")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mh-recovery-"))
    fine = False
    try:
        fine = asyncio.run(run_matrix(options, folder))
    finally:
        if fine:
            shutil.rmtree(folder)
        else:
            print_progress(f"files and logs of the lanes: {folder}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
