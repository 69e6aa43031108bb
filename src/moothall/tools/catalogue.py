"""All tools: what each takes, what it may do and how long it may take. The order here is the order in prompts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final

from moothall.domain.tool import Grant
from moothall.tools import arguments as args

SCHEMA_STRING = 8000


class Danger(StrEnum):
    """The worst that a tool can do. `execute` runs code that a model wrote; `outside` acts beyond the workspace."""

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool. `paths` names the arguments that hold paths or globs (a string or a list of them), `writes`
    those of them whose file is changed. `core` tools are offered to models with a small window.
    """

    name: str
    summary: str
    arguments: type[args.Arguments]
    danger: Danger
    timeout_seconds: float
    paths: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    core: bool = False

    @property
    def category(self) -> str:
        """The first part of the name: files, git, tests."""
        return self.name.partition(".")[0]

    @property
    def outside(self) -> bool:
        """Whether the effect leaves the workspace: intent is recorded before, result after."""
        return self.danger is Danger.OUTSIDE

    def schema(self, max_string: int | None = SCHEMA_STRING) -> dict[str, Any]:
        """Return the JSON schema of the arguments: flat, closed, every string and list bounded.

        A string's `maxLength` is at most `max_string`: a model's reply is never longer anyway, and decoders
        compile a smaller grammar. None gives the bounds that the gate enforces. The dict is the caller's own.
        """
        shape: dict[str, Any] = json.loads(_schema(self.arguments))
        if max_string is not None:
            _lower(shape, max_string)
        return shape

    @property
    def signature(self) -> str:
        """As in `files.read(path, start?, lines?)`."""
        fields = self.arguments.model_fields.items()
        return f"{self.name}({', '.join(name + ('' if field.is_required() else '?') for name, field in fields)})"


@cache
def _schema(model: type[args.Arguments]) -> str:
    shape = model.model_json_schema()
    fields = {name: _plain(field) for name, field in shape["properties"].items()} if "properties" in shape else {}
    return json.dumps(
        {"type": "object", "properties": fields, "required": shape.get("required", []), "additionalProperties": False}
    )


def _plain(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what decoders don't use: titles and defaults."""
    return {key: _plain(value) if key == "items" else value for key, value in shape.items() if key not in {"title", "default"}}


def _lower(shape: dict[str, Any], most: int) -> None:
    if "maxLength" in shape:
        shape["maxLength"] = min(shape["maxLength"], most)
    for inner in (*shape.get("properties", {}).values(), *([shape["items"]] if "items" in shape else [])):
        _lower(inner, most)


def _files(name: str, summary: str, model: type[args.Arguments], *, core: bool = True, also: tuple[str, ...] = ()) -> ToolSpec:
    return ToolSpec(f"files.{name}", summary, model, Danger.READ, 20, ("path", *also), core=core)


def _change(name: str, summary: str, model: type[args.Arguments], *, core: bool = True) -> ToolSpec:
    return ToolSpec(f"files.{name}", summary, model, Danger.WRITE, 20, ("path",), ("path",), core=core)


def _git(
    name: str,
    summary: str,
    model: type[args.Arguments],
    danger: Danger = Danger.WRITE,
    *,
    paths: tuple[str, ...] = (),
    core: bool = False,
) -> ToolSpec:
    return ToolSpec(f"git.{name}", summary, model, danger, 300 if danger is Danger.OUTSIDE else 30, paths, core=core)


def _tests(name: str, summary: str, model: type[args.Arguments], *, paths: tuple[str, ...] = (), core: bool = False) -> ToolSpec:
    return ToolSpec(f"tests.{name}", summary, model, Danger.EXECUTE, 300, paths, core=core)


_SPECS = (
    _files("read", "lines of a file", args.FilesRead),
    _change("write", "make a file or replace all of it", args.FilesWrite),
    _change("append", "add to the end of a file", args.FilesWrite),
    _change("edit", "replace the text old, which occurs count times, by new", args.FilesEdit),
    _files("list", "names in a folder", args.FilesList, also=("glob",)),
    _files("search", "lines that match a regular expression", args.FilesSearch, also=("glob",)),
    _change("delete", "remove a file or an empty folder", args.FilesPath, core=False),
    _change("mkdir", "make a folder", args.FilesPath, core=False),
    _files("info", "size and kind of a file", args.FilesPath, core=False),
    _files("diff", "how two files differ", args.FilesDiff, core=False, also=("other",)),
    _git("status", "what changed", args.NoArguments, Danger.READ),
    _git("diff", "your changes so far", args.GitDiff, Danger.READ, core=True),
    _git("log", "the newest commits", args.GitLog, Danger.READ),
    _git("add", "stage files", args.GitAdd, paths=("paths",)),
    _git("commit", "commit what is staged", args.GitCommit),
    _git("branch", "make a branch", args.GitBranch),
    _git("checkout", "go to a branch or commit", args.GitCheckout),
    _git("clone", "fetch another repository", args.GitClone, Danger.OUTSIDE),
    _git("pull", "fetch and merge from the remote", args.NoArguments, Danger.OUTSIDE),
    _git("push", "send a branch to the remote", args.GitPush, Danger.OUTSIDE),
    _tests("pytest", "run Python tests", args.RunPytest, paths=("paths",), core=True),
    _tests("npm", "run npm test", args.NoArguments),
    _tests("go", "run go test", args.NoArguments),
    _tests("cargo", "run cargo test", args.NoArguments),
    _tests("make", "run a make target", args.RunMake),
)

CATALOGUE: Final[Mapping[str, ToolSpec]] = {spec.name: spec for spec in _SPECS}


def granted(grant: Grant, tool: str) -> bool:
    """Whether the grant covers the tool."""
    return any(fnmatchcase(tool, pattern) for pattern in grant.tools)


def offered(grant: Grant, *, core: bool = False) -> tuple[ToolSpec, ...]:
    """Return the tools that a grant covers, in catalogue order; with `core` only the few for a small window."""
    return tuple(spec for spec in _SPECS if granted(grant, spec.name) and (spec.core or not core))


def describe(specs: Iterable[ToolSpec]) -> str:
    """Return one line a tool for a prompt; the same specs give the same bytes."""
    return "\n".join(f"{spec.signature}  {spec.summary}" for spec in specs)
