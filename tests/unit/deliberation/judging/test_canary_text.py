"""The source of the test that must fail, in the language of each runner."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moothall.deliberation.judging.further_runs import Canary, find_case_file, make_canary
from moothall.domain.evidence import CheckRun, Verdict

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

_VITEST = "import { it, expect } from 'vitest';\nit('b', () => expect(1).toBe(1));\n"
_JEST = "describe('a', () => {\n  test('b', () => expect(1).toBe(1));\n});\n"
_MOCHA = (
    "const assert = require('node:assert');\ndescribe('a', () => {\n  it('b', () => "
    "assert.ok(true));\n});\n"
)
_NODE = "const { test } = require('node:test');\ntest('b', () => {});\n"
_NODE_MODULE = "import test from 'node:test';\ntest('b', () => {});\n"


def _canary_for(argv: tuple[str, ...], path: str, source: str, case: str = "") -> Canary:
    canary = make_canary(argv, case or f"{path}::b", path, source)
    assert canary is not None
    return canary


@pytest.mark.parametrize(
    ("argv", "path", "source", "text"),
    [
        (("npx", "vitest", "run"), "a.test.ts", _VITEST, "from 'vitest'"),
        (("npm", "test"), "a.test.js", _JEST, ";test('"),
        (("npm", "test"), "a.test.js", _JEST, "expect(1).toBe(2)"),
        (("npm", "test"), "a.spec.cjs", _MOCHA, ";it('"),
        (("npm", "test"), "a.spec.cjs", _MOCHA, "require('assert').strictEqual(1, 2)"),
        (("node", "--test"), "a.test.js", _NODE, "require('node:test')("),
        (("node", "--test"), "a.test.mjs", _NODE_MODULE, "from 'node:assert'"),
        (("go", "test", "./..."), "a_test.go", "package a\n", "(t *testing.T) {"),
        (("cargo", "test"), "tests/a.rs", "", "#[test]"),
    ],
)
def test_each_runner_has_a_canary_template(
    argv: tuple[str, ...], path: str, source: str, text: str
) -> None:
    canary = _canary_for(argv, path, source)
    assert text in canary.text
    assert canary.name in canary.text
    assert canary.name in canary.case


def test_canary_names_are_unique_and_an_unknown_runner_has_no_canary() -> None:
    assert (
        _canary_for(("pytest",), "tests/test_a.py", "").name
        != _canary_for(("pytest",), "tests/test_a.py", "").name
    )
    assert make_canary(("make", "test"), "tests/test_a.py::b", "tests/test_a.py", "") is None
    assert make_canary(("./check.sh",), "a.test.js::b", "a.test.js", _JEST) is None


def test_a_case_of_a_go_package_is_found_in_the_packages_folder() -> None:
    files = ("a_test.go", "sub/b_test.go", "sub/deep/c_test.go", "tests/test_a.py")
    assert find_case_file("example.org/m::TestA", files) == "a_test.go"
    assert find_case_file("example.org/m/sub::TestB", files) == "sub/b_test.go"
    assert find_case_file("example.org/m/sub/deep::TestC", files) == "sub/deep/c_test.go"
    assert find_case_file("tests/test_a.py::test_a", files) == "tests/test_a.py"
    assert find_case_file("m tests/a.rs::b", (*files, "tests/a.rs")) == "tests/a.rs"


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_the_python_canary_fails_under_each_runner(tmp_path: Path, runner: str) -> None:
    argv = (sys.executable, "-m", runner)
    canary = _canary_for(
        argv, "test_a.py", "", "test_a.py::test_b" if runner == "pytest" else "test_a.A.test_b"
    )
    (tmp_path / "test_a.py").write_text("def test_b():\n    pass\n" + canary.text, encoding="utf-8")
    narrowed = (canary.case,) if runner == "pytest" else ("-v", "-k", canary.case)
    completed = subprocess.run(
        [*argv, *narrowed], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 1
    assert "1 != 2" in completed.stdout + completed.stderr
    assert canary.name in completed.stdout + completed.stderr


@pytest.mark.parametrize(("path", "source"), [("a.test.cjs", _NODE), ("a.test.mjs", _NODE_MODULE)])
def test_the_canary_of_node_fails_and_the_other_tests_pass(
    tmp_path: Path, path: str, source: str
) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed; apt-get install nodejs brings it")
    canary = _canary_for(("node", "--test"), path, source)
    (tmp_path / path).write_text(source + canary.text, encoding="utf-8")
    completed = subprocess.run(
        ["node", "--test", "--test-reporter=tap", path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"not ok 2 - {canary.name}" in completed.stdout
    assert "ok 1 - b" in completed.stdout


def test_only_a_failed_case_with_the_canarys_name_counts() -> None:
    canary = _canary_for(("pytest",), "tests/test_a.py", "")
    assert canary.failed_in(CheckRun("tests", Verdict.FAILED, {canary.case: "failed"}))
    assert not canary.failed_in(CheckRun("tests", Verdict.PASSED, {canary.case: "passed"}))
    assert not canary.failed_in(
        CheckRun("tests", Verdict.FAILED, {"tests/test_a.py::test_b": "failed"})
    )
    assert not canary.failed_in(None)
