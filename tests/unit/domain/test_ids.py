"""Keys, which distinguish equal ids of different tenants within the server."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.event import Channel
from moothall.domain.ids import ID_PATTERN, LOCAL_TENANT, check_id, check_key, is_id, key_of, own_id
from moothall.errors import InvalidRequest
from moothall.events import registry
from moothall.repositories.delivery import check_branch

IDS = st.from_regex(ID_PATTERN, fullmatch=True)
TENANTS = st.one_of(st.just(LOCAL_TENANT), IDS)


@given(IDS, TENANTS, IDS, TENANTS)
def test_ids_of_two_tenants_never_share_a_key(
    first: str, first_key: str, second: str, second_key: str
) -> None:
    assert (key_of(first, first_key) == key_of(second, second_key)) == (
        (first, first_key) == (second, second_key)
    )


@given(IDS, TENANTS, st.sampled_from(["", "/agent-dev-001/propose/0.1", "-agent-dev-001"]))
def test_an_id_is_restored_from_its_key_only_for_its_tenant(
    value: str, tenant: str, rest: str
) -> None:
    key = key_of(value, tenant)
    assert own_id(key + rest, tenant) == value + rest
    assert is_id(key) == (tenant == LOCAL_TENANT)
    if tenant != LOCAL_TENANT:
        assert own_id(key, LOCAL_TENANT) == own_id(key, f"{tenant}x"[-63:]) == key


@given(IDS, TENANTS)
def test_a_key_is_safe_in_every_place(value: str, tenant: str) -> None:
    key = check_key(key_of(value, tenant), "task_id")
    assert registry.subject(Channel.RESULTS.of(key)) == f"agent.results.{key}"
    assert check_branch(f"moothall/{key}").endswith(key)
    assert re.fullmatch(r"[-/_=.a-zA-Z0-9]+", key)  # characters that a bucket of the bus accepts
    assert len(key) < 128
    assert key_of("x", LOCAL_TENANT) == "x"  # the keys of a single tenant stay the same


@pytest.mark.parametrize(
    "invalid_key",
    ["", "_x", "x_", "a_b_c", "A_b", "a b", "a/b", "../x", "x" * 64, f"a_{'x' * 64}", "a_b\n"],
)
def test_an_invalid_key_is_reported(invalid_key: str) -> None:
    with pytest.raises(InvalidRequest, match="is neither an id nor TENANT_ID"):
        check_key(invalid_key, "task_id")
    with pytest.raises(InvalidRequest):
        check_id(invalid_key, "task_id")
