"""A test that must fail runs beside the proving cases: a runner that does not report its failure is
not trusted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from test_evidence import POOLS, Pool

from moothall.domain.evidence import CANARY, EvidenceLevel
from moothall.ranking import passes_acceptance_checks
from support.judged_base import judged_base

pytestmark = [pytest.mark.e2e, pytest.mark.evidence]

_TASK = "discount() is wrong and test_percents fails: make the failing tests pass"
_REPLACED_REPORT = """
import sys
_lines = next(module.Lines for module in list(sys.modules.values()) if hasattr(module, "Lines"))
_old = _lines.write
def _write(self, **line):
    if "result" in line:
        line["result"] = "passed"
    _old(self, **line)
_lines.write = _write
"""
_SKIPPED = """
import unittest
unittest.TestCase.run = lambda self, result=None: result.startTest(self) or result.addSuccess(self) or result.stopTest(self)
"""  # noqa: E501 - a line of embedded text
_ASSERTIONS = "\nimport unittest\nunittest.TestCase.assertEqual = lambda *args: None\n"
_ENDS_GO = """

func init() {
	os.Stdout.WriteString("=== RUN   TestNothing\\n--- PASS: TestNothing (0.00s)\\n=== RUN   TestPercents\\n--- PASS: TestPercents (0.00s)\\nPASS\\n")
	os.Exit(0)
}
"""  # noqa: E501 - a line of embedded text
_ASSERTIONS_NODE = "\nrequire('node:assert').strictEqual = () => {};\n"


def _files(pool: Pool, source: str, prefix: str = "", suffix: str = "") -> Mapping[str, str]:
    return {source: prefix + pool.base[source] + suffix}


def _go(pool: Pool) -> Mapping[str, str]:
    return {
        "shop.go": pool.base["shop.go"].replace("package shop\n", 'package shop\n\nimport "os"\n')
        + _ENDS_GO
    }


FORGED: Mapping[str, tuple[str, Callable[[Pool], Mapping[str, str]]]] = {
    "a report that is replaced": (
        "pytest, existing file",
        lambda pool: _files(pool, "shop/price.py", suffix=_REPLACED_REPORT),
    ),
    "no test of unittest runs": (
        "unittest, existing file",
        lambda pool: _files(pool, "shop/price.py", suffix=_SKIPPED),
    ),
    "assertions that do nothing": (
        "unittest, existing file",
        lambda pool: _files(pool, "shop/price.py", suffix=_ASSERTIONS),
    ),
    "a Go program that prints a report and ends with 0": ("go, existing file", _go),
    "assertions of Node that do nothing": (
        "node:test, existing file",
        lambda pool: _files(pool, "shop.js", suffix=_ASSERTIONS_NODE),
    ),
}


@pytest.mark.parametrize("name", FORGED)
async def test_a_report_without_the_canarys_failure_is_not_trusted(
    tmp_path: Path, name: str
) -> None:
    pool, forge = POOLS[FORGED[name][0]], FORGED[name][1]
    if shutil.which(pool.program) is None:
        pytest.skip(f"{pool.program} is not installed; apt-get install golang or nodejs brings it")
    async with judged_base(tmp_path, {**pool.base, **pool.test}, pool.argv, task=_TASK) as place:
        evaluator = place.evaluator()
        judged = await place.confirmed(forge(pool), evaluator)
        (tests, *_) = judged.assessment.evidence
        assert not passes_acceptance_checks(judged)
        assert judged.level is not EvidenceLevel.PROVEN
        assert (tests.verdict, "must fail" in tests.why) == ("missing", True), tests
        right = await place.confirmed(pool.right_patch, evaluator)
    assert (passes_acceptance_checks(right), right.level) == (True, EvidenceLevel.PROVEN), (
        right.assessment
    )
    assert not any(item.check == CANARY for item in right.assessment.evidence)
    assert not any("z" in item.red for item in right.assessment.evidence)


@pytest.mark.parametrize("name", [name for name in POOLS if name.startswith("cargo")])
async def test_an_honest_answer_is_trusted_and_the_canary_is_not_counted(
    tmp_path: Path, name: str
) -> None:
    pool = POOLS[name]
    if shutil.which(pool.program) is None:
        pytest.skip(
            f"{pool.program} is not installed; apt-get install golang, nodejs npm or cargo brings "
            "it"
        )
    async with judged_base(tmp_path, {**pool.base, **pool.test}, pool.argv, task=_TASK) as place:
        judged = await place.confirmed(pool.right_patch)
        base = place.prepared.runs["tests"]
    (tests, *_) = judged.assessment.evidence
    assert passes_acceptance_checks(judged), judged.assessment
    assert tests.passed + tests.failed + tests.skipped >= len(base.cases)
    assert not any(item.check == CANARY for item in judged.assessment.evidence), (
        "the canary could not be placed"
    )


async def test_a_report_is_believed_with_a_notice_if_no_failing_test_can_be_located(
    tmp_path: Path,
) -> None:
    """`load_tests` of unittest chooses the tests of a file itself."""
    pool = POOLS["unittest, existing file"]
    (path,) = pool.test
    chosen = pool.test[path] + (
        "\n\ndef load_tests(loader, standard, pattern):\n    return "
        "loader.loadTestsFromTestCase(Prices)\n"
    )
    async with judged_base(tmp_path, {**pool.base, path: chosen}, pool.argv, task=_TASK) as place:
        (ranked,) = await place.rank(pool.right_patch)
    assert (ranked.passed_gates, ranked.level) == (True, EvidenceLevel.PROVEN)
    assert any(
        "No test that must fail could be placed in tests" in reason for reason in ranked.reasons
    )
