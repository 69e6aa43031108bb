"""Repositories by URL: a real git server over HTTP that requires a credential."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import (
    AlreadyExists,
    ConfigurationError,
    InvalidRequest,
    Refused,
    RepositoryError,
)
from moothall.network.destinations import Destinations
from moothall.repositories.git_objects import Change
from moothall.repositories.service import RepositoryService
from support.githttp import git_server
from support.repos import SAMPLE, SOLUTION, Repo, make_repo, make_sample

pytestmark = pytest.mark.e2e


class Unprepared:
    """A preparer that does nothing."""

    async def prepare(
        self, base: Base, on_progress: Callable[[str], None] | None = None
    ) -> Prepared:
        return Prepared(base, base.sha, ())


async def winning(trusted: RepositoryService, base: Base) -> str:
    content = (SAMPLE["src/utils.py"] + SOLUTION).encode()
    change = Change("src/utils.py", "100644", content)
    return (await trusted.clone(base.repository).commit_changes(base.sha, [change], "solve")).diff


async def test_a_url_is_fetched_and_pushed_with_its_credential(tmp_path: Path) -> None:
    sample = make_sample(tmp_path / "sample")
    served = tmp_path / "served"
    served.mkdir()
    sample.git("clone", "--quiet", "--bare", str(sample.path), str(served / "app.git"))
    remote = Repo(served / "app.git")
    remote.git("config", "http.receivepack", "true")
    remote.git("tag", "-a", "v1", "-m", "one")
    settings = WorkspaceSettings(allowed_schemes=("http",))
    pair = base64.b64encode(b"x-access-token:s3cret").decode()
    with git_server(served, required=f"Basic {pair}") as server:
        url = f"{server.url}/app.git"
        trusted = RepositoryService(
            tmp_path / "data",
            settings,
            Unprepared().prepare,
            roots=(),
            secrets={"APP_TOKEN": "s3cret"},
        )
        with pytest.raises(Refused, match="registered"):
            await trusted.resolve(RepositoryRef(url=url))
        await trusted.register(url, id="app", credential="env:APP_TOKEN", push="push")
        base = await trusted.resolve(RepositoryRef(id="app"))
        assert base.sha == sample.head
        assert (await trusted.resolve(RepositoryRef(id="app", ref="v1"))).sha == sample.head
        assert (await trusted.resolve(RepositoryRef(id="app", ref="main"))).sha == sample.head
        with pytest.raises(RepositoryError, match=r"no ref 'nope'.*main, v1"):
            await trusted.resolve(RepositoryRef(id="app", ref="nope"))
        diff = await winning(trusted, base)
        sha = await trusted.deliver(base, diff, "moothall/task-1", "m")
        assert await trusted.deliver(base, diff, "moothall/task-1", "m") == sha
        assert remote.git("rev-parse", "moothall/task-1") == sha
        with pytest.raises(AlreadyExists):
            await trusted.deliver(base, diff, "moothall/task-1", "other")
        assert (await trusted.register(url)).push == "push"  # unspecified fields remain
        await trusted.register(url, push="none")
        await trusted.deliver(base, diff, "moothall/task-2", "m")
        assert remote.git("branch", "--list", "moothall/task-2") == ""
        await trusted.register(url, id="app", credential="env:MISSING")
        with pytest.raises(ConfigurationError, match="env:MISSING"):
            await trusted.resolve(RepositoryRef(id="app"))
    stored = b"".join(
        path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()
    )
    assert b"s3cret" not in stored
    assert pair.encode() not in stored


async def test_an_unregistered_url_is_fetched_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's .netrc, cookies and tokens are not sent, even if a repository's submodules
    name their host.
    """
    home = tmp_path / "home"
    home.mkdir()
    home.joinpath(".netrc").write_text("machine 127.0.0.1 login operator password s3cret\n")
    monkeypatch.setenv("HOME", str(home))
    served = tmp_path / "served"
    library = make_repo(served / "library.git", {"lib.py": "x = 1\n"})
    with git_server(served) as server:
        superproject = make_repo(served / "whole.git", {"a.py": "import lib\n"})
        superproject.git("config", "-f", ".gitmodules", "submodule.lib.path", "lib")
        superproject.git("config", "-f", ".gitmodules", "submodule.lib.url", "../library.git")
        superproject.git("config", "-f", ".gitmodules", "submodule.keys.path", "keys")
        superproject.git(
            "config", "-f", ".gitmodules", "submodule.keys.url", "ssh://git@127.0.0.1/keys.git"
        )
        superproject.git("update-index", "--add", "--cacheinfo", f"160000,{library.head},lib")
        superproject.git(
            "update-index", "--add", "--cacheinfo", f"160000,{library.head[::-1]},keys"
        )
        superproject.git("add", ".gitmodules")
        superproject.git("commit", "--quiet", "-m", "modules")
        destinations = Destinations.read((server.url.removeprefix("http://"),), only=False)
        settings = WorkspaceSettings(allowed_schemes=("http", "ssh"))
        trusted = RepositoryService(
            tmp_path / "data", settings, Unprepared().prepare, pin=destinations.pin
        )
        base = await trusted.resolve(RepositoryRef(url=f"{server.url}/whole.git"), tenant="acme")
        assert (base.sha, len(base.profile.notes)) == (superproject.head, 1)
        assert "keys is left out" in base.profile.notes[0]
        assert await trusted.clone(base.repository).has(library.head)
        assert server.authorizations
        assert not any(server.authorizations), "the operator's .netrc was sent"
        with pytest.raises(RepositoryError, match="no ref 'nope'"):
            await trusted.resolve(
                RepositoryRef(url=f"{server.url}/whole.git", ref="nope"), tenant="acme"
            )


def writable(tmp_path: Path) -> Repo:
    """Return the sample as a bare repository app.git that accepts pushes, in a folder of its
    own.
    """
    sample = make_sample(tmp_path / "sample")
    served = tmp_path / "served"
    served.mkdir()
    sample.git("clone", "--quiet", "--bare", str(sample.path), str(served / "app.git"))
    remote = Repo(served / "app.git")
    remote.git("config", "http.receivepack", "true")
    return remote


async def test_an_approved_commit_is_merged_into_a_branch_at_a_url(tmp_path: Path) -> None:
    remote = writable(tmp_path)
    with git_server(remote.path.parent) as server:
        url, ref = f"{server.url}/app.git", RepositoryRef(id="app")
        trusted = RepositoryService(
            tmp_path / "data", WorkspaceSettings(allowed_schemes=("http",)), Unprepared().prepare
        )
        await trusted.register(url, id="app", on_approval="merge", base="main")
        base = await trusted.resolve(ref)
        first, second = [
            (
                await trusted.clone("app").commit_changes(
                    base.sha, [Change(path, "100644", b"new\n")], "work"
                )
            ).commit_sha
            for path in ("one.txt", "two.txt")
        ]
        landed = await trusted.land(ref, first, "moothall/story-1", "Merge story: one\n", "local")
        assert (landed.status, landed.branch) == ("merged", "main")
        assert remote.git("rev-parse", "main", "main^1", "main^2").split() == [
            landed.commit_sha,
            base.sha,
            first,
        ]
        moved = await trusted.land(ref, second, "moothall/story-2", "Merge story: two\n", "local")
        assert (moved.status, moved.tip) == ("moved", landed.commit_sha)
        assert remote.git("rev-parse", "main") == landed.commit_sha
        await trusted.register(url, id="app", on_approval="push")
        assert (
            await trusted.land(ref, second, "moothall/story-2", "m", "local")
        ).status == "pushed"
        assert remote.git("rev-parse", "moothall/story-2") == second
        remote.git("config", "http.receivepack", "false")
        await trusted.register(url, id="app", on_approval="merge")
        third = (
            await trusted.clone("app").commit_changes(
                landed.commit_sha, [Change("3.txt", "100644", b"new\n")], "work"
            )
        ).commit_sha
        refused = await trusted.land(ref, third, "moothall/story-3", "m", "local")
        assert refused.status == "left"
        assert "could not be moved" in refused.why


async def test_a_delivered_branch_at_a_url_only_advances_from_its_parent(tmp_path: Path) -> None:
    remote = writable(tmp_path)
    with git_server(remote.path.parent) as server:
        trusted = RepositoryService(
            tmp_path / "data", WorkspaceSettings(allowed_schemes=("http",)), Unprepared().prepare
        )
        await trusted.register(f"{server.url}/app.git", id="app")
        base = await trusted.resolve(RepositoryRef(id="app"))
        clone = trusted.clone("app")

        async def commit(parent: str, path: str) -> str:
            return (
                await clone.commit_changes(parent, [Change(path, "100644", b"new\n")], "work")
            ).commit_sha

        first, diverged = await commit(base.sha, "one.txt"), await commit(base.sha, "two.txt")
        second = await commit(first, "three.txt")
        await trusted.offer("app", first, "moothall/issue-1")
        await trusted.offer("app", first, "moothall/issue-1")
        with pytest.raises(AlreadyExists, match="already another commit"):
            await trusted.offer("app", diverged, "moothall/issue-1")
        await trusted.offer("app", second, "moothall/issue-1")
        assert remote.git("rev-parse", "moothall/issue-1", "moothall/issue-1^").split() == [
            second,
            first,
        ]
        with pytest.raises(AlreadyExists):
            await trusted.offer("app", first, "moothall/issue-1")
        with pytest.raises(InvalidRequest, match="not a branch of ours"):
            await trusted.offer("app", first, "main")
        with pytest.raises(RepositoryError, match="not in the clone"):
            await trusted.offer("app", "f" * 40, "moothall/issue-2")
