"""The settings of `docker.*`."""

from __future__ import annotations

from pydantic import Field

from moothall.config import Section


class DockerSettings(Section):
    """The tools `docker.*`. No host: there are none. Granted to no role unless the table says
    so.
    """

    host: str | None = Field(
        None,
        description="unix:///path of an engine's socket, best one of its own: who builds on it, "
        "trusts it",
    )
    images: tuple[str, ...] = Field(
        (),
        description="images that may be run and built on, as patterns such as python:3.*; they "
        "must be there, nothing is pulled",
    )
    build_runs: bool = Field(
        default=False,
        description="builds may have RUN, which the engine bounds less well than containers",
    )
    network: str = Field(
        "none",
        pattern="^[a-zA-Z0-9][a-zA-Z0-9_.-]*$",
        description="of containers; never host; builds have none",
    )
    user: str = Field(
        "65534:65534",
        pattern=r"^[1-9]\d*:[1-9]\d*$",
        description="uid:gid of containers, whatever their image says",
    )
    seconds: float = Field(120.0, gt=0, description="one call")
    ttl_seconds: float = Field(
        1800.0,
        ge=10,
        description="containers and images are removed after this long, or with their workspace",
    )
    containers: int = Field(4, ge=1, description="of one workspace")
    built: int = Field(4, ge=1, description="images of one workspace")
    memory_bytes: int = Field(
        512_000_000,
        ge=8_000_000,
        description="of one container, without swap; also of a build's steps",
    )
    cpus: float = Field(1.0, gt=0, description="of one container")
    processes: int = Field(128, ge=4, description="of one container")
    scratch_bytes: int = Field(
        64_000_000,
        ge=1_000_000,
        description="of a container's /tmp, in its memory; all else is read-only",
    )
    context_files: int = Field(500, ge=1, description="of a build")
    context_bytes: int = Field(20_000_000, ge=10_000, description="of a build's files, together")
    output_bytes: int = Field(
        30_000, ge=1000, description="what a container, a build or a log says; more is cut"
    )
