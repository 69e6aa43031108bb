from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from moothall.sandbox_runtime.file_access import IsFolder, TextLimits, ToolFailure, find_encoding
from moothall.sandbox_runtime.files import SHOWN_ENTRIES, TOOLS, glob_matches

LIMITS = TextLimits(file_bytes=10_000, output_bytes=2_000)


class Tree:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = os.open(path, os.O_PATH | os.O_DIRECTORY)

    def __call__(self, tool: str, **args: Any) -> dict[str, Any]:
        return TOOLS[f"files.{tool}"](self.root, args, LIMITS)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    inside = tmp_path / "inside"
    inside.mkdir()
    tree = Tree(inside)
    yield tree
    os.close(tree.root)


def test_files_are_written_read_appended_and_edited(tree: Tree) -> None:
    assert tree("write", path="src/new/a.py", content="one\ntwo")["bytes"] == 7
    assert tree("append", path="src/new/a.py", content="three\n")["bytes"] == 14
    assert tree("read", path="./src//new/a.py")["content"] == "one\ntwo\nthree\n"
    part = tree("read", path="src/new/a.py", start=2, lines=1)
    assert (part["content"], part["total_lines"], part["truncated"]) == ("two\n", 3, True)
    assert tree("edit", path="src/new/a.py", old="two\n", new="")["replaced"] == 1
    assert tree("read", path="src/new/a.py")["content"] == "one\nthree\n"
    assert tree("append", path="fresh.txt", content="x")["bytes"] == 1


def test_an_edit_that_does_not_apply_is_reported_with_the_reason(tree: Tree) -> None:
    tree("write", path="a.py", content="def f():\n    x = 1\n    x = 1\n")
    with pytest.raises(ToolFailure, match=r"occurs 2 times .* count=2"):
        tree("edit", path="a.py", old="x = 1", new="y")
    with pytest.raises(
        ToolFailure,
        match=r"the file has 3 lines. Copy old from the nearest text, lines 2 to 3:\n    x "
        r"= 1\n    "
        r"x = 1$",
    ):
        tree("edit", path="a.py", old="  x = 1\n  z", new="y")
    with pytest.raises(ToolFailure, match=r"not found .* copy the text exactly"):
        tree("edit", path="a.py", old="nothing like it", new="y")
    assert tree("edit", path="a.py", old="x = 1", new="y", count=2)["replaced"] == 2


def test_a_folder_is_listed_instead_of_read(tree: Tree) -> None:
    for path in ("src/inner/a.py", "src/b.py", "src/node_modules/c.js", "src/c.py"):
        tree("write", path=path, content="x")
    with pytest.raises(IsFolder, match=r"^'src' is a folder, not a file$") as failed:
        tree("read", path="src/")
    assert failed.value.answer() == {
        "status": "error",
        "error": "'src' is a folder, not a file",
        "output": {
            "path": "src",
            "entries": ["b.py", "c.py", "inner/"],
            "total": 3,
            "truncated": False,
        },
    }
    for number in range(SHOWN_ENTRIES + 1):
        tree("write", path=f"many/{number}", content="")
    with pytest.raises(IsFolder) as failed:
        tree("read", path="many")
    output = dict(failed.value.output or {})
    assert (output["total"], output["truncated"]) == (SHOWN_ENTRIES + 1, True)
    assert len(json.dumps(output["entries"])) <= LIMITS.output_bytes


def test_non_text_files_are_refused(tree: Tree) -> None:
    (tree.path / "b").write_bytes(b"a\0b")
    (tree.path / "l").write_bytes(b"caf\xe9\x01")
    (tree.path / "big").write_bytes(b"x" * 10_001)
    os.mkfifo(tree.path / "pipe")
    for path, reason in (
        ("b", "binary"),
        ("l", "binary"),
        ("big", "at most 10000"),
        ("pipe", "not a regular file"),
        (".", "folder"),
    ):
        with pytest.raises(ToolFailure, match=reason):
            tree("read", path=path)
    with pytest.raises(ToolFailure, match="surrogate"):
        tree("write", path="x", content="\ud800")
    with pytest.raises(ToolFailure, match="may have 10000"):
        tree("write", path="x", content="x" * 10_001)


_TEXT = "# größer\nx = 1\n"


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (_TEXT.encode("latin-1"), "cp1252"),
        ("# “größer” €\nx = 1\n".encode("cp1252"), "cp1252"),
        (b"# \x81\x8d gr\xf6\xdfer\nx = 1\n", "latin-1"),
        ("# -*- coding: koi8-r -*-\n# привет\nx = 1\n".encode("koi8-r"), "koi8-r"),
        (
            "<?xml version='1.0' encoding='Shift_JIS'?>\n<a>日本</a>\nx = 1\n".encode("shift_jis"),
            "shift_jis",
        ),
        (_TEXT.encode("utf-8-sig"), "utf-8 with a byte order mark"),
        (_TEXT.encode("utf-16"), "utf-16-le with a byte order mark"),
        (b"\xfe\xff" + _TEXT.encode("utf-16-be"), "utf-16-be with a byte order mark"),
        (_TEXT.encode("utf-16-le"), "utf-16-le"),
        (_TEXT.encode("utf-16-be"), "utf-16-be"),
        (_TEXT.encode("utf-32"), "utf-32-le with a byte order mark"),
        ("# ä ö ü \n".encode() + b"# \xe4\nx = 1\n", "utf-8 with invalid bytes"),
    ],
)
def test_a_text_keeps_its_encoding(tree: Tree, raw: bytes, name: str) -> None:
    file = tree.path / "a.txt"
    file.write_bytes(raw)
    encoding = find_encoding(raw)
    assert encoding is not None
    text = encoding.decode(raw)
    read = tree("read", path="a.txt")
    assert (read["content"], read["encoding"]) == (text, name)
    assert tree("search", pattern="x = 1")["matches"][0]["text"] == "x = 1"
    assert tree("info", path="a.txt")["lines"] == text.count("\n")
    tree("edit", path="a.txt", old="x = 1", new="y = 2")
    tree("append", path="a.txt", content="z = 3\n")
    assert file.read_bytes() == encoding.encode(text.replace("x = 1", "y = 2") + "z = 3\n")
    tree("write", path="a.txt", content=text)
    assert file.read_bytes() == raw


def test_invalid_bytes_around_a_new_definition_are_kept(tree: Tree) -> None:
    raw = "# ä ö ü\n".encode() + b"# \xe4\ndef f():\n    return 1\n"
    (tree.path / "a.py").write_bytes(raw)
    tree("define", path="a.py", name="f", content="def f():\n    return 2")
    assert (tree.path / "a.py").read_bytes() == raw.replace(b"return 1", b"return 2")


def test_a_character_missing_from_the_encoding_is_refused(tree: Tree) -> None:
    file = tree.path / "a.txt"
    file.write_bytes(raw := "größer\n".encode("latin-1"))
    for tool, arguments in (
        ("write", {"content": "日"}),
        ("append", {"content": "日"}),
        ("edit", {"old": "r", "new": "日", "count": 2}),
    ):
        with pytest.raises(ToolFailure, match="is in cp1252, which has no '日'"):
            tree(tool, path="a.txt", **arguments)
    assert file.read_bytes() == raw


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_text_keeps_its_line_endings(tree: Tree, end: str) -> None:
    file = tree.path / "a.txt"

    def content() -> str:
        return file.read_bytes().decode()

    lines = ["one", "two", "three", ""]
    file.write_bytes(end.join(lines).encode())
    tree("edit", path="a.txt", old="two", new="2\n2.5\r\n3")
    assert content() == end.join(["one", "2", "2.5", "3", "three", ""])
    tree("append", path="a.txt", content="\nfour\r\nfive\n")
    assert content() == end.join(["one", "2", "2.5", "3", "three", "", "four", "five", ""])
    for spelled in ("\n", "\r\n"):
        tree("write", path="a.txt", content=spelled.join(lines))
        assert content() == end.join(lines)
    if end != "\r":
        for spelled in ("\n", "\r\n"):
            tree(
                "edit",
                path="a.txt",
                old=spelled.join(["one", "two"]),
                new=spelled.join(["two", "one"]),
            )
            assert content() == end.join(["two", "one", "three", ""])
            tree("edit", path="a.txt", old="two\none", new="one\ntwo")
    file.write_bytes(end.join(["one", "two"]).encode())
    tree("append", path="a.txt", content="three")
    assert content() == end.join(["one", "two", "three"])


def test_an_edit_with_other_indentation_keeps_the_line_endings_near_an_unterminated_line(
    tree: Tree,
) -> None:
    file = tree.path / "a.txt"
    file.write_bytes(b"one\r\n  two")
    tree("edit", path="a.txt", old="    two", new="    2\n    3")
    assert file.read_bytes() == b"one\r\n  2\r\n  3"


def test_mixed_line_endings_are_kept_at_each_place(tree: Tree) -> None:
    file = tree.path / "a.txt"
    file.write_bytes(b"a\r\nx\r\nb\nx\nc\nx")
    tree("edit", path="a.txt", old="x", new="1\n2", count=3)
    assert file.read_bytes() == b"a\r\n1\r\n2\r\nb\n1\n2\nc\n1\n2"


def test_files_are_listed_searched_compared_and_deleted(tree: Tree) -> None:
    tree("write", path="src/a.py", content="needle = 1\n")
    tree("write", path="src/b.txt", content="hay\nneedle\n")
    (tree.path / "__pycache__").mkdir()
    (tree.path / "link").symlink_to("src")
    assert tree("list")["entries"] == ["link", "src/", "src/a.py", "src/b.txt"]
    assert tree("list", path="src", glob="*.py")["entries"] == ["src/a.py"]
    assert [(m["path"], m["line"]) for m in tree("search", pattern="^needle")["matches"]] == [
        ("src/a.py", 1),
        ("src/b.txt", 2),
    ]
    assert tree("search", pattern="needle", path="src/a.py")["matches"] == [
        {"path": "src/a.py", "line": 1, "text": "needle = 1"}
    ]
    assert tree("info", path="link") == {
        "path": "link",
        "type": "symlink",
        "bytes": 3,
        "executable": True,
        "target": "src",
    }
    assert tree("info", path="src/b.txt")["lines"] == 2
    assert (
        "-needle = 1\n+hay\n+needle\n" in tree("diff", path="src/a.py", other="src/b.txt")["diff"]
    )
    with pytest.raises(ToolFailure, match="not a regular expression"):
        tree("search", pattern="(")
    with pytest.raises(ToolFailure, match="not empty"):
        tree("delete", path="src")
    assert tree("delete", path="link")["deleted"]
    assert (tree.path / "src" / "a.py").exists()
    tree("mkdir", path="deep/er")
    assert tree("delete", path="deep/er")["deleted"]


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret", "a/../../secret", "out/secret", "abs", "\0", "x" * 2000]
)
def test_no_path_leads_outside_the_workspace(tree: Tree, path: str) -> None:
    (tree.path.parent / "secret").write_text("secret", encoding="utf-8")
    (tree.path / "a").mkdir()
    (tree.path / "out").symlink_to("..")
    (tree.path / "abs").symlink_to("/etc/passwd")
    for tool, arguments in (
        ("read", {}),
        ("write", {"content": "x"}),
        ("append", {"content": "x"}),
        ("search", {"pattern": "."}),
    ):
        with pytest.raises(ToolFailure) as refused:
            tree(tool, path=path, **arguments)
        assert refused.value.status == "invalid"
    assert (tree.path.parent / "secret").read_text(encoding="utf-8") == "secret"


def test_symlinks_that_stay_inside_are_followed(tree: Tree) -> None:
    tree("write", path="src/a.py", content="x = 1\n")
    (tree.path / "link").symlink_to("src/a.py")
    assert tree("read", path="link")["content"] == "x = 1\n"
    tree("write", path="link", content="y\n")
    assert (tree.path / "link").is_symlink()
    assert tree("read", path="src/a.py")["content"] == "y\n"


@pytest.mark.parametrize("path", [".git/config", "a/.GIT/hooks/pre-commit", ".git"])
def test_files_of_git_are_not_written(tree: Tree, path: str) -> None:
    with pytest.raises(ToolFailure, match="git's own files"):
        tree("write", path=path, content="x")


NAMES = st.sampled_from(
    ["a", "b", "..", ".", "", "up", "away", "loop", "secret", "a" * 300, "/", "é", "-rf", "*"]
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(parts=st.lists(NAMES, max_size=6), tool=st.sampled_from(sorted(TOOLS)))
@example(parts=["up", "secret"], tool="files.write")
@example(parts=["a", "..", "..", "secret"], tool="files.delete")
def test_no_path_leaves_its_workspace(parts: list[str], tool: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outside, inside = Path(folder), Path(folder, "inside")
        (inside / "a" / "b").mkdir(parents=True)
        (outside / "secret").write_text("top secret", encoding="utf-8")
        (inside / "up").symlink_to("..")
        (inside / "a" / "away").symlink_to(outside)
        (inside / "loop").symlink_to("loop")
        files_before = sorted(str(path) for path in outside.iterdir())
        tree = Tree(inside)
        path = "/".join(parts)
        args: dict[str, Any] = {
            "path": path,
            "other": path,
            "name": "x",
            "content": "x",
            "old": "top",
            "new": "x",
            "pattern": "secret",
        }
        args |= {
            "frames": [[path, 1]],
            "tests": [[path, "x"]],
            "paths": [path],
            "words": ["top"],
            "names": ["top"],
        }
        args |= {"map_chars": 1000, "files": 100, "bytes": 100_000}
        try:
            result = TOOLS[tool](tree.root, args, LIMITS)
            assert "top secret" not in str(result)
        except ToolFailure:
            pass
        finally:
            os.close(tree.root)
        assert (outside / "secret").read_text(encoding="utf-8") == "top secret"
        assert sorted(str(path) for path in outside.iterdir()) == files_before


@pytest.mark.parametrize(
    ("path", "glob", "matches"),
    [
        ("a.py", "*.py", True),
        ("src/deep/a.py", "*.py", True),
        ("src/deep/a.py", "src/*.py", False),
        ("src/deep/a.py", "src/**/*.py", True),
        ("src/a.py", "src/**/*.py", True),
        ("src/a.py", "**", True),
        ("src/a.py", "src/**", True),
        ("lib/a.py", "src/**", False),
        ("a/" * 30 + "b", "**/a/" * 15 + "c", False),
    ],
)
def test_globs_match_paths(path: str, glob: str, *, matches: bool) -> None:
    assert glob_matches(path, glob) is matches
