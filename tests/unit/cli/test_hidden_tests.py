"""`--hidden-tests`: the files that are read, and their destination."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moothall.cli.deliberate import read_hidden_tests
from moothall.errors import InvalidRequest
from support.repos import Repo


def test_a_folder_mirrors_the_repository_and_a_file_keeps_its_place_or_gets_a_given_one(
    tmp_path: Path,
) -> None:
    top, other_folder = tmp_path / "repo", tmp_path / "other"
    for folder in (top, other_folder):
        folder.mkdir()
    Repo(top).write({"tests/test_a.py": "a"})
    Repo(other_folder).write(
        {
            "tests/test_b.py": "b",
            "pkg/c_test.go": "c",
            ".git/config": "x",
            "tests/__pycache__/b.pyc": "x",
        }
    )
    assert read_hidden_tests([str(top / "tests/test_a.py"), str(other_folder)], top) == {
        "tests/test_a.py": "a",
        "tests/test_b.py": "b",
        "pkg/c_test.go": "c",
    }
    assert read_hidden_tests(
        [f"{other_folder}/tests/test_b.py:checks/test_b.py", f"{other_folder}/pkg:sub"], None
    ) == {
        "checks/test_b.py": "b",
        "sub/c_test.go": "c",
    }


def test_an_outside_file_needs_a_destination_and_binary_files_are_refused(
    tmp_path: Path,
) -> None:
    top, outside_file = tmp_path / "repo", tmp_path / "test_b.py"
    top.mkdir()
    outside_file.write_text("b", encoding="utf-8")
    (top / "data.bin").write_bytes(b"\xff\xfe\x00")
    for option, reason in (
        (str(outside_file), "test_b.py:tests/test_b.py"),
        (str(top / "gone"), "no file or folder"),
        (str(top / "data.bin"), "UTF-8"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            read_hidden_tests([option], top)


def test_a_destination_with_a_trailing_slash_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "test_b.py").write_bytes(b"b\r\n")
    assert read_hidden_tests([f"{tmp_path}/test_b.py:tests/"], None) == {"tests/test_b.py": "b\r\n"}


def test_a_folder_without_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "test_a.pyc").write_bytes(b"x")
    with pytest.raises(InvalidRequest, match="has no file"):
        read_hidden_tests([str(tmp_path)], None)


def test_too_many_files_and_large_files_are_refused(tmp_path: Path) -> None:
    large, crowded = tmp_path / "large", tmp_path / "many"
    Repo(large).write({"data.txt": "x"})
    os.truncate(large / "data.txt", 2**40)  # sparse: reading all of it would not end
    Repo(crowded).write({f"test_{number}.py": "" for number in range(501)})
    for folder in (large, crowded):
        with pytest.raises(InvalidRequest, match="more than 500 files or 3,000,000 bytes"):
            read_hidden_tests([str(folder)], None)
