"""Forks: another run of a task that starts with recorded turns of one of its seats. A
conversation: the questions and answers before a question, and the files it starts from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from moothall.deliberation.conversation import Exchange, fit_to_window
from moothall.domain.budget import Usage
from moothall.domain.chat import Prompt, Prompts, step_of
from moothall.domain.codec import dump, load
from moothall.domain.council import PROTOCOLS
from moothall.domain.event import (
    Channel,
    Data,
    Event,
    EventType,
    Recorded,
    deliberation_topics,
    steering_event_id,
)
from moothall.domain.ids import Principal, TaskKey, check_task_id, find_seat, key_of, own_id
from moothall.domain.outcome import Outcome
from moothall.domain.task import Beginning, Deliberation, DeliberationRequest, Fork, RepositoryRef
from moothall.domain.text import fence
from moothall.domain.tool import ToolStatus
from moothall.errors import InvalidRequest, NotFound
from moothall.orchestrator.request_planning import Defaults
from moothall.ports import Bus, Log
from moothall.telemetry.tracing import write_of
from moothall.tools.spec import ToolSpec

# A conversation: the questions and answers before a question, and the files it starts from.


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


async def read_conversation(log: Log, follows: str, principal: Principal) -> Sequence[EndedTask]:
    """Return the tasks before a question, the latest first.

    Raises `NotFound`, and `InvalidRequest` if the latest has not ended.
    """
    tasks: list[EndedTask] = []
    task_key = key_of(check_task_id(follows, "follows"), principal.tenant)
    while task_key and len(tasks) < _MAX_TASKS:
        request = await find_request(log, task_key)
        decision = (
            await find_decision(log, task_key)
            if request is not None and request.event.tenant == principal.tenant
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
        elif request is None or request.event.tenant != principal.tenant:
            raise NotFound(f"no deliberation {follows!r} whose conversation could be continued")
        else:
            raise InvalidRequest(
                f"deliberation {follows!r} has not ended: send it a message (steer), or "
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
            fence("answered", _answer_of(task)),
            _summarize_task(task),
        )
        for task in reversed(earlier)
    ]
    return "\n\n".join(message.content for message in fit_to_window((), exchanges, budget))


def _answer_of(task: EndedTask) -> str:
    outcome = task.outcome
    if not outcome.winner_id or not outcome.results:
        return f"(no answer: {outcome.error_message})"
    result = outcome.results[0]
    return (
        f"{result.content}\n\nwith this change, which the files have now:\n{result.diff}"
        if result.diff
        else result.content
    )


def _summarize_task(task: EndedTask) -> str:
    answer = " ".join(_answer_of(task).split())
    return fence(
        "answered",
        answer if len(answer) <= _MAX_SUMMARY_CHARS else f"{answer[: _MAX_SUMMARY_CHARS - 1]}…",
    )


# Forks: another run of a task that starts with recorded turns of one of its seats.
#
# Their model calls are not repeated; their actions are, in a new workspace, as after a crash.


STEERING_CHARS = 4_000
"""The most characters of all messages to one running deliberation."""


async def create_fork(
    log: Log, fork: Fork, principal: Principal, defaults: Defaults, now: datetime
) -> Deliberation:
    """Return another run of a task, with that task's id. Its only seat starts with recorded turns.

    It belongs to no story: the story's plan waits for the run that it started itself.

    Raises `NotFound`, and `InvalidRequest` with the available turns.
    """
    task_key = key_of(check_task_id(fork.task_id, "the task to fork"), principal.tenant)
    request = await find_request(log, task_key)
    if request is None or request.event.tenant != principal.tenant:
        raise NotFound(f"no deliberation {fork.task_id!r} to fork")
    if len(fork.words) > STEERING_CHARS:
        raise InvalidRequest(
            f"the message has {len(fork.words)} characters; at most {STEERING_CHARS} are allowed"
        )
    source = load(Deliberation, request.event.data)
    events = [recorded.event async for recorded in log.replay(deliberation_topics(task_key))]
    beginning = _create_beginning(source, events, fork, defaults.tools())
    seconds = (
        source.constraints.timeout_seconds
        or source.budget.seconds
        or defaults.limits.deliberation_seconds
    )
    return replace(
        source,
        seats=(beginning.seat,),
        fork=beginning,
        deadline=now + timedelta(seconds=min(seconds, defaults.limits.deliberation_seconds)),
        max_turns=source.max_turns - (source.fork.turn if source.fork else 0) + beginning.turn,
        principal=principal.name,
        adaptive=False,
        story_id="",
        plan_id="",
        origin="",
    )


def _create_beginning(
    source: Deliberation,
    events: Sequence[Event],
    fork: Fork,
    tools: Mapping[str, ToolSpec],
) -> Beginning:
    name = source.own_id
    seat = _find_seat(source, events, fork.seat, name)
    turns = {
        _step_of(event.data): event.data
        for event in events
        if event.type is EventType.SEAT_TURN and event.data.get("seat") == seat
    }
    if not 1 <= fork.turn <= len(turns):
        available = f"1 to {len(turns)}" if turns else "none yet"
        raise InvalidRequest(
            f"{seat} of {name} has no turn {fork.turn} to fork from; its turns: {available}"
        )
    steps = list(turns)[: fork.turn]
    _check_turns(
        source,
        {number: (step, turns[step]) for number, step in enumerate(steps, 1)},
        f"{seat} of {name}",
        tools,
    )
    start_data: Data = next(
        (
            event.data
            for event in events
            if event.type is EventType.SEAT_STARTED and event.data.get("seat") == seat
        ),
        {},
    )
    return Beginning(
        task_id=source.task_id,
        seat=seat,
        turn=fork.turn,
        step=steps[-1],
        number=source.fork.number if source.fork else source.seats.index(seat),
        approach=str(start_data.get("approach") or ""),
        temperature=float(start_data.get("temperature") or 0.0),
        words=fork.words.strip(),
    )


def _find_seat(
    source: Deliberation, events: Sequence[Event], requested_name: str, name: str
) -> str:
    if not requested_name:
        winners = [
            str(event.data.get("winner_id"))
            for event in events
            if event.type is EventType.DELIBERATION_DECIDED
        ]
        return next((seat for seat in winners if seat in source.seats), source.seats[0])
    if (seat := find_seat(requested_name, source.seats)) is None:
        raise NotFound(
            f"no seat {requested_name[:80]!r} in {name}; the seats are {', '.join(source.seats)}"
        )
    return seat


def _step_of(data: Data) -> str:
    return f"{data.get('phase')}/{data.get('round')}.{data.get('turn')}"


def _check_turns(
    source: Deliberation,
    turns: Mapping[int, tuple[str, Data]],
    owner: str,
    tools: Mapping[str, ToolSpec],
) -> None:
    """Raise `InvalidRequest` for turns that one seat cannot repeat in a workspace. An unknown tool
    that ran may have acted outside of it.
    """
    is_independent = PROTOCOLS[source.protocol].revises_on != "reviews"
    for number, (step, data) in turns.items():
        hint = (
            f"fork from turn {number - 1} or one before it" if number > 1 else "it cannot be forked"
        )
        if step.startswith("revise/") and not is_independent:
            raise InvalidRequest(
                f"turn {number} of {owner} answers reviews of other seats, which a fork does not "
                f"have; {hint}"
            )
        for item in data.get("operations") or ():
            spec = tools.get(str(item.get("tool")))
            if spec.outside if spec else item.get("status") != ToolStatus.INVALID:
                problem = (
                    f"acted outside with {spec.name}"
                    if spec
                    else f"acted with {item.get('tool')!s:.60}, which is unknown here"
                )
                raise InvalidRequest(
                    f"turn {number} of {owner} {problem}, which must not be done again; {hint}"
                )


async def inherit_turns(
    bus: Bus, deliberation: Deliberation, own_events: Sequence[Event]
) -> Sequence[Event]:
    """Return the events of a fork: its own, and those inherited from the source run, which are
    recorded as its own if they are not yet. Raises `NotFound` if the source run was removed.
    """
    if (beginning := deliberation.fork) is None:
        return own_events
    source_events = [
        recorded.event async for recorded in bus.replay(deliberation_topics(beginning.task_id))
    ]
    known_ids = {event.id for event in own_events}
    if not source_events and f"{deliberation.task_id}/{beginning.seat}/{beginning.step}" not in {
        event.data.get("call_id") for event in own_events
    }:
        raise NotFound(
            "the turns that the fork starts with no longer exist: "
            f"{own_id(beginning.task_id, deliberation.tenant)} was removed"
        )
    inherited = [
        write_of(deliberation, event_type, data, ordinal=ordinal, source="host")
        for event_type, ordinal, data in _inherited_events(deliberation, beginning, source_events)
    ]
    new_events = [event for event in inherited if event.id not in known_ids]
    for event in new_events:
        await bus.publish(event)
    return [*own_events, *new_events, *_inherited_turns(beginning, source_events)]


def _inherited_turns(beginning: Beginning, events: Sequence[Event]) -> Sequence[Event]:
    """Return the recorded turns with which a fork starts, in order."""
    turns: dict[str, Event] = {}
    for event in events:
        if (
            event.type is EventType.SEAT_TURN
            and event.data.get("seat") == beginning.seat
            and beginning.step not in turns
        ):
            turns.setdefault(_step_of(event.data), event)
    return list(turns.values())


def _inherited_events(
    deliberation: Deliberation, beginning: Beginning, events: Sequence[Event]
) -> Sequence[tuple[EventType, str, Data]]:
    """Return the inherited events of a fork (type, ordinal, data): the steering messages of its
    turns, then their replies, with no usage; the reply of the last turn comes last.
    """
    steps = {_step_of(event.data) for event in _inherited_turns(beginning, events)}
    prefix = f"{beginning.task_id}/{beginning.seat}/"
    calls = {
        str(data["call_id"]): data
        for event in events
        if _is_inherited_call(data := event.data, event.type, prefix, steps)
    }
    received_ids = {str(name) for data in calls.values() for name in data.get("told") or ()}
    inherited: list[tuple[EventType, str, Data]] = [
        (
            EventType.DELIBERATION_STEERED,
            event.id,
            {name: event.data.get(name) for name in ("message", "by")},
        )
        for event in events
        if event.type is EventType.DELIBERATION_STEERED and event.id in received_ids
    ]
    prompts, own_prompts = _read_prompts(events), Prompts()
    for name, data in sorted(
        calls.items(), key=lambda call: call[0] == f"{prefix}{beginning.step}"
    ):
        call_id = f"{deliberation.task_id}/{name.partition('/')[2]}"
        fields = {key: value for key, value in data.items() if key != "task_id"}
        step = step_of(call_id)
        if (prompt := prompts.get(step)) is not None:
            fields["prompt"] = own_prompts.record(step, prompt.messages)
        if data.get("told"):
            fields["told"] = [
                steering_event_id(deliberation.task_id, str(event_id)) for event_id in data["told"]
            ]
        inherited.append(
            (
                EventType.MODEL_CALLED,
                call_id,
                {**fields, "call_id": call_id, "usage": dump(Usage()), "inherited": True},
            )
        )
    return inherited


def _read_prompts(events: Sequence[Event]) -> Mapping[str, Prompt]:
    """Return the recorded prompts by step."""
    reader, prompts = Prompts(), dict[str, Prompt]()
    for event in events:
        step = step_of(str(event.data.get("call_id")))
        if event.type is EventType.MODEL_CALLED and step not in prompts:
            prompt = reader.read(step, event.data.get("prompt"))
            if prompt is not None:
                prompts[step] = prompt
    return prompts


def _is_inherited_call(data: Data, event_type: EventType, prefix: str, steps: set[str]) -> bool:
    """Return True for a model call of one of the steps, by the seat or a sub-agent."""
    call_id = str(data.get("call_id"))
    if event_type is not EventType.MODEL_CALLED or not call_id.startswith(prefix):
        return False
    phase, _, turn = call_id.removeprefix(prefix).partition("/")
    return f"{phase}/{'.'.join(turn.split('.')[:2])}" in steps
