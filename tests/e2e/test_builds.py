"""Compiled code is rebuilt before a check, in a real sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from moothall.domain.evidence import EvidenceLevel, Verdict
from moothall.domain.repository import BuildStep, Prepared
from moothall.repositories.git_objects import Change
from support.judged_base import JudgedBase
from support.local import PYTEST, Local, local

pytestmark = pytest.mark.e2e
FILES = {"source.c": "wrong\n", "other.txt": "\n"}
BUILD = (
    "sh",
    "-c",
    (
        "grep -q broken source.c && echo it does not compile && exit 3; cp source.c product; echo "
        ">> count"
    ),
)
CHECKS = {"tests": ("sh", "-c", "wc -l < count; grep right product")}


async def prepare_with_builds(app: Local, *builds: BuildStep) -> Prepared:
    return await app.preparer.prepare(app.base(setup=(BUILD,), checks=CHECKS, builds=builds))


async def test_a_fix_in_compiled_code_passes_the_check_and_leaves_no_build_output_in_the_patch(
    tmp_path: Path,
) -> None:
    async with local(tmp_path, FILES) as app:
        base = await prepare_with_builds(app, BuildStep(BUILD))
        assert base.runs["tests"].verdict is Verdict.FAILED
        assert base.runs["tests"].output == "2\n", "the base is rebuilt too"
        async with app.workspaces.open(base, "seat") as workspace:
            await workspace.write([Change("source.c", "100644", b"right\n")])
            assert (await workspace.check("tests")).output == "2\nright\n"
            assert (await workspace.check("tests")).verdict is Verdict.PASSED
            patch = await workspace.patch("fix")
        assert patch.paths == ("source.c",)
        async with app.workspaces.open(base, "judged", patch=patch.diff, judged=True) as workspace:
            assert (await workspace.check("tests")).verdict is Verdict.PASSED


async def test_a_failed_build_is_a_failed_check_with_the_reason(tmp_path: Path) -> None:
    async with local(tmp_path, FILES) as app:
        base = await prepare_with_builds(app, BuildStep(BUILD))
        async with app.workspaces.open(base, "seat") as workspace:
            await workspace.write([Change("source.c", "100644", b"broken\n")])
            run = await workspace.check("tests")
        assert (run.verdict, run.exit_code) == (Verdict.FAILED, 3)
        assert run.output.startswith("the build failed: sh -c ")
        assert "it does not compile" in run.output


async def test_a_build_that_fills_the_disk_is_reported_with_the_limit(tmp_path: Path) -> None:
    fills = ("sh", "-c", "for n in 1 2 3 4 5; do head -c 900000 /dev/zero > big$n; done")
    async with local(tmp_path, FILES, disk_bytes=1_000_000) as app:
        base = app.base(checks=CHECKS, builds=(BuildStep(fills, sources=("*.c",)),))
        async with app.workspaces.open(await app.preparer.prepare(base), "seat") as workspace:
            await workspace.write([Change("source.c", "100644", b"right\n")])
            run = await workspace.check("tests")
        assert (run.status, run.verdict) == ("disk", Verdict.ERRORED)
        assert "sandbox.disk_bytes" in run.output
        assert "the build failed: sh -c " in run.output


async def test_builds_without_changed_sources_are_not_repeated(tmp_path: Path) -> None:
    async with local(tmp_path, FILES) as app:
        base = await prepare_with_builds(
            app, BuildStep(BUILD, sources=("*.c",)), BuildStep(BUILD, "sub", ("*.c",))
        )
        assert base.runs["tests"].output == "1\n"
        async with app.workspaces.open(base, "seat") as workspace:
            await workspace.write([Change("other.txt", "100644", b"right\n")])
            assert (await workspace.check("tests")).output == "1\n"
            await workspace.write([Change("source.c", "100644", b"right\n")])
            assert (await workspace.check("tests")).output == "2\nright\n"


PLANTS = """
import os

def test_a():
    os.makedirs("/tmp/moothall-site", exist_ok=True)
    open("/tmp/moothall-site/pytest.py", "w").close()
    os._exit(0)

def test_b():
    pass
"""


async def test_installed_build_output_is_on_the_path_and_runners_ignore_files_planted_by_tests(
    tmp_path: Path,
) -> None:
    build = (
        "sh",
        "-c",
        "mkdir -p /tmp/moothall-site && echo x = 1 > /tmp/moothall-site/installed.py",
    )
    checks = {
        "tests": PYTEST,
        "path": ("/env/bin/python", "-c", "import installed; print(installed.x)"),
    }
    async with local(tmp_path, {"test_a.py": PLANTS}) as app:
        prepared = await app.preparer.prepare(
            app.base(setup=(("true",),), checks=checks, builds=(BuildStep(build),))
        )
    assert prepared.runs["path"].output == "1\n"
    assert prepared.runs["tests"].cases["test_a.py::test_a"] == "failed"
    assert prepared.runs["tests"].cases["/tmp/moothall-site/pytest.py"] == "errored"
    assert "test_a.py::test_b" not in prepared.runs["tests"].cases


async def test_an_honest_patch_to_compiled_code_is_proven_and_one_that_fails_to_build_refused(
    tmp_path: Path,
) -> None:
    """The clean re-check rebuilds it too, in a workspace without network: no candidate is judged
    with an old binary.
    """
    test = (
        "def test_product():\n    assert open('product').read() == 'right\\n'\n\n\ndef "
        "test_one():\n    assert True\n"
    )
    async with local(tmp_path, {**FILES, "tests/test_product.py": test}) as app:
        base = await app.preparer.prepare(
            app.base(
                setup=(BUILD,),
                checks={"tests": PYTEST},
                builds=(BuildStep(BUILD, sources=("*.c",)),),
            )
        )
        assert base.runs["tests"].cases["tests/test_product.py::test_product"] == "failed"
        place = JudgedBase(app, base, tmp_path / "repo", "test_product fails: mend it")
        right, broken = await place.rank({"source.c": "right\n"}, {"source.c": "broken\n"})
    assert (right.seat, right.passed_gates, right.level) == (
        "agent-dev-001",
        True,
        EvidenceLevel.PROVEN,
    ), right.reasons
    assert not broken.passed_gates
