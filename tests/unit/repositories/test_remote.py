"""Hosts that share no disk with the repositories: both sides over a bus, with real git."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from moothall.concurrency import run_in_background
from moothall.config import WorkspaceSettings
from moothall.domain.event import REPOSITORY_SERVICE, Channel, Topic
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import (
    AlreadyExists,
    BusUnavailable,
    NotFound,
    PatchRefused,
    RepositoryError,
    Temporary,
)
from moothall.events.registry import literal
from moothall.repositories.bundle_transfer import PART, BundleServer, send_request
from moothall.repositories.git_objects import Change
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.remote import (
    HOSTS,
    RemoteRepositories,
    RepositoryServer,
    enable_patch_fetching,
)
from moothall.repositories.service import RepositoryService
from moothall.testing.bus import MemoryBus
from support.repos import SAMPLE, SOLUTION, Repo, make_repo

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

UTILS = "src/utils.py"


async def refuse(_base: Base, _announce: Any) -> Prepared:
    raise AssertionError("preparation is not supported here")


@dataclass(slots=True)
class Wire:
    """A bus that records requests and the number of received bytes."""

    bus: MemoryBus = field(default_factory=MemoryBus)
    requests: list[Mapping[str, Any]] = field(default_factory=list)
    received_bytes: int = 0

    async def ask(
        self, topic: Topic, request: Mapping[str, Any], seconds: float
    ) -> tuple[Mapping[str, Any], bytes]:
        self.requests.append(request)
        reply, rest = await self.bus.ask(topic, request, seconds)
        self.received_bytes += len(rest)
        return reply, rest

    @property
    def parts(self) -> int:
        return sum(request["ask"] == "part" for request in self.requests)


@dataclass(slots=True)
class World:
    """The server with a repository, and a host whose disk is empty at first."""

    repo: Repo
    app: RepositoryService
    host: RemoteRepositories
    wire: Wire
    bundles: BundleServer
    id: str

    async def pin(self, tenant: str = "local") -> Base:
        """Pin the newest commit in the server, as the deliberation service does, and resolve it
        on the host.
        """
        base = await self.app.resolve(RepositoryRef(id=self.id), tenant="local")
        return await self.host.resolve(RepositoryRef(id=self.id, ref=base.sha), tenant=tenant)


@asynccontextmanager
async def world(
    tmp_path: Path, repo: Repo | None = None, soon: float = 5.0, **limits: int
) -> AsyncIterator[World]:
    repo = repo or make_repo(tmp_path / "origin", SAMPLE)
    settings = WorkspaceSettings(**limits)
    wire = Wire()
    app = RepositoryService(tmp_path / "server", WorkspaceSettings(), refuse)
    host = RemoteRepositories(tmp_path / "host", settings, refuse)
    async with AsyncExitStack() as stack:
        bundles, host_bundles = [
            await stack.enter_async_context(
                BundleServer(GitRunner(tmp_path / name / "repos"), settings, soon)
            )
            for name in ("server", "host")
        ]
        answering = RepositoryServer(app, bundles, wire.ask)
        host.connect(wire.ask, host_bundles)
        enable_patch_fetching(app, bundles, wire.ask)
        for topic, answerer in (
            (REPOSITORY_SERVICE, answering.answer),
            (Channel.REPOSITORIES.of(bundles.holder), answering.answer),
            (HOSTS, host.answer),
            (Channel.REPOSITORIES.of(host_bundles.holder), host.answer),
        ):
            await stack.enter_async_context(
                run_in_background(wire.bus.answer(topic, answerer), literal(topic))
            )
        entry = await app.register(str(repo.path))
        yield World(repo, app, host, wire, bundles, entry.id)


async def test_a_commit_arrives_with_its_profile_and_nothing_is_sent_twice(tmp_path: Path) -> None:
    async with world(tmp_path) as deployment:
        base = await deployment.pin()
        assert base == await deployment.app.resolve(RepositoryRef(id=deployment.id, ref=base.sha))
        assert await deployment.host.read(base, UTILS) == SAMPLE[UTILS]
        parts = deployment.wire.parts
        assert parts > 0
        assert await deployment.pin() == base
        assert deployment.wire.parts == parts
        # A missing or different origin does not matter to the host.
        assert not (tmp_path / "host" / "token").exists()
        deployment.repo.path.rename(tmp_path / "moved")
        assert await deployment.host.resolve(RepositoryRef(id=deployment.id, ref=base.sha)) == base


async def test_a_later_commit_is_sent_as_a_thin_bundle_and_an_earlier_one_not_at_all(
    tmp_path: Path,
) -> None:
    noise = "".join(f"{n * n * 7919 % 1_000_003}\n" for n in range(200_000))
    repo = make_repo(tmp_path / "origin", {**SAMPLE, "noise.txt": noise})
    first = repo.head
    repo.commit({"second.txt": "2\n"})
    async with world(tmp_path, repo) as deployment:
        await deployment.pin()
        full_size = deployment.wire.received_bytes
        assert full_size > PART  # in several parts
        repo.commit({"third.txt": "3\n"})
        base = await deployment.pin()
        assert await deployment.host.read(base, "third.txt") == "3\n"
        assert 0 < deployment.wire.received_bytes - full_size < 5_000
        received_bytes = deployment.wire.received_bytes
        await deployment.app.resolve(RepositoryRef(id=deployment.id, ref=first))
        earlier = await deployment.host.resolve(RepositoryRef(id=deployment.id, ref=first))
        assert await deployment.host.read(earlier, "noise.txt", 6) == noise[:6]
        assert deployment.wire.received_bytes == received_bytes


async def test_tags_and_a_shallow_history_are_sent_along(tmp_path: Path) -> None:
    origin = make_repo(tmp_path / "whole", SAMPLE)
    for number in range(3):
        origin.commit({"n.txt": f"{number}\n"})
    origin.git("tag", "-a", "v1.2", "-m", "a release")
    origin.commit({"n.txt": "last\n"})
    Repo(tmp_path).git("clone", "--quiet", "--depth=2", f"file://{origin.path}", "origin")
    async with world(tmp_path, Repo(tmp_path / "origin")) as deployment:
        deployment.repo.git("fetch", "--quiet", "--tags")
        base = await deployment.pin()
        descriptions = [
            await service.clone(deployment.id).call("describe", "--tags", base.sha)
            for service in (deployment.app, deployment.host)
        ]
        assert descriptions[0] == descriptions[1]
        assert descriptions[0].out.startswith(b"v1.2-1-g")
        counted = [
            await service.clone(deployment.id).call("rev-list", "--count", base.sha)
            for service in (deployment.app, deployment.host)
        ]
        assert counted[0].out == counted[1].out == b"2\n"


async def test_another_tenant_gets_nothing_and_a_reused_id_exposes_nothing_old(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as deployment:
        base = await deployment.pin()
        with pytest.raises(NotFound):
            await deployment.host.resolve(
                RepositoryRef(id=deployment.id, ref=base.sha), tenant="other"
            )
        for kind in ("base", "commit", "push"):
            fields = {
                "repository": deployment.id,
                "ref": base.sha,
                "tenant": "other",
                "base_sha": base.sha,
                "sha": base.sha,
                "branch": "x",
            }
            reply, rest = await deployment.wire.ask(
                REPOSITORY_SERVICE, {"ask": kind, **fields, "haves": []}, 5
            )
            assert (reply["error"], rest) == ("NOT_FOUND", b"")
        deployment.app.registry.remove(deployment.id)
        theirs = make_repo(tmp_path / "theirs", {"README.md": "theirs\n"})
        await deployment.app.register(str(theirs.path), tenant="other", id=deployment.id)
        their_base = await deployment.app.resolve(RepositoryRef(id=deployment.id), tenant="other")
        other_base = await deployment.host.resolve(
            RepositoryRef(id=deployment.id, ref=their_base.sha), tenant="other"
        )
        assert await deployment.host.read(other_base, "README.md") == "theirs\n"
        assert not await deployment.host.clone(deployment.id).has(base.sha)


async def test_a_commit_missing_on_the_server_is_refused_with_a_message(tmp_path: Path) -> None:
    async with world(tmp_path) as deployment:
        await deployment.pin()
        with pytest.raises(RepositoryError, match="1111111"):
            await deployment.host.resolve(RepositoryRef(id=deployment.id, ref="1" * 40))


async def test_a_received_base_is_checked_against_the_request(tmp_path: Path) -> None:
    async with world(tmp_path) as deployment:
        base = await deployment.app.resolve(RepositoryRef(id=deployment.id))
        other_sha = deployment.repo.commit({"x.txt": "x\n"})
        ask = deployment.wire.bus.ask

        async def lying(
            topic: Topic, request: Mapping[str, Any], seconds: float
        ) -> tuple[Mapping[str, Any], bytes]:
            reply, rest = await ask(topic, request, seconds)
            if request["ask"] == "base" and fault == "another base":
                reply = {**reply, "base": {**reply["base"], "sha": other_sha}}
            if request["ask"] == "base" and fault == "another commit":
                reply = {**reply, "offer": {**reply["offer"], "wants": [other_sha]}}
            if request["ask"] == "part" and fault == "damage":
                rest = rest[:-40] + bytes(40)
            return reply, rest[:-1] if fault == "cut" else rest

        deployment.host._bus = lying
        for fault in ("another base", "another commit", "damage", "cut"):
            with pytest.raises(Temporary):
                await deployment.host.resolve(RepositoryRef(id=deployment.id, ref=base.sha))
            assert (
                not await deployment.host.clone(deployment.id).has(other_sha)
                if fault != "another base"
                else True
            )
        fault = ""
        assert await deployment.host.resolve(RepositoryRef(id=deployment.id, ref=base.sha)) == base


async def test_a_bundle_over_the_limit_is_neither_created_nor_accepted(tmp_path: Path) -> None:
    noise = "".join(f"{n * n * 7919 % 1_000_003}\n" for n in range(400_000))
    repo = make_repo(tmp_path / "origin", {"noise.txt": noise})
    async with world(tmp_path, repo, max_repository_bytes=1_000_000) as deployment:
        with pytest.raises(RepositoryError, match="at most 1000000"):
            await deployment.pin()
        assert deployment.wire.parts == 0


async def test_commits_are_merged_on_a_host(tmp_path: Path) -> None:
    async with world(tmp_path) as deployment:
        base = await deployment.pin()
        clone = deployment.app.clone(deployment.id)
        first_patch = await clone.commit_changes(
            base.sha, [Change("one.txt", "100644", b"1\n")], "one"
        )
        second_patch = await clone.commit_changes(
            base.sha, [Change("two.txt", "100644", b"2\n")], "two"
        )
        merged = await deployment.host.merge(
            base, [first_patch.commit_sha, second_patch.commit_sha]
        )
        assert merged == await deployment.app.merge(
            base, [first_patch.commit_sha, second_patch.commit_sha]
        )


async def test_a_patch_is_sent_back_to_be_pushed_or_delivered(tmp_path: Path) -> None:
    async with world(tmp_path) as deployment:
        base = await deployment.pin()
        clone = deployment.host.clone(deployment.id)
        patch = await clone.commit_changes(
            base.sha, [Change(UTILS, "100644", (SAMPLE[UTILS] + SOLUTION).encode())], "made here"
        )
        assert not await deployment.app.clone(deployment.id).has(patch.commit_sha)
        assert await deployment.app.diff(base, patch.commit_sha) == patch.diff
        pushed = await deployment.host.remote(deployment.id).push(
            base.sha, patch.commit_sha, "mine"
        )
        assert pushed == ("moothall/mine", str(deployment.repo.path))
        assert deployment.repo.git("rev-parse", "moothall/mine") == patch.commit_sha
        later_patch = await clone.commit_changes(
            base.sha, [Change("other.txt", "100644", b"x\n")], "another"
        )
        with pytest.raises(AlreadyExists):
            await deployment.host.remote(deployment.id).push(
                base.sha, later_patch.commit_sha, "mine"
            )
        with pytest.raises(PatchRefused):
            await deployment.app.diff(base, "2" * 40)
        newer = deployment.repo.commit({"x.txt": "x\n"})
        assert await deployment.host.remote(deployment.id).fetch() == newer


async def test_submodules_are_sent_along(tmp_path: Path) -> None:
    inner = make_repo(tmp_path / "inner", {"inner.txt": "inner\n"})
    outer = make_repo(tmp_path / "origin", SAMPLE)
    outer.git("submodule", "--quiet", "add", str(inner.path), "lib")
    outer.commit()
    async with world(tmp_path, outer) as deployment:
        base = await deployment.pin()
        clone = deployment.host.clone(deployment.id)
        assert (await clone.submodules(base.sha)) == {"lib": inner.head}
        assert await clone.has(inner.head)


async def test_an_unreachable_or_slow_server_is_asked_again(tmp_path: Path) -> None:
    async with world(tmp_path, soon=0.001) as deployment:
        base = await deployment.app.resolve(RepositoryRef(id=deployment.id))
        failures_left = 3

        async def ask_server(
            topic: Topic, request: Mapping[str, Any], seconds: float
        ) -> tuple[Mapping[str, Any], bytes]:
            nonlocal failures_left
            failures_left -= 1
            if failures_left >= 0:
                raise BusUnavailable("nobody answers")
            return await deployment.wire.ask(topic, request, seconds)

        deployment.host._bus = ask_server
        assert await deployment.host.resolve(RepositoryRef(id=deployment.id, ref=base.sha)) == base
        kinds = [request["ask"] for request in deployment.wire.requests]
        assert kinds.count("base") > 1  # the server asked it to wait
        assert failures_left < 0
        failures_left = 9
        with pytest.raises(Temporary, match="cannot be reached"):
            await send_request(
                ask_server, REPOSITORY_SERVICE, {"ask": "base"}, unreachable_seconds=0
            )


async def test_concurrent_deliberations_fetch_a_commit_once(tmp_path: Path) -> None:
    async with world(tmp_path) as deployment:
        base = await deployment.app.resolve(RepositoryRef(id=deployment.id))
        reference = RepositoryRef(id=deployment.id, ref=base.sha)
        assert (
            await asyncio.gather(*(deployment.host.resolve(reference) for _ in range(5)))
            == [base] * 5
        )
        assert deployment.wire.parts == 1


async def test_a_host_that_serves_a_patch_changes_neither_tags_nor_history_of_the_server(
    tmp_path: Path,
) -> None:
    repo = make_repo(tmp_path / "origin", SAMPLE)
    repo.git("tag", "v1")
    repo.commit({"n.txt": "1\n"})
    async with world(tmp_path, repo) as deployment:
        base = await deployment.pin()
        app, host = deployment.app.clone(deployment.id), deployment.host.clone(deployment.id)

        async def git_state() -> list[bytes]:
            commands = (
                ("for-each-ref", "refs/tags"),
                ("rev-list", base.sha),
                ("rev-parse", "--is-shallow-repository"),
            )
            return [(await app.call(*command)).out for command in commands]

        state_before = await git_state()
        for number, action in enumerate(("diff", "push")):
            patch = await host.commit_changes(
                base.sha, [Change(UTILS, "100644", b"%d\n" % number)], "made here"
            )
            for tag in ("v1", "v2"):
                await host.call("tag", "--force", tag, patch.commit_sha)
            (host.path / "shallow").write_text(f"{base.sha}\n")
            if action == "diff":
                assert await deployment.app.diff(base, patch.commit_sha) == patch.diff
            else:
                assert await deployment.host.remote(deployment.id).push(
                    base.sha, patch.commit_sha, "mine"
                )
            assert await git_state() == state_before


async def test_repeated_requests_in_different_forms_do_not_fill_the_disk(tmp_path: Path) -> None:
    noise = "".join(f"{n * n * 7919 % 1_000_003}\n" for n in range(100_000))
    async with world(
        tmp_path,
        make_repo(tmp_path / "origin", {"noise.txt": noise}),
        max_repository_bytes=1_000_000,
    ) as deployment:
        base = await deployment.app.resolve(RepositoryRef(id=deployment.id))
        request = {"ask": "base", "repository": deployment.id, "ref": base.sha, "tenant": "local"}
        offers = [
            (
                await send_request(
                    deployment.wire.ask, REPOSITORY_SERVICE, {**request, "haves": [f"{n:040x}"]}
                )
            )["offer"]
            for n in range(30)
        ]
        assert offers[0]["size"] * len(offers) > 8_000_000
        sizes = [path.stat().st_size for path in deployment.bundles._folder.iterdir()]
        assert sum(sizes) <= 4_000_000
        _, last = await deployment.wire.ask(
            Channel.REPOSITORIES.of(offers[-1]["holder"]),
            {"ask": "part", "bundle": offers[-1]["bundle"], "offset": 0},
            5,
        )
        assert len(last) == offers[-1]["size"]
