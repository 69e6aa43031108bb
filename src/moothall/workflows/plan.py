"""Workflow documents: parsed and checked as a whole before any step runs. References in
arguments to the results of earlier steps, such as `${steps.read.output.content}`.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moothall.domain.codec import describe_errors, whole_numbers
from moothall.domain.ids import ID_PATTERN, check_id, digest
from moothall.domain.plan import DependencyOrder
from moothall.domain.tool import Action
from moothall.errors import InvalidRequest
from moothall.tools.schemas import canonical
from moothall.tools.spec import ToolSpec

# References in arguments to the results of earlier steps, such as `${steps.read.output.content}`.
# There is no expression language.
#
# A value that is a single reference keeps its type; within a text, the result is inserted as text,
# or as JSON if it is not text. `$${` is an escaped `${`. Any other `${…}` is left for a shell.


_REFERENCE = re.compile(r"\$(\$)?\{(steps\.[^${}]*)\}")
_REFERENCE_START = re.compile(r"(?<!\$)\$\{steps\.")
PARTS = ("output", "status", "error")
RIGHT = "${steps.<id>.output.<name>}, ${steps.<id>.status} or ${steps.<id>.error}"
_MAX_DEPTH = 32
# For all references together: a short text could refer to a long output many times.
_MAX_INSERTED_CHARS = 4_000_000


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a step: the part of its result, and the keys or list indexes below that."""

    step: str
    part: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(("steps", self.step, self.part, *self.path))


def references(value: Any) -> Iterator[Reference]:
    """Yield all references in JSON data. Raises `InvalidRequest` for an incomplete one."""
    for text in _texts(value, 0):
        matches = [match for match in _REFERENCE.finditer(text) if not match[1]]
        if len(_REFERENCE_START.findall(text)) != len(matches):
            raise InvalidRequest(
                f"{text[:80]!r} contains an unterminated reference; right is {RIGHT}"
            )
        for match in matches:
            yield _read_reference(match[2])


def fill_in(value: Any, look_up: Callable[[Reference], Any]) -> Any:
    """Return JSON data with each reference replaced by what `look_up` returns. Raises
    `InvalidRequest` if that is too long.
    """
    chars_left = _MAX_INSERTED_CHARS

    def counted_look_up(reference: Reference) -> Any:
        nonlocal chars_left
        result = look_up(reference)
        chars_left -= len(_text(result))
        if chars_left < 0:
            raise InvalidRequest(
                f"${{{reference}}}: the inserted results have more than {_MAX_INSERTED_CHARS} "
                "characters in all"
            )
        return result

    return _fill_references(value, counted_look_up)


def _fill_references(value: Any, look_up: Callable[[Reference], Any]) -> Any:
    if isinstance(value, str):
        single_reference = _REFERENCE.fullmatch(value)
        if single_reference and not single_reference[1]:
            return look_up(_read_reference(single_reference[2]))
        return _REFERENCE.sub(
            lambda match: (
                f"${{{match[2]}}}" if match[1] else _text(look_up(_read_reference(match[2])))
            ),
            value,
        )
    if isinstance(value, Mapping):
        return {key: _fill_references(item, look_up) for key, item in value.items()}
    return [_fill_references(item, look_up) for item in value] if isinstance(value, list) else value


def find_in(result: Mapping[str, Any], reference: Reference) -> Any:
    """Return the value that a reference names in a step's result. Raises `InvalidRequest` that
    lists the existing names instead.
    """
    value: Any = result[reference.part]
    for depth, name in enumerate(reference.path):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif (
            isinstance(value, list)
            and name.isdecimal()
            and len(name) < 7  # noqa: PLR2004 - digits
            and int(name) < len(value)
        ):
            value = value[int(name)]
        else:
            location = ".".join(("steps", reference.step, reference.part, *reference.path[:depth]))
            raise InvalidRequest(f"${{{reference}}}: {location} {_shape(value)}")
    return value


def _shape(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"has {', '.join(map(str, list(value)[:20])) or 'nothing'}"
    return (
        f"is a list of {len(value)}"
        if isinstance(value, list)
        else "is neither an object nor a list"
    )


def _read_reference(text: str) -> Reference:
    _, step, *parts = text.split(".")
    if (
        not step
        or not parts
        or parts[0] not in PARTS
        or not all(parts)
        or (parts[0] != "output" and len(parts) > 1)
    ):
        raise InvalidRequest(f"${{{text[:80]}}} is not a reference; right is {RIGHT}")
    return Reference(step, parts[0], tuple(parts[1:]))


def _texts(value: Any, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise InvalidRequest(f"arguments are nested deeper than {_MAX_DEPTH}")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, depth + 1)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# Workflow documents: parsed and checked as a whole before any step runs.


_MAX_WAIT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Step:
    """One tool call of a workflow and the policy for it.

    `needs` are the steps that end before it begins, including those that it refers to. It has
    `attempts` in all, with `pause` seconds between two, and each may take `timeout` seconds (0: the
    limit of the tool). With `accept` any, a failed check and a command with a non-zero exit code
    count as success.
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
class PlanLimits:
    """The limits that a plan is checked against. `refusal` returns why a tool of the catalogue may
    not be used, or an empty string.
    """

    catalogue: Mapping[str, ToolSpec]
    refusal: Callable[[str], str]
    steps: int
    parallelism: int
    attempts: int


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Retry(_StrictModel):
    attempts: int = Field(1, ge=1)
    seconds: float = Field(0.0, ge=0, le=_MAX_WAIT_SECONDS)


class _Call(_StrictModel):
    tool: str = Field(max_length=100)
    arguments: dict[str, Any] = {}


class _Step(_Call):
    id: str = Field(pattern=f"^{ID_PATTERN}$")
    needs: list[str] | None = None
    retry: _Retry = _Retry()
    timeout: float = Field(
        0.0, ge=0, le=_MAX_WAIT_SECONDS
    )  # a deadline outside the calendar would end the server
    on_failure: Literal["stop", "continue", "compensate"] = "stop"
    accept: Literal["success", "any"] = "success"
    compensate: _Call | None = None


class _Workflow(_StrictModel):
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
            f"the workflow is not YAML: {' '.join(str(error).split())[:300]}"
        ) from error
    try:
        document = json.loads(json.dumps(document))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"the workflow is not a plain document: {error}; quote dates and the like"
        ) from error
    if not isinstance(document, dict):
        raise InvalidRequest(
            "the workflow is not an object; it has name and steps, each step an id, a tool and its "
            "arguments"
        )
    return document


def read_plan(document: Mapping[str, Any], limits: PlanLimits) -> Workflow:
    """Return the plan of a document. Raises `InvalidRequest` that names the step and the
    correction.
    """
    workflow = _validate(_Workflow, document, "workflow")
    if len(workflow.steps) > limits.steps:
        raise InvalidRequest(
            f"the workflow has {len(workflow.steps)} steps; at most {limits.steps} are allowed"
        )
    raw_steps = [
        _validate(_Step, step, f"step {_step_label(step, number)}")
        for number, step in enumerate(workflow.steps, 1)
    ]
    seen_ids: set[str] = set()
    for step in raw_steps:
        if step.id in seen_ids:
            raise InvalidRequest(
                f"step {step.id}: there are two steps of this id; each needs one of its own"
            )
        seen_ids.add(step.id)
    tools_by_step = {step.id: step.tool for step in raw_steps}
    steps = {
        step.id: _build_step(step, raw_steps[index - 1].id if index else "", tools_by_step, limits)
        for index, step in enumerate(raw_steps)
    }
    order = _sort_topologically(steps)
    for step in order:
        _check_compensation(step, steps, tools_by_step, limits)
    return Workflow(
        id=check_id(workflow.id, "workflow id")
        if workflow.id is not None
        else f"wf-{secrets.token_hex(8)}",
        name=workflow.name,
        steps=order,
        parallelism=min(workflow.parallelism or limits.parallelism, limits.parallelism),
        digest=document_digest(document),
    )


def document_digest(document: Mapping[str, Any]) -> str:
    """Return a hash of a workflow's document without its id."""
    return digest(json.dumps(whole_numbers({**document, "id": ""}), sort_keys=True, default=str))


def _build_step(
    raw_step: _Step, previous: str, tools_by_step: Mapping[str, str], limits: PlanLimits
) -> Step:
    location = f"step {raw_step.id}"
    if raw_step.retry.attempts > limits.attempts:
        raise InvalidRequest(
            f"{location}: retry.attempts is {raw_step.retry.attempts}; at most {limits.attempts} "
            "are allowed"
        )
    explicit_needs = raw_step.needs or []
    for needed_step in explicit_needs:
        if needed_step not in tools_by_step or needed_step == raw_step.id:
            raise InvalidRequest(
                f"{location}: needs {needed_step!r}, and there is no such other step"
                f"{_suggestion(needed_step, tools_by_step)}"
            )
    referenced_steps = [
        reference.step for reference in _check_call(location, raw_step, tools_by_step, limits)
    ]
    if raw_step.id in referenced_steps:
        raise InvalidRequest(
            f"{location}: its arguments refer to its own result; only compensate may"
        )
    needs = dict.fromkeys((*explicit_needs, *referenced_steps))
    if raw_step.needs is None and not referenced_steps and previous:
        needs = dict.fromkeys((previous,))
    compensation = raw_step.compensate
    return Step(
        id=raw_step.id,
        call=Action(raw_step.tool, raw_step.arguments),
        needs=tuple(needs),
        attempts=raw_step.retry.attempts,
        pause=raw_step.retry.seconds,
        timeout=raw_step.timeout,
        on_failure=raw_step.on_failure,
        accept=raw_step.accept,
        compensate=Action(compensation.tool, compensation.arguments) if compensation else None,
    )


def _check_call(
    location: str, call: _Call, tools_by_step: Mapping[str, str], limits: PlanLimits
) -> Sequence[Reference]:
    """Check that a call's tool exists, that its arguments have the right names, and that its
    references can be resolved. Return the references.
    """
    spec = limits.catalogue.get(call.tool)
    if spec is None:
        raise InvalidRequest(
            f"{location}: there is no tool {call.tool[:60]!r}"
            f"{_suggestion(call.tool, limits.catalogue)}"
        )
    if refusal := limits.refusal(call.tool):
        raise InvalidRequest(f"{location}: {refusal}")
    try:
        call_references = list(references(call.arguments))
    except InvalidRequest as error:
        raise InvalidRequest(f"{location}: {error.message}") from error
    for reference in call_references:
        if reference.step not in tools_by_step:
            raise InvalidRequest(
                f"{location}: ${{{reference}}} names no step"
                f"{_suggestion(reference.step, tools_by_step)}"
            )
        source = limits.catalogue.get(tools_by_step[reference.step])
        if source is not None and reference.path:
            _check_output(location, reference, source)
    _check_arguments(location, spec, call.arguments, exact=not call_references)
    return call_references


def _check_output(location: str, reference: Reference, source: ToolSpec) -> None:
    fields = source.output.model_fields
    if fields and reference.path[0] not in {*fields, "note", "truncated"}:
        raise InvalidRequest(
            f"{location}: ${{{reference}}} names no output of "
            f"{source.name}{_suggestion(reference.path[0], fields)}; it has {', '.join(fields)}"
        )


def _check_arguments(
    location: str, spec: ToolSpec, arguments: Mapping[str, Any], *, exact: bool
) -> None:
    """Raise `InvalidRequest` for wrong arguments. Unless `exact`, only the names are checked: the
    gateway checks the values once references are resolved.
    """
    fields = dict(zip(spec.argument_names, spec.arguments.model_fields.values(), strict=True))
    for name in arguments:
        if name not in fields:
            raise InvalidRequest(
                f"{location}: {spec.name} has no argument {name[:60]!r}"
                f"{_suggestion(name, fields)}; right is {spec.signature}"
            )
    missing = [
        name for name, field in fields.items() if field.is_required() and name not in arguments
    ]
    if missing:
        raise InvalidRequest(
            f"{location}: argument {missing[0]!r} is missing; right is {spec.signature}"
        )
    if not exact:
        return
    try:
        spec.arguments.model_validate(json.loads(canonical(arguments)))
    except ValidationError as error:
        raise InvalidRequest(
            f"{location}: {describe_errors(error)}; right is {spec.signature}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{location}: its arguments are not JSON") from error


def _check_compensation(
    step: Step, steps: Mapping[str, Step], tools_by_step: Mapping[str, str], limits: PlanLimits
) -> None:
    """Raise `InvalidRequest` unless the compensation refers to its own step or to steps that are
    done before it.
    """
    if step.compensate is None:
        return
    location = f"step {step.id}, compensate"
    call = _Call(tool=step.compensate.tool, arguments=dict(step.compensate.arguments))
    done_before = _ancestors(step.id, steps)
    for reference in _check_call(location, call, tools_by_step, limits):
        if reference.step not in done_before:
            raise InvalidRequest(
                f"{location}: ${{{reference}}} may not have finished by then; allowed are "
                f"{', '.join(sorted(done_before))}"
            )


def _ancestors(name: str, steps: Mapping[str, Step]) -> set[str]:
    ancestors, pending = {name}, [name]
    while pending:
        new = set(steps[pending.pop()].needs) - ancestors
        ancestors |= new
        pending += new
    return ancestors


def _sort_topologically(steps: Mapping[str, Step]) -> tuple[Step, ...]:
    order = DependencyOrder({step.id: step.needs for step in steps.values()}, label="step")
    return tuple(steps[name] for name in order)


def _step_label(step: Mapping[str, Any], number: int) -> str:
    name = step.get("id")
    return name[:63] if isinstance(name, str) and name else f"number {number}"


def _suggestion(name: str, candidates: Mapping[str, Any]) -> str:
    matches = get_close_matches(name[:60], candidates, n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _validate(model: type[Any], data: object, location: str) -> Any:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InvalidRequest(
            f"{location}: {describe_errors(error)}; allowed are {', '.join(model.model_fields)}"
        ) from error
