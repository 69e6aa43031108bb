"""The limit of open workspaces: one tenant never has them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from moothall.domain.ids import Principal
from moothall.domain.task import RepositoryRef
from moothall.errors import RateLimited
from support.session_manager import open_session_manager

SAMPLE = RepositoryRef(id="sample")
ANN, BOB, EVE = Principal("ann", "acme"), Principal("bob", "acme"), Principal("eve", "elsewhere")


async def test_one_tenant_cannot_open_all_workspaces(tmp_path: Path) -> None:
    async with open_session_manager(tmp_path, max_open=5) as app:
        opened = [await app.session_manager.open(ANN, SAMPLE, "DEV") for _ in range(4)]
        with pytest.raises(RateLimited, match="which may have 4"):
            await app.session_manager.open(BOB, SAMPLE, "DEV")
        assert await app.session_manager.open(EVE, SAMPLE, "DEV")
        await app.session_manager.close(ANN, opened[0].workspace)
        assert await app.session_manager.open(BOB, SAMPLE, "DEV")


async def test_all_tenants_together_have_a_limit(tmp_path: Path) -> None:
    async with open_session_manager(tmp_path, max_open=2) as app:
        await app.session_manager.open(ANN, SAMPLE, "DEV")
        await app.session_manager.open(EVE, SAMPLE, "DEV")
        with pytest.raises(RateLimited, match="more are not allowed"):
            await app.session_manager.open(ANN, SAMPLE, "DEV")
