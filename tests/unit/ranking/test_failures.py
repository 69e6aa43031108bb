"""The assertion of a failed case, parsed from the output of real runners."""

from __future__ import annotations

import pytest

from moothall.ranking.failures import FailureReader

MOCHA = ("lib/a.js", "test/a.test.js")
JEST = ("src/a.js", "src/a.test.js")
VITEST = ("src/a.js", "src/a.test.js")
NODETEST = ("lib/a.js", "test/a.test.js")
GO = ("a.go", "a_test.go", "p/p_test.go")
CARGO = ("src/lib.rs", "tests/it.rs")
UNITTEST = ("calc.py", "tests/__init__.py", "tests/test_calc.py")
UNITTEST_FRAMES = (
    "Traceback (most recent call last):\n"
    '  File "/root/.pyenv/versions/3.11.7/lib/python3.11/unittest/case.py", line 57, in '
    "testPartExecutor\n"
    "    yield\n"
    '  File "/root/.pyenv/versions/3.11.7/lib/python3.11/unittest/case.py", line 623, in run\n'
    "    self._callTestMethod(testMethod)\n"
    '  File "/root/.pyenv/versions/3.11.7/lib/python3.11/unittest/case.py", line 579, in '
    "_callTestMethod\n"
    "    if method() is not None:\n"
    "       ^^^^^^^^\n"
)
PYTEST = ("calc.py", "pyproject.toml", "tests/test_calc.py")
CASES = [
    (
        MOCHA,
        "test/a.test.js::sums > adds",
        (
            "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:\n"
            "\n"
            "-1 !== 5\n"
            "\n"
            "    at Context.<anonymous> (test/a.test.js:3:25)\n"
            "    at process.processImmediate (node:internal/timers:483:21)"
        ),
        (
            "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal: -1 !== 5 "
            "(test/a.test.js:3)"
        ),
    ),
    (
        MOCHA,
        "test/a.test.js::sums > deep",
        (
            "AssertionError [ERR_ASSERTION]: Expected values to be strictly deep-equal:\n"
            "+ actual - expected\n"
            "\n"
            "  {\n"
            "    a: 1,\n"
            "    b: [\n"
            "      1,\n"
            "+     2\n"
            "-     3\n"
            "    ]\n"
            "  }\n"
            "    at Context.<anonymous> (test/a.test.js:5:25)\n"
            "    at process.processImmediate (node:internal/timers:483:21)"
        ),
        (
            "AssertionError [ERR_ASSERTION]: Expected values to be strictly deep-equal: + actual - "
            "expected { a: 1, b: [ 1, + 2 - 3 ] } (test/a.test.js:5)"
        ),
    ),
    (
        MOCHA,
        "test/a.test.js::sums > throws",
        (
            "TypeError: Cannot read properties of undefined (reading 'x')\n"
            "    at exports.boom (lib/a.js:1:61)\n"
            "    at Context.<anonymous> (test/a.test.js:6:20)\n"
            "    at process.processImmediate (node:internal/timers:483:21)"
        ),
        "TypeError: Cannot read properties of undefined (reading 'x') (lib/a.js:1)",
    ),
    (
        JEST,
        "src/a.test.js::sums > adds",
        (
            "Error: expect(received).toBe(expected) // Object.is equality\n"
            "\n"
            "Expected: 5\n"
            "Received: -1\n"
            "    at Object.toBe (/workspace/src/a.test.js:3:37)\n"
            "    at Promise.then.completed "
            "(/workspace/node_modules/jest-circus/build/utils.js:298:28)\n"
            "    at new Promise (<anonymous>)\n"
            "    at callAsyncCircusFn (/workspace/node_modules/jest-circus/build/utils.js:231:10)\n"
            "    at _callCircusTest (/workspace/node_modules/jest-circus/build/run.js:316:40)"
        ),
        (
            "Error: expect(received).toBe(expected) // Object.is equality, Expected: 5, Received: "
            "-1 (src/a.test.js:3)"
        ),
    ),
    (
        JEST,
        "src/a.test.js::sums > throws",
        (
            "TypeError: Cannot read properties of undefined (reading 'x')\n"
            "    at x (/workspace/src/a.js:1:61)\n"
            "    at Object.boom (/workspace/src/a.test.js:5:22)\n"
            "    at Promise.then.completed "
            "(/workspace/node_modules/jest-circus/build/utils.js:298:28)\n"
            "    at new Promise (<anonymous>)\n"
            "    at callAsyncCircusFn (/workspace/node_modules/jest-circus/build/utils.js:231:10)\n"
            "    at _callCircusTest (/workspace/node_modules/jest-circus/build/run.js:316:40)\n"
            "    at _runTest (/workspace/node_modules/jest-circus/build/run.js:252:3)\n"
            "    at _runTestsForDescribeBlock "
            "(/workspace/node_modules/jest-circus/build/run.js:126:9)"
        ),
        "TypeError: Cannot read properties of undefined (reading 'x') (src/a.js:1)",
    ),
    (
        VITEST,
        "src/a.test.js::sums > adds",
        (
            "AssertionError: expected -1 to be 5 // Object.is equality\n"
            "    at /workspace/src/a.test.js:3:37\n"
            "    at file:///workspace/node_modules/@vitest/runner/dist/index.js:146:14\n"
            "    at file:///workspace/node_modules/@vitest/runner/dist/index.js:533:11\n"
            "    at runWithTimeout "
            "(file:///workspace/node_modules/@vitest/runner/dist/index.js:39:7)\n"
            "    at runTest (file:///workspace/node_modules/@vitest/runner/dist/index.js:1056:17)\n"
            "    at processTicksAndRejections (node:internal/process/task_queues:95:5)\n"
            "    at runSuite "
            "(file:///workspace/node_modules/@vitest/runner/dist/index.js:1205:15)\n"
            "    at runSuite (file:///workspace/node_modules/@vitest/runner/dist/index.js:1205:15)"
        ),
        "AssertionError: expected -1 to be 5 // Object.is equality (src/a.test.js:3)",
    ),
    (
        VITEST,
        "src/a.test.js::sums > throws",
        (
            "TypeError: Cannot read properties of undefined (reading 'x')\n"
            "    at Module.boom (/workspace/src/a.js:1:71)\n"
            "    at /workspace/src/a.test.js:5:22\n"
            "    at file:///workspace/node_modules/@vitest/runner/dist/index.js:146:14\n"
            "    at file:///workspace/node_modules/@vitest/runner/dist/index.js:533:11\n"
            "    at runWithTimeout "
            "(file:///workspace/node_modules/@vitest/runner/dist/index.js:39:7)\n"
            "    at runTest (file:///workspace/node_modules/@vitest/runner/dist/index.js:1056:17)\n"
            "    at processTicksAndRejections (node:internal/process/task_queues:95:5)\n"
            "    at runSuite (file:///workspace/node_modules/@vitest/runner/dist/index.js:1205:15)"
        ),
        "TypeError: Cannot read properties of undefined (reading 'x') (src/a.js:1)",
    ),
    (
        NODETEST,
        "test/a.test.js::adds",
        (
            "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:\n"
            "\n"
            "-1 !== 5\n"
            "\n"
            "    at TestContext.<anonymous> (/workspace/test/a.test.js:2:26)\n"
            "    at Test.runInAsyncScope (node:async_hooks:206:9)\n"
            "    at Test.run (node:internal/test_runner/test:796:25)"
        ),
        (
            "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal: -1 !== 5 "
            "(test/a.test.js:2)"
        ),
    ),
    (
        GO,
        "example.org/m/p::TestPanics",
        (
            "=== RUN   TestPanics\n"
            "--- FAIL: TestPanics (0.00s)\n"
            "panic: assignment to entry in nil map [recovered, repanicked]\n"
            "\n"
            "goroutine 3 [running]:\n"
            "testing.tRunner.func1.2({0x55a7a0, 0x6cae70})\n"
            "\t/usr/local/go/src/testing/testing.go:1974 +0x232\n"
            "testing.tRunner.func1()\n"
            "\t/usr/local/go/src/testing/testing.go:1977 +0x349\n"
            "panic({0x55a7a0?, 0x6cae70?})\n"
            "\t/usr/local/go/src/runtime/panic.go:860 +0x13a\n"
            "example.org/m/p.TestPanics(0x24b40f61a248?)\n"
            "\t/workspace/p/p_test.go:5 +0x28\n"
            "testing.tRunner(0x24b40f61a248, 0x592e38)\n"
            "\t/usr/local/go/src/testing/testing.go:2036 +0xea\n"
            "created by testing.(*T).Run in goroutine 1\n"
            "\t/usr/local/go/src/testing/testing.go:2101 +0x4c5"
        ),
        "panic: assignment to entry in nil map (p/p_test.go:5)",
    ),
    (
        GO,
        "example.org/m::TestAdd",
        "=== RUN   TestAdd\n    a_test.go:13: Add(2, 3) = -1, want 5\n--- FAIL: TestAdd (0.00s)",
        "Add(2, 3) = -1, want 5 (a_test.go:13)",
    ),
    (
        GO,
        "example.org/m::TestTable",
        "=== RUN   TestTable\n--- FAIL: TestTable (0.00s)",
        "",
    ),
    (
        GO,
        "example.org/m::TestLogs",
        (
            "=== RUN   TestLogs\n"
            "    a_test.go:31: starting with a log line\n"
            "    a_test.go:32: values differ:\n"
            "         got 1\n"
            "        want 2\n"
            "--- FAIL: TestLogs (0.00s)"
        ),
        "values differ: got 1 want 2 (a_test.go:32)",
    ),
    (
        GO,
        "example.org/m::TestAssert",
        (
            "=== RUN   TestAssert\n"
            "    a_test.go:35: \n"
            "        \tError Trace:\t/workspace/a_test.go:35\n"
            "        \tError:      \tNot equal: \n"
            "        \t            \texpected: 5\n"
            "        \t            \tactual  : -1\n"
            "        \tTest:       \tTestAssert\n"
            "        \tMessages:   \tthe sum\n"
            "--- FAIL: TestAssert (0.00s)"
        ),
        "Not equal: expected: 5, actual : -1 (the sum) (a_test.go:35)",
    ),
    (
        GO,
        "example.org/m::TestRequire",
        (
            "=== RUN   TestRequire\n"
            "    a_test.go:36: \n"
            "        \tError Trace:\t/workspace/a_test.go:36\n"
            "        \tError:      \tReceived unexpected error:\n"
            "        \t            \tfoo went wrong\n"
            "        \tTest:       \tTestRequire\n"
            "--- FAIL: TestRequire (0.00s)"
        ),
        "Received unexpected error: foo went wrong (a_test.go:36)",
    ),
    (
        CARGO,
        "c src/lib.rs::tests::adds",
        (
            "thread 'tests::adds' (106) panicked at src/lib.rs:6:17:\n"
            "assertion `left == right` failed\n"
            "  left: -1\n"
            " right: 5\n"
            "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace"
        ),
        "assertion `left == right` failed, left: -1, right: 5 (src/lib.rs:6)",
    ),
    (
        CARGO,
        "c src/lib.rs::tests::result",
        'Error: "it failed"',
        'Error: "it failed"',
    ),
    (
        CARGO,
        "c src/lib.rs::tests::should",
        "note: test did not panic as expected at src/lib.rs:17:8",
        "test did not panic as expected (src/lib.rs:17)",
    ),
    (
        UNITTEST,
        "tests.test_calc.T.test_add",
        (
            f"{UNITTEST_FRAMES}"
            '  File "/workspace/tests/test_calc.py", line 8, in test_add\n'
            "    self.assertEqual(add(2, 3), 5)\n"
            "AssertionError: -1 != 5"
        ),
        "AssertionError: -1 != 5 (tests/test_calc.py:8)",
    ),
    (
        UNITTEST,
        "tests.test_calc.T.test_boom",
        (
            f"{UNITTEST_FRAMES}"
            '  File "/workspace/tests/test_calc.py", line 20, in test_boom\n'
            "    boom()\n"
            '  File "/workspace/calc.py", line 6, in boom\n'
            '    raise ValueError("no\\nway")\n'
            "ValueError: no\n"
            "way"
        ),
        "ValueError: no way (calc.py:6)",
    ),
    (
        UNITTEST,
        "tests.test_calc.T.test_text",
        (
            f"{UNITTEST_FRAMES}"
            '  File "/workspace/tests/test_calc.py", line 14, in test_text\n'
            '    self.assertEqual("one\\ntwo\\n", "one\\nthree\\n")\n'
            "AssertionError: 'one\\ntwo\\n' != 'one\\nthree\\n'\n"
            "  one\n"
            "- two\n"
            "+ three"
        ),
        "AssertionError: 'one\\ntwo\\n' != 'one\\nthree\\n' (tests/test_calc.py:14)",
    ),
    (
        PYTEST,
        "tests/test_calc.py::test_add",
        (
            "tests/test_calc.py:5: in test_add\n    assert add(2, 3) == 5\nE   assert -1 == 5\nE  "
            "  + "
            " where -1 = add(2, 3)"
        ),
        "assert -1 == 5 (tests/test_calc.py:5)",
    ),
    (
        PYTEST,
        "tests/test_calc.py::test_helper",
        (
            "tests/test_calc.py:8: in test_helper\n"
            "    check(add(1, 1))\n"
            "tests/test_calc.py:11: in check\n"
            '    assert x == 2, f"got {x}"\n'
            "E   AssertionError: got 0\n"
            "E   assert 0 == 2"
        ),
        "AssertionError: got 0 (tests/test_calc.py:11)",
    ),
    (
        PYTEST,
        "tests/test_calc.py::test_boom",
        (
            "tests/test_calc.py:14: in test_boom\n"
            "    boom()\n"
            "calc.py:6: in boom\n"
            '    raise ValueError("no\\nway")\n'
            "E   ValueError: no\n"
            "E   way"
        ),
        "ValueError: no (calc.py:6)",
    ),
]


@pytest.mark.parametrize(
    ("files", "case", "detail", "expected"),
    CASES,
    ids=lambda value: "" if isinstance(value, tuple) else None,
)
def test_the_assertion_and_its_location_are_read(
    files: tuple[str, ...], case: str, detail: str, expected: str
) -> None:
    assert str(FailureReader(files).read_failure(case, detail)) == expected


JAVA = (
    "expected: <5> but was: <-1>\norg.opentest4j.AssertionFailedError: expected: <5> but was: "
    "<-1>\n"
)
SUITE = (
    "  ● Test suite failed to run\n\n    Cannot find module './b' from 'a.test.js'\n\n      1 | "
    "require('./b')\n        | ^\n\n"
)
GROUP = (
    '  + Exception Group Traceback (most recent call last):\n  |   File "/workspace/test_a.py", '
    "line 17, in test_group\n"
    "  |     raise ExceptionGroup(...)\n  | ExceptionGroup: several (1 sub-exception)\n  "
    "+-+---------------- 1 ----------------\n"
    "    | ValueError: one\n    +------------------------------------\n"
)
OTHERS = [
    (
        ("tests/CalcTest.php",),
        "t",
        "Failed asserting that -1 is 5.\n\n/workspace/tests/CalcTest.php:12",
        "Failed asserting that -1 is 5. (tests/CalcTest.php:12)",
    ),
    (
        ("spec/a_spec.rb",),
        "t",
        "expected: 5\n     got: -1\n\n(compared using ==)\n./spec/a_spec.rb:5:in `block'",
        "expected: 5, got: -1 (spec/a_spec.rb:5)",
    ),
    (
        ("src/test/java/x/ATest.java",),
        "x.ATest::adds",
        (
            f"{JAVA}\tat org.junit.AssertionUtils.fail(AssertionUtils.java:55)\n\tat "
            "x.ATest.adds(ATest.java:12)"
        ),
        (
            "org.opentest4j.AssertionFailedError: expected: <5> but was: <-1> "
            "(src/test/java/x/ATest.java:12)"
        ),
    ),
    (
        ("src/lib.rs",),
        "t",
        (
            "thread 'x' panicked at 'assertion failed: `(left == right)`\n  left: `-1`,\n right: "
            "`5`', src/lib.rs:6:17\nnote: run"
        ),
        "assertion failed: `(left == right)`, left: `-1`, right: `5` (src/lib.rs:6)",
    ),
    (
        ("p/a_test.go",),
        "m/p",
        "# m/p\np/a_test.go:5:2: undefined: x\nFAIL\tm/p [build failed]",
        "undefined: x (p/a_test.go:5)",
    ),
    (
        ("a.js",),
        "a.js::f",
        "operator: equal\nexpected: 2\nactual:   1\nat: f (a.js:1:1)",
        "expected: 2, actual: 1 (a.js:1)",
    ),
    (
        ("a.test.js",),
        "a.test.js",
        f"{SUITE}      at Object.require (a.test.js:1:1)",
        "Cannot find module './b' from 'a.test.js' (a.test.js:1)",
    ),
    (
        ("test_a.py",),
        "test_a",
        GROUP,
        "ExceptionGroup: several (1 sub-exception) ValueError: one (test_a.py:17)",
    ),
    (
        ("x.py",),
        "x",
        'hit the limit of 10 s\n  File "/workspace/x.py", line 4, in f',
        "hit the limit of 10 s (x.py:4)",
    ),
    (
        ("x.js",),
        "x",
        "\x1b[31mError: no\x1b[39m\n    at /usr/lib/x.js:1:1\n    at node_modules/y/x.js:2:2",
        "Error: no",
    ),
    ((), "x", "noise\nthe last line", "the last line"),
    ((), "x", "", ""),
    (
        ("q_test.go",),
        "m::TestZ",
        "=== RUN   TestZ\nFAIL\tm\t0.006s\n",
        "the test process ended in it",
    ),
]


@pytest.mark.parametrize(("files", "case", "detail", "expected"), OTHERS)
def test_other_failure_formats_are_read(
    files: tuple[str, ...], case: str, detail: str, expected: str
) -> None:
    assert str(FailureReader(files).read_failure(case, detail)) == expected


def test_the_case_disambiguates_files_of_the_same_name() -> None:
    files = ("a/x_test.go", "b/x_test.go", "packages/a/t.js", "packages/b/t.js")
    failures = FailureReader(files)
    assert (
        failures.read_failure("m/b::TestX", "=== RUN   TestX\n    x_test.go:3: no\n").path
        == "b/x_test.go"
    )
    assert (
        failures.read_failure("packages/b/t.js::t", "Error: no\n    at f (t.js:3:25)").path
        == "packages/b/t.js"
    )
    assert failures.read_failure("t", "Error: no\n    at f (t.js:3:25)").path == "t.js"


@pytest.mark.parametrize(
    "detail",
    [
        "\n" * 20_000,
        "a." * 10_000,
        "E " * 10_000,
        "    at " * 3000,
        "=== RUN \n" + "    x.go:1: \n" * 2000,
    ],
)
def test_hostile_output_is_bounded_and_does_not_fail(detail: str) -> None:
    assert len(str(FailureReader(("a.py",)).read_failure("x", detail))) <= 1000
