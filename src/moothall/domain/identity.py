"""The authenticated caller. It comes from credentials, never from message fields."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller and the tenant whose data it may see. An `operator` may approve
    requests; `roles` are its other roles: po, qa, architect.
    """

    name: str
    tenant: str
    operator: bool = False
    roles: frozenset[str] = frozenset()

    @property
    def all_roles(self) -> frozenset[str]:
        """The roles in which the caller may move stories, with `operator` if it is one."""
        return self.roles | {"operator"} if self.operator else self.roles


LOCAL = Principal(
    name="local", tenant="local", operator=True, roles=frozenset({"po", "qa", "architect"})
)
