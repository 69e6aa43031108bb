"""Is each wall there? Asked by trying, inside a real sandbox, what the wall forbids."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moothall.config import SandboxSettings
from moothall.errors import SandboxUnavailable
from moothall.sandbox import cgroups
from moothall.sandbox.bubblewrap import (
    MEND_BUBBLEWRAP,
    Overlay,
    SandboxSpec,
    interpreter,
    interpreter_binds,
    package_bind,
)
from moothall.sandbox.seccomp import MEND as MEND_SECCOMP
from moothall.sandbox.spawn import drop_uid, run_sandbox
from moothall.sandbox_runtime.confinement import BOOT
from moothall.telemetry import get_logger, metrics

log = get_logger(__name__)

_MEND_NAMESPACES = (
    "allow unprivileged user namespaces (sysctl user.max_user_namespaces, and on Ubuntu an "
    "AppArmor profile for bwrap)"
)
_MEND_LANDLOCK = (
    "use a kernel from 5.13 on with Landlock among its LSMs (lsm=landlock,… on its command line)"
)
_MEND_OVERLAY = (
    "put the data directory on a file system that can hold an overlay's upper layer (ext4, xfs, "
    "btrfs), kernel 5.11 or newer"
)
_MEND_LIMITS = "use a kernel from 5.14 on, where process limits count per user namespace"

# Each wall, and how to get it where it is missing.
LAYERS: tuple[tuple[str, str], ...] = (
    ("bubblewrap", MEND_BUBBLEWRAP),
    ("processes-hidden", _MEND_NAMESPACES),
    ("identity", _MEND_NAMESPACES),
    ("files", MEND_BUBBLEWRAP),
    ("network", _MEND_NAMESPACES),
    ("overlay", _MEND_OVERLAY),
    ("seccomp", MEND_SECCOMP),
    ("landlock", _MEND_LANDLOCK),
    ("executor", MEND_SECCOMP),
    ("memory", _MEND_LIMITS),
    ("processes", _MEND_LIMITS),
    ("disk", _MEND_LIMITS),
)
_MENDS = dict(LAYERS)
_ESSENTIAL = frozenset({"bubblewrap", "overlay"})  # there is no way to do without
_BOOT = BOOT.format(module="moothall.sandbox_runtime.escape_probes")
_SECONDS = 60.0  # takes half of one; a machine on which everybody starts at once needs far more
_LATE = "no answer within"
_MEMORY = 96_000_000
_PROCESSES = 24
_FILE = 4_000_000


@dataclass(frozen=True, slots=True)
class Layer:
    """One wall: `detail` says what happened when it was tried, `mend` how to get it where it is
    missing.
    """

    name: str
    ok: bool
    detail: str
    mend: str = ""


async def probe(
    settings: SandboxSettings, folder: Path | None = None, seconds: float = _SECONDS
) -> tuple[Layer, ...]:
    """Try every wall; takes about half a second. `folder` (default: the system's temporary one)
    should lie on
    the file system of the data directory, whose overlays are tried. `seconds`: how long an attempt
    may take.
    """
    tight = settings.model_copy(
        update={"memory_bytes": _MEMORY, "processes": _PROCESSES, "disk_bytes": _FILE}
    )
    try:
        found = await _attempt(tight, folder, seconds)
    except SandboxUnavailable as error:
        try:  # which wall is it? The others are tried without the one that often is missing alone
            found = await _attempt(
                tight.model_copy(update={"allow_degraded": ("seccomp",)}), folder, seconds
            )
        except SandboxUnavailable:
            words = {_LATE: "try again once it has less to do", "namespace": _MEND_NAMESPACES}
            mend = next(
                (mend for word, mend in words.items() if word in error.message), MEND_BUBBLEWRAP
            )
            first = Layer("bubblewrap", ok=False, detail=error.message, mend=mend)
            return (
                first,
                *(
                    _missing_layer(name, "not tried: the sandbox does not start")
                    for name, _ in LAYERS[1:]
                ),
            )
        found["seccomp"] = (False, error.message)
    details = {
        "memory": f"held by {cgroups.way()}",
        "processes": f"held by {cgroups.way()}, and by an rlimit of the user namespace",
    }
    return tuple(_judge(name, found, details.get(name, "")) for name, _ in LAYERS)


def require(layers: Sequence[Layer], allow_degraded: Sequence[str] = ()) -> None:
    """Raise `SandboxUnavailable` for the first missing wall that the operator did not name."""
    for layer in layers:
        if layer.ok or (layer.name in allow_degraded and layer.name not in _ESSENTIAL):
            continue
        mend = f"; {layer.mend}" if layer.mend and layer.mend not in layer.detail else ""
        accept = (
            ""
            if layer.name in _ESSENTIAL
            else f"; or accept the risk with sandbox.allow_degraded = [{layer.name!r}]"
        )
        raise SandboxUnavailable(
            f"sandbox layer {layer.name!r} is missing: {layer.detail}{mend}{accept}"
        )


def _missing_layer(name: str, detail: str) -> Layer:
    return Layer(name, ok=False, detail=detail, mend=_MENDS[name])


def _judge(name: str, found: dict[str, Any], detail: str) -> Layer:
    if name == "bubblewrap":
        return Layer(name, ok=True, detail="starts")
    held, said = found.get(name, (False, "the attempt did not come to its end"))
    return (
        Layer(name, ok=True, detail=f"{said}; {detail}" if detail else said)
        if held is True
        else _missing_layer(name, str(said))
    )


async def _attempt(limits: SandboxSettings, folder: Path | None, seconds: float) -> dict[str, Any]:
    """Run the attempts inside and return name → [held, what happened]."""
    with tempfile.TemporaryDirectory(
        prefix="moothall-probe-", dir=folder, ignore_cleanup_errors=True
    ) as name:
        place = Path(name)
        overlay = await asyncio.to_thread(_folders, place, drop_uid(limits))
        ours, theirs = socket.socketpair()
        callers: list[object] = []

        def note_caller(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            callers.append(writer)
            writer.close()

        listener = await asyncio.start_server(note_caller, "127.0.0.1", 0)
        async with listener:
            with ours, theirs:
                order = {
                    "host_file": str(place / "secret"),
                    "port": listener.sockets[0].getsockname()[1],
                    "landlock": False,  # a missing one is told, not died of
                    "writable": [],
                    "open_files": limits.open_files,
                    "cgroup": cgroups.parents() is not None,
                    "memory": _MEMORY,
                    "processes": _PROCESSES,
                    "file": _FILE,
                }
                spec = SandboxSpec(
                    name=f"probe-{os.getpid()}-{place.name[-8:]}",
                    argv=(
                        str(interpreter()),
                        "-I",
                        "-S",
                        "-c",
                        _BOOT,
                        str(theirs.fileno()),
                        json.dumps(order),
                    ),
                    limits=limits,
                    ro=(*interpreter_binds(), package_bind()),
                    overlay=overlay,
                    fds=(theirs.fileno(),),
                )
                async with run_sandbox(spec) as inside:
                    theirs.close()
                    said = await _read(ours, seconds)
                    if not said:
                        inside.kill()
                        await inside.process.wait()
                        why = (
                            f"{_LATE} {seconds:g} s; the machine may be too busy"
                            if said is None
                            else "no word of why"
                        )
                        raise SandboxUnavailable(
                            f"the sandbox does not start: {inside.log_tail() or why}"
                        )
        found: dict[str, Any] = json.loads(said)
        if callers:
            found["network"] = [False, "a listener of the host was reached"]
        found["overlay"] = await asyncio.to_thread(_overlay_held, overlay)
        await asyncio.to_thread(_open_up, place)
    return found


def _folders(place: Path, uid: int | None) -> Overlay:
    (place / "secret").write_text("seen", encoding="utf-8")
    for name in ("lower", "upper", "work"):
        (place / name).mkdir()
        if uid is not None:
            os.chown(place / name, uid, uid)
    (place / "lower" / "base").write_text("as it was", encoding="utf-8")
    if uid is not None:
        os.chown(place / "lower" / "base", uid, uid)
    return Overlay((place / "lower",), place / "upper", place / "work")


def _open_up(place: Path) -> None:
    """The kernel leaves a folder without any rights in `work`, which an ordinary user can't remove
    otherwise.
    """
    for folder in (place / "work").iterdir():
        folder.chmod(0o700)


def _overlay_held(overlay: Overlay) -> tuple[bool, str]:
    written = overlay.upper / "base"
    if not written.exists():
        return False, "a change did not arrive in the upper folder"
    if (overlay.lower[0] / "base").read_text(encoding="utf-8") != "as it was":
        return False, "the shared checkout was changed"
    return True, "a change went to the upper folder, the checkout below is as it was"


async def _read(end: socket.socket, seconds: float) -> bytes | None:
    """Read until the other side closes; None where that takes more seconds."""
    end.setblocking(False)
    loop, said = asyncio.get_running_loop(), b""
    try:
        async with asyncio.timeout(seconds):
            while data := await loop.sock_recv(end, 1 << 16):
                said += data
                if said.endswith(b"\n"):
                    break
    except TimeoutError:
        return None
    return said


async def check_walls(
    sandbox: SandboxSettings, tell: Callable[[str], None] | None = None
) -> tuple[Layer, ...]:
    """Probe every layer of the sandbox by a forbidden act and return them; raise
    `SandboxUnavailable` for one that is missing.

    Layers that the operator accepts as missing are named in the log at every start.
    """
    layers = await probe(sandbox)
    require(layers, sandbox.allow_degraded)
    missing = [layer.name for layer in layers if not layer.ok]
    for layer in layers:
        metrics.SANDBOX_LAYER.set(float(layer.ok), layer.name)
    log.info(
        "the sandbox is tried",
        layers=len(layers),
        missing=missing,
        memory_and_processes=cgroups.way(),
    )
    if missing:
        log.warning("the sandbox is degraded, as allowed", missing=missing)
    if tell is not None:
        tell(
            f"sandbox: {len(layers) - len(missing)} of {len(layers)} layers hold"
            + (f"; missing: {', '.join(missing)}" if missing else "")
        )
    return layers
