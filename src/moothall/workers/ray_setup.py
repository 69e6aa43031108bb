"""What is needed before Ray starts: a short directory, and whether a cluster asks for a token."""

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

# A short directory for a Ray of our own, which goes when its owner goes, however that ends.


_PREFIX = "mh-"  # short: a folder of many letters for temporary files leaves little of the 107


@asynccontextmanager
async def ray_folder() -> AsyncIterator[Path]:
    """Make it; Ray's sockets have a path limit of 107 bytes. A child waits beside it to clear away
    after a kill -9.

    Ray lets everybody write in its directory, where another user's link would have us write
    elsewhere: it lies in one of ours.
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
        start_new_session=True,  # Ctrl-C is for its parent
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
    """Remove directories whose owner is gone, with the processes that name them; return how many
    there were.
    """
    swept = 0
    for folder in temporary.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if (
            owner.isdigit()
            and not psutil.pid_exists(int(owner))
            and folder.lstat().st_uid == os.geteuid()
        ):
            _end(folder)
            shutil.rmtree(folder, ignore_errors=True)
            swept += 1
    return swept


def _end(folder: Path) -> None:
    """Kill the processes that name a directory, whose watcher was killed too, and those below them:
    Ray's own write a title over what they name.
    """
    found: set[psutil.Process] = set()
    for pid in reaper.find_processes(str(folder)):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            found |= {process, *process.children(recursive=True)}
    for process in found:
        with suppress(psutil.Error):
            process.kill()  # psutil looks whether the pid is still the same process's


# Check whether a Ray cluster accepts drivers without a token.
#
# Anyone who can start a driver on a cluster runs code as its nodes do and reads the arguments of
# actors: the credentials of the bus and the model, and the keys that hosts sign with.


log = get_logger(__name__)

_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""A call that Ray answers to every driver. An empty message is a valid request of it."""
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
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_METHOD)
            await ask(b"", timeout=_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
                return Access.RESTRICTED, ""
            if os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}:
                return Access.RESTRICTED, ""  # a driver needs a certificate, which we did not show
            return Access.UNKNOWN, f"{error.code().name}: {error.details() or 'no reason given'}"
    return Access.OPEN, ""


async def check_access(settings: RaySettings, address: str) -> None:
    """Raise `ConfigurationError` for a cluster without a token, unless `ray.allow_no_token`."""
    access, reason = await probe_access(address)
    if access is Access.RESTRICTED:
        return
    about = describe(access, address, reason)
    if not settings.allow_no_token:
        raise ConfigurationError(
            f"{about}: it would get the credentials of the bus and the model. {HELP}"
        )
    log.warning(
        "the Ray cluster takes drivers without a token (ray.allow_no_token)", address=address
    )


async def explain_refusal(address: str) -> str:
    """Return the next step if a cluster refused us without its token; '' for other reasons."""
    access, _ = await probe_access(address)
    return (
        ". It wants its token: set RAY_AUTH_TOKEN as its nodes have it"
        if access is Access.RESTRICTED
        else ""
    )


def describe(access: Access, address: str, reason: str = "") -> str:
    """Return a clause about the access to a cluster."""
    match access:
        case Access.RESTRICTED:
            return f"the Ray cluster at {address} takes no driver without its token"
        case Access.OPEN:
            return f"the Ray cluster at {address} takes drivers without a token"
    return (
        f"it is not known whether the Ray cluster at {address} takes drivers without a token "
        f"({reason})"
    )
