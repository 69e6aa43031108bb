from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from moothall.app.gateway_rules import catalogue_of
from moothall.config import secret_values
from moothall.domain.tool import ToolCall, ToolStatus
from moothall.errors import ConfigurationError
from moothall.settings import load_settings
from moothall.toolkits.db import Databases, DbFamily, DbLimits, DbSettings
from moothall.toolkits.db.toolkit import (
    ANSWER_BYTES,
    DatabaseTools,
    Table,
    jsonable,
    server_url,
    size,
)
from support.tool_gateway import FakeWorkspace, in_seconds
from support.tools import CATALOGUE

ANYTHING: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(ANYTHING)
def test_any_value_from_a_server_becomes_json(value: Any) -> None:
    json.dumps(jsonable(value), allow_nan=False)


def test_a_deeply_nested_value_is_cut() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert "deeper than is shown" in json.dumps(jsonable(deep))


@given(
    st.lists(st.lists(st.text(max_size=300).map(lambda text: 60 * text), max_size=3), max_size=30)
)
def test_a_table_returns_a_bounded_number_of_rows(rows: list[list[str]]) -> None:
    table = Table(["a"], DbLimits(rows=10))
    added = [row for row in rows if not table.is_truncated and table.add(row)]
    assert table.output()["rows"] == added == rows[: len(added)]
    assert len(added) <= 10
    assert size(added) <= ANSWER_BYTES
    assert table.is_truncated is (len(added) < len(rows))


async def test_a_missing_setting_is_named() -> None:
    call = ToolCall("request-1", "db.redis", {"command": "GET", "args": ["a"]}, in_seconds(20))
    result = await DatabaseTools(DbSettings()).call(call, FakeWorkspace(), "local")
    assert (result.status, "MOOTHALL_DB__REDIS_URL is not set" in result.error) == (
        ToolStatus.ERROR,
        True,
    )


def test_a_url_with_another_scheme_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"db\.redis_url must be a URL that begins with redis://"
    ) as caught:
        DatabaseTools(
            DbSettings(
                tenants={"acme": Databases(redis_url=SecretStr("http://ann:hush-hush@host"))}
            )
        )
    assert "hush" not in caught.value.message
    with pytest.raises(ConfigurationError):
        server_url(DbSettings(neo4j_url=SecretStr("bolt://[")), "neo4j")


def test_a_tenant_with_its_own_servers_uses_no_others() -> None:
    db = DbFamily().own_settings(
        load_settings(
            db={
                "postgres_url": "postgresql://one",
                "tenants": {"acme": {"redis_url": "redis://:pass%20word@two"}},
            }
        )
    )
    assert [server_url(db.for_tenant("acme"), server) for server in ("postgres", "redis")] == [
        "",
        "redis://:pass%20word@two",
    ]
    assert server_url(db.for_tenant("other"), "postgres") == "postgresql://one"
    assert {"pass%20word", "pass word", "redis://:pass%20word@two"} <= set(secret_values(db))
    assert "pass" not in db.model_dump_json().replace("password", "")


def test_policies_can_say_which_databases_may_be_changed() -> None:
    changed = catalogue_of(load_settings(db={"write": True}))
    assert ("look" in CATALOGUE["db.redis"].tags, "change" in changed["db.redis"].tags) == (
        True,
        True,
    )
    assert changed["http.get"] is CATALOGUE["http.get"]
