"""What `moothall doctor` says of the parts that tools use outside the workspace. None of them is needed; one that is set must work."""

from __future__ import annotations

from collections.abc import AsyncIterator

from moothall.cli.finding import Finding
from moothall.config import Db, Docker, Settings
from moothall.domain.identity import LOCAL
from moothall.domain.secrets import scrub
from moothall.errors import ConfigurationError, MoothallError


async def outside(settings: Settings) -> AsyncIterator[Finding]:
    """Try each part that is configured."""
    async for finding in _databases(settings.db):
        yield finding
    yield await _browser(settings)
    yield await _docker(settings.docker)


async def _databases(settings: Db) -> AsyncIterator[Finding]:
    from moothall.toolkits.databases import TRIALS, DatabaseTools

    try:
        tools = DatabaseTools(settings)
    except ConfigurationError as error:
        yield Finding("tools db.*", ok=False, detail=error.message, mend="see docs/tools.md, Databases")
        return
    for tenant in (LOCAL.tenant, *sorted(settings.tenants)):
        for server, trial in TRIALS.items():
            part = f"tool db.{server}" + (f" of {tenant}" if tenant in settings.tenants else "")
            if getattr(settings.of(tenant), f"{server}_url") is None:
                if tenant not in settings.tenants:
                    yield Finding(part, ok=True, detail=f"not offered: MOOTHALL_DB__{server.upper()}_URL is not set")
                continue
            try:
                await tools.ask(server, trial, tenant)
            except MoothallError as error:
                more = scrub(str(error.__cause__)) if error.__cause__ else ""
                mend = "see docs/tools.md, Databases"
                yield Finding(part, ok=False, detail=" ".join(f"{error.message} {more}".split()), mend=mend)
            else:
                yield Finding(part, ok=True, detail="answers; " + ("may be written to" if settings.write else "read-only"))


async def _browser(settings: Settings) -> Finding:
    from moothall.toolkits.chromium import chromium, find_chromium
    from moothall.toolkits.destinations import Destinations

    part = "tool browser.run"
    mend = "apt-get install chromium, or set MOOTHALL_BROWSER__EXECUTABLE"
    program = find_chromium(settings.browser)
    if program is None and settings.browser.executable is None:
        return Finding(part, ok=True, detail=f"not offered: no Chromium on PATH ({mend})")
    try:
        async with chromium(settings.browser, settings.sandbox, Destinations(), lambda _method, _told: None) as running:
            version = await running.tools.call("Browser.getVersion")
    except MoothallError as error:
        return Finding(part, ok=False, detail=error.message, mend=mend)
    detail = (
        f"{version.get('product')}, in the sandbox of a workspace without network but its proxy; its own sandbox is off in there"
    )
    return Finding(part, ok=True, detail=detail)


async def _docker(settings: Docker) -> Finding:
    from moothall.toolkits.engine import engine_at

    part = "tools docker.*"
    if settings.host is None:
        return Finding(part, ok=True, detail="not offered: MOOTHALL_DOCKER__HOST is not set")
    try:
        async with engine_at(settings.host) as engine:
            version = await engine.ask("GET", "/version")
            limits = await engine.ask("GET", "/info")
    except MoothallError as error:
        mend = "see that the engine runs and that its socket may be opened by this user"
        more = str(error.__cause__ or "")
        return Finding(part, ok=False, detail=" ".join(f"{error.message} {more}".split()), mend=mend)
    detail = f"engine {version.get('Version')} at {settings.host}"
    lacks = [name for name in ("MemoryLimit", "PidsLimit", "CpuCfsQuota") if not limits.get(name)]
    if lacks:
        mend = "give the engine those cgroup controllers; without them containers are not bounded"
        return Finding(part, ok=False, detail=f"{detail} cannot enforce {', '.join(lacks)}", mend=mend)
    return Finding(part, ok=True, detail=detail)
