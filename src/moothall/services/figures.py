"""The page that Prometheus reads."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any, cast

from aiohttp import web
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder

from moothall import config, telemetry
from moothall.errors import ConfigurationError
from moothall.services.identity import is_loopback
from moothall.telemetry.figures import AnyFigure, Histogram, Snapshot
from moothall.telemetry.metrics import REGISTRY

log = telemetry.get_logger(__name__)

DEFAULT_PORT = 9464
_MEASURE_SECONDS = 2.0

Snapshots = Callable[[], Mapping[str, Snapshot]]


@asynccontextmanager
async def figures_page(
    settings: config.Metrics,
    snapshots: Snapshots,
    measure: Callable[[], Awaitable[None]],
    *,
    measure_seconds: float = _MEASURE_SECONDS,
) -> AsyncIterator[int]:
    """Serve `/metrics` until the context ends; yields the port, 0 where the default one is taken, which is logged.

    `measure` looks up, before each answer, what nobody counts, for `measure_seconds` at most. Raises `ConfigurationError` for a chosen port that is
    taken, and for an address that is not loopback without a token.
    """
    if settings.token is None and not is_loopback(settings.host):
        raise ConfigurationError(
            f"metrics.host {settings.host} is no loopback address: set metrics.token (MOOTHALL_METRICS__TOKEN), or bind 127.0.0.1"
        )

    async def answer(request: web.Request) -> web.Response:
        if settings.token is not None and not _knows(request, settings.token.get_secret_value()):
            return web.Response(status=401, text="a bearer token is needed\n", headers={"WWW-Authenticate": "Bearer"})
        try:
            async with asyncio.timeout(measure_seconds):
                await measure()
        except TimeoutError:
            log.info("the bus did not say in time how it stands; its last figures are shown")
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        page = encode(cast("CollectorRegistry", _Families(snapshots())))
        return web.Response(body=page, headers={"Content-Type": content_type})

    application = web.Application()
    application.router.add_get("/metrics", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        yield await _listen(runner, settings)
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, settings: config.Metrics) -> int:
    wanted = DEFAULT_PORT if settings.port is None else settings.port
    try:
        await web.TCPSite(runner, settings.host, wanted).start()
    except OSError as error:
        said = f"figures cannot be served on {settings.host}:{wanted}: {error.strerror or error}"
        if settings.port is not None:
            raise ConfigurationError(f"{said}; choose another metrics.port, or 0 for any free one") from error
        log.warning("no figures for Prometheus; set metrics.port to a free one, or to 0", reason=said)
        return 0
    return int(runner.addresses[0][1])


def _knows(request: web.Request, token: str) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


class _Families:
    """Snapshots as Prometheus's client library wants them: each figure once, with its process as the last label."""

    def __init__(self, snapshots: Mapping[str, Snapshot]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        """Yield a family for every figure, those without a value yet too."""
        for name, figure in REGISTRY.figures.items():
            yield _family(figure, {process: found.get(name, []) for process, found in self._snapshots.items()})


def _family(figure: AnyFigure, rows: Mapping[str, list[list[Any]]]) -> Metric:
    labels = [*figure.labels, "process"]
    placed = [([*values, process], value) for process, found in rows.items() for values, value in found]
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
