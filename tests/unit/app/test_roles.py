from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from moothall.app import preflight
from moothall.app.bus import ALL, embedded_parts, instance, parse_roles, roles_of
from moothall.config import BusSettings, GraphSettings, LlmSettings, Settings
from moothall.config.services import ServeSettings
from moothall.errors import ConfigurationError

FAR = BusSettings(url="nats://127.0.0.1:4222")


def test_roles_are_parsed_once_in_any_case_with_or_without_commas() -> None:
    assert parse_roles(["api, Page", "api", "hosts"]) == ("api", "page", "hosts")


@pytest.mark.parametrize(
    ("roles", "reason"),
    [(["api,kitchen"], "unknown role 'kitchen'; the roles are api, page"), ([" , "], "no role")],
)
def test_an_unknown_role_is_refused_with_the_valid_ones(roles: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        parse_roles(roles)


def test_all_roles_are_served_by_default() -> None:
    assert roles_of(Settings()) == ALL


def test_an_embedded_bus_needs_the_collector_and_hosts_roles() -> None:
    with pytest.raises(ConfigurationError, match="the roles collector, hosts would be missing"):
        roles_of(Settings(serve=ServeSettings(only=("api",))))
    without_page = Settings(serve=ServeSettings(only=("api", "collector", "hosts")))
    assert roles_of(without_page) == {"api", "collector", "hosts"}
    assert roles_of(Settings(bus=FAR, serve=ServeSettings(only=("page",)))) == {"page"}


def test_only_embedded_parts_use_the_data_directory() -> None:
    assert embedded_parts(Settings(), ALL) == ("bus", "graph", "model")
    shared = Settings(bus=FAR)
    assert (
        embedded_parts(shared, frozenset({"api", "page", "collector", "planning", "tools"})) == ()
    )
    assert embedded_parts(shared, frozenset({"graph"})) == ("graph",)
    assert embedded_parts(shared, frozenset({"hosts"})) == ("model",)
    remote = Settings(
        bus=FAR,
        graph=GraphSettings(url="neo4j://127.0.0.1"),
        llm=LlmSettings(base_url="http://127.0.0.1:8000/v1"),
    )
    assert embedded_parts(remote, ALL) == ()


def test_processes_on_a_bus_have_unique_names_and_reuse_freed_ones(
    tmp_path: Path,
) -> None:
    shared = Settings(bus=FAR, data_dir=tmp_path / "data")
    with ExitStack() as first, ExitStack() as second:
        names = [instance(shared, first), instance(shared, second)]
        assert len(set(names)) == 2
        first.close()
        with ExitStack() as restarted:
            assert instance(shared, restarted) == names[0]
    assert not instance(Settings(data_dir=tmp_path / "other"), ExitStack())


def test_numbers_are_assigned_in_order_and_released(tmp_path: Path) -> None:
    with (
        preflight.take_number(tmp_path) as first_number,
        preflight.take_number(tmp_path) as second_number,
    ):
        assert (first_number, second_number) == (1, 2)
        assert preflight.is_shared(tmp_path)
    assert not preflight.is_shared(tmp_path)
    with preflight.take_number(tmp_path) as reused_number:
        assert reused_number == 1
