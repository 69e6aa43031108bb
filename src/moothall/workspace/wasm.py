"""An operator's own tools: WebAssembly modules in a folder, each described by a YAML file. They are
compiled once, stored by content, and shown to sandboxes read-only.

`count.wasm` and `count.yaml` are the tool `wasm.count`. It gets its arguments as a JSON object on
standard input and answers on standard output. Of the workspace it sees only the paths in its
arguments of type `path`, read-only.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from moothall.config import WorkspaceSections
from moothall.domain.codec import describe_errors
from moothall.errors import ConfigurationError, WorkspaceFailed
from moothall.processes import start_process
from moothall.repositories.patch_rules import MAX_FILE_BYTES
from moothall.telemetry import metrics
from moothall.tools import schemas
from moothall.tools.schemas import Output
from moothall.tools.spec import Caps, Cost, Danger, Requirements, ToolSpec
from moothall.workspace.limits import MAX_OUTPUT_BYTES

# The catalogue entries: each module has a manifest.


_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "path": str,
}
_MAX_SECONDS = 300.0


class ModuleOutput(Output):
    """The output of a module: `result` if it is JSON, otherwise `text`. `said` is the end of its
    standard error.
    """

    result: Any = None
    text: str = ""
    said: str = ""
    fuel: int


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Argument(_Closed):
    type: Literal["string", "integer", "number", "boolean", "path"]
    description: str = ""
    default: str | int | float | bool | None = None
    minimum: float | None = None
    maximum: float | None = None
    max_length: int = Field(10_000, ge=1, le=schemas.MAX_CONTENT)


class _Manifest(_Closed):
    summary: str = Field(min_length=3, max_length=200)
    arguments: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,39}$")], _Argument] = {}
    version: str = "1.0.0"
    tags: tuple[str, ...] = ()
    seconds: float = Field(30.0, gt=0, le=_MAX_SECONDS)


@dataclass(frozen=True, slots=True)
class WasmTool:
    """The catalogue entry of a tool, and the file of its module."""

    spec: ToolSpec
    file: Path


def read_tools(folder: Path | None) -> tuple[WasmTool, ...]:
    """Return the tools in a folder, by name; none without a folder. Raises `ConfigurationError`
    that names the file.
    """
    if folder is None:
        return ()
    if not folder.is_dir():
        raise ConfigurationError(f"wasm.folder {folder} is not a folder")
    return tuple(_read_tool(file) for file in sorted(folder.glob("*.yaml")))


def _read_tool(file: Path) -> WasmTool:
    module = file.with_suffix(".wasm")
    if not _NAME.fullmatch(file.stem):
        raise ConfigurationError(
            f"{file}: {file.stem[:60]!r} is not a valid tool name: use a-z, 0-9 and _, beginning "
            "with a letter"
        )
    if not module.is_file():
        raise ConfigurationError(
            f"{file} describes a tool, but its module {module.name} is missing from the folder"
        )
    try:
        manifest = _Manifest.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
        model = _arguments(file.stem, manifest)
    except ValidationError as error:
        raise ConfigurationError(f"{file}: {describe_errors(error)}") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    paths = tuple(name for name, argument in manifest.arguments.items() if argument.type == "path")
    spec = ToolSpec(
        name=f"wasm.{file.stem}",
        summary=manifest.summary,
        arguments=model,
        output=ModuleOutput,
        danger=Danger.READ,
        caps=Caps(manifest.seconds),
        requirements=Requirements(file_system="read" if paths else "none"),
        tags=("wasm", *manifest.tags),
        version=manifest.version,
        profiles=("wasm",),
        paths=paths,
        cost=Cost.LOW,
    )
    return WasmTool(spec, module)


def _arguments(name: str, manifest: _Manifest) -> type[schemas.Arguments]:
    """Return the model of a tool's arguments. Raises `ValueError` if a default does not have its
    type.
    """
    fields: dict[str, Any] = {}
    for argument, declared in manifest.arguments.items():
        bounds: dict[str, Any] = {}
        if declared.type in {"string", "path"}:
            bounds = {
                "max_length": schemas.MAX_PATH if declared.type == "path" else declared.max_length
            }
            bounds |= {"min_length": 1} if declared.type == "path" else {}
        elif declared.type != "boolean":
            bounds = {
                key: value
                for key, value in (("ge", declared.minimum), ("le", declared.maximum))
                if value is not None
            }
        kind = _TYPES[declared.type]
        if declared.default is not None and (
            not isinstance(declared.default, kind)
            or isinstance(declared.default, bool) != (kind is bool)
        ):
            raise ValueError(f"the default of {argument} is not of the type {declared.type}")
        default = ... if declared.default is None else declared.default
        fields[argument] = (
            kind,
            Field(default, description=declared.description or None, **bounds),
        )
    model: type[schemas.Arguments] = create_model(
        f"Wasm_{name}", __base__=schemas.Arguments, **fields
    )
    return model


# The compiled modules, and how a sandbox runs them.


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
