"""The commits that may become tasks, and the parts of their messages that are kept."""

from __future__ import annotations

import pytest

from moothall.domain.evidence import CheckRun, Verdict
from moothall.evaluate import commit_rules
from moothall.evaluate.commit_rules import (
    Commit,
    HiddenCases,
    compare_runs,
    reject_commit,
    steady_cases,
    task_text,
)

_MESSAGES = "Fix the rounding of negative prices"


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        (("shop/price.py", "tests/test_price.py"), ""),
        (("src/price.ts", "src/price.test.ts"), ""),
        (("price.go", "price_test.go"), ""),
        (("src/lib.rs", "tests/price.rs"), ""),
        (("lib/price.js", "test/price.js"), ""),
        (("shop/price.py", "README.md"), commit_rules.NO_TESTS),
        (("tests/test_price.py",), commit_rules.NO_SOURCE),
        (("docs/conf.py", "tests/test_price.py"), commit_rules.NO_SOURCE),
        (("README.md", "package-lock.json", "test/price.js"), commit_rules.NO_SOURCE),
        (
            (*tuple(f"shop/part{number}.py" for number in range(21)), "tests/test_price.py"),
            commit_rules.LARGE,
        ),
    ],
)
def test_a_commit_must_change_source_and_tests(paths: tuple[str, ...], reason: str) -> None:
    assert reject_commit(Commit("a" * 40, ("b" * 40,), _MESSAGES, paths)) == reason


def test_merges_root_commits_and_short_messages_are_dropped() -> None:
    paths = ("shop/price.py", "tests/test_price.py")
    assert reject_commit(Commit("a", ("b", "c"), _MESSAGES, paths)) == commit_rules.MERGE
    assert reject_commit(Commit("a", (), _MESSAGES, paths)) == commit_rules.ROOT
    assert reject_commit(Commit("a", ("b",), "wip", paths)) == commit_rules.SHORT_MESSAGE


def test_tests_inside_rust_source_count_as_tests() -> None:
    diff = (
        "diff --git a/src/lib.rs b/src/lib.rs\n--- a/src/lib.rs\n+++ b/src/lib.rs\n@@ -1,1 +1,3 "
        "@@\n-a\n+b\n+    #[test]\n+    fn half() {}\n"
    )
    commit = Commit("a", ("b",), _MESSAGES, ("src/lib.rs",))
    assert reject_commit(commit) == commit_rules.NO_TESTS
    assert reject_commit(commit, diff) == ""
    assert commit_rules.hidden_paths(commit.paths, diff) == ("src/lib.rs",)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("Fix rounding of negative prices (#123)", "Fix rounding of negative prices"),
        ("gh-4711: Fix rounding of negative prices", "Fix rounding of negative prices"),
        ("Fix rounding of negative prices\n\nFixes #12, #13.", "Fix rounding of negative prices"),
        ("Fix rounding of negative prices, closes org/shop#12", "Fix rounding of negative prices,"),
        (
            (
                "Fix rounding\n\nprice(-1.5) has to be -2.\n\nCo-authored-by: Ada <ada@localhost>\n"
                "Signed-off-by: Ada"
            ),
            "Fix rounding\n\nprice(-1.5) has to be -2.",
        ),
        (
            "Fix rounding of prices\n\nSee https://forge.localhost/shop/issues/12 for more",
            "Fix rounding of prices\n\nSee for more",
        ),
        (
            "Fix rounding of prices\n\n- add a regression test\n- round half up",
            "Fix rounding of prices\n\n- round half up",
        ),
        ("Fix rounding so that test_negative_price passes", "Fix rounding so that passes"),
        (
            "Fix rounding as tests/test_price.py shows for prices",
            "Fix rounding as shows for prices",
        ),
        (
            "Fix the \x1b[31mrounding\x1b[0m of \u202eprices now",
            "Fix the [31mrounding[0m of prices now",
        ),
        ("Fix rounding of negative prices \ud83d", "Fix rounding of negative prices"),
        ("wip", ""),
        ("#12", ""),
    ],
)
def test_the_task_text_omits_trailers_numbers_links_and_tests(message: str, text: str) -> None:
    assert task_text(message) == text


def test_an_endless_message_is_cut() -> None:
    """Parsing all of it would take an hour."""
    text = task_text(f"{_MESSAGES}\n\n{'a.a-' * 250_000}")
    assert text.startswith(_MESSAGES)
    assert len(text) <= 4000


def _check_run(output: str = "", status: str = "success", **cases: str) -> CheckRun:
    return CheckRun("tests", Verdict.FAILED, cases=cases, output=output, status=status)


def test_cases_that_fail_before_and_pass_after_the_commit_count() -> None:
    before, after = (
        _check_run(a="failed", b="passed", c="failed"),
        _check_run(a="passed", b="passed", c="failed", d="passed"),
    )
    hidden_cases = compare_runs(_check_run(b="passed"), before, after, _MESSAGES)
    assert hidden_cases == HiddenCases(("a",), ("b",))


def test_a_case_changed_by_the_commit_counts() -> None:
    """It passes on the parent as it was, fails there as it is, and passes on the commit."""
    hidden_cases = compare_runs(
        _check_run(a="passed", b="passed"),
        _check_run(a="failed"),
        _check_run(a="passed", b="passed"),
        _MESSAGES,
    )
    assert hidden_cases == HiddenCases(("a",), ("b",))


def test_a_missing_name_counts_if_the_text_mentions_it() -> None:
    before, after = (
        _check_run("ImportError: cannot import name 'half' from 'shop'"),
        _check_run(a="passed"),
    )
    assert compare_runs(None, before, after, "Add half() for prices").fixed == ("a",)
    assert (
        compare_runs(None, before, after, "Add a function for prices").reason
        == commit_rules.UNNAMED
    )


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (_check_run(a="passed"), _check_run(a="passed"), commit_rules.PASSES_BEFORE),
        (_check_run(a="failed"), _check_run(a="failed"), commit_rules.FAILS_AFTER),
        (_check_run(a="failed"), _check_run(), commit_rules.NO_CASES),
        (_check_run(a="failed", status="timeout"), _check_run(a="passed"), commit_rules.UNNAMED),
        (_check_run(a="skipped"), _check_run(a="passed"), commit_rules.PASSES_BEFORE),
    ],
)
def test_useless_commits_are_rejected_with_a_reason(
    before: CheckRun, after: CheckRun, reason: str
) -> None:
    hidden_cases = compare_runs(None, before, after, _MESSAGES)
    assert (hidden_cases.fixed, hidden_cases.reason) == ((), reason)


def test_flaky_cases_do_not_count() -> None:
    hidden_cases = HiddenCases(("a", "b"), ("c", "d"))
    steady = steady_cases(
        hidden_cases,
        [_check_run(a="failed", b="passed")],
        [_check_run(a="passed", b="passed", c="passed", d="failed")],
    )
    assert steady == HiddenCases(("a",), ("c",))
    assert (
        steady_cases(hidden_cases, [_check_run(a="passed")], [_check_run(a="passed")]).reason
        == commit_rules.UNSTEADY
    )


def test_reasons_are_counted_without_their_details() -> None:
    rows = [{"why": "it is a merge"}, {"why": "broken: a"}, {"why": "broken: b"}, {"why": ""}]
    assert list(commit_rules.count_reasons(rows)) == [("broken", 2), ("it is a merge", 1)]
