"""Workspaces in pods, without a cluster: the real link, trunk and hands; only the containers are sandboxes of this machine.

`tests/e2e/k8s` does the same in a real cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moothall.domain.evidence import Verdict
from moothall.domain.repository import Prepared
from moothall.domain.tool import ToolStatus
from support.local import PYTEST, Local, local
from support.repos import SAMPLE, SOLUTION

pytestmark = pytest.mark.e2e

UTILS, TESTS = "src/utils.py", "tests/test_utils.py"
FILES = {**SAMPLE, "pkg/one.txt": "1\n", "pkg/two.txt": "2\n", "run.sh": "echo\n"}


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Local]:
    tmp_path.chmod(0o755)
    async with local(tmp_path, FILES, in_pods=True) as house:
        yield house


@pytest.fixture
async def prepared(house: Local) -> Prepared:
    return await house.prepared({"tests": PYTEST}, protected=("tests/**", "conftest.py"))


async def test_from_a_failing_test_to_a_patch_that_holds(house: Local, prepared: Prepared) -> None:
    async with house.workspaces.open(prepared, "one") as workspace:
        before = await workspace.check("tests")
        assert (before.verdict, before.cases[f"{TESTS}::test_hello_world"]) == (Verdict.FAILED, "failed")
        done = await house.call(workspace, "files.append", path=UTILS, content=SOLUTION)
        assert done.status is ToolStatus.SUCCESS
        tests = await house.call(workspace, "tests.pytest", keyword="hello_world")
        assert tests.output["verdict"] == "passed"
        patch = await workspace.patch("Add hello_world()")
    assert patch.paths == (UTILS,)
    async with house.workspaces.open(prepared, "clean", patch=patch.diff, judged=True) as workspace:
        assert (await workspace.check("tests", [TESTS])).verdict is Verdict.PASSED
    assert house.pods is not None
    assert house.pods.pods == ()
