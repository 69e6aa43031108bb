from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.sandbox_runtime.edits import replace
from moothall.sandbox_runtime.file_access import ToolFailure

TEXT = (
    "class A:\n    def f(self):\n        a = 1  \n        return a\n\n    def g(self):\n        "
    "return 2\n"
)


def test_an_exact_match_takes_precedence() -> None:
    assert replace("a.py", " x\nx\n", "x\n", "y\n", 2) == (" y\ny\n", 2)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "def f(self):\n    a = 1\n    return a",
            "def f(self):\n    return 1",
            "    def f(self):\n        return 1\n",
        ),
        (
            "        def f(self):\n            a = 1\n            return a\n",
            "        pass\n",
            "    pass\n",
        ),
        (
            "    def f(self):\r\n        a = 1\r\n        return a\r\n",
            "    x = 1\r\n\r\n    y = 2",
            "    x = 1\n\n    y = 2\n",
        ),
    ],
)
def test_trailing_spaces_and_a_common_indentation_shift_are_ignored(
    old: str, new: str, expected: str
) -> None:
    new_text, count = replace("a.py", TEXT, old, new)
    assert count == 1
    assert new_text == TEXT.replace(
        "    def f(self):\n        a = 1  \n        return a\n", expected
    )


def test_line_endings_of_the_file_are_kept() -> None:
    assert replace("a.txt", "a\r\nb\r\nc\r\n", "a \nb", "x\ny\nz")[0] == "x\r\ny\r\nz\r\nc\r\n"
    assert replace("a.txt", "a\n\tb", "    b ", "    c\n    d")[0] == "a\n\tc\n\td"


def test_an_ambiguous_match_is_refused() -> None:
    text = "if a:\n    x = 1\nelse:\n        x = 1\n"
    with pytest.raises(
        ToolFailure,
        match=r"occurs 2 times in 'a.py' \(lines 2, 4\), not once: send more .* occurs once, or "
        r"count=2 to",
    ):
        replace("a.py", text, "x = 1 ", "x = 2")
    assert (
        replace("a.py", text, "x = 1 ", "x = 2", 2)[0] == "if a:\n    x = 2\nelse:\n        x = 2\n"
    )


def test_text_with_another_nesting_does_not_match() -> None:
    with pytest.raises(ToolFailure, match=r"lines 1 to 3:\nif a:\n    b\nc$"):
        replace("a.py", "if a:\n    b\nc\n", "if a:\nb\nc", "x")


@pytest.mark.parametrize(
    ("old", "nearest_text"),
    [
        ("def g(self):\n    return 3", "lines 6 to 7:\n    def g(self):\n        return 2"),
        ("retrun a", "lines 4 to 6:\n        return a\n"),
        ("x\n    def g(self):\n", "lines 5 to 7:\n\n    def g(self):\n"),
    ],
)
def test_text_that_is_not_found_is_answered_with_the_nearest_text(
    old: str, nearest_text: str
) -> None:
    with pytest.raises(ToolFailure) as refused:
        replace("a.py", TEXT, old, "x")
    assert nearest_text in str(refused.value)


def test_a_refusal_is_short_for_any_file() -> None:
    with pytest.raises(ToolFailure) as refused:
        replace(
            "a.py",
            "needle here\n" + "x" * 100_000 + "\n" + "y" * 100_000,
            "needle there\n" * 500,
            "z",
        )
    assert len(str(refused.value)) < 4000
    with pytest.raises(ToolFailure, match="only spaces"):
        replace("a.py", "a\n", " \n \n", "x")


ROW = st.text("ab ({:\t", max_size=6)


@given(
    st.lists(ROW, max_size=8),
    st.integers(0, 8),
    st.integers(1, 3),
    st.text("ab\n ", max_size=8),
    st.sampled_from(["", "  ", "\t"]),
)
def test_only_the_matched_lines_change(
    rows: list[str], at: int, size: int, new: str, shift: str
) -> None:
    text = "\n".join(rows)
    old = "\n".join(shift + row + shift for row in rows[at : at + size])
    try:
        new_text, count = replace("a", text, old or "a", new)
    except ToolFailure:
        return
    assert count == 1
    head = next(
        (
            n
            for n, (old_char, new_char) in enumerate(zip(text, new_text, strict=False))
            if old_char != new_char
        ),
        min(len(text), len(new_text)),
    )
    tail = next(
        (
            n
            for n, (old_char, new_char) in enumerate(zip(text[::-1], new_text[::-1], strict=False))
            if old_char != new_char
        ),
        min(len(text), len(new_text)),
    )
    changed = text[head : len(text) - tail]
    assert len(changed.strip()) <= len(old.strip()) + 2


def test_a_count_of_0_replaces_every_occurrence_and_needs_one() -> None:
    assert replace("a.py", "x = 1\nx = 1\n", "x = 1", "y = 2", 0) == ("y = 2\ny = 2\n", 2)
    assert replace("a.py", "    x = 1\n    x = 1\n", "x = 1  \n", "y = 2\n", 0)[1] == 2
    with pytest.raises(ToolFailure):
        replace("a.py", "x = 1\n", "nothing", "y", 0)
