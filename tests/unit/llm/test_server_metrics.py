"""vLLM's metrics are read; missing ones are reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.errors import ConfigurationError, ModelReplyInvalid
from moothall.llm.requests import read_metrics
from moothall.testing.server_contract import talking

RECEIVED = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
vllm:prompt_tokens_total{engine="0"} 1.2e3 1795312142
vllm:prompt_tokens_cached_total{engine="0"} 800.0
"""


def test_metrics_of_engines_are_added() -> None:
    metrics = read_metrics(RECEIVED)
    assert (metrics.running, metrics.waiting, metrics.cache_used) == (4.0, 0.0, 0.5)
    assert (metrics.prompt_tokens, metrics.cached_tokens) == (1200.0, 800.0)
    assert metrics.missing == ()


def test_unreported_metrics_are_missing_and_not_zero() -> None:
    metrics = read_metrics(RECEIVED.replace("vllm:prompt_tokens_cached_total", "vllm:renamed"))
    assert metrics.cached_tokens is None
    assert metrics.missing == ("vllm:prompt_tokens_cached_total",)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "many", "", "0x10"])
def test_invalid_values_are_missing(value: str) -> None:
    assert "vllm:num_requests_running" in read_metrics(f"vllm:num_requests_running {value}").missing


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    assert len(read_metrics(f"vllm:num_requests_running{text}").missing) >= 4


async def test_only_vllm_has_metrics() -> None:
    async with talking(lambda _b, _h: "x") as (model, _):
        assert await model.server_metrics() is None
    async with talking(lambda _b, _h: "x", {"owner": "vllm", "metrics": RECEIVED}) as (model, _):
        metrics = await model.server_metrics()
    assert metrics is not None
    assert metrics.running == 4


async def test_a_missing_metric_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    renamed = RECEIVED.replace("vllm:prompt_tokens_cached_total", "vllm:renamed")
    async with talking(lambda _b, _h: "x", {"owner": "vllm", "metrics": renamed}) as (model, _):
        for _ in range(2):
            await model.server_metrics()
    assert capsys.readouterr().err.count("does not report vllm:prompt_tokens_cached_total") == 1


async def test_a_server_without_metrics_is_an_error() -> None:
    async with talking(lambda _b, _h: "x", {"owner": "vllm"}) as (model, _):
        with pytest.raises(ConfigurationError, match="404"):
            await model.server_metrics()


async def test_endless_metrics_are_refused() -> None:
    async with talking(
        lambda _b, _h: "x", {"owner": "vllm", "metrics": "# nothing\n" * 500_000}
    ) as (model, _):
        with pytest.raises(ModelReplyInvalid, match="sent more than"):
            await model.server_metrics()
