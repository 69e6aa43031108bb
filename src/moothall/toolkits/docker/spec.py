"""The catalogue entries of the container tools. They act beyond the workspace, so no role has them
by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from moothall.tools.schemas import Arguments, NoArguments, Output, Path, must_match
from moothall.tools.spec import Caps, Cost, Danger, Example, Requirements, ToolSpec

_TAG = must_match(r"[a-z0-9][a-z0-9._-]*", "a tag such as app or app-2")
_IMAGE = must_match(
    r"[a-z0-9][A-Za-z0-9._/:@-]*",
    "a tag that docker.build made, or an image such as python:3.12-slim",
)
_CONTAINER = must_match(
    r"[0-9a-f]{12,64}", "the id of a container as docker.run and docker.ps give it"
)
_VARIABLE = must_match(r"[A-Za-z_][A-Za-z0-9_]*=[^\x00]*", "NAME=value")

Words = Annotated[list[Annotated[str, Field(max_length=10_000)]], Field(max_length=100)]
Container = Annotated[str, Field(min_length=12, max_length=64), _CONTAINER]


class BuildImage(Arguments):
    """A build of the folder `path` into an image called `tag`. `dockerfile` is a path in that
    folder.
    """

    tag: Annotated[str, Field(min_length=1, max_length=60), _TAG]
    path: Path = "."
    dockerfile: Path = "Dockerfile"


class RunContainer(Arguments):
    """`command` is a list of words; empty: the command of the image. With `detach`, the container
    keeps running when the call ends.
    """

    image: Annotated[str, Field(min_length=1, max_length=200), _IMAGE]
    command: Words = Field(default_factory=list)
    env: Annotated[
        list[Annotated[str, Field(max_length=2000), _VARIABLE]], Field(max_length=50)
    ] = Field(default_factory=list)
    detach: bool = False


class Exec(Arguments):
    """A command, as a list of words, for a running container."""

    container: Container
    command: Annotated[
        list[Annotated[str, Field(max_length=10_000)]], Field(min_length=1, max_length=100)
    ]


class Logs(Arguments):
    """The last `lines` of a container's log."""

    container: Container
    lines: int = Field(200, ge=1, le=10_000)


class ContainerId(Arguments):
    """One container."""

    container: Container


class BuiltImage(Output):
    """The image, and the end of the build's output."""

    tag: str
    image: str
    output: str


class ContainerRun(Output):
    """A container's exit code and output; a running one has no exit code yet."""

    container: str
    exit_code: int | None
    output: str


class Executed(Output):
    """The exit code and output of a command."""

    exit_code: int
    output: str


class Containers(Output):
    """The containers of the workspace."""

    containers: list[dict[str, object]]


class ContainerLogs(Output):
    """The log of a container."""

    output: str
    truncated: bool


class StoppedContainer(Output):
    """The container that was stopped or removed."""

    container: str


_ID = "3f2a9c81d0e4"
_CONTAINER_EXAMPLE: Final = ({"container": _ID}, {"container": _ID})


def _docker(
    name: str,
    summary: str,
    model: type[Arguments],
    output: type[Output],
    example: tuple[Mapping[str, Any], Mapping[str, Any]],
    *,
    reads_only: bool = False,
    paths: tuple[str, ...] = (),
) -> ToolSpec:
    return ToolSpec(
        name=f"docker.{name}",
        summary=summary,
        arguments=model,
        output=output,
        danger=Danger.OUTSIDE,
        caps=Caps(300),
        requirements=Requirements(network_access=True, file_system="read" if paths else "none"),
        tags=("containers", "look" if reads_only else "change"),
        examples=(Example(summary, *example),),
        profiles=("containers",),
        paths=paths,
        cost=Cost.LOW if reads_only else Cost.HIGH,
    )


SPECS: Final = (
    _docker(
        "build",
        "build an image of the workspace's files",
        BuildImage,
        BuiltImage,
        (
            {"tag": "app"},
            {"tag": "app", "image": "sha256:5f0e", "output": "Step 1/2 : FROM scratch\n"},
        ),
        paths=("path", "dockerfile"),
    ),
    _docker(
        "run",
        "run a container",
        RunContainer,
        ContainerRun,
        (
            {"image": "app", "command": ["/app", "--version"]},
            {"container": _ID, "exit_code": 0, "output": "1.0\n"},
        ),
    ),
    _docker(
        "exec",
        "run a command in a container",
        Exec,
        Executed,
        ({"container": _ID, "command": ["ls", "/"]}, {"exit_code": 0, "output": "app\n"}),
    ),
    _docker(
        "ps",
        "list the workspace's containers",
        NoArguments,
        Containers,
        ({}, {"containers": [{"container": _ID, "image": "app", "state": "running"}]}),
        reads_only=True,
    ),
    _docker(
        "logs",
        "read the output of a container",
        Logs,
        ContainerLogs,
        ({"container": _ID}, {"output": "listening\n", "truncated": False}),
        reads_only=True,
    ),
    _docker("stop", "stop a container", ContainerId, StoppedContainer, _CONTAINER_EXAMPLE),
    _docker("rm", "remove a container", ContainerId, StoppedContainer, _CONTAINER_EXAMPLE),
)
