from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from moothall.app.gateway_rules import open_rules
from moothall.authorization.audit import AuditLog
from moothall.authorization.gateway import ToolGateway
from moothall.config import read_settings
from moothall.domain.tool import Grant, ToolStatus
from moothall.errors import ConfigurationError
from moothall.settings import FAMILIES, load_settings, settings_with, unset_tools
from moothall.testing.bus import MemoryBus
from support.clock.family import ClockFamily
from support.tool_gateway import App, Facts, tool_call

WITH_CLOCK = (*FAMILIES, ClockFamily())


async def test_a_family_is_added_with_a_folder_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOOTHALL_CLOCK__TIME", "noon")
    with pytest.raises(ConfigurationError, match="MOOTHALL_CLOCK__TIME is not a setting"):
        load_settings()
    settings = read_settings(settings_with(WITH_CLOCK), data_dir=tmp_path / "data")
    async with (
        AuditLog(tmp_path, "host-1") as audit,
        open_rules(settings, MemoryBus(), WITH_CLOCK) as rules,
    ):
        app = App(tmp_path, audit)
        app.tool_gateway = ToolGateway(audit, Facts().publish, rules)
        assert [spec.name for spec in app.tool_gateway.list_tools("local", Grant(("*",)))][
            -1
        ] == "clock.now"
        result = await app.tool_gateway.call(
            app.seat(grant=Grant(("clock.*",))), tool_call("clock.now")
        )
        assert (result.status, dict(result.output)) == (
            ToolStatus.SUCCESS,
            {"time": "noon"},
        ), result.error
        await rules.close_workspace("ws-1")
    assert [finding.detail async for finding in WITH_CLOCK[-1].examine(settings)] == ["noon"]


def test_a_family_reports_what_it_lacks(tmp_path: Path) -> None:
    settings = read_settings(settings_with(WITH_CLOCK), data_dir=tmp_path)
    assert (
        unset_tools(settings, "local", WITH_CLOCK)["clock.now"] == "MOOTHALL_CLOCK__TIME is not set"
    )


def test_no_two_families_share_settings_or_tools() -> None:
    settings = load_settings()
    sections = [family.section for family in FAMILIES]
    names = [spec.name for family in FAMILIES for spec in family.specs(settings)]
    assert (len(set(sections)), len(set(names))) == (len(sections), len(names))


def test_settings_sent_to_hosts_include_the_sections_of_families() -> None:
    settings = load_settings(http={"allow": ["example.org"]}, docker={"network": "tests"})
    received_settings = pickle.loads(pickle.dumps(settings))  # noqa: S301 - our own
    assert json.loads(received_settings.model_dump_json())["http"]["allow"] == ["example.org"]
    assert received_settings == settings
