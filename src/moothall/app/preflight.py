"""Checks that run before a command imports the modules that it works with, because importing
takes longer than the checks. The lock of the data directory, and the address of the process
that holds it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from moothall.concurrency import report_if_slow
from moothall.config import Settings
from moothall.config.models import AUTO
from moothall.domain.ids import LOCAL
from moothall.errors import ConfigurationError, InvalidRequest, ModelUnavailable
from moothall.processes import lock_file, write_private

if TYPE_CHECKING:  # commands that only look for the serving process do without
    from moothall.domain.task import DeliberationRequest
    from moothall.orchestrator.request_planning import Defaults
    from moothall.sandbox.probe import Layer
    from moothall.tools.spec import ToolSpec


# The lock of the data directory, and the address of the process that holds it.


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the process that serves this data directory. It contains the bus credentials,
    so the file mode is 0600. `page`: the URL of the web page for a browser on this machine, or
    empty. `settings`: a digest of each setting that affects the work.
    """

    pid: int
    bus_url: str
    grpc_port: int
    settings: Mapping[str, str]
    page: str = ""


class DirectoryTaken(Exception):
    """Another process serves this data directory."""


@contextmanager
def hold(data_dir: Path) -> Iterator[None]:
    """Hold the data directory, or raise `DirectoryTaken`. The kernel releases the lock whenever the
    process ends.
    """
    with ExitStack() as stack:
        try:
            data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            free = stack.enter_context(lock_file(data_dir / "lock"))
        except OSError as error:
            raise ConfigurationError(
                f"the data directory {data_dir} cannot be used: {error.strerror}"
            ) from error
        if not free:
            raise DirectoryTaken
        remove_address(data_dir)  # left by a process that was killed
        yield


@contextmanager
def take_number(data_dir: Path) -> Iterator[int]:
    """Hold the first number, from 1, that no other process of this data directory has. The kernel
    releases it when the process ends.
    """
    folder = data_dir / "processes"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in itertools.count(1):
        with lock_file(folder / str(number)) as free:
            if free:
                yield number
                return


def is_shared(data_dir: Path) -> bool:
    """Return whether processes with a number use the directory. They may not hold it."""
    for path in (data_dir / "processes").glob("*"):
        with lock_file(path) as free:
            if not free:
                return True
    return False


def announce(data_dir: Path, address: Address) -> None:
    """Publish the address of this process."""
    write_private(data_dir / "serving.json", json.dumps(asdict(address)))


def remove_address(data_dir: Path) -> None:
    """Remove the address of the serving process."""
    (data_dir / "serving.json").unlink(missing_ok=True)


def find(data_dir: Path) -> Address | None:
    """Return the address of the serving process, or None while it is starting."""
    try:
        return Address(**json.loads((data_dir / "serving.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None


# Checks that run before a command imports the modules that it works with, because importing takes
# longer than the checks.
#
# This module and its imports do not import the bus, workspaces or the graph at the top level.


_EARLY_CHECK_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class NamedRepository:
    """The repository that a caller named: a path, a URL or an id, its ref, and a file with its
    profile; or none, with `text`.
    """

    repo: str = ""
    ref: str = ""
    text: bool = False
    profile: Path | None = None

    def check(self) -> None:
        """Raise `InvalidRequest` for contradictory options."""
        options = [
            name
            for name, value in (
                ("--repo", self.repo),
                ("--ref", self.ref),
                ("--profile", self.profile),
            )
            if value
        ]
        if self.text and options:
            raise InvalidRequest(f"--text works without a repository; leave it or {options[0]} out")

    def check_remote(self) -> None:
        """Raise `InvalidRequest` for an option that a remote server does not support."""
        if self.profile:
            raise InvalidRequest(
                "a remote server does not read --profile; register the repository with its "
                "commands there"
            )


async def check_early(
    settings: Settings,
    request: DeliberationRequest,
    named: NamedRepository,
    report_progress: Callable[[str], None],
) -> bool:
    """Refuse contradictory requests, and fail if a model server is unreachable or refuses.

    Returns whether a model server was checked. The bundled server is not checked, nor the servers
    of a process that serves this data directory. Raises `InvalidRequest`, `ConfigurationError`,
    `ModelUnavailable`.
    """
    named.check()
    check_request(settings, request)
    if (
        all(llm.base_url is None for _, llm in settings.choice.items())
        or find(settings.data_dir) is not None
    ):
        return False
    from moothall.llm.startup_check import reach_all

    with report_if_slow(report_progress, "the model server to answer"):
        await reach_all(settings.choice, report_progress)
    return True


def check_request(settings: Settings, request: DeliberationRequest) -> None:
    """Raise `InvalidRequest` for what the deliberation service would refuse for any repository."""
    from moothall.orchestrator.request_planning import plan_deliberation

    plan_deliberation(request, LOCAL, defaults(settings), datetime.now(UTC))


def defaults(settings: Settings) -> Defaults:
    """Return the defaults of requests."""
    from moothall.orchestrator.request_planning import Defaults

    def tools() -> Mapping[str, ToolSpec]:
        from moothall.app.gateway_rules import catalogue_of

        return catalogue_of(settings)

    endpoints = frozenset(settings.agents.endpoints)
    return Defaults(
        settings.limits,
        settings.repository,
        settings.choice,
        endpoints,
        tools,
        auto=settings.seats == AUTO,
    )


async def check_first(
    settings: Settings, report_progress: Callable[[str], None], *, serving: bool
) -> None:
    """Refuse impossible settings, and end the hosts of a server that was killed. Raises
    `ConfigurationError`.
    """
    if settings.ray.address and not (settings.bus.url and settings.llm.base_url):
        raise ConfigurationError(
            "hosts on another machine cannot reach an embedded bus or model: with ray.address set "
            "bus.url and llm.base_url too"
        )
    from moothall.workers.owner import kill_leftover_hosts

    if ended := await asyncio.to_thread(kill_leftover_hosts, settings.data_dir / "hosts"):
        report_progress(
            f"{ended} host(s) of a server that was killed were still alive; they are ended"
        )
    if serving:
        check_ports(settings)


@asynccontextmanager
async def check_model(
    settings: Settings,
    report_progress: Callable[[str], None],
    roles: frozenset[str],
    *,
    serving: bool,
    model_checked: bool,
) -> AsyncIterator[None]:
    """Check the configured model server beside the block, which begins once obvious errors were
    raised. A serving process tolerates an unreachable model server: it reports it, also at /health,
    and continues.
    """
    if model_checked or "hosts" not in roles:
        yield
        return
    from moothall.llm.startup_check import reach_all

    async def check() -> None:
        try:
            await reach_all(settings.choice, report_progress)
        except ModelUnavailable as error:
            if not serving:
                raise
            report_progress(f"no council can work until the model server answers: {error}")

    async with asyncio.TaskGroup() as group:
        checking = group.create_task(check(), name="model")
        await asyncio.wait({checking}, timeout=_EARLY_CHECK_SECONDS)
        yield
        with report_if_slow(report_progress, "the model server to answer"):
            await checking


async def check_sandbox(
    settings: Settings, report_progress: Callable[[str], None], roles: frozenset[str]
) -> tuple[Layer, ...]:
    """Check the sandbox if this process has one, and return its layers."""
    if not (settings.workspace.uses_local_sandbox and roles & {"hosts", "tools"}):
        return ()
    from moothall.sandbox.probe import check_layers

    with report_if_slow(report_progress, "the sandbox to be tried"):
        return await check_layers(settings.sandbox, report_progress)


def check_ports(settings: Settings) -> None:
    """Raise `ConfigurationError` for the first address that cannot be listened on. Default ports of
    HTTP and metrics may be in use.
    """
    for setting, host, port in _addresses(settings):
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, protocol) as trial:
                # A socket that was closed just now does not block the address.
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
