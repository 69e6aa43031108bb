"""Examples in documentation are tests inside the code: changes by the code's author prove
nothing.
"""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Profile
from moothall.ranking import assess
from moothall.ranking.test_cases import find_altered_examples, is_example_of

PYTHON = (
    '"""Prices."""\n\n\ndef half(x):\n    """Halve it.\n\n    >>> half(4)\n    2\n    """\n    '
    'return x\n\n\ndef plain(x):\n    """Say it."""\n    return x\n'
)
RUST = (
    "/// Halves.\n///\n/// ```\n/// assert_eq!(m::half(4), 2);\n/// ```\npub fn half(x: i64) -> "
    "i64 {\n    x\n}\n"
)


def alters_examples(path: str, before: str, after: str) -> bool:
    body = "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True),
            after.splitlines(keepends=True),
            f"a/{path}",
            f"b/{path}",
        )
    )
    return find_altered_examples(f"diff --git a/{path} b/{path}\n{body}", {path: before}) == (path,)


@pytest.mark.parametrize(
    ("path", "text", "old", "new", "expected"),
    [
        ("a.py", PYTHON, "return x\n\n\n", "return x // 2\n\n\n", False),
        ("a.py", PYTHON, "    2\n", "    4\n", True),
        ("a.py", PYTHON, ">>> half(4)", ">>> half(4)  # doctest: +SKIP", True),
        (
            "a.py",
            PYTHON,
            "    >>> half(4)\n",
            "    >>> half = lambda x: 2\n    >>> half(4)\n",
            True,
        ),
        ("a.py", PYTHON, "    >>> half(4)\n    2\n", "", True),
        ("a.py", PYTHON, "Halve it.", "Halve a number.", False),
        ("a.py", PYTHON, '"""Say it."""', '"""Say it.\n\n    >>> plain(1)\n    1\n    """', False),
        ("a.rs", RUST, "    x\n", "    x / 2\n", False),
        ("a.rs", RUST, "(4), 2)", "(4), 4)", True),
        ("a.rs", RUST, "/// ```\n/// assert", "/// ```ignore\n/// assert", True),
        ("a.rs", RUST, "/// Halves.", "/// Halves it.", False),
        ("README.md", "a\n", "a", "b", True),
        ("a.js", "a\n", "a", "b", False),
    ],
)
def test_altered_documentation_examples_are_detected(
    path: str, text: str, old: str, new: str, *, expected: bool
) -> None:
    assert alters_examples(path, text, text.replace(old, new, 1)) is expected


@pytest.mark.parametrize(
    ("case", "path", "expected"),
    [
        ("shop/price.py::shop.price.half", "shop/price.py", True),
        ("tests/test_price.py::test_half", "shop/price.py", False),
        ("shop.price.half", "shop/price.py", True),
        ("README.rst::README.rst", "README.rst", True),
        ("shop doc::src/lib.rs - half", "src/lib.rs", True),
        ("shop doc::src/../README.md - (line 3)", "README.md", True),
        ("shop src/lib.rs::tests::half", "src/lib.rs", False),
        ("example.org/shop::TestHalf", "shop.go", False),
    ],
)
def test_cases_are_matched_to_the_examples_of_a_file(
    case: str, path: str, *, expected: bool
) -> None:
    assert is_example_of(case, (path,)) is expected


def test_an_example_that_its_author_altered_proves_nothing() -> None:
    case = "shop/price.py::shop.price.half"
    runs = {"tests": CheckRun("tests", Verdict.PASSED, {case: "passed"})}
    base = {"tests": CheckRun("tests", Verdict.FAILED, {case: "failed"})}
    for paths, proven in (((), True), (("shop/price.py",), False), (("shop/other.py",), True)):
        assessment = assess(
            base, runs, Profile(checks={"tests": ("pytest",)}), (), applies=True, altered=paths
        )
        assert assessment.proven is proven


@given(st.text(max_size=80), st.text(max_size=80))
def test_any_text_can_be_searched_for_altered_examples(before: str, after: str) -> None:
    diff = f"diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-{before}\n+{after}\n"
    assert set(find_altered_examples(diff, {"a.py": f'"""\n>>> {before}\n"""'})) <= {"a.py"}
