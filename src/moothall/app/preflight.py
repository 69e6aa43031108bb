"""What can be refused before a command imports what it works with, which takes longer than to ask.

So this imports no bus, no workspace and no graph at its top, nor does anything that it imports.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from moothall.app import data_dir_lock
from moothall.concurrency import say_if_slow
from moothall.config import Settings
from moothall.domain.identity import LOCAL
from moothall.domain.task import DeliberationRequest
from moothall.errors import ConfigurationError, InvalidRequest, ModelUnavailable
from moothall.orchestrator.planning import Defaults, plan_deliberation

if TYPE_CHECKING:
    from moothall.sandbox.probe import Layer
    from moothall.tools.spec import ToolSpec

_ASK_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class NamedRepository:
    """Which repository a caller named: a path, a URL or an id, its ref, a file with its profile; or
    none, with `text`.
    """

    repo: str = ""
    ref: str = ""
    text: bool = False
    profile: Path | None = None

    def check(self) -> None:
        """Raise `InvalidRequest` for what contradicts itself."""
        wrong = [
            name
            for name, given in (
                ("--repo", self.repo),
                ("--ref", self.ref),
                ("--profile", self.profile),
            )
            if given
        ]
        if self.text and wrong:
            raise InvalidRequest(f"--text is about no repository; leave it or {wrong[0]} out")


async def check_early(
    settings: Settings,
    request: DeliberationRequest,
    named: NamedRepository,
    report_progress: Callable[[str], None],
) -> bool:
    """Refuse what cannot be right: a request that contradicts itself, a model server that is away
    or says no.

    Returns whether a model server was asked: one of ours, or the one of a process that serves this
    data directory, is not. Raises `InvalidRequest`, `ConfigurationError`, `ModelUnavailable`.
    """
    named.check()
    check_request(settings, request)
    if (
        all(one.base_url is None for _, one in settings.choice.items())
        or data_dir_lock.find(settings.data_dir) is not None
    ):
        return False
    from moothall.llm.startup_check import reach_all

    with say_if_slow(report_progress, "the model server to answer"):
        await reach_all(settings.choice, report_progress)
    return True


def check_request(settings: Settings, request: DeliberationRequest) -> None:
    """Raise `InvalidRequest` for what the deliberation service would refuse, whatever the
    repository.
    """
    plan_deliberation(request, LOCAL, defaults(settings), datetime.now(UTC))


def defaults(settings: Settings) -> Defaults:
    """Return what holds for a request that does not say otherwise."""

    def tools() -> Mapping[str, ToolSpec]:
        from moothall.app.rules import catalogue_of

        return catalogue_of(settings)

    endpoints = frozenset(settings.agents.endpoints)
    return Defaults(
        settings.limits, settings.repository, settings.seed, settings.choice, endpoints, tools
    )


async def check_first(
    settings: Settings, report_progress: Callable[[str], None], *, serving: bool
) -> None:
    """Refuse what cannot be, and end what was left. Raises `ConfigurationError`."""
    if settings.ray.address and not (settings.bus.url and settings.llm.base_url):
        raise ConfigurationError(
            "hosts on another machine cannot reach an embedded bus or model: with ray.address set "
            "bus.url and llm.base_url too"
        )
    from moothall.workers.owner import end_left

    if left := await asyncio.to_thread(end_left, settings.data_dir / "hosts"):
        report_progress(
            f"{left} host(s) of a server that was killed were still alive; they are ended"
        )
    if serving:
        check_ports(settings)


async def check_parts(
    settings: Settings,
    report_progress: Callable[[str], None],
    roles: frozenset[str],
    *,
    serving: bool,
    asked: bool,
) -> tuple[Layer, ...]:
    """Try the walls and ask a configured model server, side by side: nothing slow begins before
    both are well. A server of ours outlives a model server that is away: it says so, also at
    /health, and goes on.
    """
    from moothall.llm.startup_check import reach_all
    from moothall.sandbox.probe import check_walls

    async def ask() -> None:
        try:
            await reach_all(settings.choice, report_progress)
        except ModelUnavailable as error:
            if not serving:
                raise
            report_progress(f"no council can work until the model server answers: {error}")

    asking = None
    async with asyncio.TaskGroup() as group:
        if not asked and "hosts" in roles:
            asking = group.create_task(ask(), name="model")
            await asyncio.wait(
                {asking}, timeout=_ASK_SECONDS
            )  # what is plainly wrong is said before anything else
        walls: tuple[Layer, ...] = ()
        if settings.workspace.kind == "local" and roles & {"hosts", "tools"}:
            with say_if_slow(report_progress, "the sandbox to be tried"):
                walls = await check_walls(settings.sandbox, report_progress)
        if asking is not None:
            with say_if_slow(report_progress, "the model server to answer"):
                await asking
    return walls


def check_ports(settings: Settings) -> None:
    """Raise `ConfigurationError` for the first address that cannot be listened on. Default ports of
    HTTP and figures may be taken.
    """
    for setting, host, port in _addresses(settings):
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(
                    socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
                )  # one that ended just now is no hindrance
                trial.bind(address)
                trial.listen(1)
        except OSError as error:
            raise ConfigurationError(
                f"{host}:{port} cannot be listened on: {(error.strerror or str(error)).lower()}; "
                f"choose another {setting}, or 0 for any free one"
            ) from error


def _addresses(settings: Settings) -> Iterator[tuple[str, str, int]]:
    grpc, web, metrics = settings.grpc, settings.web, settings.metrics
    yield "port (grpc.port, --port)", grpc.host, grpc.port
    for port in grpc.more_ports:
        yield "grpc.more_ports", grpc.host, port
    if web.enabled and web.port is not None:
        yield "web.port", web.host, web.port
    if metrics.enabled and metrics.port is not None:
        yield "metrics.port", metrics.host, metrics.port
