from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.sandbox_runtime.cases import Cases
from moothall.sandbox_runtime.streams import Stream

CARGO = """   Compiling itoa v1.0.11
     Running unittests src/lib.rs (target/debug/deps/itoa-0123456789abcdef)

running 2 tests
test tests::one ... ok
test tests::two - should panic ... FAILED

failures:

---- tests::two - should panic stdout ----
note: test did not panic as expected

failures:
    tests::two

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

error: test failed, to rerun pass `--lib`
     Running tests/test.rs (target/debug/deps/test-0123456789abcdef)

running 2 tests
test test_i64 ... ok
test test_slow ... ignored, too slow

test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/crash.rs (target/debug/deps/crash-0123456789abcdef)

running 2 tests
error: test failed, to rerun pass `--test crash`
   Doc-tests itoa

running 2 tests
test src/lib.rs - Buffer (line 12) ... ok
test src/lib.rs - Buffer (line 40) ... ok

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.71s
"""
TAP = """TAP version 13
# adds
not ok 1 should be equal
  ---
    expected: 3
  ...
ok 2 should be equal
# later
ok 3 # SKIP not today
# Subtest: outer
    # Subtest: inner
    ok 1 - inner
      ---
      duration_ms: 1
      ...
    1..1
ok 4 - outer # time=3ms
1..4
"""
NEXTEST = """    Starting 3 tests across 1 binary
        PASS [   0.004s] itoa tests::one
        FAIL [   0.011s] (2/3) itoa::test tests::two
        SKIP [         ] itoa tests::three
     Summary [   0.012s] 2 tests run: 1 passed, 1 failed, 1 skipped
"""

NEXTEST_AGAIN = """    Finished `test` profile [unoptimized + debuginfo] target(s) in 0.91s
────────────
 Nextest run ID 7165744f-d8a7-4ed3-8624-fa3d33255c90 with nextest profile: default
    Starting 5 tests across 2 binaries (1 test skipped)
        PASS [   0.004s] (1/5) nx tests::adds
  TRY 1 ABRT [   0.009s] (───) nx tests::aborts
  stdout ───

    running 1 test

    (test aborted with signal 6: SIGABRT)

  TRY 2 ABRT [   0.004s] (2/5) nx tests::aborts
  TRY 1 FAIL [   0.221s] (───) nx tests::flaky
  TRY 2 PASS [   0.005s] (3/5) nx tests::flaky
  TRY 2 FAIL [   0.140s] (4/5) nx::outer outer_bad
  stdout ───

    running 1 test
    test outer_bad ... FAILED

  stderr ───

    thread 'outer_bad' (17765) panicked at tests/outer.rs:2:26:
    bad thing

        SLOW [>  2.000s] (───) nx tests::hangs
TRY 2 TRMNTG [>  4.000s] (───) nx tests::hangs
   TRY 2 TMT [   4.004s] (5/5) nx tests::hangs
────────────
     Summary [   8.263s] 5 tests run: 2 passed (1 flaky), 2 failed, 1 timed out, 1 skipped
   FLAKY 2/2 [   0.005s] (3/5) nx tests::flaky
  TRY 2 ABRT [   0.004s] (2/5) nx tests::aborts
  TRY 2 FAIL [   0.140s] (4/5) nx::outer outer_bad
   TRY 2 TMT [   4.004s] (5/5) nx tests::hangs
error: test run failed
"""


def read_stream(text: str, program: str, size: int = 7) -> tuple[Cases, str]:
    cases = Cases()
    stream = Stream(cases, (program,))
    data = text.encode()
    output = (
        b"".join(stream.feed(data[at : at + size]) for at in range(0, len(data), size))
        + stream.end()
    )
    return cases, output.decode()


def go(*events: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(event)}\n" for event in events)


def test_libtest_output_separates_binaries_and_keeps_test_output() -> None:
    cases, output = read_stream(CARGO, "cargo")
    assert output == CARGO
    assert cases.results == {
        "itoa src/lib.rs::tests::one": "passed",
        "itoa src/lib.rs::tests::two": "failed",
        "test tests/test.rs::test_i64": "passed",
        "test tests/test.rs::test_slow": "skipped",
        "crash tests/crash.rs": "errored",
        "itoa doc::src/lib.rs - Buffer": "passed",
        "itoa doc::src/lib.rs - Buffer #2": "passed",
    }
    assert "did not panic" in cases.details["itoa src/lib.rs::tests::two"]


def test_a_long_running_test_is_recorded_as_started() -> None:
    cases, _ = read_stream(
        "running 1 test\ntest hangs has been running for over 60 seconds\n", "cargo"
    )
    assert list(cases.running) == ["hangs"]


@pytest.mark.parametrize("printed", ["test ui/a.rs ... ", "test ui/a.rs ", ""])
def test_test_output_before_a_libtest_message_does_not_create_a_case(printed: str) -> None:
    lines_before = f"running 2 tests\n{printed}test pass has been running for over 60 seconds\nok\n"
    if printed.endswith("... "):
        lines_before += f"{printed}test other ... ok\n"
    cases, _ = read_stream(
        f"{lines_before}test pass ... ok\n\ntest result: ok. 2 passed; 0 failed\n", "cargo"
    )
    assert cases.results == {"pass": "passed"} | (
        {"other": "passed"} if printed.endswith("... ") else {}
    )
    assert not cases.running


def test_tap_comments_and_subtests_name_the_cases() -> None:
    cases, _ = read_stream(TAP, "npm")
    assert cases.results == {
        "adds > should be equal": "failed",
        "adds > should be equal #2": "passed",
        "later > 3": "skipped",
        "outer > inner": "passed",
        "outer": "passed",
    }
    assert cases.details == {"adds > should be equal": "  expected: 3"}


_SEVERAL = """packages/a test$ tape test.js
packages/b test: TAP version 13
packages/a test: TAP version 13
packages/a test: # sums
packages/b test: # sums
packages/a test: ok 1 two and three: five
packages/b test: not ok 1 two and three: five
packages/b test:   ---
packages/a test:   ---
packages/b test:     at: add (test.js:3:1)
packages/a test: 1..1
packages/b test:   ...
packages/b test: ok 2 later
[c]: TAP version 13
[c]: ok 1 one
d:test: TAP version 13
d:test: ok 1 one
packages/e test: ok 1 - of no TAP
"""


def test_tap_output_of_several_packages_is_separated_by_line_prefixes() -> None:
    cases, output = read_stream(_SEVERAL, "npm")
    assert cases.results == {
        "packages/a > sums > two and three: five": "passed",
        "packages/b > sums > two and three: five": "failed",
        "packages/b > sums > later": "passed",
        "c > one": "passed",
        "d > one": "passed",
    }
    assert cases.details == {"packages/b > sums > two and three: five": "  at: add (test.js:3:1)"}
    assert output == _SEVERAL


# As ava 6 prints it, with more than one file and with one.
AVA = """TAP version 13
ok 1 - b \u203a adds - one
ok 2 - b \u203a hook
#   x \u203a y
not ok 3 - a \u203a later # TODO
# a \u203a before hook
#   one log line
# a \u203a beforeEach hook for adds - one
#   hook log
# a \u203a clean up for fails
#   hook log
ok 4 - a \u203a adds - one
#   in test
not ok 5 - a \u203a fails
  ---
    name: AssertionError
  ...
#   bad
ok 6 - d \u203a x

1..5
# tests 5
# pass 4
# fail 1
"""
AVA_ALONE = """TAP version 13
# before hook
#   one log line
ok 1 - clean
# afterEach.always hook for clean
#   hook log
ok 2 - adds
# clean up for adds
#   gone
ok 3 - adds
"""


def test_comments_of_ava_do_not_start_a_section() -> None:
    cases, _ = read_stream(AVA, "npm")
    assert cases.results == {
        "b \u203a adds - one": "passed",
        "b \u203a hook": "passed",
        "a \u203a later": "skipped",
        "a \u203a adds - one": "passed",
        "a \u203a fails": "failed",
        "d \u203a x": "passed",
    }
    assert cases.details == {"a \u203a fails": "  name: AssertionError"}
    assert [*read_stream(AVA_ALONE, "npm")[0].results] == ["clean", "adds", "adds #2"]


def test_names_of_ava_cases_do_not_depend_on_the_order_of_files() -> None:
    hooks, tests = (
        "# browser \u203a beforeEach hook for a\n#   page\n",
        "ok 1 - main \u203a b\nok 2 - browser \u203a a\n",
    )
    first, last = (
        read_stream(f"TAP version 13\n{text}", "npm")[0] for text in (hooks + tests, tests + hooks)
    )
    assert first.results == last.results


# As tape 5 prints it: a comment is the title of a test, and there is no dash before what was
# asserted.
TAPE = """TAP version 13
# adds
not ok 1 one
  ---
    operator: equal
  ...
# outer
ok 2 in outer
# inner
ok 3 three
# a \u203a b
ok 4 four \u203a five

1..4
# tests 4
# pass  3
# fail  1

TAP version 13
ok 1 of another program
"""


def test_comments_of_tape_start_a_section() -> None:
    assert [*read_stream(TAPE, "npm")[0].results] == [
        "adds > one",
        "outer > in outer",
        "inner > three",
        "a \u203a b > four \u203a five",
        "of another program",
    ]


def test_comments_of_zora_start_a_section_despite_the_dash() -> None:
    assert [
        *read_stream("TAP version 13\n# adds\nok 1 - one\nok 2 - two\n# more\nok 3 - one\n", "npm")[
            0
        ].results
    ] == [
        "adds > one",
        "adds > two",
        "more > one",
    ]


def test_output_of_tests_does_not_start_a_section() -> None:
    node = (
        "TAP version 13\n# Subtest: suite\n    # Subtest: one\n    ok 1 - one\n# printed by a "
        "file\n    # Subtest: two\n    ok 2 - two\n    1..2\nok 1 - suite\n"
    )
    assert [*read_stream(node, "npm")[0].results] == ["suite > one", "suite > two", "suite"]
    bats = "1..2\nnot ok 1 adds\n# (in test file a.bats, line 3)\n#   `false' failed\nok 2 takes\n"
    assert [*read_stream(bats, "make")[0].results] == ["adds", "takes"]


def test_the_details_of_a_failed_tap_case_end_with_the_indentation() -> None:
    cases, _ = read_stream(
        "TAP version 13\n# a\nnot ok 1 b\n  ---\n  at: x\n\n  ok 9 c\nnot ok 2 d\n    ok 1 e\nok "
        "3 f\n",
        "npm",
    )
    assert cases.results == {
        "a > b": "failed",
        "a > d": "failed",
        "a > e": "passed",
        "a > f": "passed",
    }
    assert cases.details == {"a > b": "at: x\nok 9 c"}


def test_output_that_only_resembles_tap_is_ignored() -> None:
    assert read_stream("ok 1 - fine\nnot ok\n# a comment\n", "make")[0].results == {}


def test_nextest_output_is_read() -> None:
    cases, _ = read_stream(NEXTEST, "cargo")
    assert cases.results == {"itoa::tests::one": "passed", "itoa::test::tests::two": "failed"}


def test_nextest_output_with_retries_is_read() -> None:
    cases, _ = read_stream(NEXTEST_AGAIN, "cargo")
    assert cases.results == {
        "nx::tests::adds": "passed",
        "nx::tests::aborts": "failed",
        "nx::tests::flaky": "passed",
        "nx::outer::outer_bad": "failed",
        "nx::tests::hangs": "failed",
    }
    assert cases.details["nx::outer::outer_bad"].endswith(
        "panicked at tests/outer.rs:2:26:\nbad thing"
    )


def test_go_reports_cases_and_its_output() -> None:
    package = "example.org/m/p"
    text = go(
        {"Action": "start", "Package": package},
        {"Action": "run", "Package": package, "Test": "TestA"},
        {"Action": "output", "Package": package, "Test": "TestA", "Output": "=== RUN   TestA\n"},
        {
            "Action": "output",
            "Package": package,
            "Test": "TestA",
            "Output": "    a_test.go:3: no\n",
        },
        {"Action": "fail", "Package": package, "Test": "TestA", "Elapsed": 0.25},
        {"Action": "pass", "Package": package, "Test": "TestB/sub", "Elapsed": 0},
        {"Action": "output", "Package": package, "Output": "FAIL\n"},
        {"Action": "fail", "Package": package, "Elapsed": 0.3},
    )
    cases, output = read_stream(text, "/usr/local/go/bin/go")
    assert cases.results == {f"{package}::TestA": "failed", f"{package}::TestB/sub": "passed"}
    assert "a_test.go:3: no" in cases.details[f"{package}::TestA"]
    assert cases.ms == {f"{package}::TestA": 250}
    assert output == "    a_test.go:3: no\nFAIL\n"


def test_a_go_package_that_does_not_compile_or_panics_is_reported_as_a_case() -> None:
    text = go(
        {
            "ImportPath": "m/p [m/p.test]",
            "Action": "build-output",
            "Output": "p/a_test.go:3:2: undefined: New\n",
        },
        {"Action": "output", "Package": "m/p", "Output": "FAIL\tm/p [build failed]\n"},
        {"Action": "fail", "Package": "m/p", "Elapsed": 0},
        {"Action": "run", "Package": "m/q", "Test": "TestLoop"},
        {"Action": "output", "Package": "m/q", "Output": "panic: test timed out after 6s\n"},
        {"Action": "fail", "Package": "m/q", "Elapsed": 6},
    )
    cases, output = read_stream(text, "go")
    assert cases.results == {"m/p": "errored", "m/q::TestLoop": "failed"}
    assert "hit the limit of" in cases.details["m/q::TestLoop"]
    assert "undefined: New" in output
    assert "undefined: New" in cases.details["m/p"]


@given(
    st.binary(max_size=500)
    | st.text(alphabet='ok not#{}"[]:.-0123456789 testrunigPASFAIL\n', max_size=500).map(str.encode)
)
def test_any_output_can_be_read(data: bytes) -> None:
    for program in ("go", "cargo"):
        stream = Stream(Cases(), (program,))
        stream.feed(data)
        stream.end()


events = st.dictionaries(
    st.sampled_from(["Action", "Package", "Test", "Output", "Elapsed", "ImportPath"]),
    st.sampled_from(["run", "pass", "fail", "output", "build-output"])
    | st.none()
    | st.floats()
    | st.lists(st.integers(), max_size=2),
)


@given(st.lists(events, max_size=20))
def test_any_go_event_can_be_read(go_events: list[dict[str, Any]]) -> None:
    read_stream(go(*go_events), "go", 4096)
