"""Count the resources of a running server other than memory: processes, mounts, consumers, records,
refs and files. Two counts are compared to find leaks.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import nats

from benchmarks.server import Server

_CUMULATIVE_FOLDERS = {"bus", "audit", "logs", "repos", "graph"}
"""The event log and its projection, audit records, logs, and the objects of delivered branches."""


@dataclass(frozen=True, slots=True)
class ResourceCounts:
    """The counts at one time.

    fixed: counts that are the same whenever the server is idle.
    cumulative: counts that grow with the number of deliberations.
    """

    fixed: Mapping[str, int]
    cumulative: Mapping[str, int]

    def increases_since(self, before: ResourceCounts) -> list[str]:
        """Return a line for each fixed count that has increased."""
        names = sorted({*self.fixed, *before.fixed})
        pairs = ((name, before.fixed.get(name, 0), self.fixed.get(name, 0)) for name in names)
        return [f"{name}: {old} before, {new} after" for name, old, new in pairs if new > old]


async def count_resources(app: Server) -> ResourceCounts:
    """Count all resources."""
    fixed: Counter[str] = Counter()
    cumulative: Counter[str] = Counter()
    for part, process in app.system.processes():
        fixed[f"processes of {part}"] += 1
        cumulative[f"open files of {part}"] += process.num_fds()
    fixed["mounts"] = sum(str(app.data_dir) in line for line in _lines("/proc/self/mounts"))
    fixed["cgroups"] = _cgroups({process.pid for _, process in app.system.processes()})
    for kind, path in _files(app.data_dir):
        counts = cumulative if kind in _CUMULATIVE_FOLDERS else fixed
        counts[f"files in {kind}"] += 1
        if kind in _CUMULATIVE_FOLDERS:
            cumulative[f"bytes in {kind}"] += path.lstat().st_size
    for clone in sorted((app.data_dir / "repos").glob("*.git")):
        cumulative["refs in clones"] += len(_git(clone, "for-each-ref"))
        fixed["work trees of clones"] += len(_git(clone, "worktree", "list")) - 1
    await _count_bus(app, fixed, cumulative)
    return ResourceCounts(dict(fixed), dict(cumulative))


async def _count_bus(app: Server, fixed: Counter[str], cumulative: Counter[str]) -> None:
    address = json.loads((app.data_dir / "serving.json").read_text(encoding="utf-8"))["bus_url"]
    client = await nats.connect(address)
    try:
        js = client.jetstream()
        for stream in await js.streams_info():
            name = str(stream.config.name)
            fixed[f"consumers of {name}"] = stream.state.consumer_count
            if name in {"WORK", "DEAD"}:
                fixed[f"records in {name}"] = stream.state.messages
            else:
                cumulative[f"records in {name}"] = stream.state.messages
                cumulative[f"bytes in {name}"] = stream.state.bytes
    finally:
        await client.close()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            kind = path.relative_to(folder).parts[0]
            # Their files are written once, so only their folders are counted.
            if kind not in {"environments", "checkouts"}:
                yield (
                    (kind if len(path.relative_to(folder).parts) > 1 else "the data directory"),
                    path,
                )
    for kind in ("environments", "checkouts"):
        for path in (folder / kind).glob("*"):
            yield kind, path


def _cgroups(pids: AbstractSet[int]) -> int:
    """Return the number of control groups whose name contains the id of a server process."""
    root = Path("/sys/fs/cgroup")
    return len(
        {
            path.name
            for pid in pids
            for path in (*root.glob(f"*/moothall-{pid}-*"), *root.glob(f"moothall-{pid}-*"))
        }
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def _git(clone: Path, *command: str) -> list[str]:
    completed = subprocess.run(  # noqa: S603
        ["git", "-C", str(clone), *command],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    )
    return completed.stdout.splitlines()
