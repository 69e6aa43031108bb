"""The authenticated caller. It comes from credentials, never from message fields."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller and the tenant whose data it may see. An `operator` may approve
    requests; `roles` are those in which it may move stories: po, qa, architect.
    """

    name: str
    tenant: str
    operator: bool = False
    roles: frozenset[str] = frozenset()


LOCAL = Principal(
    name="local", tenant="local", operator=True, roles=frozenset({"po", "qa", "architect"})
)
