"""The kinds of workspaces: how they are chosen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args

import pytest

from moothall.app.workspaces import (
    WORKSPACE_KINDS,
    Executors,
    WorkspaceKind,
    examine_local,
    open_workspace_services,
    workspace_kind,
)
from moothall.config import Settings, WorkspaceSettings
from moothall.deliberation.context import PARALLEL_CHECKS
from moothall.errors import ConfigurationError
from moothall.settings import load_settings


def with_kind(tmp_path: Path, kind: str) -> Settings:
    settings = load_settings(data_dir=tmp_path)
    workspace = settings.workspace.model_copy(update={"kind": kind})
    return settings.model_copy(update={"workspace": workspace})


def test_every_kind_of_the_settings_can_be_opened_and_examined() -> None:
    assert {*WORKSPACE_KINDS} == {*get_args(WorkspaceSettings.model_fields["kind"].annotation)}


async def test_a_kind_without_an_entry_is_an_error_and_does_not_use_this_machine(
    tmp_path: Path,
) -> None:
    settings = with_kind(tmp_path, "cloud")
    assert not settings.workspace.uses_local_sandbox
    with pytest.raises(ConfigurationError, match=r"kind is cloud.*local, ray, kubernetes"):
        workspace_kind(settings)
    with pytest.raises(ConfigurationError, match="kind is cloud"):
        async with open_workspace_services(settings, is_host=True):
            pass


@pytest.mark.parametrize("kind", ["local", "ray", "kubernetes"])
def test_only_jobs_do_without_the_sandbox_of_this_machine(tmp_path: Path, kind: str) -> None:
    settings = with_kind(tmp_path, kind)
    assert settings.workspace.uses_local_sandbox is (kind != "kubernetes")


@pytest.mark.parametrize("is_host", [True, False])
async def test_other_processes_than_hosts_use_this_machine_with_a_kind_for_hosts(
    tmp_path: Path, *, is_host: bool
) -> None:
    opened = []

    @asynccontextmanager
    async def open_executors(settings: Settings) -> AsyncIterator[Executors]:
        opened.append(settings.workspace.kind)
        yield Executors(count_machines=lambda: 3, start_early=False)

    kind = WorkspaceKind(open_executors, examine_local, only_hosts=True)
    settings = with_kind(tmp_path, "ray")
    async with open_workspace_services(settings, is_host=is_host, kinds={"ray": kind}) as services:
        assert services.count_parallel_checks() == PARALLEL_CHECKS * (3 if is_host else 1)
        assert services.workspaces._settings.workspace.warm == (0 if is_host else 1)
    assert opened == (["ray"] if is_host else [])
