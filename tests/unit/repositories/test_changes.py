"""Reading what hostile code wrote uses bounded resources."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from moothall.errors import PatchRefused
from moothall.repositories.changes import ChangeCaps, ChangeScan, is_unchanged, measure, stamps
from moothall.repositories.git_objects import Change
from moothall.repositories.patch_rules import FILE
from support.surveys import survey_all

CAPS = ChangeCaps(file_bytes=10_000, total_bytes=100_000)


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Limit the descriptors so that one unnecessarily open folder is an error."""
    limits_before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 60, limits_before[1])
    )
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits_before)


@pytest.mark.usefixtures("few_descriptors")
def test_many_sibling_folders_do_not_exhaust_descriptors(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    for number in range(300):
        folder = upper / f"d{number:03}"
        folder.mkdir(parents=True)
        (folder / "f").write_text("x", encoding="utf-8")
    changes = survey_all(ChangeScan(upper, (), CAPS, base=tmp_path / "base")).changes
    assert [change.path for change in changes] == [f"d{number:03}/f" for number in range(300)]
    assert measure(upper, 10**9, 10**6)[1] == 600


@pytest.mark.parametrize("path", [".git", ".git/config", "pkg/.git/hooks/pre-commit"])
def test_internal_files_of_git_are_not_a_change(tmp_path: Path, path: str) -> None:
    upper, base = tmp_path / "upper", tmp_path / "base"
    for name in (path, "pkg/a.txt"):
        (upper / name).parent.mkdir(parents=True, exist_ok=True)
        (upper / name).write_text("x", encoding="utf-8")
    assert [
        change.path for change in survey_all(ChangeScan(upper, (), CAPS, base=base)).changes
    ] == ["pkg/a.txt"]
    assert [
        change.path for change in survey_all(ChangeScan(upper, (), CAPS, stamps={})).changes
    ] == ["pkg/a.txt"]


def deep(folder: Path, levels: int) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d" * 200, dir_fd=descriptor)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.pwrite(file := os.open("f", os.O_WRONLY, dir_fd=descriptor), bytes(50_000), 0)
    os.close(file)
    os.close(descriptor)


def test_entries_below_the_longest_path_are_counted(tmp_path: Path) -> None:
    deep(tmp_path, 40)
    size, entries = measure(tmp_path, 10**9, 10**6)
    assert (entries, size >= 50_000) == (41, True)


def test_folders_too_deep_to_count_exceed_every_limit(tmp_path: Path) -> None:
    deep(tmp_path, 250)
    assert measure(tmp_path, 10**9, 10**6)[1] > 10**6
    with pytest.raises(PatchRefused, match="deeper than 100"):
        survey_all(ChangeScan(tmp_path, (), CAPS, base=tmp_path))


@pytest.mark.parametrize("target", ["{away}", "../away", "inner"])
def test_no_link_of_the_base_is_followed_for_a_comparison(tmp_path: Path, target: str) -> None:
    base, upper, outside_folder = tmp_path / "base", tmp_path / "upper", tmp_path / "away"
    for folder in (base / "inner", upper / "link", outside_folder):
        folder.mkdir(parents=True)
        (folder / "secret").write_text("the same\n", encoding="utf-8")
    (base / "link").symlink_to(target.format(away=outside_folder))
    changes = survey_all(ChangeScan(upper, ("inner/secret", "link"), CAPS, base=base)).changes
    assert [(change.path, change.content) for change in changes] == [
        ("link", None),
        ("link/secret", b"the same\n"),
    ]
    assert not is_unchanged(base, Change("../away/secret", FILE, b"the same\n"))


def test_unmodified_links_to_folders_and_odd_names_are_unchanged(
    tmp_path: Path,
) -> None:
    tree, odd = tmp_path / "tree", os.fsdecode(b"odd\n\xff")
    (tree / "folder").mkdir(parents=True)
    (tree / "folder/a").write_text("a", encoding="utf-8")
    (tree / odd).write_text("odd", encoding="utf-8")
    (tree / "near").symlink_to("folder")
    (tree / "far").symlink_to("/usr")
    stamps_before = stamps(tree)
    files = ("far", "folder/a", "near", "never written", odd)
    assert survey_all(ChangeScan(tree, files, CAPS, stamps=stamps_before)).changes == []
    for name in ("far", "near", odd):
        (tree / name).unlink()
    assert [
        (change.path, change.content)
        for change in survey_all(ChangeScan(tree, files, CAPS, stamps=stamps_before)).changes
    ] == [
        ("far", None),
        ("near", None),
        (odd, None),
    ]
