"""What a running server holds outside its memory: processes, mounts, consumers, records, refs,
files. Taken twice and compared.
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

from benchmarks.served import Served

_FOLDERS_THAT_MAY_GROW = {"bus", "audit", "logs", "repos", "graph"}
"""The log and what is projected from it; audit records; logs; objects of delivered branches."""


@dataclass(frozen=True, slots=True)
class Things:
    """`must_stay`: counts that two looks at an idle server must agree on. `may_grow`: counts that
    grow with the work.
    """

    must_stay: Mapping[str, int]
    may_grow: Mapping[str, int]

    def left_since(self, before: Things) -> list[str]:
        """What there is more of and must not be."""
        names = sorted({*self.must_stay, *before.must_stay})
        pairs = (
            (name, before.must_stay.get(name, 0), self.must_stay.get(name, 0)) for name in names
        )
        return [f"{name}: {was} before, {now} after" for name, was, now in pairs if now > was]


async def look(app: Served) -> Things:
    """Count everything."""
    stay: Counter[str] = Counter()
    grow: Counter[str] = Counter()
    for part, process in app.system.processes():
        stay[f"processes of {part}"] += 1
        grow[f"open files of {part}"] += process.num_fds()
    stay["mounts"] = sum(str(app.data_dir) in line for line in _lines("/proc/self/mounts"))
    stay["cgroups"] = _cgroups({process.pid for _, process in app.system.processes()})
    for kind, path in _files(app.data_dir):
        counts = grow if kind in _FOLDERS_THAT_MAY_GROW else stay
        counts[f"files in {kind}"] += 1
        if kind in _FOLDERS_THAT_MAY_GROW:
            grow[f"bytes in {kind}"] += path.lstat().st_size
    for clone in sorted((app.data_dir / "repos").glob("*.git")):
        grow["refs in our clones"] += len(_git(clone, "for-each-ref"))
        stay["work trees of our clones"] += len(_git(clone, "worktree", "list")) - 1
    await _bus(app, stay, grow)
    return Things(dict(stay), dict(grow))


async def _bus(app: Served, stay: Counter[str], grow: Counter[str]) -> None:
    address = json.loads((app.data_dir / "serving.json").read_text(encoding="utf-8"))["bus_url"]
    client = await nats.connect(address)
    try:
        js = client.jetstream()
        for stream in await js.streams_info():
            name = str(stream.config.name)
            stay[f"consumers of {name}"] = stream.state.consumer_count
            if name in {"WORK", "DEAD"}:
                stay[f"records in {name}"] = stream.state.messages
            else:
                grow[f"records in {name}"] = stream.state.messages
                grow[f"bytes in {name}"] = stream.state.bytes
    finally:
        await client.close()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            kind = path.relative_to(folder).parts[0]
            # What pip put there is made once and counts by its folders.
            if kind not in {"environments", "checkouts"}:
                yield (
                    (kind if len(path.relative_to(folder).parts) > 1 else "the data directory"),
                    path,
                )
    for kind in ("environments", "checkouts"):
        for path in (folder / kind).glob("*"):
            yield kind, path


def _cgroups(pids: AbstractSet[int]) -> int:
    """Those that carry the id of a process of the server."""
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
    done = subprocess.run(  # noqa: S603
        ["git", "-C", str(clone), *command],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()
