"""The methods of OrchestratorService for the quotas of tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moothall.api.dependencies import ApiDependencies
from moothall.api.identity import caller
from moothall.api.protobuf import to_message
from moothall.authorization.approvals import refuse_unless_operator
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb


class QuotaCalls:
    """The methods for quotas. Operators name any tenant, other callers only their own."""

    _dependencies: ApiDependencies

    async def GetQuotas(self, request: pb.GetQuotasRequest, context: Any) -> pb.GetQuotasResponse:
        """Return the quotas of a tenant, their use, and the last changes."""
        tenant, quotas = _tenant_of(request.tenant), self._dependencies.quotas
        current = await quotas.read(tenant)
        return pb.GetQuotasResponse(
            tenant=tenant,
            quotas=_to_quotas(current.quota.model_dump()),
            own=_to_quotas(current.values),
            uses=[
                to_message(pb.QuotaUse, use, resets=use.resets.isoformat())
                for use in await quotas.list_uses(tenant)
            ],
            changes=[
                pb.QuotaChange(actor=one.actor, time=one.time, quotas=_to_quotas(one.values))
                for one in current.changes
            ],
        )

    async def SetQuotas(self, request: pb.SetQuotasRequest, context: Any) -> pb.SetQuotasResponse:
        """Set the quotas of a tenant that differ from the settings."""
        values = {field.name: value for field, value in request.quotas.ListFields()}
        changed = await self._dependencies.quotas.change(
            _tenant_of(request.tenant), values, caller()
        )
        return pb.SetQuotasResponse(quotas=_to_quotas(changed.quota.model_dump()))


def _tenant_of(name: str) -> str:
    """Return the tenant that a request is about. Raises `Refused`."""
    who = caller()
    if name and name != who.tenant:
        refuse_unless_operator(who)
    return name or who.tenant


def _to_quotas(values: Mapping[str, float]) -> pb.Quotas:
    message = pb.Quotas()
    for name, value in values.items():
        is_whole = isinstance(getattr(message, name), int)
        setattr(message, name, int(value) if is_whole else value)
    return message
