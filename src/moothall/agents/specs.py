"""What a file of `agents/` says of one agent: its objectives and how each is validated, what it
needs, and what it may use.

Sections that are not known here are kept as they are; what is near to a known name is taken for a
misspelling.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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

from moothall.agents.capabilities import check_capability
from moothall.config.parts import Role
from moothall.domain.ids import ID_PATTERN
from moothall.domain.protocol import ProtocolName
from moothall.domain.task import argv_of

Priority = Literal["critical", "high", "medium", "low"]
PRIORITIES: tuple[Priority, ...] = ("critical", "high", "medium", "low")
_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MOST = 2**53  # what every reader of a number takes
_MEASURE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z%]+)\s*", re.IGNORECASE)


class SpecPart(BaseModel):
    """A section. What it does not know is kept in `model_extra`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_misspelt(cls, data: Any) -> Any:
        for key in data if isinstance(data, Mapping) else ():
            near = get_close_matches(str(key), cls.model_fields, n=1, cutoff=0.8)
            if near and key not in cls.model_fields:
                raise ValueError(f"{str(key)[:60]!r} is not known here; did you mean {near[0]}?")
        return data


def _within(units: Mapping[str, float], example: str) -> BeforeValidator:
    def read(value: Any) -> Any:
        measure = value
        if (
            isinstance(value, str)
            and (found := _MEASURE.fullmatch(value))
            and found[2].lower() in units
        ):
            measure = float(found[1]) * units[found[2].lower()]
        if (
            isinstance(measure, int | float)
            and not isinstance(measure, bool)
            and 0 <= measure <= _MOST
        ):
            return measure
        raise ValueError(f"{str(value)[:40]!r} is no such measure; write it as in {example}")

    return BeforeValidator(read)


def _as_list(value: Any) -> Any:
    """A text is a list of one, and nothing is none; a map says each of its values, by name."""
    if isinstance(value, Mapping):
        return tuple(
            f"{name}: {said}"
            for name, one in value.items()
            for said in (one if isinstance(one, list) else [one])
        )
    if isinstance(value, list):
        return tuple(
            "; ".join(f"{name}: {said}" for name, said in one.items())
            if isinstance(one, Mapping)
            else one
            for one in value
        )
    return _several(value)


def _several(value: Any) -> Any:
    """A text is a list of one, and nothing is none. What is no list is left to whoever checks
    it.
    """
    return () if value is None else (value,) if isinstance(value, str) else value


def _file_schema(*types: str) -> WithJsonSchema:
    """What a file may have there, for the published schema: more than what comes of it."""
    return WithJsonSchema({"type": [*types]})


_LIST = _file_schema("array", "string", "object", "null")
Texts = Annotated[tuple[str, ...], BeforeValidator(_as_list), _LIST]
Words = Annotated[str, BeforeValidator(str), _file_schema("string", "number", "boolean")]


def _command(line: str) -> str:
    if line:
        argv_of(line)
    return line


class Metadata(SpecPart):
    """Who it is. `name` is what other agents call it."""

    name: Annotated[
        str, Field(pattern=f"^{ID_PATTERN}$", description="small letters, digits and dashes")
    ]
    version: Words = ""
    workstream: str = ""


class What(SpecPart):
    """What it does, as whom, and how soon among those that are ready."""

    domain: str = ""
    priority: Priority = "medium"
    role: Role = "dev"
    seats: Annotated[int, Field(ge=1, le=100)] = 1
    protocol: ProtocolName | Literal[""] = ""


class Model(SpecPart):
    """`profile` names a model of the settings, or its tier; sampling is that one's. `seed` begins
    all that is drawn.
    """

    profile: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**53)] | None = None


class Objective(SpecPart):
    """What should come of it. `validation` is a command: it decides whether the agent succeeded,
    and nothing else does.
    """

    description: Annotated[str, Field(min_length=1)]
    deliverable: str = ""
    validation: Annotated[str, AfterValidator(_command)] = ""


class Task(SpecPart):
    """A step on the way. `condition`: only where that holds."""

    description: Annotated[str, Field(min_length=1)]
    name: str = ""
    priority: Priority = "medium"
    condition: str = ""
    dependencies: Texts = ()


def _tasks(value: Any) -> Any:
    """A list, or one of each kind."""
    if isinstance(value, Mapping):
        if unknown := sorted(map(str, value.keys() - {"default", "conditional"})):
            raise ValueError(f"tasks has no {unknown[0][:40]!r}; there are default and conditional")
        value = [
            one
            for kind in ("default", "conditional")
            for one in _list(value.get(kind), f"tasks.{kind}")
        ]
    return tuple(
        {"description": one} if isinstance(one, str) else one for one in _list(value, "tasks")
    )


def _list(value: Any, name: str) -> Sequence[Any]:
    found = _several(value)
    if not isinstance(found, list | tuple):
        raise ValueError(f"{name} is no list")  # noqa: TRY004 - what pydantic tells as a wrong place
    return found


class Dependency(SpecPart):
    """Another agent that must have completed first; `optional`: where there is one of that name,
    and however it ends.
    """

    name: str
    why: str = ""
    optional: bool = False


def _dependencies(value: Any) -> tuple[Any, ...]:
    """A map of names to reasons, of `required` and `optional` to such, or a list of names, of maps,
    or of named objects.
    """
    if isinstance(value, Mapping):
        if value and value.keys() <= {"required", "optional"}:
            return tuple(
                {**one, "optional": one.get("optional", kind == "optional")}
                if isinstance(one, Mapping)
                else one
                for kind in value
                for one in _dependencies(value[kind])
            )
        return tuple(_dependency(name, said) for name, said in value.items())
    found: list[Any] = []
    for one in _list(value, "dependencies"):
        found += (
            _dependencies(one)
            if isinstance(one, Mapping) and "name" not in one
            else [_as_object(one)]
        )
    return tuple(found)


def _as_object(one: Any) -> Any:
    return {"name": one} if isinstance(one, str) else one


def _dependency(name: Any, said: Any) -> dict[str, Any]:
    return (
        {"name": name, **said}
        if isinstance(said, Mapping)
        else {"name": name, "why": "" if said is None else str(said)}
    )


class Metric(SpecPart):
    """A figure that is reported."""

    name: str
    target: Words = ""


def _metrics(value: Any) -> tuple[Any, ...]:
    """A map of names to targets, a list of such, or a list of named objects."""
    if isinstance(value, Mapping):
        return tuple(_metric(name, said) for name, said in value.items())
    found: list[Any] = []
    for one in _list(value, "metrics"):
        found += (
            _metrics(one) if isinstance(one, Mapping) and "name" not in one else [_as_object(one)]
        )
    return tuple(found)


def _metric(name: Any, said: Any) -> dict[str, Any]:
    return {"name": name, **said} if isinstance(said, Mapping) else {"name": name, "target": said}


class Reporting(SpecPart):
    """What is reported, how often and where to: kept and shown."""

    frequency: str = ""
    channels: Texts = ()
    metrics: Annotated[tuple[Metric, ...], BeforeValidator(_metrics), _LIST] = ()


_MEASURED = _file_schema("string", "number")


class Limits(SpecPart):
    """`timeout` is what one run may take. Memory and processor bound what its tools run: they
    narrow the settings' limits, and never widen them.
    """

    max_memory: (
        Annotated[float, _within(_UNITS, '"512MB"'), Field(ge=64_000_000), _MEASURED] | None
    ) = None
    max_cpu: Annotated[float, _within({"%": 1}, '"75%"'), Field(gt=0), _MEASURED] | None = None
    timeout: Annotated[float, _within(_SECONDS, '"2h"'), _MEASURED] | None = None


class Security(SpecPart):
    """Its tools are those of its role that `capabilities_required` name, or all where it names
    none.
    """

    sandbox: Literal[True] = True
    capabilities_required: tuple[Annotated[str, AfterValidator(check_capability)], ...] = ()
    resource_limits: Limits = Limits()


class Restart(SpecPart):
    """How often a run that failed is made again, and how long it waits before: doubled each
    time.
    """

    max_restarts: Annotated[int, Field(ge=0, le=20)] = 0
    backoff_seconds: Annotated[float, Field(ge=0, le=3600)] = 5.0


class Spec(SpecPart):
    """One agent."""

    metadata: Metadata
    spec: What = What()
    model: Model = Model()
    capabilities: Texts = ()
    objectives: tuple[Objective, ...]
    tasks: Annotated[tuple[Task, ...], BeforeValidator(_tasks), _LIST] = ()
    dependencies: Annotated[tuple[Dependency, ...], BeforeValidator(_dependencies), _LIST] = ()
    reporting: Reporting = Reporting()
    security: Security = Security()
    restart: Restart = Restart()
    behavioral_directives: Texts = ()
    risks: Texts = ()
    success_criteria: Texts = ()

    @model_validator(mode="after")
    def _can_succeed(self) -> Spec:
        if not self.validations:
            raise ValueError(
                "no objective has a validation: give a command, or nothing could say whether the "
                "agent succeeded"
            )
        return self

    @property
    def name(self) -> str:
        """What other agents call it."""
        return self.metadata.name

    @property
    def validations(self) -> tuple[str, ...]:
        """The commands that decide, in order, each once."""
        return tuple(dict.fromkeys(one.validation for one in self.objectives if one.validation))

    def instructions(self, steps: Sequence[Task]) -> str:
        """Return what its seats are told; `steps` are its tasks in their order."""
        parts = [
            _section(
                "Objectives",
                [
                    _with(one.description, deliverable=one.deliverable, validated_by=one.validation)
                    for one in self.objectives
                ],
            ),
            _section(
                "Steps, in this order",
                [_with(one.description, only_if=one.condition) for one in steps],
            ),
            _section("Skills", self.capabilities),
            _section("Directives", self.behavioral_directives),
            _section("Risks", self.risks),
            _section("Done when", self.success_criteria),
        ]
        return "\n\n".join(part for part in parts if part)


def _section(title: str, lines: Sequence[str]) -> str:
    return f"{title}:\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def _with(text: str, **more: str) -> str:
    said = "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in more.items() if value)
    return f"{text} ({said})" if said else text


def schema() -> dict[str, Any]:
    """Return the JSON schema of a file."""
    made = Spec.model_json_schema()
    return made | {"title": "agents/*.yaml"}
