"""The rules of a gateway besides its limits, built once per process from settings and the bus."""

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
