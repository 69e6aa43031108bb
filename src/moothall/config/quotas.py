"""Quotas of tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from moothall.config.section import Section
from moothall.domain.ids import is_id


class Quota(Section):
    """The quotas of one tenant; 0: no limit. Days and months are those of UTC."""

    tokens_per_day: int = Field(0, ge=0)
    tokens_per_month: int = Field(0, ge=0)
    cost_usd_per_day: float = Field(0.0, ge=0, allow_inf_nan=False)
    cost_usd_per_month: float = Field(0.0, ge=0, allow_inf_nan=False)
    deliberations: int = Field(
        0, ge=0, description="accepted deliberations that have not ended, waiting ones included"
    )


class QuotaSettings(Section):
    """Quotas of tenants: docs/operating.md."""

    default: Quota = Field(Quota(), description="of each tenant that is not named below")
    tenants: Mapping[str, Quota] = Field(
        {}, description="by tenant; what is not set here is inherited from default"
    )

    @model_validator(mode="after")
    def _check_tenants(self) -> Self:
        for tenant in self.tenants:
            if not is_id(tenant):
                raise ValueError(
                    f"quotas.tenants.{tenant[:80]} is not a tenant: lower-case letters, digits and "
                    "'-', at most 63 characters"
                )
        return self

    def of(self, tenant: str) -> Quota:
        """Return the quotas of a tenant."""
        own = self.tenants.get(tenant, Quota())
        return self.default.model_copy(
            update={name: getattr(own, name) for name in own.model_fields_set}
        )
