from __future__ import annotations

from pathlib import Path

from moothall.app.gateway_rules import open_rules
from moothall.authorization.audit import AuditLog
from moothall.authorization.gateway import ToolGateway
from moothall.domain.tool import Grant, ToolStatus
from moothall.settings import load_settings, unset_tools
from moothall.testing.bus import MemoryBus
from support.tool_gateway import App, Facts, tool_call


async def test_a_tool_without_its_setting_is_not_offered_and_a_call_names_the_setting(
    tmp_path: Path,
) -> None:
    settings = load_settings(
        data_dir=tmp_path / "data",
        db={
            "redis_url": "redis://127.0.0.1:1",
            "tenants": {"acme": {"neo4j_url": "bolt://127.0.0.1:1"}},
        },
    )
    async with AuditLog(tmp_path, "host-1") as audit, open_rules(settings, MemoryBus()) as rules:
        app = App(tmp_path, audit)
        app.tool_gateway = ToolGateway(audit, Facts().publish, rules)
        grant = Grant(tools=("db.*",))
        assert [spec.name for spec in app.tool_gateway.list_tools("local", grant)] == ["db.redis"]
        assert [spec.name for spec in app.tool_gateway.list_tools("acme", grant)] == ["db.neo4j"]
        seat = app.seat(grant=grant)
        missing = await app.tool_gateway.call(seat, tool_call("db.postgres", query="select 1"))
        assert missing.status is ToolStatus.BLOCKED
        assert "MOOTHALL_DB__POSTGRES_URL is not set" in missing.error
        parked = await app.tool_gateway.call(
            seat, tool_call("db.redis", number=2, command="GET", args=["a"])
        )
        assert parked.status is ToolStatus.PARKED


def test_no_role_has_tools_with_outside_access(tmp_path: Path) -> None:
    from moothall.authorization.rules import grant_for
    from moothall.tools.catalogue import list_tools

    for role in ("dev", "qa", "data", "devops", "architect", "po"):
        assert not any(spec.outside for spec in list_tools(grant_for(role)))
    assert "web.search" in unset_tools(load_settings(data_dir=tmp_path), "local")
