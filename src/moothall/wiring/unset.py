"""Which tools lack a setting, so that nobody is offered them, and what would give it to them."""

from __future__ import annotations

from collections.abc import Mapping

from moothall.config import Settings
from moothall.tools import docker_tools

_DATABASES = ("postgres", "redis", "neo4j")


def unset_tools(settings: Settings, tenant: str) -> Mapping[str, str]:
    """Return, by the name of each tool that a tenant cannot use yet, the setting that is missing."""
    from moothall.toolkits.chromium import find_chromium

    missing = {}
    if not settings.http.search_url:
        missing["web.search"] = "MOOTHALL_HTTP__SEARCH_URL, the root of a SearXNG server, is not set"
    databases = settings.db.of(tenant)
    whose = f" in [db.tenants.{tenant}]" if tenant in settings.db.tenants else ""
    for server in _DATABASES:
        if getattr(databases, f"{server}_url") is None:
            missing[f"db.{server}"] = f"MOOTHALL_DB__{server.upper()}_URL is not set{whose}"
    if settings.docker.host is None:
        missing |= {spec.name: "MOOTHALL_DOCKER__HOST, unix:// and an engine's socket, is not set" for spec in docker_tools.SPECS}
    if find_chromium(settings.browser) is None:
        named = settings.browser.executable
        missing["browser.run"] = (
            f"MOOTHALL_BROWSER__EXECUTABLE {named} is no file"
            if named
            else "no Chromium is on PATH, nor is MOOTHALL_BROWSER__EXECUTABLE set"
        )
    return missing
