"""An operator's own tools: WebAssembly modules in a folder, each described by a YAML file.

`count.wasm` and `count.yaml` are the tool `wasm.count`. It gets its arguments as a JSON object on
standard input and answers on standard output. Of the workspace it sees only the paths in its
arguments of type `path`, read-only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from moothall.domain.codec import wrong
from moothall.errors import ConfigurationError
from moothall.tools import schemas
from moothall.tools.schemas import Output
from moothall.tools.spec import Caps, Cost, Danger, Requirements, ToolSpec

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
    return tuple(_read(file) for file in sorted(folder.glob("*.yaml")))


def _read(file: Path) -> WasmTool:
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
        raise ConfigurationError(f"{file}: {wrong(error)}") from error
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
