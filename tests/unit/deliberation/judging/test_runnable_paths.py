"""The test files of an agent, and how the checks of a repository run them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from moothall.deliberation.judging.agent_tests import extract_tests
from moothall.deliberation.judging.author_tests import runnable_paths
from moothall.deliberation.judging.clean_runs import CleanCheckoutRunner
from moothall.deliberation.judging.hidden import contains_tests
from moothall.domain.repository import Patch, Profile

_JAVA = "src/test/java/shop/PriceTest.java"
_DIFF = f"""diff --git a/{_JAVA} b/{_JAVA}
--- a/{_JAVA}
+++ b/{_JAVA}
@@ -1 +1,2 @@
 class PriceTest {{
+    @Test void percents() {{}}
"""


def _runner(**profile: Any) -> CleanCheckoutRunner:
    base = SimpleNamespace(profile=Profile(checks={"tests": ("mvn", "-o", "test")}, **profile))
    return cast(
        "CleanCheckoutRunner",
        SimpleNamespace(prepared=SimpleNamespace(base=base, files=(_JAVA, "src/test/data.txt"))),
    )


async def test_a_check_with_report_files_runs_whole_for_tests_that_its_runner_cannot_name() -> None:
    reports = {"tests": ("target/surefire-reports/*.xml",)}
    assert await runnable_paths(_runner(reports=reports), (_JAVA,), "") == {"tests": ()}


async def test_a_check_of_one_case_does_not_run_for_such_tests() -> None:
    assert await runnable_paths(_runner(), (_JAVA,), "") == {}


async def test_tests_added_to_an_existing_java_file_are_taken_over() -> None:
    patch = Patch("b" * 40, "c" * 40, _DIFF, tests=(_JAVA,))
    assert (await extract_tests(_runner(), patch, "test-writer", "qa")).own_tests == (_JAVA,)


def test_data_and_helpers_among_tests_contain_no_tests() -> None:
    for path in (_JAVA, "tests/misc_tests.c", "test/test_cart.rb", "tests/CartTest.php"):
        assert contains_tests(path), path
    for path in ("src/test/java/shop/Prices.java", "tests/common.h", "src/test/resources/a.json"):
        assert not contains_tests(path), path
