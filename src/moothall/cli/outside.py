"""What `moothall doctor` says of the parts that tools use outside the workspace. None of them is needed; one that is set must work."""

from __future__ import annotations

from collections.abc import AsyncIterator

from moothall.cli.finding import Finding
from moothall.config import Db, Settings
from moothall.domain.identity import LOCAL
from moothall.domain.secrets import scrub
from moothall.errors import ConfigurationError, MoothallError


async def outside(settings: Settings) -> AsyncIterator[Finding]:
    """Try each part that is configured."""
    async for finding in _databases(settings.db):
        yield finding


async def _databases(settings: Db) -> AsyncIterator[Finding]:
    from moothall.toolkits.databases import TRIALS, DatabaseTools

    try:
        tools = DatabaseTools(settings)
    except ConfigurationError as error:
        yield Finding("tools db.*", ok=False, detail=error.message, mend="see docs/tools.md, Databases")
        return
    for tenant in (LOCAL.tenant, *sorted(settings.tenants)):
        for server, trial in TRIALS.items():
            if getattr(settings.of(tenant), f"{server}_url") is None:
                continue
            part = f"tool db.{server}" + (f" of {tenant}" if tenant in settings.tenants else "")
            try:
                await tools.ask(server, trial, tenant)
            except MoothallError as error:
                more = scrub(str(error.__cause__)) if error.__cause__ else ""
                mend = "see docs/tools.md, Databases"
                yield Finding(part, ok=False, detail=" ".join(f"{error.message} {more}".split()), mend=mend)
            else:
                yield Finding(part, ok=True, detail="answers; " + ("may be written to" if settings.write else "read-only"))
