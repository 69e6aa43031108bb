"""The results of a run of the corpus, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fetch import Project
from search import Found

PAGE = Path(__file__).parents[2] / "docs/repositories.md"
_ECOSYSTEMS = {"python": "Python", "go": "Go", "rust": "Rust", "node": "Node", "make": "Make"}


@dataclass(frozen=True, slots=True)
class Row:
    """One project that went well, with the seconds of the deliberation and of everything."""

    project: Project
    search_result: Found
    council_seconds: float
    right: int
    seconds: float = 0.0


def show(row: Row) -> str:
    """Return a line about the project."""
    result = row.search_result
    return (
        f"{row.project.name:<28} {_cases(row):<22} set-up {result.setup_seconds:4.0f} s, tests "
        f"{result.check_seconds:5.1f} s, {result.tried} faults in {result.search_seconds:4.0f} s, "
        f"{_fault(row)}, {row.right} right, fixed in {row.council_seconds:4.0f} s"
    )


def write(rows: Sequence[Row], order: Sequence[str]) -> None:
    """Write the lines of these projects into the page's table; keep lines of other projects in
    `order`.
    """
    text = PAGE.read_text(encoding="utf-8")
    head, begin, rest = text.partition("<!-- table -->\n")
    old, end, tail = rest.partition("<!-- end -->\n")
    lines = {line.split()[1]: line for line in old.splitlines()[2:]} | {
        row.project.name: _line(row) for row in rows
    }
    table = [
        "| project | kind | tests | set-up | test run | fault | right seats | fixed in |",
        "|---|---|---|---|---|---|---|---|",
        *(lines[name] for name in order if name in lines),
    ]
    PAGE.write_text(head + begin + "\n".join(table) + "\n" + end + tail, encoding="utf-8")


def _line(row: Row) -> str:
    result, versions = (
        row.search_result,
        ", ".join(package.version.removeprefix("v") for package in row.project.packages),
    )
    return (
        f"| {row.project.name} {versions} | {_ECOSYSTEMS[row.project.ecosystem]}: "
        f"{row.project.reason} | {_cases(row)} | {result.setup_seconds:.0f} s | "
        f"{result.check_seconds:.1f} s | {_fault(row)} | {row.right} of 3 | "
        f"{row.council_seconds:.0f} s |"
    )


def _cases(row: Row) -> str:
    counts = Counter(
        outcome for run in row.search_result.base.values() for outcome in run.cases.values()
    )
    failed = counts["failed"] + counts["errored"]
    parts = [
        f"{counts['passed']} passed",
        *([f"{failed} failed"] if failed else []),
        *([f"{counts['skipped']} skipped"] if counts["skipped"] else []),
    ]
    return ", ".join(parts) if counts else "reported as one"


def _fault(row: Row) -> str:
    fault = row.search_result.first
    kind = fault.kind if fault.kind[0].isalpha() else f"`{fault.kind}`".replace("|", "\\|")
    return f"{kind} in `{fault.function}`, {len(row.search_result.failed)} failed"
