"""The results of all runs, as a table and as a summary."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psutil

from support.recovery.app import KINDS, Kind
from support.recovery.lane import Blow, Plan, RunResult
from support.recovery.scene import End


@dataclass(slots=True)
class Report:
    """The results of all runs. `left` holds a sentence for each leftover of a lane."""

    results: list[RunResult] = field(default_factory=list)
    reference: dict[bool, End] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    lanes: int = 0
    began: float = field(default_factory=time.monotonic)

    def problems(self, result: RunResult) -> list[str]:
        """Describe what is wrong with a run."""
        return [
            *self.differences(result),
            *(f"repeated though recorded: {call_id}" for call_id in result.repeated),
        ]

    def differences(self, result: RunResult) -> list[str]:
        """Describe the difference between a run's end and the end without a blow."""
        reference = self.reference[result.plan.cancelled]
        differs = reference.difference(result.end) if result.end is not None else "no end"
        return [*([f"it ended otherwise: {differs}"] if differs else []), *result.trouble]

    @property
    def fine(self) -> bool:
        """True if nothing differed, nothing was repeated and nothing is left."""
        return not self.left and not any(self.problems(result) for result in self.results)

    def table(self, boundaries: Sequence[Plan]) -> str:
        """Return a table with a row per boundary and a column per kind: same end or not, when
        killed (K) and when stopped for a minute (S); a dot if no such process existed.
        """
        cells: dict[tuple[str, Kind], list[str]] = {}
        for result in self.results:
            if blow := result.plan.blow:
                cell = "DIFFERS" if self.problems(result) else "same" if result.hit else "·"
                cells.setdefault((_name(blow), blow.kind), []).append(
                    f"{'S' if blow.stop else 'K'} {cell}"
                )
        names = [_name(plan.blow) for plan in boundaries if plan.blow]
        rows = [
            [name, *(", ".join(sorted(cells.get((name, kind), [""]))) for kind in KINDS)]
            for name in names
        ]
        return "\n".join(_align([["boundary", *KINDS], *rows, *self._counts()]))

    def _counts(self) -> Iterator[list[str]]:
        runs = {
            kind: [
                result
                for result in self.results
                if result.plan.blow and result.plan.blow.kind == kind
            ]
            for kind in KINDS
        }
        yield ["runs", *(str(len(runs[kind])) for kind in KINDS)]
        yield ["processes hit", *(str(sum(result.hit for result in runs[kind])) for kind in KINDS)]
        yield [
            "runs with a different result",
            *(str(sum(bool(self.differences(result)) for result in runs[kind])) for kind in KINDS),
        ]
        yield [
            "recorded calls repeated",
            *(str(sum(len(result.repeated) for result in runs[kind])) for kind in KINDS),
        ]

    def summary(self) -> str:
        """Return a sentence about all runs, and a line for each failure."""
        stopped = sum(bool(result.plan.blow and result.plan.blow.stop) for result in self.results)
        different = sum(bool(self.differences(result)) for result in self.results)
        lines = [
            f"{result.plan.blow}: {'; '.join(self.problems(result))}"
            for result in self.results
            if self.problems(result)
        ]
        lines += [f"left behind: {leftover}" for leftover in self.left]
        return "\n".join(
            [
                *lines,
                (
                    f"{len(self.results)} runs ({stopped} of them stopped for 60 s), "
                    f"{sum(result.hit for result in self.results)} processes hit, "
                    f"{sum(result.calls for result in self.results)} model calls: "
                    f"{different} runs ended otherwise, "
                    f"{sum(len(result.repeated) for result in self.results)} recorded calls were "
                    f"repeated, {len(self.left)} things were left behind by {self.lanes} lanes; "
                    f"{time.monotonic() - self.began:.0f} s on {psutil.cpu_count()} processors"
                ),
            ]
        )


def _name(blow: Blow) -> str:
    return f"{blow.type.removeprefix('moothall.')} {blow.nth}"


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
