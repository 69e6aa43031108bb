"""Failed starts of the local model, and the progress of its download."""

from __future__ import annotations

from pathlib import Path

import pytest

from moothall.config import LlmSettings
from moothall.errors import ModelUnavailable
from moothall.llm.local import download_progress, local_model_server


@pytest.mark.e2e  # a model server's process
async def test_a_model_that_does_not_load_is_reported_with_the_end_of_the_log(
    tmp_path: Path,
) -> None:
    pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 1000)
    messages: list[str] = []
    with pytest.raises(
        ModelUnavailable,
        match=r"(?s)while it started; the end of its log .*local-model.log\):\n.*broken.gguf",
    ):
        async with local_model_server(LlmSettings(model_path=broken), tmp_path, messages.append):
            pass
    assert messages[0].startswith("loading broken")


def test_download_progress_reports_each_tenth_once() -> None:
    messages: list[str] = []
    report = download_progress(messages.append)
    for megabytes in (0, 3, 14, 15, 94, 53, 54, 0, 99, 100):
        report(megabytes * 4_000_000, 400_000_000)
    assert [line.split(": ")[1] for line in messages] == [
        f"{percent} % of 400 MB" for percent in (0, 10, 90, 100)
    ]
