from __future__ import annotations

from pathlib import Path

import pytest

from moothall.domain.evidence import Verdict
from support.local import PYTEST, local

pytestmark = pytest.mark.e2e
HOOK = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.outcome = "passed"
    return report
"""
TESTS = "tests/test_utils.py"


@pytest.mark.parametrize(
    "diff_of",
    [
        "rm tests/test_utils.py",
        "echo 'def test_hello_world(): pass' > tests/test_utils.py",
        "rm -r tests; echo x > tests",
        "rm tests/test_utils.py; mkdir tests/test_utils.py; echo x > tests/test_utils.py/x",
        f"cat > conftest.py <<END\n{HOOK}\nEND\n",
        (
            "printf '[pytest]\\naddopts = --deselect tests/test_utils.py::test_hello_world\\n' > "
            "pytest.ini"
        ),
    ],
)
async def test_editing_protected_tests_gains_nothing(tmp_path: Path, diff_of: str) -> None:
    async with local(tmp_path) as app:
        prepared = await app.prepared({"tests": PYTEST}, protected=("tests/**", "conftest.py"))
        async with app.workspaces.open(prepared, "cheat") as workspace:
            answer = await workspace._executor.request(
                "run", wall_seconds=10, argv=("sh", "-c", diff_of), env={"PATH": "/usr/bin:/bin"}
            )
            assert answer["exit_code"] == 0, answer["output"]
            patch = await workspace.patch("cheat")
        assert patch.diff
        async with app.workspaces.open(
            prepared, "judge", patch=patch.diff, judged=True
        ) as workspace:
            run = await workspace.check("tests")
    assert (run.verdict, run.cases[f"{TESTS}::test_hello_world"]) == (Verdict.FAILED, "failed")
