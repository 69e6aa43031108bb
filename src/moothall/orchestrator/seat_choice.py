"""Which models should take the seats of a task, from the results of earlier tasks in the log.

A task has a kind: its repository, language, area and size. The models are compared on earlier tasks
of the same kind or, if there are too few, of a wider one. Two models complement each other if at
least one of them solves most of these tasks.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from cachetools import FIFOCache

from moothall.domain.budget import Budget, Usage
from moothall.domain.codec import load
from moothall.domain.council import PROTOCOLS
from moothall.domain.event import Channel, EventType
from moothall.domain.ids import TaskKey
from moothall.domain.outcome import Outcome, Result
from moothall.domain.proposal import OUT_OF_PATIENCE, SeatOutcome, SeatStatus
from moothall.domain.task import Deliberation
from moothall.errors import InvalidRequest
from moothall.ports import Log
from moothall.ranking.diffs import file_diffs
from moothall.sandbox_runtime.syntax import ENDINGS

PAIR = 2
"""The number of seats of a chosen council, if the request names none."""
MIN_TASKS = 5
"""The number of earlier tasks without which nothing is chosen. A kind with fewer is widened."""
PRICE_OF_DEAREST = 0.1
"""The share of solved tasks that is worth the cost of the dearest models: models that cost half as
much may solve 5 of 100 tasks fewer. The share among ten tasks differs by more by chance.
"""
_PRIOR_TASKS = 1.0
"""The weight of what is expected without results, in tasks."""
_LONG_WORDS, _AREA_CHARS = 40, 40
_LEVELS = (
    ("repository", "language", "area", "size"),
    ("repository", "language", "area"),
    ("repository", "language"),
    ("repository",),
    ("language",),
    (),
)
"""The fields of kinds that are compared, the narrowest kind first."""
_PATH = re.compile(r"(?<![\w:/.-])(?:[\w.-]+/)*[\w.-]+(?P<ending>\.[a-z]{1,4})\b")


@dataclass(frozen=True, slots=True)
class TaskKind:
    """A kind of task. `area` is the first folder of the first path that its text names, `size`
    short or long, by the length of its text.
    """

    repository: str = ""
    language: str = ""
    area: str = ""
    size: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a seat with a model achieved. `solved`: an independent test supports one of its answers;
    `first`: its first answer.
    """

    model: str
    solved: bool
    first: bool
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class PastTask:
    """An earlier task and the seats that worked on it."""

    kind: TaskKind
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen models, '' for the default one; none if there is too little to learn from.
    `reason` says why, in one line. `share` is the expected share of solved tasks, `cost` that of
    the seats: US dollars, or tokens if no model has a price.
    """

    models: tuple[str, ...]
    reason: str
    share: float = 0.0
    cost: float = 0.0


def kind_of(text: str, repository: str, language: str) -> TaskKind:
    """Return the kind of a task. `language` counts if the text names no file in a known one."""
    area = ""
    for match in _PATH.finditer(text):
        if named := ENDINGS.get(match["ending"]):
            language = named
            folders = match[0].lstrip("./").rpartition("/")[0]
            area = folders.partition("/")[0][:_AREA_CHARS]
            break
    size = "long" if len(text.split()) > _LONG_WORDS else "short"
    return TaskKind(repository, language, area, size)


def main_language(paths: Iterable[str]) -> str:
    """Return the language of most paths, '' if none is known."""
    counts: dict[str, int] = {}
    for path in paths:
        if language := ENDINGS.get(path[path.rfind(".") :]):
            counts[language] = counts.get(language, 0) + 1
    return max(sorted(counts), key=counts.__getitem__, default="")


def usual_language(past: Sequence[PastTask], repository: str) -> str:
    """Return the most common language of a repository's tasks, '' if it has none."""
    languages = [task.kind.language for task in past if task.kind.repository == repository]
    return max(sorted({*languages}), key=languages.count, default="")


def solve_share(model: str, tasks: Sequence[PastTask], expected: float = 0.5) -> float:
    """Return the expected share of solved tasks of one seat with a model: the mean of a Beta
    distribution whose prior has the mean `expected` and the weight of one task.
    """
    attempts = [attempt for task in tasks for attempt in _of_model(task, model)]
    solved = sum(attempt.solved for attempt in attempts)
    return (solved + _PRIOR_TASKS * expected) / (len(attempts) + _PRIOR_TASKS)


def pair_share(
    pair: tuple[str, str], tasks: Sequence[PastTask], prior_tasks: Sequence[PastTask]
) -> float:
    """Return the expected share of tasks that at least one of two seats solves: the share of the
    better one, and that of the other among the tasks that the better one fails.

    The latter is counted on tasks on which both worked. Its prior is the share of the second model,
    and 0 for another seat of the same model. `prior_tasks`: tasks of other kinds, for the priors.
    """
    shares = {model: solve_share(model, tasks, solve_share(model, prior_tasks)) for model in pair}
    best = max(shares.values())
    together = []
    for first, second in {pair, pair[::-1]}:
        if shares[first] == best:
            failed, rescued = count_rescued(first, second, tasks)
            prior = 0.0 if first == second else shares[second]
            together.append((rescued + _PRIOR_TASKS * prior) / (failed + _PRIOR_TASKS))
    return best + (1 - best) * max(together)


def count_rescued(first: str, second: str, tasks: Sequence[PastTask]) -> tuple[int, int]:
    """Return the number of tasks that a seat with the first model failed while one with the second
    worked on them, and the number of those that the second solved.
    """
    outcomes = [pair for pair in _pair_attempts(first, second, tasks) if not pair[0].solved]
    return len(outcomes), sum(second_attempt.solved for _, second_attempt in outcomes)


def count_together(pair: tuple[str, str], tasks: Sequence[PastTask]) -> tuple[int, int]:
    """Return the number of tasks on which seats with both models worked, and the number of those
    that at least one of these two seats solved.
    """
    outcomes = _pair_attempts(*pair, tasks)
    return len(outcomes), sum(first.solved or second.solved for first, second in outcomes)


def _pair_attempts(
    first: str, second: str, tasks: Sequence[PastTask]
) -> list[tuple[Attempt, Attempt]]:
    """Return a seat with each model of the tasks on which both worked."""
    pairs = []
    for task in tasks:
        first_attempts, second_attempts = _of_model(task, first), _of_model(task, second)
        if first == second:
            second_attempts = second_attempts[1:]
        if first_attempts and second_attempts:
            pairs.append((first_attempts[0], second_attempts[0]))
    return pairs


def choose_models(
    kind: TaskKind, past: Sequence[PastTask], model_names: Sequence[str], seats: int, budget: Budget
) -> Choice:
    """Return the models, at most two, that solve most tasks of a kind for their cost. `seats` use
    them in turn. `model_names` are those of the settings.

    Models without a result are not chosen, and neither are models whose expected cost exceeds the
    budget, unless all do.
    """
    past = tuple(
        PastTask(task.kind, attempts)
        for task in past
        if (attempts := tuple(attempt for attempt in task.attempts if attempt.model in model_names))
    )
    if len(past) < MIN_TASKS or not any(
        attempt.solved for task in past for attempt in task.attempts
    ):
        return Choice((), _too_little(past))
    fields, tasks, prior_tasks = _narrowest_kind(kind, past)
    names = [name for name in model_names if any(_of_model(task, name) for task in past)]
    priced = any(attempt.usage.cost_usd for task in past for attempt in task.attempts)
    costs = {name: _mean_cost(name, tasks, prior_tasks, priced=priced) for name in names}
    limit = budget.cost_usd if priced else budget.tokens
    options = [
        Choice(
            models,
            "",
            _solve_share_of(models, tasks, prior_tasks),
            sum(costs[models[number % len(models)]] for number in range(seats)),
        )
        for models in _model_candidates(names, seats)
    ]
    affordable = [option for option in options if not limit or option.cost <= limit]
    if not affordable:
        affordable = [min(options, key=lambda option: option.cost)]
    dearest = max(option.cost for option in options) or 1.0
    chosen = max(
        affordable,
        key=lambda option: (
            option.share - PRICE_OF_DEAREST * option.cost / dearest,
            -option.cost,
        ),
    )
    reason = _explain_choice(chosen, affordable, tasks, _describe_kind(kind, fields), priced=priced)
    return Choice(chosen.models, reason, chosen.share, chosen.cost)


def _model_candidates(names: Sequence[str], seats: int) -> list[tuple[str, ...]]:
    if seats == 1:
        return [(name,) for name in names]
    return list(combinations_with_replacement(names, PAIR))


def _solve_share_of(
    models: tuple[str, ...], tasks: Sequence[PastTask], prior_tasks: Sequence[PastTask]
) -> float:
    if len(models) == 1:
        return solve_share(models[0], tasks, solve_share(models[0], prior_tasks))
    return pair_share((models[0], models[1]), tasks, prior_tasks)


def _narrowest_kind(
    kind: TaskKind, past: Sequence[PastTask]
) -> tuple[tuple[str, ...], Sequence[PastTask], Sequence[PastTask]]:
    """Return the compared fields of the narrowest kind with enough tasks, its tasks, and the
    others.
    """
    fields: tuple[str, ...] = ()
    for fields in _LEVELS:
        kind_values = [getattr(kind, name) for name in fields]
        is_same = [[getattr(task.kind, name) for name in fields] == kind_values for task in past]
        if sum(is_same) >= MIN_TASKS:
            break
    return (
        fields,
        [task for task, same in zip(past, is_same, strict=True) if same],
        [task for task, same in zip(past, is_same, strict=True) if not same],
    )


def _of_model(task: PastTask, model: str) -> list[Attempt]:
    return [attempt for attempt in task.attempts if attempt.model == model]


def _mean_cost(
    model: str, tasks: Sequence[PastTask], prior_tasks: Sequence[PastTask], *, priced: bool
) -> float:
    """Return the mean cost of a seat with a model, of all tasks if it worked on none of `tasks`."""
    for task_set in (tasks, prior_tasks):
        usages = [attempt.usage for task in task_set for attempt in _of_model(task, model)]
        if usages:
            amounts = [usage.cost_usd if priced else usage.tokens for usage in usages]
            return math.fsum(amounts) / len(amounts)
    return 0.0


def _too_little(past: Sequence[PastTask]) -> str:
    return (
        f"auto: nothing to learn from yet ({_format_count(len(past), 'earlier task')} with a "
        f"result, at least {MIN_TASKS} are needed, one of them solved); the configured models take "
        "the seats"
    )


def _explain_choice(
    chosen: Choice,
    options: Sequence[Choice],
    tasks: Sequence[PastTask],
    kind: str,
    *,
    priced: bool,
) -> str:
    """Return why models were chosen, with the counts and the next best choice."""
    figures = []
    for model in dict.fromkeys(chosen.models):
        attempts = [attempt for task in tasks for attempt in _of_model(task, model)]
        solved, first = (
            sum(attempt.solved for attempt in attempts),
            sum(attempt.first for attempt in attempts),
        )
        figures.append(
            f"{_model_label(model)} solved {solved} of {len(attempts)}, "
            f"{first} with its first answer"
        )
    if len(chosen.models) == PAIR:
        together, solved = count_together((chosen.models[0], chosen.models[1]), tasks)
        if together:
            figures.append(f"together {solved} of {together}")
    text = (
        f"auto: {_choice_label(chosen, priced=priced)}, "
        f"from {_format_count(len(tasks), 'earlier task')} {kind}: {'; '.join(figures)}"
    )
    other_options = [option for option in options if option.models != chosen.models]
    if other_options:
        next_best = max(other_options, key=lambda option: (option.share, -option.cost))
        text += f". Next best: {_choice_label(next_best, priced=priced)}"
    return text


def _choice_label(choice: Choice, *, priced: bool) -> str:
    cost = f"${choice.cost:.4f}" if priced else f"{choice.cost:,.0f} tokens"
    names = " + ".join(map(_model_label, choice.models))
    return f"{names} ({100 * choice.share:.0f} % expected, {cost})"


def _model_label(model: str) -> str:
    return model or "default"


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _describe_kind(kind: TaskKind, fields: Sequence[str]) -> str:
    """Return a kind in words: `of this repository (python, src, short)`."""
    scope = "of this repository" if "repository" in fields else "of all repositories"
    values = [value for name in fields if name != "repository" and (value := getattr(kind, name))]
    return f"{scope} ({', '.join(values)})" if values else scope


_TOPICS = (Channel.RESPONSES.all,)
_MAX_TASKS = 1_000
"""The newest decisions of a tenant from which models are chosen."""
_STOPPED_STATUSES = frozenset({SeatStatus.CANCELLED, SeatStatus.UNSTARTED})


class TrackRecord:
    """The results of the newest tasks of each tenant. Each request reads the decisions since the
    last one.

    Memory: a few numbers of each seat.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._seq = 0
        self._outcomes: dict[str, FIFOCache[TaskKey, _EndedTask]] = {}
        self._tasks: FIFOCache[TaskKey, PastTask | None] = FIFOCache(10 * _MAX_TASKS)
        self._reading = asyncio.Lock()

    async def read(self, tenant: str) -> Sequence[PastTask]:
        """Return the tasks of a tenant that changed a repository and were judged by tests, oldest
        first.
        """
        async with self._reading:  # concurrent readers would read the same events twice
            async for recorded in self._log.replay(_TOPICS, self._seq):
                self._seq = recorded.seq
                if recorded.event.type is EventType.DELIBERATION_DECIDED:
                    self._add_event(recorded.event.tenant, recorded.event.data)
            ended: Mapping[TaskKey, _EndedTask] = self._outcomes.get(tenant, {})
            tasks = [await self._read_task(key, seats) for key, seats in ended.items()]
        return [task for task in tasks if task is not None]

    def _add_event(self, tenant: str, data: Mapping[str, object]) -> None:
        try:
            outcome = load(Outcome, data)
        except InvalidRequest:
            return  # a collector of another version wrote an outcome that this one cannot read
        ended = self._outcomes.setdefault(tenant, FIFOCache(_MAX_TASKS))
        ended.setdefault(TaskKey(outcome.task_id), _reduce_outcome(outcome))

    async def _read_task(self, key: TaskKey, ended: _EndedTask) -> PastTask | None:
        """Return a task with what its request says; None if nothing can be learned from it."""
        if key not in self._tasks:
            recorded = await self._log.first(Channel.RESULTS.of(key))
            self._tasks[key] = None
            if recorded and recorded.event.type is EventType.DELIBERATION_REQUESTED:
                try:
                    request = load(Deliberation, recorded.event.data)
                except InvalidRequest:
                    return None
                self._tasks[key] = past_task(request, *ended)
        return self._tasks[key]


_EndedTask = tuple[Mapping[str, Attempt], str]
"""What each seat that worked achieved, without its model, and the language of the changes."""


def past_task(
    request: Deliberation, attempts: Mapping[str, Attempt], language: str
) -> PastTask | None:
    """Return a task with the attempts of its seats; None for a task without a repository, a
    question, a merge, a judgement or a fork, which say nothing about models on new tasks.
    """
    if (
        request.repository is None
        or request.base_sha is None
        or PROTOCOLS[request.protocol].answers
        or request.judges
        or request.merge
        or request.fork is not None
        or not attempts
    ):
        return None
    return PastTask(
        kind_of(request.description, request.repository.id or request.repository.url, language),
        tuple(
            Attempt(request.model_of(seat), attempt.solved, attempt.first, attempt.usage)
            for seat, attempt in attempts.items()
            if seat not in request.elsewhere
        ),
    )


def _reduce_outcome(outcome: Outcome) -> _EndedTask:
    paths = [part.path for result in outcome.results for part in file_diffs(result.diff)]
    attempts = {
        seat.seat: _attempt_of(
            [result for result in outcome.results if result.seat == seat.seat], seat
        )
        for seat in outcome.seats
        if has_worked(seat)
    }
    return attempts, main_language(paths)


def _attempt_of(results: Sequence[Result], seat: SeatOutcome) -> Attempt:
    supported = [result for result in results if result.passed_gates and result.level.independent]
    return Attempt(
        "", bool(supported), any(not result.revision for result in supported), seat.usage
    )


def has_worked(seat: SeatOutcome) -> bool:
    """Return whether a seat asked its model and was not stopped: another seat's proof, or a
    cancellation, says nothing about its model.
    """
    return (
        seat.usage.calls > 0
        and seat.status not in _STOPPED_STATUSES
        and seat.error_code != OUT_OF_PATIENCE
    )
