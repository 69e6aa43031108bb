"""The part of an agent's change that is adopted as tests."""

from __future__ import annotations

from moothall.ranking.diffs import filter_files

NEW = (
    "diff --git a/tests/test_b.py b/tests/test_b.py\nnew file mode 100644\n--- /dev/null\n+++ "
    "b/tests/test_b.py\n@@ -0,0 +1 @@\n+x = 1\n"
)
CHANGED = (
    "diff --git a/src/a.py b/src/a.py\nindex 1..2 100644\n--- a/src/a.py\n+++ b/src/a.py\n@@ -1 "
    "+1 @@\n-x\n+diff --git a/q b/q\n"
)
GONE = (
    "diff --git a/tests/c.py b/tests/c.py\ndeleted file mode 100644\n--- a/tests/c.py\n+++ "
    "/dev/null\n@@ -1 +0,0 @@\n-x\n"
)
MOVED = (
    "diff --git a/a.py b/tests/test_d.py\nsimilarity index 90%\nrename from a.py\nrename to "
    "tests/test_d.py\n--- a/a.py\n+++ b/tests/test_d.py\n@@ -1 +1 @@\n-x\n+y\n"
)
BINARY = (
    "diff --git a/tests/x.bin b/tests/x.bin\nnew file mode 100644\nGIT binary patch\nliteral 3\n"
    "KcmZQ\n\n"
)


def test_a_diff_is_split_into_parts_by_file() -> None:
    diff = NEW + CHANGED + GONE + MOVED + BINARY
    assert filter_files(diff, lambda part: part.path.startswith("tests/")) == NEW
    assert filter_files(diff, lambda part: not part.new) == CHANGED
    assert filter_files("", lambda _: True) == ""
