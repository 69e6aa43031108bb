"""`docker.*`: containers of a workspace on an engine of the operator's, all of them bounded, and
none that outlives its workspace.

A workspace sees what carries its label, and nothing else of the engine. What a container may do is
decided here, for every container alike: nothing that a caller says reaches the engine's settings
but the image, the command and its environment.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

from moothall.domain.tool import ToolCall, ToolResult
from moothall.errors import (
    CallFailed,
    ConfigurationError,
    InvalidRequest,
    MoothallError,
    NotFound,
    Refused,
)
from moothall.ports import Workspace
from moothall.telemetry import get_logger
from moothall.toolkits.answering import Output, answer_within
from moothall.toolkits.docker import dockerfile
from moothall.toolkits.docker.engine import DockerEngine, engine_at, quote_name, socket_of
from moothall.toolkits.docker.family import DockerSettings
from moothall.toolkits.docker.tarball import BuildContext, pack

log = get_logger(__name__)

_OWNER, _EXPIRES, _TAG = "moothall.owner", "moothall.expires", "moothall.tag"
_SWEEP_SECONDS, _STOP_SECONDS, _CLEAN_SECONDS = 30.0, 5, 60.0
_SHORT, _LINE_BYTES = 12, 1_000_000
_FORBIDDEN_NETWORKS = frozenset({"host", "container"})


def owner_of(tenant: str, workspace: str) -> str:
    """Return what the things of a workspace are labelled with."""
    return hashlib.sha256(f"{tenant}\0{workspace}".encode()).hexdigest()[:24]


class DockerTools:
    """The toolkit of the category `docker`. `call` is a `ports.Toolkit`."""

    def __init__(self, settings: DockerSettings) -> None:
        """Raises `ConfigurationError` for a host that is none."""
        self._settings = settings
        self._host = settings.host or ""
        if self._host:
            socket_of(self._host)
        if settings.network in _FORBIDDEN_NETWORKS:
            raise ConfigurationError(
                "docker.network may not be the host's, nor another container's"
            )
        self._making = asyncio.Lock()
        self._owners: dict[str, set[str]] = {}

    async def call(self, call: ToolCall, workspace: Workspace, tenant: str) -> ToolResult:
        """Act until the call's deadline or `docker.seconds`. What fails is a status, not an
        error.
        """
        return await answer_within(
            call, self._settings.seconds, self._output(call, workspace, tenant)
        )

    async def run(self) -> None:
        """Remove what has expired, whoever made it, until cancelled."""
        while self._host:
            await self.sweep()
            await asyncio.sleep(_SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Remove what has expired now."""
        try:
            async with engine_at(self._host) as engine:
                now = time.time()
                for kind in ("containers", "images"):
                    for thing in await _list_labelled(engine, kind, _EXPIRES):
                        if _expiry(thing) < now:
                            await _ensure_gone(engine, kind, thing["Id"])
        except MoothallError as error:
            log.warning("containers could not be swept", error=error.message)

    async def close_workspace(self, workspace: str) -> None:
        """Remove all that a workspace has, now that it ends. What cannot be removed is left to its
        expiry.
        """
        for owner in self._owners.pop(workspace, ()):
            async with engine_at(self._host) as engine:
                await _after(_remove(engine, owner))

    async def _output(self, call: ToolCall, workspace: Workspace, tenant: str) -> Output:  # noqa: PLR0911 - one case a tool
        if not self._host:
            raise CallFailed(f"{call.tool} is not set up here: MOOTHALL_DOCKER__HOST is not set")
        async with engine_at(self._host) as engine:
            owner = owner_of(tenant, workspace.id)
            self._owners.setdefault(workspace.id, set()).add(owner)
            mine = _Mine(engine, self._settings, owner, self._making)
            args = call.arguments
            match call.tool.partition(".")[2]:
                case "build":
                    return await mine.build(
                        await pack(workspace, call, self._settings), str(args["tag"])
                    )
                case "run":
                    return await mine.run(args)
                case "exec":
                    return await mine.execute(str(args["container"]), list(args["command"]))
                case "ps":
                    return await mine.ps()
                case "logs":
                    return await mine.logs(str(args["container"]), int(args["lines"]))
                case "stop":
                    return await mine.stop(str(args["container"]))
                case _:
                    return await mine.rm(str(args["container"]))


async def _remove(engine: DockerEngine, owner: str) -> None:
    for kind in ("containers", "images"):
        for thing in await _list_labelled(engine, kind, f"{_OWNER}={owner}"):
            await _ensure_gone(engine, kind, thing["Id"])


async def _list_labelled(engine: DockerEngine, kind: str, label: str) -> list[dict[str, Any]]:
    every = {"all": "1"} if kind == "containers" else {}
    found: list[dict[str, Any]] = await engine.ask(
        "GET", f"/{kind}/json", query={**every, "filters": {"label": [label]}}
    )
    return found or []


async def _ensure_gone(engine: DockerEngine, kind: str, thing: str) -> None:
    with suppress(NotFound, InvalidRequest):  # somebody else removes it, too
        await engine.ask(
            "DELETE",
            f"/{kind}/{quote_name(thing)}",
            query={"force": "1", **({"v": "1"} if kind == "containers" else {})},
        )


async def _after(work: Awaitable[None]) -> None:
    """Clean up behind a call, which may have been cancelled. What cannot be is left to its
    expiry.
    """
    try:
        async with asyncio.timeout(_CLEAN_SECONDS):
            await work
    except (MoothallError, TimeoutError) as error:
        log.warning("containers are left to their expiry", error=str(error))


def _expiry(thing: Mapping[str, Any]) -> float:
    try:
        return float((thing.get("Labels") or {})[_EXPIRES])
    except (KeyError, ValueError):
        return float("inf")


async def _lines(content: Any) -> AsyncIterator[Mapping[str, Any]]:
    """Yield what a build tells, one document a line."""
    left = b""
    async for piece in content.iter_any():
        *lines, left = (left + piece).split(b"\n")
        if len(left) > _LINE_BYTES:
            raise CallFailed("the container engine answered with more than can be taken")
        for line in lines:
            if line.strip():
                yield json.loads(line)


class _Mine:
    """What a workspace may do with the engine."""

    def __init__(
        self, engine: DockerEngine, settings: DockerSettings, owner: str, making: asyncio.Lock
    ) -> None:
        self._engine, self._settings, self._owner, self._making = engine, settings, owner, making

    async def build(self, context: BuildContext, tag: str) -> Output:
        settings = self._settings
        for image in dockerfile.check(
            context.dockerfile, self._is_allowed, runs=settings.build_runs
        ):
            await self._image(image)  # it is there: nothing is pulled
        built = await _list_labelled(self._engine, "images", f"{_OWNER}={self._owner}")
        if len({image["Labels"].get(_TAG) for image in built} - {tag}) >= settings.built:
            raise Refused(f"a workspace has at most {settings.built} images (docker.built)")
        query = {
            "t": self._reference(tag),
            "dockerfile": context.dockerfile_path,
            "networkmode": "none",
            "rm": "1",
            "forcerm": "1",
            "memory": str(settings.memory_bytes),
            "memswap": str(settings.memory_bytes),
            "cpuperiod": "100000",
            "cpuquota": str(round(settings.cpus * 100_000)),
            "labels": self._labels() | {_TAG: tag},
        }
        said, failed = "", ""
        async with self._engine.stream("POST", "/build", query=query, body=context.tar) as response:
            async for told in _lines(response.content):
                said = (said + str(told.get("stream", "")))[-settings.output_bytes :]
                failed = str(told["error"])[:1000] if "error" in told else failed
        if failed:
            raise InvalidRequest(f"the build failed: {failed}\n{said[-2000:]}")
        return {
            "tag": tag,
            "image": (await self._image(self._reference(tag)))["Id"],
            "output": said,
        }

    async def run(self, args: Mapping[str, Any]) -> Output:
        image = await self._runnable(str(args["image"]))
        async with self._making:
            if len(await self._list()) >= self._settings.containers:
                most = self._settings.containers
                raise Refused(
                    f"a workspace has at most {most} containers (docker.containers); docker.rm "
                    "removes one"
                )
            created = await self._engine.ask(
                "POST", "/containers/create", body=self._container(image, args)
            )
        container, kept = created["Id"], False
        try:
            await self._engine.ask("POST", f"/containers/{container}/start")
            if args["detach"]:
                kept = True
                return {"container": container[:_SHORT], "exit_code": None, "output": ""}
            ended = await self._engine.ask("POST", f"/containers/{container}/wait")
            output, cut = await self._read_logs(container, 10_000)
            more = {"killed": "memory"} if (await self._state(container)).get("OOMKilled") else {}
            return {
                "container": container[:_SHORT],
                "exit_code": ended["StatusCode"],
                "output": output,
                "truncated": cut,
                **more,
            }
        finally:
            if not kept:
                await _after(_ensure_gone(self._engine, "containers", container))

    async def execute(self, container: str, command: list[str]) -> Output:
        whole = await self._own(container)
        wanted = {
            "Cmd": command,
            "AttachStdout": True,
            "AttachStderr": True,
            "User": self._settings.user,
            "Privileged": False,
        }
        made = (await self._engine.ask("POST", f"/containers/{whole}/exec", body=wanted))["Id"]
        ended = False
        try:
            body = {"Detach": False, "Tty": False}
            output, cut = await self._engine.read_output(
                "POST", f"/exec/{made}/start", self._settings.output_bytes, body=body
            )
            ended = True
        finally:
            if not ended:  # an engine ends no command by itself: its container goes with it
                await _after(self._kill(whole))
        code = (await self._engine.ask("GET", f"/exec/{made}/json"))["ExitCode"]
        return {"exit_code": code, "output": output, "truncated": cut}

    async def ps(self) -> Output:
        return {
            "containers": [
                {
                    "container": one["Id"][:_SHORT],
                    "image": str(one["Labels"].get(_TAG) or one["Image"]),
                    "state": one["State"],
                    "status": one["Status"],
                }
                for one in await self._list()
            ]
        }

    async def logs(self, container: str, lines: int) -> Output:
        output, cut = await self._read_logs(await self._own(container), lines)
        return {"output": output, "truncated": cut}

    async def stop(self, container: str) -> Output:
        whole = await self._own(container)
        await self._engine.ask("POST", f"/containers/{whole}/stop", query={"t": str(_STOP_SECONDS)})
        return {"container": whole[:_SHORT]}

    async def rm(self, container: str) -> Output:
        whole = await self._own(container)
        await self._engine.ask("DELETE", f"/containers/{whole}", query={"force": "1", "v": "1"})
        return {"container": whole[:_SHORT]}

    async def _list(self) -> list[dict[str, Any]]:
        return await _list_labelled(self._engine, "containers", f"{_OWNER}={self._owner}")

    async def _own(self, container: str) -> str:
        """Return the whole id of a container of this workspace. Raises `NotFound` for any other."""
        found = next(
            (one["Id"] for one in await self._list() if one["Id"].startswith(container)), None
        )
        if found is None:
            raise NotFound(
                f"this workspace has no container {container}; docker.ps lists those that it has"
            )
        return str(found)

    async def _state(self, container: str) -> Mapping[str, Any]:
        state: Mapping[str, Any] = (await self._engine.ask("GET", f"/containers/{container}/json"))[
            "State"
        ]
        return state

    async def _read_logs(self, container: str, lines: int) -> tuple[str, bool]:
        query = {"stdout": "1", "stderr": "1", "tail": str(lines)}
        return await self._engine.read_output(
            "GET", f"/containers/{container}/logs", self._settings.output_bytes, query=query
        )

    async def _kill(self, container: str) -> None:
        with suppress(NotFound, InvalidRequest):
            await self._engine.ask("POST", f"/containers/{container}/kill")

    def _is_allowed(self, image: str) -> bool:
        return any(fnmatchcase(image, pattern) for pattern in self._settings.images)

    def _reference(self, tag: str) -> str:
        return f"moothall-{self._owner}:{tag}"

    def _labels(self) -> dict[str, str]:
        return {_OWNER: self._owner, _EXPIRES: str(round(time.time() + self._settings.ttl_seconds))}

    async def _image(self, reference: str) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = await self._engine.ask(
                "GET", f"/images/{quote_name(reference)}/json"
            )
        except NotFound as error:
            raise NotFound(
                f"the engine has no image {reference[:100]!r}, and none is pulled: docker.build "
                "makes one, or the operator"
            ) from error
        return found

    async def _runnable(self, image: str) -> Mapping[str, Any]:
        """Return a workspace's own image of that tag, else one that the operator allows."""
        if not set(image) & set("/:@"):
            with suppress(NotFound):
                return {
                    **await self._image(self._reference(image)),
                    "reference": self._reference(image),
                    "tag": image,
                }
        if not self._is_allowed(image):
            raise Refused(
                f"{image[:100]!r} is no image of this workspace, nor one that may be run here "
                "(docker.images)"
            )
        return {**await self._image(image), "reference": image, "tag": image}

    def _container(self, image: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
        """What a container is made of. Everything that bounds it is said, whatever the engine's
        defaults are.
        """
        settings = self._settings
        volumes: Iterable[str] = (image.get("Config") or {}).get("Volumes") or ()
        scratch = f"rw,nosuid,nodev,size={settings.scratch_bytes},mode=1777"
        return {
            "Image": image["Id"],
            **({"Cmd": list(args["command"])} if args["command"] else {}),
            "Env": list(args["env"]),
            "User": settings.user,
            "Labels": self._labels() | {_TAG: str(image["tag"])},
            "Tty": False,
            "OpenStdin": False,
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                "NetworkMode": settings.network,
                "Memory": settings.memory_bytes,
                "MemorySwap": settings.memory_bytes,
                "NanoCpus": round(settings.cpus * 1e9),
                "PidsLimit": settings.processes,
                "CapDrop": ["ALL"],
                "CapAdd": [],
                "SecurityOpt": ["no-new-privileges"],
                "ReadonlyRootfs": True,
                "Privileged": False,
                "Binds": [],
                "Mounts": [],
                "Devices": [],
                "PortBindings": {},
                "PublishAllPorts": False,
                "IpcMode": "private",
                "PidMode": "",
                "UTSMode": "",
                "UsernsMode": "",
                "OomKillDisable": False,
                "ShmSize": 16_000_000,
                # What an image declares to be a volume would else be a folder of the host's,
                # without a bound.
                "Tmpfs": dict.fromkeys(("/tmp", *volumes), scratch),  # noqa: S108 - inside
                "Ulimits": [
                    {"Name": "nofile", "Soft": 1024, "Hard": 1024},
                    {"Name": "core", "Soft": 0, "Hard": 0},
                ],
                "RestartPolicy": {"Name": "no"},
                "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "2"}},
            },
        }
