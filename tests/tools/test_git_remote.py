"""Git with remote repositories: push, pull and clone by the trusted side, against real repositories
and a real server.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from moothall.app.workspaces import WorkspaceServices, open_workspace_services
from moothall.config import WorkspaceSettings
from moothall.domain.repository import Prepared
from moothall.domain.task import RepositoryRef
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.ports import Workspace as OpenWorkspace
from moothall.settings import load_settings
from moothall.toolkits.web import HttpSettings
from support.githttp import GitServer, git_server
from support.repos import Repo, make_repo

pytestmark = pytest.mark.e2e

_NUMBERS = count()
_TOKEN = "x-access-token:a-token-of-the-operator"


async def call(workspace: OpenWorkspace, tool: str, **arguments: Any) -> ToolResult:
    deadline = datetime.now(UTC) + timedelta(seconds=60)
    return await workspace.call(ToolCall(f"r{next(_NUMBERS)}", tool, arguments, deadline))


@dataclass(frozen=True, slots=True)
class Scene:
    """A repository `app` behind a server that requires the operator's token, and a public one,
    `public`.
    """

    services: WorkspaceServices
    server: GitServer
    public: GitServer
    app: Repo
    prepared: Prepared


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[GitServer, GitServer]]:
    authorization = "Basic " + base64.b64encode(_TOKEN.encode()).decode()
    with (
        git_server(tmp_path / "served", authorization) as server,
        git_server(tmp_path / "public") as public,
    ):
        yield server, public


@pytest.fixture
async def scene(tmp_path: Path, servers: tuple[GitServer, GitServer]) -> AsyncIterator[Scene]:
    server, public = servers
    app = make_repo(
        tmp_path / "served" / "app.git",
        {"a.txt": "one\ntwo\nthree\n", "b.txt": "b\n", "Makefile": "test:\n\ttrue\n"},
    )
    app.git("config", "receive.denyCurrentBranch", "ignore")
    app.git("config", "http.receivepack", "true")
    make_repo(
        tmp_path / "public" / "tools.git", {"tool.py": "TOOL = 1\n", "deep/more.txt": "more\n"}
    )
    (tmp_path / "token").write_text(_TOKEN, encoding="utf-8")
    settings = load_settings(
        data_dir=tmp_path / "data",
        workspace=WorkspaceSettings(allowed_schemes=("http", "file")),
        http=HttpSettings(allow=(public.url.removeprefix("http://"),)),
    )
    async with open_workspace_services(settings) as services:
        entry = await services.repositories.register(
            f"{server.url}/app.git", credential=f"file:{tmp_path / 'token'}", push="push", id="app"
        )
        base = await services.repositories.resolve(RepositoryRef(id=entry.id))
        yield Scene(services, server, public, app, await services.repositories.prepare(base))


async def test_a_branch_is_pushed_once_and_never_moved(scene: Scene) -> None:
    async with scene.services.workspaces.open(scene.prepared, "one") as workspace:
        assert "no commit of its own" in (await call(workspace, "git.push", branch="work")).error
        assert "there is no branch" in (await call(workspace, "git.push", branch="elsewhere")).error
        await call(workspace, "files.write", path="b.txt", content="better\n")
        committed = await call(workspace, "git.commit", message="Better")
        await call(workspace, "git.branch", name="fix")
        pushed = await call(workspace, "git.push", branch="fix")
        assert pushed.status is ToolStatus.SUCCESS, pushed
        assert (pushed.output["branch"], pushed.output["to"]) == (
            "moothall/fix",
            f"{scene.server.url}/app.git",
        )
        assert scene.app.git("rev-parse", "moothall/fix") == committed.output["commit"]
        assert (await call(workspace, "git.push", branch="fix")).status is ToolStatus.SUCCESS, (
            "a repetition changes nothing"
        )
        await call(workspace, "git.checkout", ref="fix")
        await call(workspace, "files.write", path="b.txt", content="best\n")
        await call(workspace, "git.commit", message="Best")
        second_push = await call(workspace, "git.push", branch="fix")
        assert (second_push.status, "already another commit" in second_push.error) == (
            ToolStatus.ERROR,
            True,
        )
        assert scene.app.git("rev-parse", "moothall/fix") == committed.output["commit"]
        scene.services.repositories.registry.add(
            scene.services.repositories.registry.find("app").model_copy(update={"push": "none"})
        )
        refused = await call(workspace, "git.push", branch="work")
        assert (refused.status, "push policy" in refused.error) == (ToolStatus.BLOCKED, True)


async def test_new_commits_of_the_origin_are_merged(scene: Scene) -> None:
    async with scene.services.workspaces.open(scene.prepared, "one") as workspace:
        second_pull = await call(workspace, "git.pull")
        assert (second_pull.status, second_pull.output["files"]) == (ToolStatus.SUCCESS, []), (
            second_pull
        )
        await call(workspace, "files.write", path="a.txt", content="one\ntwo\nTHREE\n")
        assert "commit them first" in (await call(workspace, "git.pull")).error
        await call(workspace, "git.commit", message="three")
        scene.app.commit({"b.txt": "theirs\n", "c.txt": "new\n"}, "their work")
        merged = await call(workspace, "git.pull")
        assert merged.status is ToolStatus.SUCCESS, merged
        assert merged.output["files"] == ["b.txt", "c.txt"]
        assert (await call(workspace, "files.read", path="a.txt")).output[
            "content"
        ] == "one\ntwo\nTHREE\n"
        assert (await call(workspace, "files.read", path="c.txt")).output["content"] == "new\n"
        assert (await call(workspace, "git.status")).output["clean"]
        scene.app.commit({"a.txt": "one\ntwo\nand a half\n"}, "they disagree")
        disputed = await call(workspace, "git.pull")
        assert (disputed.status, "a.txt" in disputed.error) == (ToolStatus.ERROR, True), disputed
        assert (await call(workspace, "files.read", path="a.txt")).output[
            "content"
        ] == "one\ntwo\nTHREE\n"
        assert (await call(workspace, "git.status")).output["clean"]


async def test_another_repository_is_cloned_as_files(scene: Scene) -> None:
    async with scene.services.workspaces.open(scene.prepared, "one") as workspace:
        cloned = await call(workspace, "git.clone", url=f"{scene.public.url}/tools.git")
        assert cloned.status is ToolStatus.SUCCESS, cloned
        assert (cloned.output["path"], cloned.output["files"]) == ("tools", 2)
        assert (await call(workspace, "files.read", path="tools/deep/more.txt")).output[
            "content"
        ] == "more\n"
        assert scene.public.authorizations
        assert not any(scene.public.authorizations), "a credential was sent to another host"
        second_clone = await call(workspace, "git.clone", url=f"{scene.public.url}/tools.git")
        assert (second_clone.status, "already" in second_clone.error) == (ToolStatus.ERROR, True)
        refused = await call(
            workspace, "git.clone", url=f"{scene.public.url}/tools.git", ref="nowhere"
        )
        assert (refused.status, "no ref" in refused.error) == (ToolStatus.ERROR, True)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:1/x.git",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/x.git",
        "http://10.0.0.1/x.git",
        "http://0x7f000001/x.git",
        "ssh://git@127.0.0.1/x.git",
        "file:///etc",
        "http://user:secret@127.0.0.1/x.git",
        "http://example.org\\\\@127.0.0.1/x.git",
        "http://127.0.0.1#@example.org/x.git",
        "http://127%2e0.0.1/x.git",
        "ext::sh -c touch% /tmp/owned",
        "--upload-pack=touch /tmp/owned",
    ],
)
async def test_no_clone_reaches_an_internal_address(scene: Scene, url: str) -> None:
    async with scene.services.workspaces.open(scene.prepared, "one") as workspace:
        refused = await call(workspace, "git.clone", url=url)
        assert refused.status in {ToolStatus.BLOCKED, ToolStatus.INVALID}, refused
        assert (await call(workspace, "git.status")).output["clean"]
