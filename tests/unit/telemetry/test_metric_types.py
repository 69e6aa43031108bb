from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families

from moothall.api.http.server import serve_metrics
from moothall.config import MetricsSettings
from moothall.domain.event import Channel, Topic
from moothall.errors import BusUnavailable, ConfigurationError
from moothall.telemetry import aggregation, metrics
from moothall.telemetry.aggregation import Reports
from moothall.telemetry.metrics import MAX_LABEL_SETS, OTHER, MetricRegistry


def test_counters_gauges_and_histograms_count() -> None:
    registry = MetricRegistry()
    calls = registry.counter("calls_total", "…", "tool")
    busy = registry.gauge("busy", "…")
    duration = registry.histogram("took_seconds", "…", buckets=(1.0, 2.0))
    calls.add("a")
    calls.add("a", amount=2)
    with busy.track_inprogress():
        assert registry.snapshot()["busy"] == [[[], 1.0]]
    for value in (0.5, 1.0, 1.5, 99.0):
        duration.observe(value)
    assert registry.snapshot() == {
        "calls_total": [[["a"], 3.0]],
        "busy": [[[], 0.0]],
        "took_seconds": [[[], [2.0, 1.0, 1.0, 102.0]]],
    }


def test_a_wrong_number_of_labels_is_an_error() -> None:
    with pytest.raises(TypeError, match="has the labels"):
        MetricRegistry().counter("x", "…", "tool").add("a", "b")


def test_a_metric_name_can_be_registered_once() -> None:
    registry = MetricRegistry()
    registry.counter("x", "…")
    with pytest.raises(ValueError, match="already"):
        registry.gauge("x", "…")


def test_hostile_label_values_do_not_fill_the_memory() -> None:
    registry = MetricRegistry()
    calls, duration = (
        registry.counter("calls_total", "…", "model"),
        registry.histogram("took", "…", "model"),
    )
    for number in range(10_000):
        calls.add(f"{number}" + "x" * 10_000)
        duration.observe(1, f"{number}")
    assert len(calls.values) == len(duration.counts) == MAX_LABEL_SETS + 1
    assert sum(calls.values.values()) == 10_000
    assert calls.values[OTHER,] == 10_000 - MAX_LABEL_SETS
    assert max(len(label) for labels in calls.values for label in labels) <= 100


def test_a_gauge_can_be_computed_at_each_snapshot() -> None:
    registry = MetricRegistry()
    gauge = registry.gauge("under_way", "…")
    values = iter((1, 2))
    with registry.before_snapshot(lambda: gauge.set(next(values))):
        assert [registry.snapshot()["under_way"] for _ in range(2)] == [[[[], 1]], [[[], 2]]]
    assert registry.snapshot()["under_way"] == [[[], 2]]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_report_replaces_the_previous_one_and_a_silent_process_is_forgotten() -> None:
    clock = Clock()
    reports = Reports(5.0, clock)
    for value in (3, 1):  # the process restarted
        reports.add(
            {"process": "host-1", "figures": {"moothall_model_retries_total": [[[], value]]}}
        )
    reports.add({"process": "serve", "figures": {"moothall_model_retries_total": [[[], 99]]}})
    snapshots = reports.snapshots("serve")
    assert snapshots["host-1"] == {"moothall_model_retries_total": [[[], 1]]}
    # This process reports nothing.
    assert snapshots["serve"] != {"moothall_model_retries_total": [[[], 99]]}
    clock.now = 31
    assert set(reports.snapshots("serve")) == {"serve"}


ROW = [["files.read", "success"], 1.0]


@pytest.mark.parametrize(
    "row",
    [
        "row",
        [],
        [["files.read"], 1.0],
        [["files.read", 1], 1.0],
        [["files.read", "success"], "1"],
        [["files.read", "success"], True],
        [["files.read", "success"], math.nan],
        [["files.read", "success"], [1.0]],
        [["files.read", "success"], 1.0, 2.0],
    ],
)
def test_invalid_rows_of_a_report_are_left_out(row: object) -> None:
    reports = Reports(5.0)
    reports.add(
        {
            "process": "host-1",
            "figures": {"moothall_tool_calls_total": [row, ROW], "invented": [ROW]},
        }
    )
    assert reports.snapshots("serve")["host-1"] == {
        "moothall_tool_calls_total": [ROW],
        "invented": [],
    }


json = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["host-1", "moothall_tool_calls_total"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
)


@given(st.dictionaries(st.sampled_from(["process", "figures"]), json), json)
def test_any_report_is_handled(data: dict[str, Any], rows: Any) -> None:
    reports = Reports(5.0)
    reports.add(data)
    reports.add({"process": "host-1", "figures": {"moothall_tool_call_seconds": rows}})
    assert "serve" in reports.snapshots("serve")


def test_any_number_of_processes_does_not_fill_the_memory() -> None:
    reports = Reports(5.0)
    for number in range(3000):
        reports.add({"process": f"host-{number}", "figures": {}})
    assert len(reports.snapshots("serve")) == 1001


async def test_the_next_report_makes_up_for_one_that_could_not_be_sent() -> None:
    payloads: list[Mapping[str, Any]] = []

    async def signal(topic: Topic, data: Mapping[str, Any]) -> None:
        payloads.append({"topic": topic, **data})
        if len(payloads) == 1:
            raise BusUnavailable("away")

    with aggregation.watch():
        task = asyncio.ensure_future(aggregation.report(signal, "host-7", 0.001))
        while len(payloads) < 3:
            await asyncio.sleep(0.001)
        task.cancel()
    assert {item["topic"] for item in payloads} == {Channel.FIGURES.of("host-7")}
    reports = Reports(5.0)
    reports.add(payloads[-1])
    assert (
        reports.snapshots("serve")["host-7"]["moothall_process_resident_memory_bytes"][0][1] > 1e6
    )


async def do_nothing() -> None:
    """Refresh nothing before a snapshot."""


@asynccontextmanager
async def page(
    settings: MetricsSettings, reports: Reports, **headers: str
) -> AsyncIterator[aiohttp.ClientResponse]:
    async with (
        serve_metrics(settings, lambda: reports.snapshots("serve"), do_nothing) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics", headers=headers) as response,
    ):
        yield response


async def test_the_page_shows_every_metric_of_every_process() -> None:
    reports = Reports(5.0)
    reports.add(
        {
            "process": "host-1",
            "figures": {
                "moothall_tool_calls_total": [ROW],
                "moothall_tool_memory_bytes": [[["files.read"], [1, 0, 2, 0, 0, 0, 0, 1, 9e9]]],
            },
        }
    )
    async with page(MetricsSettings(port=0), reports) as response:
        read = text_string_to_metric_families(await response.text())
        families = {family.name: family for family in read}
    assert {name.removesuffix("_total") for name in metrics.REGISTRY.figures} == set(families)
    (calls,) = [
        sample
        for sample in families["moothall_tool_calls"].samples
        if sample.labels["process"] == "host-1"
    ]
    assert (calls.labels["tool"], calls.labels["status"], calls.value) == (
        "files.read",
        "success",
        1.0,
    )
    memory = [
        sample
        for sample in families["moothall_tool_memory_bytes"].samples
        if sample.labels["process"] == "host-1"
    ]
    assert [sample.value for sample in memory if sample.name.endswith("_bucket")] == [
        1,
        1,
        3,
        3,
        3,
        3,
        3,
        4,
    ]
    assert {sample.name: sample.value for sample in memory}["moothall_tool_memory_bytes_sum"] == 9e9


async def test_the_page_supports_openmetrics() -> None:
    async with page(
        MetricsSettings(port=0), Reports(5.0), Accept="application/openmetrics-text; version=1.0.0"
    ) as response:
        assert "openmetrics" in response.headers["Content-Type"]
        text = await response.text()
    families = list(open_families(text))  # type: ignore[no-untyped-call]
    assert len(families) == len(metrics.REGISTRY.figures)


async def test_a_configured_port_must_be_free_and_the_default_port_may_be_in_use() -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port}.*metrics\.port"):
            async with serve_metrics(MetricsSettings(port=port), dict, do_nothing):
                pass
    async with (
        serve_metrics(MetricsSettings(), dict, do_nothing) as first,
        serve_metrics(MetricsSettings(), dict, do_nothing) as second,
    ):
        assert (first in {0, 9464}, second) == (True, 0)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9464", 200),
        ("127.0.0.1", 200),
        ("[::1]:1", 200),
        ("evil.example", 403),
        ("evil.example:9464", 403),
        ("[", 403),
    ],
)
async def test_on_loopback_only_loopback_host_names_are_accepted(host: str, status: int) -> None:
    async with page(MetricsSettings(port=0), Reports(5.0), Host=host) as response:
        assert response.status == status


async def test_beyond_loopback_a_token_is_required() -> None:
    with pytest.raises(ConfigurationError, match=r"metrics\.token"):
        async with serve_metrics(MetricsSettings(host="0.0.0.0", port=0), dict, do_nothing):  # noqa: S104 - that it is refused
            pass
    settings = MetricsSettings.model_validate({"port": 0, "token": "scraper"})
    for given_token, status in (
        ("", 401),
        ("Bearer wrong", 401),
        ("Basic scraper", 401),
        ("Bearer scraper", 200),
    ):
        async with page(settings, Reports(5.0), Authorization=given_token) as response:
            assert response.status == status


async def test_a_bus_that_does_not_answer_does_not_delay_the_page() -> None:
    async def for_ever() -> None:
        await asyncio.Event().wait()

    async with (
        asyncio.timeout(30),
        serve_metrics(MetricsSettings(port=0), dict, for_ever, measure_seconds=0.05) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as response,
    ):
        assert response.status == 200
