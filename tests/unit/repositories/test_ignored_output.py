"""Files ignored by .gitignore are not read, and refuse nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.errors import PatchRefused
from moothall.repositories.changes import ChangeCaps, ChangeScan, stamps
from moothall.repositories.clone import TrustedClone
from support.repos import make_repo
from support.surveys import survey_with

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

LARGE = 25_000_000
CAPS = ChangeCaps(file_bytes=5_000_000, total_bytes=20_000_000, entries=2_000)
BASE = {
    ".gitignore": "/target/\n*.log\nbuild/*\n!build/keep.txt\n",
    "crates/inner/.gitignore": "out/\n",
    "crates/inner/lib.rs": "// inner\n",
    "kept.log": "ignored, and in the base\n",
    "out/stamp": "in the base\n",
    "src/eval.rs": "// eval\n",
}


class Work:
    """A work tree with changes: the upper folder of an overlay, or a whole tree."""

    def __init__(self, folder: Path, clone: TrustedClone, sha: str, *, whole_tree: bool) -> None:
        self.tree, self.clone, self.sha, self.whole_tree = folder, clone, sha, whole_tree
        self.base = folder.with_name("base")
        self.before = stamps(folder) if whole_tree else None

    def write(self, path: str, content: bytes | str = "x", size: int = 0) -> None:
        (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / path).write_bytes(content if isinstance(content, bytes) else content.encode())
        if size:
            os.truncate(self.tree / path, size)

    async def paths(self, caps: ChangeCaps = CAPS) -> tuple[list[str], dict[str, str], int]:
        """Return the changed files, the ignored ones, and the number of queries to git."""
        survey = ChangeScan(
            self.tree,
            list(BASE),
            caps,
            base=None if self.whole_tree else self.base,
            stamps=self.before,
        )
        surveyed, queries = await survey_with(self.clone, self.sha, survey)
        return [change.path for change in surveyed.changes], dict(surveyed.ignored), queries


@pytest.fixture(params=[False, True], ids=["overlay", "whole tree"])
async def work(request: pytest.FixtureRequest, tmp_path: Path) -> Work:
    repo = make_repo(tmp_path / "repo", BASE)
    clone = TrustedClone(tmp_path / "clones" / "c.git", WorkspaceSettings())
    sha = await clone.fetch(str(repo.path), "HEAD")
    await clone.checkout(sha, tmp_path / "base")
    if request.param:
        await clone.checkout(sha, tmp_path / "work")
    (tmp_path / "work").mkdir(exist_ok=True)
    return Work(tmp_path / "work", clone, sha, whole_tree=request.param)


async def test_build_output_in_an_ignored_folder_does_not_count(work: Work) -> None:
    work.write("src/eval.rs", "// fixed\n")
    work.write("target/debug/libsemver.rlib", size=LARGE)
    work.write("target/debug/deps/other.rlib", size=LARGE)
    os.mkfifo(work.tree / "target/debug/pipe")
    deep = "/".join(["d"] * 120)
    work.write(f"target/{deep}/file")
    paths, ignored, queries = await work.paths()
    assert (paths, queries) == (["src/eval.rs"], 1)
    assert ignored["target/debug/libsemver.rlib"] == "line 1 of .gitignore, /target/"


async def test_a_new_folder_with_a_cache_tag_is_not_part_of_a_change(work: Work) -> None:
    tag = "Signature: 8a477f597d28d172789f06886806bc55\n# made by a build\n"
    work.write("output/CACHEDIR.TAG", tag)
    work.write("output/debug/big.bin", size=LARGE)
    work.write("src/CACHEDIR.TAG", tag)
    work.write("src/new.rs", "// new\n")
    work.write("plain/CACHEDIR.TAG", "no signature\n")
    changed, _, _ = await work.paths()
    assert changed == ["plain/CACHEDIR.TAG", "src/CACHEDIR.TAG", "src/new.rs"]


async def test_an_ignored_folder_over_the_entry_limit_is_not_queried_file_by_file(
    work: Work,
) -> None:
    for number in range(CAPS.entries + 1):
        work.write(f"target/debug/deps/{number}.o", "")
    work.write("src/new.rs")
    paths, ignored, queries = await work.paths()
    assert (paths, queries) == (["src/new.rs"], 1)
    assert ignored == {"target/debug/deps/": "line 1 of .gitignore, /target/"}


async def test_many_ignored_files_in_a_base_folder_do_not_refuse_the_change(
    work: Work,
) -> None:
    for number in range(CAPS.entries + 1):
        work.write(f"src/{number}.log", "")
    work.write("src/new.rs")
    assert (await work.paths())[0] == ["src/new.rs"]


async def test_nested_negated_and_new_ignore_rules_apply(
    work: Work,
) -> None:
    work.write("crates/inner/out/x.bin", size=LARGE)
    work.write("build/keep.txt")
    work.write("build/x.bin", size=LARGE)
    work.write("new/.gitignore", "made/\n")
    work.write("new/made/x.bin", size=LARGE)
    work.write("new/code.rs")
    paths, ignored, queries = await work.paths()
    assert (paths, queries) == (["build/keep.txt", "new/.gitignore", "new/code.rs"], 1)
    assert ignored == {
        "build/x.bin": "line 3 of .gitignore, build/*",
        "crates/inner/out/x.bin": "line 1 of crates/inner/.gitignore, out/",
        "new/made/x.bin": "line 1 of new/.gitignore, made/",
    }


async def test_a_changed_ignore_file_replaces_the_previous_one(
    work: Work,
) -> None:
    work.write(".gitignore", "dist/\n")
    work.write("dist/x.bin", size=LARGE)
    work.write("run.log")
    assert (await work.paths())[0] == [".gitignore", "run.log"]


async def test_tracked_files_in_ignored_places_are_part_of_the_change(work: Work) -> None:
    work.write(".gitignore", "out/\n*.log\n")
    work.write("kept.log", "changed\n")
    work.write("out/stamp", "changed\n")
    work.write("out/x.bin", size=LARGE)
    assert (await work.paths())[0] == [".gitignore", "kept.log", "out/stamp"]


async def test_ignored_pipes_and_odd_names_do_not_refuse_the_change(work: Work) -> None:
    os.mkfifo(work.tree / "pipe.log")
    work.write(os.fsdecode(b"odd\n\xff.log"))
    work.write(os.fsdecode(b"target/odd\n\xff"))
    paths, ignored, _ = await work.paths()
    assert (paths, set(ignored)) == (
        [],
        {"pipe.log", os.fsdecode(b"odd\n\xff.log"), os.fsdecode(b"target/odd\n\xff")},
    )


async def test_a_link_named_like_an_ignored_folder_is_not_ignored(work: Work) -> None:
    (work.tree / "target").symlink_to("src")
    assert (await work.paths())[0] == ["target"]


async def test_without_new_files_git_is_not_queried(work: Work) -> None:
    work.write("src/eval.rs", "// fixed\n")
    (work.tree / "empty").mkdir()
    assert await work.paths() == (["src/eval.rs"], {}, 0)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"made/a.o": LARGE, "made/b.o": 1_000_000, "x.bin": 300},
            (
                r"more than 20000000 bytes; most is in made/ "
                r"\(26000000 bytes\), x.bin \(300 bytes\)\. Delete .* \.gitignore\.$"
            ),
        ),
        (
            {"made/a.o": 6_000_000, "x.bin": 300},
            r"a file may hold 5000000 bytes; larger is made/ \(6000000 bytes\)\. Delete",
        ),
        (
            {f"made/{number}.o": 1 for number in range(2001)},
            r"more than 2000 files were written: made/ \(2001 files\)\. Delete",
        ),
    ],
    ids=["together", "one file", "files"],
)
async def test_the_largest_unignored_entries_are_named(
    work: Work, sizes: dict[str, int], message: str
) -> None:
    for path, size in sizes.items():
        work.write(path, size=size)
    with pytest.raises(PatchRefused, match=message):
        await work.paths()
