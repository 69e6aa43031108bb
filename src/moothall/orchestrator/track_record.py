"""The results of earlier tasks by model, read from the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from cachetools import FIFOCache

from moothall.domain.codec import load
from moothall.domain.council import PROTOCOLS
from moothall.domain.event import Channel, EventType
from moothall.domain.ids import TaskKey
from moothall.domain.outcome import Outcome, Result
from moothall.domain.proposal import OUT_OF_PATIENCE, SeatOutcome, SeatStatus
from moothall.domain.task import Deliberation
from moothall.errors import InvalidRequest
from moothall.orchestrator.seat_choice import Attempt, PastTask, kind_of, main_language
from moothall.ports import Log
from moothall.ranking.syntax.diffs import file_diffs

_TOPICS = (Channel.RESPONSES.all,)
_MAX_TASKS = 1_000
"""The newest decisions of a tenant from which models are chosen."""
_STOPPED = frozenset({SeatStatus.CANCELLED, SeatStatus.UNSTARTED})


class TrackRecord:
    """The results of the newest tasks of each tenant. Each request reads the decisions since the
    last one.

    Memory: a few numbers of each seat.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._seq = 0
        self._outcomes: dict[str, FIFOCache[TaskKey, _Ended]] = {}
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
                    self._add(recorded.event.tenant, recorded.event.data)
            ended: Mapping[TaskKey, _Ended] = self._outcomes.get(tenant, {})
            tasks = [await self._read_task(key, seats) for key, seats in ended.items()]
        return [task for task in tasks if task is not None]

    def _add(self, tenant: str, data: Mapping[str, object]) -> None:
        try:
            outcome = load(Outcome, data)
        except InvalidRequest:
            return  # a collector of another version wrote an outcome that this one cannot read
        ended = self._outcomes.setdefault(tenant, FIFOCache(_MAX_TASKS))
        ended.setdefault(TaskKey(outcome.task_id), _reduce(outcome))

    async def _read_task(self, key: TaskKey, ended: _Ended) -> PastTask | None:
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


_Ended = tuple[Mapping[str, Attempt], str]
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
            Attempt(request.model_of(seat), one.solved, one.first, one.usage)
            for seat, one in attempts.items()
            if seat not in request.elsewhere
        ),
    )


def _reduce(outcome: Outcome) -> _Ended:
    paths = [part.path for result in outcome.results for part in file_diffs(result.diff)]
    attempts = {
        seat.seat: _attempt([one for one in outcome.results if one.seat == seat.seat], seat)
        for seat in outcome.seats
        if has_worked(seat)
    }
    return attempts, main_language(paths)


def _attempt(results: Sequence[Result], seat: SeatOutcome) -> Attempt:
    supported = [one for one in results if one.passed_gates and one.level.independent]
    return Attempt("", bool(supported), any(not one.revision for one in supported), seat.usage)


def has_worked(seat: SeatOutcome) -> bool:
    """Return whether a seat asked its model and was not stopped: another seat's proof, or a
    cancellation, says nothing about its model.
    """
    return (
        seat.usage.calls > 0 and seat.status not in _STOPPED and seat.error_code != OUT_OF_PATIENCE
    )
