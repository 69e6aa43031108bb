"""Run configurations on tasks, judge the answers by the hidden tests, and record the results."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moothall import __version__
from moothall.app.server import App, open_app
from moothall.app.workspaces import open_workspace_services
from moothall.collector.decide import find_unmasked_diff
from moothall.config import Settings
from moothall.config.models import AUTO, DEFAULT
from moothall.domain.budget import Budget
from moothall.domain.codec import dump, load
from moothall.domain.council import PROTOCOLS
from moothall.domain.event import Event, EventType
from moothall.domain.ids import LOCAL, TaskId, digest
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.outcome import Result as RankedResult
from moothall.domain.repository import Prepared
from moothall.domain.task import Constraints, Deliberation, DeliberationRequest, RepositoryRef
from moothall.errors import ConfigurationError, InvalidRequest, ModelUnavailable, PatchRefused
from moothall.evaluate.harbor import Harbor, trajectories
from moothall.evaluate.miner import ReportProgress, pin, seal
from moothall.evaluate.report import Answer, Result, Seat, past_tasks
from moothall.evaluate.tasks import Judge, Judgement, Lines, Task
from moothall.orchestrator.council_registry import check_protocol
from moothall.orchestrator.request_planning import is_auto
from moothall.orchestrator.seat_choice import (
    PAIR,
    PastTask,
    TaskKind,
    choose_models,
    has_worked,
    kind_of,
    main_language,
)
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.profile import Commands, commands_of
from moothall.repositories.service import RepositoryService
from moothall.toolkits.web import WebFamily

RESULTS, DATA, SEALED, TRAJECTORIES = "results.jsonl", "data", "sealed", "trajectories"
_STOPS = frozenset(
    {
        "MODEL_UNAVAILABLE",
        "CONFIGURATION",
        "BUS_UNAVAILABLE",
        "SANDBOX_UNAVAILABLE",
        "POLICY_UNAVAILABLE",
    }
)
"""Codes of errors that the next task would meet, too."""
_NUMBER_KEYS, _TEXT_KEYS = ("agents", "limit", "budget"), ("protocol", "model")
"""The options that a configuration may have of its own."""
_MAX_NAME_CHARS = 40
_NO_WINNER = Judgement(solved=False)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of deliberations. Zero and empty mean the default; limit: seconds; budget: tokens."""

    agents: int = 0
    protocol: str = ""
    limit: int = 0
    budget: int = 0
    seed: int | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings that are measured, under a name."""

    name: str
    settings: Settings
    options: Options

    @property
    def digest(self) -> str:
        """A digest of its settings and options."""
        settings = json.loads(self.settings.model_dump_json(exclude={"data_dir", "log", "trace"}))
        return digest(
            json.dumps(settings, sort_keys=True), json.dumps(dump(self.options), sort_keys=True)
        )[:16]

    @property
    def leaves_choice(self) -> bool:
        """Whether its models are chosen by the results of other tasks."""
        return is_auto(self.options.model or (AUTO if self.settings.seats == AUTO else ""))

    def choose(self, kind: TaskKind, past: Sequence[PastTask]) -> tuple[Configuration, str]:
        """Return the configuration with the models chosen for a kind of task, and why. Without
        results it has the configured model.
        """
        options, models = self.options, self.settings.choice
        protocol = PROTOCOLS[check_protocol(options.protocol)]
        seats = 1 if protocol.one_seat else options.agents or PAIR
        budget = Budget(tokens=options.budget, cost_usd=self.settings.limits.cost_usd)
        choice = choose_models(kind, past, ["", *models.named], seats, budget)
        if not choice.models:
            named = replace(options, model=models.of_role("dev") or DEFAULT)
        else:
            named = replace(
                options, model=",".join(name or DEFAULT for name in choice.models), agents=seats
            )
        return replace(self, options=named), choice.reason

    def request(
        self, task: Task, task_id: TaskId, repository: RepositoryRef
    ) -> DeliberationRequest:
        """Return the request of a task."""
        options = self.options
        return DeliberationRequest(
            description=task.text,
            role="dev",
            task_id=task_id,
            repository=repository,
            constraints=Constraints(timeout_seconds=options.limit),
            budget=Budget(tokens=options.budget),
            num_agents=options.agents,
            protocol=options.protocol,
            model=options.model,
            seed=options.seed,
            records_calls=True,
        )


def check_configurations(configurations: Sequence[Configuration], results: Lines) -> None:
    """Raise `InvalidRequest` for two equal configurations, and for one whose results are of other
    settings.
    """
    names_by_digest: dict[str, str] = {}
    for configuration in configurations:
        first_name = names_by_digest.setdefault(configuration.digest, configuration.name)
        if first_name != configuration.name:
            raise InvalidRequest(
                f"the configurations {first_name} and {configuration.name} have the same "
                "settings: nothing would be compared. Change one; environment variables MOOTHALL_… "
                "override both files"
            )
        measured = [row for row in results.of(config=configuration.name) if not row.get("broken")]
        if any(row.get("digest") != configuration.digest for row in measured):
            raise InvalidRequest(
                f"the configuration {configuration.name} was measured with other settings or "
                "options before. Give it another name (--config NAME=FILE), or another --folder"
            )


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs tasks under configurations. `folder` is the evaluation's; tasks with a result are not
    run again.
    """

    folder: Path
    repositories: RepositoryService
    judge: Judge
    results: Lines
    report_progress: ReportProgress

    async def run(
        self, configuration: Configuration, tasks: Sequence[Task], at_once: int = 1
    ) -> None:
        """Run the tasks that have no result yet. Raises errors that the next task would meet,
        too.
        """
        remaining = [task for task in tasks if not any(self._valid_results(task, configuration))]
        if not remaining:
            return
        places = asyncio.Semaphore(at_once)
        async with (
            open_app(configuration.settings, self.report_progress) as app,
            asyncio.TaskGroup() as group,
        ):

            async def run(task: Task) -> None:
                async with places:
                    await self._run_task(app, configuration, task)

            for task in remaining:
                group.create_task(run(task), name=f"task {task.id}")

    def _valid_results(
        self, task: Task, configuration: Configuration
    ) -> Iterable[Mapping[str, Any]]:
        return (
            row
            for row in self.results.of(task=task.id, config=configuration.name)
            if not row.get("broken")
        )

    async def _run_task(self, app: App, configuration: Configuration, task: Task) -> None:
        number = sum(
            1
            for row in self.results.of(task=task.id, config=configuration.name)
            if row.get("broken")
        )
        repository = await self.seal(task)
        key = {"task": task.id, "config": configuration.name, "digest": configuration.digest}
        # Before the deliberation, whose time it would take; later configurations find the base
        # prepared.
        prepared = await self.repositories.prepare(await self.repositories.resolve(repository))
        kind = kind_of(task.text, task.repository, main_language(prepared.files))
        parts = [task.id, task.commit, task.text, configuration.name, configuration.digest]
        choice = ""
        if configuration.leaves_choice:
            past = past_tasks(self.results.rows, excluded_task=task.id)
            configuration, choice = configuration.choose(kind, past)
            parts.append(configuration.options.model)
        self.report_progress(f"{configuration.name} {task.id}: the council begins. {choice}")
        while True:
            task_id = TaskId(f"eval-{digest(*parts, str(number))[:16]}")
            began = datetime.now(UTC)
            request = configuration.request(task, task_id, repository)
            submitted = await app.deliberations.submit(request, LOCAL)
            outcome, events = await _follow_deliberation(app, task_id)
            if outcome.status is DeliberationStatus.TIMEOUT and submitted.deadline <= began:
                # It was interrupted, and its time passed while nobody worked on it.
                number += 1
                self.results.add(
                    {
                        **key,
                        "broken": True,
                        "why": "its time limit passed while the evaluation was interrupted",
                    }
                )
                continue
            break
        if reason := _explain_broken(outcome):
            self.results.add({**key, "broken": True, "why": reason})
            raise ModelUnavailable(
                f"no seat of configuration {configuration.name} could work: {reason}. Fix that and "
                "run the same command again; results so far are kept"
            )
        row = replace(
            await self._judge_outcome(task, prepared, outcome),
            kind=kind,
            seats=_seats_of(submitted, outcome),
            choice=choice,
        )
        self._write_trajectories(configuration, task, events)
        self.results.add({**dump(row), **key})
        self.report_progress(f"{configuration.name} {task.id}: {describe(row)}")

    async def seal(self, task: Task) -> RepositoryRef:
        """Return a registered repository that holds the task's parent and its history, and nothing
        later.
        """
        folder = self._sealed_repository(task)
        if not (folder / "HEAD").exists():
            entry = await self.repositories.register(task.repository)
            clone = self.repositories.clone(entry.id)
            if not await clone.has(task.parent):
                await self.repositories.resolve(RepositoryRef(id=entry.id))
                await pin(clone, task.parent)
            await seal(GitRunner(self.folder / DATA / "repos", 600), clone, task.parent, folder)
        commands = Commands.model_validate(task.commands)
        entry = await self.repositories.register(str(folder), push="none", commands=commands)
        return RepositoryRef(id=entry.id, ref=task.parent)

    async def export(self, task: Task, harbor: Harbor) -> Path:
        """Write a task as a Harbor task and return its folder."""
        base = await self.repositories.resolve(await self.seal(task))
        return await harbor.write(task, self._sealed_repository(task), commands_of(base.profile))

    def _sealed_repository(self, task: Task) -> Path:
        return self.folder / SEALED / f"{task.id}.git"

    async def _judge_answer(
        self, task: Task, prepared: Prepared, answer: RankedResult
    ) -> Judgement:
        """Run the hidden tests of a task on an answer as the council ran it."""
        try:
            diff = await find_unmasked_diff(self.repositories, prepared.base, answer)
        except PatchRefused as error:
            return Judgement(solved=False, reason=error.message)
        return await self.judge.judge(task, prepared, diff)

    async def _judge_outcome(self, task: Task, prepared: Prepared, outcome: Outcome) -> Result:
        judgements: dict[str, Judgement] = {}
        candidates: list[Answer] = []
        for result in outcome.results:
            if not result.diff.strip():
                continue
            if result.diff not in judgements:
                judgements[result.diff] = await self._judge_answer(task, prepared, result)
            judgement = judgements[result.diff]
            candidates.append(
                Answer(
                    result.seat,
                    result.rank,
                    result.level.value,
                    judgement.solved,
                    failing=judgement.failing,
                    why=judgement.reason,
                    revision=result.revision,
                )
            )
        winner = judgements.get(outcome.diff, _NO_WINNER) if outcome.winner_id else _NO_WINNER
        return Result(
            task=task.id,
            config="",
            solved=winner.solved,
            state=outcome.final_state or outcome.status.value.lower(),
            winner=outcome.winner_id,
            level=outcome.level.value if outcome.winner_id else "",
            tokens=outcome.usage.tokens,
            calls=outcome.usage.calls,
            cost_usd=outcome.usage.cost_usd,
            seconds=round(outcome.duration_ms / 1000, 1),
            undecided=outcome.undecided,
            failing=winner.failing,
            candidates=tuple(candidates),
            agents=outcome.agent_count,
            error=outcome.error_message[:500],
            deliberation=outcome.task_id,
            moothall=__version__,
            at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )

    def _write_trajectories(
        self, configuration: Configuration, task: Task, events: Sequence[Event]
    ) -> None:
        folder = self.folder / TRAJECTORIES / configuration.name / task.id
        folder.mkdir(parents=True, exist_ok=True)
        for seat, document in trajectories(events, task.text).items():
            (folder / f"{seat}.json").write_text(json.dumps(document, indent=2), encoding="utf-8")


async def _follow_deliberation(app: App, task_id: TaskId) -> tuple[Outcome, list[Event]]:
    """Return the outcome of a deliberation and its events."""
    events: list[Event] = []
    async for recorded in app.deliberations.watch(task_id, 0, LOCAL):
        events.append(recorded.event)
        if recorded.event.type is EventType.DELIBERATION_DECIDED:
            return load(Outcome, recorded.event.data), events
    return await app.deliberations.result(task_id, LOCAL), events


def _seats_of(deliberation: Deliberation, outcome: Outcome) -> tuple[Seat, ...]:
    return tuple(
        Seat(seat.seat, deliberation.model_of(seat.seat), seat.usage)
        for seat in outcome.seats
        if has_worked(seat)
    )


def _explain_broken(outcome: Outcome) -> str:
    """Return why no seat could work, if the next task would fail for the same reason; else ''."""
    worked = [seat for seat in outcome.seats if seat.status != "unstarted" or seat.error_code]
    if outcome.results or not worked or any(seat.error_code not in _STOPS for seat in worked):
        return ""
    return " ".join(
        (worked[0].error_message or outcome.error_message or worked[0].error_code).split()
    )[:300]


def describe(row: Result) -> str:
    """Return a result in a few words."""
    answer = f"{row.level.replace('_', '-')} winner" if row.winner else f"no winner ({row.state})"
    return (
        f"{'solved' if row.solved else 'not solved'}, {answer}, {row.tokens:,} tokens, "
        f"{row.seconds:,.0f} s"
    )


def own_settings(settings: Settings, folder: Path) -> Settings:
    """Return settings with the evaluation's data directory, under which tools of seats reach no
    network.
    """
    shut = WebFamily().own_settings(settings).model_copy(update={"allow": (), "only_allowed": True})
    return settings.model_copy(update={"data_dir": folder / DATA, WebFamily.section: shut})


@asynccontextmanager
async def open_judge(settings: Settings) -> AsyncIterator[tuple[RepositoryService, Judge]]:
    """Open the workspaces in which hidden tests run."""
    workspace_settings = settings.workspace.model_copy(update={"warm": 0})
    async with open_workspace_services(
        settings.model_copy(update={"workspace": workspace_settings})
    ) as services:
        yield services.repositories, Judge(services.repositories, services.workspaces)


def check_name(name: str) -> None:
    """Raise `InvalidRequest` for an invalid name of a configuration, which also names a folder."""
    if (
        not 0 < len(name) <= _MAX_NAME_CHARS
        or not all(letter.isalnum() or letter in "-_." for letter in name)
        or name.startswith(".")
    ):
        raise InvalidRequest(
            f"configuration {name[:80]!r}: a name has at most {_MAX_NAME_CHARS} letters, digits, "
            "'-', '_' and '.'"
        )


def read_configurations(
    named: Sequence[str],
    default: Settings,
    options: Options,
    folder: Path,
    load_file: Callable[[Path], Settings],
) -> list[Configuration]:
    """Return the configurations of arguments NAME=FILE[,KEY=VALUE…].

    Without any, return the current settings as `default`. An empty FILE also means the current
    settings.
    Raises `InvalidRequest`, `ConfigurationError`.
    """
    if not named:
        return [Configuration("default", own_settings(default, folder), options)]
    configurations: dict[str, Configuration] = {}
    for argument in named:
        name, mark, value = argument.partition("=")
        file, *pairs = value.split(",")
        if not (name and mark and value):
            raise InvalidRequest(
                f"--config {argument[:80]!r} is not NAME=FILE; write --config small=small.toml"
            )
        check_name(name)
        if name in configurations:
            raise InvalidRequest(
                f"--config names {name} twice; give each configuration its own name"
            )
        try:
            settings = load_file(Path(file)) if file else default
        except ConfigurationError as error:
            raise ConfigurationError(
                f"--config {name}: {error.message}. Name a file of settings, as `moothall config` "
                "prints them"
            ) from error
        configurations[name] = Configuration(
            name, own_settings(settings, folder), _with_options(options, name, pairs)
        )
    return list(configurations.values())


def _with_options(options: Options, name: str, pairs: Sequence[str]) -> Options:
    """Return options overridden by KEY=VALUE pairs. Several models are separated by `+`. Raises
    `InvalidRequest`.
    """
    overrides: dict[str, int | str] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key in _NUMBER_KEYS and value.isdecimal() and int(value):
            overrides[key] = int(value)
        elif key in _TEXT_KEYS and value:
            overrides[key] = value.replace("+", ",") if key == "model" else value
        else:
            raise InvalidRequest(
                f"--config {name}: {pair[:80]!r} is not an option; the options are "
                f"{', '.join(f'{key}=NUMBER' for key in _NUMBER_KEYS)} and "
                f"{', '.join(f'{key}=NAME' for key in _TEXT_KEYS)}"
            )
    return replace(options, **overrides)  # type: ignore[arg-type] # by the keys above
