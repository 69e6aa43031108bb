"""The metrics endpoint for Prometheus."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any, cast

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from moothall import config, telemetry
from moothall.api.asgi import ListenAddress, ServerLimits, serve_asgi
from moothall.api.http.middleware import host_name
from moothall.api.identity import is_loopback
from moothall.errors import ConfigurationError
from moothall.telemetry.metrics import REGISTRY, AnyMetric, Histogram, Snapshot

log = telemetry.get_logger(__name__)

DEFAULT_PORT = 9464
_MEASURE_TIMEOUT_SECONDS = 3.0

Snapshots = Callable[[], Mapping[str, Snapshot]]


@asynccontextmanager
async def serve_metrics(
    settings: config.MetricsSettings,
    snapshots: Snapshots,
    measure: Callable[[], Awaitable[None]],
    *,
    measure_seconds: float = _MEASURE_TIMEOUT_SECONDS,
) -> AsyncIterator[int]:
    """Serve `/metrics` until the context ends. Yields the port; 0, after a log message, if the
    default port is taken.

    `measure` updates the metrics that are not counted by events, before each response and for at
    most `measure_seconds`. Raises `ConfigurationError` for a configured port that is taken, and for
    a non-loopback address without a token.
    """
    if settings.token is None and not is_loopback(settings.host):
        raise ConfigurationError(
            f"metrics.host {settings.host} is not a loopback address: set metrics.token "
            "(MOOTHALL_METRICS__TOKEN), or bind 127.0.0.1"
        )

    async def answer(request: Request) -> Response:
        host_header = request.headers.get("host", "")
        if is_loopback(settings.host) and not is_loopback(
            host_name(host_header)
        ):  # DNS rebinding by a foreign page
            return PlainTextResponse("the Host header is not a name of this server\n", 403)
        if settings.token is not None and not _has_token(
            request, settings.token.get_secret_value()
        ):
            return PlainTextResponse(
                "a bearer token is needed\n", 401, {"WWW-Authenticate": "Bearer"}
            )
        try:
            async with asyncio.timeout(measure_seconds):
                await measure()
        except TimeoutError:
            log.info("bus or model servers did not report in time; their last metrics are served")
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        page = encode(cast("CollectorRegistry", _Families(snapshots())))
        return Response(page, headers={"Content-Type": content_type})

    address = ListenAddress("figures", "metrics", settings.host, settings.port, DEFAULT_PORT)
    async with serve_asgi(
        Starlette(routes=[Route("/metrics", answer)]), address, ServerLimits(connections=100)
    ) as port:
        yield port


def _has_token(request: Request, token: str) -> bool:
    scheme, _, sent_token = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        sent_token.strip().encode(), token.encode()
    )


class _Families:
    """Snapshots as Prometheus's client library expects them: each metric once, with its process as
    the last label.
    """

    def __init__(self, snapshots: Mapping[str, Snapshot]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        """Yield a family for every metric, also for those without a value."""
        for name, figure in REGISTRY.figures.items():
            yield _family(
                figure,
                {process: snapshot.get(name, []) for process, snapshot in self._snapshots.items()},
            )


def _family(figure: AnyMetric, rows: Mapping[str, list[list[Any]]]) -> Metric:
    labels = [*figure.labels, "process"]
    samples = [
        ([*values, process], value)
        for process, process_rows in rows.items()
        for values, value in process_rows
    ]
    if isinstance(figure, Histogram):
        histogram = HistogramMetricFamily(figure.name, figure.about, labels=labels)
        bounds = [*map(str, figure.buckets), "+Inf"]
        for values, (*counts, total) in samples:
            histogram.add_metric(values, list(zip(bounds, accumulate(counts), strict=True)), total)
        return histogram
    kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
    family = kind(figure.name.removesuffix("_total"), figure.about, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family
