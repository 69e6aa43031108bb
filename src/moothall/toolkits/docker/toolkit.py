"""`docker.*`: containers of a workspace on an engine of the operator. All of them are limited, and
none outlives its workspace.

A workspace sees only what has its label. The options of containers are the same for all of them: a
caller only chooses the image, the command and its environment.
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
from moothall.toolkits.calls import ToolOutput, run_within
from moothall.toolkits.docker import DockerLimits, DockerSettings
from moothall.toolkits.docker.engine import (
    BuildContext,
    DockerEngine,
    check_dockerfile,
    open_engine,
    pack,
    quote_name,
    socket_path,
)

log = get_logger(__name__)

_OWNER, _EXPIRES, _TAG = "moothall.owner", "moothall.expires", "moothall.tag"
_SWEEP_SECONDS, _STOP_SECONDS, _CLEAN_SECONDS = 30.0, 5, 60.0
_SHORT, _LINE_BYTES = 12, 1_000_000
_MAX_IMAGES = 4
"""Images that one workspace may build."""
_OUTPUT_BYTES = 30_000
_CALL_SECONDS = 120.0
_CPUS = 1.0  # of one container
_USER = "65534:65534"  # of containers, whatever their image sets
_FORBIDDEN_NETWORKS = frozenset({"host", "container"})


def owner_label(tenant: str, workspace: str) -> str:
    """Return the label of a workspace's containers and images."""
    return hashlib.sha256(f"{tenant}\0{workspace}".encode()).hexdigest()[:24]


class DockerTools:
    """The toolkit of the category `docker`. `call` is a `ports.Toolkit`."""

    def __init__(self, settings: DockerSettings, limits: DockerLimits | None = None) -> None:
        """Create the toolkit. Raises `ConfigurationError` for an invalid host."""
        self._settings, self._limits = settings, limits or DockerLimits()
        self._host = settings.host or ""
        if self._host:
            socket_path(self._host)
        if settings.network in _FORBIDDEN_NETWORKS:
            raise ConfigurationError(
                "docker.network may not be the host's, nor another container's"
            )
        self._creation_lock = asyncio.Lock()
        self._owners: dict[str, set[str]] = {}

    async def call(self, call: ToolCall, workspace: Workspace, tenant: str) -> ToolResult:
        """Run a tool until the call's deadline or for 120 seconds. A failure is a status, not an
        exception.
        """
        return await run_within(call, _CALL_SECONDS, self._output(call, workspace, tenant))

    async def run(self) -> None:
        """Remove expired containers and images of all processes until cancelled."""
        while self._host:
            await self.sweep()
            await asyncio.sleep(_SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Remove expired containers and images once."""
        try:
            async with open_engine(self._host) as engine:
                now = time.time()
                for kind in ("containers", "images"):
                    for item in await _list_labelled(engine, kind, _EXPIRES):
                        if _expiry(item) < now:
                            await _remove_item(engine, kind, item["Id"])
        except MoothallError as error:
            log.warning("containers could not be swept", error=error.message)

    async def close_workspace(self, workspace: str) -> None:
        """Remove the containers and images of a workspace that ends. What cannot be removed is left
        to its expiry.
        """
        for owner in self._owners.pop(workspace, ()):
            async with open_engine(self._host) as engine:
                await _try_remove(_remove(engine, owner))

    async def _output(self, call: ToolCall, workspace: Workspace, tenant: str) -> ToolOutput:  # noqa: PLR0911 - one case a tool
        if not self._host:
            raise CallFailed(f"{call.tool} is not configured: MOOTHALL_DOCKER__HOST is not set")
        async with open_engine(self._host) as engine:
            owner = owner_label(tenant, workspace.id)
            self._owners.setdefault(workspace.id, set()).add(owner)
            containers = _WorkspaceContainers(
                engine, self._settings, self._limits, owner, self._creation_lock
            )
            args = call.arguments
            match call.tool.partition(".")[2]:
                case "build":
                    return await containers.build(
                        await pack(workspace, call, self._limits), str(args["tag"])
                    )
                case "run":
                    return await containers.run(args)
                case "exec":
                    return await containers.execute(str(args["container"]), list(args["command"]))
                case "ps":
                    return await containers.ps()
                case "logs":
                    return await containers.logs(str(args["container"]), int(args["lines"]))
                case "stop":
                    return await containers.stop(str(args["container"]))
                case _:
                    return await containers.rm(str(args["container"]))


async def _remove(engine: DockerEngine, owner: str) -> None:
    for kind in ("containers", "images"):
        for item in await _list_labelled(engine, kind, f"{_OWNER}={owner}"):
            await _remove_item(engine, kind, item["Id"])


async def _list_labelled(engine: DockerEngine, kind: str, label: str) -> list[dict[str, Any]]:
    all_containers = {"all": "1"} if kind == "containers" else {}
    items: list[dict[str, Any]] = await engine.call(
        "GET", f"/{kind}/json", query={**all_containers, "filters": {"label": [label]}}
    )
    return items or []


async def _remove_item(engine: DockerEngine, kind: str, item: str) -> None:
    with suppress(NotFound, InvalidRequest):  # another process removes it too
        await engine.call(
            "DELETE",
            f"/{kind}/{quote_name(item)}",
            query={"force": "1", **({"v": "1"} if kind == "containers" else {})},
        )


async def _try_remove(removal: Awaitable[None]) -> None:
    """Clean up after a call that may have been cancelled. What cannot be removed is left to its
    expiry.
    """
    try:
        async with asyncio.timeout(_CLEAN_SECONDS):
            await removal
    except (MoothallError, TimeoutError) as error:
        log.warning("containers are left to their expiry", error=str(error))


def _expiry(item: Mapping[str, Any]) -> float:
    try:
        return float((item.get("Labels") or {})[_EXPIRES])
    except (KeyError, ValueError):
        return float("inf")


async def _read_json_lines(content: Any) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the messages of a build, one document a line."""
    buffer = b""
    async for piece in content.iter_any():
        *lines, buffer = (buffer + piece).split(b"\n")
        if len(buffer) > _LINE_BYTES:
            raise CallFailed("the container engine sent a response over the size limit")
        for line in lines:
            if line.strip():
                yield json.loads(line)


class _WorkspaceContainers:
    """The actions of a workspace on the engine."""

    def __init__(
        self,
        engine: DockerEngine,
        settings: DockerSettings,
        limits: DockerLimits,
        owner: str,
        creation_lock: asyncio.Lock,
    ) -> None:
        self._engine, self._settings, self._limits, self._owner, self._creation_lock = (
            engine,
            settings,
            limits,
            owner,
            creation_lock,
        )

    async def build(self, context: BuildContext, tag: str) -> ToolOutput:
        settings = self._settings
        for image in check_dockerfile(
            context.dockerfile, self._is_allowed, runs=settings.build_runs
        ):
            await self._image(image)  # it must exist, because nothing is pulled
        images = await _list_labelled(self._engine, "images", f"{_OWNER}={self._owner}")
        if len({image["Labels"].get(_TAG) for image in images} - {tag}) >= _MAX_IMAGES:
            raise Refused(f"a workspace has at most {_MAX_IMAGES} images")
        query = {
            "t": self._reference(tag),
            "dockerfile": context.dockerfile_path,
            "networkmode": "none",
            "rm": "1",
            "forcerm": "1",
            "memory": str(self._limits.memory_bytes),
            "memswap": str(self._limits.memory_bytes),
            "cpuperiod": "100000",
            "cpuquota": str(round(_CPUS * 100_000)),
            "labels": self._labels() | {_TAG: tag},
        }
        output, failure = "", ""
        async with self._engine.stream("POST", "/build", query=query, body=context.tar) as response:
            async for message in _read_json_lines(response.content):
                output = (output + str(message.get("stream", "")))[-_OUTPUT_BYTES:]
                failure = str(message["error"])[:1000] if "error" in message else failure
        if failure:
            raise InvalidRequest(f"the build failed: {failure}\n{output[-2000:]}")
        return {
            "tag": tag,
            "image": (await self._image(self._reference(tag)))["Id"],
            "output": output,
        }

    async def run(self, args: Mapping[str, Any]) -> ToolOutput:
        image = await self._runnable(str(args["image"]))
        async with self._creation_lock:
            if len(await self._list_containers()) >= self._limits.containers:
                limit = self._limits.containers
                raise Refused(f"a workspace has at most {limit} containers; docker.rm removes one")
            created = await self._engine.call(
                "POST", "/containers/create", body=self._container(image, args)
            )
        container, is_kept = created["Id"], False
        try:
            await self._engine.call("POST", f"/containers/{container}/start")
            if args["detach"]:
                is_kept = True
                return {"container": container[:_SHORT], "exit_code": None, "output": ""}
            exit_status = await self._engine.call("POST", f"/containers/{container}/wait")
            # A line has a byte at least, so more lines are truncated by their bytes.
            output, truncated = await self._read_logs(container, _OUTPUT_BYTES)
            extra = {"killed": "memory"} if (await self._state(container)).get("OOMKilled") else {}
            return {
                "container": container[:_SHORT],
                "exit_code": exit_status["StatusCode"],
                "output": output,
                "truncated": truncated,
                **extra,
            }
        finally:
            if not is_kept:
                await _try_remove(_remove_item(self._engine, "containers", container))

    async def execute(self, container: str, command: list[str]) -> ToolOutput:
        full_id = await self._full_id(container)
        options = {
            "Cmd": command,
            "AttachStdout": True,
            "AttachStderr": True,
            "User": _USER,
            "Privileged": False,
        }
        exec_id = (await self._engine.call("POST", f"/containers/{full_id}/exec", body=options))[
            "Id"
        ]
        has_ended = False
        try:
            body = {"Detach": False, "Tty": False}
            output, truncated = await self._engine.read_output(
                "POST", f"/exec/{exec_id}/start", _OUTPUT_BYTES, body=body
            )
            has_ended = True
        finally:
            if not has_ended:  # an engine does not end a command alone, so its container is killed
                await _try_remove(self._kill(full_id))
        exit_code = (await self._engine.call("GET", f"/exec/{exec_id}/json"))["ExitCode"]
        return {"exit_code": exit_code, "output": output, "truncated": truncated}

    async def ps(self) -> ToolOutput:
        return {
            "containers": [
                {
                    "container": container["Id"][:_SHORT],
                    "image": str(container["Labels"].get(_TAG) or container["Image"]),
                    "state": container["State"],
                    "status": container["Status"],
                }
                for container in await self._list_containers()
            ]
        }

    async def logs(self, container: str, lines: int) -> ToolOutput:
        output, truncated = await self._read_logs(await self._full_id(container), lines)
        return {"output": output, "truncated": truncated}

    async def stop(self, container: str) -> ToolOutput:
        full_id = await self._full_id(container)
        await self._engine.call(
            "POST", f"/containers/{full_id}/stop", query={"t": str(_STOP_SECONDS)}
        )
        return {"container": full_id[:_SHORT]}

    async def rm(self, container: str) -> ToolOutput:
        full_id = await self._full_id(container)
        await self._engine.call("DELETE", f"/containers/{full_id}", query={"force": "1", "v": "1"})
        return {"container": full_id[:_SHORT]}

    async def _list_containers(self) -> list[dict[str, Any]]:
        return await _list_labelled(self._engine, "containers", f"{_OWNER}={self._owner}")

    async def _full_id(self, container: str) -> str:
        """Return the full id of a container of this workspace. Raises `NotFound` for others."""
        full_id = next(
            (
                item["Id"]
                for item in await self._list_containers()
                if item["Id"].startswith(container)
            ),
            None,
        )
        if full_id is None:
            raise NotFound(
                f"this workspace has no container {container}; docker.ps lists its containers"
            )
        return str(full_id)

    async def _state(self, container: str) -> Mapping[str, Any]:
        state: Mapping[str, Any] = (
            await self._engine.call("GET", f"/containers/{container}/json")
        )["State"]
        return state

    async def _read_logs(self, container: str, lines: int) -> tuple[str, bool]:
        query = {"stdout": "1", "stderr": "1", "tail": str(lines)}
        return await self._engine.read_output(
            "GET", f"/containers/{container}/logs", _OUTPUT_BYTES, query=query
        )

    async def _kill(self, container: str) -> None:
        with suppress(NotFound, InvalidRequest):
            await self._engine.call("POST", f"/containers/{container}/kill")

    def _is_allowed(self, image: str) -> bool:
        return any(fnmatchcase(image, pattern) for pattern in self._settings.images)

    def _reference(self, tag: str) -> str:
        return f"moothall-{self._owner}:{tag}"

    def _labels(self) -> dict[str, str]:
        return {
            _OWNER: self._owner,
            _EXPIRES: str(round(time.time() + self._limits.lifetime_seconds)),
        }

    async def _image(self, reference: str) -> Mapping[str, Any]:
        try:
            image: Mapping[str, Any] = await self._engine.call(
                "GET", f"/images/{quote_name(reference)}/json"
            )
        except NotFound as error:
            raise NotFound(
                f"the engine has no image {reference[:100]!r}, and images are not pulled: build it "
                "with docker.build, or ask the operator"
            ) from error
        return image

    async def _runnable(self, image: str) -> Mapping[str, Any]:
        """Return the workspace's own image with that tag, else one that the operator allows."""
        if not set(image) & set("/:@"):
            with suppress(NotFound):
                return {
                    **await self._image(self._reference(image)),
                    "reference": self._reference(image),
                    "tag": image,
                }
        if not self._is_allowed(image):
            raise Refused(
                f"{image[:100]!r} is neither an image of this workspace nor an allowed image "
                "(docker.images)"
            )
        return {**await self._image(image), "reference": image, "tag": image}

    def _container(self, image: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a container. All limits are explicit, whatever the defaults of the
        engine are.
        """
        settings = self._settings
        volumes: Iterable[str] = (image.get("Config") or {}).get("Volumes") or ()
        scratch = f"rw,nosuid,nodev,size={self._limits.scratch_bytes},mode=1777"
        return {
            "Image": image["Id"],
            **({"Cmd": list(args["command"])} if args["command"] else {}),
            "Env": list(args["env"]),
            "User": _USER,
            "Labels": self._labels() | {_TAG: str(image["tag"])},
            "Tty": False,
            "OpenStdin": False,
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                "NetworkMode": settings.network,
                "Memory": self._limits.memory_bytes,
                "MemorySwap": self._limits.memory_bytes,
                "NanoCpus": round(_CPUS * 1e9),
                "PidsLimit": self._limits.processes,
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
                # Otherwise a volume of the image would be an unlimited folder of the host.
                "Tmpfs": dict.fromkeys(("/tmp", *volumes), scratch),  # noqa: S108 - inside
                "Ulimits": [
                    {"Name": "nofile", "Soft": 1024, "Hard": 1024},
                    {"Name": "core", "Soft": 0, "Hard": 0},
                ],
                "RestartPolicy": {"Name": "no"},
                "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "2"}},
            },
        }
