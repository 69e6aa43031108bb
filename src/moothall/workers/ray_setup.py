"""Preparations for Ray: a short directory, and a check that a cluster requires a token."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from pathlib import Path

import grpc
import grpc.aio
import psutil

from moothall.config import RaySettings
from moothall.errors import ConfigurationError
from moothall.processes import start_process
from moothall.telemetry import get_logger
from moothall.workers import reaper

# A short directory for a private Ray cluster. It is removed when its owner ends in any way.


_PREFIX = "mh-"  # short, because a long path of the temporary folder uses most of the 107 bytes


@asynccontextmanager
async def ray_folder() -> AsyncIterator[Path]:
    """Create a directory with a short path, because Ray's sockets have a path limit of 107 bytes.

    A child process removes it after a kill -9. Ray makes its directory writable for all users, so
    another user could replace it with a link. It is therefore inside a private directory.
    """
    await asyncio.to_thread(sweep, Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    watcher = await start_process(
        sys.executable,
        "-I",
        "-S",
        str(reaper.__file__),
        str(directory),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the parent only
        cwd="/",
    )
    try:
        inner = directory / "r"
        inner.mkdir()
        yield inner
    finally:
        if watcher.stdin is not None:
            watcher.stdin.close()
        await watcher.wait()
        await asyncio.to_thread(shutil.rmtree, directory, True)


def sweep(temporary: Path) -> int:
    """Remove directories whose owner has ended, and kill the processes that name them. Return how
    many directories were removed.
    """
    swept = 0
    for folder in temporary.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if (
            owner.isdigit()
            and not psutil.pid_exists(int(owner))
            and folder.lstat().st_uid == os.geteuid()
        ):
            _kill_processes(folder)
            shutil.rmtree(folder, ignore_errors=True)
            swept += 1
    return swept


def _kill_processes(folder: Path) -> None:
    """Kill the processes that name a directory, and their child processes.

    Ray's own child processes overwrite their command line with a title. The watcher was killed too.
    """
    processes: set[psutil.Process] = set()
    for pid in reaper.find_processes(str(folder)):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            processes |= {process, *process.children(recursive=True)}
    for process in processes:
        with suppress(psutil.Error):
            process.kill()  # psutil checks that the pid still belongs to the same process


# Check whether a Ray cluster accepts drivers without a token.
#
# Anyone who can start a driver on a cluster can run code on its nodes and read the arguments of
# actors: the credentials of the bus and the model, and the signing keys of hosts.


log = get_logger(__name__)

_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""A method that Ray answers for every driver. An empty message is a valid request."""
_SECONDS = 5.0
HELP = (
    "Start every node with RAY_AUTH_MODE=token and a RAY_AUTH_TOKEN, and give both to this process "
    "(docs/operating.md, A Ray cluster of your own). If only you can reach its ports, set "
    "MOOTHALL_RAY__ALLOW_NO_TOKEN=true instead"
)


class Access(StrEnum):
    """Who may start a driver on a cluster."""

    RESTRICTED = "restricted"
    OPEN = "open"
    UNKNOWN = "unknown"


async def probe_access(address: str) -> tuple[Access, str]:
    """Return who may start a driver on the cluster at HOST:PORT, with a reason for UNKNOWN."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            call_method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                _METHOD
            )
            await call_method(b"", timeout=_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
                return Access.RESTRICTED, ""
            if os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}:
                return Access.RESTRICTED, ""  # a driver needs a certificate; this call has none
            return Access.UNKNOWN, f"{error.code().name}: {error.details() or 'no reason given'}"
    return Access.OPEN, ""


async def check_access(settings: RaySettings, address: str) -> None:
    """Raise `ConfigurationError` for a cluster without a token, unless `ray.allow_no_token`."""
    access, reason = await probe_access(address)
    if access is Access.RESTRICTED:
        return
    description = describe_access(access, address, reason)
    if not settings.allow_no_token:
        raise ConfigurationError(
            f"{description}: others could read the credentials of the bus and the model. {HELP}"
        )
    log.warning(
        "the Ray cluster accepts drivers without a token (ray.allow_no_token)", address=address
    )


async def explain_refusal(address: str) -> str:
    """Return the next step if a cluster refused a connection without its token; otherwise ''."""
    access, _ = await probe_access(address)
    return (
        ". It requires a token: set RAY_AUTH_TOKEN to the value that its nodes have"
        if access is Access.RESTRICTED
        else ""
    )


def describe_access(access: Access, address: str, reason: str = "") -> str:
    """Describe the access to a cluster in a clause."""
    match access:
        case Access.RESTRICTED:
            return f"the Ray cluster at {address} accepts no driver without its token"
        case Access.OPEN:
            return f"the Ray cluster at {address} accepts drivers without a token"
    return (
        f"it is unknown whether the Ray cluster at {address} accepts drivers without a token "
        f"({reason})"
    )
