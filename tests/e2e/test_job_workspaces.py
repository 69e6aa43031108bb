"""Workspaces in pods, without a cluster: the real link, trunk and sandbox runtime. Only the
containers are sandboxes of this machine.

`tests/e2e/k8s` does the same in a real cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from moothall import telemetry
from moothall.app.workspaces import _check_job
from moothall.domain.evidence import Verdict
from moothall.domain.repository import BuildStep, Prepared
from moothall.domain.tool import CodeBlock, ToolResult, ToolStatus
from moothall.errors import PatchRefused, RepositoryError, SandboxUnavailable, WorkspaceFailed
from moothall.repositories.git_objects import Change
from moothall.workspace.workspace import OverlayWorkspace
from support.local import PYTEST, Local, in_pods, local, on_nodes, python
from support.repos import SAMPLE, SOLUTION

pytestmark = pytest.mark.e2e

UTILS, TESTS = "src/utils.py", "tests/test_utils.py"
FILES = {**SAMPLE, "pkg/one.txt": "1\n", "pkg/two.txt": "2\n", "run.sh": "echo\n"}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Local]:
    tmp_path.chmod(0o755)
    async with in_pods(tmp_path, FILES) as app:
        yield app


@pytest.fixture
async def prepared(app: Local) -> Prepared:
    return await app.prepared({"tests": PYTEST}, protected=("tests/**", "conftest.py"))


async def test_a_failing_test_is_fixed_by_a_patch_that_passes_a_clean_check(
    app: Local, prepared: Prepared
) -> None:
    async with app.workspaces.open(prepared, "one") as workspace:
        run_before = await workspace.check("tests")
        assert (run_before.verdict, run_before.cases[f"{TESTS}::test_hello_world"]) == (
            Verdict.FAILED,
            "failed",
        )
        result = await app.call(workspace, "files.append", path=UTILS, content=SOLUTION)
        assert result.status is ToolStatus.SUCCESS
        tests = await app.call(workspace, "tests.pytest", keyword="hello_world")
        assert tests.output["verdict"] == "passed"
        patch = await workspace.patch("Add hello_world()")
    assert patch.paths == (UTILS,)
    async with app.workspaces.open(prepared, "clean", patch=patch.diff, judged=True) as workspace:
        assert (await workspace.check("tests", [TESTS])).verdict is Verdict.PASSED
    assert app.pods is not None
    assert app.pods.pods == ()


CHANGES = """
import os, pathlib
pathlib.Path("pkg/one.txt").unlink()
pathlib.Path("pkg/two.txt").write_text("2\\n")  # written again, and the same
pathlib.Path("src/new.py").write_text("x = 1\\n")
pathlib.Path("run.sh").chmod(0o755)
os.symlink("src/new.py", "link.py")
pathlib.Path("pkg/folder").mkdir()
pathlib.Path("pkg/folder/deep.txt").write_text("deep")
pathlib.Path("node_modules").mkdir()
pathlib.Path("node_modules/much.js").write_text("much")
pathlib.Path("src/__pycache__").mkdir(exist_ok=True)
pathlib.Path("src/__pycache__/new.pyc").write_text("much")
"""


async def run(workspace: OverlayWorkspace, code: str) -> None:
    """Run Python as a command of a seat, which may change files."""
    answer = await workspace._executor.request(
        "run", wall_seconds=30, argv=python(code), env={"PATH": "/usr/bin:/bin"}
    )
    assert answer["exit_code"] == 0, answer


@pytest.mark.parametrize("opened", [local, in_pods, on_nodes], ids=["here", "pod", "node"])
async def test_a_patch_is_the_same_in_every_kind_of_workspace(tmp_path: Path, opened: Any) -> None:
    tmp_path.chmod(0o755)
    async with opened(tmp_path, FILES) as app:
        prepared = await app.prepared()
        async with app.workspaces.open(prepared, "one") as workspace:
            await run(workspace, CHANGES)
            patch = await workspace.patch("change much")
            assert patch.paths == (
                "link.py",
                "pkg/folder/deep.txt",
                "pkg/one.txt",
                "run.sh",
                "src/new.py",
            )
            await workspace.restore([])
            assert await workspace.changes() == []


OUTPUT = """
import os, pathlib
pathlib.Path("src/new.py").write_text("x = 1\\n")
pathlib.Path("target/debug").mkdir(parents=True)
with open("target/debug/lib.rlib", "wb") as file:
    file.truncate(25_000_000)
os.mkfifo("target/debug/pipe")
for number in range(1500):
    pathlib.Path(f"target/{number}.o").touch()
"""


@pytest.mark.parametrize("opened", [local, in_pods, on_nodes], ids=["here", "pod", "node"])
async def test_ignored_build_output_is_excluded_in_every_kind_of_workspace(
    tmp_path: Path, opened: Any
) -> None:
    tmp_path.chmod(0o755)
    async with opened(tmp_path, {**FILES, ".gitignore": "target/\n"}) as app:
        prepared = await app.prepared()
        async with app.workspaces.open(prepared, "one") as workspace:
            await run(workspace, OUTPUT)
            patch = await workspace.patch("build and change")
    assert patch.paths == ("src/new.py",)
    assert patch.rule_for("target/debug/lib.rlib") == "line 1 of .gitignore, target/"
    assert not patch.rule_for("src/new.py")


async def test_build_output_is_not_part_of_a_patch_even_after_a_cancelled_check(
    app: Local,
) -> None:
    checks = {"tests": ("cat", "product"), "slow": ("sleep", "600.25")}
    builds = tuple(
        BuildStep(("cp", "source.txt", name), sources=("*.txt",))
        for name in ("product", "product.o")
    )
    prepared = await app.prepared(checks)
    base = replace(prepared.base, profile=replace(prepared.base.profile, builds=builds))
    prepared = replace(prepared, base=base)
    async with app.workspaces.open(prepared, "one") as workspace:
        rules, source = (
            Change(".gitignore", "100644", b"*.o\n"),
            Change("source.txt", "100644", b"built\n"),
        )
        await workspace.write([rules, source])
        assert (await workspace.check("tests")).output == "built\n"
        assert await workspace.changes() == [rules, source]
        assert not (await workspace.patch("built")).ignored
        checking = asyncio.create_task(workspace.check("slow"))
        async with asyncio.timeout(60):
            while not any(
                "600.25" in (process.info["cmdline"] or ())
                for process in psutil.process_iter(["cmdline"])
            ):
                await asyncio.sleep(0.05)
        checking.cancel()
        await asyncio.wait([checking])
        assert await workspace.changes() == [rules, source]


async def test_changes_that_no_patch_can_hold_are_refused(app: Local) -> None:
    prepared = await app.prepared({"run": python("import os; os.mkfifo('pipe')")})
    async with app.workspaces.open(prepared, "one") as workspace:
        await workspace.check("run")
        with pytest.raises(PatchRefused, match="socket, pipe or device"):
            await workspace.patch("a pipe")


async def test_a_python_block_and_tools_work_on_the_same_files(
    app: Local, prepared: Prepared
) -> None:
    async def ask(tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        return await app.call(workspace, tool, **arguments)

    code = (
        "import pathlib\npathlib.Path('made.txt').write_text('by a block')\n"
        "print(files.read(path='made.txt'))"
    )
    async with app.workspaces.open(prepared, "one") as workspace:
        for _ in range(2):
            block = CodeBlock(
                code, {"files.read": ("path",)}, datetime.now(UTC) + timedelta(seconds=20), "local"
            )
            block_run = await workspace.run_code(block, ask)
            assert "by a block" in block_run.printed, block_run
        assert [change.path for change in await workspace.changes()] == ["made.txt"]


async def test_jobs_are_labelled_with_their_owner_and_spares_once_they_are_used(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    async with in_pods(tmp_path, FILES, warm=1) as app:
        assert app.pods is not None
        prepared = await app.prepared()
        for seat in ("first", "second"):
            with telemetry.bound(task_id="t1", tenant="team", seat=seat):
                async with app.workspaces.open(prepared, seat):
                    await asyncio.sleep(0.1)
        annotations = [
            [labels.get(f"moothall/{key}") for key in ("task", "tenant", "seat")]
            for labels in app.pods.labelled.values()
        ]
    assert annotations[:2] == [["t1", "team", "first"], ["t1", "team", "second"]]
    assert all(labels == [None, None, None] for labels in annotations[2:]), (
        "spare Jobs belong to nobody"
    )


async def test_all_work_on_a_repository_runs_in_its_configured_image(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    setup, checks = (
        (("sh", "-c", "echo made > /env/made"),),
        {"see": ("sh", "-c", "cat /env/made; python3 -c pass")},
    )
    async with in_pods(tmp_path, FILES, images={"sam*": "own:1"}, warm=1) as app:
        assert app.pods is not None
        prepared = await app.preparer.prepare(app.base(setup=setup, checks=checks))
        async with app.workspaces.open(prepared, "seat"):
            pass
        images = list(app.pods.images.values())
    assert len(images) >= 4, "set-up, checks of the base, a seat, and the spare"
    assert set.union(*images) == {"own:1"}


async def test_a_pod_lost_during_a_check_is_reported_with_the_reason(app: Local) -> None:
    assert app.pods is not None
    prepared = await app.prepared({"run": python("import time; time.sleep(60)")})
    async with app.workspaces.open(prepared, "one") as workspace:
        checking = asyncio.create_task(workspace.check("run"))
        await asyncio.sleep(0.5)
        (name,) = app.pods.pods
        app.pods.set_status(name, "its pod was ended: Evicted: low on ephemeral-storage")
        with pytest.raises(WorkspaceFailed, match="Evicted: low on ephemeral-storage"):
            await checking
    assert app.pods.pods == ()


async def test_a_pod_that_never_starts_is_reported_with_the_reason_and_leaves_nothing(
    app: Local, prepared: Prepared
) -> None:
    assert app.pods is not None
    app.pods.refusal = "the cluster refuses its pod: exceeded quota"
    with pytest.raises(
        SandboxUnavailable, match=r"does not start: the cluster refuses its pod: exceeded quota"
    ):
        async with app.workspaces.open(prepared, "one"):
            pass
    assert app.pods.pods == ()


async def test_the_doctor_opens_a_workspace_and_explains_a_failing_one(app: Local) -> None:
    assert app.pods is not None
    make = app.workspaces.pool._create
    assert (await _check_job(app.settings, make)).ok
    assert len(app.pods.labelled) == 1
    app.pods.refusal = "the image 'work:1' of hands cannot be pulled: not found"
    finding = await _check_job(app.settings, make)
    assert not finding.ok
    assert "'work:1' of hands cannot be pulled" in finding.detail
    assert finding.mend.startswith("kubectl -n moothall-workspaces get jobs,pods,events")
    assert app.pods.pods == ()


async def test_a_cancelled_command_ends_and_the_workspace_stays_usable(app: Local) -> None:
    prepared = await app.prepared(
        {"run": python("import time; time.sleep(60)"), "quick": python("print('well')")}
    )
    async with app.workspaces.open(prepared, "one") as workspace:
        task = asyncio.create_task(workspace.check("run"))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "well" in (await workspace.check("quick")).output


async def test_a_full_disk_ends_the_command(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    fill = (
        "import time\nfor n in range(100):\n    open(f'{n}', 'wb').write(bytes(1_000_000))\n    "
        "time.sleep(0.05)"
    )
    async with in_pods(tmp_path, FILES, disk_bytes=10_000_000) as app:
        prepared = await app.prepared({"run": python(fill)})
        async with app.workspaces.open(prepared, "one") as workspace:
            assert (await workspace.check("run")).status == ToolStatus.DISK


async def test_set_up_output_is_returned_and_its_only_network_access_is_the_proxy(
    app: Local,
) -> None:
    ask = (
        "import os, urllib.request as u\ntry:\n    u.urlopen('http://10.1.2.3/')\nexcept OSError "
        "as e:\n    print(e)\nraise SystemExit(3)"
    )
    setup = (
        (
            "sh",
            "-c",
            (
                "echo made > /env/made && echo left > generated.txt && mkdir -p node_modules/.bin "
                "&& echo js > node_modules/.bin/x"
            ),
        ),
    )
    base = app.base(
        setup=setup,
        checks={
            "see": (
                "sh",
                "-c",
                "cat /env/made generated.txt node_modules/.bin/x; echo more > /env/made",
            )
        },
    )
    prepared = await app.preparer.prepare(base)
    output = prepared.runs["see"].output
    assert all(word in output for word in ("made", "left", "js", "Read-only")), output
    with pytest.raises(
        RepositoryError, match=r"it requested 10\.1\.2\.3:80, which set-ups may not reach"
    ):
        await app.preparer.prepare(app.base(setup=(python(ask),)))


async def test_hosts_on_different_disks_set_up_a_lock_file_once_and_seats_cannot_alter_it(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    setup = (("sh", "-c", "echo made > /env/made; mkdir -p node_modules; echo x > node_modules/x"),)
    spoil = (
        "sh",
        "-c",
        "cat /env/made node_modules/x; echo spoilt > /env/made; echo spoilt > node_modules/x; true",
    )
    messages: list[list[str]] = [[], [], []]
    async with AsyncExitStack() as stack:
        hosts = [
            await stack.enter_async_context(
                in_pods(tmp_path / name, FILES, environments=tmp_path / "shared")
            )
            for name in "abc"
        ]

        async def use(number: int) -> None:
            host = hosts[number]
            prepared = await host.preparer.prepare(
                host.base(setup=setup, checks={"see": spoil}), messages[number].append
            )
            assert prepared.runs["see"].output.startswith("made\nx\n")
            async with host.workspaces.open(prepared, "seat") as workspace:
                await workspace.check("see")

        async with asyncio.TaskGroup() as group:  # two at once, and a later one
            group.create_task(use(0))
            group.create_task(use(1))
        await use(2)
        other_base = hosts[0].base(
            setup=(("sh", "-c", "echo other > /env/made"),), checks={"see": ("cat", "/env/made")}
        )
        assert (await hosts[2].preparer.prepare(other_base)).runs["see"].output == "other\n"
    set_up = [
        sum(line.startswith("setting up") for line in host_messages) for host_messages in messages
    ]
    assert sorted(set_up) == [0, 0, 1]
    assert [
        "using the environment of another host" in host_messages for host_messages in messages
    ] == [not times for times in set_up]
    assert set_up[2] == 0
