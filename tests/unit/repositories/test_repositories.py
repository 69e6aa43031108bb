from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from moothall.config import WorkspaceSettings
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import (
    AlreadyExists,
    InvalidRequest,
    NotFound,
    PatchRefused,
    Refused,
    RepositoryError,
)
from moothall.repositories.delivery import find_conflicting_branch
from moothall.repositories.git_objects import Change
from moothall.repositories.service import RepositoryService
from support.repos import SAMPLE, SOLUTION, Repo, make_repo, make_sample

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

SETTINGS = WorkspaceSettings()


class FileLister:
    """A preparer that lists the files."""

    async def prepare(
        self, base: Base, on_progress: Callable[[str], None] | None = None
    ) -> Prepared:
        if on_progress:
            on_progress("ready")
        return Prepared(base, base.sha, ("a",))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return (tmp_path / "allowed").resolve()


@pytest.fixture
def sample(place: Path) -> Repo:
    return make_sample(place / "my sample")


def repositories(
    tmp_path: Path, *roots: Path, settings: WorkspaceSettings = SETTINGS, **secrets: str
) -> RepositoryService:
    return RepositoryService(
        tmp_path / "data", settings, FileLister().prepare, roots=roots, secrets=secrets
    )


@pytest.fixture
def trusted(tmp_path: Path, place: Path) -> RepositoryService:
    return repositories(tmp_path, place)


async def winning(trusted: RepositoryService, base: Base) -> str:
    content = (SAMPLE["src/utils.py"] + SOLUTION).encode()
    return (
        await trusted.clone(base.repository).commit_changes(
            base.sha, [Change("src/utils.py", "100644", content)], "solve"
        )
    ).diff


def state(repo: Repo) -> tuple[object, ...]:
    files = {
        str(path): path.read_bytes()
        for path in sorted(repo.path.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }
    git = repo.path / ".git"
    return (
        files,
        (git / "HEAD").read_bytes(),
        (git / "index").read_bytes(),
        (git / "config").read_bytes(),
        repo.git("status", "-s"),
    )


async def test_a_path_is_pinned_with_its_profile(trusted: RepositoryService, sample: Repo) -> None:
    base = await trusted.resolve(RepositoryRef(url=str(sample.path)))
    assert base.sha == sample.head
    assert base.origin == str(sample.path)
    assert base.repository.startswith("my-sample-")
    assert base.profile.checks == {"tests": ("python", "-m", "pytest")}
    assert await trusted.read(base, "src/utils.py") == SAMPLE["src/utils.py"]
    assert await trusted.read(base, "src/utils.py", 5) == '"""Sm'
    with pytest.raises(NotFound):
        await trusted.read(base, "../outside")
    messages: list[str] = []
    assert (await trusted.prepare(base, messages.append)).files == ("a",)
    assert messages == ["ready"]


async def test_a_subfolder_a_file_url_and_a_link_resolve_to_the_whole_repository(
    trusted: RepositoryService, sample: Repo, place: Path
) -> None:
    (place / "link").symlink_to(sample.path)
    names = [
        str(sample.path / "src"),
        f"file://{sample.path}".replace(" ", "%20"),
        str(place / "link"),
        f"{sample.path}/src/..",
    ]
    bases = [await trusted.resolve(RepositoryRef(url=name)) for name in names]
    assert {base.origin for base in bases} == {str(sample.path)}
    assert len({base.repository for base in bases}) == 1


async def test_uncommitted_changes_are_not_touched(
    trusted: RepositoryService, sample: Repo
) -> None:
    sample.write({"src/utils.py": "broken", "new.txt": "untracked", "staged.txt": "staged"})
    sample.git("add", "staged.txt")
    state_before = state(sample)
    base = await trusted.resolve(RepositoryRef(url=str(sample.path)))
    assert "staged.txt" not in await trusted.clone(base.repository).files(base.sha)
    await trusted.deliver(
        base, await winning(trusted, base), "moothall/task-1", "Add hello_world()"
    )
    assert state(sample) == state_before


async def test_refs_of_every_kind_are_resolved(trusted: RepositoryService, sample: Repo) -> None:
    first = sample.head
    sample.git("tag", "-a", "v1", "-m", "one")
    sample.git("branch", "feature/ü")
    second = sample.commit({"x": "y"})
    for ref, sha in (
        ("", second),
        ("HEAD~1", first),
        ("v1", first),
        ("feature/ü", first),
        (first[:8], first),
        (second, second),
    ):
        assert (await trusted.resolve(RepositoryRef(url=str(sample.path), ref=ref))).sha == sha


async def test_a_linked_worktree_has_its_own_head(
    trusted: RepositoryService, sample: Repo, place: Path
) -> None:
    sample.git("worktree", "add", "--quiet", "-b", "side", str(place / "side"))
    worktree = Repo(place / "side")
    sha = worktree.commit({"side.txt": "x"})
    base = await trusted.resolve(RepositoryRef(url=str(worktree.path)))
    assert base.sha == sha != sample.head
    await trusted.deliver(base, await winning(trusted, base), "moothall/task-1", "m")
    assert "moothall/task-1" in sample.git("branch", "--list", "moothall/*")


async def test_bare_and_shallow_repositories_work(
    trusted: RepositoryService, sample: Repo, place: Path
) -> None:
    sample.commit({"x": "y"})
    sample.git("clone", "--quiet", "--bare", str(sample.path), str(place / "bare.git"))
    sample.git("clone", "--quiet", "--depth=1", f"file://{sample.path}", str(place / "shallow"))
    for name in ("bare.git", "shallow"):
        base = await trusted.resolve(RepositoryRef(url=str(place / name)))
        sha = await trusted.deliver(base, await winning(trusted, base), "moothall/task-1", "m")
        assert Repo(place / name).git("rev-parse", "moothall/task-1") == sha


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(parents=True), "is not a git repository"),
        (lambda path: (path.parent.mkdir(exist_ok=True), path.write_text("x")), "is a file"),
        (make_repo, "no commits"),
    ],
    ids=["missing", "no git", "file", "empty"],
)
async def test_invalid_repositories_are_refused(
    trusted: RepositoryService, place: Path, make: Callable[[Path], object], message: str
) -> None:
    make(place / "there")
    with pytest.raises(RepositoryError, match=message):
        await trusted.resolve(RepositoryRef(url=str(place / "there")))


async def test_an_unknown_ref_is_refused_with_a_few_known_ones(
    trusted: RepositoryService, sample: Repo
) -> None:
    for number in range(12):
        sample.git("branch", f"b{number:02}")
    for ref in ("nope", "0" * 40, "HEAD~7", "main:src"):
        with pytest.raises((RepositoryError, InvalidRequest)) as caught:
            await trusted.resolve(RepositoryRef(url=str(sample.path), ref=ref))
        if ":" not in ref:
            assert "b00, b01" in caught.value.message
            assert "more" in caught.value.message


@pytest.mark.parametrize(
    "ref",
    [
        "--upload-pack=touch x",
        "-x",
        "a b",
        "a..b",
        "main\n",
        "HEAD@{1}",
        ":/text",
        "a" * 256,
        "^HEAD",
        "x.lock",
    ],
)
async def test_a_ref_that_looks_like_an_option_is_refused(
    trusted: RepositoryService, sample: Repo, ref: str
) -> None:
    with pytest.raises(InvalidRequest, match="is not a ref"):
        await trusted.resolve(RepositoryRef(url=str(sample.path), ref=ref))


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("--upload-pack=touch x", InvalidRequest, "path"),
        ("-oProxyCommand=x", InvalidRequest, "path"),
        ("ext::sh -c touch% /tmp/x", InvalidRequest, "not valid"),
        ("ext::sh", InvalidRequest, "not valid"),
        ("https://user:secret@host/x", InvalidRequest, "holds a credential"),
        ("https://ghp_secret@host/x", InvalidRequest, "holds a credential"),
        ("ssh://git:secret@host/x", InvalidRequest, "holds a password"),
        ("ssh://-oProxyCommand=x/y", InvalidRequest, "host"),
        ("ssh://-oProxyCommand=secret@host/y", InvalidRequest, "host"),
        ("https:///x", InvalidRequest, "host"),
        ("https://host", InvalidRequest, "host and a path"),
        ("https://host:port/x", InvalidRequest, "not valid"),
        ("https://host/a b", InvalidRequest, "not valid"),
        ("https://host/\nx", InvalidRequest, "not valid"),
        ("http://host/x", Refused, "'http'.*https, ssh"),
        ("git://host/x", Refused, "'git'"),
        ("ftp://host/x", Refused, "'ftp'"),
        ("file://host/x", InvalidRequest, "not name a host"),
        ("", InvalidRequest, "no repository"),
    ],
)
async def test_invalid_urls_are_refused(
    trusted: RepositoryService, url: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        await trusted.resolve(RepositoryRef(url=url))
    assert "secret" not in str(caught.value)


async def test_a_path_outside_the_roots_is_refused_without_access(
    tmp_path: Path, place: Path, sample: Repo
) -> None:
    other_repo = make_sample(tmp_path / "other")
    trusted = repositories(tmp_path, place)
    (place / "way out").symlink_to(other_repo.path)
    (place / "gitfile").mkdir()
    (place / "gitfile" / ".git").write_text(f"gitdir: {other_repo.path / '.git'}\n")
    for name in (
        other_repo.path,
        tmp_path / "missing",
        place / "way out",
        place / ".." / "other",
        place / "gitfile",
    ):
        with pytest.raises(Refused, match="allowed root"):
            await trusted.resolve(RepositoryRef(url=str(name)))
    with pytest.raises(Refused):
        await repositories(tmp_path).resolve(RepositoryRef(url=str(sample.path)))
    sibling = make_sample(place.parent / "allowed-too")
    with pytest.raises(Refused):
        await trusted.resolve(RepositoryRef(url=str(sibling.path)))
    no_file = repositories(tmp_path, place, settings=WorkspaceSettings(allowed_schemes=("https",)))
    with pytest.raises(Refused, match="'file'"):
        await no_file.resolve(RepositoryRef(url=f"file://{sample.path}"))


async def test_a_repository_above_the_root_is_refused(tmp_path: Path) -> None:
    repo = make_sample(tmp_path / "whole")
    with pytest.raises(Refused, match="allowed root"):
        await repositories(tmp_path, repo.path / "src").resolve(
            RepositoryRef(url=str(repo.path / "src"))
        )


async def test_a_registered_repository_needs_no_root(tmp_path: Path, sample: Repo) -> None:
    trusted = repositories(tmp_path)
    entry = await trusted.register(str(sample.path / "src"), id="sample")
    assert entry.origin == str(sample.path)
    by_id = await trusted.resolve(RepositoryRef(id="sample"))
    by_path = await trusted.resolve(RepositoryRef(url=str(sample.path)))
    assert by_id == by_path
    with pytest.raises(NotFound):
        await trusted.resolve(RepositoryRef(id="sample"), tenant="b")
    with pytest.raises(Refused):
        await trusted.resolve(RepositoryRef(url=str(sample.path)), tenant="b")
    with pytest.raises(NotFound):
        await trusted.resolve(RepositoryRef(id="nope"))


async def test_a_pinned_commit_needs_neither_root_nor_source(
    tmp_path: Path, trusted: RepositoryService, sample: Repo
) -> None:
    base = await trusted.resolve(RepositoryRef(url=str(sample.path)))
    later_sha = sample.commit({"x": "y"})
    relocated = repositories(tmp_path)
    pinned = RepositoryRef(id=base.repository, url=base.origin, ref=base.sha)
    with pytest.raises(Refused):
        await relocated.resolve(replace(pinned, ref=later_sha))
    with pytest.raises(NotFound):
        await relocated.resolve(pinned, tenant="b")
    shutil.rmtree(sample.path)
    assert await relocated.resolve(pinned) == base


async def test_too_large_a_repository_is_reported_at_once(
    tmp_path: Path, place: Path, sample: Repo
) -> None:
    small = repositories(
        tmp_path, place, settings=WorkspaceSettings(max_repository_bytes=1_000_000)
    )
    sample.commit({"big": b"\0" * 1_000_001})
    with pytest.raises(RepositoryError, match="at most 1000000"):
        await small.resolve(RepositoryRef(url=str(sample.path)))


async def test_an_uncommitted_profile_is_used_and_reported(
    trusted: RepositoryService, sample: Repo
) -> None:
    ref = RepositoryRef(url=str(sample.path))
    sample.write({".moothall.toml": "[checks]\ntests = 'make first'\n"})
    base = await trusted.resolve(ref)
    assert base.profile.checks == {"tests": ("make", "first")}
    assert "not committed" in base.profile.notes[0]
    sample.commit()
    assert (await trusted.resolve(ref)).profile.notes == ()
    sample.write({".moothall.toml": "[checks]\ntests = 'make second'\n"})
    base = await trusted.resolve(ref)
    assert base.profile.checks == {"tests": ("make", "second")}
    assert "differs from the commit's" in base.profile.notes[0]
    sample.write({".moothall.toml": "checks = 5"})
    with pytest.raises(RepositoryError, match=r"\.moothall\.toml, line 1: checks"):
        await trusted.resolve(ref)


async def test_a_linked_config_file_does_not_read_other_files(
    trusted: RepositoryService, sample: Repo, tmp_path: Path
) -> None:
    (tmp_path / "other.toml").write_text("[checks]\nsecret = 'x'\n")
    (sample.path / ".moothall.toml").symlink_to(tmp_path / "other.toml")
    assert (await trusted.resolve(RepositoryRef(url=str(sample.path)))).profile.checks == {
        "tests": ("python", "-m", "pytest")
    }


async def test_sha256_repositories_are_reported(trusted: RepositoryService, place: Path) -> None:
    place.mkdir()
    Repo(place).git("init", "--quiet", "--object-format=sha256", "new")
    with pytest.raises(RepositoryError, match="sha256"):
        await trusted.resolve(RepositoryRef(url=str(place / "new")))


async def test_delivery_creates_a_branch_and_runs_no_hook(
    trusted: RepositoryService, sample: Repo, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    hooks = sample.path / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in (
        "reference-transaction",
        "post-update",
        "update",
        "post-receive",
        "pre-receive",
        "post-checkout",
        "post-commit",
    ):
        (hooks / name).write_text(f"#!/bin/sh\ntouch '{mark}'\n")
        (hooks / name).chmod(0o755)
    base = await trusted.resolve(RepositoryRef(url=str(sample.path)))
    diff = await winning(trusted, base)
    state_before = state(sample)
    sha = await trusted.deliver(base, diff, "moothall/task-1", "Add hello_world()")
    assert await trusted.deliver(base, diff, "moothall/task-1", "Add hello_world()") == sha
    assert state(sample) == state_before
    assert not mark.exists()
    shutil.rmtree(hooks)
    assert sample.git("rev-parse", "moothall/task-1") == sha
    assert sample.git("show", f"{sha}:src/utils.py").endswith('return "Hello, World!"')
    assert (
        sample.git("log", "-1", "--format=%an <%ae> %s", sha)
        == "Moothall <moothall@localhost> Add hello_world()"
    )
    assert sample.git("rev-parse", f"{sha}^") == base.sha
    assert "missing" not in sample.git("fsck", "--no-dangling")
    with pytest.raises(AlreadyExists, match="moothall/task-1"):
        await trusted.deliver(base, diff, "moothall/task-1", "another message")


async def test_delivery_refuses_invalid_branches_and_patches(
    trusted: RepositoryService, sample: Repo
) -> None:
    base = await trusted.resolve(RepositoryRef(url=str(sample.path)))
    diff = await winning(trusted, base)
    for branch in (
        "main",
        "moothall/../main",
        "moothall/",
        "moothall/a b",
        "--force",
        "moothall/x\n",
        "moothall/-x",
    ):
        with pytest.raises(InvalidRequest, match="not a branch of ours"):
            await trusted.deliver(base, diff, branch, "m")
    with pytest.raises(PatchRefused, match="empty"):
        await trusted.deliver(base, "", "moothall/x", "m")
    with pytest.raises(PatchRefused):
        await trusted.deliver(base, diff.replace("src/utils.py", ".git/hooks/x"), "moothall/x", "m")
    sample.git("branch", "moothall")
    with pytest.raises(RepositoryError, match="cannot create the branch"):
        await trusted.deliver(base, diff, "moothall/x", "m")
    assert sample.git("branch", "--list", "moothall/*") == ""


@pytest.mark.parametrize("branch", ["moothall", "moothall/task-1/x", "moothall/task-1"])
async def test_a_branch_that_blocks_delivery_is_found_beforehand(
    trusted: RepositoryService, sample: Repo, branch: str
) -> None:
    base = await trusted.resolve(RepositoryRef(url=str(sample.path)))
    state_before = state(sample)
    await trusted.check_delivery(base.repository, base.sha, "moothall/task-1")
    assert state(sample) == state_before
    sample.git("branch", branch)
    sample.git("pack-refs", "--all")
    with pytest.raises(
        RepositoryError, match=r"'moothall/task-1' of .*Rename or delete what is in the way"
    ):
        await trusted.check_delivery(base.repository, base.sha, "moothall/task-1")
    await trusted.register(str(sample.path), push="none")
    await trusted.check_delivery(base.repository, base.sha, "moothall/task-1")


@pytest.mark.parametrize("ref", ["moothall", "moothall/task-1", "moothall/task-1/x"])
def test_a_branch_at_a_url_that_blocks_delivery_is_named(ref: str) -> None:
    unrelated_refs = ["HEAD", "refs/heads/main", "refs/heads/moothall/task-10", "refs/heads/mooth"]
    assert find_conflicting_branch(unrelated_refs, "moothall/task-1") == ""
    assert repr(ref) in find_conflicting_branch(
        [*unrelated_refs, f"refs/heads/{ref}"], "moothall/task-1"
    )


async def test_without_a_push_policy_no_branch_is_created(tmp_path: Path, sample: Repo) -> None:
    trusted = repositories(tmp_path)
    await trusted.register(str(sample.path), id="quiet", push="none")
    base = await trusted.resolve(RepositoryRef(id="quiet"))
    sha = await trusted.deliver(base, await winning(trusted, base), "moothall/x", "m")
    assert len(sha) == 40
    assert sample.git("for-each-ref", "refs/heads/moothall") == ""


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give files away: run the tests as root"
)
async def test_a_repository_of_another_user_keeps_its_owner(tmp_path: Path) -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        place.chmod(0o755)
        sample = make_sample(place / "theirs")
        for path in (sample.path, *sample.path.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
        trusted = repositories(tmp_path, place)
        base = await trusted.resolve(RepositoryRef(url=str(sample.path)))
        await trusted.deliver(base, await winning(trusted, base), "moothall/x", "m")
        assert (sample.path / ".git/refs/heads/moothall/x").exists()
        assert {path.lstat().st_uid for path in (sample.path / ".git").rglob("*")} == {65534}


async def test_a_url_cannot_have_a_local_branch_policy(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="'push' or 'none'"):
        await repositories(tmp_path).register("https://host/x", push="local-branch")


async def test_a_delivered_branch_is_deleted_if_merged_or_forced(
    trusted: RepositoryService, sample: Repo
) -> None:
    entry = await trusted.register(str(sample.path))
    base = await trusted.resolve(RepositoryRef(id=entry.id))
    diff = await winning(trusted, base)
    sha = await trusted.deliver(base, diff, "moothall/task-1", "solve it")
    assert await trusted.drop_branch(entry.id, "moothall/none", sha, force=False) == ("", "")
    with pytest.raises(RepositoryError, match="is merged nowhere"):
        await trusted.drop_branch(entry.id, "moothall/task-1", sha, force=False)
    sample.git("checkout", "--quiet", "moothall/task-1")
    with pytest.raises(RepositoryError, match="is checked out"):
        await trusted.drop_branch(entry.id, "moothall/task-1", sha, force=True)
    sample.git("checkout", "--quiet", "main")
    assert await trusted.drop_branch(entry.id, "moothall/task-1", sha, force=True) == (
        "moothall/task-1",
        "",
    )
    assert "task-1" not in sample.git("branch", "--all")
    await trusted.deliver(base, diff, "moothall/task-1", "solve it")
    sample.git("merge", "--quiet", "moothall/task-1")
    assert await trusted.drop_branch(entry.id, "moothall/task-1", sha, force=False) == (
        "moothall/task-1",
        "",
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-16-le"])
async def test_text_of_the_base_is_read_in_its_encoding(
    trusted: RepositoryService, sample: Repo, encoding: str
) -> None:
    text = "größer\n" * 100
    sample.commit({"a.txt": text.encode(encoding), "b.bin": b"\0\xff\0"})
    base = await trusted.resolve(RepositoryRef(url=str(sample.path)))
    assert (await trusted.read(base, "a.txt")).removeprefix("\ufeff") == text
    assert (await trusted.read(base, "a.txt", 5)).removeprefix("\ufeff") in "größer"
    entry = await trusted.register(str(sample.path))
    assert (await trusted.text(entry.id, base.sha, "a.txt", tenant="local")).removeprefix(
        "\ufeff"
    ) == text
    with pytest.raises(InvalidRequest, match="is not text"):
        await trusted.text(entry.id, base.sha, "b.bin", tenant="local")
