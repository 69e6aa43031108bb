"""What an operator's policy says of a call. It is asked in one place, its answers are kept, and no
answer is a no.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from cachetools import TTLCache

from moothall.authorization.call_context import CallContext, Stopped
from moothall.authorization.checks import CheckedCall
from moothall.domain.tool import ToolStatus
from moothall.errors import PolicyUnavailable
from moothall.telemetry import get_logger, metrics

log = get_logger(__name__)

Mode = Literal["off", "dry-run", "enforce"]
_LONG = 300
_KEPT = 4096


@dataclass(frozen=True, slots=True)
class PolicyQuestion:
    """Everything that a policy may read, and so the key of its answers: what is not in here cannot
    change one.

    `arguments` is JSON; of a long string only its length is told.
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
        """Return it as the policy's `input`."""
        told = {name: getattr(self, name) for name in self.__slots__}
        needs = {name: told.pop(name) for name in ("os_access", "network_access", "file_system")}
        return {
            **told,
            "tags": list(self.tags),
            "requirements": needs,
            "arguments": json.loads(self.arguments),
        }


def policy_question(seat: CallContext, checked: CheckedCall) -> PolicyQuestion:
    """Return what the policy is asked about a call. Requirements are the catalogue's."""
    spec = checked.spec
    return PolicyQuestion(
        tenant=seat.tenant,
        principal=seat.principal.name,
        role=seat.role,
        persona=seat.persona,
        tool=spec.name,
        category=spec.category,
        operation=spec.danger.value,
        version=spec.version,
        tags=spec.tags,
        os_access=spec.requirements.os_access,
        network_access=spec.requirements.network_access,
        file_system=spec.requirements.file_system,
        arguments=json.dumps(_short(checked.arguments), sort_keys=True),
    )


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _LONG else {"characters": len(value)}
    if isinstance(value, Mapping):
        return {name: _short(item) for name, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """A policy's answer. `park`: an operator may allow it nevertheless."""

    allow: bool
    reason: str = ""
    park: bool = False


Decide = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Rego in process, or a server. Returns `allow`, `reason` and `park`. Raises `PolicyUnavailable`.
"""


class Policy:
    """Asks the engine in one of three modes; answers are kept for `keep_seconds`. One a gate."""

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
        self._kept: TTLCache[PolicyQuestion, PolicyAnswer] = TTLCache(
            _KEPT, keep_seconds, timer=clock
        )

    async def check(self, seat: CallContext, checked: CheckedCall) -> None:
        """The policy allows the call; else `Stopped`. An engine that cannot be asked, or that gives
        no clear answer, blocks. In dry-run it is only told what would have been.
        """
        if self._mode == "off":
            return
        asked = policy_question(seat, checked)
        try:
            decision = await self._decide(asked)
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
                tool=asked.tool,
                tenant=asked.tenant,
                reason=decision.reason,
            )
            return
        metrics.POLICY_DECISIONS.add(checked.spec.name, "parked" if decision.park else "denied")
        raise Stopped(
            ToolStatus.BLOCKED,
            f"{asked.tool} is refused by policy: {decision.reason}",
            may_be_allowed=decision.park,
        )

    async def _decide(self, asked: PolicyQuestion) -> PolicyAnswer:
        if (kept := self._kept.get(asked)) is not None:
            return kept
        if self._engine is None:
            raise PolicyUnavailable("there is no policy engine")
        decision = _read(await self._engine(asked.document()))
        self._kept[asked] = decision
        return decision


def _read(answer: object) -> PolicyAnswer:
    """Return the decision in an answer; what is not clearly one is none."""
    if not isinstance(answer, Mapping):
        raise PolicyUnavailable("its answer is no object")
    allow, park, reason = answer.get("allow"), answer.get("park", False), answer.get("reason", "")
    if not isinstance(allow, bool) or not isinstance(park, bool) or not isinstance(reason, str):
        raise PolicyUnavailable("its answer has no allow that is true or false")
    return PolicyAnswer(allow, reason[:500] or ("" if allow else "no reason is given"), park)
