"""Quotas of tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from moothall.config.section import Section

_Tenant = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


class Quota(Section):
    """The quotas of one tenant; 0: no limit. Days and months are those of UTC."""

    tokens_per_day: int = Field(0, ge=0, description="tokens of all model calls in a day")
    tokens_per_month: int = Field(0, ge=0, description="tokens of all model calls in a month")
    cost_usd_per_day: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="cost of all model calls in a day"
    )
    cost_usd_per_month: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="cost of all model calls in a month"
    )
    deliberations: int = Field(
        0, ge=0, description="accepted deliberations that have not ended, including waiting ones"
    )


class QuotaSettings(Section):
    """Quotas of tenants: docs/operating.md."""

    default: Quota = Field(Quota(), description="quotas of tenants that `tenants` does not name")
    tenants: Mapping[_Tenant, Quota] = Field(
        {}, description="quotas by tenant; unset values are inherited from `default`"
    )

    def of(self, tenant: str) -> Quota:
        """Return the quotas of a tenant."""
        own = self.tenants.get(tenant, Quota())
        return self.default.model_copy(
            update={name: getattr(own, name) for name in own.model_fields_set}
        )
