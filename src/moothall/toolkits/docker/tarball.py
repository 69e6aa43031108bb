"""The build context of an image: files of a workspace, read one by one from its executor."""

from __future__ import annotations

import base64
import io
import tarfile
from dataclasses import dataclass

from moothall.domain.tool import ToolCall
from moothall.errors import CallFailed, InvalidRequest
from moothall.ports import Workspace
from moothall.toolkits.answering import call_workspace_tool
from moothall.toolkits.docker.family import DockerLimits

_PROGRAMS = (b"#!", b"\x7fELF")
_DOCKERFILE_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class BuildContext:
    """A tar archive and its Dockerfile."""

    tar: bytes
    dockerfile: str
    dockerfile_path: str


async def pack(workspace: Workspace, call: ToolCall, limits: DockerLimits) -> BuildContext:
    """Return a build context with the files below the call's `path`. Owners, times and links of
    files are dropped; programs stay executable.

    Raises `InvalidRequest` if there are too many files, if they are too large or if there is no
    Dockerfile, and `WorkspaceToolFailed` if the workspace cannot read them.
    """
    root = str(call.arguments["path"]).strip("/")
    root = "" if root in {"", "."} else root + "/"
    listed = await call_workspace_tool(
        workspace, call, "files.list", {"path": call.arguments["path"], "glob": "**"}
    )
    paths = [str(path) for path in listed.get("entries", ()) if not str(path).endswith("/")]
    if listed.get("truncated") or len(paths) > limits.context_files:
        raise InvalidRequest(
            f"there are more than {limits.context_files} files; name a folder with fewer"
        )
    dockerfile_path = str(call.arguments["dockerfile"])
    files: dict[str, bytes] = {}
    remaining = limits.context_bytes
    for path in paths:
        loaded = await call_workspace_tool(workspace, call, "files.load", {"path": path})
        try:
            content = base64.b64decode(str(loaded["content"]), validate=True)
        except (KeyError, ValueError) as error:
            raise CallFailed("the workspace did not return a file") from error
        remaining -= len(content)
        if remaining < 0:
            raise InvalidRequest(f"the files have more than {limits.context_bytes} bytes")
        files[path.removeprefix(root)] = content
    if dockerfile_path not in files or len(files[dockerfile_path]) > _DOCKERFILE_BYTES:
        raise InvalidRequest(
            f"there is no Dockerfile {dockerfile_path[:100]!r} in "
            f"{call.arguments['path'][:100]!r}, or none "
            "of a usual size"
        )
    try:
        text = files[dockerfile_path].decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{dockerfile_path[:100]!r} is not text in UTF-8") from error
    return BuildContext(_tar(files), text, dockerfile_path)


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = 0o755 if content.startswith(_PROGRAMS) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
