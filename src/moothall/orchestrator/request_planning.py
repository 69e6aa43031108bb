"""The hidden tests of a caller: checked, and stored apart from the events, which seats and other
callers may read. Deliberations that end before a seat has started: every seat fails with the
same reason. Planning a deliberation: a request is checked and its defaults are filled in.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from moothall.config import LimitSettings, Models
from moothall.config.models import AUTO
from moothall.domain.budget import Budget, check_budget
from moothall.domain.codec import dump
from moothall.domain.council import DEFAULT_PROTOCOL, PROTOCOLS, Council, Protocol, ProtocolName
from moothall.domain.event import EventType
from moothall.domain.ids import (
    Principal,
    TaskId,
    TaskKey,
    check_id,
    check_task_id,
    digest,
    key_of,
    new_task_id,
    read_role,
    seat_id,
)
from moothall.domain.proposal import SeatOutcome, SeatStatus
from moothall.domain.task import (
    CHANGE,
    DEFAULT_SEATS,
    FORGE,
    MAX_REQUEST_ROUNDS,
    TASK_CHARS,
    VALIDATION,
    Deliberation,
    DeliberationRequest,
    RepositoryRef,
    argv_of,
)
from moothall.domain.text import tokens
from moothall.errors import InvalidRequest, NotFound
from moothall.orchestrator import council_registry
from moothall.ports import Bucket, Log
from moothall.telemetry.tracing import write_of

if TYPE_CHECKING:
    from moothall.tools.spec import ToolSpec


# The hidden tests of a caller: checked, and stored apart from the events, which seats and other
# callers may read.


_MAX_FILES, _MAX_BYTES = 500, 3_000_000


def check_hidden(tests: Mapping[str, str], deliberation: Deliberation) -> Mapping[str, str]:
    """Return the hidden tests of a request. Raises `InvalidRequest`."""
    if deliberation.base_sha is None:
        raise InvalidRequest(
            "hidden tests need a repository to run in; leave them out of a task about text"
        )
    size = sum(len(text.encode(errors="replace")) for text in tests.values())
    if len(tests) > _MAX_FILES or size > _MAX_BYTES:
        raise InvalidRequest(
            f"{len(tests)} hidden tests of {size} bytes; at most {_MAX_FILES} files of "
            f"{_MAX_BYTES} bytes together"
        )
    for path in tests:
        parts = path.split("/")
        if (
            not path.isprintable()
            or not {"", ".", ".."}.isdisjoint(parts)
            or ".git" in map(str.lower, parts)
        ):
            raise InvalidRequest(
                f"{path[:200]!r} is not a path of a hidden test: use a relative one without '..', "
                "such as tests/test_x.py"
            )
    return tests


async def store_hidden(bucket: Bucket, tests: Mapping[str, str], tenant: str) -> str:
    """Store tests and return their key. The texts are compressed, because stored text is scrubbed
    of apparent secrets.
    """
    packed = {
        path: base64.b64encode(zlib.compress(text.encode())).decode()
        for path, text in tests.items()
    }
    key = f"{tenant}.{digest(*(part for item in sorted(tests.items()) for part in item))[:40]}"
    await bucket.put(key, {"tests": packed})
    return key


async def fetch_hidden(bucket: Bucket, key: str) -> Mapping[str, str]:
    """Return the tests under a key; {} for an empty key. Raises `NotFound` if they are no longer
    stored.
    """
    if not key:
        return {}
    document = await bucket.get(key)
    packed = document.get("tests") if document else None
    if not isinstance(packed, Mapping):
        raise NotFound(
            "the hidden tests of this deliberation are no longer stored; ask for it again with "
            "--hidden-tests"
        )
    return {path: zlib.decompress(base64.b64decode(text)).decode() for path, text in packed.items()}


# Deliberations that end before a seat has started: every seat fails with the same reason.


_DEADLINE = timedelta(hours=1)
"""Long enough to record the seat's failure, even after a restart."""


async def fail_seats(
    log: Log, deliberation: Deliberation, code: str, message: str, source: str
) -> None:
    """Record that every seat has failed with this error. Repeating this records nothing new."""
    for seat in deliberation.seats:
        outcome = SeatOutcome(
            seat=seat, status=SeatStatus.FAILED, error_code=code, error_message=message
        )
        data = {"task_id": deliberation.task_id, "seat": seat, "outcome": dump(outcome)}
        await log.publish(
            write_of(deliberation, EventType.SEAT_FINISHED, data, ordinal=seat, source=source)
        )


def refused_deliberation(
    request: DeliberationRequest, principal: Principal, now: datetime
) -> Deliberation:
    """Return the record of a request that cannot start: one seat, no rounds.

    Raises `InvalidRequest` for an unknown role.
    """
    role = read_role(request.role)
    return Deliberation(
        task_id=key_of(TaskId(request.task_id), principal.tenant),
        description=request.description,
        role=role,
        protocol=DEFAULT_PROTOCOL,
        seats=(seat_id(role, 1),),
        rounds=0,
        deadline=now + _DEADLINE,
        max_turns=1,
        constraints=request.constraints,
        repository=request.repository,
        story_id=request.story_id,
        plan_id=request.plan_id,
        origin=request.origin,
        tenant=principal.tenant,
        principal=principal.name,
    )


# Planning a deliberation: a request is checked and its defaults are filled in.


_MAX_CHECKS = 20


def _load_catalogue() -> Mapping[str, ToolSpec]:
    from moothall.tools.catalogue import CATALOGUE  # slow to import, and used by forks only

    return CATALOGUE


@dataclass(frozen=True, slots=True)
class Defaults:
    """The defaults for unset fields of a request."""

    limits: LimitSettings
    repository: str = ""
    models: Models = field(default_factory=Models)
    endpoints: frozenset[str] = frozenset()
    tools: Callable[[], Mapping[str, ToolSpec]] = _load_catalogue
    """Returns all tools that seats may have used."""
    auto: bool = False
    """Whether requests without a model get models by their results."""


def plan_deliberation(
    request: DeliberationRequest,
    principal: Principal,
    defaults: Defaults,
    now: datetime,
    council: Council | None = None,
) -> Deliberation:
    """Check a request and fill in its defaults, the council's before the server's.

    Raises `InvalidRequest` with the problem and the allowed values.
    """
    limits = defaults.limits
    role = read_role(request.role)
    if council is not None:
        request = council_registry.apply_params(
            request, council.config.params, council_registry.COUNCIL_PARAMS
        )
    _check_texts(request, limits)
    check_budget(request.budget)
    protocol = council_registry.check_protocol(request.protocol)
    judges = PROTOCOLS[protocol].judges
    _check_head(request, judges=judges)
    models, own_models = choose_models(request, role, defaults.models, council)
    names = _choose_seats(request, role, council, limits.agents, PROTOCOLS[protocol])
    model_by_seat = {seat: models[number % len(models)] for number, seat in enumerate(names)}
    model_by_seat |= own_models
    return Deliberation(
        task_id=_task_key(request.task_id or new_task_id(), "task_id", principal),
        description=request.description.strip(),
        role=role,
        protocol=protocol,
        seats=names,
        rounds=_choose_rounds(request, council, protocol),
        deadline=now + timedelta(seconds=_choose_seconds(request, limits)),
        max_turns=_choose_turns(request, limits),
        constraints=request.constraints,
        budget=_limit_budget(request.budget, limits),
        repository=_choose_repository(request, defaults),
        adaptive=request.adaptive,
        peer_review=request.peer_review or bool(council and council.config.peer_review),
        story_id=check_id(request.story_id, "story_id") if request.story_id else "",
        plan_id=check_id(request.plan_id, "plan_id") if request.plan_id else "",
        origin=request.origin,
        context=request.context,
        reviewer=read_role(request.reviewer) if request.reviewer else "",
        merge=request.merge,
        model=models[0],
        seat_models={seat: name for seat, name in model_by_seat.items() if name != models[0]},
        checks=parse_checks(request),
        tools=request.tools,
        agent=request.agent,
        records_calls=request.records_calls,
        elsewhere={} if request.merge and not judges else remote_seats(council, defaults.endpoints),
        tests_only=request.tests_only,
        document=request.document,
        follows=_followed_key(request, principal),
        tenant=principal.tenant,
        principal=principal.name,
        seed=request.seed or 0,
    )


def _task_key(task_id: str, field_name: str, principal: Principal) -> TaskKey:
    return key_of(check_task_id(task_id, field_name), principal.tenant)


def _followed_key(request: DeliberationRequest, principal: Principal) -> TaskKey:
    return _task_key(request.follows, "follows", principal) if request.follows else TaskKey("")


def _check_texts(request: DeliberationRequest, limits: LimitSettings) -> None:
    """Raise `InvalidRequest` if the task is empty, or a text is too long."""
    description = request.description.strip()
    if not (description or request.head):
        raise InvalidRequest("the task is empty; describe in a sentence what should be done")
    if len(description) > TASK_CHARS:
        raise InvalidRequest(
            f"the task has {len(description)} characters; at most {TASK_CHARS} are allowed"
        )
    texts = (
        request.constraints.rubric,
        *request.constraints.requirements,
        *request.constraints.metadata.values(),
    )
    if sum(map(len, texts)) > TASK_CHARS:
        raise InvalidRequest(
            f"rubric, requirements and metadata together have more than {TASK_CHARS} characters"
        )
    if tokens(request.context) > limits.context_tokens:
        raise InvalidRequest(
            f"the context has about {tokens(request.context)} tokens; at most "
            f"{limits.context_tokens}"
        )


def _check_head(request: DeliberationRequest, *, judges: bool) -> None:
    """Raise `InvalidRequest` if a change to judge is missing, not expected, or cannot be judged."""
    has_change = bool(request.head or request.merge)
    if judges and not has_change:
        raise InvalidRequest("the protocol judge needs a head: the branch or commit to judge")
    if request.head and not judges:
        raise InvalidRequest("a head is judged under the protocol judge only")
    if judges and request.about_text:
        raise InvalidRequest("a change is judged in its repository; leave about_text out")
    if request.tests_only and not judges:
        raise InvalidRequest("only a given change can be judged without a model (protocol judge)")
    if request.tests_only and request.num_agents > 1:
        raise InvalidRequest("rivals need a model; leave them out, or judge with a model")


def _choose_seats(
    request: DeliberationRequest,
    role: str,
    council: Council | None,
    max_seats: int,
    protocol: Protocol,
) -> tuple[str, ...]:
    """Return the seats' names: those of the council's first members, if it has any. A change to
    judge has the first seat.
    """
    members = [agent.id for agent in council.agents] if council else []
    if protocol.judges:
        members = [CHANGE, *(members or [seat_id(role, number) for number in range(1, max_seats)])]
    count = _check_range(
        "num_agents",
        request.num_agents or (1 if protocol.judges else len(members)) or DEFAULT_SEATS,
        1,
        max_seats,
        "limits.agents",
    )
    if protocol.one_seat or (request.merge and not protocol.judges):
        count = 1
    if members and count > len(members):
        raise InvalidRequest(
            f"num_agents is {count}; the {role} council has {len(members)}: {', '.join(members)}"
        )
    return tuple(members[:count] or (seat_id(role, number) for number in range(1, count + 1)))


def _choose_rounds(
    request: DeliberationRequest,
    council: Council | None,
    protocol: ProtocolName,
) -> int:
    default_rounds = (council.config.rounds if council else 0) or PROTOCOLS[protocol].rounds
    rounds = default_rounds if request.rounds is None else request.rounds
    return _check_range("rounds", rounds, 0, MAX_REQUEST_ROUNDS)


def _choose_seconds(request: DeliberationRequest, limits: LimitSettings) -> float:
    seconds = _check_range(
        "timeout_seconds",
        request.constraints.timeout_seconds or request.budget.seconds,
        0,
        int(limits.deliberation_seconds),
        "limits.deliberation_seconds",
    )
    return seconds or limits.deliberation_seconds


def _choose_turns(request: DeliberationRequest, limits: LimitSettings) -> int:
    turns = request.constraints.max_iterations or limits.turns
    return _check_range("max_iterations", turns, 1, limits.turns, "limits.turns")


def _choose_repository(request: DeliberationRequest, defaults: Defaults) -> RepositoryRef | None:
    if request.repository is None and defaults.repository and not request.about_text:
        return RepositoryRef(id=defaults.repository)
    return request.repository


def digest_request(request: DeliberationRequest, principal: Principal) -> str:
    """Return a digest that identifies a request.

    It excludes the context, because the graph grows and a repeated request must stay the same. It
    also excludes newer fields if they are empty, to match requests that were recorded before these
    existed.
    """
    # Older versions recorded tasks of a forge without an origin.
    fields = dump(
        replace(request, context="", origin="" if request.origin == FORGE else request.origin)
    )
    for name in (
        "merge",
        "model",
        "checks",
        "tools",
        "follows",
        "fork",
        "agent",
        "document",
        "records_calls",
        "hidden_tests",
        "head",
        "tests_only",
    ):
        if not fields[name]:
            del fields[name]
    return digest(str(sorted(fields.items())), principal.tenant, principal.name)


def _check_range(name: str, value: int, low: int, high: int, setting: str = "") -> int:
    if not low <= value <= high:
        hint = f" here ({setting})" if setting else ""
        raise InvalidRequest(f"{name} is {value}; allowed are {low} to {high}{hint}")
    return value


def _limit_budget(budget: Budget, limits: LimitSettings) -> Budget:
    """Return a budget with the server's values for missing parts, and limited by them. Zero means
    unlimited.
    """
    server_budget = Budget(
        tokens=limits.tokens,
        seconds=int(limits.deliberation_seconds),
        calls=limits.calls,
        cost_usd=limits.cost_usd,
    )
    requested = budget.or_default(server_budget)

    def limit(a: float, b: float) -> float:
        return min(a, b) if a and b else a or b

    return Budget(
        tokens=int(limit(requested.tokens, server_budget.tokens)),
        seconds=int(limit(requested.seconds, server_budget.seconds)),
        calls=int(limit(requested.calls, server_budget.calls)),
        cost_usd=limit(requested.cost_usd, server_budget.cost_usd),
    )


def choose_models(
    request: DeliberationRequest, role: str, models: Models, council: Council | None
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return the models that the seats use in turn, the council's first, and the models of seats
    that have their own. The request overrides seat, council and role; it may name several models,
    separated by commas. Raises `InvalidRequest`.
    """
    if request.tests_only or (request.merge and request.protocol != "judge"):
        return ("",), {}
    requested = request.model or (council.config.model_profile if council else "")
    names = (
        [models.choose(name) for name in requested.split(",")]
        if requested and not is_auto(requested)
        else [models.of_role(role)]
    )
    agents = council.agents if council and not request.model else ()
    return names, {
        agent.id: models.choose(name)
        for agent in agents
        if (name := agent.capabilities.model_profile)
    }


def is_auto(profile: str) -> bool:
    """Return whether a requested model is the choice by results."""
    return profile.strip().lower() == AUTO


def leaves_choice(
    request: DeliberationRequest,
    planned: Deliberation,
    defaults: Defaults,
    council: Council | None,
) -> bool:
    """Return whether the models of a planned deliberation are to be chosen by their results: it
    changes a repository, and request or council ask for it, or both name no model and the settings
    ask for it.
    """
    if (
        planned.base_sha is None
        or planned.merge
        or planned.judges
        or PROTOCOLS[planned.protocol].answers
    ):
        return False
    requested = request.model or (council.config.model_profile if council else "")
    has_own = council and any(agent.capabilities.model_profile for agent in council.agents)
    return is_auto(requested) if requested else defaults.auto and not has_own


def remote_seats(council: Council | None, endpoints: AbstractSet[str]) -> Mapping[str, str]:
    """Return the endpoints of seats with remote agents, if the settings allow them."""
    return {
        agent.id: agent.endpoint
        for agent in (council.agents if council else ())
        if agent.endpoint in endpoints
    }


def parse_checks(request: DeliberationRequest) -> Mapping[str, tuple[str, ...]]:
    """Return the request's own checks as argv. Raises `InvalidRequest`."""
    if request.checks and request.about_text:
        raise InvalidRequest(
            "a check needs a repository to run in; leave it out of a task about text"
        )
    if len(request.checks) > _MAX_CHECKS:
        raise InvalidRequest(f"{len(request.checks)} checks were requested; at most {_MAX_CHECKS}")
    return {
        f"{VALIDATION}-{number}": _split_command(line)
        for number, line in enumerate(request.checks, 1)
    }


def _split_command(line: str) -> tuple[str, ...]:
    try:
        return argv_of(line)
    except ValueError as error:
        raise InvalidRequest(f"the check {error}") from error
