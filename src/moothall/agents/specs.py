"""The schema of a file in `agents/`: an agent's objectives and their validations, its needs, and
the tools it may use.

Unknown sections are kept as they are, but a key that is close to a known name is refused as a
misspelling.

A spec may require capabilities, which stand for tools. docs/agents.md has the same table, and a
test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from moothall.config.models import Role
from moothall.domain.council import ProtocolName
from moothall.domain.ids import ID_PATTERN
from moothall.domain.plan import DependencyOrder
from moothall.domain.task import argv_of
from moothall.errors import InvalidRequest
from moothall.tools.catalogue import CATALOGUE, Danger


def _tools_of_category(category: str, danger: Danger) -> tuple[str, ...]:
    return tuple(
        spec.name
        for spec in CATALOGUE.values()
        if spec.category == category and spec.danger is danger
    )


CAPABILITIES: Mapping[str, tuple[str, ...]] = {
    "filesystem-read": _tools_of_category("files", Danger.READ),
    "filesystem-write": _tools_of_category("files", Danger.WRITE),
    "git-read": _tools_of_category("git", Danger.READ),
    "git-write": _tools_of_category("git", Danger.WRITE),
    "test-execution": _tools_of_category("tests", Danger.EXECUTE),
    "python-execution": ("tests.pytest", "code.python"),
    "node-execution": ("tests.npm", "code.node"),
    "go-execution": ("tests.go",),
    "cargo-execution": ("tests.cargo",),
    "make-execution": ("tests.make",),
    "shell-execution": ("code.shell",),
    "system-information": _tools_of_category("system", Danger.READ),
    "network-access": ("web.*", "http.*"),
    "browser-access": ("browser.*",),
    "database-access": ("db.*",),
}
"""Tools by capability. A capability only narrows the tools that the agent's role is granted."""
Priority = Literal["critical", "high", "medium", "low"]
PRIORITIES: tuple[Priority, ...] = ("critical", "high", "medium", "low")
_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_NUMBER = 2**53  # beyond it, JSON readers lose digits
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z%]+)\s*", re.IGNORECASE)


def tools_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the tools (fnmatch patterns) of these capabilities, each once."""
    return tuple(dict.fromkeys(tool for name in names for tool in CAPABILITIES[name]))


def check_capability(name: str) -> str:
    """Return the name of a known capability. Raises `ValueError` with a suggestion for others."""
    if name not in CAPABILITIES:
        matches = get_close_matches(name, CAPABILITIES, n=1)
        raise ValueError(
            f"unknown capability {name[:60]!r}; "
            + (
                f"did you mean {matches[0]}?"
                if matches
                else f"the capabilities are {', '.join(CAPABILITIES)}"
            )
        )
    return name


class SpecPart(BaseModel):
    """A section. Unknown keys are kept in `model_extra`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _reject_misspelt(cls, data: Any) -> Any:
        for key in data if isinstance(data, Mapping) else ():
            matches = get_close_matches(str(key), cls.model_fields, n=1, cutoff=0.8)
            if matches and key not in cls.model_fields:
                raise ValueError(
                    f"{str(key)[:60]!r} is not a known key; did you mean {matches[0]}?"
                )
        return data


def _quantity_validator(units: Mapping[str, float], example: str) -> BeforeValidator:
    def read_quantity(value: Any) -> Any:
        number = value
        if (
            isinstance(value, str)
            and (match := _QUANTITY.fullmatch(value))
            and match[2].lower() in units
        ):
            number = float(match[1]) * units[match[2].lower()]
        if (
            isinstance(number, int | float)
            and not isinstance(number, bool)
            and 0 <= number <= _MAX_NUMBER
        ):
            return number
        raise ValueError(f"{str(value)[:40]!r} is not a valid quantity; write it as in {example}")

    return BeforeValidator(read_quantity)


def _as_list(value: Any) -> Any:
    """Return a value as a tuple: a text is one item, and a map has an item for each value."""
    if isinstance(value, Mapping):
        return tuple(
            f"{name}: {text}"
            for name, item in value.items()
            for text in (item if isinstance(item, list) else [item])
        )
    if isinstance(value, list):
        return tuple(
            "; ".join(f"{name}: {text}" for name, text in item.items())
            if isinstance(item, Mapping)
            else item
            for item in value
        )
    return _as_tuple(value)


def _as_tuple(value: Any) -> Any:
    """Return a text as a tuple of one item and None as an empty tuple. Return any other value
    unchanged; it is validated later.
    """
    return () if value is None else (value,) if isinstance(value, str) else value


def _file_schema(*types: str) -> WithJsonSchema:
    """Return the published schema of a field. Files may have more types than the parsed field."""
    return WithJsonSchema({"type": [*types]})


_LIST_SCHEMA = _file_schema("array", "string", "object", "null")
Texts = Annotated[tuple[str, ...], BeforeValidator(_as_list), _LIST_SCHEMA]
Words = Annotated[str, BeforeValidator(str), _file_schema("string", "number", "boolean")]


def _read_command(line: str) -> str:
    if line:
        argv_of(line)
    return line


class Metadata(SpecPart):
    """Who the agent is. `name` is what other agents call it."""

    name: Annotated[
        str, Field(pattern=f"^{ID_PATTERN}$", description="small letters, digits and dashes")
    ]
    version: Words = ""
    workstream: str = ""


class What(SpecPart):
    """What the agent does, in which role, and its priority among those that are ready."""

    domain: str = ""
    priority: Priority = "medium"
    role: Role = "dev"
    seats: Annotated[int, Field(ge=1, le=100)] = 1
    protocol: ProtocolName | Literal[""] = ""


class Model(SpecPart):
    """The model. `profile` names a model of the settings, or its tier, which also decides the
    sampling. `seed` is the base of all sampling seeds.
    """

    profile: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**53)] | None = None


class Objective(SpecPart):
    """A desired result. `validation` is a command; only these commands decide whether the agent
    succeeded.
    """

    description: Annotated[str, Field(min_length=1)]
    deliverable: str = ""
    validation: Annotated[str, AfterValidator(_read_command)] = ""


class Task(SpecPart):
    """A step towards the objectives. With a `condition`, only if it holds."""

    description: Annotated[str, Field(min_length=1)]
    name: str = ""
    priority: Priority = "medium"
    condition: str = ""
    dependencies: Texts = ()


def _read_tasks(value: Any) -> Any:
    """Return a list of tasks, from a list or from a map of the kinds `default` and
    `conditional`.
    """
    if isinstance(value, Mapping):
        if unknown := sorted(map(str, value.keys() - {"default", "conditional"})):
            raise ValueError(
                f"tasks has no {unknown[0][:40]!r}; allowed are default and conditional"
            )
        value = [
            item
            for kind in ("default", "conditional")
            for item in _require_list(value.get(kind), f"tasks.{kind}")
        ]
    return tuple(
        {"description": item} if isinstance(item, str) else item
        for item in _require_list(value, "tasks")
    )


def _require_list(value: Any, name: str) -> Sequence[Any]:
    items = _as_tuple(value)
    if not isinstance(items, list | tuple):
        raise ValueError(f"{name} is not a list")  # noqa: TRY004 - pydantic reports it as invalid
    return items


class Dependency(SpecPart):
    """Another agent that must have completed first. An `optional` one is waited for if it exists,
    however it ends.
    """

    name: str
    why: str = ""
    optional: bool = False


def _read_dependencies(value: Any) -> tuple[Any, ...]:
    """Return a list of dependencies: from a map of names to reasons, a map of `required` and
    `optional` to such maps, or a list of names, maps or named objects.
    """
    if isinstance(value, Mapping):
        if value and value.keys() <= {"required", "optional"}:
            return tuple(
                {**item, "optional": item.get("optional", kind == "optional")}
                if isinstance(item, Mapping)
                else item
                for kind in value
                for item in _read_dependencies(value[kind])
            )
        return tuple(_read_dependency(name, reason) for name, reason in value.items())
    dependencies: list[Any] = []
    for item in _require_list(value, "dependencies"):
        dependencies += (
            _read_dependencies(item)
            if isinstance(item, Mapping) and "name" not in item
            else [_as_object(item)]
        )
    return tuple(dependencies)


def _as_object(item: Any) -> Any:
    return {"name": item} if isinstance(item, str) else item


def _read_dependency(name: Any, details: Any) -> dict[str, Any]:
    return (
        {"name": name, **details}
        if isinstance(details, Mapping)
        else {"name": name, "why": "" if details is None else str(details)}
    )


class Metric(SpecPart):
    """A figure that is reported."""

    name: str
    target: Words = ""


def _read_metrics(value: Any) -> tuple[Any, ...]:
    """Return a list of metrics: from a map of names to targets, a list of such maps, or a list of
    named objects.
    """
    if isinstance(value, Mapping):
        return tuple(_read_metric(name, target) for name, target in value.items())
    metrics: list[Any] = []
    for item in _require_list(value, "metrics"):
        metrics += (
            _read_metrics(item)
            if isinstance(item, Mapping) and "name" not in item
            else [_as_object(item)]
        )
    return tuple(metrics)


def _read_metric(name: Any, target: Any) -> dict[str, Any]:
    return (
        {"name": name, **target}
        if isinstance(target, Mapping)
        else {"name": name, "target": target}
    )


class Reporting(SpecPart):
    """What is reported, how often and where to. It is kept and shown only."""

    frequency: str = ""
    channels: Texts = ()
    metrics: Annotated[tuple[Metric, ...], BeforeValidator(_read_metrics), _LIST_SCHEMA] = ()


_MEASURED_SCHEMA = _file_schema("string", "number")


class Limits(SpecPart):
    """Limits of a run. `timeout` is the longest time of one run. Memory and CPU limit the tools:
    they narrow the limits of the settings and never widen them.
    """

    max_memory: (
        Annotated[
            float, _quantity_validator(_UNITS, '"512MB"'), Field(ge=64_000_000), _MEASURED_SCHEMA
        ]
        | None
    ) = None
    max_cpu: (
        Annotated[float, _quantity_validator({"%": 1}, '"75%"'), Field(gt=0), _MEASURED_SCHEMA]
        | None
    ) = None
    timeout: Annotated[float, _quantity_validator(_SECONDS, '"2h"'), _MEASURED_SCHEMA] | None = None


class Security(SpecPart):
    """Security. The agent's tools are those of its role that `capabilities_required` names, or all
    of them if it is empty.
    """

    sandbox: Literal[True] = True
    capabilities_required: tuple[Annotated[str, AfterValidator(check_capability)], ...] = ()
    resource_limits: Limits = Limits()


class Restart(SpecPart):
    """How often a failed run is restarted, and the wait before it, doubled each time."""

    max_restarts: Annotated[int, Field(ge=0, le=20)] = 0
    backoff_seconds: Annotated[float, Field(ge=0, le=3600)] = 5.0


class Spec(SpecPart):
    """The specification of one agent."""

    metadata: Metadata
    spec: What = What()
    model: Model = Model()
    capabilities: Texts = ()
    objectives: tuple[Objective, ...]
    tasks: Annotated[tuple[Task, ...], BeforeValidator(_read_tasks), _LIST_SCHEMA] = ()
    dependencies: Annotated[
        tuple[Dependency, ...], BeforeValidator(_read_dependencies), _LIST_SCHEMA
    ] = ()
    reporting: Reporting = Reporting()
    security: Security = Security()
    restart: Restart = Restart()
    behavioral_directives: Texts = ()
    risks: Texts = ()
    success_criteria: Texts = ()

    @model_validator(mode="after")
    def _check_validations(self) -> Spec:
        if not self.validations:
            raise ValueError(
                "no objective has a validation: give a command, or nothing could say whether the "
                "agent succeeded"
            )
        return self

    @property
    def name(self) -> str:
        """The name that other agents use."""
        return self.metadata.name

    @property
    def validations(self) -> tuple[str, ...]:
        """The commands that decide on success, in order, each once."""
        return tuple(
            dict.fromkeys(
                objective.validation for objective in self.objectives if objective.validation
            )
        )

    def instructions(self, steps: Sequence[Task]) -> str:
        """Return the instructions for the agent's seats; `steps` are its tasks in their order."""
        parts = [
            _format_section(
                "Objectives",
                [
                    _with_details(
                        item.description, deliverable=item.deliverable, validated_by=item.validation
                    )
                    for item in self.objectives
                ],
            ),
            _format_section(
                "Steps, in this order",
                [_with_details(step.description, only_if=step.condition) for step in steps],
            ),
            _format_section("Skills", self.capabilities),
            _format_section("Directives", self.behavioral_directives),
            _format_section("Risks", self.risks),
            _format_section("Done when", self.success_criteria),
        ]
        return "\n\n".join(part for part in parts if part)


def _format_section(title: str, lines: Sequence[str]) -> str:
    return f"{title}:\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def _with_details(text: str, **extra: str) -> str:
    details = "; ".join(
        f"{name.replace('_', ' ')}: {value}" for name, value in extra.items() if value
    )
    return f"{text} ({details})" if details else text


def schema() -> dict[str, Any]:
    """Return the JSON schema of a file."""
    schema_document = Spec.model_json_schema()
    return schema_document | {"title": "agents/*.yaml"}


def order_specs(specs: Iterable[Spec]) -> DependencyOrder:
    """Return the order of agents, the more urgent first. Raises as `DependencyOrder` does."""
    by_name = {spec.name: spec for spec in specs}
    needs = {
        name: sorted(
            dependency.name
            for dependency in spec.dependencies
            if not dependency.optional or dependency.name in by_name
        )
        for name, spec in by_name.items()
    }
    ranks = {name: _priority_rank(name, spec.spec.priority) for name, spec in by_name.items()}
    return DependencyOrder(needs, ranks, label="agent")


def order_tasks(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Return an agent's tasks in their order. A task without a name keeps its place among those of
    its priority. Raises as `DependencyOrder` does.
    """
    by_name = {task.name or f"task {number:03}": task for number, task in enumerate(tasks, 1)}
    if len(by_name) < len(tasks):
        raise InvalidRequest("two tasks have the same name")
    order = DependencyOrder(
        {name: sorted(task.dependencies) for name, task in by_name.items()},
        {name: _priority_rank(name, task.priority) for name, task in by_name.items()},
        label="task",
    )
    return tuple(by_name[name] for name in order)


def _priority_rank(name: str, priority: Priority) -> tuple[int, str]:
    return PRIORITIES.index(priority), name
