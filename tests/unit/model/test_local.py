"""Starting the local model when it cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest

from moothall.config import LlmSettings
from moothall.errors import ModelUnavailable
from moothall.model.local import local_model_server


@pytest.mark.e2e  # a model server's process
async def test_a_model_that_does_not_load_is_told_with_the_end_of_the_log(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the extra `embedded` is not installed")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 1000)
    said: list[str] = []
    with pytest.raises(ModelUnavailable, match=r"(?s)while it started; the end of its log .*local-model.log\):\n.*broken.gguf"):
        async with local_model_server(LlmSettings(model_path=broken), tmp_path, said.append):
            pass
    assert said[0].startswith("loading broken")
