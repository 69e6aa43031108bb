"""The JSON documents of `--json`. Each object says its version; docs/schemas has their schemas,
which scripts/schemas.py makes of these types.

A version only grows by fields; a field that is taken away or means something else makes the next
version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from moothall.agents.runner import Ended
from moothall.domain.codec import dump
from moothall.domain.fleet import HostState
from moothall.domain.outcome import Outcome
from moothall.domain.status import Finding, TaskView
from moothall.ranking.baseline import CheckRow

VERSION: Literal[1] = 1
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class CheckDocument:
    """`moothall check`: `profile` is the text of a .moothall.toml that says the same, `reason` why
    nothing could be judged.
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
    """`moothall list`: `served` says whether a process works on those that have not ended."""

    served: bool
    tasks: tuple[TaskView, ...]
    version: Literal[1] = VERSION


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """One thing on disk: a checkout, environment, starter or clone; `used` in seconds since
    1970.
    """

    kind: str
    path: str
    bytes: int
    used: float


@dataclass(frozen=True, slots=True)
class CleanDocument:
    """`moothall clean`: what went (or would, where nothing was removed), what stays, and why
    nothing could be removed.
    """

    dry_run: bool
    refused: str
    kept: tuple[KeptEntry, ...] = ()
    removed: tuple[KeptEntry, ...] = ()
    would_remove: tuple[KeptEntry, ...] = ()
    version: Literal[1] = VERSION


@dataclass(frozen=True, slots=True)
class FleetDocument:
    """`moothall fleet`: the hosts that answer; `served` says whether a process serves."""

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
    """What `agents run` prints: the run's name, and how each agent ended."""

    run: str
    agents: tuple[Ended, ...]
    version: Literal[1] = VERSION


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """Return what `deliberate`, `demo` and `show` print."""
    return {"version": VERSION, **dump(outcome)}


def answer_document(outcome: Outcome, applied: tuple[str, ...]) -> dict[str, Any]:
    """Return what `ask` prints: the outcome, and the paths that its diff was applied to."""
    return {**outcome_document(outcome), "applied": list(applied)}


def findings_document(findings: list[Finding]) -> list[dict[str, Any]]:
    """Return what `doctor` prints: a list, older than versions."""
    return [asdict(finding) for finding in findings]


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each document by the name of its file."""
    return {
        name: {"$schema": _DIALECT, "title": f"moothall {name}", **make()}
        for name, make in _SCHEMAS.items()
    }


def _of(kind: Any, **more: dict[str, Any]) -> dict[str, Any]:
    from pydantic import TypeAdapter

    made = TypeAdapter(kind).json_schema(mode="serialization")
    if more:
        made["properties"] = {**made["properties"], **more}
        made["required"] = sorted({*made.get("required", ()), *more})
    return made


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
    "agents-run": lambda: _of(AgentsDocument),
    "ask": lambda: _of(Outcome, version=_CONSTANT, applied=_APPLIED),
    "check": lambda: _of(CheckDocument),
    "clean": lambda: _of(CleanDocument),
    "deliberate": lambda: _of(Outcome, version=_CONSTANT),
    "doctor": lambda: _of(list[Finding]),
    "evaluate": lambda: _of(_report_class()),
    "fleet": lambda: _of(FleetDocument),
    "list": lambda: _of(TasksDocument),
    "repo-add": lambda: _of(_registered_class(), version=_CONSTANT),
    "repo-list": lambda: _of(list[_registered_class()]),  # type: ignore[misc] # a type that is imported late
    "tools-run": lambda: _of(WorkflowDocument),
}
