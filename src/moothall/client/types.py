"""Types of the client: options of tasks and evaluations, events of a deliberation, and stories.
Evaluations from Python: what `moothall evaluate` does, with a typed report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from moothall.config import Settings
from moothall.domain.event import EventType
from moothall.errors import NotFound
from moothall.evaluate import DEFAULT_COMMITS, DEFAULT_TASKS
from moothall.evaluate.evaluation import Evaluation, Plan, find_folder, find_origin, write_report
from moothall.evaluate.report import Report
from moothall.evaluate.runner import Configuration, Options, check_name, own_settings
from moothall.settings import load_settings

# Types of the client: options of tasks and evaluations, events of a deliberation, and stories.


class TaskOptions(TypedDict, total=False):
    """The options of `submit` and `deliberate`. An absent option means the server's default.

    ref: a branch, tag or commit of the repository; its HEAD by default.
    role: dev (the default), qa, architect, devops, data or po.
    agents: the number of seats.
    protocol: single, vote, debate, tests_then_verify, tournament or judge.
    head: with the protocol judge, the branch or commit to judge; `ref` is the branch that it goes
    into. The task may be empty then.
    tests_only: judge it without a model.
    rounds: rounds of review and revision.
    requirements: conditions that the answer must meet.
    rubric: how reviewers judge.
    hidden_tests: tests that no seat sees, by path; they run on every candidate.
    seconds: the time limit of the deliberation.
    turns: the turns of a seat.
    budget_tokens, budget_usd: limits for the whole council.
    adaptive: start with two seats, and add others while their answers disagree.
    follows: the id of a task whose conversation this one continues.
    task_id: the id of the task; the client creates one by default. The same id with the same
    request is the same task.
    """

    ref: str
    role: str
    agents: int
    protocol: str
    head: str
    tests_only: bool
    rounds: int
    requirements: Sequence[str]
    rubric: str
    hidden_tests: Mapping[str, str]
    seconds: int
    turns: int
    budget_tokens: int
    budget_usd: float
    adaptive: bool
    follows: str
    task_id: str


class ConfigurationOptions(TypedDict, total=False):
    """One configuration of an evaluation. An absent option means the default.

    settings: a TOML file of settings; by default those of the client.
    agents: the number of seats.
    protocol: single, vote, debate, tests_then_verify or tournament.
    model: a model of the settings.
    seconds, budget_tokens: limits for each deliberation.
    seed: the base of the sampling seeds.
    """

    settings: Path
    agents: int
    protocol: str
    model: str
    seconds: int
    budget_tokens: int
    seed: int


class EvaluationOptions(TypedDict, total=False):
    """The options of `evaluate`. An absent option means the default.

    configurations: the configurations to compare, by name; by default the client's settings.
    ref: the commit whose history is mined; the repository's HEAD by default.
    tasks: the number of bug fixes to mine (10), from the newest `commits` (200).
    parallel: concurrent deliberations (1).
    folder: where tasks and results are kept; one in the data directory by default. The same
    call continues an interrupted evaluation there.
    on_progress: receives lines of text about the progress.
    """

    configurations: Mapping[str, ConfigurationOptions]
    ref: str
    tasks: int
    commits: int
    parallel: int
    folder: Path
    on_progress: Callable[[str], None]


def check_options(options: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise `TypeError` for an unknown option, as Python does for a keyword argument."""
    known_names = sorted(known)
    for name in options:
        if name not in known_names:
            raise TypeError(f"unexpected option {name!r}; there are {', '.join(known_names)}")


@dataclass(frozen=True, slots=True)
class Update:
    """One event of a deliberation.

    seq: the position to continue after, for `watch(after_seq=…)`; it increases.
    data: the event's data, as `moothall log asyncapi` describes it by type.
    status: PENDING, IN_PROGRESS or how it ended, as of this event.
    progress_percent: 0 to 100.
    step: what happened, in words.
    agent: the seat that the event is about, or an empty string.
    """

    seq: int
    type: EventType
    data: Mapping[str, Any]
    status: str = ""
    progress_percent: int = 0
    step: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True)
class StorySummary:
    """A story on the board. `dor_score`: 0 to 100, by the story coach."""

    story_id: str
    title: str
    state: str
    dor_score: int
    brief: str


@dataclass(frozen=True, slots=True)
class Story:
    """A story with its acceptance criteria and results.

    task_ids: the deliberations of its plan, in their order.
    branch, commit_sha: the combined result, once its check passed.
    """

    summary: StorySummary
    criteria: tuple[str, ...]
    task_ids: tuple[str, ...] = ()
    checked: bool = False
    branch: str = ""
    commit_sha: str = ""
    check_error: str = ""


@dataclass(frozen=True, slots=True)
class StoryMove:
    """The result of a move: the state after it. `blocked`: evidence is missing, and the story did
    not move; `reason` says what is missing.
    """

    story_id: str
    state: str
    blocked: bool
    reason: str


# Evaluations from Python: what `moothall evaluate` does, with a typed report.


_MAX_REASONS = 3


async def run_evaluation(settings: Settings, repository: str, options: EvaluationOptions) -> Report:
    """Measure configurations on a repository and return the report. Raises `NotFound` if no commit
    becomes a task.
    """
    check_options(options, EvaluationOptions.__annotations__)
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
    options_by_name = options.get("configurations") or {"default": ConfigurationOptions()}
    if not await evaluation.run(_configurations(settings, options_by_name, folder)):
        commits, reasons = evaluation.dropped()
        reason_text = "; ".join(f"{reason} ({count})" for reason, count in reasons[:_MAX_REASONS])
        raise NotFound(
            f"no commit of {commits} became a task: {reason_text}. Look at more commits or at "
            "another ref"
        )
    return write_report(folder)


def _configurations(
    settings: Settings, options_by_name: Mapping[str, ConfigurationOptions], folder: Path
) -> Sequence[Configuration]:
    configurations = []
    for name, values in options_by_name.items():
        check_name(name)
        check_options(values, ConfigurationOptions.__annotations__)
        file = values.get("settings")
        options = Options(
            agents=values.get("agents", 0),
            protocol=values.get("protocol", ""),
            limit=values.get("seconds", 0),
            budget=values.get("budget_tokens", 0),
            seed=values.get("seed"),
            model=values.get("model", ""),
        )
        configured = own_settings(load_settings(file) if file else settings, folder)
        configurations.append(Configuration(name, configured, options))
    return configurations
