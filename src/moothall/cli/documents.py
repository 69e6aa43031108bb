"""The JSON documents of `--json`. Each object has a version. scripts/schemas.py generates the
schemas in docs/schemas from these types.

Within a version, fields are only added. A removed field, or one with a new meaning, needs a new
version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from moothall.agents.runner import Ended
from moothall.cli.verdict import VerdictDocument
from moothall.domain.codec import dump
from moothall.domain.outcome import Outcome
from moothall.domain.status import Finding, HostState, TaskView
from moothall.ranking.baseline import CheckRow

VERSION: Literal[1] = 1
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class CheckDocument:
    """`moothall check`: `profile` is an equivalent .moothall.toml, `reason` why nothing could be
    judged.
    """

    repository: str
    origin: str
    commit: str
    judgeable: bool
    reason: str
    interpreter: str
    setup: tuple[tuple[str, ...], ...]
    commands: Mapping[str, tuple[str, ...]]
    checks: tuple[CheckRow, ...]
    profile: str
    written: str
    unseen: str
    seconds: float
    version: Literal[1] = VERSION


@dataclass(frozen=True, slots=True)
class TasksDocument:
    """`moothall list`: `served` tells whether a process works on unfinished tasks."""

    served: bool
    tasks: tuple[TaskView, ...]
    version: Literal[1] = VERSION


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """A checkout, environment, starter or clone on disk; `used` in seconds since 1970."""

    kind: str
    path: str
    bytes: int
    used: float


@dataclass(frozen=True, slots=True)
class CleanDocument:
    """`moothall clean`: what was removed (or would be, if nothing was), what stays, and why nothing
    could be removed.
    """

    dry_run: bool
    refused: str
    kept: tuple[KeptEntry, ...] = ()
    removed: tuple[KeptEntry, ...] = ()
    would_remove: tuple[KeptEntry, ...] = ()
    version: Literal[1] = VERSION


@dataclass(frozen=True, slots=True)
class FleetDocument:
    """`moothall fleet`: the hosts that answer; `served` tells whether a process serves."""

    served: bool
    hosts: tuple[HostState, ...]
    version: Literal[1] = VERSION


@dataclass(frozen=True, slots=True)
class WorkflowDocument:
    """`moothall tools run`: `steps` by name, each with its state, attempt, error and result."""

    workflow_id: str
    state: str
    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    error: str = ""
    workspace: str = ""
    version: Literal[1] = VERSION


@dataclass(frozen=True, slots=True)
class AgentsDocument:
    """`moothall agents run`: the run's name, and how each agent ended."""

    run: str
    agents: tuple[Ended, ...]
    version: Literal[1] = VERSION


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """Return the document of `deliberate`, `demo` and `show`."""
    return {"version": VERSION, **dump(outcome)}


def answer_document(outcome: Outcome, applied_paths: tuple[str, ...]) -> dict[str, Any]:
    """Return the document of `ask`: the outcome, and the paths that its diff was applied to."""
    return {**outcome_document(outcome), "applied": list(applied_paths)}


def findings_document(findings: list[Finding]) -> list[dict[str, Any]]:
    """Return the document of `doctor`: a list, because it is older than the versions."""
    return [asdict(finding) for finding in findings]


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each document by the name of its file."""
    return {
        name: {"$schema": _DIALECT, "title": f"moothall {name}", **make()}
        for name, make in _SCHEMAS.items()
    }


def _schema_of(type_: Any, **extra_properties: dict[str, Any]) -> dict[str, Any]:
    from pydantic import TypeAdapter

    schema = TypeAdapter(type_).json_schema(mode="serialization")
    if extra_properties:
        schema["properties"] = {**schema["properties"], **extra_properties}
        schema["required"] = sorted({*schema.get("required", ()), *extra_properties})
    return schema


def _registered_class() -> Any:
    from moothall.repositories.registry import Registered

    return Registered


def _report_class() -> Any:
    from moothall.evaluate.report import Report

    return Report


def _spec_schema() -> dict[str, Any]:
    from moothall.agents.specs import schema

    return schema()


_CONSTANT = {"const": VERSION, "type": "integer"}
_APPLIED = {"type": "array", "items": {"type": "string"}}
_SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "agent": _spec_schema,
    "agents-run": lambda: _schema_of(AgentsDocument),
    "ask": lambda: _schema_of(Outcome, version=_CONSTANT, applied=_APPLIED),
    "check": lambda: _schema_of(CheckDocument),
    "clean": lambda: _schema_of(CleanDocument),
    "deliberate": lambda: _schema_of(Outcome, version=_CONSTANT),
    "doctor": lambda: _schema_of(list[Finding]),
    "evaluate": lambda: _schema_of(_report_class()),
    "fleet": lambda: _schema_of(FleetDocument),
    "judge": lambda: _schema_of(VerdictDocument),
    "list": lambda: _schema_of(TasksDocument),
    "repo-add": lambda: _schema_of(_registered_class(), version=_CONSTANT),
    "repo-list": lambda: _schema_of(list[_registered_class()]),  # type: ignore[misc] # a type that is imported late
    "tools-run": lambda: _schema_of(WorkflowDocument),
}
