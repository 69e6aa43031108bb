"""Checks each protection layer of the sandbox by trying, inside a real sandbox, what it forbids."""

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
from moothall.sandbox.bubblewrap import MEND as MEND_SECCOMP
from moothall.sandbox.bubblewrap import (
    MEND_BUBBLEWRAP,
    Overlay,
    SandboxSpec,
    interpreter,
    interpreter_binds,
    package_bind,
)
from moothall.sandbox.spawn import OPEN_FILES, run_sandbox, sandbox_uid
from moothall.sandbox_runtime.confinement import BOOT
from moothall.telemetry import get_logger, metrics

log = get_logger(__name__)

_FIX_NAMESPACES = (
    "allow unprivileged user namespaces (sysctl user.max_user_namespaces, and on Ubuntu an "
    "AppArmor profile for bwrap)"
)
_FIX_LANDLOCK = (
    "use a kernel from 5.13 on with Landlock among its LSMs (lsm=landlock,… on its command line)"
)
_FIX_OVERLAY = (
    "put the data directory on a file system that can hold an overlay's upper layer (ext4, xfs, "
    "btrfs), kernel 5.11 or newer"
)
_FIX_LIMITS = "use a kernel from 5.14 on, where process limits count per user namespace"

# Each layer, and how to get it if it is missing.
LAYERS: tuple[tuple[str, str], ...] = (
    ("bubblewrap", MEND_BUBBLEWRAP),
    ("processes-hidden", _FIX_NAMESPACES),
    ("identity", _FIX_NAMESPACES),
    ("files", MEND_BUBBLEWRAP),
    ("network", _FIX_NAMESPACES),
    ("overlay", _FIX_OVERLAY),
    ("seccomp", MEND_SECCOMP),
    ("landlock", _FIX_LANDLOCK),
    ("executor", MEND_SECCOMP),
    ("memory", _FIX_LIMITS),
    ("processes", _FIX_LIMITS),
    ("disk", _FIX_LIMITS),
)
_FIXES = dict(LAYERS)
_ESSENTIAL = frozenset({"bubblewrap", "overlay"})  # nothing works without these
_BOOT = BOOT.format(module="moothall.sandbox_runtime.escape_probes")
_SECONDS = 60.0  # it takes half a second, but far more on a machine that starts everything at once
_NO_ANSWER = "no answer within"
_MEMORY_BYTES = 96_000_000
_PROCESSES = 24
_FILE_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class Layer:
    """One protection layer: `detail` is the result of the attempt, `mend` how to add a missing
    layer.
    """

    name: str
    ok: bool
    detail: str
    mend: str = ""


async def probe(
    settings: SandboxSettings, folder: Path | None = None, seconds: float = _SECONDS
) -> tuple[Layer, ...]:
    """Try every layer; takes about half a second. `folder` (default: the system's temporary folder)
    should be on the file system of the data directory, where overlays are tried. `seconds` is how
    long an attempt may take.
    """
    limits = settings.model_copy(
        update={"memory_bytes": _MEMORY_BYTES, "processes": _PROCESSES, "disk_bytes": _FILE_BYTES}
    )
    try:
        results = await _attempt(limits, folder, seconds)
    except SandboxUnavailable as error:
        try:  # find out which layer: try the others without seccomp, which is often missing
            results = await _attempt(
                limits.model_copy(update={"allow_degraded": ("seccomp",)}), folder, seconds
            )
        except SandboxUnavailable:
            fixes = {_NO_ANSWER: "try again once it has less to do", "namespace": _FIX_NAMESPACES}
            mend = next(
                (mend for phrase, mend in fixes.items() if phrase in error.message), MEND_BUBBLEWRAP
            )
            failed_layer = Layer("bubblewrap", ok=False, detail=error.message, mend=mend)
            return (
                failed_layer,
                *(
                    _missing_layer(name, "not tried: the sandbox does not start")
                    for name, _ in LAYERS[1:]
                ),
            )
        results["seccomp"] = (False, error.message)
    details = {
        "memory": f"limited by {cgroups.describe()}",
        "processes": f"limited by {cgroups.describe()}, and by an rlimit of the user namespace",
    }
    return tuple(_read_layer(name, results, details.get(name, "")) for name, _ in LAYERS)


def require(layers: Sequence[Layer], allow_degraded: Sequence[str] = ()) -> None:
    """Raise `SandboxUnavailable` for the first missing layer that the operator did not allow."""
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
    return Layer(name, ok=False, detail=detail, mend=_FIXES[name])


def _read_layer(name: str, results: dict[str, Any], detail: str) -> Layer:
    if name == "bubblewrap":
        return Layer(name, ok=True, detail="starts")
    is_present, detail_text = results.get(name, (False, "the attempt did not finish"))
    return (
        Layer(name, ok=True, detail=f"{detail_text}; {detail}" if detail else detail_text)
        if is_present is True
        else _missing_layer(name, str(detail_text))
    )


async def _attempt(limits: SandboxSettings, folder: Path | None, seconds: float) -> dict[str, Any]:
    """Run the attempts inside a sandbox and return name → [whether it held, what happened]."""
    with tempfile.TemporaryDirectory(
        prefix="moothall-probe-", dir=folder, ignore_cleanup_errors=True
    ) as name:
        root = Path(name)
        overlay = await asyncio.to_thread(_make_folders, root, sandbox_uid())
        local, remote = socket.socketpair()
        callers: list[object] = []

        def note_caller(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            callers.append(writer)
            writer.close()

        listener = await asyncio.start_server(note_caller, "127.0.0.1", 0)
        async with listener:
            with local, remote:
                port = listener.sockets[0].getsockname()[1]
                spec = _probe_spec(limits, root, overlay, port, remote.fileno())
                async with run_sandbox(spec) as sandboxed:
                    remote.close()
                    result = await _read_result(local, seconds)
                    if not result:
                        sandboxed.kill()
                        await sandboxed.process.wait()
                        cause = (
                            f"{_NO_ANSWER} {seconds:g} s; the machine may be too busy"
                            if result is None
                            else "no reason was reported"
                        )
                        raise SandboxUnavailable(
                            f"the sandbox does not start: {sandboxed.log_tail() or cause}"
                        )
        results: dict[str, Any] = json.loads(result)
        if callers:
            results["network"] = [False, "a listener of the host was reached"]
        results["overlay"] = await asyncio.to_thread(_check_overlay, overlay)
        await asyncio.to_thread(_unlock_work_folder, root)
    return results


def _probe_spec(
    limits: SandboxSettings, root: Path, overlay: Overlay, port: int, descriptor: int
) -> SandboxSpec:
    """Return a sandbox that tries to reach the port and the files of the host, and writes the
    results to the descriptor.
    """
    order = {
        "host_file": str(root / "secret"),
        "port": port,
        "landlock": False,  # if it is missing, report it and continue
        "writable": [],
        "open_files": OPEN_FILES,
        "cgroup": cgroups.parents() is not None,
        "memory": _MEMORY_BYTES,
        "processes": _PROCESSES,
        "file": _FILE_BYTES,
    }
    return SandboxSpec(
        name=f"probe-{os.getpid()}-{root.name[-8:]}",
        argv=(
            str(interpreter()),
            "-I",
            "-S",
            "-c",
            _BOOT,
            str(descriptor),
            json.dumps(order),
        ),
        limits=limits,
        ro=(*interpreter_binds(), package_bind()),
        overlay=overlay,
        fds=(descriptor,),
    )


def _make_folders(root: Path, uid: int | None) -> Overlay:
    (root / "secret").write_text("seen", encoding="utf-8")
    for name in ("lower", "upper", "work"):
        (root / name).mkdir()
        if uid is not None:
            os.chown(root / name, uid, uid)
    (root / "lower" / "base").write_text("as it was", encoding="utf-8")
    if uid is not None:
        os.chown(root / "lower" / "base", uid, uid)
    return Overlay((root / "lower",), root / "upper", root / "work")


def _unlock_work_folder(root: Path) -> None:
    """Make the folder in `work` removable: the kernel leaves it without any permissions."""
    for folder in (root / "work").iterdir():
        folder.chmod(0o700)


def _check_overlay(overlay: Overlay) -> tuple[bool, str]:
    changed = overlay.upper / "base"
    if not changed.exists():
        return False, "a change is missing from the upper folder"
    if (overlay.lower[0] / "base").read_text(encoding="utf-8") != "as it was":
        return False, "the shared checkout was changed"
    return True, "a change went to the upper folder, and the checkout below is unchanged"


async def _read_result(endpoint: socket.socket, seconds: float) -> bytes | None:
    """Read until the other side closes or ends a line; None if that takes longer than `seconds`."""
    endpoint.setblocking(False)
    loop, result = asyncio.get_running_loop(), b""
    try:
        async with asyncio.timeout(seconds):
            while data := await loop.sock_recv(endpoint, 1 << 16):
                result += data
                if result.endswith(b"\n"):
                    break
    except TimeoutError:
        return None
    return result


async def check_layers(
    sandbox: SandboxSettings, report_progress: Callable[[str], None] | None = None
) -> tuple[Layer, ...]:
    """Probe every layer of the sandbox and return them; raise `SandboxUnavailable` for one that is
    missing.

    Layers that the operator allows to be missing are logged at every start.
    """
    layers = await probe(sandbox)
    require(layers, sandbox.allow_degraded)
    missing = [layer.name for layer in layers if not layer.ok]
    for layer in layers:
        metrics.SANDBOX_LAYER.set(float(layer.ok), layer.name)
    log.info(
        "the sandbox was probed",
        layers=len(layers),
        missing=missing,
        memory_and_processes=cgroups.describe(),
    )
    if missing:
        log.warning("the sandbox is degraded, as allowed", missing=missing)
    if report_progress is not None:
        report_progress(
            f"sandbox: {len(layers) - len(missing)} of {len(layers)} layers are present"
            + (f"; missing: {', '.join(missing)}" if missing else "")
        )
    return layers
