"""Spans and figures of a process, as the settings want them, and how often it looks for garbage."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext

from moothall.config import Metrics, Settings, secret_values
from moothall.domain.topic import Channel
from moothall.telemetry import metrics, reports
from moothall.wiring.bus import Bus


def spans(settings: Settings, name: str) -> AbstractAsyncContextManager[None]:
    """Record this process's spans, if any are wanted. OpenTelemetry is imported only then."""
    if settings.trace.exporter == "off":
        return nullcontext()
    from moothall.telemetry.recording import recording

    return recording(settings.trace, f"{name}-{os.getpid()}", secrets=secret_values(settings))


@asynccontextmanager
async def report_figures(settings: Metrics, bus: Bus, name: str) -> AsyncIterator[None]:
    """Report a host's figures to the serving process, while the context lasts."""
    if not settings.enabled:
        yield
        return
    with reports.watched():
        async with asyncio.TaskGroup() as group:
            reporting = group.create_task(reports.report(bus.signal, name, settings.report_seconds), name="figures")
            try:
                yield
            finally:
                reporting.cancel()


@asynccontextmanager
async def figures(
    settings: Metrics, bus: Bus, under_way: Callable[[], int], see: Callable[[], Awaitable[None]]
) -> AsyncIterator[int]:
    """Serve this process's figures and those that hosts report; yields the port, 0 where none is served. `see` looks, before each answer,
    at what nobody counts.
    """
    if not settings.enabled:
        yield 0
        return
    from moothall.services.figures import figures_page

    def look() -> None:
        metrics.COLLECTOR_UNDER_WAY.set(under_way())

    known = reports.Reports(settings.report_seconds)

    async def listen() -> None:
        async for data in bus.signals(Channel.FIGURES.all):
            known.take(data)

    async with AsyncExitStack() as stack:
        stack.enter_context(reports.watched())
        stack.enter_context(metrics.REGISTRY.looking(look))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        listening = group.create_task(listen(), name="reports")
        stack.callback(listening.cancel)
        yield await stack.enter_async_context(figures_page(settings, lambda: known.snapshots("serve"), see))


_YOUNG, _MIDDLE, _OLD = 20_000, 20, 20
"""New objects before a look at the young ones; looks at those before one at the next generation; the same again."""


def settle() -> None:
    """Call once a long-lived process is set up: what it holds by now stays, and is never looked through again.

    By default the collector looks after every 700 new objects and ever again at all that lives: an eighth of what a
    deliberation costs. Nearly everything that one leaves goes without it, by its count of references.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
