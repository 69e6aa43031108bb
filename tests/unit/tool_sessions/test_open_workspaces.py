"""The limit of open workspaces: one tenant never has them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from moothall.domain.identity import Principal
from moothall.domain.task import RepositoryRef
from moothall.errors import RateLimited
from support.session_manager import open_session_manager

SAMPLE = RepositoryRef(id="sample")
ANN, BOB, EVE = Principal("ann", "acme"), Principal("bob", "acme"), Principal("eve", "elsewhere")


@pytest.mark.parametrize(
    ("limits", "most"), [({"visits": 5}, 4), ({"visits": 5, "tenant_visits": 2}, 2)]
)
async def test_a_tenant_leaves_workspaces_for_others(
    tmp_path: Path, limits: dict[str, int], most: int
) -> None:
    async with open_session_manager(tmp_path, limits=limits) as app:
        opened = [await app.session_manager.open(ANN, SAMPLE, "DEV") for _ in range(most)]
        with pytest.raises(RateLimited, match=r"guard\.tenant_visits"):
            await app.session_manager.open(BOB, SAMPLE, "DEV")
        theirs = [
            await app.session_manager.open(EVE, SAMPLE, "DEV") for _ in range(min(most, 5 - most))
        ]
        assert len(theirs) == min(most, 5 - most)
        await app.session_manager.close(ANN, opened[0].workspace)
        assert await app.session_manager.open(BOB, SAMPLE, "DEV")


async def test_all_tenants_together_have_a_limit_too(tmp_path: Path) -> None:
    async with open_session_manager(tmp_path, limits={"visits": 2, "tenant_visits": 2}) as app:
        await app.session_manager.open(ANN, SAMPLE, "DEV")
        await app.session_manager.open(EVE, SAMPLE, "DEV")
        with pytest.raises(RateLimited, match=r"guard\.visits"):
            await app.session_manager.open(ANN, SAMPLE, "DEV")
