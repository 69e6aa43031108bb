from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.authorization.checks import Stopped
from moothall.authorization.limits import Rates, ResultCache, SharedRates, ToolCircuits, cache_key
from moothall.domain.tool import Grant, ToolResult, ToolStatus
from moothall.errors import BusUnavailable
from moothall.testing.bus import MemoryBus
from moothall.tools.schemas import Arguments, Output
from moothall.tools.spec import Caps, Danger, Rate, Requirements, ToolSpec
from support.tool_gateway import open_app, tool_call
from support.tools import CATALOGUE


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def spec_of(**changes: Any) -> ToolSpec:
    fields: dict[str, Any] = {
        "name": "web.look",
        "summary": "look",
        "arguments": Arguments,
        "output": Output,
        "danger": Danger.READ,
        "caps": Caps(5),
        "requirements": Requirements(network_access=True),
        "cache_seconds": 60.0,
    }
    return ToolSpec(**fields | changes)


PUSH = CATALOGUE["git.push"]


def test_the_eleventh_dangerous_call_in_a_minute_is_refused() -> None:
    clock = Clock()
    rates = Rates(clock)
    for _ in range(10):
        assert rates.count_call(("local", "git.push"), PUSH) == 0
        clock.now += 1
    assert rates.count_call(("local", "git.push"), PUSH) == 50
    assert rates.count_call(("other", "git.push"), PUSH) == 0
    clock.now += 50
    assert rates.count_call(("local", "git.push"), PUSH) == 0
    assert rates.count_call(("local", "git.push"), PUSH) > 0


def test_the_hourly_rate_applies_too() -> None:
    clock = Clock()
    rates, spec = Rates(clock), spec_of(own_rate=Rate(2, 3))
    assert [rates.count_call(("a",), spec) == 0 for _ in range(3)] == [True, True, False]
    clock.now += 60
    assert [rates.count_call(("a",), spec) == 0 for _ in range(2)] == [True, False]
    clock.now += 60
    assert rates.count_call(("a",), spec) == 3600 - 120


@given(st.lists(st.floats(0, 30), max_size=60), st.integers(1, 5))
def test_no_minute_has_more_calls_than_allowed(pauses: list[float], limit: int) -> None:
    clock = Clock()
    rates, spec, admitted = Rates(clock), spec_of(own_rate=Rate(limit)), []
    for pause in pauses:
        clock.now += pause
        if rates.count_call(("a",), spec) == 0:
            admitted.append(clock.now)
    for start in admitted:
        assert sum(start <= call < start + 60 for call in admitted) <= limit


def call(breakers: ToolCircuits, status: ToolStatus, spec: ToolSpec = PUSH) -> ToolStatus:
    try:
        with breakers.watch_call(("local",), spec) as record_status:
            record_status(status)
    except Stopped as stopped:
        return stopped.status
    return status


def test_five_consecutive_failures_open_the_circuit_and_a_success_closes_it() -> None:
    clock = Clock()
    breakers = ToolCircuits(5, 30, clock)
    for _ in range(4):
        assert call(breakers, ToolStatus.TIMEOUT) is ToolStatus.TIMEOUT
    assert call(breakers, ToolStatus.SUCCESS) is ToolStatus.SUCCESS
    for status in (
        ToolStatus.TIMEOUT,
        ToolStatus.ERROR,
        ToolStatus.MEMORY,
        ToolStatus.TIMEOUT,
        ToolStatus.ERROR,
    ):
        assert call(breakers, status) is status
    assert call(breakers, ToolStatus.SUCCESS) is ToolStatus.CIRCUIT_OPEN
    clock.now += 31
    with breakers.watch_call(("local",), PUSH) as record_status:
        # One tries, the others wait.
        assert call(breakers, ToolStatus.SUCCESS) is ToolStatus.CIRCUIT_OPEN
        record_status(ToolStatus.TIMEOUT)
    clock.now += 31
    assert call(breakers, ToolStatus.SUCCESS) is ToolStatus.CIRCUIT_OPEN  # the pause has doubled
    clock.now += 31
    assert call(breakers, ToolStatus.SUCCESS) is ToolStatus.SUCCESS
    assert call(breakers, ToolStatus.SUCCESS) is ToolStatus.SUCCESS


def test_an_exception_counts_as_a_failure_except_for_cancels_and_refusals() -> None:
    breakers = ToolCircuits(1, 30, Clock())
    with pytest.raises(Stopped), breakers.watch_call(("a",), PUSH):
        raise Stopped(ToolStatus.BUDGET_EXCEEDED, "all used")
    with pytest.raises(KeyboardInterrupt), breakers.watch_call(("a",), PUSH):
        raise KeyboardInterrupt
    with breakers.watch_call(("a",), PUSH):
        pass
    with pytest.raises(OSError, match="gone"), breakers.watch_call(("a",), PUSH):
        raise OSError("gone")
    with pytest.raises(Stopped, match="failed 1 times in a row"), breakers.watch_call(("a",), PUSH):
        pass


def test_a_missing_file_does_not_count_as_a_failure() -> None:
    breakers = ToolCircuits(1, 30, Clock())
    read = CATALOGUE["files.read"]
    assert call(breakers, ToolStatus.ERROR, read) is ToolStatus.ERROR
    assert call(breakers, ToolStatus.SUCCESS, read) is ToolStatus.SUCCESS


def result(status: ToolStatus = ToolStatus.SUCCESS, text: str = "x") -> ToolResult:
    return ToolResult("r-1", "web.look", status, {"text": text})


def test_results_are_cached_as_the_catalogue_says_and_failures_never() -> None:
    clock = Clock()
    cache, spec = ResultCache(1000, clock), spec_of()
    cache.put("a", spec, result())
    cache.put("b", spec, result(ToolStatus.ERROR))
    cache.put("c", spec_of(cache_seconds=0), result())
    assert cache.get("a") == result()
    assert cache.get("b") is None
    assert cache.get("c") is None
    clock.now += 60
    assert cache.get("a") is None


def test_the_cache_size_is_limited() -> None:
    cache, spec = ResultCache(1000, Clock()), spec_of()
    for number in range(10):
        cache.put(str(number), spec, result(text="x" * 300))
    assert [number for number in range(10) if cache.get(str(number))] == [7, 8, 9]
    cache.put("big", spec, result(text="x" * 5000))
    assert cache.get("big") is None


_CALLS = st.tuples(
    st.sampled_from(["a", "b", "ab"]),
    st.sampled_from(["ws-1", "ws-2", "bws-1"]),
    st.sampled_from([("web.look", "1"), ("web.look", "2"), ("web.see", "1")]),
    st.dictionaries(
        st.sampled_from(["url", "u"]), st.text(max_size=3) | st.integers(0, 2), max_size=2
    ),
)


@given(first_call=_CALLS, second_call=_CALLS, files=st.booleans())
def test_two_calls_share_a_cache_key_only_if_they_are_equal(
    first_call: Any, second_call: Any, *, files: bool
) -> None:
    needs = Requirements(file_system="read") if files else Requirements(network_access=True)

    def key(of: Any) -> str:
        tenant, workspace, (name, version), arguments = of
        return cache_key(
            tenant, workspace, spec_of(name=name, version=version, requirements=needs), arguments
        )

    def identity(of: Any) -> Any:
        tenant, workspace, tool, arguments = of
        return (tenant, workspace if files else "", tool, arguments)

    assert (key(first_call) == key(second_call)) is (identity(first_call) == identity(second_call))


def test_a_cached_result_is_not_changed_by_its_readers() -> None:
    cache, spec = ResultCache(1000, Clock()), spec_of()
    cache.put("a", spec, result())
    cached = cache.get("a")
    assert cached is not None
    assert replace(cached, request_id="r-2").request_id == "r-2"
    assert cache.get("a") == result()


async def test_all_gateways_on_one_bus_share_the_rate_of_outside_calls(
    tmp_path: Path,
) -> None:
    bus = MemoryBus()
    statuses: list[ToolStatus] = []
    async with AsyncExitStack() as stack:
        apps = [
            await stack.enter_async_context(
                open_app(tmp_path / str(number), rates=SharedRates(bus.bucket("rates")))
            )
            for number in range(3)
        ]

        async def push(number: int) -> None:
            app = apps[number % 3]
            grant = Grant(("git.*", "files.*"))
            result = await app.tool_gateway.call(
                app.seat(grant=grant), tool_call("git.push", number=number, branch="x")
            )
            statuses.append(result.status)

        async with asyncio.TaskGroup() as group:
            for number in range(24):
                group.create_task(push(number))
        assert Counter(statuses) == {ToolStatus.SUCCESS: 10, ToolStatus.RATE_LIMITED: 14}
        assert sum(len(app.workspace.calls) for app in apps) == 10
        # Calls that stay in a workspace need no decision.
        entries_before = await bus.bucket("rates").entries()
        assert (
            await apps[0].tool_gateway.call(apps[0].seat(), tool_call(path="a"))
        ).status is ToolStatus.SUCCESS
        assert await bus.bucket("rates").entries() == entries_before


async def test_shared_rate_windows_slide(tmp_path: Path) -> None:
    del tmp_path
    now = 1000.0
    rates = SharedRates(MemoryBus().bucket("rates"), lambda: now)
    for _ in range(10):
        assert await rates.count_call("local", PUSH) == 0
        now += 2
    assert await rates.count_call("local", PUSH) == 40
    assert await rates.count_call("elsewhere", PUSH) == 0
    now = 1060.0
    assert [await rates.count_call("local", PUSH) == 0 for _ in range(2)] == [True, False]
    now = 1062.0
    assert await rates.count_call("local", PUSH) == 0


async def test_nothing_is_delivered_while_the_bus_is_down(tmp_path: Path) -> None:
    class Away:
        async def get_with_revision(self, key: str) -> Any:
            raise BusUnavailable(f"no {key}")

    bucket: Any = Away()
    async with open_app(tmp_path, rates=SharedRates(bucket)) as app:
        seat = app.seat(grant=Grant(("git.*",)))
        result = await app.tool_gateway.call(seat, tool_call("git.push", branch="x"))
    assert (result.status, app.workspace.calls) == (ToolStatus.RATE_LIMITED, [])
