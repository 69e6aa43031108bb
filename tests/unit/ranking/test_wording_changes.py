from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.ranking.diffs import (
    change_digest,
    changes_only_wording,
    existing_code_files,
    normalize_change,
)

PYTHON = 'def f(x):\n    """Say."""\n    return x + 1\n'
GO = 'package a\n\n// F says.\nfunc F() string { return "// no comment" }\n'
TASK = "Make f() return two more"


def diff(path: str, before: str, after: str, *, new: bool = False) -> str:
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True))
    body = "".join(lines).partition("@@")
    old = "/dev/null" if new else f"a/{path}"
    return f"diff --git a/{path} b/{path}\n--- {old}\n+++ b/{path}\n{body[1]}{body[2]}"


def idle(path: str, before: str, after: str, task: str = TASK) -> bool:
    change = diff(path, before, after)
    return changes_only_wording(change, normalize_change(change, {path: before}, ()), task)


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("a.py", PYTHON, "# done\n" + PYTHON),
        ("a.py", PYTHON, PYTHON.replace("x + 1", "(x  +  1)  # two more")),
        ("a.py", PYTHON, PYTHON.replace("Say.", "Return two more.")),
        ("a.go", GO, GO.replace("F says", "F says two more")),
        ("a.ts", "const f = (x) => x + 1;\n", "/* two more */\nconst f = (x) =>\n  x + 1;\n"),
        (
            "src/a.rs",
            "fn f(x: u8) -> u8 { x + 1 }\n",
            "/// Two more.\nfn f(x: u8) -> u8 {\n    x + 1\n}\n",
        ),
    ],
)
def test_wording_and_formatting_alone_are_not_an_answer_unless_the_task_asks_for_them(
    path: str, before: str, after: str
) -> None:
    assert idle(path, before, after)
    assert not idle(path, before, after, "Document f()"), (
        "a task about wording is solved by a change of wording"
    )


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("a.py", PYTHON, PYTHON.replace("+ 1", "+ 2")),
        ("a.py", PYTHON, "def f(:\n"),
        ("a.go", GO, GO.replace("no comment", "a comment")),
        ("a.rs", "const C: char = '/';\n", "const C: char = '*';\n"),
        ("README.md", "Hello\n", "Hello!\n"),
    ],
)
def test_a_change_beyond_wording_is_an_answer(path: str, before: str, after: str) -> None:
    assert not idle(path, before, after)


def test_new_removed_and_binary_files_are_changes() -> None:
    change = diff("b.py", "", "# only words\n", new=True)
    assert not changes_only_wording(change, normalize_change(change, {}, ()), TASK)
    comment = diff("a.py", PYTHON, "# x\n" + PYTHON)
    removed = (
        f"{comment}diff --git a/b.bin b/b.bin\ndeleted file mode 100644\nBinary files a/b.bin and "
        "/dev/null differ\n"
    )
    assert not changes_only_wording(removed, normalize_change(removed, {"a.py": PYTHON}, ()), TASK)


def test_tests_alone_are_not_idle_and_tests_beside_wording_do_not_help() -> None:
    tests = diff("tests/test_a.py", "", "def test_f(): ...\n", new=True)
    assert not changes_only_wording(tests, normalize_change(tests, {}, ("tests/test_a.py",)), TASK)
    combined = diff("a.py", PYTHON, "# x\n" + PYTHON) + tests
    assert changes_only_wording(
        combined, normalize_change(combined, {"a.py": PYTHON}, ("tests/test_a.py",)), TASK
    )


def test_the_same_change_with_other_wording_has_the_same_digest() -> None:
    texts = {"a.py": PYTHON}
    first_diff = diff("a.py", PYTHON, PYTHON.replace("x + 1", "x + 2  # so"))
    second_diff = diff(
        "a.py", PYTHON, PYTHON.replace("x + 1", "(x + 2)").replace("Say.", "Return.")
    )
    third = diff("a.py", PYTHON, PYTHON.replace("x + 1", "2 + x"))
    assert existing_code_files(first_diff) == ("a.py",)
    assert (
        change_digest(normalize_change(first_diff, texts, ()))
        == change_digest(normalize_change(second_diff, texts, ()))
        != change_digest(normalize_change(third, texts, ()))
    )


@given(
    st.text(max_size=200),
    st.text(max_size=200),
    st.sampled_from(["a.py", "a.go", "a.rs", "a.js", "a"]),
)
def test_any_text_can_be_normalized(before: str, after: str, path: str) -> None:
    change = diff(path, before, after)
    assert isinstance(change_digest(normalize_change(change, {path: before}, ())), str)
    assert changes_only_wording(change, normalize_change(change, {path: before}, ()), TASK) in {
        True,
        False,
    }
