"""A node: its namespaces, their network, and their processes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from support.kube.programs import Home, Missing, Say

HOST, FIRST = "10.213.0.1", "10.213.0.11"
API = f"https://{FIRST}:6443"
PODS, SERVICES, NAMES = "10.244.0.0/16", "10.96.0.0/16", "10.96.0.10"
BRIDGE = "mhk0"
_POLL_SECONDS = 0.2
_MACHINE_WIDE = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def shell(*command: str, check: bool = True) -> str:
    """Run a command and return its output. Raises `Missing` with its output if it fails and `check`
    is set.
    """
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and completed.returncode:
        raise Missing(
            f"{' '.join(command)}: {(completed.stderr or completed.stdout).strip()[-600:]}"
        )
    return completed.stdout


def wait(seconds: float, description: str, condition: Callable[[], bool]) -> None:
    """Wait for a condition. Raises `Missing` with its name."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise Missing(f"{description}: not within {seconds:.0f} seconds")
        time.sleep(_POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Node:
    """The node with this number, from 1."""

    home: Home
    number: int

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return f"node{self.number}"

    @property
    def address(self) -> str:
        """Its address on the bridge."""
        return f"10.213.0.{10 + self.number}"

    @property
    def pods(self) -> str:
        """The network of its pods."""
        return f"10.244.{self.number}.0/24"

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self.home.run / self.name

    @property
    def socket(self) -> Path:
        """The socket of its containerd."""
        return self.folder / "containerd.sock"

    def anchor(self) -> int | None:
        """Return the process that holds its namespaces, None if it does not run."""
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            process = psutil.Process(int((self.folder / "pid").read_text(encoding="utf-8")))
            if process.name() == "tini":
                return process.pid
        return None

    def command_line(self, *command: str) -> list[str]:
        """Return the command line that runs a command on the node. Raises `Missing` if it does not
        run.
        """
        pid = self.anchor()
        if pid is None:
            raise Missing(f"{self.name} does not run")
        return ["nsenter", "-t", str(pid), "-m", "-n", "-u", "-p", "--", *command]

    def start(self) -> None:
        """Create its namespaces and its network if it does not run."""
        if self.anchor() is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        namespaces = (
            "--mount",
            "--net",
            "--uts",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
        )
        outer = subprocess.Popen(
            ["unshare", *namespaces, "tini", "-s", "--", "sleep", "infinity"],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def inner() -> list[psutil.Process]:
            return [
                process
                for process in psutil.Process(outer.pid).children()
                if process.name() == "tini"
            ]

        wait(10, f"namespaces of {self.name}", lambda: bool(inner()))
        (pid,) = (process.pid for process in inner())
        (self.folder / "pid").write_text(str(pid), encoding="utf-8")
        self._cover()
        self._connect(pid)

    def _cover(self) -> None:
        """Cover the switches that kubelet sets with plain files, because they would change the
        whole machine permanently.
        """
        for switch in _MACHINE_WIDE:
            cover = self.folder / "sys" / switch.replace("/", ".")
            cover.parent.mkdir(exist_ok=True)
            cover.write_text(
                Path("/proc/sys", switch).read_text(encoding="utf-8"), encoding="utf-8"
            )
            shell(*self.command_line("mount", "--bind", str(cover), f"/proc/sys/{switch}"))

    def _connect(self, pid: int) -> None:
        if BRIDGE not in shell("ip", "-o", "link"):
            shell("ip", "link", "add", BRIDGE, "type", "bridge")
            shell("ip", "addr", "add", f"{HOST}/24", "dev", BRIDGE)
            shell("ip", "link", "set", BRIDGE, "up")
        outer_link = f"mhk-n{self.number}"
        shell(
            "ip",
            "link",
            "add",
            outer_link,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(pid),
        )
        shell("ip", "link", "set", outer_link, "master", BRIDGE, "up")
        for line in (
            f"hostname {self.name}",
            "ip link set lo up",
            f"ip addr add {self.address}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {HOST}",
            "mount --make-rshared /",
        ):
            shell(*self.command_line(*line.split()))
        for switch in ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables"):
            shell(*self.command_line("sh", "-c", f"echo 1 >/proc/sys/net/{switch}"))
        shell("ip", "route", "replace", self.pods, "via", self.address)
        shell("ip", "route", "replace", SERVICES, "via", FIRST)
        for peer in nodes(self.home):
            if peer.number != self.number:
                shell(*self.command_line("ip", "route", "replace", peer.pods, "via", peer.address))
                shell(*peer.command_line("ip", "route", "replace", self.pods, "via", self.address))

    def spawn(self, name: str, *command: str) -> None:
        """Start a process on the node that outlives this process, if it does not run; its output
        goes to logs/.
        """
        pid_file = self.folder / f"{name}.pid"
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            if psutil.Process(int(pid_file.read_text(encoding="utf-8"))).name() == "nsenter":
                return
        self.home.logs.mkdir(parents=True, exist_ok=True)
        with (self.home.logs / f"{self.name}-{name}.log").open("wb") as log:
            process = subprocess.Popen(
                self.command_line(*command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        pid_file.write_text(str(process.pid), encoding="utf-8")

    def serve(self) -> None:
        """Start containerd, kubelet and kube-proxy, and import the images."""
        for path, text in self._files().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        _make_cgroups(self.name)
        self.spawn("containerd", "containerd", "-c", str(self.folder / "containerd.toml"))
        answered = [*self.command_line("ctr", "-a", str(self.socket), "version")]
        wait(
            60,
            f"containerd of {self.name}",
            lambda: subprocess.run(answered, capture_output=True, check=False).returncode == 0,
        )
        binaries, keys = self.home.bin, self.home.keys
        kubelet: tuple[str, ...] = (
            f"--config={self.folder}/kubelet.yaml",
            f"--kubeconfig={keys}/{self.name}.kubeconfig",
        )
        kubelet += (
            f"--root-dir={self.folder}/kubelet",
            f"--node-ip={self.address}",
            f"--hostname-override={self.name}",
        )
        self.spawn("kubelet", str(binaries / "kubelet"), *kubelet)
        proxy: tuple[str, ...] = (
            f"--kubeconfig={keys}/kube-proxy.kubeconfig",
            f"--hostname-override={self.name}",
            f"--cluster-cidr={PODS}",
        )
        proxy += ("--proxy-mode=iptables", "--conntrack-max-per-core=0")
        proxy += ("--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
        self.spawn("proxy", str(binaries / "kube-proxy"), *proxy)

    def give_images(self, say: Say, names: Sequence[str] = (), folder: Path | None = None) -> None:
        """Import the missing archives of a folder, by default the home's: those with these names,
        or all but the base image, from which others are built.
        """
        for archive in sorted((folder or self.home.images).glob("*.tar")):
            if archive.stem not in names if names else archive.stem == "base":
                continue
            stamp = f"{archive.stat().st_size}-{archive.stat().st_mtime_ns}"
            stamp_file = self.folder / f"has-{archive.stem}"
            if stamp_file.exists() and stamp_file.read_text(encoding="utf-8") == stamp:
                continue
            say(f"{self.name}: image {archive.stem}")
            shell("ctr", "-a", str(self.socket), "-n", "k8s.io", "images", "import", str(archive))
            stamp_file.write_text(stamp, encoding="utf-8")

    def kill(self) -> None:
        """End the node at once, like a machine that loses power."""
        pid = self.anchor()
        if pid is not None:
            psutil.Process(pid).kill()
        (self.folder / "pid").unlink(missing_ok=True)
        shell("ip", "link", "del", f"mhk-n{self.number}", check=False)

    def _files(self) -> Mapping[Path, str]:
        folder, keys = self.folder, self.home.keys
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": f"{folder}/ipam",
                "ranges": [[{"subnet": self.pods}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "authentication": {
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{keys}/ca.crt"},
                "anonymous": {"enabled": False},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{keys}/{self.name}.crt",
            "tlsPrivateKeyFile": f"{keys}/{self.name}.key",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/mhk/{self.name}",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "clusterDNS": [NAMES],
            "clusterDomain": "cluster.local",
            "resolvConf": f"{folder}/resolv.conf",
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "featureGates": {
                # a machine that is itself a container may not change all settings
                "KubeletInUserNamespace": True,
                "KubeletCrashLoopBackOffMax": True,
            },
            # A test may kill it again; this is not a failure of its own.
            "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
            "podLogsDir": f"{folder}/podlogs",
            "volumePluginDir": f"{folder}/plugins",
            "nodeStatusUpdateFrequency": "5s",
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {
                "memory.available": "200Mi",
                "nodefs.available": "2%",
                "imagefs.available": "2%",
            },
            "kubeReserved": {"cpu": "50m", "memory": "200Mi"},
        }
        return {
            folder / "containerd.toml": _CONTAINERD.format(folder=folder, socket=self.socket),
            folder / "cni/10-bridge.conflist": json.dumps(
                {"cniVersion": "1.0.0", "name": "mhk", "plugins": [bridge, ports]}
            ),
            folder / "resolv.conf": "nameserver 127.0.0.1\n",
            folder / "kubelet.yaml": yaml.safe_dump(kubelet),
        }


def nodes(home: Home) -> list[Node]:
    """Return the running nodes, by number."""
    candidates = (
        Node(home, int(path.parent.name.removeprefix("node")))
        for path in home.run.glob("node*/pid")
    )
    return sorted(
        (node for node in candidates if node.anchor() is not None), key=lambda node: node.number
    )


def _make_cgroups(name: str) -> None:
    """Create the node's control groups, with a weight that keeps a cluster from counting as a
    single process.
    """
    root = Path("/sys/fs/cgroup")
    for controller in (
        [path for path in root.iterdir() if path.is_dir()] if (root / "cpu").exists() else [root]
    ):
        with suppress(OSError):
            (controller / "mhk" / name).mkdir(parents=True, exist_ok=True)
    for group in ("mhk", f"mhk/{name}"):
        for file in ("cpuset.cpus", "cpuset.mems"):
            with suppress(OSError):
                (root / "cpuset" / group / file).write_text(
                    (root / "cpuset" / file).read_text(encoding="utf-8"), encoding="utf-8"
                )
        with suppress(OSError):
            (root / "cpu" / group / "cpu.shares").write_text("8192", encoding="utf-8")


_CONTAINERD = """version = 2
root = "{folder}/containerd"
state = "{folder}/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.local/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  max_container_log_line_size = 262144
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""
