"""Settings of workspaces as Kubernetes Jobs."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr

from moothall.config.section import Section

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
    context: str = Field(
        "",
        description="context of the kubeconfig; empty: the pod's service account, else the "
        "current context",
    )
    kubeconfig: Path | None = Field(None, description="empty: kubectl's default")
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
    disk_bytes: int = Field(
        8_000_000_000,
        ge=100_000_000,
        description="ephemeral storage of a workspace, including the checkout and its environment",
    )
    start_seconds: float = Field(
        120.0,
        gt=0,
        description="maximum time until a workspace answers, including the pull of its image",
    )
    seconds: int = Field(
        7200, ge=60, description="activeDeadlineSeconds: maximum lifetime of a workspace"
    )
    ttl_seconds: int = Field(
        60,
        ge=0,
        description="ttlSecondsAfterFinished: how long a finished workspace can be inspected",
    )

    def image_of(self, repository: str, origin: str) -> str:
        """Return the image that `images` sets for a repository, or ''."""
        matches = (
            image
            for pattern, image in self.images.items()
            if fnmatchcase(repository, pattern) or fnmatchcase(origin, pattern)
        )
        return next(matches, "")
