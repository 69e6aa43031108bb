"""A host with a link that sends arbitrary answers: its pod was taken over, or is being deleted."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from moothall.config import Settings
from moothall.domain.repository import Base, Prepared, Profile
from moothall.errors import SandboxUnavailable, WorkspaceFailed
from moothall.network.destinations import Destinations
from moothall.network.proxy import Credentials
from moothall.repositories.changes import ChangeCaps, NewPaths
from moothall.sandbox_runtime.protocol import FrameReader, pack
from moothall.workspace import archive
from moothall.workspace.executor_client import ExecutorClient, ExecutorSetup
from moothall.workspace.kubernetes.cluster import Cluster
from moothall.workspace.kubernetes.job_executor import JobExecutor, Pods
from moothall.workspace.kubernetes.link import (
    CONTROL,
    EXECUTOR,
    Multiplexer,
    Streams,
    Transport,
)
from moothall.workspace.pool import ExecutorPool
from moothall.workspace.setup_network import NetworkAccess
from support.council import until
from support.pods import Queues

CAPS = ChangeCaps(1000, 1000)
Document = dict[str, Any]


class LyingPods(Cluster):
    """Pods that consist of a link, whose answers a test can replace."""

    def __init__(self, settings: Settings, carrier: Transport) -> None:
        super().__init__(settings.jobs, "lying")
        self._carrier = carrier
        self._links: dict[str, asyncio.Task[None]] = {}
        self.answers: dict[str, Callable[[Document], Document]] = {}
        self.services: Callable[[Streams, Document], Any] = lambda _streams, _request: None

    async def create(self, manifest: dict[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        self._failures[name] = asyncio.get_running_loop().create_future()
        self._links[name] = asyncio.create_task(self._serve(name))

    async def remove(self, name: str) -> None:
        if link := self._links.pop(name, None):
            link.cancel()
            await asyncio.wait({link})

    def set_failure(self, name: str, failure: str) -> None:
        """Set the reason why a pod ended."""
        self._failures[name].set_result(failure)

    async def _serve(self, name: str) -> None:
        trunk = Multiplexer(self._carrier, f"{name}-out", f"{name}-in")
        async with asyncio.TaskGroup() as group:
            group.create_task(trunk.run())
            await trunk.connected.wait()
            for stream, hear in ((CONTROL, self._control), (EXECUTOR, self._services)):
                streams = await asyncio.open_connection(sock=await trunk.open(stream))
                streams[1].write(pack({"id": 0, "status": "ready"}))
                group.create_task(self._read(streams, hear))

    async def _read(self, streams: Streams, hear: Callable[[Streams, Document], Any]) -> None:
        frames = FrameReader()
        try:
            while data := await streams[0].read(1 << 20):
                for request in frames.feed(data):
                    hear(streams, request)
        finally:
            streams[1].transport.abort()

    def _control(self, streams: Streams, request: Document) -> None:
        answer = self.answers.get(request["op"])
        streams[1].write(
            pack(
                {
                    "status": "success",
                    "id": request["id"],
                    **(answer(request) if answer else {}),
                }
            )
        )

    def _services(self, streams: Streams, request: Document) -> None:
        self.services(streams, request)


@pytest.fixture
def pods(tmp_path: Path) -> LyingPods:
    queues = Queues()
    return LyingPods(Settings(data_dir=tmp_path / "data"), Transport(queues.send, queues.listen))


def box_of(pods: LyingPods, tmp_path: Path, **place: Any) -> JobExecutor:
    tree = tmp_path / "base"
    tree.mkdir()
    (tree / "file").write_text("text")
    (tmp_path / "secret").write_text("word")
    settings = Settings(data_dir=tmp_path / "data")
    return JobExecutor(
        ExecutorSetup("key", (tree,), **place),
        tmp_path / "box",
        settings,
        Pods(pods, pods._carrier, lambda _: {}),
    )


@pytest.fixture
async def box(pods: LyingPods, tmp_path: Path) -> AsyncIterator[JobExecutor]:
    env = tmp_path / "env"
    env.mkdir()
    box = box_of(pods, tmp_path, env=env, env_writable=True)
    await box.start()
    yield box
    await box.close()


def change(path: str = "file", **fields: Any) -> Document:
    return {"path": path, "mode": "100644", "content": base64.b64encode(b"word").decode(), **fields}


def question(**fields: Any) -> Document:
    return {"folders": [], "files": [], "lists": {}, **fields}


async def all_of(new: NewPaths) -> Mapping[str, str]:
    return dict.fromkeys((*new.folders, *new.files), "a rule")


async def test_an_honest_link_learns_which_files_are_ignored(
    pods: LyingPods, box: JobExecutor
) -> None:
    ignored_paths: list[Document] = []

    def end(request: Document) -> Document:
        ignored_paths.append(request["rules"])
        return {"changes": [], "ignored": ["target/", "a.log"]}

    pods.answers["changes"] = lambda _: {"new": question(folders=["target"], files=["a.log"])}
    pods.answers["ignored"] = end
    surveyed = await box.changes(["file"], CAPS, all_of)
    assert surveyed.ignored == {"target/": "a rule", "a.log": "a rule"}
    assert ignored_paths == [{"target": "a rule", "a.log": "a rule"}]


async def test_a_link_that_asks_endlessly_is_given_up(pods: LyingPods, box: JobExecutor) -> None:
    pods.answers["changes"] = pods.answers["ignored"] = lambda _: {"new": question(files=["a.log"])}
    with pytest.raises(WorkspaceFailed, match="broke its protocol"):
        await box.changes(["file"], CAPS, all_of)


async def test_an_honest_link_reports_the_changed_files(pods: LyingPods, box: JobExecutor) -> None:
    pods.answers["changes"] = lambda _: {
        "changes": [change(), change(path="gone", content=None)],
        "ignored": [],
    }
    assert [changed.path for changed in (await box.changes(["file"], CAPS, all_of)).changes] == [
        "file",
        "gone",
    ]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"changes": 1},
        {"changes": ["file"]},
        {"changes": [{"path": "file"}]},
        {"changes": [change(content="ü")]},
        {"changes": [change(content=7)]},
        {"changes": [change(mode="160000")]},
        {"changes": [change(mode="040000\\tx")]},
        {"changes": [change("../secret")]},
        {"changes": [change("/etc/passwd")]},
        {"changes": [change(b"a\\0b".decode("unicode_escape"))]},
        {"changes": []},
        {"changes": [], "ignored": ["unasked"]},
        {"changes": [], "ignored": [7]},
        {"new": 7},
        {"new": question(files=["../secret"])},
        {"new": question(folders=["/etc"])},
        {"new": question(files=[b"a\\0b".decode("unicode_escape")])},
        {"new": question(lists={"../.gitignore": None})},
        {"new": question(lists={"file": None})},
        {"new": question(lists={".gitignore": 7})},
    ],
    ids=str,
)
async def test_changes_that_no_link_of_ours_sends_are_refused(
    pods: LyingPods, box: JobExecutor, answer: Document
) -> None:
    pods.answers["changes"] = lambda _: answer
    with pytest.raises(WorkspaceFailed, match="broke its protocol"):
        await box.changes(["file"], CAPS, all_of)


@pytest.mark.parametrize("answer", [{}, {"data": 5}, {"data": "ü"}], ids=str)
async def test_an_invalid_tree_is_refused(
    pods: LyingPods, box: JobExecutor, answer: Document
) -> None:
    pods.answers["pack"] = lambda _: answer
    with pytest.raises(WorkspaceFailed, match="broke its protocol"):
        await box.fetch_setup_output()


@pytest.mark.parametrize("answer", [{}, {"port": "x"}, {"port": None}], ids=str)
async def test_an_invalid_port_is_refused(
    pods: LyingPods, tmp_path: Path, answer: Document
) -> None:
    pods.answers["port"] = lambda _: answer
    box = box_of(
        pods,
        tmp_path,
        network_access=NetworkAccess(
            Destinations.read((), only=True), Credentials((), ()), 1000, (), {}
        ),
    )
    with pytest.raises(SandboxUnavailable, match="broke its protocol"):
        await box.start()


def some_of_a_tree(folder: Path) -> Document:
    packed = io.BytesIO()
    archive.pack(folder, packed)
    return {"data": base64.b64encode(packed.getvalue()[:700]).decode()}


async def test_a_pod_that_ends_while_its_files_are_fetched_is_reported_with_the_reason(
    pods: LyingPods, box: JobExecutor, tmp_path: Path
) -> None:
    def lose(_request: Document) -> Document:
        pods.set_failure(box.job, "its pod was ended: Evicted")
        return some_of_a_tree(tmp_path / "base")

    pods.answers["pack"] = lose
    with pytest.raises(WorkspaceFailed, match="Evicted"):
        await box.fetch_setup_output()


async def test_fetching_files_from_a_pod_can_be_cancelled(
    pods: LyingPods, box: JobExecutor, tmp_path: Path
) -> None:
    is_requested = asyncio.Event()

    def answer(_request: Document) -> Document:
        is_requested.set()
        return some_of_a_tree(tmp_path / "base")

    pods.answers["pack"] = answer
    taking = asyncio.create_task(box.fetch_setup_output())
    await is_requested.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking


async def test_the_reason_of_an_ended_container_is_reported_even_if_it_arrives_late(
    pods: LyingPods, box: JobExecutor
) -> None:
    def end(streams: Streams, _request: Document) -> None:
        streams[1].close()
        asyncio.get_running_loop().call_later(
            0.5, pods.set_failure, box.job, "hands exceeded its memory limit and was killed"
        )

    pods.services = end
    with pytest.raises(WorkspaceFailed, match="hands exceeded its memory limit"):
        await box.request("run", wall_seconds=20, argv=("true",), env={})


async def test_a_spare_that_has_waited_half_its_lifetime_is_not_used(
    pods: LyingPods, tmp_path: Path
) -> None:
    settings, created = Settings(data_dir=tmp_path / "data"), list[JobExecutor]()

    def make(place: ExecutorSetup, folder: Path, _beside: ExecutorClient | None) -> ExecutorClient:
        created.append(
            JobExecutor(place, folder, settings, Pods(pods, pods._carrier, lambda _: {}))
        )
        return created[-1]

    async with ExecutorPool(settings, create_executor=make) as pool:
        pool.layout.tree("key").mkdir(parents=True)
        prepared = Prepared(Base("sample", "0" * 40, Profile()), "key", ())
        used: list[ExecutorClient] = []
        for old in (0, 1000, 4000):  # of the 7200 seconds of jobs.seconds
            if created:
                await until(lambda: len(created) == len(used) + 1)
                created[-1]._created -= old
            async with pool.executor(prepared) as box:
                used.append(box)
        assert used[:2] == created[:2]
        assert created[2] not in used
