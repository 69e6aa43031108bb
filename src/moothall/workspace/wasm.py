"""The trusted side of WebAssembly tools: modules are compiled once, stored by content, and shown to
sandboxes read-only.
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
from moothall.repositories.patch_rules import MAX_FILE_BYTES
from moothall.telemetry import metrics
from moothall.tools.wasm_tools import WasmTool, read_tools
from moothall.workspace.limits import MAX_OUTPUT_BYTES

_SANDBOX_FOLDER = "/opt/moothall-wasm"
_BOOT = (
    f"import sys; sys.path[:0] = ['/opt/moothall', '{_SANDBOX_FOLDER}/lib']; from "
    "moothall.sandbox_runtime.wasm import main; main()"
)
_COMPILE_SECONDS = 120.0
_FUEL = 10_000_000_000
"""The approximate number of instructions of one run."""
_MEMORY_BYTES = 256_000_000
_TABLE_ELEMENTS = 100_000
_INSTANCES = 4
"""The maximum number of instances, of tables and of memories of one run."""
MAX_MODULE_BYTES = 20_000_000


class ModuleFolder:
    """The compiled modules of the operator's folder."""

    def __init__(self, settings: WorkspaceSections) -> None:
        self._settings = settings
        self._modules: dict[str, str] = {}
        self._tools: dict[str, WasmTool] = {}

    @property
    def binds(self) -> tuple[tuple[Path, str], ...]:
        """The folders that a sandbox sees, and their paths inside."""
        if self._settings.wasm.folder is None:
            return ()
        return (
            (_folder(self._settings.data_dir), f"{_SANDBOX_FOLDER}/modules"),
            (_package(), f"{_SANDBOX_FOLDER}/lib/wasmtime"),
        )

    async def compile_all(self) -> None:
        """Compile modules that are not compiled yet. Raises `ConfigurationError` that names the
        file.
        """
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
        """Return a key from the module, the compiler and its settings."""
        max_bytes = MAX_MODULE_BYTES
        try:
            with file.open("rb") as stream:
                module = stream.read(max_bytes + 1)
        except OSError as error:
            raise ConfigurationError(f"{file}: {error.strerror}") from error
        if len(module) > max_bytes:
            raise ConfigurationError(f"{file} has more than {max_bytes} bytes")
        with Path(find_spec("moothall.sandbox_runtime.wasm").origin or "").open("rb") as host_file:  # type: ignore[union-attr] # it exists
            host_digest = hashlib.sha256(host_file.read()).hexdigest()
        origin = f"{importlib.metadata.version('wasmtime')} {os.uname().machine} {host_digest}"
        return hashlib.sha256(origin.encode() + b"\0" + module).hexdigest()

    def command(self, tool: str, arguments: Mapping[str, Any], seconds: float) -> tuple[str, ...]:
        """Return the command that runs a tool in a sandbox. Raises `WorkspaceFailed` for an unknown
        one.
        """
        if tool not in self._modules:
            raise WorkspaceFailed(
                f"there is no module for {tool}: it was added to the folder after this process "
                "started; restart it"
            )
        spec = self._tools[tool].spec
        options = {
            "module": f"{_SANDBOX_FOLDER}/modules/{self._modules[tool]}",
            "arguments": dict(arguments),
            "paths": [arguments[name] for name in spec.paths],
            "fuel": _FUEL,
            "seconds": min(seconds, spec.timeout_seconds),
            "memory_bytes": _MEMORY_BYTES,
            "table_elements": _TABLE_ELEMENTS,
            "instances": _INSTANCES,
            # JSON may need three bytes for one, and an answer must not be truncated.
            "output_bytes": MAX_OUTPUT_BYTES // 3,
            "file_bytes": MAX_FILE_BYTES,
        }
        return ("python3", "-I", "-S", "-c", _BOOT, "run", json.dumps(options))


def tool_answer(tool: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Convert an executor's answer to such a command into the tool's answer."""
    if answer.get("status") != "success":
        metrics.WASM_LIMITS.add(tool, str(answer.get("status")))
        return {**answer, "output": {}}
    try:
        result = json.loads(str(answer.get("output")).rpartition("\n")[2])
        status, limit = str(result["status"]), str(result.get("limit") or "")
    except (ValueError, KeyError, TypeError, RecursionError):
        return {
            **answer,
            "status": "error",
            "output": {},
            "error": "the module's host gave no answer and was ended",
        }
    if limit:
        metrics.WASM_LIMITS.add(tool, limit if limit in _LIMITS else "other")
    return {
        **answer,
        "status": status,
        "error": str(result.get("error") or ""),
        "output": result.get("output") or {},
    }


_LIMITS = frozenset({"fuel", "epoch", "memory", "table", "instance", "output"})


def _folder(data_dir: Path) -> Path:
    return data_dir / "wasm"


def _package() -> Path:
    spec = find_spec("wasmtime")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "wasm.folder is set, but wasmtime is not installed: pip install 'moothall[tools]'"
        )
    return Path(spec.origin).parent


async def _compile(source: Path, target: Path) -> None:
    """Compile a module in another process, because a module may crash the compiler."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    command = (
        sys.executable,
        "-m",
        "moothall.sandbox_runtime.wasm",
        "compile",
        str(source),
        str(temporary),
    )
    process = await start_process(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_COMPILE_SECONDS):
            _, output = await process.communicate()
    except TimeoutError as error:
        raise ConfigurationError(
            f"{source} was not compiled within {_COMPILE_SECONDS:g} s"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        reason = output.decode(errors="replace").strip().rpartition("\n")[2]
        raise ConfigurationError(f"{source} is not a runnable WebAssembly module: {reason[:300]}")
    temporary.chmod(0o644)
    temporary.rename(target)
