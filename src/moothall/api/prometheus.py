"""The page that Prometheus reads."""

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
from moothall.api.asgi import ListenAddress, ServerLimits, serving
from moothall.api.http.edge import host_name
from moothall.api.identity import is_loopback
from moothall.errors import ConfigurationError
from moothall.telemetry.metric_types import AnyFigure, Histogram, Snapshot
from moothall.telemetry.metrics import REGISTRY

log = telemetry.get_logger(__name__)

DEFAULT_PORT = 9464
_MEASURE_SECONDS = 3.0

Snapshots = Callable[[], Mapping[str, Snapshot]]


@asynccontextmanager
async def figures_page(
    settings: config.MetricsSettings,
    snapshots: Snapshots,
    measure: Callable[[], Awaitable[None]],
    *,
    measure_seconds: float = _MEASURE_SECONDS,
) -> AsyncIterator[int]:
    """Serve `/metrics` until the context ends; yields the port, 0 where the default one is taken,
    which is logged.

    `measure` looks up, before each answer, what nobody counts, for `measure_seconds` at most.
    Raises `ConfigurationError` for a chosen port that is taken, and for an address that is not
    loopback without a token.
    """
    if settings.token is None and not is_loopback(settings.host):
        raise ConfigurationError(
            f"metrics.host {settings.host} is no loopback address: set metrics.token "
            "(MOOTHALL_METRICS__TOKEN), or bind 127.0.0.1"
        )

    async def answer(request: Request) -> Response:
        called = request.headers.get("host", "")
        if is_loopback(settings.host) and not is_loopback(
            host_name(called)
        ):  # a page of somebody else's, by a name of theirs
            return PlainTextResponse("this server is not called so\n", 403)
        if settings.token is not None and not _knows(request, settings.token.get_secret_value()):
            return PlainTextResponse(
                "a bearer token is needed\n", 401, {"WWW-Authenticate": "Bearer"}
            )
        try:
            async with asyncio.timeout(measure_seconds):
                await measure()
        except TimeoutError:
            log.info(
                "bus or model servers did not say in time how they stand; their last figures are "
                "shown"
            )
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        page = encode(cast("CollectorRegistry", _Families(snapshots())))
        return Response(page, headers={"Content-Type": content_type})

    address = ListenAddress("figures", "metrics", settings.host, settings.port, DEFAULT_PORT)
    async with serving(
        Starlette(routes=[Route("/metrics", answer)]), address, ServerLimits()
    ) as port:
        yield port


def _knows(request: Request, token: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        given.strip().encode(), token.encode()
    )


class _Families:
    """Snapshots as Prometheus's client library wants them: each figure once, with its process as
    the last label.
    """

    def __init__(self, snapshots: Mapping[str, Snapshot]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        """Yield a family for every figure, those without a value yet too."""
        for name, figure in REGISTRY.figures.items():
            yield _family(
                figure, {process: found.get(name, []) for process, found in self._snapshots.items()}
            )


def _family(figure: AnyFigure, rows: Mapping[str, list[list[Any]]]) -> Metric:
    labels = [*figure.labels, "process"]
    placed = [
        ([*values, process], value) for process, found in rows.items() for values, value in found
    ]
    if isinstance(figure, Histogram):
        histogram = HistogramMetricFamily(figure.name, figure.about, labels=labels)
        bounds = [*map(str, figure.buckets), "+Inf"]
        for values, (*counts, total) in placed:
            histogram.add_metric(values, list(zip(bounds, accumulate(counts), strict=True)), total)
        return histogram
    kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
    family = kind(figure.name.removesuffix("_total"), figure.about, labels=labels)
    for values, value in placed:
        family.add_metric(values, value)
    return family
