"""The councils of all tenants by role, folded from their events. Parameters by name
(`custom_params`): a closed list with checks, so that typing errors are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from moothall.config import LimitSettings, Models
from moothall.config.models import AUTO
from moothall.domain.codec import dump, load
from moothall.domain.council import (
    DEFAULT_PROTOCOL,
    PROTOCOLS,
    Agent,
    Council,
    CouncilConfig,
    ProtocolName,
)
from moothall.domain.event import Channel, Event, EventType, Recorded
from moothall.domain.ids import Principal, check_id, digest, read_role, seat_id
from moothall.domain.task import DEFAULT_SEATS, MAX_REQUEST_ROUNDS, DeliberationRequest
from moothall.errors import AlreadyExists, InvalidRequest, MoothallError, NoCouncil, NotFound
from moothall.ports import Log
from moothall.telemetry import get_logger
from moothall.telemetry.tracing import write

# Parameters by name (`custom_params`): a closed list with checks, so that typing errors are
# reported.


_ApplyParam = Callable[[DeliberationRequest, str], DeliberationRequest]


def _parse_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):  # noqa: PLR2004 - fits an int32
        raise InvalidRequest(
            f"custom_params {name} is {text[:40]!r}; it must be a whole number from 0"
        )
    return int(text)


def _set_protocol(request: DeliberationRequest, text: str) -> DeliberationRequest:
    return replace(request, protocol=request.protocol or text)


def _set_adaptive(request: DeliberationRequest, text: str) -> DeliberationRequest:
    if text.lower() not in {"true", "false"}:
        raise InvalidRequest(f"custom_params adaptive is {text[:40]!r}; it must be true or false")
    return replace(request, adaptive=request.adaptive or text.lower() == "true")


def _set_max_iterations(request: DeliberationRequest, text: str) -> DeliberationRequest:
    number = request.constraints.max_iterations or _parse_number("max_iterations", text)
    return replace(request, constraints=replace(request.constraints, max_iterations=number))


def _set_timeout(request: DeliberationRequest, text: str) -> DeliberationRequest:
    number = (
        request.constraints.timeout_seconds
        or request.budget.seconds
        or _parse_number("timeout_seconds", text)
    )
    return replace(request, constraints=replace(request.constraints, timeout_seconds=number))


def _set_num_agents(request: DeliberationRequest, text: str) -> DeliberationRequest:
    return replace(request, num_agents=request.num_agents or _parse_number("num_agents", text))


def _set_seed(request: DeliberationRequest, text: str) -> DeliberationRequest:
    return replace(
        request, seed=_parse_number("seed", text) if request.seed is None else request.seed
    )


def _set_model(request: DeliberationRequest, text: str) -> DeliberationRequest:
    return replace(request, model=request.model or text)


COUNCIL_PARAMS: Mapping[str, _ApplyParam] = {
    "protocol": _set_protocol,
    "adaptive": _set_adaptive,
    "max_iterations": _set_max_iterations,
    "timeout_seconds": _set_timeout,
}
"""Parameters that a council may set for all its requests."""

REQUEST_PARAMS: Mapping[str, _ApplyParam] = {
    **COUNCIL_PARAMS,
    "num_agents": _set_num_agents,
    "seed": _set_seed,
    "model_profile": _set_model,
}
"""Parameters that a request may set."""


def check_protocol(name: str) -> ProtocolName:
    """Return the protocol, the default one for an empty name. Raises `InvalidRequest`."""
    protocol_name = name.strip().lower() or DEFAULT_PROTOCOL
    for protocol in PROTOCOLS:
        if protocol == protocol_name:
            return protocol
    matches = get_close_matches(protocol_name, PROTOCOLS, 1)
    hint = f"; did you mean {matches[0]}?" if matches else ""
    raise InvalidRequest(
        f"unknown protocol {name[:40]!r}; the protocols are {', '.join(PROTOCOLS)}{hint}"
    )


def apply_params(
    request: DeliberationRequest, params: Mapping[str, str], known_params: Mapping[str, _ApplyParam]
) -> DeliberationRequest:
    """Return the request with `params` in its unset fields. Raises `InvalidRequest` for bad
    ones.
    """
    for name, text in sorted(params.items()):
        apply = known_params.get(name)
        if apply is None:
            matches = get_close_matches(name, known_params, 1)
            hint = f"; did you mean {matches[0]}?" if matches else ""
            raise InvalidRequest(
                f"unknown custom_params {name[:40]!r}; the parameters are "
                f"{', '.join(known_params)}{hint}"
            )
        request = apply(request, text.strip())
    return request


# The councils of all tenants by role, folded from their events.
#
# The order of the log decides which change came first, so two processes agree without a lock: a
# change is published and read back, and folding it shows whether it took effect. Roles without a
# council of their own use the default one.


log = get_logger(__name__)

TOPICS = (Channel.COUNCILS.all,)
AGENT_TYPES = ("", "vllm", "ray_vllm")
_SCHEMES = ("http", "https", "grpc", "grpcs")
_ENDPOINT_CHARS = 500
_AGENT_CHARS = 4000

Councils = Mapping[str, Council | None]
"""By role. None: the council was deleted, and the role refuses requests."""


class CouncilRegistry:
    """The configured councils. `run` keeps it up to date; without it, call `refresh`.

    models: the models that councils and agents may name as their profile.
    """

    def __init__(self, bus: Log, limits: LimitSettings, models: Models | None = None) -> None:
        self._bus = bus
        self._limits = limits
        self._models = models or Models()
        self._tenants: dict[str, Councils] = {}
        self._seq = 0

    async def run(self) -> None:
        """Follow the events until cancelled."""
        async for recorded in self._bus.follow(TOPICS, self._seq):
            self._apply_recorded(recorded)

    async def refresh(self) -> None:
        """Read the events since the last time."""
        async for recorded in self._bus.replay(TOPICS, self._seq):
            self._apply_recorded(recorded)

    def find(self, role: str, tenant: str) -> Council | None:
        """Return the council of a role, None for the default one. Raises `NoCouncil` for a deleted
        or empty council.
        """
        councils = self._tenants.get(tenant, {})
        if role not in councils:
            return None
        council = councils[role]
        if council is None:
            raise NoCouncil(f"the {role} council was deleted; create one with CreateCouncil")
        if not council.agents:
            raise NoCouncil(
                f"the {role} council has no agents; add one with RegisterAgent, or delete it and "
                "create another"
            )
        return council

    async def list(self, principal: Principal, role: str = "") -> Sequence[Council]:
        """Return the configured councils, sorted by role; `role` selects one."""
        selected_role = read_role(role) if role else ""
        await self.refresh()
        councils = self._tenants.get(principal.tenant, {})
        return [
            council
            for name, council in sorted(councils.items())
            if council is not None and selected_role in {"", name}
        ]

    async def create(
        self, role: str, num_agents: int, config: CouncilConfig, principal: Principal
    ) -> Council:
        """Create a council of `num_agents` (0: the default). Repeating this changes nothing. Raises
        `AlreadyExists` if the role has a different council.
        """
        role = read_role(role)
        count = num_agents or DEFAULT_SEATS
        if not 1 <= count <= self._limits.agents:
            raise InvalidRequest(
                f"num_agents is {num_agents}; a council has 1 to {self._limits.agents} agents "
                "(limits.agents)"
            )
        config = self._check_config(config)
        council = Council(
            role, tuple(Agent(seat_id(role, number)) for number in range(1, count + 1)), config
        )
        data = {
            "role": role,
            "agents": [dump(agent) for agent in council.agents],
            "config": dump(config),
        }
        return await self._publish_change(EventType.COUNCIL_CREATED, data, principal)

    async def delete(self, role: str, principal: Principal) -> Council:
        """Delete a council and return it. Requests for the role are refused until another council
        is created.
        """
        role = read_role(role)
        council = await self._require_council(role, principal)
        await self._publish_change(EventType.COUNCIL_DELETED, {"role": role}, principal)
        return council

    async def register(self, role: str, agent: Agent, principal: Principal) -> Council:
        """Add an agent. Repeating this changes nothing. Raises `AlreadyExists` if its id has other
        data.
        """
        role = read_role(role)
        self._check_agent(agent)
        council = await self._require_council(role, principal)
        if council.agent(agent.id) is None and len(council.agents) >= self._limits.agents:
            raise InvalidRequest(
                f"the {role} council is full: it has {len(council.agents)} agents (limits.agents)"
            )
        return await self._publish_change(
            EventType.AGENT_REGISTERED, {"role": role, "agent": dump(agent)}, principal
        )

    async def unregister(self, role: str, agent_id: str, principal: Principal) -> Council:
        """Remove an agent. Raises `NotFound` if the council does not have it."""
        role = read_role(role)
        check_id(agent_id, "agent_id")
        council = await self._require_council(role, principal)
        if council.agent(agent_id) is None:
            agent_ids = ", ".join(agent.id for agent in council.agents) or "none"
            raise NotFound(f"no agent {agent_id!r} in the {role} council; its agents: {agent_ids}")
        return await self._publish_change(
            EventType.AGENT_UNREGISTERED, {"role": role, "agent_id": agent_id}, principal
        )

    async def _require_council(self, role: str, principal: Principal) -> Council:
        await self.refresh()
        council = self._tenants.get(principal.tenant, {}).get(role)
        if council is None:
            raise NotFound(f"there is no {role} council; create one with CreateCouncil")
        return council

    async def _publish_change(
        self, event_type: EventType, data: Mapping[str, Any], principal: Principal
    ) -> Council:
        """Publish a change unless it has no effect, read it back, and return the resulting council.

        The event id depends on the position in the log: two concurrent identical changes are one
        event, a later one is another.
        """
        await self.refresh()
        councils = self._tenants.get(principal.tenant, {})
        role = data["role"]
        ordinal = f"{self._seq}-{digest(principal.tenant, str(data))}"
        event = write(
            event_type, f"council-{role}", dict(data), ordinal=ordinal, tenant=principal.tenant
        )
        changed_councils = apply_event(councils, event)
        if changed_councils != councils:
            seq = await self._bus.publish(event)
            await self.refresh()
            await self._check_order(event, seq)
        return self._tenants.get(principal.tenant, {}).get(role) or Council(role)

    async def _check_order(self, event: Event, seq: int) -> None:
        """Raise the error that results if another change came before ours."""
        councils: Councils = {}
        async for recorded in self._bus.replay((Channel.COUNCILS.of(event.tenant),)):
            if recorded.seq >= seq:
                break
            councils = _apply_event(councils, recorded)
        apply_event(councils, event)

    def _apply_recorded(self, recorded: Recorded) -> None:
        if recorded.seq <= self._seq:
            return
        self._seq = recorded.seq
        tenant = recorded.event.tenant
        self._tenants[tenant] = _apply_event(self._tenants.get(tenant, {}), recorded)

    def _check_config(self, config: CouncilConfig) -> CouncilConfig:
        if not 0 <= config.rounds <= MAX_REQUEST_ROUNDS:
            raise InvalidRequest(
                f"deliberation_rounds is {config.rounds}; allowed are 0 to {MAX_REQUEST_ROUNDS}"
            )
        if config.model_profile.strip().lower() != AUTO:
            self._models.choose(config.model_profile)
        if config.agent_type.lower() not in AGENT_TYPES:
            types = ", ".join(repr(agent_type) for agent_type in AGENT_TYPES)
            raise InvalidRequest(
                f"unknown agent_type {config.agent_type[:40]!r}; agents are {types}, which mean "
                "the same here"
            )
        filled = apply_params(DeliberationRequest("x", "dev"), config.params, COUNCIL_PARAMS)
        limits = self._limits
        if (
            filled.constraints.max_iterations > limits.turns
            or filled.constraints.timeout_seconds > limits.deliberation_seconds
        ):
            raise InvalidRequest(
                f"custom_params are over the limits here: max_iterations {limits.turns}, "
                f"timeout_seconds {limits.deliberation_seconds:g}"
            )
        check_protocol(filled.protocol)
        return replace(config, agent_type=config.agent_type.lower())

    def _check_agent(self, agent: Agent) -> None:
        check_id(agent.id, "agent_id")
        capabilities = agent.capabilities
        self._models.choose(capabilities.model_profile)
        if capabilities.max_concurrent_tasks < 0:
            raise InvalidRequest(
                f"max_concurrent_tasks is {capabilities.max_concurrent_tasks}; it is a whole "
                "number from 0 up"
            )
        texts = (
            *capabilities.supported_tasks,
            *capabilities.languages,
            capabilities.model_profile,
            *agent.metadata,
            *agent.metadata.values(),
        )
        if sum(map(len, texts)) + 8 * len(texts) > _AGENT_CHARS:
            raise InvalidRequest(
                f"capabilities and metadata have more than {_AGENT_CHARS} characters"
            )
        if agent.endpoint:
            check_endpoint(agent.endpoint)


def apply_event(councils: Councils, event: Event) -> Councils:
    """Return the councils of a tenant after an event; equal ones if it changes nothing.

    Raises `AlreadyExists`, `NotFound` or `InvalidRequest` for an event that does not fit.
    """
    role = read_role(str(event.data.get("role", "")))
    council = councils.get(role)
    if event.type is EventType.COUNCIL_CREATED:
        created = load(
            Council, {name: event.data.get(name) for name in ("role", "agents", "config")}
        )
        if council is None:
            return {**councils, role: created}
        if council != created:
            raise AlreadyExists(
                f"{role} already has another council; delete it first, or change it with "
                "RegisterAgent"
            )
        return councils
    if council is None:
        raise NotFound(f"there is no {role} council; create one with CreateCouncil")
    if event.type is EventType.COUNCIL_DELETED:
        return {**councils, role: None}
    if event.type is EventType.AGENT_REGISTERED:
        agent = load(Agent, event.data.get("agent"))
        registered = council.agent(agent.id)
        if registered is None:
            return {**councils, role: replace(council, agents=(*council.agents, agent))}
        if registered != agent:
            raise AlreadyExists(
                f"{agent.id!r} is in the {role} council with other data; unregister it first"
            )
        return councils
    if event.type is EventType.AGENT_UNREGISTERED:
        remaining = tuple(
            agent for agent in council.agents if agent.id != event.data.get("agent_id")
        )
        return {**councils, role: replace(council, agents=remaining)}
    raise InvalidRequest(f"{event.type} is not an event about councils")


def check_endpoint(endpoint: str) -> str:
    """Return an agent's endpoint if it is well-formed. It is neither resolved nor called."""
    message = (
        f"endpoint {endpoint[:80]!r} is not the address of an agent: "
        f"{', '.join(_SCHEMES)}://host[:port][/path], without credentials"
    )
    try:
        parts = urlsplit(endpoint)
        port_is_fine = parts.port != 0
    except ValueError as error:
        raise InvalidRequest(message) from error
    printable = endpoint.isascii() and endpoint.isprintable() and " " not in endpoint
    has_valid_address = (
        parts.scheme in _SCHEMES
        and parts.hostname
        and parts.username is None
        and parts.password is None
    )
    if not (
        printable
        and has_valid_address
        and port_is_fine
        and not parts.fragment
        and len(endpoint) <= _ENDPOINT_CHARS
    ):
        raise InvalidRequest(message)
    return endpoint


def _apply_event(councils: Councils, recorded: Recorded) -> Councils:
    """Apply an event; late and malformed ones change nothing."""
    try:
        return apply_event(councils, recorded.event)
    except MoothallError as error:
        log.debug("an event of the councils without effect", seq=recorded.seq, reason=error.message)
        return councils
