"""The programs of a cluster: Debian's packages, and binaries that Go builds once into the user's
cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from moothall.config import environment

# Dependencies are pinned in go/*/go.mod and go.sum; etcd 3.6.4 is in hyperkube.
KUBERNETES, COREDNS = ("v1.34.4", "v1.13.1")
_PARTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
)
_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "nft": "nftables",
    "tini": "tini",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "gcc": "gcc",
    "buildah": "buildah",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
_PAUSE = """#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int signal) { _exit(0); }
static void reap(int signal) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap); for (;;) pause(); }
"""  # noqa: E501 - a line of embedded text

Say = Callable[[str], None]


class Missing(Exception):
    """A cluster is unavailable here; the message names what is missing and how to get it."""


@dataclass(frozen=True, slots=True)
class Home:
    """The files of a cluster: binaries and images, which are reused, and the state of the running
    one.
    """

    root: Path

    @classmethod
    def of_user(cls) -> Home:
        """Return the user's home."""
        return cls(Path(platformdirs.user_cache_dir("moothall")) / "cluster")

    @property
    def bin(self) -> Path:
        """Binaries by version."""
        return self.root / "bin"

    @property
    def images(self) -> Path:
        """Archives that each node imports."""
        return self.root / "img"

    @property
    def run(self) -> Path:
        """State of the running cluster."""
        return self.root / "run"

    @property
    def keys(self) -> Path:
        """Certificates and kubeconfigs."""
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        """The output of each process."""
        return self.root / "logs"

    @property
    def admin(self) -> Path:
        """The administrator's kubeconfig."""
        return self.keys / "admin.kubeconfig"


def install(say: Say) -> None:
    """Install the packages that are missing. Raises `Missing`."""
    if os.geteuid() != 0:
        raise Missing(
            "a cluster of namespaces needs root; run it as root, or set KUBECONFIG to use an "
            "existing cluster"
        )
    packages = [package for program, package in _PACKAGES.items() if shutil.which(program) is None]
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise Missing(
            f"a cluster needs {', '.join(packages)}; please install them with this system's "
            "package manager"
        )
    say(f"installing {', '.join(packages)}, which nodes and images require")
    env = {**environment(), "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "libc6-dev", *packages],
    ):
        completed = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if completed.returncode:
            raise Missing(
                f"{' '.join(command)} failed: {(completed.stdout + completed.stderr)[-800:]}"
            )


def build(home: Home, say: Say) -> None:
    """Build what is missing: Kubernetes (about 13 minutes on two cores), CoreDNS (one minute),
    pause. Raises `Missing`.
    """
    home.bin.mkdir(parents=True, exist_ok=True)
    stamp = (
        f"-X k8s.io/component-base/version.gitVersion={KUBERNETES} -X "
        f"k8s.io/client-go/pkg/version.gitVersion={KUBERNETES}"
    )
    build_go(home.bin / f"hyperkube-{KUBERNETES}", "hyperkube", stamp, say)
    build_go(home.bin / f"coredns-{COREDNS}", "coredns", "", say)
    for part in _PARTS:
        link = home.bin / part
        link.unlink(missing_ok=True)
        link.symlink_to(f"hyperkube-{KUBERNETES}")
    if not (home.bin / "pause").exists():
        command = ["gcc", "-Os", "-static", "-s", "-x", "c", "-", "-o", str(home.bin / "pause")]
        subprocess.run(command, input=_PAUSE.encode(), check=True)


def build_go(out: Path, module: str, stamp: str, say: Say, package: str = ".") -> None:
    """Build a package if it is missing, with dependencies pinned in go/MODULE/go.mod. Raises
    `Missing`.
    """
    if out.exists():
        return
    if shutil.which("go") is None:
        raise Missing(
            "a cluster's programs are built by Go, which is not on the PATH; `apt-get install "
            "golang-go`, or go.dev/dl"
        )
    say(f"building {out.name} (once; it is cached in {out.parent})")
    env = {
        **environment(),
        "CGO_ENABLED": "0",
        "GOFLAGS": "-buildvcs=false -mod=readonly",
        "GOTOOLCHAIN": "local",
    }
    draft = out.with_suffix(".draft")
    command = [
        "nice",
        "go",
        "build",
        "-trimpath",
        "-ldflags",
        f"-s -w {stamp}",
        "-o",
        str(draft),
        package,
    ]
    folder = Path(__file__).parent / "go" / module
    completed = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    if completed.returncode:
        raise Missing(
            f"go could not build {module}: {(completed.stdout + completed.stderr)[-1200:]}"
        )
    draft.replace(out)
