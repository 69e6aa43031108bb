from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moothall.config import Settings
from moothall.domain.evidence import Verdict
from moothall.domain.repository import SetupStep
from moothall.errors import RepositoryError, WorkspaceFailed
from moothall.workspace.executor_client import ExecutorClient
from moothall.workspace.layout import environment_key, prepared_key
from moothall.workspace.prepare import Preparer
from moothall.workspace.workspace import OverlayWorkspaces
from support.local import Local, local

pytestmark = pytest.mark.e2e

SETUP = (
    (
        "sh",
        "-c",
        (
            "echo tool > /env/tool; echo dep > dep.txt; echo changed > a.txt; mkdir -p deps; echo "
            "d > deps/d; rm b.txt"
        ),
    ),
)
CHECKS = {
    "tests": ("sh", "-c", "cat /env/tool dep.txt a.txt b.txt deps/d"),
    "closed": ("sh", "-c", "echo x > /env/more"),
}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Local]:
    async with local(tmp_path, {"a.txt": "a\n", "b.txt": "b\n", "sub/c.txt": "c\n"}) as app:
        yield app


async def test_set_up_runs_once_and_its_results_are_read_only_in_every_workspace(
    app: Local,
) -> None:
    base = app.base(setup=SETUP, checks=CHECKS, lock_digest="lock")
    partial = app.settings.data_dir / "environments" / f".{environment_key(base)}-half"
    partial.mkdir(parents=True)
    messages: list[str] = []
    prepared = await app.preparer.prepare(base, messages.append)
    assert not partial.exists()
    assert prepared.files == ("a.txt", "b.txt", "sub/c.txt")
    assert prepared.runs["tests"].output == "tool\ndep\na\nb\nd\n", (
        "set-up results and the repository's own files are read-only"
    )
    assert prepared.runs["closed"].verdict is Verdict.FAILED
    assert "Read-only file system" in prepared.runs["closed"].output
    assert len([line for line in messages if line.startswith("setting up")]) == 1
    messages_of_second: list[str] = []
    assert await app.preparer.prepare(base, messages_of_second.append) == prepared
    assert messages_of_second == []
    async with app.workspaces.open(prepared, "w") as workspace:
        assert not (await workspace.patch("nothing")).diff


async def test_two_concurrent_preparations_run_once(app: Local) -> None:
    base = app.base(setup=SETUP, checks=CHECKS)
    messages: list[str] = []
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(app.preparer.prepare(base, messages.append)) for _ in range(2)]
    assert tasks[0].result() == tasks[1].result()
    assert len([line for line in messages if line.startswith("setting up")]) == 1


async def test_a_failing_setup_is_reported_with_its_output_and_retried(app: Local) -> None:
    base = app.base(setup=(("sh", "-c", "echo it broke here; exit 3"),))
    for _ in range(2):
        with pytest.raises(RepositoryError, match=r"(?s)exit code 3.*it broke here"):
            await app.preparer.prepare(base)
    assert os.listdir(app.settings.data_dir / "environments") == []  # noqa: PTH208 - only the names matter


async def test_downloads_of_a_set_up_are_stored_on_disk_and_deleted_afterwards(
    app: Local,
) -> None:
    script = (
        'for at in "$XDG_CACHE_HOME" "$npm_config_cache" "$npm_config_store_dir"; do mkdir -p '
        '"$at"; echo > "$at/big"; echo "$at" >> /env/made; done'
    )
    base = app.base(
        setup=(("sh", "-c", script),), checks={"tests": ("sh", "-c", "cat /env/made; ls -A /env")}
    )
    *paths, listing = (await app.preparer.prepare(base)).runs["tests"].output.split()
    assert len(paths) == 3
    assert all(path.startswith("/env/.downloads/") for path in paths), (
        "/tmp is in memory, which is too small for a large project"
    )
    assert listing == "made"


async def test_an_optional_failure_is_left_out_and_reported(app: Local) -> None:
    failing = ("sh", "-c", "echo 'ValueError: no such thing' >&2; exit 1")
    steps = (
        SetupStep(
            failing,
            instead=(
                SetupStep(("sh", "-c", "echo less > /env/made")),
                SetupStep(failing, optional=True),
            ),
        ),
        SetupStep(("sh", "-c", "pwd > /env/where"), folder="sub"),
    )
    messages: list[str] = []
    prepared = await app.preparer.prepare(
        app.base(
            setup=(failing,),
            steps=steps,
            notes=("a note",),
            checks={"tests": ("cat", "/env/made", "/env/where")},
        ),
        messages.append,
    )
    assert prepared.runs["tests"].output == "less\n/workspace/sub\n"
    assert "a note" in messages
    assert "that failed (ValueError: no such thing); trying with less" in messages
    assert any(line.startswith("left out: sh -c") and "no such thing" in line for line in messages)
    worse = SetupStep(
        ("sh", "-c", "echo worse; exit 2"), instead=(SetupStep(("sh", "-c", "echo worst; exit 3")),)
    )
    with pytest.raises(RepositoryError) as error:
        await app.preparer.prepare(
            app.base(setup=(failing,), steps=(SetupStep(failing, instead=(worse,)),))
        )
    last, first = error.value.message.split("Before it ")
    assert "echo worst; exit 3" in last
    assert first.startswith(
        f"{' '.join(failing)!r} had failed:\n  ValueError: no such thing\nConfigure the"
    )


async def test_a_check_that_hit_its_limit_is_not_repeated_until_its_limit_grows(
    app: Local,
) -> None:
    def preparer(floor_seconds: float = 0.25, **options: Any) -> Preparer:
        workspace = app.settings.workspace.model_copy(update={"check_floor_seconds": floor_seconds})
        app.workspaces._settings = app.settings.model_copy(update={"workspace": workspace})
        return Preparer(app.workspaces._settings, lambda _: app.clone, app.workspaces, **options)

    base = app.base(checks={"tests": ("sh", "-c", "sleep 600")})
    first = await preparer().prepare(base)
    assert first.runs["tests"].output.startswith(
        "tests hit the limit of 1 s (4 times workspace.check_floor_seconds)"
    )
    messages: list[str] = []
    assert await preparer().prepare(base, messages.append) == first
    assert messages == ["tests hit its limit 0 minutes ago and is not run again yet"]
    for options in ({"timeout_memory_seconds": 0.0}, {"floor_seconds": 0.4}):
        messages.clear()
        await preparer(**options).prepare(base, messages.append)
        assert "running tests on the untouched base" in messages


async def test_a_base_that_no_check_could_judge_is_checked_again(
    app: Local,
) -> None:
    base = app.base(checks={"tests": ("no-such-program",)})
    for _ in range(2):
        messages: list[str] = []
        await app.preparer.prepare(base, messages.append)
        assert "running tests on the untouched base" in messages


async def test_the_environments_python_finds_the_reporters_despite_pythonpath(
    app: Local,
) -> None:
    script = "env PYTHONPATH=/nowhere /env/bin/python -c 'import moothall_reporter'"
    base = app.base(setup=(("/env/bin/python", "-V"),), checks={"tests": ("sh", "-c", script)})
    prepared = await app.preparer.prepare(base)
    assert prepared.runs["tests"].verdict is Verdict.PASSED, prepared.runs["tests"].output


async def test_only_set_up_sees_the_git_history(app: Local) -> None:
    describe = (
        "sh",
        "-c",
        (
            "git describe --tags --dirty > /env/version; git status --porcelain >> /env/version; "
            "touch .git/mine"
        ),
    )
    prepared = await app.preparer.prepare(
        app.base(
            setup=(describe,),
            history=True,
            checks={"tests": ("sh", "-c", "cat /env/version; ls -A")},
        )
    )
    assert prepared.runs["tests"].output.split() == ["v0.1.0", "a.txt", "b.txt", "sub"]


async def test_a_check_runs_in_its_folder(app: Local) -> None:
    prepared = await app.preparer.prepare(
        app.base(checks={"tests": ("cat", "c.txt"), "root": ("pwd",)}, folders={"tests": "sub"})
    )
    assert prepared.runs["tests"].output == "c\n"
    assert prepared.runs["root"].output == "/workspace\n"


async def test_a_hanging_setup_is_stopped(app: Local) -> None:
    settings = app.settings.model_copy(
        update={"workspace": app.settings.workspace.model_copy(update={"check_seconds": 0.5})}
    )
    base = app.base(setup=(("sleep", "600"),))
    with pytest.raises(RepositoryError, match="stopped: timeout"):
        await Preparer(settings, lambda _: app.clone, app.workspaces).prepare(base)


async def test_a_setup_that_hits_a_limit_names_it_and_optional_steps_may_fail(
    tmp_path: Path,
) -> None:
    write = ("sh", "-c", "dd if=/dev/zero of=big bs=1M count=20 2>&1")
    async with local(tmp_path, disk_bytes=5_000_000) as app:
        with pytest.raises(
            RepositoryError,
            match=r"stopped: disk \(a file may have sandbox.disk_bytes = 5e\+06 bytes",
        ):
            await app.preparer.prepare(app.base(setup=(write,)))
        messages: list[str] = []
        steps = (SetupStep(write, optional=True), SetupStep(write, instead=(SetupStep(("true",)),)))
        await app.preparer.prepare(app.base(setup=(write,), steps=steps), messages.append)
    assert any(line.startswith("left out: ") for line in messages)
    assert any(line.startswith("that failed") for line in messages)


async def test_set_up_has_the_network_access_that_the_operator_allows(app: Local) -> None:
    workspace = app.settings.workspace.model_copy(update={"setup_network": "off"})
    settings: Settings = app.settings.model_copy(update={"workspace": workspace})
    base = app.base(setup=(("sh", "-c", "test $(wc -l < /proc/net/route) -gt 1"),))
    with pytest.raises(RepositoryError, match="setup_network is 'off'"):
        await Preparer(settings, lambda _: app.clone, app.workspaces).prepare(base)


def test_cache_keys_depend_on_their_inputs(tmp_path: Path) -> None:
    app = Local(Settings(data_dir=tmp_path), None, None, None, "0" * 40)  # type: ignore[arg-type]  # only base() is used
    base = app.base(setup=SETUP, checks=CHECKS, lock_digest="one")
    other_commit = replace(base, sha="1" * 40)
    other_lock = replace(base, profile=replace(base.profile, lock_digest="two"))
    assert environment_key(base) == environment_key(other_commit)
    assert environment_key(base) != environment_key(other_lock)
    assert len({prepared_key(base), prepared_key(other_commit), prepared_key(other_lock)}) == 3
    assert environment_key(app.base(checks={"tests": ("make",)})) == ""
    assert environment_key(app.base(checks={"tests": ("python", "-m", "pytest")})) != ""


async def test_a_spare_executor_is_kept_ready_and_used(tmp_path: Path) -> None:
    async with local(tmp_path, {"a.txt": "a\n"}, warm=1) as app:
        prepared = await app.prepared()
        async with app.workspaces.open(prepared, "first"):
            spare = await _spare(app, prepared.key)
        async with app.workspaces.open(prepared, "second") as workspace:
            assert workspace.pid == spare.pid
        spare = await _spare(app, prepared.key)
        spare.kill()
        async with app.workspaces.open(prepared, "third") as workspace:
            assert workspace.pid != spare.pid
            assert (await app.call(workspace, "files.read", path="a.txt")).output[
                "content"
            ] == "a\n"
    assert list((app.settings.data_dir / "run").iterdir()) == []


async def _spare(app: Local, key: str) -> ExecutorClient:
    async with asyncio.timeout(10):
        while not app.workspaces.pool._spares[key]:
            await asyncio.sleep(0.02)
    return app.workspaces.pool._spares[key][0]


async def test_a_closed_pool_opens_no_workspace(app: Local, tmp_path: Path) -> None:
    prepared = await app.prepared()
    async with OverlayWorkspaces(app.settings, lambda _: app.clone) as closed_workspaces:
        pass
    opening = closed_workspaces.open(prepared, "late")
    with pytest.raises(WorkspaceFailed, match="the pool is closing"):
        await opening.__aenter__()
