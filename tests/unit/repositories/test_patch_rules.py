from __future__ import annotations

import posixpath
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.errors import PatchRefused
from moothall.repositories.patch_rules import (
    ChangeLimits,
    RawChange,
    check_changes,
    invalid_path_reason,
    invalid_target_reason,
    is_test,
    matches,
)


def refuse(change: RawChange, reason: str) -> None:
    with pytest.raises(PatchRefused, match=reason) as caught:
        check_changes([RawChange("fine.py"), change])
    assert repr(change.path[:200]) in caught.value.message


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("../x", "'..'"),
        ("a/../../x", "'..'"),
        ("a//b", "''"),
        ("a/", "''"),
        ("./a", "'.'"),
        (".git/config", "git's own"),
        (".git", "git's own"),
        ("sub/.git/hooks/pre-commit", "git's own"),
        (".GIT/config", "git's own"),
        (".gIt/x", "git's own"),
        ("git~1/x", "git's own"),
        ("GIT~2", "git's own"),
        (".git /x", "git's own"),
        (".git./x", "git's own"),
        (".git. . /x", "git's own"),
        (".git::$INDEX_ALLOCATION/x", "git's own"),
        (".g\u200cit/x", "git's own"),
        ("\ufeff.git", "git's own"),
        ("\uff0egit/x", "git's own"),
        ("gi7eba~1", "git's own"),
        ("a\\b", "backslash"),
        ("a\nb", "control"),
        ("a\x00b", "control"),
        ("a\x7fb", "control"),
        ("a\u2028b", "control"),
        ("x" * 256, "longer than 255"),
        ("ü" * 128, "longer than 255"),
        ("a/" * 2100 + "b", "longer than 4096"),
        ("bad\udcff", "UTF-8"),
    ],
)
def test_invalid_paths_are_refused(path: str, reason: str) -> None:
    refuse(RawChange(path), reason)


@pytest.mark.parametrize(
    "path",
    [
        ".gitignore",
        ".gitattributes",
        ".github/ci.yml",
        "gitlab/x",
        "a b/c.py",
        "digit~1",
        "ä/ö",
        "...",
        ".git2",
    ],
)
def test_valid_paths_are_accepted(path: str) -> None:
    check_changes([RawChange(path)])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (RawChange(".gitmodules"), "submodules"),
        (RawChange("sub/.GitModules"), "submodules"),
        (RawChange("m", new_mode="160000"), "submodule"),
        (RawChange("m", old_mode="160000", new_mode="000000"), "submodule"),
        (RawChange("x", new_mode="100777"), "mode 100777"),
        (RawChange("x", new_mode="040000"), "mode 040000"),
        (RawChange("x", new_mode="104755"), "mode 104755"),
        (RawChange("l", new_mode="120000", target="/etc/passwd"), "absolute"),
        (RawChange("l", new_mode="120000", target="../x"), "leaves"),
        (RawChange("a/b/l", new_mode="120000", target="../../../x"), "leaves"),
        (RawChange("l", new_mode="120000", target="a/../../x"), "after its beginning"),
        (RawChange("l", new_mode="120000", target=".git/config"), "git's own"),
        (RawChange("l", new_mode="120000", target=""), "needs a target"),
        (RawChange("l", new_mode="120000", target="a\x00b"), "control"),
        (RawChange("big", size=5_000_001), "5000000"),
    ],
)
def test_invalid_changes_are_refused(change: RawChange, reason: str) -> None:
    refuse(change, reason)


def test_too_many_and_too_large_changes_are_refused() -> None:
    limits = ChangeLimits(files=2, file_bytes=10, total_bytes=15)
    check_changes([RawChange("a", size=7), RawChange("b", size=8)], limits)
    with pytest.raises(PatchRefused, match="3 files"):
        check_changes([RawChange(name) for name in "abc"], limits)
    with pytest.raises(PatchRefused, match="16 bytes"):
        check_changes([RawChange("a", size=8), RawChange("b", size=8)], limits)


NAMES = st.lists(
    st.sampled_from([*"ab.gGiItT~1/\\ \u200c\ufeff:\n", ".git", ".."]), max_size=12
).map("".join)


@given(NAMES)
def test_no_accepted_path_leaves_the_tree_or_enters_git(path: str) -> None:
    if invalid_path_reason(path):
        return
    assert not path.startswith("/")
    assert posixpath.normpath(path) == path
    assert ".." not in PurePosixPath(path).parts
    assert not any(part.rstrip(". ").casefold() in {".git", "git~1"} for part in path.split("/"))


LINKS = st.dictionaries(
    st.sampled_from(["l", "d/l", "d/e/l", "d/m", "n", "d/e/f/o"]),
    st.lists(
        st.sampled_from(["..", ".", "d", "e", "l", "m", "n", "f", "o", ""]), min_size=1, max_size=6
    ).map("/".join),
    min_size=1,
    max_size=6,
)


@given(LINKS)
def test_no_chain_of_accepted_links_leaves_the_tree(links: dict[str, str]) -> None:
    accepted = {
        path: target for path, target in links.items() if not invalid_target_reason(path, target)
    }
    with TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "root"
        (root / "d/e/f").mkdir(parents=True)
        for path, target in accepted.items():
            (root / path).symlink_to(target)
        for path in accepted:
            for tail in ("", "d/e", "l/m", "n"):
                try:
                    resolved = (root / path / tail).resolve(strict=True)
                except (RuntimeError, OSError):
                    continue  # a loop, or a missing target
                assert resolved == root or root in resolved.parents


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("tests/**", "tests/test_a.py", True),
        ("tests/**", "tests", False),
        ("tests/**", "src/tests/a", False),
        ("**/tests/**", "src/tests/a", True),
        ("test_*.py", "deep/down/test_a.py", True),
        ("test_*.py", "mytest_a.py", False),
        ("/test_*.py", "deep/test_a.py", False),
        ("conftest.py", "a/conftest.py", True),
        ("vendor/", "vendor/x/y", True),
        ("a/*/c", "a/b/c", True),
        ("a/*/c", "a/b/b/c", False),
        ("a/**/c", "a/c", True),
        ("a/**/c", "a/x/y/c", True),
        ("*.py", "a.PY", False),
        ("[ab].txt", "b.txt", True),
        ("[!ab].txt", "b.txt", False),
        ("**", "anything/at/all", True),
        ("", "x", False),
    ],
)
def test_patterns_match_paths(pattern: str, path: str, expected: bool) -> None:  # noqa: FBT001 - a parameter of a table
    assert matches((pattern,), path) is expected


def test_a_later_pattern_overrides_an_earlier_one() -> None:
    assert not matches(("tests/**", "!tests/data/**"), "tests/data/x")
    assert matches(("tests/**", "!tests/data/**"), "tests/x")


@given(
    st.lists(st.sampled_from(["*", "**", "a", "?", "[", "]", "!", "/"]), max_size=12).map("".join),
    NAMES,
)
def test_any_pattern_can_be_matched(pattern: str, path: str) -> None:
    assert matches((pattern,), path) in {True, False}


def test_a_pathological_pattern_is_matched_quickly() -> None:
    assert not matches(("*a" * 60 + "b",), "a" * 250)
    assert not matches(("**/" * 200 + "x",), "a/" * 1000 + "b")


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_utils.py",
        "pkg/x_test.go",
        "src/a.test.js",
        "src/__tests__/a.js",
        "test_a.py",
        "lib/test/a.rb",
    ],
)
def test_test_files_are_recognised(path: str) -> None:
    assert is_test(path)


@pytest.mark.parametrize(
    "path", ["src/utils.py", "contest.py", "src/latest.go", "testing.md", "attest/x.py"]
)
def test_other_files_are_not_tests(path: str) -> None:
    assert not is_test(path)
