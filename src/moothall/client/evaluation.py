"""Evaluations from Python: what `moothall evaluate` does, with a typed report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moothall.client.types import EvaluationOptions
from moothall.config import Settings
from moothall.errors import NotFound
from moothall.evaluate.evaluation import Evaluation, Plan, find_folder, find_origin, write_report
from moothall.evaluate.report import Report
from moothall.evaluate.runner import Configuration, Options, check_name, own_settings
from moothall.settings import load_settings

_MAX_REASONS = 3


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """The arguments of `AsyncClient.evaluate`."""

    repository: str
    configurations: Mapping[str, EvaluationOptions]
    ref: str
    tasks: int
    commits: int
    parallel: int
    folder: Path | None
    on_progress: Callable[[str], None] | None


async def run_evaluation(settings: Settings, request: EvaluationRequest) -> Report:
    """Measure configurations on a repository and return the report. Raises `NotFound` if no commit
    becomes a task.
    """
    origin = await find_origin(settings, request.repository)
    folder = await find_folder(settings, request.folder, origin, None)
    plan = Plan(
        origin,
        request.ref,
        tasks=request.tasks,
        commits=request.commits,
        at_once=request.parallel,
    )
    evaluation = Evaluation(settings, plan, folder, request.on_progress or (lambda _line: None))
    if not await evaluation.run(_configurations(settings, request.configurations, folder)):
        commits, reasons = evaluation.dropped()
        why = "; ".join(f"{reason} ({count})" for reason, count in reasons[:_MAX_REASONS])
        raise NotFound(
            f"no commit of {commits} became a task: {why}. Look at more commits or at another ref"
        )
    return write_report(folder)


def _configurations(
    settings: Settings, named: Mapping[str, EvaluationOptions], folder: Path
) -> Sequence[Configuration]:
    """Return the configurations by name; without any, the client's settings as `default`."""
    configurations = []
    for name, given in (named or {"default": EvaluationOptions()}).items():
        check_name(name)
        file = given.get("settings")
        options = Options(
            agents=given.get("agents", 0),
            protocol=given.get("protocol", ""),
            limit=given.get("seconds", 0),
            budget=given.get("budget_tokens", 0),
            seed=given.get("seed"),
            model=given.get("model", ""),
        )
        own = own_settings(load_settings(file) if file else settings, folder)
        configurations.append(Configuration(name, own, options))
    return configurations
