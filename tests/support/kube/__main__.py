"""Start a throw-away cluster, show it, stop it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from support.kube import archive, keys, programs
from support.kube.node import API, BRIDGE, FIRST, HOST, SERVICES, Node, nodes, shell, wait
from support.kube.programs import COREDNS, Home, Missing

_BEGAN = time.monotonic()
_CONTROLLERS = ("kube-controller-manager", "kube-scheduler", "kube-proxy")


def report(text: str) -> None:
    """Report progress."""
    sys.stderr.write(f"[cluster {time.monotonic() - _BEGAN:5.0f} s] {text}\n")
    sys.stderr.flush()


def up(home: Home, count: int) -> None:
    """Start a cluster of this many nodes, or the missing parts of one. Raises `Missing`."""
    # Its etcd and images exist only as far as they were written.
    if home.run.exists() and not nodes(home):
        report("the machine went down with its cluster: removing the remains")
        _forget(home)
    programs.install(report)
    programs.build(home, report)
    archive.make(home, report)
    _make_keys(home, count)
    members = [Node(home, number) for number in range(1, count + 1)]
    for node in members:
        node.start()
    _control(members[0])
    report("control plane answers")
    for node in members:
        node.serve()
        node.give_images(report, archive.NEEDED)
    for node in members:
        wait(90, f"{node.name} registers", lambda name=node.name: _ready(home, name))  # type: ignore[misc]  # bound at once
        report(f"{node.name} is ready")
    names = (
        (Path(__file__).parent / "coredns.yaml")
        .read_text(encoding="utf-8")
        .replace("VERSION", COREDNS.removeprefix("v"))
    )
    kubectl(home, "apply", "-f", "-", stdin=names)
    kubectl(home, "-n", "kube-system", "rollout", "status", "deploy/coredns", "--timeout=120s")
    report("DNS answers; the cluster is up")


def _make_keys(home: Home, count: int) -> None:
    keys.authority(home.keys)
    service = (
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    )
    keys.certificate(
        home.keys,
        "apiserver",
        "kube-apiserver",
        alternative_names=(*service, "10.96.0.1", FIRST, "127.0.0.1"),
    )
    keys.certificate(
        home.keys, "apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters"
    )
    keys.certificate(home.keys, "front-proxy", "front-proxy")
    keys.certificate(home.keys, "admin", "admin", "system:masters")
    for name in _CONTROLLERS:
        keys.certificate(home.keys, name, f"system:{name}")
    for number in range(1, count + 1):
        node = Node(home, number)
        keys.certificate(
            home.keys,
            node.name,
            f"system:node:{node.name}",
            "system:nodes",
            (node.name, node.address),
        )
        keys.kubeconfig(home.keys, node.name, API)
    for name in ("admin", *_CONTROLLERS):
        keys.kubeconfig(home.keys, name, API)


def _control(node: Node) -> None:
    """Start etcd, the API server, the controllers and the scheduler on a node."""
    home, folder = node.home, node.home.keys
    etcd: tuple[str, ...] = (
        "--data-dir",
        str(home.run / "etcd"),
        "--listen-client-urls",
        "http://127.0.0.1:2379",
        "--unsafe-no-fsync",
    )
    etcd += (
        "--advertise-client-urls",
        "http://127.0.0.1:2379",
        "--listen-peer-urls",
        "http://127.0.0.1:2380",
        "--log-level",
        "warn",
    )
    node.spawn("etcd", str(home.bin / "etcd"), *etcd)
    issuer = "https://kubernetes.default.svc.cluster.local"
    node.spawn(
        "apiserver",
        str(home.bin / "kube-apiserver"),
        f"--advertise-address={FIRST}",
        "--etcd-servers=http://127.0.0.1:2379",
        f"--service-cluster-ip-range={SERVICES}",
        f"--client-ca-file={folder}/ca.crt",
        f"--tls-cert-file={folder}/apiserver.crt",
        f"--tls-private-key-file={folder}/apiserver.key",
        f"--kubelet-client-certificate={folder}/apiserver-kubelet.crt",
        f"--kubelet-client-key={folder}/apiserver-kubelet.key",
        f"--kubelet-certificate-authority={folder}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-issuer={issuer}",
        f"--service-account-key-file={folder}/sa.key",
        f"--service-account-signing-key-file={folder}/sa.key",
        # API extensions such as the metrics server verify with these that this server calls them.
        f"--proxy-client-cert-file={folder}/front-proxy.crt",
        f"--proxy-client-key-file={folder}/front-proxy.key",
        f"--requestheader-client-ca-file={folder}/ca.crt",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    )
    wait(
        120,
        "the API server answers",
        lambda: kubectl(home, "get", "--raw", "/readyz", check=False).strip() == "ok",
    )
    for name, arguments in (
        (
            "kube-controller-manager",
            (
                "--use-service-account-credentials",
                f"--root-ca-file={folder}/ca.crt",
                f"--service-account-private-key-file={folder}/sa.key",
                f"--cluster-signing-cert-file={folder}/ca.crt",
                f"--cluster-signing-key-file={folder}/ca.key",
                "--allocate-node-cidrs=false",
                "--node-monitor-grace-period=20s",
            ),
        ),
        ("kube-scheduler", ()),
    ):
        config = f"{folder}/{name}.kubeconfig"
        credentials = (
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
        )
        node.spawn(
            name,
            str(home.bin / name),
            *credentials,
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            *arguments,
        )


def kubectl(home: Home, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
    """Run kubectl as the administrator and return its output. Raises `Missing` if it fails and
    `check` is set.
    """
    command = [str(home.bin / "kubectl"), f"--kubeconfig={home.admin}", *arguments]
    completed = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if check and completed.returncode:
        raise Missing(f"kubectl {' '.join(arguments)}: {completed.stderr.strip()[-800:]}")
    return completed.stdout


def _ready(home: Home, name: str) -> bool:
    path = '{.status.conditions[?(@.type=="Ready")].status}'
    return kubectl(home, "get", "node", name, "-o", f"jsonpath={path}", check=False) == "True"


def down(home: Home) -> None:
    """End every node, remove the network and forget the cluster; binaries and images remain."""
    for node in nodes(home):
        node.kill()
    for command in (("ip", "route", "del", SERVICES), ("ip", "link", "del", BRIDGE)):
        shell(*command, check=False)
    time.sleep(1)
    for folder in sorted(
        Path("/sys/fs/cgroup").glob("*/mhk/**/"), key=lambda path: -len(path.parts)
    ):
        with suppress(OSError):
            folder.rmdir()
    _forget(home)
    report("the cluster is down")


def _forget(home: Home) -> None:
    """Delete the files of a cluster: move them away at once and delete them in the background,
    because layers of images have many files.
    """
    for folder in (home.run, home.keys):
        with suppress(FileNotFoundError):
            folder.rename(home.root / f"gone-{os.getpid()}-{folder.name}")
    if removed := sorted(home.root.glob("gone-*")):
        null = subprocess.DEVNULL
        subprocess.Popen(
            ["nice", "rm", "-rf", *map(str, removed)],
            start_new_session=True,
            stdin=null,
            stdout=null,
            stderr=null,
        )


def main() -> None:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(prog="scripts/cluster", description=__doc__)
    parser.add_argument("what", choices=("up", "down", "status", "env", "images", "kill"))
    parser.add_argument("--nodes", type=int, default=1, help="how many nodes (1)")
    parser.add_argument("--node", type=int, default=2, help="which one `kill` ends (2)")
    arguments = parser.parse_args()
    home = Home.of_user()
    try:
        match arguments.what:
            case "up":
                up(home, arguments.nodes)
            case "down":
                down(home)
            case "images":
                with ThreadPoolExecutor() as side_by_side:
                    list(side_by_side.map(lambda node: node.give_images(report), nodes(home)))
            case "kill":
                Node(home, arguments.node).kill()
            case "env":
                sys.stdout.write(
                    f"export KUBECONFIG={home.admin} CLUSTER_ADDRESS={HOST} IMAGES={home.images} "
                    f"PATH={home.bin}:$PATH\n"
                )
            case _:
                if not nodes(home):
                    sys.exit("no cluster runs; scripts/cluster up starts one")
                sys.stdout.write(kubectl(home, "get", "nodes,pods", "-A", "-o", "wide"))
    except Missing as error:
        sys.exit(f"scripts/cluster: {error}; logs are in {home.logs}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    os.umask(0o022)
    main()
