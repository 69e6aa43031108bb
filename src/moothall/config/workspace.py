"""Settings of workspaces and sandboxes, where tools and code that a model wrote run, and of
workspaces as Kubernetes Jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import BaseModel, Field, SecretStr

from moothall.config.file import Section

# Settings of workspaces as Kubernetes Jobs.


_NonEmptyStr = Annotated[str, Field(min_length=1)]


class JobSettings(Section):
    """Workspaces as Jobs, if workspace.kind is kubernetes. `sandbox` limits memory, processes and
    files as for other workspaces.
    """

    namespace: str = Field(
        "moothall-workspaces",
        description="namespace of the Jobs; it contains nothing else of Moothall",
    )
    image: str = Field("", description="image that commands run in (Dockerfile.workspace)")
    images: Mapping[_NonEmptyStr, _NonEmptyStr] = Field(
        default_factory=dict,
        description="other images for some repositories, by the id or the origin of a repository "
        "or a pattern of it, such as */shop-*; the first match is used. A repository's own files "
        "cannot set it",
    )
    link_image: str = Field(
        "",
        description="image that connects workspaces to the bus: the image of the services "
        "(Dockerfile)",
    )
    python: str = Field(
        "/usr/bin/python3", description="Python in the workspace image that runs the executor"
    )
    bus_url: str = Field("", description="URL of the bus for pods; empty: bus.url")
    link_keys: SecretStr | None = Field(
        None,
        description="links.json of `moothall bus keys`: each link gets credentials for only its "
        "two subjects; empty: the bus's own credentials",
    )
    runtime_class: str = Field("", description="such as gvisor, if the cluster has it")
    node_selector: Mapping[str, str] = Field(
        default_factory=dict, description="labels of the nodes that run workspaces"
    )
    tolerations: tuple[Mapping[str, Any], ...] = Field(
        (), description="tolerations of workspace pods, as in a pod's spec"
    )
    pull_secrets: tuple[str, ...] = Field((), description="names of secrets in the namespace")
    cpu: str = Field(
        "1",
        pattern=r"^\d+(\.\d+)?m?$",
        description="CPU limit of a workspace, such as 2 or 500m; a tenth of it is requested",
    )
    seconds: int = Field(
        7200, ge=60, description="activeDeadlineSeconds: maximum lifetime of a workspace"
    )

    def image_of(self, repository: str, origin: str) -> str:
        """Return the image that `images` sets for a repository, or ''."""
        matches = (
            image
            for pattern, image in self.images.items()
            if fnmatchcase(repository, pattern) or fnmatchcase(origin, pattern)
        )
        return next(matches, "")


# Workspaces and sandboxes: where tools and code that a model wrote run.


class WorkspaceSettings(Section):
    """Workspaces of tools, and the set-up and checks of repositories."""

    kind: Literal["local", "ray", "kubernetes"] = Field(
        "local",
        description="where the workspaces of councils are; local: with their host; ray: on all "
        "nodes of the Ray cluster at ray.address; kubernetes: each is a Job with the settings of "
        "`jobs`",
    )
    setup_network: Literal["on", "allowlist", "off"] = Field(
        "allowlist",
        description="network access of a set-up, always through Moothall's proxy; allowlist: "
        "package indexes (the usual ones, and those in the operator's configuration of pip, uv, "
        "npm, Go and Cargo) and setup_hosts; on: also every public address; off: none",
    )
    setup_hosts: tuple[str, ...] = Field(
        (),
        description="hosts (name or name:port) and networks that set-ups may reach in addition "
        "to package indexes, such as github.com",
    )
    check_seconds: float = Field(
        600.0,
        gt=0,
        description="maximum duration of one run of a check, also on the untouched base, of a "
        "set-up and of a fetch, and maximum timeout_seconds of a command of code.shell, whose "
        "default is 120",
    )
    check_floor_seconds: float = Field(
        60.0,
        gt=0,
        description="minimum time limit of a check, however fast it was on the base; that of a "
        "test case is a sixth (three times as much on the base; for a Go package: six times). "
        "On the base, a command that reports no test cases, such as make, gets four times as "
        "much, because a hanging case cannot be identified",
    )
    warm: int = Field(
        1, ge=0, description="executors that are kept ready for each prepared repository"
    )
    allowed_schemes: tuple[str, ...] = Field(
        ("https", "ssh", "file"),
        description="allowed schemes of repository URLs; file: local paths",
    )
    allowed_roots: tuple[Path, ...] = Field(
        (), description="local repositories that the API may use; the CLI adds its own argument"
    )
    keep_days: float = Field(
        14.0,
        ge=1,
        description="`moothall log prune` removes checkouts and environments that were not used "
        "for this long",
    )
    environments: Path | None = Field(
        None,
        description="a folder with file locks that only hosts mount: hosts without a common disk "
        "share there the environments that were set up for the same lock file; those unused for "
        "keep_days are removed, then the least recently used ones, until 50 GB or 80% of the disk "
        "suffice; empty: each host sets up its own",
    )
    max_repository_bytes: int = Field(
        4_000_000_000,
        ge=1_000_000,
        description="maximum size of a clone or bundle on disk; larger ones are refused. A Job "
        "gets twice as much ephemeral storage",
    )

    @property
    def uses_local_sandbox(self) -> bool:
        """Whether sandboxes of this machine, or of the nodes of the same Ray cluster, run the
        workspaces.
        """
        return self.kind in {"local", "ray"}


SandboxLayer = Literal[
    "processes-hidden",
    "identity",
    "files",
    "network",
    "seccomp",
    "landlock",
    "executor",
    "memory",
    "processes",
    "disk",
]
"""A layer of the sandbox that may be missing. Bubblewrap and overlays are always required."""


class SandboxSettings(Section):
    """Layers and limits for code that a model wrote. A missing layer prevents the start unless
    `allow_degraded` names it.
    """

    allow_degraded: tuple[SandboxLayer, ...] = Field(
        (), description="layers that may be missing, named one by one"
    )
    cores: int = Field(
        0,
        ge=0,
        description="concurrent commands on this machine; further ones wait. 0: the cores of its "
        "cgroup plus one, or fewer if its memory does not suffice for `sandbox.memory_bytes` each",
    )
    cpu_seconds: float = Field(
        120.0, gt=0, description="CPU time of one command; for code.shell: per core"
    )
    wall_seconds: float = Field(
        120.0,
        gt=0,
        description="duration of one command; for code.shell: see workspace.check_seconds",
    )
    memory_bytes: int = Field(
        2_000_000_000, ge=64_000_000, description="maximum memory of one command"
    )
    processes: int = Field(
        256, ge=8, description="maximum number of processes and threads of one command"
    )
    disk_bytes: int = Field(
        1_000_000_000,
        ge=1_000_000,
        description="maximum disk space of the files that a workspace writes",
    )
    toolchains: tuple[Path, ...] = Field(
        (),
        description="folders outside /usr that are visible read-only; their bin folder is added "
        "to PATH",
    )


class RunnerSettings(Section):
    """Blocks of Python that a model wrote, with tools as functions. See docs/tools.md."""

    enabled: bool = Field(
        default=True, description="off: models are told that Python is not available"
    )


class WasmSettings(Section):
    """The operator's tools as WebAssembly modules; see docs/tools.md."""

    folder: Path | None = Field(
        None, description="contains name.wasm and name.yaml of each tool; empty: there are none"
    )


class WorkspaceSections(BaseModel):
    """The settings that the package `workspace` gets."""

    data_dir: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("moothall")),
        description="folder with the log, repositories, environments and keys of this server",
    )
    workspace: WorkspaceSettings = Field(default_factory=WorkspaceSettings)
    jobs: JobSettings = Field(default_factory=JobSettings)
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)
    runner: RunnerSettings = Field(default_factory=RunnerSettings)
    wasm: WasmSettings = Field(default_factory=WasmSettings)

    @property
    def image(self) -> str:
        """The image that commands run in, for kinds of workspaces that have one."""
        return self.jobs.image

    def image_of(self, repository: str, origin: str) -> str:
        """Return the image that commands run in for one repository, or '' for `image`."""
        return self.jobs.image_of(repository, origin)
