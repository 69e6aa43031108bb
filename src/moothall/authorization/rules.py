"""The rules of a tool gateway besides its limits, built once per process from settings and the bus:
the grants of roles and personas, operators' overrides, and the operator's policy.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from cachetools import TTLCache
from pydantic import BaseModel, ConfigDict, ValidationError

from moothall.authorization.approvals import ApprovalQueue
from moothall.authorization.checks import CallContext, CheckedCall, Stopped
from moothall.authorization.limits import SharedRates
from moothall.authorization.tokens import Tokens
from moothall.domain.codec import describe_errors
from moothall.domain.ids import check_id, read_role
from moothall.domain.tool import Grant, ToolStatus
from moothall.errors import ConfigurationError, InvalidRequest, PolicyUnavailable
from moothall.ports import Bucket, Toolkit
from moothall.telemetry import get_logger, metrics
from moothall.tools.catalogue import CATALOGUE, intersection
from moothall.tools.spec import Danger, ToolSpec

# The grants of roles and personas: operations by role and tool, from `policies/roles.yaml`.


ROLES_FILE = "roles.yaml"


class _Entry(BaseModel):
    """Operations by tool pattern, and paths that may not be written (gitignore style)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tools: Mapping[str, tuple[Danger, ...]]
    protected: tuple[str, ...] = ()


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    roles: Mapping[str, _Entry]
    personas: Mapping[str, _Entry] = {}


@dataclass(frozen=True, slots=True)
class Grants:
    """The table of grants, resolved to the tools of the catalogue. Unlisted tools are not
    granted.
    """

    roles: Mapping[str, Grant]
    personas: Mapping[str, Grant]

    def of(self, role: str, protected: Sequence[str] = (), persona: str = "") -> Grant:
        """Return the grant of a role's seats, narrowed to the persona's. Raises `InvalidRequest`
        for unknown ones.

        `protected` (tests and their configuration) can be edited in a workspace, but candidates are
        judged with these files as they are on the base. The seat is told so when it writes one.
        """
        grant = self.roles.get(read_role(role), Grant(tools=()))
        if persona:
            if persona not in self.personas:
                raise InvalidRequest(
                    f"unknown persona {persona[:40]!r}; the personas are "
                    f"{', '.join(self.personas) or 'none'}"
                )
            grant = intersection(grant, self.personas[persona])
        return Grant(tools=grant.tools, protected=grant.protected, judged=tuple(protected))


def read_grants(text: str, specs: Iterable[ToolSpec] = CATALOGUE.values()) -> Grants:
    """Return the table in a YAML text. Raises `ConfigurationError` with what is wrong."""
    import yaml

    try:
        table = _Table.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigurationError(f"the table of roles is not YAML: {error}") from error
    except ValidationError as error:
        raise ConfigurationError(
            f"the table of roles is invalid: {describe_errors(error)}"
        ) from error
    tools = tuple(specs)
    return Grants(
        {_read_role(name): _read_grant(name, entry, tools) for name, entry in table.roles.items()},
        {name: _read_grant(name, entry, tools) for name, entry in table.personas.items()},
    )


def _read_role(name: str) -> str:
    try:
        return read_role(name)
    except InvalidRequest as error:
        raise ConfigurationError(f"the table of roles is invalid: {error.message}") from error


def _read_grant(name: str, entry: _Entry, specs: Sequence[ToolSpec]) -> Grant:
    for pattern in entry.tools:
        if not any(fnmatchcase(spec.name, pattern) for spec in specs):
            raise ConfigurationError(
                f"the table of roles is invalid: {name} is granted {pattern!r}, but there is no "
                "such tool"
            )
    tools = tuple(
        spec.name
        for spec in specs
        if any(
            fnmatchcase(spec.name, pattern) and spec.danger in operations
            for pattern, operations in entry.tools.items()
        )
    )
    return Grant(tools, entry.protected)


@cache
def shipped_grants() -> Grants:
    """Return the table that is part of Moothall."""
    return read_grants((policies_folder() / ROLES_FILE).read_text(encoding="utf-8"))


def policies_folder() -> Path:
    """Return the folder of the policies that are part of Moothall: in the installed package, or in
    the source tree.
    """
    packaged = Path(__file__).parents[1] / "policies"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "policies"


def grant_for(role: str, profile_protected: Sequence[str] = ()) -> Grant:
    """Return a role's grant in the table that is part of Moothall."""
    return shipped_grants().of(role, profile_protected)


# Operators' overrides, which every gateway follows without a restart: switched-off tools of a
# tenant, revoked tokens and workspaces.


log = get_logger(__name__)

SWITCHES, REVOKED = "tools", "revoked"
"""The buckets of these overrides."""


class _Overrides:
    """The local copy of a bucket. `refresh` reads it once, `run` follows it, and lookups are
    local.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def refresh(self) -> None:
        """Read the current entries. Raises `BusUnavailable`."""
        for key, document in (await self._bucket.entries()).items():
            self._apply_override(key, document)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with aclosing(self._bucket.follow()) as changes:
            async for key, document in changes:
                self._apply_override(key, document)

    async def _publish(self, key: str, actor: str, reason: str, **fields: Any) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        document = {**fields, "who": actor, "reason": reason[:500], "time": time}
        await self._bucket.put(key, document)
        self._apply_override(key, document)

    def _apply_override(self, key: str, document: Mapping[str, Any]) -> None:
        raise NotImplementedError


class Switches(_Overrides):
    """The tools that are switched off per tenant, from the bucket SWITCHES."""

    def __init__(self, bucket: Bucket, known_tools: Container[str] = CATALOGUE) -> None:
        super().__init__(bucket)
        self._known_tools = known_tools
        self._off: dict[str, frozenset[str]] = {}

    def off(self, tenant: str) -> frozenset[str]:
        """Return the names of the tools that are switched off for a tenant."""
        return self._off.get(tenant, frozenset())

    async def switch(
        self, tenant: str, tool: str, *, enabled: bool, actor: str, reason: str = ""
    ) -> None:
        """Switch a tool on or off for a tenant. Raises `InvalidRequest` for an unknown tool,
        `BusUnavailable`.
        """
        check_id(tenant, "tenant")
        if tool not in self._known_tools:
            raise InvalidRequest(
                f"there is no tool {tool[:60]!r}; `moothall tools list` shows them"
            )
        await self._publish(f"{tenant}.{tool}", actor, reason, enabled=enabled)

    def _apply_override(self, key: str, document: Mapping[str, Any]) -> None:
        tenant, _, tool = key.partition(".")
        off = self._off.get(tenant, frozenset())
        # Anything but True is off: an unreadable document must not switch a tool on.
        self._off[tenant] = off - {tool} if document.get("enabled") is True else off | {tool}
        log.debug("tool switched", tenant=tenant, tool=tool, enabled=document.get("enabled"))


class Revocations(_Overrides):
    """Revoked tokens and workspaces, from the bucket REVOKED. Its entries outlive every token."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self._ids: set[str] = set()

    def any(self, ids: Iterable[str]) -> bool:
        """Return whether one of these ids was revoked."""
        return not self._ids.isdisjoint(ids)

    async def revoke(self, token_or_workspace: str, *, actor: str, reason: str = "") -> None:
        """Revoke a token and its children by its id (`jti`), or all tokens of a workspace.

        Raises `InvalidRequest`, `BusUnavailable`.
        """
        await self._publish(token_or_workspace, actor, reason)

    def _apply_override(self, key: str, document: Mapping[str, Any]) -> None:
        del document
        self._ids.add(key)


# The decisions of an operator's policy on calls. Decisions are cached. Anything but an explicit
# allow is a deny.


Mode = Literal["off", "dry-run", "enforce"]
_MAX_STRING_CHARS = 300
_MAX_DECISIONS = 4096


@dataclass(frozen=True, slots=True)
class PolicyQuestion:
    """All inputs of a policy, and the key of its cached decisions.

    `arguments` is JSON. Long strings are replaced by their length.
    """

    tenant: str
    principal: str
    role: str
    persona: str
    tool: str
    category: str
    operation: str
    version: str
    tags: tuple[str, ...]
    os_access: bool
    network_access: bool
    file_system: str
    arguments: str

    def document(self) -> dict[str, Any]:
        """Return the question as the policy's `input`."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        requirements = {
            name: fields.pop(name) for name in ("os_access", "network_access", "file_system")
        }
        return {
            **fields,
            "tags": list(self.tags),
            "requirements": requirements,
            "arguments": json.loads(self.arguments),
        }


def policy_question(context: CallContext, checked_call: CheckedCall) -> PolicyQuestion:
    """Return the policy question of a call. Requirements come from the catalogue."""
    spec = checked_call.spec
    return PolicyQuestion(
        tenant=context.tenant,
        principal=context.principal.name,
        role=context.role,
        persona=context.persona,
        tool=spec.name,
        category=spec.category,
        operation=spec.danger.value,
        version=spec.version,
        tags=spec.tags,
        os_access=spec.requirements.os_access,
        network_access=spec.requirements.network_access,
        file_system=spec.requirements.file_system,
        arguments=json.dumps(_shorten_strings(checked_call.arguments), sort_keys=True),
    )


def _shorten_strings(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _MAX_STRING_CHARS else {"characters": len(value)}
    if isinstance(value, Mapping):
        return {name: _shorten_strings(item) for name, item in value.items()}
    return [_shorten_strings(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """A policy's decision. `park`: an operator may still allow the call."""

    allow: bool
    reason: str = ""
    park: bool = False


Decide = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""A policy engine: Rego in this process, or a server. Returns `allow`, `reason` and `park`. Raises
`PolicyUnavailable`.
"""


class Policy:
    """A policy in one of three modes. Decisions are cached for `keep_seconds`. Use one per
    gateway.
    """

    def __init__(
        self,
        mode: Mode,
        decide: Decide | None,
        *,
        keep_seconds: float = 60.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._mode = mode
        self._engine = decide
        self._decisions: TTLCache[PolicyQuestion, PolicyAnswer] = TTLCache(
            _MAX_DECISIONS, keep_seconds, timer=clock
        )

    async def check(self, context: CallContext, checked_call: CheckedCall) -> None:
        """Raise `Stopped` unless the policy allows the call. An unavailable engine or an unclear
        answer blocks. In dry-run, a denial is only logged.
        """
        if self._mode == "off":
            return
        question = policy_question(context, checked_call)
        try:
            decision = await self._decide(question)
        except PolicyUnavailable as error:
            decision = PolicyAnswer(
                allow=False,
                reason=f"the policy cannot be asked ({error.message}); nothing runs until it can",
            )
        if decision.allow:
            metrics.POLICY_DECISIONS.add(checked_call.spec.name, "allowed")
            return
        if self._mode == "dry-run":
            metrics.POLICY_DECISIONS.add(checked_call.spec.name, "would_deny")
            log.warning(
                "the policy would have refused this",
                tool=question.tool,
                tenant=question.tenant,
                reason=decision.reason,
            )
            return
        metrics.POLICY_DECISIONS.add(
            checked_call.spec.name, "parked" if decision.park else "denied"
        )
        raise Stopped(
            ToolStatus.BLOCKED,
            f"{question.tool} is refused by policy: {decision.reason}",
            may_be_allowed=decision.park,
        )

    async def _decide(self, question: PolicyQuestion) -> PolicyAnswer:
        if (cached := self._decisions.get(question)) is not None:
            return cached
        if self._engine is None:
            raise PolicyUnavailable("there is no policy engine")
        decision = _read_decision(await self._engine(question.document()))
        self._decisions[question] = decision
        return decision


def _read_decision(answer: object) -> PolicyAnswer:
    """Return the decision in an answer. Raises `PolicyUnavailable` if it is unclear."""
    if not isinstance(answer, Mapping):
        raise PolicyUnavailable("its answer is not an object")
    allow, park, reason = answer.get("allow"), answer.get("park", False), answer.get("reason", "")
    if not isinstance(allow, bool) or not isinstance(park, bool) or not isinstance(reason, str):
        raise PolicyUnavailable("`allow` in its answer is neither true nor false")
    return PolicyAnswer(allow, reason[:500] or ("" if allow else "no reason is given"), park)


# The rules of a gateway besides its limits, built once per process from settings and the bus.


def _no_tools_off(tenant: str) -> Collection[str]:
    """The default of `Rules.off`."""
    del tenant
    return ()


async def _ignore_close(workspace_id: str) -> None:
    """The default of `Rules.close_workspace`."""
    del workspace_id


def _no_settings_missing(tenant: str) -> Mapping[str, str]:
    """The default of `Rules.unset`."""
    del tenant
    return {}


@dataclass(frozen=True, slots=True)
class Rules:
    """`off` returns the names of tools that are switched off for a tenant. `unset` maps tools to
    the setting that they lack; agents are not offered them. `toolkits` run, by category, the tools
    that do not run in a workspace. `parking` stores requests that an operator may allow.
    `close_workspace` is called with the id of each workspace that ends. The defaults suit a gateway
    on its own: a new key, and no policy engine.
    """

    catalogue: Mapping[str, ToolSpec] = field(default_factory=lambda: CATALOGUE)
    off: Callable[[str], Collection[str]] = _no_tools_off
    unset: Callable[[str], Mapping[str, str]] = _no_settings_missing
    grants: Grants = field(default_factory=shipped_grants)
    tokens: Tokens = field(default_factory=lambda: Tokens(secrets.token_bytes(32), 3600.0))
    policy: Policy = field(default_factory=lambda: Policy("off", None))
    toolkits: Mapping[str, Toolkit] = field(default_factory=dict)
    parking: ApprovalQueue | None = None
    rates: SharedRates | None = None
    close_workspace: Callable[[str], Awaitable[None]] = _ignore_close

    def hidden_tools(self, tenant: str) -> Collection[str]:
        """Return the names of the tools that a tenant's agents are not offered."""
        return {*self.off(tenant), *self.unset(tenant)}
