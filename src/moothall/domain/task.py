"""What a council is asked to do."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Self

from moothall.domain.budget import Budget
from moothall.domain.ids import ROLES, check_id, check_key, is_id
from moothall.domain.protocol import PROTOCOLS, ProtocolName
from moothall.domain.tool import Bounds
from moothall.errors import InvalidRequest

DEFAULT_SEATS = 3
DocumentKind = Literal["", "plan", "coach"]
"""The answer about text as a JSON document: the tasks of a story, or a story. '': plain text."""
FORGE = "forge"
"""The origin of tasks that `moothall watch` submits."""
VALIDATION = "validation"
"""What a deliberation's own checks are called: validation-1, validation-2, …"""
_COMMAND_CHARS = 4000


def argv_of(line: str) -> tuple[str, ...]:
    """Return a command's words, split as a shell would. Raises `ValueError` for what is none."""
    try:
        words = tuple(shlex.split(line))
    except ValueError as error:
        raise ValueError(f"{line[:80]!r} cannot be split into words: {error}") from error
    if not words or not words[0].strip() or "\0" in line or len(line) > _COMMAND_CHARS:
        raise ValueError(f"{line[:80]!r} is no command of at most {_COMMAND_CHARS} characters")
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
    """Which repository and which commit of it; `id` names a registered one, `url` a path or URL."""

    id: str = ""
    url: str = ""
    ref: str = ""

    @classmethod
    def from_name(cls, name: str, ref: str = "") -> Self:
        """Return the repository of a name that may be an id, a path or a URL: what could be an id
        is one.
        """
        return cls(id=name, ref=ref) if is_id(name) else cls(url=name, ref=ref)


@dataclass(frozen=True, slots=True)
class Fork:
    """From where another run of a task is asked for: after turn `turn` of a seat (empty: the
    winner's, or the first), which `words` are said to then.
    """

    task_id: str
    turn: int
    seat: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The recorded turns with which the one seat of a fork begins: those of the seat of task
    `task_id` (its key) up to `step`, as <phase>/<round>.<turn>, the seat's turn number `turn`.
    `number`, `approach` and `temperature` are as that seat had them; `words` are said to the fork
    before it begins.
    """

    task_id: str
    seat: str
    turn: int
    step: str
    number: int = 0
    approach: str = ""
    temperature: float = 0.0
    words: str = ""


@dataclass(frozen=True, slots=True)
class AgentRef:
    """Of which agent of a file a deliberation is a run, and what that one may use at most."""

    name: str
    workstream: str = ""
    bounds: Bounds = Bounds()


@dataclass(frozen=True, slots=True)
class DeliberationRequest:
    """What a caller asks for, before defaults and checks. Zero and empty mean the default; `rounds`
    None does.

    `about_text`: not even on the default repository. `model`: of the settings, by name or tier.
    `merge`: commits that are to be brought together; no model is asked.
    `checks`: commands beside the repository's own checks; `tools`: of the role's, the seats may use
    these alone. `follows`: the task whose conversation goes on, on the files as it left them where
    no repository is named. `fork`: another run of a task from one of its turns; all but `task_id`
    and `seed` is as it was there. `agent`: it is a run of this one.
    `document`: the kind of the answer. `records_calls`: turns record the arguments and results of
    their tool calls. `hidden_tests`: texts by path, which no seat sees.
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


@dataclass(frozen=True, slots=True)
class Deliberation:
    """One run of a council on a task, fully decided: no field is a default any more.

    `task_id` is the key of what its tenant calls it (`ids.key_of`).
    `repository` and `base_sha` are None for a deliberation about text. `seats` are in order.
    `deadline` is a UTC instant. `origin` is orchestrate, plan, or empty for what was asked
    directly; `context` an
    excerpt of the graph; `reviewer` the role as which seats review, empty for their own. `merge`
    are commits: the one seat proposes what they come to together on the base, and asks no model.
    `model` names the council's model in the settings ('': the default), `seat_models` those of
    seats that have another. `checks` are judged beside the repository's own (name → argv), `tools`
    what the role's grant is narrowed to, where there are any. `follows` is the key of the task
    before it in a conversation, whose questions and answers are in `context`; `fork` the recorded
    turns with which its one seat begins.
    `agent`: of a file, of which it is a run. `elsewhere`: the endpoints of seats whose agents are
    asked elsewhere. `document`: the kind of the answer. `records_calls`: turns record the arguments
    and results of their tool calls. `hidden`: the key under which the caller's hidden tests are
    stored.
    """

    task_id: str
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
    follows: str = ""
    fork: Beginning | None = None
    agent: AgentRef | None = None
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    document: DocumentKind = ""
    records_calls: bool = False
    hidden: str = ""

    def model_of(self, seat: str) -> str:
        """Return the name of a seat's model in the settings; '' is the default one."""
        return self.seat_models.get(seat, self.model)

    def is_answer(self, diff: str) -> bool:
        """Whether a proposal with this diff is text to be judged as text: of a question, or where
        there is no repository. Everywhere else an empty diff is no success.
        """
        return self.base_sha is None or (PROTOCOLS[self.protocol].answers and not diff.strip())


_SHA = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_STEP = re.compile(r"[a-z]+/\d+\.\d+", re.ASCII)
_MOST_SEATS, _MOST_ROUNDS, _MOST_TURNS = 1000, 1000, 100_000


def check_deliberation(d: Deliberation) -> Deliberation:
    """Return a deliberation that came from outside, if a council can sit for it. Raises
    `InvalidRequest`.
    """
    check_key(d.task_id, "task_id")
    for seat in d.seats:
        check_id(seat, "seat")
    for other in filter(None, (d.follows, d.fork.task_id if d.fork else "")):
        check_key(other, "the task before it")
    wrong = {
        "seats": not 1 <= len(d.seats) <= _MOST_SEATS or len(set(d.seats)) != len(d.seats),
        "role": d.role not in ROLES or d.reviewer not in {"", *ROLES},
        "rounds": not 0 <= d.rounds <= _MOST_ROUNDS,
        "max_turns": not 1 <= d.max_turns <= _MOST_TURNS,
        "deadline": d.deadline.tzinfo is None,
        "base_sha": d.base_sha is not None and not _SHA.fullmatch(d.base_sha),
        "merge": any(not _SHA.fullmatch(sha) for sha in d.merge)
        or bool(d.merge and d.base_sha is None),
        "budget": min(d.budget.tokens, d.budget.seconds, d.budget.calls) < 0
        or not 0 <= d.budget.cost_usd < math.inf,
        "seed": not -(2**63) <= d.seed < 2**63,
        "fork": d.fork is not None
        and (d.seats != (d.fork.seat,) or d.fork.number < 0 or not _STEP.fullmatch(d.fork.step)),
    }
    found = [name for name, is_wrong in wrong.items() if is_wrong]
    if found:
        raise InvalidRequest(
            f"no council can sit for {d.task_id}: {', '.join(found)} cannot be right"
        )
    return d
