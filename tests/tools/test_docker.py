"""`docker.*` against a real engine: images are built, containers run within limits, and nobody sees
another's.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.toolkits.docker import DockerLimits, DockerSettings
from moothall.toolkits.docker.engine import open_engine
from moothall.toolkits.docker.spec import SPECS
from moothall.toolkits.docker.toolkit import DockerTools
from support.engine import engine
from support.folder import Folder
from support.servers import Missing
from support.tool_gateway import in_seconds

pytestmark = pytest.mark.e2e
_ARGUMENTS = {spec.name: spec.arguments for spec in SPECS}
_LINKS = "sh cat ls echo id sleep touch mount wc yes dd mkdir env nc wget sort"

DOCKERFILE = """FROM scratch
COPY bin /bin/
ENV PATH=/bin GREETING=hello
VOLUME /data
CMD ["echo", "from the image"]
"""


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    try:
        with engine() as engine_host:
            yield engine_host
    except Missing as missing:
        pytest.skip(str(missing))


class DockerWorkspace(Folder):
    """A workspace with the Docker toolkit of its process."""

    def __init__(
        self,
        root: Path,
        host: str,
        name: str = "ws-1",
        tools: DockerTools | None = None,
        limits: DockerLimits | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(root)
        self.name = name
        self.settings = DockerSettings(host=host, **settings)
        self.tools = tools or DockerTools(self.settings, limits)

    @property
    def id(self) -> str:
        return self.name

    async def ask(
        self, tool: str, tenant: str = "local", seconds: float = 100, **arguments: Any
    ) -> ToolResult:
        """Call a tool as the gateway does."""
        checked = _ARGUMENTS[f"docker.{tool}"].model_validate(arguments).model_dump()
        result = await self.tools.call(
            ToolCall("request-1", f"docker.{tool}", checked, in_seconds(seconds)), self, tenant
        )
        json.dumps(dict(result.output))
        return result

    async def run(self, *command: str, **options: Any) -> ToolResult:
        return await self.ask("run", image="app", command=list(command), **options)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox: `apt-get install busybox-static` brings it")
    (tmp_path / "bin").mkdir()
    shutil.copy(busybox, tmp_path / "bin/busybox")
    for name in _LINKS.split():
        (tmp_path / "bin" / name).write_text(
            '#!/bin/busybox sh\nexec /bin/busybox ${0##*/} "$@"\n', encoding="ascii"
        )
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.replace("VOLUME /data\n", ""), encoding="ascii")
    return tmp_path


@pytest.fixture
async def docker_workspace(host: str, root: Path) -> AsyncIterator[DockerWorkspace]:
    """A workspace with the image `app`; nothing of it remains at the end."""
    docker_workspace = DockerWorkspace(root, host)
    built = await docker_workspace.ask("build", tag="app")
    assert built.status is ToolStatus.SUCCESS, built.error
    assert built.output["image"].startswith("sha256:")
    yield docker_workspace
    await docker_workspace.tools.close_workspace(docker_workspace.id)
    async with open_engine(host) as session:
        assert await session.call("GET", "/containers/json", query={"all": "1"}) == []
        assert await session.call("GET", "/images/json") == []


async def test_a_container_runs_and_is_removed(docker_workspace: DockerWorkspace) -> None:
    result = await docker_workspace.ask("run", image="app")
    assert (result.output["exit_code"], result.output["output"]) == (0, "from the image\n"), (
        result.error
    )
    result = await docker_workspace.run(
        "/bin/busybox", "sh", "-c", "echo $GREETING $X; echo err >&2; exit 7", env=["X=there"]
    )
    assert result.output["exit_code"] == 7, result.error
    assert sorted(result.output["output"].split()) == ["err", "hello", "there"]
    assert (await docker_workspace.ask("ps")).output["containers"] == []


async def test_a_detached_container_is_used_stopped_and_removed(
    docker_workspace: DockerWorkspace,
) -> None:
    started = await docker_workspace.run(
        "/bin/busybox", "sh", "-c", "echo ready; exec /bin/busybox sleep 1000", detach=True
    )
    container = started.output["container"]
    listed = (await docker_workspace.ask("ps")).output["containers"]
    assert [(item["container"], item["image"], item["state"]) for item in listed] == [
        (container, "app", "running")
    ]
    result = await docker_workspace.ask(
        "exec", container=container, command=["/bin/busybox", "sh", "-c", "echo $GREETING; exit 3"]
    )
    assert (result.output["exit_code"], result.output["output"]) == (3, "hello\n"), result.error
    async with asyncio.timeout(30):
        while not (logs := await docker_workspace.ask("logs", container=container)).output[
            "output"
        ]:
            await asyncio.sleep(0.1)
    assert logs.output == {"output": "ready\n", "truncated": False}
    assert (await docker_workspace.ask("stop", container=container)).status is ToolStatus.SUCCESS
    assert (await docker_workspace.ask("ps")).output["containers"][0]["state"] == "exited"
    assert (await docker_workspace.ask("rm", container=container)).status is ToolStatus.SUCCESS
    assert (await docker_workspace.ask("ps")).output["containers"] == []


LOOK = """cat /proc/self/status; cat /proc/mounts; id; ls /sys/class/net /dev; touch /x /bin/x /etc/x; touch /tmp/mine && echo wrote
mkdir /tmp/m; mount -t tmpfs none /tmp/m; cat /proc/net/route; ls /var/run /run /root /home /host; env"""


async def test_every_container_is_bounded(docker_workspace: DockerWorkspace) -> None:
    result = await docker_workspace.run("/bin/busybox", "sh", "-c", LOOK.replace("\n", ";"))
    output = result.output["output"]
    status = dict(
        line.split(":", 1)
        for line in output.splitlines()
        if line.split(":")[0] in {"CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp", "Uid"}
    )
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Uid"].split() == ["65534"] * 4
    for path in ("/x", "/bin/x"):
        assert f"touch: {path}: Read-only file system" in output
    assert "wrote" in output
    assert "mount: permission denied" in output
    assert "docker.sock" not in output
    async with open_engine(docker_workspace.settings.host or "") as session:
        started = await docker_workspace.run("/bin/busybox", "sleep", "1000", detach=True)
        inspected = await session.call("GET", f"/containers/{started.output['container']}/json")
    host = inspected["HostConfig"]
    expected = {
        "NetworkMode": "none",
        "Privileged": False,
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "CapAdd": None,
        "PidMode": "",
        "Memory": 512_000_000,
        "MemorySwap": 512_000_000,
        "NanoCpus": 1_000_000_000,
        "PidsLimit": 128,
        "SecurityOpt": ["no-new-privileges"],
        "UTSMode": "",
        "IpcMode": "private",
    }
    assert {
        name: host[name] or (None if name == "CapAdd" else host[name]) for name in expected
    } == expected
    assert not host["Binds"] and not host["Devices"] and not inspected["Mounts"]  # noqa: PT018 - three ways to mount


async def test_container_limits_are_enforced_and_named(
    host: str, root: Path, docker_workspace: DockerWorkspace
) -> None:
    small = DockerWorkspace(
        root,
        host,
        tools=None,
        limits=DockerLimits(memory_bytes=32_000_000, processes=16, scratch_bytes=1_000_000),
    )
    eats = await small.run("/bin/busybox", "sh", "-c", "x=x; while true; do x=$x$x; done")
    assert eats.output.get("exit_code") != 0, eats.error
    assert eats.output.get("killed") == "memory"
    forks = await small.run(
        "/bin/busybox",
        "sh",
        "-c",
        "for i in 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0; do sleep 5 & done; echo end",
    )
    assert "can't fork" in forks.output["output"], forks
    talks = await small.run("/bin/busybox", "sh", "-c", "yes | /bin/busybox head -c 100000")
    assert (len(talks.output["output"]), talks.output["truncated"]) == (30_000, True)
    fills = await small.run(
        "/bin/busybox", "sh", "-c", "dd if=/dev/zero of=/tmp/x bs=1M count=10; echo $?"
    )
    assert "No space left" in fills.output["output"]
    slow = await small.run("/bin/busybox", "sleep", "1000", seconds=4)
    assert slow.status is ToolStatus.TIMEOUT
    assert (await small.ask("ps")).output["containers"] == []
    started = (await small.run("/bin/busybox", "sleep", "1000", detach=True)).output["container"]
    late = await small.ask(
        "exec", container=started, command=["/bin/busybox", "sleep", "1000"], seconds=4
    )
    assert late.status is ToolStatus.TIMEOUT
    assert (await small.ask("ps")).output["containers"][0]["state"] == "exited"
    for _ in range(3):
        assert (
            await small.run("/bin/busybox", "sleep", "1000", detach=True)
        ).status is ToolStatus.SUCCESS
    refused_run = await small.run("/bin/busybox", "true")
    assert (refused_run.status, "at most 4 containers" in refused_run.error) == (
        ToolStatus.BLOCKED,
        True,
    )
    await small.tools.close_workspace(small.id)


async def test_a_workspace_sees_only_its_own_containers(
    host: str, root: Path, docker_workspace: DockerWorkspace
) -> None:
    own_container = (
        await docker_workspace.run("/bin/busybox", "sleep", "1000", detach=True)
    ).output["container"]
    for stranger, tenant in (
        (DockerWorkspace(root, host, "ws-2"), "local"),
        (DockerWorkspace(root, host, "ws-1"), "acme"),
    ):
        assert (await stranger.ask("ps", tenant)).output["containers"] == []
        tries: list[tuple[str, dict[str, Any]]] = [
            ("logs", {}),
            ("stop", {}),
            ("rm", {}),
            ("exec", {"command": ["/bin/busybox", "id"]}),
        ]
        for tool, arguments in tries:
            refused = await stranger.ask(tool, tenant, container=own_container, **arguments)
            assert (refused.status, "has no container" in refused.error) == (ToolStatus.ERROR, True)
        image = await stranger.ask("run", tenant, image="app")
        assert (image.status, "docker.images" in image.error) == (ToolStatus.BLOCKED, True)
        await stranger.tools.close_workspace(stranger.id)
    assert (await docker_workspace.ask("ps")).output["containers"][0]["state"] == "running"


async def test_expired_images_and_containers_are_removed_whatever_their_owner(
    host: str, root: Path, docker_workspace: DockerWorkspace
) -> None:
    short = DockerWorkspace(root, host, "ws-3", limits=DockerLimits(lifetime_seconds=10))
    assert (await short.ask("build", tag="gone")).status is ToolStatus.SUCCESS
    assert (
        await short.ask("run", image="gone", command=["/bin/busybox", "sleep", "1000"], detach=True)
    ).status is ToolStatus.SUCCESS
    running = (await docker_workspace.run("/bin/busybox", "sleep", "1000", detach=True)).output[
        "container"
    ]
    await docker_workspace.tools.sweep()
    assert len((await short.ask("ps")).output["containers"]) == 1
    async with asyncio.timeout(60):
        while (await short.ask("ps")).output["containers"]:
            await asyncio.sleep(0.5)
            await docker_workspace.tools.sweep()
    async with open_engine(host) as session:
        assert [
            tag
            for image in await session.call("GET", "/images/json")
            for tag in image["RepoTags"]
            if tag.endswith(":gone")
        ] == []
    assert [
        container["container"]
        for container in (await docker_workspace.ask("ps")).output["containers"]
    ] == [running]


class _Count(BaseHTTPRequestHandler):
    count = 0

    def do_GET(self) -> None:
        type(self).count += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"x")

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.mark.parametrize(
    "text",
    [
        "FROM scratch\nADD http://127.0.0.1:{port}/x /x",
        "FROM scratch\nadd \\\n http://127.0.0.1:{port}/x /x",
        "FROM scratch\nA\\\nDD http://127.0.0.1:{port}/x /x",
        "FROM scratch\n# a comment\\\nADD http://127.0.0.1:{port}/x /x",
        "# escape=`\nFROM scratch\nCOPY a` \nADD http://127.0.0.1:{port}/x /x",
        "# syntax=127.0.0.1:{port}/front\nFROM scratch",
        "FROM 127.0.0.1:{port}/image",
        "FR\\\nOM 127.0.0.1:{port}/image",
        "ARG I=127.0.0.1:{port}/image\nFROM $I",
        "FROM --platform=linux/arm64 127.0.0.1:{port}/image",
        "FROM scratch\nCOPY --from=127.0.0.1:{port}/image /x /x",
        "FROM scratch AS a\nFROM scratch\nCOPY --chown=1:1 --from=127.0.0.1:{port}/image /x /x",
        "FROM scratch\nONBUILD ADD http://127.0.0.1:{port}/x /x",
        'FROM scratch\nRUN ["/bin/x"]',
        "FROM scratch\nVOLUME /data",
        "FROM scratch\nCOPY <<a /x\nb\na",
        "FROM scratch\n\u00a0ADD http://127.0.0.1:{port}/x /x",
        "COPY a b",
        "",
    ],
)
async def test_a_build_fetches_nothing_and_runs_nothing(host: str, root: Path, text: str) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Count)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        (root / "Dockerfile").write_text(
            text.replace("{port}", str(server.server_port)), encoding="utf-8"
        )
        docker_workspace = DockerWorkspace(root, host, "ws-4")
        result = await docker_workspace.ask("build", tag="app")
        assert result.status in {ToolStatus.BLOCKED, ToolStatus.INVALID}, result
        assert _Count.count == 0
        async with open_engine(host) as session:
            assert await session.call("GET", "/images/json") == []
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_builds_are_bounded_and_run_commands_only_if_the_operator_allows_it(
    host: str, root: Path
) -> None:
    (root / "Dockerfile").write_text(
        'FROM scratch AS one\nCOPY bin /bin/\nRUN ["/bin/busybox", "sh", "-c", "ls '
        '/sys/class/net; echo x > /made"]\n'
        "FROM scratch\nCOPY --from=one /made /made\nCOPY --from=0 /bin/busybox /bin/busybox\n",
        encoding="ascii",
    )
    docker_workspace = DockerWorkspace(root, host, "ws-5", build_runs=True)
    built = await docker_workspace.ask("build", tag="app")
    assert built.status is ToolStatus.SUCCESS, built.error
    assert "eth" not in built.output["output"]
    read = await docker_workspace.run("/bin/busybox", "cat", "/made")
    assert read.output["output"] == "x\n"
    (root / "Dockerfile").write_text(
        'FROM scratch\nCOPY bin /bin/\nRUN ["/bin/busybox", "false"]\n', encoding="ascii"
    )
    failed = await docker_workspace.ask("build", tag="app-2")
    assert (failed.status, "the build failed" in failed.error) == (ToolStatus.INVALID, True)
    await docker_workspace.tools.close_workspace(docker_workspace.id)
    limited = DockerWorkspace(root, host, "ws-6", limits=DockerLimits(context_files=2))
    assert "more than 2 files" in (await limited.ask("build", tag="app")).error
    small = DockerWorkspace(root, host, "ws-6", limits=DockerLimits(context_bytes=10_000))
    assert "more than 10000 bytes" in (await small.ask("build", tag="app")).error
    none = await DockerWorkspace(root, host, "ws-6").ask(
        "build", tag="app", dockerfile="../Dockerfile"
    )
    assert (none.status, "there is no Dockerfile" in none.error) == (ToolStatus.INVALID, True)


async def test_a_missing_engine_is_an_error(tmp_path: Path) -> None:
    result = await DockerWorkspace(tmp_path, f"unix://{tmp_path}/none.sock").ask("ps")
    assert (result.status, "does not answer" in result.error) == (ToolStatus.ERROR, True)
