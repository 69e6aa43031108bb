"""A container engine: a client of the part of its HTTP API that is used, over its Unix socket; and
the images that it builds, from validated Dockerfiles and limited build contexts.
"""

from __future__ import annotations

import base64
import io
import json
import re
import tarfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from moothall.concurrency import read_body
from moothall.domain.tool import ToolCall
from moothall.errors import CallFailed, ConfigurationError, InvalidRequest, NotFound, Refused
from moothall.ports import Workspace
from moothall.toolkits.calls import call_workspace_tool
from moothall.toolkits.docker import DockerLimits

if TYPE_CHECKING:  # 8 MB, imported by the first call
    import aiohttp

_MAX_REPLY_BYTES = 8_000_000
_CHUNK = 65_536
_FRAME_HEADER_BYTES = 8
_NOT_FOUND, _FIRST_ERROR, _FIRST_SERVER_ERROR = 404, 400, 500


def socket_path(host: str) -> str:
    """Return the path in a setting such as unix:///var/run/docker.sock. Raises
    `ConfigurationError`.
    """
    path = host.removeprefix("unix://")
    if path == host or not path.startswith("/"):
        raise ConfigurationError(f"docker.host {host!r} must be unix:// and the path of a socket")
    return path


class DockerEngine:
    """A session with an engine."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the response before its body is read. Raises `NotFound`,
        `InvalidRequest` and `CallFailed` with the engine's reason.
        """
        import aiohttp

        params = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in (query or {}).items()
        }
        raw = isinstance(body, bytes)
        headers = (
            {"Content-Type": "application/x-tar" if raw else "application/json"}
            if body is not None
            else {}
        )
        data = io.BytesIO(body) if raw else None if body is None else json.dumps(body).encode()
        try:
            async with self._session.request(
                method, f"http://engine{path}", params=params, data=data, headers=headers
            ) as response:
                if response.status >= _FIRST_ERROR:
                    raise _refusal(response.status, await _read_body(response))
                yield response
        except aiohttp.ClientConnectorError as error:
            raise CallFailed(
                "the container engine does not answer (docker.host); `moothall doctor` shows "
                "details"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise CallFailed(
                f"the connection to the container engine broke ({type(error).__name__})"
            ) from error

    async def call(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Any:
        """Return the JSON of a response, None for an empty one. Raises what `stream` raises."""
        async with self.stream(method, path, query=query, body=body) as response:
            raw = await _read_body(response)
        try:
            return json.loads(raw) if raw.strip() else None
        except ValueError as error:
            raise CallFailed("the container engine did not answer with JSON") from error

    async def read_output(
        self,
        method: str,
        path: str,
        max_bytes: int,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
    ) -> tuple[str, bool]:
        """Return the output of a container, both streams in the order of arrival, and whether it
        was truncated to `max_bytes`.
        """
        output, truncated = bytearray(), False
        async with self.stream(method, path, query=query, body=body) as response:
            async for piece in _frames(response.content):
                if truncated:
                    continue  # the end of the response is the end of the command
                output += piece
                if len(output) > max_bytes:
                    truncated = True
                    del output[max_bytes:]
        return output.decode(errors="replace"), truncated


@asynccontextmanager
async def open_engine(host: str) -> AsyncIterator[DockerEngine]:
    """Open a session with an engine."""
    import aiohttp

    connector = aiohttp.UnixConnector(socket_path(host), force_close=True)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        yield DockerEngine(session)


def quote_name(text: str) -> str:
    """Quote a name for use in a path."""
    return quote(text, safe="")


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    body = await read_body(response.content.readexactly, _MAX_REPLY_BYTES)
    if body is None:
        raise CallFailed("the container engine sent a response over the size limit")
    return body


async def _frames(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the content of the frames of a stream, without their headers."""
    while True:
        try:
            header = await content.readexactly(_FRAME_HEADER_BYTES)
        except EOFError:
            return
        remaining = int.from_bytes(header[4:])
        while remaining and (piece := await content.read(min(remaining, _CHUNK))):
            remaining -= len(piece)
            yield piece


def _refusal(status: int, raw: bytes) -> Exception:
    try:
        reason = str(json.loads(raw)["message"])[:1000]
    except (ValueError, KeyError, TypeError):
        reason = f"status {status}"
    if status == _NOT_FOUND:
        return NotFound(f"the engine: {reason}")
    return (
        InvalidRequest(f"the engine: {reason}")
        if status < _FIRST_SERVER_ERROR
        else CallFailed(f"the engine: {reason}")
    )


# Validation of Dockerfiles. An engine performs some instructions itself and with its own network:
# ADD fetches URLs, and FROM and COPY --from pull images. So only instructions that are known to be
# harmless are allowed, and ambiguous text is refused.


_ALLOWED_INSTRUCTIONS = frozenset(
    [
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "LABEL",
        "RUN",
        "SHELL",
        "STOPSIGNAL",
        "USER",
        "WORKDIR",
    ]
)
_DIRECTIVE = re.compile(r"\s*#\s*[A-Za-z]+\s*=")
_CONTINUATION = re.compile(r"\\[ \t]*$")
_STAGE = re.compile(r"[a-z][a-z0-9_.-]*")
_NUMBER = re.compile(r"[0-9]+")
_EMPTY_IMAGE = "scratch"


def check_dockerfile(
    text: str, is_allowed: Callable[[str], bool], *, runs: bool
) -> tuple[str, ...]:
    """Return the images that a Dockerfile builds on, besides `scratch`.

    is_allowed: whether an image may be used.
    runs: whether RUN is allowed.

    Raises `Refused` for forbidden instructions, and `InvalidRequest` for an invalid file.
    """
    stages: set[str] = set()
    images: list[str] = []
    has_from = False
    for instruction, arguments in _instructions(text):
        _check_instruction(instruction, runs=runs)
        has_from = has_from or instruction == "FROM"
        if not has_from and instruction != "ARG":
            break
        sources: Iterable[str] = ()
        if instruction == "FROM":
            image, stage = _parse_from(arguments)
            sources = () if image == _EMPTY_IMAGE else (image,)
        elif instruction == "COPY":
            sources, stage = (
                [source for source in _sources(arguments) if not _NUMBER.fullmatch(source)],
                "",
            )
        else:
            continue
        for image in (source for source in sources if source not in stages):
            if not is_allowed(image):
                raise Refused(
                    f"builds may not use the image {image[:100]!r}, only scratch and the allowed "
                    "images (docker.images)"
                )
            images.append(image)
        stages.add(stage)
    if not has_from:
        raise InvalidRequest("a Dockerfile must begin with FROM")
    return tuple(dict.fromkeys(images))


def _check_instruction(instruction: str, *, runs: bool) -> None:
    if instruction not in _ALLOWED_INSTRUCTIONS:
        advice = "; COPY copies files" if instruction == "ADD" else ""
        raise Refused(
            f"{instruction[:40]!r} is not allowed in a Dockerfile{advice}; allowed are "
            f"{', '.join(sorted(_ALLOWED_INSTRUCTIONS))}"
        )
    if instruction == "RUN" and not runs:
        raise Refused(
            "RUN is not allowed in a Dockerfile here (docker.build_runs): copy the needed files, "
            "and run commands in a container"
        )


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield (INSTRUCTION, rest) with continued lines joined. Text that engines parse differently is
    refused.
    """
    if not text.isprintable() and re.search(
        r"[^\S\n\r\t ]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u0085\u2028\u2029\ufeff]", text
    ):
        raise Refused(
            "a Dockerfile may have spaces, tabs and line ends, but no other blank or control "
            "characters"
        )
    instruction = ""
    for raw_line in text.split("\n"):
        line = raw_line.removesuffix("\r")
        if _DIRECTIVE.match(line):
            raise Refused(
                "directives such as # escape= and # syntax= are not allowed in a Dockerfile"
            )
        if line.lstrip(" \t").startswith("#") or (instruction and not line.strip(" \t")):
            continue
        if _CONTINUATION.search(line):
            content = _CONTINUATION.sub("", line)
            if content.endswith("\\"):
                raise Refused(
                    "a line of a Dockerfile ends with two backslashes, which engines read "
                    "differently"
                )
            instruction += content
            continue
        instruction += line
        if instruction.strip(" \t"):
            yield _split(instruction)
        instruction = ""
    if instruction.strip(" \t"):
        yield _split(instruction)


def _split(line: str) -> tuple[str, str]:
    instruction, _, arguments = line.strip(" \t").replace("\t", " ").partition(" ")
    if "<<" in arguments and instruction.upper() in {"RUN", "COPY"}:
        raise Refused("here-documents (<<) are not allowed in a Dockerfile: put them into a file")
    return instruction.upper(), arguments.strip(" ")


def _parse_from(text: str) -> tuple[str, str]:
    arguments = text.split()
    is_named = (
        len(arguments) == 3  # noqa: PLR2004 - image AS name
        and arguments[1].upper() == "AS"
        and _STAGE.fullmatch(arguments[2].lower())
    )
    if not (len(arguments) == 1 or is_named):
        raise Refused("FROM may have only an image, or an image AS a name")
    return arguments[0], arguments[2].lower() if is_named else ""


def _sources(text: str) -> Iterator[str]:
    for argument in text.split():
        if not argument.startswith("--"):
            return
        option, _, value = argument.partition("=")
        if option == "--from":
            yield value
        elif option not in {"--chown", "--chmod"}:
            raise Refused(f"COPY may have --from, --chown and --chmod, not {argument[:40]!r}")


# The build context of an image: files of a workspace, read one by one from its executor.


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
        result = await call_workspace_tool(workspace, call, "files.load", {"path": path})
        try:
            content = base64.b64decode(str(result["content"]), validate=True)
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
