from __future__ import annotations

import pytest

from moothall.deliberation.prompts.excerpts import FailingCase, FileIndex, find_failing_cases
from moothall.domain.evidence import CheckRun, Verdict

FILES = (
    "lib/a.js",
    "pkg/cart/cart.go",
    "pkg/cart/cart_test.go",
    "pkg/other/cart.go",
    "src/lib.rs",
    "src/x.py",
    "tests/test_sgr.c",
    "tests/test_x.py",
)


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        (
            '  File "/workspace/src/x.py", line 12, in f\n  File "tests/test_x.py", line 3\n',
            (("tests/test_x.py", 3), ("src/x.py", 12)),
        ),
        (
            "tests/test_x.py:5: in test_x\nsrc/x.py:12: ValueError\n",
            (("src/x.py", 12), ("tests/test_x.py", 5)),
        ),
        (
            "    at Object.<anonymous> (lib/a.js:3:5)\n    at file:///workspace/lib/a.js:9:1",
            (("lib/a.js", 3), ("lib/a.js", 9)),
        ),
        ("    cart_test.go:12: got 1\n", (("pkg/cart/cart_test.go", 12),)),
        ("\t/workspace/pkg/other/cart.go:7 +0x1d\n", (("pkg/other/cart.go", 7),)),
        ("thread panicked at src/lib.rs:10:5:\n", (("src/lib.rs", 10),)),
        ("tests/test_sgr.c:9: failed: a == b\n", (("tests/test_sgr.c", 9),)),
        ("cart.go:7: which of two?\n/usr/lib/python3.11/json/decoder.py:1: x\n", ()),
    ],
)
def test_source_frames_are_read_from_runner_output(
    text: str, frames: tuple[tuple[str, int], ...]
) -> None:
    assert FileIndex(FILES).frames(text) == frames


def test_a_folder_disambiguates_files_of_the_same_name() -> None:
    assert FileIndex(FILES, "pkg/cart").path("cart.go") == "pkg/cart/cart.go"
    assert FileIndex(("app/src/x.py", "lib/src/x.py"), "app").path("src/x.py") == "app/src/x.py"


def test_failing_cases_keep_their_own_output_and_those_with_output_come_first() -> None:
    cases = {
        "tests/test_x.py::test_a": "failed",
        "tests/test_x.py::test_b": "failed",
        "c": "passed",
        "flaky": "errored",
    }
    run = CheckRun(
        "tests", Verdict.FAILED, cases, details={"tests/test_x.py::test_b": "src/x.py:1: E"}
    )
    failed_cases = find_failing_cases({"tests": run}, FILES, {}, ("flaky",))
    assert [(item.case, item.frames) for item in failed_cases] == [
        ("tests/test_x.py::test_b", (("src/x.py", 1),)),
        ("tests/test_x.py::test_a", ()),
    ]
    assert failed_cases[0].names[0] == "test_b"


def test_one_of_several_cases_with_the_same_failure_comes_first() -> None:
    same_failure, other_failure = (
        "tests/test_x.py:{}: in f\nsrc/x.py:1: in g\nE   TypeError: no",
        "src/x.py:1: in g\nE   TypeError: but",
    )
    details = {
        "a": same_failure.format(3),
        "b": same_failure.format(5),
        "c": other_failure,
        "d": "src/x.py:2: in g\nE   TypeError: no",
    }
    run = CheckRun("tests", Verdict.FAILED, dict.fromkeys(details, "failed"), details=details)
    cases = find_failing_cases({"tests": run}, FILES, {})
    assert [item.case for item in cases] == ["a", "c", "d", "b"]
    assert cases[0].failure_key == cases[-1].failure_key != cases[1].failure_key
    panics = [
        f"thread '{name}' (44{at}) panicked at src/lib.rs:1:5:\nno {{}}\nnote: run"
        for at, name in enumerate("ab")
    ]
    ways = [
        FailingCase("tests", str(at), text.format(end), (("src/lib.rs", 1),)).failure_key
        for at, text in enumerate(panics)
        for end in "xy"
    ]
    assert ways[0] == ways[2] != ways[1] == ways[3]


def test_a_failed_check_without_cases_counts_as_one_case() -> None:
    run = CheckRun("build", Verdict.FAILED, {}, "src/lib.rs:3:1: error")
    (case,) = find_failing_cases({"build": run}, FILES, {})
    assert (case.case, case.frames) == ("build", (("src/lib.rs", 3),))
    assert find_failing_cases({"build": CheckRun("build", Verdict.PASSED)}, FILES, {}) == []


def test_a_huge_output_is_read_from_its_end() -> None:
    run = CheckRun(
        "build",
        Verdict.FAILED,
        {},
        "src/x.py:1: a\n" + "x" * 1_000_000 + "\nsrc/lib.rs:3:1: error" * 1000,
    )
    assert find_failing_cases({"build": run}, FILES, {})[0].frames == (("src/lib.rs", 3),)
