from __future__ import annotations

from moothall.stories.diff_lines import DiffLine, read_diff, read_files

DIFF = """diff --git a/src/a.py b/src/a.py
--- a/src/a.py
+++ b/src/a.py
@@ -3,3 +3,4 @@ def f():
 same
-old
+new
+++ b/passwd
 end
diff --git a/b.py b/b.py
new file mode 100644
--- /dev/null
+++ b/b.py
@@ -0,0 +1 @@
+only
\\ No newline at end of file
"""


def test_each_line_has_its_kind_and_position() -> None:
    lines = read_diff(DIFF)
    assert [line.text for line in lines] == DIFF.splitlines()
    assert [line for line in lines if line.kind != "place"] == [
        DiffLine("same", " same", "src/a.py", 3, 3),
        DiffLine("removed", "-old", "src/a.py", 4),
        DiffLine("added", "+new", "src/a.py", 4),
        DiffLine("added", "+++ b/passwd", "src/a.py", 5),
        DiffLine("same", " end", "src/a.py", 6, 5),
        DiffLine("added", "+only", "b.py", 1),
    ]


def test_a_diff_is_read_file_by_file_with_line_numbers() -> None:
    first, second = read_files(DIFF)
    assert [(file.path, file.added, file.removed) for file in (first, second)] == [
        ("src/a.py", 2, 1),
        ("b.py", 1, 0),
    ]
    assert [(kind, [number for number, _ in run]) for kind, run in first.runs()] == [
        ("place", [4]),
        ("same", [5]),
        ("change", [6, 7, 8]),
        ("same", [9]),
    ]
    assert [(kind, [number for number, _ in run]) for kind, run in second.runs()] == [
        ("place", [14]),
        ("change", [15]),
        ("place", [16]),
    ]
    assert read_files("") == ()
    (loose,) = read_files("no diff at all\n")
    assert [line.text for _, line in loose.lines] == ["no diff at all"]


def test_git_headers_are_described_in_words() -> None:
    diff = (
        "diff --git a/old.py b/new.py\nold mode 100644\nnew mode 100755\n"
        "similarity index 90%\nrename from old.py\nrename to new.py\n"
        "--- a/old.py\n+++ b/new.py\n@@ -9,1 +9,2 @@ def f():\n same\n+new file mode 100644\n"
        "diff --git a/a.png b/a.png\nnew file mode 100644\n"
        "Binary files /dev/null and b/a.png differ\n"
        "diff --git a/c.py b/c.py\ndeleted file mode 100644\n--- a/c.py\n+++ /dev/null\n"
        "@@ -4 +0,0 @@\n-gone\n\\ No newline at end of file\n"
        "diff --git a/l b/l\nnew file mode 120000\n"
    )
    moved, image, deleted, link = read_files(diff)
    assert moved.notes == ("mode 755", "renamed from old.py")
    assert [line.caption for _, line in moved.lines if line.kind == "place"] == [
        "Line 9 · def f():"
    ]
    assert [line.text for _, line in moved.lines if line.kind == "added"] == [
        "+new file mode 100644"
    ], "inside a hunk it is a line"
    assert (image.notes, image.lines) == (("new", "binary"), ())
    assert deleted.notes == ("deleted",)
    assert [line.caption for _, line in deleted.lines if line.kind == "place"] == [
        "Line 4",
        "No newline at the end of the file",
    ]
    assert link.notes == ("new symbolic link",)


def test_text_that_is_not_a_diff_has_no_changed_lines() -> None:
    assert all(line.kind == "place" for line in read_diff("+x\n-y\n z\n@@ nonsense @@\n+x"))
    assert read_diff("") == []


def test_counts_and_line_numbers_are_available_before_the_lines_are_read() -> None:
    files = read_files(
        "".join(
            f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n@@ -1,2 +1,3 @@\n"
            " same\n-old\n+new\n+diff --git a/x b/x\n"
            for name in ("one.py", "two.py", "three.py")
        )
    )
    assert [(file.path, file.line_count, file.added, file.removed) for file in files] == [
        ("one.py", 5, 2, 1),
        ("two.py", 5, 2, 1),
        ("three.py", 5, 2, 1),
    ]
    assert all(file.line_count == len(file.lines) for file in files)
    assert [number for number, _ in files[1].lines] == [12, 13, 14, 15, 16]
