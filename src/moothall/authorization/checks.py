"""What a call must pass before it runs, one function a step. Each raises `Stopped` with what was
wrong and what
would be right. The gate calls them in order.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from moothall.authorization.call_context import CallContext, Stopped
from moothall.authorization.paths import covers, refuse_path, relative_path
from moothall.authorization.tokens import Tokens, request_digest
from moothall.concurrency import seconds_until
from moothall.domain.ids import ROLES, check_id, check_key
from moothall.domain.tool import Grant, ToolCall, ToolStatus
from moothall.errors import InvalidRequest, Refused, wrong_fields
from moothall.tools.arguments import canonical
from moothall.tools.catalogue import CATALOGUE, ToolSpec, is_granted, list_tools

_MAX_REQUEST_ID = 200
_CHOICES = 20  # that are named where another was given


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call whose tool is known and whose arguments are right, defaults filled in."""

    spec: ToolSpec
    arguments: Mapping[str, Any]

    def values(self, names: tuple[str, ...]) -> Iterator[str]:
        """Yield the strings in these arguments, those of lists one by one."""
        for name in names:
            value = self.arguments[name]
            yield from value if isinstance(value, list) else (value,)


def check_schema(
    call: ToolCall,
    grant: Grant,
    argument_bytes: int,
    *,
    catalogue: Mapping[str, ToolSpec] = CATALOGUE,
    off: Collection[str] = (),
) -> CheckedCall:
    """The tool exists and its arguments fit its schema. To a tenant there is no tool that is `off`
    for it.

    The grant only decides which names are suggested. Absolute paths below the workspace's root
    become relative here, before any step looks at them.
    """
    spec = catalogue.get(call.tool)
    if spec is None or spec.name in off:
        raise Stopped(
            ToolStatus.INVALID,
            _unknown_tool(str(call.tool), list_tools(grant, without=off, catalogue=catalogue)),
        )
    try:
        raw = canonical(call.arguments)
        plain = json.loads(raw)  # what is checked and run is what the digest is of
    except (ValueError, RecursionError) as error:
        raise Stopped(
            ToolStatus.INVALID,
            f"the arguments of {spec.name} are not JSON; right is {_right(spec)}",
        ) from error
    if len(raw) > argument_bytes:
        raise Stopped(
            ToolStatus.INVALID,
            f"the arguments of {spec.name} have {len(raw)} bytes; at most {argument_bytes} may be "
            "sent",
        )
    try:
        arguments = spec.arguments.model_validate(plain).model_dump()
    except ValidationError as error:
        raise Stopped(ToolStatus.INVALID, _wrong_arguments(spec, error)) from error
    for name in spec.paths:
        value = arguments[name]
        arguments[name] = (
            [relative_path(path) for path in value]
            if isinstance(value, list)
            else relative_path(value)
        )
    return CheckedCall(spec, arguments)


def check_identity(seat: CallContext, call: ToolCall) -> None:
    """The seat is one tenant's, in its own workspace, and the request can be told from others."""
    if seat.principal.tenant != seat.tenant:
        raise Stopped(
            ToolStatus.BLOCKED,
            "this seat belongs to another tenant than its principal",
            escape=True,
        )
    if seat.workspace.id != seat.workspace_id:
        raise Stopped(
            ToolStatus.BLOCKED,
            f"workspace {seat.workspace.id!r} is not this seat's, which is {seat.workspace_id!r}",
        )
    if seat.role not in ROLES:
        raise Stopped(ToolStatus.BLOCKED, f"unknown role {seat.role[:40]!r}")
    try:
        check_id(seat.tenant, "tenant")
        check_key(seat.task_id, "task_id")
        check_id(seat.seat, "seat")
    except InvalidRequest as error:
        raise Stopped(ToolStatus.BLOCKED, error.message) from error
    if not 0 < len(call.request_id) <= _MAX_REQUEST_ID:
        raise Stopped(ToolStatus.INVALID, f"a request_id has 1 to {_MAX_REQUEST_ID} characters")


def check_grants(
    grant: Grant,
    checked: CheckedCall,
    *,
    catalogue: Mapping[str, ToolSpec] = CATALOGUE,
    off: Collection[str] = (),
) -> None:
    """The grant covers the tool, and no path leaves the workspace or is written though it is
    protected.
    """
    spec = checked.spec
    if not is_granted(grant, spec.name):
        names = (
            ", ".join(other.name for other in list_tools(grant, without=off, catalogue=catalogue))
            or "none"
        )
        raise Stopped(
            ToolStatus.BLOCKED, f"{spec.name} is not granted to this seat; granted are {names}"
        )
    for path in checked.values(spec.paths):
        if reason := refuse_path(path):
            raise Stopped(ToolStatus.BLOCKED, reason, escape=True)
    for path in checked.values(spec.writes):
        for pattern in grant.protected:
            if covers(pattern, path):
                raise Stopped(
                    ToolStatus.BLOCKED,
                    f"{path[:80]!r} may not be changed by this role (protected: {pattern})",
                )


def check_set(checked: CheckedCall, unset: Mapping[str, str]) -> None:
    """What the tool needs is configured; `unset` says of those that lack a setting which it is."""
    if reason := unset.get(checked.spec.name):
        raise Stopped(ToolStatus.BLOCKED, f"{checked.spec.name} is not set up here: {reason}")


def check_capability(
    tokens: Tokens, seat: CallContext, call: ToolCall, checked: CheckedCall
) -> None:
    """The seat's token is good here and now, is this seat's, and covers the tool and what it
    writes.
    """
    if not seat.token:
        raise Stopped(
            ToolStatus.BLOCKED,
            "there is no capability token; whoever opens a workspace is given one",
        )
    try:
        capability = tokens.check(seat.token, seat.workspace_id)
    except Refused as error:
        raise Stopped(ToolStatus.BLOCKED, error.message, escape=True) from error
    theirs = (capability.tenant, capability.principal, capability.role, capability.persona)
    if theirs != (seat.tenant, seat.principal.name, seat.role, seat.persona):
        raise Stopped(ToolStatus.BLOCKED, "the capability token is somebody else's", escape=True)
    if capability.request and capability.request != request_digest(call):
        raise Stopped(ToolStatus.BLOCKED, "the capability token is bound to another request")
    if not is_granted(capability.grant, checked.spec.name):
        raise Stopped(
            ToolStatus.BLOCKED, f"{checked.spec.name} is not covered by the capability token"
        )
    for path in checked.values(checked.spec.writes):
        for pattern in capability.grant.protected:
            if covers(pattern, path):
                raise Stopped(
                    ToolStatus.BLOCKED,
                    f"{path[:80]!r} may not be changed with this token (protected: {pattern})",
                )


def note_of(grant: Grant, checked: CheckedCall) -> str:
    """Return what a seat should know about a write that gains it nothing, or nothing."""
    for path in checked.values(checked.spec.writes):
        if any(covers(pattern, path) for pattern in grant.judged):
            return (
                f"{path[:80]} is protected: if it was there before, it is judged as it was. Change "
                "the code instead."
            )
    return ""


def with_token(tokens: Tokens, seat: CallContext) -> CallContext:
    """Return the seat with a token for what it is granted, until its deadline."""
    seconds = seconds_until(seat.deadline)
    token = tokens.mint(
        principal=seat.principal.name,
        tenant=seat.tenant,
        workspace=seat.workspace_id,
        role=seat.role,
        persona=seat.persona,
        grant=seat.grant,
        seconds=max(seconds, 1.0) + 1.0,  # claims count in whole seconds
    )
    return replace(seat, token=token)


def _unknown_tool(name: str, known: Iterable[ToolSpec]) -> str:
    names = [spec.name for spec in known]
    wanted = name[:60].lower().replace("_", ".").replace(":", ".").replace("/", ".")
    swapped = ".".join(reversed(wanted.split(".")))
    near = get_close_matches(wanted, names, n=1) or get_close_matches(swapped, names, n=1)
    near = (
        near
        or [other for other in names if other.rpartition(".")[2] in {wanted, *wanted.split(".")}][
            :1
        ]
    )
    hint = f"did you mean {near[0]}?" if near else f"the tools are {', '.join(names) or 'none'}"
    return f"there is no tool {name[:60]!r}; {hint}"


def _right(spec: ToolSpec) -> str:
    shape = spec.schema(None)
    fields = (
        f"{name}{'' if name in shape['required'] else '?'}: {_type(field)}"
        for name, field in shape["properties"].items()
    )
    return f"{spec.name}({', '.join(fields)})"


def _type(field: Mapping[str, Any]) -> str:
    if ways := field.get("anyOf"):
        return " or ".join(map(_type, ways))
    if choices := field.get("enum"):
        return f"one of {', '.join(map(str, choices[:_CHOICES]))}"
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}s"
    return str(field.get("type", "anything"))


def _wrong_arguments(spec: ToolSpec, error: ValidationError) -> str:
    known = spec.argument_names
    wrong = []
    for item in wrong_fields(error)[:5]:
        name = ".".join(str(part)[:60] for part in item.place)
        if not name:
            wrong.append("the arguments are not an object")
        elif item.fault == "missing":
            wrong.append(f"argument {name!r} is missing")
        elif item.fault == "extra_forbidden":
            near = get_close_matches(name, known, n=1)
            wrong.append(
                f"there is no argument {name!r}" + (f" (did you mean {near[0]!r}?)" if near else "")
            )
        else:
            wrong.append(f"argument {name!r}: {item.sentence}")
    return f"{spec.name}: {'; '.join(wrong)}. Right is {_right(spec)}"
