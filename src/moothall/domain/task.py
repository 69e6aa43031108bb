"""Requests for deliberations, and deliberations. The pauses of a deliberation, which do not
count against its deadline.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, takewhile
from typing import Literal, Self

from moothall.domain.budget import Budget
from moothall.domain.council import PROTOCOLS, ProtocolName
from moothall.domain.event import Event, EventType
from moothall.domain.ids import ROLES, TaskId, TaskKey, check_id, check_task_key, is_id, own_id
from moothall.domain.tool import Bounds
from moothall.errors import InvalidRequest

# The pauses of a deliberation, which do not count against its deadline.


NEVER = datetime(9999, 12, 30, tzinfo=UTC)
"""The deadline of a paused deliberation. It leaves room for adding a grace period."""
_PARITIES = {EventType.DELIBERATION_PAUSED: 0, EventType.DELIBERATION_RESUMED: 1}


@dataclass(frozen=True, slots=True)
class Pauses:
    """The times of pauses and resumptions, by number; even numbers are pauses. Order and repetition
    of events do not matter.
    """

    moments: Mapping[int, datetime] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        """Read pauses from events; other and malformed events are ignored."""
        pauses = cls()
        for event in events:
            if event.type in _PARITIES:
                pauses = pauses.with_event(event)
        return pauses

    def with_event(self, event: Event) -> Self:
        """Return the pauses with one more event."""
        number = event.data.get("number")
        try:
            time = datetime.fromisoformat(event.time)
        except ValueError:
            return self
        if (
            not isinstance(number, int)
            or number % 2 != _PARITIES[event.type]
            or time.tzinfo is None
        ):
            return self
        return self.with_all(type(self)({number: time}))

    def with_all(self, other: Self) -> Self:
        """Return the union of two sets of pauses; of two times for one number, the earlier
        counts.
        """
        earliest = {**self.moments}
        for number, time in other.moments.items():
            earliest[number] = min(time, earliest.get(number, time))
        return type(self)(earliest)

    @property
    def turns(self) -> list[datetime]:
        """The times in order, up to the first missing one."""
        return [self.moments[number] for number in takewhile(self.moments.__contains__, count())]

    @property
    def is_paused(self) -> bool:
        """Whether the deliberation is paused."""
        return len(self.turns) % 2 == 1

    def extend(self, deadline: datetime) -> datetime:
        """Return a deadline extended by all pauses; `NEVER` while paused."""
        turns = self.turns
        if len(turns) % 2:
            return NEVER
        paused_time = sum(
            (
                max(resumed_at - paused_at, timedelta())
                for paused_at, resumed_at in zip(turns[::2], turns[1::2], strict=True)
            ),
            timedelta(),
        )
        return deadline + min(paused_time, max(NEVER - deadline, timedelta()))


# Requests for deliberations, and deliberations.


DEFAULT_SEATS = 3
MAX_REQUEST_ROUNDS = 8
CHANGE = "change"
"""The seat that proposes the change to judge, under a protocol that judges."""
DocumentKind = Literal["", "plan", "coach"]
"""The answer's document: the tasks of a story, or a story, as JSON. '': plain text."""
FORGE = "forge"
"""The origin of tasks that `moothall watch` submits."""
VALIDATION = "validation"
"""The name of a deliberation's own checks: validation-1, validation-2, …"""
TASK_CHARS = 20_000
"""The maximum length of a task's text."""
_COMMAND_CHARS = 4000


def argv_of(line: str) -> tuple[str, ...]:
    """Return a command's words, split as by a shell. Raises `ValueError`."""
    try:
        words = tuple(shlex.split(line))
    except ValueError as error:
        raise ValueError(f"{line[:80]!r} cannot be split into words: {error}") from error
    if not words or not words[0].strip() or "\0" in line or len(line) > _COMMAND_CHARS:
        raise ValueError(f"{line[:80]!r} is not a command of at most {_COMMAND_CHARS} characters")
    return words


@dataclass(frozen=True, slots=True)
class Constraints:
    """What an answer must respect. Zero means the default."""

    rubric: str = ""
    requirements: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    max_iterations: int = 0
    timeout_seconds: int = 0


@dataclass(frozen=True, slots=True)
class RepositoryRef:
    """A repository and a commit of it. `id` names a registered repository, `url` a path or URL."""

    id: str = ""
    url: str = ""
    ref: str = ""

    @classmethod
    def from_name(cls, name: str, ref: str = "") -> Self:
        """Return the repository of a name that may be an id, a path or a URL. A name that could be
        an id is one.
        """
        return cls(id=name, ref=ref) if is_id(name) else cls(url=name, ref=ref)


@dataclass(frozen=True, slots=True)
class Fork:
    """The start of another run of a task: after turn `turn` of a seat (empty: the winner's, or the
    first), with the message `words`.
    """

    task_id: str
    turn: int
    seat: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The recorded turns with which the seat of a fork begins: those of the seat of task `task_id`
    (its key) up to `step`, as <phase>/<round>.<turn>, the seat's turn number `turn`. `number`,
    `approach` and `temperature` are that seat's. `words` are a message to the fork before it
    begins.
    """

    task_id: TaskKey
    seat: str
    turn: int
    step: str
    number: int = 0
    approach: str = ""
    temperature: float = 0.0
    words: str = ""


@dataclass(frozen=True, slots=True)
class AgentRef:
    """The agent file of which a deliberation is a run, and its resource limits."""

    name: str
    workstream: str = ""
    bounds: Bounds = Bounds()


@dataclass(frozen=True, slots=True)
class DeliberationRequest:
    """A caller's request, before defaults and checks. Zero and empty mean the default; for
    `rounds`, None does.

    `about_text`: not even about the default repository. `model`: a name or tier from the settings.
    `merge`: commits to merge; no model is called. `checks`: commands in addition to the
    repository's own checks. `tools`: seats may use only these of the role's tools. `follows`: the
    task whose conversation continues, on the files as it left them if no repository is named.
    `fork`: another run of a task from one of its turns; everything but `task_id` and `seed` is as
    in that task. `agent`: the agent file of which it is a run. `document`: the kind of the answer.
    `records_calls`: turns record the arguments and results of their tool calls. `hidden_tests`:
    texts by path, which no seat sees. `head`: the branch, tag or commit to judge, under a protocol
    that judges; the repository's ref is then the branch that it goes into, and an empty description
    means the messages of its commits. `tests_only`: judge it without a model.
    """

    description: str
    role: str
    task_id: str = ""
    constraints: Constraints = field(default_factory=Constraints)
    rounds: int | None = None
    num_agents: int = 0
    repository: RepositoryRef | None = None
    protocol: str = ""
    budget: Budget = field(default_factory=Budget)
    adaptive: bool = False
    peer_review: bool = False
    story_id: str = ""
    seed: int | None = None
    about_text: bool = False
    plan_id: str = ""
    origin: str = ""
    context: str = ""
    reviewer: str = ""
    merge: tuple[str, ...] = ()
    model: str = ""
    checks: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    follows: str = ""
    fork: Fork | None = None
    agent: AgentRef | None = None
    document: DocumentKind = ""
    records_calls: bool = False
    hidden_tests: Mapping[str, str] = field(default_factory=dict)
    head: str = ""
    tests_only: bool = False


@dataclass(frozen=True, slots=True)
class Deliberation:
    """A run of a council on a task, with all defaults filled in.

    `task_id` is the key of the tenant's id (`ids.key_of`). `repository` and `base_sha` are None for
    a deliberation about text. `seats` are in order. `deadline` is a UTC instant. `origin` is
    orchestrate, plan, or empty for direct requests. `context` is an excerpt of the graph.
    `reviewer` is the role in which seats review, empty for their own. `merge` are commits that the
    one seat merges on the base, without a model; under a protocol that judges, the seat `CHANGE`
    does. `model` names the council's model in the settings
    ('': the default), `seat_models` those of seats with another model. `checks` are judged in
    addition to the repository's own (name → argv). `tools` restrict the role's grant, if there are
    any. `follows` is the key of the previous task of a conversation, whose questions and answers
    are in `context`. `fork` are the recorded turns with which its one seat begins. `agent`: the
    agent file of which it is a run. `elsewhere`: the endpoints of seats with remote agents.
    `document`: the kind of the answer. `records_calls`: turns record the arguments and results of
    their tool calls. `hidden`: the key of the caller's stored hidden tests. `tests_only`: a change
    is judged without a model. `choice`: why its models were chosen, if a request left that to
    their results.
    """

    task_id: TaskKey
    description: str
    role: str
    protocol: ProtocolName
    seats: tuple[str, ...]
    rounds: int
    deadline: datetime
    max_turns: int
    constraints: Constraints = field(default_factory=Constraints)
    budget: Budget = field(default_factory=Budget)
    repository: RepositoryRef | None = None
    base_sha: str | None = None
    adaptive: bool = False
    peer_review: bool = False
    story_id: str = ""
    tenant: str = "local"
    principal: str = "local"
    seed: int = 0
    plan_id: str = ""
    origin: str = ""
    context: str = ""
    reviewer: str = ""
    merge: tuple[str, ...] = ()
    model: str = ""
    seat_models: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    follows: TaskKey = TaskKey("")
    fork: Beginning | None = None
    agent: AgentRef | None = None
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    document: DocumentKind = ""
    records_calls: bool = False
    hidden: str = ""
    tests_only: bool = False
    choice: str = ""

    @property
    def judges(self) -> bool:
        """Whether it judges a given change."""
        return PROTOCOLS[self.protocol].judges

    @property
    def asks_no_model(self) -> bool:
        """Whether no model is called: it merges commits, or judges a change by tests alone."""
        return bool(self.merge) and (self.tests_only or not self.judges)

    def merges(self, seat: str) -> bool:
        """Return whether a seat proposes the merged commits."""
        return bool(self.merge) and (seat == CHANGE or not self.judges)

    @property
    def own_id(self) -> TaskId:
        """The task id as the users of its tenant see it."""
        return own_id(self.task_id, self.tenant)

    def model_of(self, seat: str) -> str:
        """Return the name of a seat's model in the settings; '' for the default one."""
        return self.seat_models.get(seat, self.model)

    def is_answer(self, diff: str) -> bool:
        """Return whether a proposal with this diff is judged as text: an answer to a question, or a
        deliberation without a repository. Otherwise an empty diff is no success.
        """
        return self.base_sha is None or (PROTOCOLS[self.protocol].answers and not diff.strip())


_SHA = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_STEP = re.compile(r"[a-z]+/\d+\.\d+", re.ASCII)
_MAX_SEATS, _MAX_ROUNDS, _MAX_TURNS = 1000, 1000, 100_000


def check_deliberation(deliberation: Deliberation) -> Deliberation:
    """Return a deliberation from outside if it is valid. Raises `InvalidRequest`."""
    check_task_key(deliberation.task_id)
    for seat in deliberation.seats:
        check_id(seat, "seat")
    for earlier_key in filter(
        None, (deliberation.follows, deliberation.fork.task_id if deliberation.fork else "")
    ):
        check_task_key(earlier_key, "the task before it")
    problems = {
        "seats": not 1 <= len(deliberation.seats) <= _MAX_SEATS
        or len(set(deliberation.seats)) != len(deliberation.seats),
        "role": deliberation.role not in ROLES or deliberation.reviewer not in {"", *ROLES},
        "rounds": not 0 <= deliberation.rounds <= _MAX_ROUNDS,
        "max_turns": not 1 <= deliberation.max_turns <= _MAX_TURNS,
        "deadline": deliberation.deadline.tzinfo is None,
        "base_sha": deliberation.base_sha is not None and not _SHA.fullmatch(deliberation.base_sha),
        "merge": any(not _SHA.fullmatch(sha) for sha in deliberation.merge)
        or bool(deliberation.merge and deliberation.base_sha is None),
        "budget": min(
            deliberation.budget.tokens, deliberation.budget.seconds, deliberation.budget.calls
        )
        < 0
        or not 0 <= deliberation.budget.cost_usd < math.inf,
        "seed": not -(2**63) <= deliberation.seed < 2**63,
        "fork": deliberation.fork is not None
        and (
            deliberation.seats != (deliberation.fork.seat,)
            or deliberation.fork.number < 0
            or not _STEP.fullmatch(deliberation.fork.step)
        ),
    }
    invalid_fields = [name for name, is_invalid in problems.items() if is_invalid]
    if invalid_fields:
        raise InvalidRequest(
            f"deliberation {deliberation.task_id} cannot start: invalid {', '.join(invalid_fields)}"
        )
    return deliberation
