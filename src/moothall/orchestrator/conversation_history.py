"""A conversation: the questions and answers before a question, and the files it starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moothall.deliberation.conversation import Exchange, fit_to_window
from moothall.deliberation.prompts.text import fence
from moothall.domain.codec import load
from moothall.domain.event import EventType, Recorded
from moothall.domain.identity import Principal
from moothall.domain.ids import TaskKey, check_task_id, key_of
from moothall.domain.outcome import Outcome
from moothall.domain.task import Deliberation, DeliberationRequest, RepositoryRef
from moothall.domain.topic import Channel
from moothall.errors import InvalidRequest, NotFound
from moothall.ports import Log

_MAX_TASKS = 100
"""The most tasks of a conversation that are read; older ones are left out."""
_MAX_SUMMARY_CHARS = 200


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A decided deliberation."""

    deliberation: Deliberation
    outcome: Outcome

    @property
    def final_files(self) -> RepositoryRef | None:
        """The repository as the task left it; None about text."""
        if self.deliberation.repository is None:
            return None
        return RepositoryRef(
            id=self.deliberation.repository.id,
            ref=self.outcome.commit_sha or self.deliberation.base_sha or "",
        )


async def find_request(log: Log, task_key: TaskKey) -> Recorded | None:
    """Return the request of a deliberation."""
    first = await log.first(Channel.RESULTS.of(task_key))
    if first is None or first.event.type is EventType.DELIBERATION_REQUESTED:
        return first
    async for recorded in log.replay((Channel.RESULTS.of(task_key),)):
        if recorded.event.type == EventType.DELIBERATION_REQUESTED:
            return recorded
    return None


async def find_decision(log: Log, task_key: TaskKey) -> Recorded | None:
    """Return the decision of a deliberation."""
    async for recorded in log.replay((Channel.RESPONSES.of(task_key),)):
        if recorded.event.type == EventType.DELIBERATION_DECIDED:
            return recorded
    return None


async def read_conversation(log: Log, follows: str, who: Principal) -> Sequence[EndedTask]:
    """Return the tasks before a question, the latest first.

    Raises `NotFound`, and `InvalidRequest` if the latest has not ended.
    """
    tasks: list[EndedTask] = []
    task_key = key_of(check_task_id(follows, "follows"), who.tenant)
    while task_key and len(tasks) < _MAX_TASKS:
        request = await find_request(log, task_key)
        decision = (
            await find_decision(log, task_key)
            if request is not None and request.event.tenant == who.tenant
            else None
        )
        if request is not None and decision is not None:
            tasks.append(
                EndedTask(
                    load(Deliberation, request.event.data), load(Outcome, decision.event.data)
                )
            )
        elif tasks:
            break  # older tasks were removed
        elif request is None or request.event.tenant != who.tenant:
            raise NotFound(f"no deliberation {follows!r} whose conversation could go on")
        else:
            raise InvalidRequest(
                f"deliberation {follows!r} has not ended: tell it what you have to say (steer), or "
                "wait for its answer"
            )
        task_key = tasks[-1].deliberation.follows
    return tasks


def continue_from(request: DeliberationRequest, earlier: EndedTask) -> DeliberationRequest:
    """Return a request that starts where an earlier task ended, unless it names a start itself."""
    if request.repository is not None or request.about_text:
        return request
    return replace(request, repository=earlier.final_files, about_text=earlier.final_files is None)


def conversation_text(earlier: Sequence[EndedTask], budget: int) -> str:
    """Return questions and answers, oldest first, within about `budget` tokens: older ones are
    condensed, the oldest are dropped.
    """
    exchanges = [
        Exchange(
            fence("asked", task.deliberation.description),
            fence("answered", _answer(task)),
            _summarize(task),
        )
        for task in reversed(earlier)
    ]
    return "\n\n".join(message.content for message in fit_to_window((), exchanges, budget))


def _answer(task: EndedTask) -> str:
    outcome = task.outcome
    if not outcome.winner_id or not outcome.results:
        return f"(no answer: {outcome.error_message})"
    result = outcome.results[0]
    return (
        f"{result.content}\n\nwith this change, which the files have now:\n{result.diff}"
        if result.diff
        else result.content
    )


def _summarize(task: EndedTask) -> str:
    answer = " ".join(_answer(task).split())
    return fence(
        "answered",
        answer if len(answer) <= _MAX_SUMMARY_CHARS else f"{answer[: _MAX_SUMMARY_CHARS - 1]}…",
    )
