"""The test files and cases that are relevant to a change, in the ids of several runners."""

from __future__ import annotations

import re

import pytest

from moothall.deliberation.case_files import (
    files_to_run,
    find_case_files,
    find_cases_near,
    import_pattern,
    is_about,
    map_to_base_names,
    rank_importers,
    sort_by_common_words,
)
from moothall.deliberation.local_checks import select_checks
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Base, Patch, Prepared, Profile

KY = (
    "source/index.ts",
    "source/utils/merge.ts",
    "test/retry.ts",
    "test/main.ts",
    "test/sub/retry.ts",
    "test/helpers/url.ts",
)
RUST = (
    "bstr src/lib.rs::impls::tests::debug",
    "bstr src/lib.rs::io::tests::lines",
    "bstr tests/impls.rs::display",
    "bstr tests/other.rs::other",
    "bstr doc::src/impls.rs - impls::BStr",
    "bstr_cli src/main.rs::impls::tests::run",
    "bstr doc::src/io.rs - io::Lines",
)


def slow(cases: list[str], files: tuple[str, ...]) -> Prepared:
    run = CheckRun(
        "tests",
        Verdict.PASSED,
        dict.fromkeys(cases, "passed"),
        duration_ms=60_000,
        durations=dict.fromkeys(cases, 100),
    )
    return Prepared(
        Base("r", "0" * 40, Profile(checks={"tests": ("x",)})), "k", files, {"tests": run}
    )


def chosen(
    base: Prepared, *paths: str, importers: tuple[str, ...] = (), seconds: float = 50
) -> tuple[str, ...]:
    (scope,) = select_checks(
        base, Patch("0" * 40, "1" * 40, "diff", paths), frozenset(), seconds, importers
    )
    return scope.cases


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("tests/test_make.py", "src/attr/_make.py"),
        ("tests/test__make.py", "src/attr/_make.py"),
        ("tests/test_pkg.py", "src/pkg/__init__.py"),
        ("test/merge.test.ts", "source/merge.ts"),
        ("pkg/a_test.go", "pkg/b.go"),
    ],
)
def test_a_test_file_relates_to_the_module_in_its_name(file: str, path: str) -> None:
    assert is_about(file, path)
    assert not is_about(file, "other/else.py")


def test_ids_of_ava_begin_with_their_file() -> None:
    cases = [
        "retry \u203a gives up",
        "sub \u203a retry \u203a again",
        "main \u203a a \u203a b",
        "none \u203a x",
        "plain",
    ]
    files = find_case_files(cases, KY)
    assert [*files.values()] == [
        "",
        "test/sub/retry.ts",
        "test/main.ts",
        "",
        "",
    ]  # two files end with retry
    assert find_case_files(["retry \u203a x"], ("test/retry.ts",)) == {
        "retry \u203a x": "test/retry.ts"
    }
    assert files_to_run(cases, KY) == ("test/sub/retry.ts", "test/main.ts")


def test_ids_of_pytest_and_unittest_name_their_file_even_in_a_folder() -> None:
    files = ("api/tests/test_a.py",)
    case_files = find_case_files(
        ["tests/test_a.py::one", "tests.test_a.Case.one", "tests/test_b.py::one"], files, "api"
    )
    assert [*case_files.values()] == [files[0], files[0], ""]
    assert files_to_run(["tests.test_a.Case.one"], files, "api") == ()  # run by its id
    assert files_to_run(["tests/test_a.py::one"], files, "api") == files


def test_nearby_rust_cases_are_those_of_the_module_then_of_its_crate() -> None:
    assert find_cases_near(RUST, ["src/impls.rs"]) == [
        *RUST[:1],
        *RUST[2:3],
        *RUST[4:5],
        RUST[5],
        *(RUST[at] for at in (1, 3, 6)),
    ]
    member = find_cases_near(RUST, ["crates/bstr-cli/src/impls.rs"])
    assert member[0] == RUST[2] or RUST[5] in member
    assert RUST[0] not in member
    assert set(find_cases_near(RUST, ["src/lib.rs"])) == {*RUST}
    assert find_cases_near(["itoa::tests::one", "itoa::test::tests::two"], ["src/tests.rs"]) != []
    assert find_cases_near(RUST, ["README.md"]) == []


def test_nearby_go_cases_are_those_of_the_changed_package() -> None:
    cases = [
        "example.org/m::TestRoot",
        "example.org/m/p::TestA",
        "example.org/m/x/p::TestB",
        "example.org/m/p/q::TestC",
    ]
    assert find_cases_near(cases, ["p/a.go"]) == [cases[1], cases[2]]
    assert find_cases_near(cases, ["x/p/a.go"]) == [cases[2]]
    assert find_cases_near(cases, ["a.go"]) == [cases[0]]


def test_test_files_that_import_the_change_are_ranked_as_nearby() -> None:
    lines = [
        ("test/main.ts", "import ky from '../source/index.js';"),
        ("test/retry.ts", "import {merge} from '../source/utils/merge.js';"),
        ("test/other.ts", "import x from './helpers/url.js';"),
        ("tests/test_x.py", "from attr._merge import merge"),
    ]
    pattern = re.compile(import_pattern(["source/utils/merge.ts"]))
    assert all(pattern.search(line) for _, line in lines[:3])
    assert not pattern.search("const merge = 1;")
    assert [*rank_importers(lines, ["source/utils/merge.ts"])] == [
        "test/retry.ts",
        "tests/test_x.py",
        "test/main.ts",
    ]
    python = re.compile(import_pattern(["src/attr/_make.py"]))
    assert python.search("from attr._make import attrs")
    assert python.search("    from attr import _make")
    assert not python.search("x = _make()")


def test_a_slow_suite_runs_nearby_cases_within_the_time_limit() -> None:
    ava = slow(
        ["main \u203a a", "main \u203a b", "retry \u203a c"],
        ("source/merge.ts", "test/main.ts", "test/retry.ts"),
    )
    assert chosen(ava, "source/merge.ts") == ()
    assert chosen(ava, "source/merge.ts", importers=("test/retry.ts", "test/main.ts")) == (
        "retry \u203a c",
        "main \u203a a",
        "main \u203a b",
    )
    assert chosen(ava, "source/merge.ts", importers=("test/main.ts",), seconds=0.1) == (
        "main \u203a a",
    )
    rust = slow([*RUST], ("src/impls.rs", "src/io.rs"))
    assert chosen(rust, "src/impls.rs", seconds=0.3) == (RUST[0], RUST[2], RUST[4])
    python = slow(
        ["tests/test_make.py::x", "tests/test_other.py::x"],
        ("src/attr/_make.py", "tests/test_make.py", "tests/test_other.py"),
    )
    assert chosen(python, "src/attr/_make.py") == ("tests/test_make.py::x",)
    assert chosen(python, "src/attr/_make.py", importers=("tests/test_other.py",)) == (
        "tests/test_make.py::x",
    )
    assert chosen(python, "src/attr/_cmp.py", importers=("tests/test_other.py",)) == (
        "tests/test_other.py::x",
    )


def test_importing_test_files_named_by_the_task_come_first() -> None:
    files = ["test/base-url.ts", "test/main.ts", "test/retry.ts"]
    assert (
        sort_by_common_words(files, "merging drops the Retry limit: source/merge.ts test/new.ts")[0]
        == "test/retry.ts"
    )
    assert sort_by_common_words(files, "test") == files
    barrel = [(file, "import ky from '../source/index.js';") for file in files]
    lines = [*barrel, ("test/main.ts", "import {merge} from '../source/merge.js';")]
    assert [*rank_importers(lines, ["source/merge.ts"], "the retry limit")] == [
        "test/main.ts",
        "test/retry.ts",
        "test/base-url.ts",
    ]


def test_cases_of_ava_keep_their_names_when_one_file_runs() -> None:
    cases = ["retry \u203a gives up", "retry \u203a again", "sub \u203a a \u203a x"]
    assert map_to_base_names(
        {
            "gives up": "passed",
            "new": "passed",
            "retry \u203a again": "passed",
            "a \u203a x": "passed",
        },
        cases,
    ) == {
        "gives up": "retry \u203a gives up",
        "a \u203a x": "sub \u203a a \u203a x",
    }
    assert map_to_base_names({"x": "passed"}, ["a \u203a x", "b \u203a x"]) == {}
