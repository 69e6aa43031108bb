"""The cases that a seat runs after a change, and the report that it receives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.deliberation.code_blocks import TurnContext
from moothall.deliberation.local_checks import (
    CheckedWorkspace,
    CheckScope,
    WorkspaceState,
    check_changes,
    select_checks,
)
from moothall.deliberation.prompts.tool_results import check_text, verdict_text
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Base, Patch, Prepared, Profile
from moothall.domain.tool import ToolResult, ToolStatus
from support.tool_gateway import FakeWorkspace, open_app

FILES = ("src/pkg/a.py", "src/pkg/b.py", "tests/test_a.py", "tests/test_b.py")
CASES = {
    "tests/test_a.py::one": "passed",
    "tests/test_a.py::two": "passed",
    "tests/test_b.py::red": "failed",
    "tests/test_b.py::x": "passed",
}


def prepared_base(milliseconds: int, cases: dict[str, str] | None = None, **run: Any) -> Prepared:
    results = CASES if cases is None else cases
    verdict = Verdict.FAILED if "failed" in results.values() else Verdict.PASSED
    base = CheckRun("tests", verdict, results, duration_ms=milliseconds, **run)
    return Prepared(
        Base("r", "0" * 40, Profile(checks={"tests": ("pytest",)})), "k", FILES, {"tests": base}
    )


def patch(*paths: str, tests: tuple[str, ...] = ()) -> Patch:
    return Patch("0" * 40, "1" * 40, "diff", paths, tests)


def test_a_quick_suite_runs_completely() -> None:
    assert list(select_checks(prepared_base(9000), patch("src/pkg/a.py"), frozenset(), 10)) == [
        CheckScope("tests")
    ]


def test_a_slow_suite_runs_the_failing_cases_and_those_of_the_changed_module() -> None:
    (scope,) = select_checks(
        prepared_base(60_000, durations=dict.fromkeys(CASES, 100)),
        patch("src/pkg/a.py"),
        frozenset(),
        10,
    )
    assert scope == CheckScope(
        "tests", False, ("tests/test_b.py::red", "tests/test_a.py::one", "tests/test_a.py::two")
    )


def test_changed_tests_and_cases_lost_in_the_re_check_are_run_too() -> None:
    lost_cases = frozenset({"tests/test_b.py::x"})
    change = patch("src/pkg/c.py", "tests/test_new.py", tests=("tests/test_new.py",))
    (scope,) = select_checks(prepared_base(60_000), change, lost_cases, 10)
    assert scope == CheckScope(
        "tests", False, ("tests/test_b.py::red", "tests/test_b.py::x"), ("tests/test_new.py",)
    )


def test_in_several_projects_nearby_failing_and_regressed_checks_run() -> None:
    folders = {"tests-a": "a", "tests-b": "b", "tests-c": "c"}
    checks = dict.fromkeys(folders, ("pytest",))
    runs = {
        "tests-a": CheckRun("tests-a", Verdict.PASSED, {"a/test_a.py::x": "passed"}),
        "tests-b": CheckRun("tests-b", Verdict.PASSED, {"b/test_b.py::x": "passed"}),
        "tests-c": CheckRun("tests-c", Verdict.FAILED, {"c/test_c.py::x": "failed"}),
    }
    base = Prepared(
        Base("r", "0" * 40, Profile(checks=checks, folders=folders)), "k", ("a/x.py",), runs
    )
    assert list(select_checks(base, patch("a/x.py"), frozenset(), 10)) == [
        CheckScope("tests-a"),
        CheckScope("tests-c"),
    ]
    assert list(select_checks(base, patch("a/x.py"), frozenset({"b/test_b.py::x"}), 10)) == [
        CheckScope(name) for name in checks
    ]


def test_nearby_cases_fit_into_the_time_limit() -> None:
    durations = {
        "tests/test_b.py::red": 4000,
        "tests/test_a.py::one": 5000,
        "tests/test_a.py::two": 5000,
    }
    (scope,) = select_checks(
        prepared_base(60_000, durations=durations), patch("src/pkg/a.py"), frozenset(), 10
    )
    assert scope.cases == ("tests/test_b.py::red", "tests/test_a.py::one")


def test_a_slow_check_without_cases_is_left_to_the_re_check_unless_it_failed() -> None:
    passed = prepared_base(60_000, {})
    assert list(select_checks(passed, patch("src/pkg/a.py"), frozenset(), 10)) == []
    red = Prepared(
        passed.base, "k", FILES, {"tests": CheckRun("tests", Verdict.FAILED, duration_ms=60_000)}
    )
    assert list(select_checks(red, patch("src/pkg/a.py"), frozenset(), 10)) == [CheckScope("tests")]


@given(
    st.dictionaries(
        st.sampled_from([f"tests/test_{x}.py::{n}" for x in "ab" for n in range(9)]),
        st.sampled_from(["passed", "failed"]),
    ),
    st.integers(0, 100_000),
    st.sets(st.sampled_from(FILES[:2])),
)
def test_cases_that_failed_on_the_base_are_always_run(
    cases: dict[str, str], milliseconds: int, paths: set[str]
) -> None:
    base = prepared_base(milliseconds, cases)
    red = {case for case, outcome in cases.items() if outcome == "failed"}
    for item in select_checks(base, patch(*sorted(paths)), frozenset(), 10):
        assert item.complete or red <= set(item.cases) <= set(cases)


def failed_run(cases: dict[str, str], **fields: Any) -> CheckRun:
    return CheckRun("tests", Verdict.FAILED, cases, **fields)


def test_failed_cases_are_shown_with_their_output_and_earlier_failures_as_such() -> None:
    base = failed_run({"a": "failed", "b": "passed"})
    current = failed_run(
        {"a": "failed", "b": "failed"},
        details={"a": "old trouble", "b": "KeyError: 'x'"},
        output="noise " * 999,
    )
    text = check_text(current, base, 2000)
    assert text.index("Failing since your change: b\nb:\nKeyError: 'x'") < text.index(
        "Failed before your change too: a\na:\nold trouble"
    )
    assert "noise" not in text


def test_without_details_the_end_of_the_output_is_shown() -> None:
    assert "the end" in check_text(
        failed_run({"a": "failed"}, output="much " * 9999 + "the end"), None, 600
    )


def test_a_reached_limit_is_named() -> None:
    assert "errored, stopped: timeout" in check_text(
        CheckRun("tests", Verdict.ERRORED, status="timeout"), None, 500
    )


def test_no_seat_is_asked_to_repair_passing_tests() -> None:
    fixed_state = WorkspaceState(patch("x"), passed=True, proven=True, fixed=("a",))
    assert verdict_text(fixed_state) == "All checks pass. If the task is done, finish."
    assert "the whole suite runs in the clean re-check" in verdict_text(
        WorkspaceState(patch("x"), passed=True, complete=False)
    )
    state = WorkspaceState(patch("x"), passed=True, still_failing=("a",))
    assert (
        verdict_text(state)
        == "Nothing fails that did not fail before your change (a). If the task is done, finish."
    )
    assert verdict_text(WorkspaceState(patch("x"))) == "Repair this."
    partial = WorkspaceState(patch("x"), passed=True, fixed=("a",), still_failing=("b",))
    assert verdict_text(partial).endswith("These still fail: b. Repair those too.")


def test_a_changed_test_file_is_run_in_its_current_version() -> None:
    """Its cases may have new names, and pytest runs nothing at all if a given case does not
    exist.
    """
    change = patch("tests/test_b.py", tests=("tests/test_b.py",))
    assert list(select_checks(prepared_base(60_000), change, frozenset(), 10)) == [
        CheckScope("tests", False, (), ("tests/test_b.py",))
    ]
    assert list(
        select_checks(prepared_base(60_000), patch("tests/test_b.py"), frozenset(), 10)
    ) == [CheckScope("tests", False)]


class Checked(FakeWorkspace):
    """A workspace with a change and a check. It records how the check was called, and answers with
    the cases of the files.
    """

    def __init__(
        self,
        change: Patch,
        imports: Sequence[dict[str, Any]],
        cases_of: dict[tuple[str, ...], list[str]],
    ) -> None:
        super().__init__(
            lambda call: ToolResult(
                call.request_id, call.tool, ToolStatus.SUCCESS, {"matches": list(imports)}
            )
        )
        self.change, self.cases_of = change, cases_of
        self.check_calls: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    async def patch(self, message: str) -> Patch:
        return replace(self.change, message=message)

    async def check(
        self, name: str, paths: Sequence[str] = (), *_: Any, cases: Sequence[str] = (), **__: Any
    ) -> CheckRun:
        self.check_calls.append((tuple(paths), tuple(cases)))
        return CheckRun(name, Verdict.PASSED, dict.fromkeys(self.cases_of[tuple(paths)], "passed"))


async def check_state(tmp_path: Path, workspace: Checked, base: Prepared) -> WorkspaceState:
    async with open_app(tmp_path) as app:
        seat = replace(app.seat(), workspace=workspace)
        place = CheckedWorkspace(TurnContext(seat, app.tool_gateway), base)
        return (
            await check_changes(place, base, WorkspaceState(), "turn 1", clean=str, max_seconds=10)
        )[0]


def slow(command: str, cases: Sequence[str], files: tuple[str, ...]) -> Prepared:
    run = CheckRun("tests", Verdict.PASSED, dict.fromkeys(cases, "passed"), duration_ms=20_000)
    return Prepared(
        Base("r", "0" * 40, Profile(checks={"tests": tuple(command.split())})),
        "k",
        files,
        {"tests": run},
    )


async def test_importing_ava_files_run_beside_the_seats_own_test(
    tmp_path: Path,
) -> None:
    cases = [
        "retry \u203a one",
        "retry \u203a two",
        "main \u203a one",
        *(f"main \u203a {number}" for number in range(97)),
    ]
    base = slow("npm exec --call ava", cases, ("source/merge.ts", "test/main.ts", "test/retry.ts"))
    change = Patch("0" * 40, "1" * 40, "+x", ("source/merge.ts", "test/new.ts"), ("test/new.ts",))
    imports = [
        {"path": "test/retry.ts", "line": 1, "text": "import {merge} from '../source/merge.js';"}
    ]
    workspace = Checked(
        change, imports, {("test/retry.ts",): ["one", "two"], ("test/new.ts",): ["fixed"]}
    )
    state = await check_state(tmp_path, workspace, base)
    assert workspace.check_calls == [
        (("test/retry.ts",), ("retry \u203a one", "retry \u203a two")),
        (("test/new.ts",), ()),
    ]
    assert [*state.runs["tests"].cases] == ["retry \u203a one", "retry \u203a two", "fixed"]
    assert (state.partial_checks, state.regressions, state.complete) == (("tests",), (), False)


async def test_cargo_cases_of_the_changed_module_run_beside_the_seats_own_test(
    tmp_path: Path,
) -> None:
    cases = [
        "m src/lib.rs::a::tests::x",
        "m src/lib.rs::b::tests::y",
        *(f"m tests/z.rs::{number}" for number in range(98)),
    ]
    base = slow("cargo test", cases, ("src/a.rs", "src/b.rs", "tests/z.rs"))
    change = Patch("0" * 40, "1" * 40, "+x", ("src/a.rs", "tests/new.rs"), ("tests/new.rs",))
    workspace = Checked(change, (), {(): cases[:1], ("tests/new.rs",): ["new tests/new.rs::fixed"]})
    state = await check_state(tmp_path, workspace, base)
    (_, ids), (paths, none) = workspace.check_calls
    assert (ids[0], paths, none) == (cases[0], ("tests/new.rs",), ())
    assert [*state.runs["tests"].cases] == [cases[0], "new tests/new.rs::fixed"]


@pytest.mark.parametrize("command", ["python -m pytest", "go test ./..."])
async def test_other_runners_run_cases_and_files_in_one_call(tmp_path: Path, command: str) -> None:
    base = slow(command, ["tests/test_a.py::x", "tests/test_b.py::y"], FILES)
    change = Patch(
        "0" * 40, "1" * 40, "+x", ("src/pkg/a.py", "tests/test_new.py"), ("tests/test_new.py",)
    )
    paths = ("tests/test_a.py", "tests/test_new.py")
    workspace = Checked(change, (), {paths: ["tests/test_a.py::x", "tests/test_new.py::z"]})
    await check_state(tmp_path, workspace, base)
    assert workspace.check_calls == [(paths, ("tests/test_a.py::x", "tests/test_new.py"))]
