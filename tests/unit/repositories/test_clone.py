from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.errors import NotFound, PatchRefused, RepositoryError
from moothall.ranking.diffs import file_diffs
from moothall.repositories.clone import TrustedClone
from moothall.repositories.git_objects import Change
from moothall.repositories.gitcmd import GitRunner
from support.repos import SAMPLE, SOLUTION, Repo, make_repo, make_sample

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

SETTINGS = WorkspaceSettings()


@pytest.fixture
def sample(tmp_path: Path) -> Repo:
    return make_sample(tmp_path / "sample repo")


@pytest.fixture
def clone(tmp_path: Path) -> TrustedClone:
    return TrustedClone(tmp_path / "repos" / "sample.git", SETTINGS)


async def fetch_ref(clone: TrustedClone, repo: Repo, ref: str = "HEAD") -> str:
    return await clone.fetch(str(repo.path), ref)


def solution_change() -> Change:
    return Change("src/utils.py", "100644", (SAMPLE["src/utils.py"] + SOLUTION).encode())


async def test_fetch_pins_the_commit_and_lists_its_files(clone: TrustedClone, sample: Repo) -> None:
    sha = await fetch_ref(clone, sample)
    assert sha == sample.head
    assert await clone.has(sha)
    assert not await clone.has("0" * 40)
    assert await clone.files(sha) == tuple(sorted(SAMPLE))
    assert await clone.read(sha, "src/utils.py", 1000) == SAMPLE["src/utils.py"].encode()
    assert await clone.read(sha, "src/utils.py", 3) == b'"""'
    with pytest.raises(NotFound, match=r"nowhere\.py"):
        await clone.read(sha, "nowhere.py", 10)


async def test_a_concurrent_clone_is_never_seen_incomplete(sample: Repo, tmp_path: Path) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    class Slow(GitRunner):
        async def run(
            self,
            *args: str,
            cwd: Path,
            stdin: bytes = b"",
            env: Mapping[str, str] | None = None,
            seconds: float = 0,
        ) -> bytes:
            out = await super().run(*args, cwd=cwd, stdin=stdin, env=env, seconds=seconds)
            if args[0] == "init":
                started.set()
                await go_on.wait()
            return out

    place = tmp_path / "repos" / "sample.git"
    first = asyncio.create_task(
        TrustedClone(place, SETTINGS, Slow(place.parent)).fetch(str(sample.path), "HEAD")
    )
    await started.wait()
    assert not place.exists()
    second = await TrustedClone(place, SETTINGS).fetch(str(sample.path), "HEAD")
    go_on.set()
    assert await first == second == sample.head
    assert [item.name for item in place.parent.glob("sample.git*")] == ["sample.git"]


async def test_fetch_runs_no_code_of_the_source(
    clone: TrustedClone, sample: Repo, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {mark}\nexec cat\n")
    trap.chmod(0o755)
    hooks = sample.path / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in (
        "post-checkout",
        "reference-transaction",
        "pre-auto-gc",
        "post-index-change",
        "pre-receive",
        "post-update",
    ):
        (hooks / name).write_text(trap.read_text())
        (hooks / name).chmod(0o755)
    for key in (
        "uploadpack.packObjectsHook",
        "core.fsmonitor",
        "filter.evil.smudge",
        "filter.evil.clean",
        "diff.evil.textconv",
    ):
        sample.git("config", key, str(trap))
    sample.git("config", "diff.external", str(trap))
    sample.git("config", "filter.evil.required", "true")
    mark.unlink(missing_ok=True)
    sample.write({".gitattributes": "*.py filter=evil diff=evil\n"})
    blob = sample.blob("*.py filter=evil diff=evil\n")
    tree = sample.git("ls-tree", "HEAD").splitlines()
    sha = sample.commit_tree(*tree, f"100644 blob {blob}\t.gitattributes")
    mark.unlink(missing_ok=True)
    assert await clone.fetch(str(sample.path), sha) == sha
    dest = tmp_path / "out"
    await clone.checkout(sha, dest)
    patch = await clone.commit_changes(sha, [solution_change()], "solve")
    await clone.apply(sha, patch.diff)
    assert (dest / "src/utils.py").read_text() == SAMPLE["src/utils.py"]
    assert not mark.exists()


async def test_checkout_keeps_modes_symlinks_and_bytes(clone: TrustedClone, tmp_path: Path) -> None:
    repo = make_repo(
        tmp_path / "r",
        {
            "bin/run": "#!/bin/sh\n",
            "dos.txt": b"a\nb\n",
            "sub/deep/x": "x",
            "ä ö.txt": "u",
            "raw": b"\0\xff",
        },
    )
    (repo.path / "bin/run").chmod(0o755)
    (repo.path / "sub/link").symlink_to("../bin/run")
    sha = await fetch_ref(
        clone,
        Repo(repo.path),
        repo.commit({".gitattributes": "*.txt text eol=crlf\nraw export-ignore\n"}),
    )
    dest = tmp_path / "out"
    umask_before = os.umask(0o077)
    try:
        await clone.checkout(sha, dest)
    finally:
        os.umask(umask_before)
    assert (dest / "bin/run").stat().st_mode & 0o777 == 0o755
    assert (dest / "dos.txt").read_bytes() == b"a\r\nb\r\n"
    assert (dest / "raw").read_bytes() == b"\0\xff"
    assert (dest / "ä ö.txt").read_text() == "u"
    assert (dest / "sub/link").readlink() == Path("../bin/run")
    assert not (dest / ".git").exists()
    with pytest.raises(RepositoryError, match="not empty"):
        await clone.checkout(sha, dest)


async def test_a_submodule_is_not_a_file_and_cannot_be_changed(
    clone: TrustedClone, sample: Repo
) -> None:
    sha = sample.commit_tree(
        f"160000 commit {sample.head}\tvendored", f"100644 blob {sample.blob('x')}\ta.txt"
    )
    await clone.fetch(str(sample.path), sha)
    assert await clone.files(sha) == ("a.txt",)
    assert await clone.submodules(sha) == {"vendored": sample.head}
    for change in (
        Change("vendored", "100644", b"x"),
        Change("vendored/src/x.py", "100644", b"x"),
        Change("vendored", "100644", None),
    ):
        with pytest.raises(
            PatchRefused, match="lies in the submodule 'vendored', a repository of its own"
        ):
            await clone.commit_changes(sha, [change], "no")
    patch = await clone.commit_changes(sha, [Change("a.txt", "100644", b"y")], "yes")
    assert patch.paths == ("a.txt",)
    assert await clone.submodules(patch.commit_sha) == {"vendored": sample.head}
    removal = (
        "diff --git a/vendored b/vendored\ndeleted file mode 160000\n--- a/vendored\n+++ "
        f"/dev/null\n@@ -1 +0,0 @@\n-Subproject commit {sample.head}\n"
    )
    with pytest.raises(PatchRefused, match="submodule"):
        await clone.apply(sha, removal)


_OUTSIDE = [
    "/etc/passwd",
    "../outside",
    "a/../../outside",
    ".git/config",
    "..",
    "../../x",
    "a/../b",
    b"\xff",
]


@pytest.mark.parametrize("target", _OUTSIDE)
async def test_a_base_link_that_points_outside_is_kept_and_cannot_be_changed(
    clone: TrustedClone, sample: Repo, tmp_path: Path, target: str | bytes
) -> None:
    link = sample.blob(target)
    sha = sample.commit_tree(f"120000 blob {link}\tlink", f"100644 blob {sample.blob('x')}\ta.txt")
    await clone.fetch(str(sample.path), sha)
    assert await clone.checkout(sha, tmp_path / "out") == 0
    link_target = os.fsencode((tmp_path / "out/link").readlink())
    assert link_target == (target if isinstance(target, bytes) else target.encode())
    assert await clone.files(sha) == ("a.txt", "link")
    patch = await clone.commit_changes(sha, [Change("a.txt", "100644", b"y")], "the link stays")
    assert patch.paths == ("a.txt",)
    assert (
        f"120000 blob {link}\tlink" in (await clone.call("ls-tree", patch.commit_sha)).out.decode()
    )
    for change in (
        Change("link", "120000", b"/etc/shadow"),
        Change("link", "120000", b"a.txt"),
        Change("link", "100644", b"x"),
        Change("link", "120000", None),
        Change("link/below", "100644", b"x"),
    ):
        with pytest.raises(PatchRefused, match="'link'"):
            await clone.commit_changes(sha, [change], "no")


@pytest.mark.parametrize(
    "target", ["up/secret", "sub/../up", "here/up", "here/here/up/x", "out", "out/passwd"]
)
async def test_no_link_of_a_patch_points_outside_through_a_link_of_the_base(
    clone: TrustedClone, sample: Repo, target: str
) -> None:
    lines = [
        f"120000 blob {sample.blob(to)}\t{name}"
        for name, to in (("here", "."), ("out", "/etc"), ("up", ".."))
    ]
    sha = sample.commit_tree(*lines, f"100644 blob {sample.blob('x')}\ta.txt")
    await clone.fetch(str(sample.path), sha)
    with pytest.raises(PatchRefused, match="'new'"):
        await clone.commit_changes(sha, [Change("new", "120000", target.encode())], "no")
    assert (
        await clone.commit_changes(sha, [Change("new", "120000", b"here/a.txt")], "inside")
    ).paths == ("new",)


async def test_no_patch_changes_the_target_of_a_base_link_that_points_outside(
    clone: TrustedClone, sample: Repo
) -> None:
    sample.write({"deep/er/x": "x", "b.txt": "b"})
    (sample.path / "away").symlink_to("deep/er/../../../sibling")
    (sample.path / "near").symlink_to("deep/er/../../b.txt")
    sha = await fetch_ref(clone, sample, sample.commit())
    for change in (
        [Change("deep/er/x", "100644", None), Change("deep/er", "120000", b"../")],
        [Change("deep/er", "120000", b"..")],
    ):
        with pytest.raises(PatchRefused, match=r"may not change where '(away|near)' leads"):
            await clone.commit_changes(sha, change, "no")


_ODD_NAMES = [b"a\\b", b"line\nbreak", b"latin-\xe9", b"tab\tin", b"bell\x07", b"folder\xff/x\n"]


@pytest.mark.parametrize("name", [os.fsdecode(name) for name in _ODD_NAMES])
async def test_a_base_file_with_an_odd_name_is_kept_and_cannot_be_changed(
    clone: TrustedClone, sample: Repo, tmp_path: Path, name: str
) -> None:
    sha = await fetch_ref(clone, sample, sample.commit({"a.txt": "x", name: "odd"}))
    await clone.checkout(sha, tmp_path / "out")
    assert (tmp_path / "out" / name).read_text() == "odd"
    files = await clone.files(sha)
    assert "a.txt" in files
    assert all(path.isprintable() and "\\" not in path for path in files)
    patch = await clone.commit_changes(sha, [Change("a.txt", "100644", b"y")], "it stays")
    assert patch.paths == ("a.txt",)
    assert name in {entry.path for entry in await clone.entries(patch.commit_sha)}
    for content in (b"changed", None):
        with pytest.raises(PatchRefused, match="may not change"):
            await clone.commit_changes(sha, [Change(name, "100644", content)], "no")
    sample.git("rm", "--quiet", "--", name)
    with pytest.raises(PatchRefused, match="may not change"):
        await clone.apply(sha, sample.git("diff", "--cached", "--binary", "HEAD") + "\n")


async def test_entries_that_no_disk_can_hold_are_left_out_and_stay_in_the_tree(
    clone: TrustedClone, sample: Repo, tmp_path: Path
) -> None:
    entries = (
        f"100644 blob {sample.blob('x')}\t{'n' * 300}",
        f"120000 blob {sample.blob('')}\tempty",
    )
    nul = f"120000 blob {sample.blob(b'a' + bytes(1) + b'b')}\tnul"
    sha = sample.commit_tree(f"100644 blob {sample.blob('x')}\ta.txt", *entries, nul)
    await clone.fetch(str(sample.path), sha)
    assert await clone.checkout(sha, tmp_path / "out") == 3
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.txt"]
    patch = await clone.commit_changes(sha, [Change("a.txt", "100644", b"y")], "they stay")
    listed = (await clone.call("ls-tree", patch.commit_sha)).out.decode()
    assert all(line in listed for line in (*entries, nul))


@pytest.mark.parametrize(
    ("mode", "read_mode"),
    [("100664", "100644"), ("100600", "100644"), ("100775", "100755"), ("100711", "100755")],
)
async def test_obsolete_file_modes_are_read_as_git_reads_them(
    clone: TrustedClone, sample: Repo, mode: str, read_mode: str
) -> None:
    blob = bytes.fromhex(sample.blob("x"))
    raw = f"{mode} old".encode() + b"\0" + blob
    tree = sample.git(
        "hash-object",
        "-t",
        "tree",
        "-w",
        "--literally",
        "--stdin",
        stdin=raw + b"100644 z\0" + blob,
    )
    sha = sample.git("commit-tree", tree, "-m", "old")
    sample.git("update-ref", "refs/heads/crafted", sha)
    await clone.fetch(str(sample.path), sha)
    assert [entry.mode for entry in await clone.entries(sha)] == [read_mode, "100644"]
    assert (await clone.commit_changes(sha, [Change("z", "100644", b"y")], "one")).paths == ("z",)


@pytest.mark.parametrize("name", [".GIT", "git~1", ".git ", "..", ".g\u200cit"])
async def test_deceptive_names_are_refused(clone: TrustedClone, sample: Repo, name: str) -> None:
    sha = sample.commit_tree(f"100644 blob {sample.blob('x')}\t{name}")
    await clone.fetch(str(sample.path), sha)
    with pytest.raises(RepositoryError, match="can't be used"):
        await clone.files(sha)


async def test_a_link_and_a_folder_of_the_same_name_are_refused(
    clone: TrustedClone, sample: Repo
) -> None:
    folder = sample.git("mktree", "-z", stdin=f"100644 blob {sample.blob('x')}\tpwned\0".encode())
    link = sample.blob("elsewhere")
    sha = sample.commit_tree(f"120000 blob {link}\tdir", f"040000 tree {folder}\tdir")
    await clone.fetch(str(sample.path), sha)
    with pytest.raises(RepositoryError, match="twice"):
        await clone.files(sha)


async def test_only_a_base_link_may_differ_from_a_folder_in_case_alone(
    clone: TrustedClone, sample: Repo, tmp_path: Path
) -> None:
    (sample.path / "Src").symlink_to("src")
    sha = await fetch_ref(clone, sample, sample.commit())
    await clone.checkout(sha, tmp_path / "out")
    assert (tmp_path / "out/Src").readlink() == Path("src")
    assert (await clone.commit_changes(sha, [solution_change()], "the link stays")).paths == (
        "src/utils.py",
    )
    with pytest.raises(PatchRefused, match="'TESTS'"):
        await clone.commit_changes(sha, [Change("TESTS", "120000", b"src")], "no")


@pytest.mark.parametrize(
    "options",
    [["--no-checkout", "--filter=blob:none"], ["--filter=blob:none"], ["--filter=tree:0"]],
)
async def test_a_partial_clone_is_reported_with_the_command_that_completes_it(
    clone: TrustedClone, sample: Repo, tmp_path: Path, options: list[str]
) -> None:
    sample.commit({"README.md": "another history\n"})
    sample.git("config", "uploadpack.allowFilter", "true")
    sample.git(
        "clone", "--quiet", *options, f"file://{sample.path}", str(tmp_path / "partial clone")
    )
    partial = Repo(tmp_path / "partial clone")
    with pytest.raises(
        RepositoryError, match=r"it is a partial clone, and lacks objects"
    ) as raised:
        await clone.fetch(str(partial.path), sample.head)
    assert "corruption" not in raised.value.message
    command = shlex.split(raised.value.message.partition("Fetch them: ")[2])
    assert command[:3] == ["git", "-C", str(partial.path)]
    partial.git(*command[3:])
    assert await clone.fetch(str(partial.path), sample.head) == sample.head


async def test_a_repository_over_the_size_limit_is_refused(sample: Repo, tmp_path: Path) -> None:
    small = TrustedClone(
        tmp_path / "repos" / "small.git", WorkspaceSettings(max_repository_bytes=1_000_000)
    )
    sha = sample.commit({"big": b"\0" * 2_000_000})
    await small.fetch(str(sample.path), sha)
    with pytest.raises(RepositoryError, match="at most 1000000"):
        await small.files(sha)
    sha = sample.commit({"noise": os.urandom(2_000_000)})
    with pytest.raises(RepositoryError, match="at most 1000000"):
        await small.fetch(str(sample.path), sha)


async def test_a_large_file_of_the_base_is_streamed_out(sample: Repo, tmp_path: Path) -> None:
    clone = TrustedClone(tmp_path / "repos" / "c.git", SETTINGS)
    sha = await fetch_ref(clone, sample, sample.commit({"big": b"0123456789abcdef" * 400_000}))
    await clone.checkout(sha, tmp_path / "out")
    assert (tmp_path / "out" / "big").stat().st_size == 6_400_000
    assert await clone.read(sha, "big", 4) == b"0123"


async def test_the_same_input_gives_the_same_commit(sample: Repo, tmp_path: Path) -> None:
    patches = []
    for name in ("one", "two"):
        clone = TrustedClone(tmp_path / name / "c.git", SETTINGS)
        sha = await fetch_ref(clone, sample)
        patches.append(
            await clone.commit_changes(
                sha, [solution_change()], "Add hello_world()\n\nby agent-dev-001"
            )
        )
    assert patches[0] == patches[1]
    patch = patches[0]
    assert patch.paths == ("src/utils.py",)
    assert patch.tests == ()
    assert patch.diff.startswith("diff --git a/src/utils.py b/src/utils.py\nindex ")
    repeated = await clone.apply(sha, patch.diff, "Add hello_world()\n\nby agent-dev-001")
    assert repeated == patch
    assert await clone.changes(sha, patch.commit_sha) == [solution_change()]
    assert not (clone.path / "index").exists()
    clone._trees.clear()
    assert await clone.has(patch.commit_sha)


async def test_every_kind_of_change_survives_diff_and_apply(
    clone: TrustedClone, sample: Repo
) -> None:
    sha = await fetch_ref(
        clone,
        sample,
        sample.commit(
            {"old/gone.txt": "x\n", "mode.sh": "echo\n", "flip/a": "a\n", "raw": b"\0\1"}
        ),
    )
    changes = [
        Change("flip", "100644", b"now a file\n"),
        Change("flip/a", "100644", None),
        Change("latin.txt", "100644", "gr\u00fc\u00dfe\n".encode("latin-1")),
        Change("link", "120000", b"src/utils.py"),
        Change("mode.sh", "100755", b"echo\n"),
        Change("no-newline", "100644", b"x"),
        Change("old/gone.txt", "100644", None),
        Change("raw", "100644", bytes(range(256)) * 20),
        Change("tests/test_new.py", "100644", b"def test_x(): pass\r\n"),
        Change('\u00e4 "quoted".txt', "100644", "\u00fc\n".encode()),
    ]
    patch = await clone.commit_changes(sha, changes, "all kinds")
    assert sorted(patch.paths) == sorted(change.path for change in changes)
    assert patch.tests == ("tests/test_new.py",)
    repeated = await clone.apply(sha, patch.diff, "all kinds")
    assert repeated.commit_sha == patch.commit_sha
    changes_by_path = {change.path: change for change in await clone.changes(sha, patch.commit_sha)}
    assert {path: change.content for path, change in changes_by_path.items()} == {
        change.path: change.content for change in changes
    }
    assert changes_by_path["mode.sh"].mode == "100755"


async def test_a_diff_names_files_with_other_letters_as_they_are(
    clone: TrustedClone, sample: Repo
) -> None:
    """So that a test file is recognized by its path in the diff."""
    path = "tests/test_gr\u00f6\u00dfe.py"
    sha = await fetch_ref(clone, sample)
    patch = await clone.commit_changes(sha, [Change(path, "100644", b"def test_x(): pass\n")], "x")
    assert patch.tests == (path,)
    assert [part.path for part in file_diffs(patch.diff)] == [path]


async def test_the_diff_of_a_name_that_is_not_utf8_is_text(
    clone: TrustedClone, sample: Repo
) -> None:
    before = await fetch_ref(clone, sample)
    (sample.path / os.fsdecode(b"na\xefve.txt")).write_text("x\n", encoding="utf-8")
    sample.git("add", "--all")
    sample.git("commit", "--quiet", "-m", "a name of Latin-1")
    after = await fetch_ref(clone, sample)
    assert r"na\357ve.txt" in await clone.diff(before, after)


async def test_no_change_is_an_empty_patch(clone: TrustedClone, sample: Repo) -> None:
    sha = await fetch_ref(clone, sample)
    unchanged = Change("src/utils.py", "100644", SAMPLE["src/utils.py"].encode())
    for changes in ([], [unchanged], [Change("never/there", "100644", None)]):
        patch = await clone.commit_changes(sha, changes, "nothing")
        assert (patch.diff, patch.paths, patch.commit_sha) == ("", (), sha)
    assert (await clone.apply(sha, "")).diff == ""


async def test_leftovers_and_ignored_files_are_excluded(clone: TrustedClone, sample: Repo) -> None:
    sha = await fetch_ref(
        clone,
        sample,
        sample.commit({"kept.log": "tracked although ignored\n", "sub/.gitignore": "*\n!keep\n"}),
    )
    leftovers = [
        "run.log",
        "build/x",
        "src/__pycache__/u.cpython-311.pyc",
        "node_modules/.bin/x",
        ".pytest_cache/v",
        "a.egg-info/PKG",
        "sub/x",
    ]
    changes = [Change(path, "100644", b"left over") for path in leftovers]
    changes += [
        Change(".venv/bin/python", "120000", b"/usr/bin/python3"),
        Change("kept.log", "100644", b"new\n"),
    ]
    changes += [Change("sub/keep", "100644", b"k"), Change("src/build/y", "100644", b"y")]
    patch = await clone.commit_changes(sha, changes, "leftovers")
    assert patch.paths == ("kept.log", "src/build/y", "sub/keep")
    assert patch.ignored == {
        "run.log": "line 1 of .gitignore, *.log",
        "build/x": "line 2 of .gitignore, /build/",
        "sub/x": "line 1 of sub/.gitignore, *",
    }
    rules = Change(".gitignore", "100644", b"*.tmp\n")
    patch = await clone.commit_changes(
        sha,
        [Change("run.log", "100644", b"x"), Change("a.tmp", "100644", b"x"), rules],
        "other rules",
    )
    assert (patch.paths, patch.ignored) == (
        (".gitignore", "run.log"),
        {"a.tmp": "line 1 of .gitignore, *.tmp"},
    )


@pytest.mark.parametrize(
    "change",
    [
        Change(".git/hooks/post-checkout", "100755", b"#!/bin/sh\n"),
        Change("src/.GIT/config", "100644", b"x"),
        Change("../escape", "100644", b"x"),
        Change("/etc/passwd", "100644", b"x"),
        Change("src/../../x", "100644", b"x"),
        Change(".gitmodules", "100644", b"[submodule]"),
        Change("vendored", "160000", b"x"),
        Change("link", "120000", b"/etc/passwd"),
        Change("src/link", "120000", b"../../outside"),
        Change("odd", "100777", b"x"),
        Change("new\nline", "100644", b"x"),
        Change("big", "100644", b"x" * 5_000_001),
        Change("much.txt", "100644", b"line of text\n" * 200_000),
    ],
    ids=lambda change: f"{change.path.strip()[:20]!r}-{change.mode}",
)
async def test_an_invalid_change_is_refused_by_name(
    clone: TrustedClone, sample: Repo, change: Change
) -> None:
    sha = await fetch_ref(clone, sample)
    with pytest.raises(PatchRefused):
        await clone.commit_changes(sha, [change], "bad")


HOSTILE = {
    "hook": (
        "diff --git a/.git/hooks/pre-commit b/.git/hooks/pre-commit\nnew file mode 100755\n--- "
        "/dev/null\n+++ b/.git/hooks/pre-commit\n@@ -0,0 +1 @@\n+x\n"
    ),
    "leaves": (
        "diff --git a/../x b/../x\nnew file mode 100644\n--- /dev/null\n+++ b/../x\n@@ -0,0 +1 "
        "@@\n+x\n"
    ),
    "absolute": (
        "diff --git a//etc/x b//etc/x\nnew file mode 100644\n--- /dev/null\n+++ b//etc/x\n@@ -0,0 "
        "+1 @@\n+x\n"
    ),
    "link": (
        "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n"
        "+/etc/passwd\n\\ No newline at end of file\n"
    ),
    "submodule": (
        "diff --git a/m b/m\nnew file mode 160000\n--- /dev/null\n+++ b/m\n@@ -0,0 +1 @@\n"
        "+Subproject commit 1234567890123456789012345678901234567890\n"
    ),
    "modules": (
        "diff --git a/.gitmodules b/.gitmodules\nnew file mode 100644\n--- /dev/null\n+++ "
        "b/.gitmodules\n@@ -0,0 +1 @@\n+x\n"
    ),
    "doesn't apply": (
        "diff --git a/src/utils.py b/src/utils.py\n--- a/src/utils.py\n+++ b/src/utils.py\n@@ -1 "
        "+1 @@\n-nothing like this\n+x\n"
    ),
    "not a diff": "please add hello_world()\n",
    "bomb": (
        "diff --git a/b b/b\nnew file mode 100644\nGIT binary patch\nliteral 99999999999\nzcmZ\n\n"
    ),
    "too large": "x" * 2_000_001,
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_diff_is_refused(clone: TrustedClone, sample: Repo, name: str) -> None:
    sha = await fetch_ref(clone, sample)
    with pytest.raises(PatchRefused, match=r"patch (does not|may not|holds|has|makes)"):
        await clone.apply(sha, HOSTILE[name])
    assert not [
        line
        for line in sample.git("--git-dir", str(clone.path), "for-each-ref").splitlines()
        if "patches" in line
    ]


async def test_fetch_names_what_is_missing(
    clone: TrustedClone, sample: Repo, tmp_path: Path
) -> None:
    with pytest.raises(RepositoryError, match="refs/heads/none"):
        await clone.fetch(str(sample.path), "refs/heads/none")
    with pytest.raises(RepositoryError, match="cannot fetch"):
        await clone.fetch(str(tmp_path / "nowhere"), "HEAD")
    with pytest.raises(RepositoryError, match="cannot fetch"):
        await clone.fetch(f"ext::sh -c touch% {tmp_path}/ran", "HEAD")
    assert not (tmp_path / "ran").exists()


async def test_commits_stack_on_a_parent(clone: TrustedClone, sample: Repo) -> None:
    sha = await fetch_ref(clone, sample)
    first = await clone.commit_changes(sha, [solution_change()], "first")
    second = await clone.commit_changes(
        sha, [solution_change(), Change("b", "100644", b"b")], "second", parent=first.commit_sha
    )
    assert second.paths == ("b", "src/utils.py")
    git_dir = f"--git-dir={clone.path}"
    assert sample.git(git_dir, "rev-parse", f"{second.commit_sha}^") == first.commit_sha
