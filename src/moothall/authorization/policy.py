"""The decisions of an operator's policy on calls. The rules of a gateway besides its limits,
built once per process from settings and the bus.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal

from cachetools import TTLCache

from moothall.authorization.approvals import ApprovalQueue
from moothall.authorization.call_context import CallContext, Stopped
from moothall.authorization.checks import CheckedCall
from moothall.authorization.grants import Grants, shipped_grants
from moothall.authorization.limits import SharedRates
from moothall.authorization.tokens import Tokens
from moothall.domain.tool import ToolStatus
from moothall.errors import PolicyUnavailable
from moothall.ports import Toolkit
from moothall.telemetry import get_logger, metrics
from moothall.tools.catalogue import CATALOGUE
from moothall.tools.spec import ToolSpec

# The decisions of an operator's policy on calls. Decisions are cached. Anything but an explicit
# allow is a deny.


log = get_logger(__name__)

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


def policy_question(context: CallContext, checked: CheckedCall) -> PolicyQuestion:
    """Return the policy question of a call. Requirements come from the catalogue."""
    spec = checked.spec
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
        arguments=json.dumps(_shorten_strings(checked.arguments), sort_keys=True),
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

    async def check(self, context: CallContext, checked: CheckedCall) -> None:
        """Raise `Stopped` unless the policy allows the call. An unavailable engine or an unclear
        answer blocks. In dry-run, a denial is only logged.
        """
        if self._mode == "off":
            return
        question = policy_question(context, checked)
        try:
            decision = await self._decide(question)
        except PolicyUnavailable as error:
            decision = PolicyAnswer(
                allow=False,
                reason=f"the policy cannot be asked ({error.message}); nothing runs until it can",
            )
        if decision.allow:
            metrics.POLICY_DECISIONS.add(checked.spec.name, "allowed")
            return
        if self._mode == "dry-run":
            metrics.POLICY_DECISIONS.add(checked.spec.name, "would_deny")
            log.warning(
                "the policy would have refused this",
                tool=question.tool,
                tenant=question.tenant,
                reason=decision.reason,
            )
            return
        metrics.POLICY_DECISIONS.add(checked.spec.name, "parked" if decision.park else "denied")
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
        raise PolicyUnavailable("its answer is no object")
    allow, park, reason = answer.get("allow"), answer.get("park", False), answer.get("reason", "")
    if not isinstance(allow, bool) or not isinstance(park, bool) or not isinstance(reason, str):
        raise PolicyUnavailable("its answer has no allow that is true or false")
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

    def without(self, tenant: str) -> Collection[str]:
        """Return the names of the tools that a tenant's agents are not offered."""
        return {*self.off(tenant), *self.unset(tenant)}
