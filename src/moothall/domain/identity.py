"""Who asks. Comes from credentials, never from message fields."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller and the tenant whose data it may see. An `operator` may say what is allowed."""

    name: str
    tenant: str
    operator: bool = False


LOCAL = Principal(name="local", tenant="local", operator=True)
