"""What a workflow's document says, checked as a whole before anything of it runs."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moothall.domain.codec import whole_numbers, wrong
from moothall.domain.ids import ID_PATTERN, check_id, digest
from moothall.domain.tool import Action
from moothall.errors import InvalidRequest
from moothall.tools.arguments import canonical
from moothall.tools.spec import ToolSpec
from moothall.workflows.references import Reference, references

_LONGEST_WAIT = 3600.0


@dataclass(frozen=True, slots=True)
class Step:
    """One call, and what becomes of it. `needs` are the steps that end before it begins, those that
    it refers to included.

    `attempts` in all, `pause` seconds between two; `timeout` seconds for each, 0: as long as the
    tool may take. `accept` any: a check that is red, or a command that exits with another code than
    0, is a success too.
    """

    id: str
    call: Action
    needs: tuple[str, ...]
    attempts: int
    pause: float
    timeout: float
    on_failure: Literal["stop", "continue", "compensate"]
    accept: Literal["success", "any"]
    compensate: Action | None


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow whose steps are in an order in which they could run one by one."""

    id: str
    name: str
    steps: tuple[Step, ...]
    parallelism: int
    digest: str

    def step(self, name: str) -> Step:
        """Return a step by its id."""
        return next(step for step in self.steps if step.id == name)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a plan is checked against. `refusal` says why a tool of the catalogue may not be used
    here, or nothing.
    """

    catalogue: Mapping[str, ToolSpec]
    refusal: Callable[[str], str]
    steps: int
    parallelism: int
    attempts: int


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Retry(_Told):
    attempts: int = Field(1, ge=1)
    seconds: float = Field(0.0, ge=0, le=_LONGEST_WAIT)


class _Call(_Told):
    tool: str = Field(max_length=100)
    arguments: dict[str, Any] = {}


class _Step(_Call):
    id: str = Field(pattern=f"^{ID_PATTERN}$")
    needs: list[str] | None = None
    retry: _Retry = _Retry()
    timeout: float = Field(
        0.0, ge=0, le=_LONGEST_WAIT
    )  # what no calendar holds would end the process that serves
    on_failure: Literal["stop", "continue", "compensate"] = "stop"
    accept: Literal["success", "any"] = "success"
    compensate: _Call | None = None


class _Workflow(_Told):
    id: str | None = None
    name: str = Field("", max_length=200)
    parallelism: int | None = Field(None, ge=1)
    steps: list[dict[str, Any]] = Field(min_length=1)


def read_yaml(text: str) -> Mapping[str, Any]:
    """Return the document in a YAML text. Raises `InvalidRequest`."""
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"the workflow is no YAML: {' '.join(str(error).split())[:300]}"
        ) from error
    try:
        document = json.loads(json.dumps(document))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"the workflow is no plain document: {error}; quote dates and the like"
        ) from error
    if not isinstance(document, dict):
        raise InvalidRequest(
            "the workflow is no object; it has name and steps, each step an id, a tool and its "
            "arguments"
        )
    return document


def read_plan(document: Mapping[str, Any], allowed: Allowed) -> Workflow:
    """Return the plan of a document. Raises `InvalidRequest` that names the step and what would be
    right.
    """
    told = _of(_Workflow, document, "workflow")
    if len(told.steps) > allowed.steps:
        raise InvalidRequest(
            f"the workflow has {len(told.steps)} steps; at most {allowed.steps} are allowed"
        )
    read = [
        _of(_Step, step, f"step {_name_of(step, place)}")
        for place, step in enumerate(told.steps, 1)
    ]
    seen: set[str] = set()
    for step in read:
        if step.id in seen:
            raise InvalidRequest(
                f"step {step.id}: there are two steps of this id; each needs one of its own"
            )
        seen.add(step.id)
    known = {step.id: step.tool for step in read}
    steps = {
        step.id: _step(step, read[place - 1].id if place else "", known, allowed)
        for place, step in enumerate(read)
    }
    order = _sort(steps)
    for step in order:
        _check_compensation(step, steps, known, allowed)
    return Workflow(
        id=check_id(told.id, "workflow id")
        if told.id is not None
        else f"wf-{secrets.token_hex(8)}",
        name=told.name,
        steps=order,
        parallelism=min(told.parallelism or allowed.parallelism, allowed.parallelism),
        digest=document_digest(document),
    )


def document_digest(document: Mapping[str, Any]) -> str:
    """Return what tells one workflow from another, whatever its id."""
    return digest(json.dumps(whole_numbers({**document, "id": ""}), sort_keys=True, default=str))


def _step(told: _Step, before: str, known: Mapping[str, str], allowed: Allowed) -> Step:
    where = f"step {told.id}"
    if told.retry.attempts > allowed.attempts:
        raise InvalidRequest(
            f"{where}: retry.attempts is {told.retry.attempts}; at most {allowed.attempts} are "
            "allowed"
        )
    named = told.needs or []
    for other in named:
        if other not in known or other == told.id:
            raise InvalidRequest(
                f"{where}: needs {other!r}, and there is no such other step{_near(other, known)}"
            )
    referred = [reference.step for reference in _check_call(where, told, known, allowed)]
    if told.id in referred:
        raise InvalidRequest(f"{where}: its arguments refer to its own result; only compensate may")
    needs = dict.fromkeys((*named, *referred))
    if told.needs is None and not referred and before:
        needs = dict.fromkeys((before,))
    undo = told.compensate
    return Step(
        id=told.id,
        call=Action(told.tool, told.arguments),
        needs=tuple(needs),
        attempts=told.retry.attempts,
        pause=told.retry.seconds,
        timeout=told.timeout,
        on_failure=told.on_failure,
        accept=told.accept,
        compensate=Action(undo.tool, undo.arguments) if undo else None,
    )


def _check_call(
    where: str, call: _Call, known: Mapping[str, str], allowed: Allowed
) -> Sequence[Reference]:
    """Return the references of a call whose tool there is, whose arguments have the right names,
    and whose references can be.
    """
    spec = allowed.catalogue.get(call.tool)
    if spec is None:
        raise InvalidRequest(
            f"{where}: there is no tool {call.tool[:60]!r}{_near(call.tool, allowed.catalogue)}"
        )
    if refusal := allowed.refusal(call.tool):
        raise InvalidRequest(f"{where}: {refusal}")
    try:
        found = list(references(call.arguments))
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error.message}") from error
    for reference in found:
        if reference.step not in known:
            raise InvalidRequest(
                f"{where}: ${{{reference}}} names no step{_near(reference.step, known)}"
            )
        source = allowed.catalogue.get(known[reference.step])
        if source is not None and reference.path:
            _check_output(where, reference, source)
    _check_arguments(where, spec, call.arguments, exact=not found)
    return found


def _check_output(where: str, reference: Reference, source: ToolSpec) -> None:
    fields = source.output.model_fields
    if fields and reference.path[0] not in {*fields, "note", "truncated"}:
        raise InvalidRequest(
            f"{where}: ${{{reference}}} names no output of "
            f"{source.name}{_near(reference.path[0], fields)}; it has {', '.join(fields)}"
        )


def _check_arguments(
    where: str, spec: ToolSpec, arguments: Mapping[str, Any], *, exact: bool
) -> None:
    """With references in them only the names can be checked; the gate checks the rest once they are
    filled in.
    """
    fields = dict(zip(spec.argument_names, spec.arguments.model_fields.values(), strict=True))
    for name in arguments:
        if name not in fields:
            raise InvalidRequest(
                f"{where}: {spec.name} has no argument {name[:60]!r}{_near(name, fields)}; right "
                f"is {spec.signature}"
            )
    missing = [
        name for name, field in fields.items() if field.is_required() and name not in arguments
    ]
    if missing:
        raise InvalidRequest(
            f"{where}: argument {missing[0]!r} is missing; right is {spec.signature}"
        )
    if not exact:
        return
    try:
        spec.arguments.model_validate(json.loads(canonical(arguments)))
    except ValidationError as error:
        raise InvalidRequest(f"{where}: {wrong(error)}; right is {spec.signature}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where}: its arguments are not JSON") from error


def _check_compensation(
    step: Step, steps: Mapping[str, Step], known: Mapping[str, str], allowed: Allowed
) -> None:
    """It may refer to its own step and to what was done before that."""
    if step.compensate is None:
        return
    where = f"step {step.id}, compensate"
    told = _Call(tool=step.compensate.tool, arguments=dict(step.compensate.arguments))
    before = _ancestors(step.id, steps)
    for reference in _check_call(where, told, known, allowed):
        if reference.step not in before:
            raise InvalidRequest(
                f"{where}: ${{{reference}}} is not sure to be done by then; right are "
                f"{', '.join(sorted(before))}"
            )


def _ancestors(name: str, steps: Mapping[str, Step]) -> set[str]:
    found, open_ = {name}, [name]
    while open_:
        more = set(steps[open_.pop()].needs) - found
        found |= more
        open_ += more
    return found


def _sort(steps: Mapping[str, Step]) -> tuple[Step, ...]:
    try:
        order = list(
            TopologicalSorter({step.id: step.needs for step in steps.values()}).static_order()
        )
    except CycleError as error:
        raise InvalidRequest(
            f"the steps need each other in a circle: {' → '.join(reversed(error.args[1]))}"
        ) from error
    return tuple(steps[name] for name in order)


def _name_of(step: Mapping[str, Any], place: int) -> str:
    name = step.get("id")
    return name[:63] if isinstance(name, str) and name else f"number {place}"


def _near(name: str, known: Mapping[str, Any]) -> str:
    near = get_close_matches(name[:60], known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _of(kind: type[Any], data: object, where: str) -> Any:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise InvalidRequest(
            f"{where}: {wrong(error)}; it may hold {', '.join(kind.model_fields)}"
        ) from error
