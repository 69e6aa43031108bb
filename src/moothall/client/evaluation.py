"""Evaluations from Python: what `moothall evaluate` does, with a typed report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from moothall.client.types import ConfigurationOptions, EvaluationOptions
from moothall.config import Settings
from moothall.errors import NotFound
from moothall.evaluate import DEFAULT_COMMITS, DEFAULT_TASKS
from moothall.evaluate.evaluation import Evaluation, Plan, find_folder, find_origin, write_report
from moothall.evaluate.report import Report
from moothall.evaluate.runner import Configuration, Options, check_name, own_settings
from moothall.settings import load_settings

_MAX_REASONS = 3


async def run_evaluation(settings: Settings, repository: str, options: EvaluationOptions) -> Report:
    """Measure configurations on a repository and return the report. Raises `NotFound` if no commit
    becomes a task.
    """
    origin = await find_origin(settings, repository)
    folder = await find_folder(settings, options.get("folder"), origin, None)
    plan = Plan(
        origin,
        options.get("ref", ""),
        tasks=options.get("tasks", DEFAULT_TASKS),
        commits=options.get("commits", DEFAULT_COMMITS),
        at_once=options.get("parallel", 1),
    )
    evaluation = Evaluation(settings, plan, folder, options.get("on_progress", lambda _line: None))
    named = options.get("configurations") or {"default": ConfigurationOptions()}
    if not await evaluation.run(_configurations(settings, named, folder)):
        commits, reasons = evaluation.dropped()
        why = "; ".join(f"{reason} ({count})" for reason, count in reasons[:_MAX_REASONS])
        raise NotFound(
            f"no commit of {commits} became a task: {why}. Look at more commits or at another ref"
        )
    return write_report(folder)


def _configurations(
    settings: Settings, named: Mapping[str, ConfigurationOptions], folder: Path
) -> Sequence[Configuration]:
    configurations = []
    for name, given in named.items():
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
