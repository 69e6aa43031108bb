"""Workspaces as Jobs of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr

from moothall.config.section import Section

_Said = Annotated[str, Field(min_length=1)]


class JobSettings(Section):
    """How workspaces run where workspace.kind is kubernetes. Memory, processes and files are held
    by `sandbox`, as everywhere.
    """

    namespace: str = Field(
        "moothall-workspaces",
        description="where the Jobs are made; their own and nothing else of ours",
    )
    image: str = Field("", description="what commands run in (Dockerfile.workspace)")
    images: Mapping[_Said, _Said] = Field(
        default_factory=dict,
        description="other images for some repositories: the id or the origin of a repository, or "
        "a pattern of it such as */shop-*, and the image; the first that fits. Never from a "
        "repository's own files",
    )
    link_image: str = Field(
        "", description="what connects them to the bus: the image of the services (Dockerfile)"
    )
    python: str = Field(
        "/usr/bin/python3", description="the Python of the workspace image that runs the executor"
    )
    bus_url: str = Field("", description="the bus as the pods reach it; empty: bus.url")
    link_keys: SecretStr | None = Field(
        None,
        description="links.json of `moothall bus keys`: each link gets credentials for its two "
        "subjects alone; without, the bus's own",
    )
    link_keys_file: Path | None = None
    context: str = Field(
        "",
        description="the context of the kubeconfig; empty: the pod's service account, else the "
        "current one",
    )
    kubeconfig: Path | None = Field(None, description="empty: where kubectl looks")
    runtime_class: str = Field("", description="such as gvisor, where the cluster has it")
    node_selector: Mapping[str, str] = Field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    pull_secrets: tuple[str, ...] = Field((), description="names of secrets of the namespace")
    cpu: str = Field(
        "1",
        pattern=r"^\d+(\.\d+)?m?$",
        description="what a workspace gets at most, such as 2 or 500m; it asks for a tenth of it",
    )
    disk_bytes: int = Field(
        8_000_000_000,
        ge=100_000_000,
        description="ephemeral storage of a workspace, the checkout and its environment included",
    )
    start_seconds: float = Field(
        120.0, gt=0, description="until a workspace answers, the pull of its image included"
    )
    seconds: int = Field(
        7200, ge=60, description="activeDeadlineSeconds: the longest that a workspace lives"
    )
    ttl_seconds: int = Field(
        60,
        ge=0,
        description="ttlSecondsAfterFinished: how long one that ended by itself can be looked at",
    )
    orphan_seconds: float = Field(
        60.0,
        gt=0,
        description="how long a host that makes Jobs may be unheard on the bus before the other "
        "hosts delete its Jobs",
    )

    def image_of(self, repository: str, origin: str) -> str:
        """Return the image of a repository that has one of its own, else ''."""
        fits = (
            image
            for wanted, image in self.images.items()
            if any(fnmatchcase(one, wanted) for one in (repository, origin))
        )
        return next(fits, "")
