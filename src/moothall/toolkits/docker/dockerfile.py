"""What is built: validation of Dockerfiles, and the build context of an image."""

from __future__ import annotations

import base64
import io
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from moothall.domain.tool import ToolCall
from moothall.errors import CallFailed, InvalidRequest, Refused
from moothall.ports import Workspace
from moothall.toolkits.docker.family import DockerLimits
from moothall.toolkits.results import call_workspace_tool

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


def check(text: str, allowed: Callable[[str], bool], *, runs: bool) -> tuple[str, ...]:
    """Return the images that a Dockerfile builds on, besides `scratch`.

    allowed: whether an image may be used.
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
            image, stage = _from(arguments)
            sources = () if image == _EMPTY_IMAGE else (image,)
        elif instruction == "COPY":
            sources, stage = (
                [source for source in _sources(arguments) if not _NUMBER.fullmatch(source)],
                "",
            )
        else:
            continue
        for image in (source for source in sources if source not in stages):
            if not allowed(image):
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
    joined = ""
    for raw_line in text.split("\n"):
        line = raw_line.removesuffix("\r")
        if _DIRECTIVE.match(line):
            raise Refused(
                "directives such as # escape= and # syntax= are not allowed in a Dockerfile"
            )
        if line.lstrip(" \t").startswith("#") or (joined and not line.strip(" \t")):
            continue
        if _CONTINUATION.search(line):
            content = _CONTINUATION.sub("", line)
            if content.endswith("\\"):
                raise Refused(
                    "a line of a Dockerfile ends with two backslashes, which engines read "
                    "differently"
                )
            joined += content
            continue
        joined += line
        if joined.strip(" \t"):
            yield _split(joined)
        joined = ""
    if joined.strip(" \t"):
        yield _split(joined)


def _split(line: str) -> tuple[str, str]:
    instruction, _, arguments = line.strip(" \t").replace("\t", " ").partition(" ")
    if "<<" in arguments and instruction.upper() in {"RUN", "COPY"}:
        raise Refused("here-documents (<<) are not allowed in a Dockerfile: put them into a file")
    return instruction.upper(), arguments.strip(" ")


def _from(text: str) -> tuple[str, str]:
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
