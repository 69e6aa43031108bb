"""The trusted side of WebAssembly tools: compiled once, kept by what they are, shown to sandboxes
read-only.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from moothall.config import WorkspaceSections
from moothall.errors import ConfigurationError, WorkspaceFailed
from moothall.processes import start_process
from moothall.telemetry import metrics
from moothall.tools.wasm_tools import WasmTool, read_tools

_INSIDE = "/opt/moothall-wasm"
_BOOT = (
    f"import sys; sys.path[:0] = ['/opt/moothall', '{_INSIDE}/lib']; from "
    "moothall.sandbox_runtime.wasm import main; main()"
)
_COMPILE_SECONDS = 120.0


class ModuleFolder:
    """The compiled modules of an operator's folder."""

    def __init__(self, settings: WorkspaceSections) -> None:
        self._settings = settings
        self._modules: dict[str, str] = {}
        self._tools: dict[str, WasmTool] = {}

    @property
    def binds(self) -> tuple[tuple[Path, str], ...]:
        """What a sandbox is shown, and where."""
        if self._settings.wasm.folder is None:
            return ()
        return (
            (_folder(self._settings.data_dir), f"{_INSIDE}/modules"),
            (_package(), f"{_INSIDE}/lib/wasmtime"),
        )

    async def fill(self) -> None:
        """Compile what is not compiled yet. Raises `ConfigurationError` that names the file."""
        tools = await asyncio.to_thread(read_tools, self._settings.wasm.folder)
        if not tools:
            return
        _package()
        folder = _folder(self._settings.data_dir)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for tool in tools:
            name = f"{await asyncio.to_thread(self._key, tool.file)}.cwasm"
            if not (folder / name).exists():
                await _compile(tool.file, folder / name)
            self._modules[tool.spec.name] = name
            self._tools[tool.spec.name] = tool

    def _key(self, file: Path) -> str:
        """What a compiled module is made from: the module, the compiler, and how that is set."""
        most = self._settings.wasm.module_bytes
        try:
            with file.open("rb") as opened:
                module = opened.read(most + 1)
        except OSError as error:
            raise ConfigurationError(f"{file}: {error.strerror}") from error
        if len(module) > most:
            raise ConfigurationError(
                f"{file} has more than {most} bytes; wasm.module_bytes says how large a module may "
                "be"
            )
        with Path(find_spec("moothall.sandbox_runtime.wasm").origin or "").open("rb") as ours:  # type: ignore[union-attr] # it is there
            how = hashlib.sha256(ours.read()).hexdigest()
        made_with = f"{importlib.metadata.version('wasmtime')} {os.uname().machine} {how}"
        return hashlib.sha256(made_with.encode() + b"\0" + module).hexdigest()

    def command(self, tool: str, arguments: Mapping[str, Any], seconds: float) -> tuple[str, ...]:
        """Return the command that runs a tool inside. Raises `WorkspaceFailed` for one that is not
        there.
        """
        if tool not in self._modules:
            raise WorkspaceFailed(
                f"there is no module for {tool} here: it came to the folder after this process "
                "began"
            )
        limits = self._settings.wasm
        known = self._tools[tool].spec
        order = {
            "module": f"{_INSIDE}/modules/{self._modules[tool]}",
            "arguments": dict(arguments),
            "paths": [arguments[name] for name in known.paths],
            "fuel": limits.fuel,
            "seconds": min(seconds, known.timeout_seconds),
            "memory_bytes": limits.memory_bytes,
            "table_elements": limits.table_elements,
            "instances": limits.instances,
            "output_bytes": self._settings.sandbox.output_bytes
            // 3,  # JSON may make three of one, and an answer must not be cut
            "file_bytes": self._settings.workspace.max_file_bytes,
        }
        return ("python3", "-I", "-S", "-c", _BOOT, "run", json.dumps(order))


def answer_of(tool: str, ended: dict[str, Any]) -> dict[str, Any]:
    """Return an executor's answer to such a command as the tool's."""
    if ended.get("status") != "success":
        metrics.WASM_LIMITS.add(tool, str(ended.get("status")))
        return {**ended, "output": {}}
    try:
        told = json.loads(str(ended.get("output")).rpartition("\n")[2])
        status, limit = str(told["status"]), str(told.get("limit") or "")
    except (ValueError, KeyError, TypeError, RecursionError):
        return {
            **ended,
            "status": "error",
            "output": {},
            "error": "the module's host gave no answer: it was ended",
        }
    if limit:
        metrics.WASM_LIMITS.add(tool, limit if limit in _LIMITS else "other")
    return {
        **ended,
        "status": status,
        "error": str(told.get("error") or ""),
        "output": told.get("output") or {},
    }


_LIMITS = frozenset({"fuel", "epoch", "memory", "table", "instance", "output"})


def _folder(data_dir: Path) -> Path:
    return data_dir / "wasm"


def _package() -> Path:
    found = find_spec("wasmtime")
    if found is None or found.origin is None:
        raise ConfigurationError(
            "wasm.folder is set, and wasmtime is not installed: pip install 'moothall[wasm]'"
        )
    return Path(found.origin).parent


async def _compile(source: Path, target: Path) -> None:
    """In a process of its own: a compiler that a module brings down takes nothing with it."""
    making = target.with_name(f".{target.name}.{os.getpid()}")
    command = (
        sys.executable,
        "-m",
        "moothall.sandbox_runtime.wasm",
        "compile",
        str(source),
        str(making),
    )
    process = await start_process(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_COMPILE_SECONDS):
            _, said = await process.communicate()
    except TimeoutError as error:
        raise ConfigurationError(
            f"{source} was not compiled within {_COMPILE_SECONDS:g} s"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        why = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise ConfigurationError(f"{source} is no WebAssembly module that can be run: {why[:300]}")
    making.chmod(0o644)
    making.rename(target)
