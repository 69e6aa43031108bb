"""What a gate goes by, beside its limits: made once a process from settings and the bus."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from moothall.authorization.approval_queue import ApprovalQueue
from moothall.authorization.grants import Grants, shipped_grants
from moothall.authorization.policy import Policy
from moothall.authorization.rate_limits import SharedRates
from moothall.authorization.tokens import Tokens
from moothall.ports import Toolkit
from moothall.tools.catalogue import CATALOGUE
from moothall.tools.spec import ToolSpec


def _nothing(tenant: str) -> Collection[str]:
    """No tenant is without anything."""
    del tenant
    return ()


async def _no_trace(workspace_id: str) -> None:
    """Nothing of a workspace is anywhere else."""
    del workspace_id


def _all_set(tenant: str) -> Mapping[str, str]:
    """Every tool has what it needs."""
    del tenant
    return {}


@dataclass(frozen=True, slots=True)
class Rules:
    """`off` gives the names of the tools that a tenant is without; `toolkits` run, by category, the
    tools that a workspace does not run itself; `unset` says of the tools that lack a setting which
    it is: a tenant's agents are not offered them; `parking` keeps what an operator may allow;
    `close_workspace` is called with the id of each one that ends. The defaults are those of a gate
    that stands alone: a key of its own, and no policy engine.
    """

    catalogue: Mapping[str, ToolSpec] = field(default_factory=lambda: CATALOGUE)
    off: Callable[[str], Collection[str]] = _nothing
    unset: Callable[[str], Mapping[str, str]] = _all_set
    grants: Grants = field(default_factory=shipped_grants)
    tokens: Tokens = field(default_factory=lambda: Tokens(secrets.token_bytes(32), 3600.0))
    policy: Policy = field(default_factory=lambda: Policy("off", None))
    toolkits: Mapping[str, Toolkit] = field(default_factory=dict)
    parking: ApprovalQueue | None = None
    rates: SharedRates | None = None
    close_workspace: Callable[[str], Awaitable[None]] = _no_trace

    def without(self, tenant: str) -> Collection[str]:
        """Return the names of the tools that a tenant's agents are not offered."""
        return {*self.off(tenant), *self.unset(tenant)}
