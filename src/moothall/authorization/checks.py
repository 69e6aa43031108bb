"""The caller of a tool, and the checks of a call before it runs, one function per step; and the
calls of a Python block.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from moothall.authorization.tokens import Tokens, request_digest
from moothall.concurrency import seconds_until
from moothall.domain.budget import Ledger
from moothall.domain.ids import ROLES, Principal, TaskKey, check_id, check_key
from moothall.domain.proposal import Operation
from moothall.domain.tool import Grant, ToolCall, ToolResult, ToolStatus
from moothall.errors import InvalidRequest, Refused, wrong_fields
from moothall.ports import Workspace
from moothall.sandbox_runtime.confinement import ROOT
from moothall.tools.catalogue import CATALOGUE, ToolSpec, is_granted, list_tools
from moothall.tools.schemas import arguments_digest, canonical

# The caller of a tool, and the exception that stops a call in the gateway.


@dataclass(slots=True)
class Meter:
    """The part of its tool limits that one seat has used. Belongs to one event loop. Nothing here
    awaits.
    """

    calls: int = 0
    in_flight: int = 0
    seconds: float = 0.0
    held_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CallContext:
    """A seat as the gateway knows it. The trusted side builds it from credentials and the
    deliberation, never from model output. `task_id` is the key of the task; in a tool session, the
    name of its workspace. `ledger` is the deliberation's, or None without a budget.
    `deadline` is in UTC. `meter` counts this seat's calls. `token` is its capability token
    (`ToolGateway.with_token` sets one).
    """

    principal: Principal
    task_id: TaskKey
    seat: str
    role: str
    grant: Grant
    workspace: Workspace
    workspace_id: str
    deadline: datetime
    ledger: Ledger | None = None
    meter: Meter = field(default_factory=Meter)
    persona: str = ""
    token: str = ""

    @property
    def tenant(self) -> str:
        """The tenant of the principal."""
        return self.principal.tenant


class Stopped(Exception):
    """A call that the gateway refuses. It becomes a tool result and never leaves the gateway.
    `may_be_allowed`: an operator can allow the call. `escape`: the call is unlikely to be a
    mistake, such as a path outside the workspace or the identity of another seat.
    """

    def __init__(
        self, status: ToolStatus, reason: str, *, may_be_allowed: bool = False, escape: bool = False
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.may_be_allowed = may_be_allowed
        self.escape = escape


# Textual checks of paths. The executor resolves links itself.


def relative_path(path: str) -> str:
    """Return an absolute path below the workspace's root (as `pwd` and tracebacks in the sandbox
    print it) as a relative one.

    Other paths are returned unchanged. Only the text is checked, so the result has to pass
    `refuse_path`.
    """
    file, separator, case = path.partition("::")
    if not file.startswith("/"):
        return path
    parts = [part for part in file.split("/") if part not in {"", "."}]
    if parts[:1] != [ROOT.strip("/")]:
        return path
    return ("/".join(parts[1:]) or ".") + separator + case


def refuse_path(path: str) -> str:
    """Return why a path may not be used, or an empty string. `tests/a.py::test_b` is read as
    tests/a.py.
    """
    quoted = repr(path[:80])
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in path):  # noqa: PLR2004  # ASCII control characters
        return f"path {quoted} contains a control character"
    file = path.partition("::")[0]
    if file.startswith(("/", "~", "\\")) or file[1:2] == ":":
        return f"path {quoted} is absolute; paths are relative to the workspace, as in src/utils.py"
    if file.startswith("-"):
        return f"path {quoted} looks like an option; write ./{file[:80]}"
    parts = path.replace("\\", "/").split("/")  # "::" has no meaning to the file system
    if ".." in parts:
        return (
            f"path {quoted} leaves the workspace by '..'; paths are relative to it, as in "
            "src/utils.py"
        )
    if any(part.rstrip(". ").casefold() == ".git" for part in parts):
        return f"path {quoted} is inside .git; use git.status, git.diff or git.log"
    return ""


def covers(pattern: str, path: str) -> bool:
    """Return whether a gitignore-style pattern (no negation) matches a path or one of its parent
    folders.

    A pattern without an inner slash matches at any depth. `**` matches any number of folders.
    """
    pattern_parts = [part for part in pattern.split("/") if part not in {"", "."}]
    path_parts = [part for part in path.split("/") if part not in {"", "."}]
    if not pattern_parts:
        return False
    if "/" not in pattern.rstrip("/"):
        pattern_parts = ["**", *pattern_parts]
    return _match_parts(pattern_parts, path_parts)


def first_covered(patterns: Iterable[str], paths: Iterable[str]) -> str:
    """Return the first path that a pattern covers, or an empty string."""
    all_patterns = tuple(patterns)
    return next(
        (path for path in paths if any(covers(pattern, path) for pattern in all_patterns)), ""
    )


def _match_parts(pattern_parts: list[str], path_parts: list[str]) -> bool:
    contents_only = pattern_parts[-1] == "**"  # `docs/**` matches what is in docs, not docs itself
    # The positions in the path where the pattern so far can end. Linear in both for any pattern.
    positions = {0}
    for part in pattern_parts[:-1] if contents_only else pattern_parts:
        if part == "**":
            positions = set(range(min(positions), len(path_parts) + 1))
        else:
            positions = {
                position + 1
                for position in positions
                if position < len(path_parts) and fnmatchcase(path_parts[position], part)
            }
        if not positions:
            return False
    return not contents_only or min(positions) < len(path_parts)


# The checks of a call before it runs, one function per step. Each raises `Stopped` with what is
# wrong and what would be right. The gateway calls them in order.


_MAX_REQUEST_ID = 200
_MAX_SHOWN_CHOICES = 20


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call of a known tool with valid arguments, defaults included."""

    spec: ToolSpec
    arguments: Mapping[str, Any]

    def values(self, names: tuple[str, ...]) -> Iterator[str]:
        """Yield the strings in these arguments, with lists flattened."""
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
    """Raise `Stopped` unless the tool exists and its arguments fit its schema. Tools in `off` do
    not exist for the tenant.

    The grant only decides which names are suggested. Absolute paths below the workspace's root
    become relative here, before any other step sees them.
    """
    spec = catalogue.get(call.tool)
    if spec is None or spec.name in off:
        raise Stopped(
            ToolStatus.INVALID,
            _describe_unknown_tool(
                str(call.tool), list_tools(grant, excluded=off, catalogue=catalogue)
            ),
        )
    try:
        raw = canonical(call.arguments)
        parsed = json.loads(raw)  # checked and run in the form that the digest covers
    except (ValueError, RecursionError) as error:
        raise Stopped(
            ToolStatus.INVALID,
            f"the arguments of {spec.name} are not JSON; right is {_signature(spec)}",
        ) from error
    if len(raw) > argument_bytes:
        raise Stopped(
            ToolStatus.INVALID,
            f"the arguments of {spec.name} have {len(raw)} bytes; at most {argument_bytes} may be "
            "sent",
        )
    try:
        arguments = spec.arguments.model_validate(parsed).model_dump()
    except ValidationError as error:
        raise Stopped(ToolStatus.INVALID, _describe_wrong_arguments(spec, error)) from error
    for name in spec.paths:
        value = arguments[name]
        arguments[name] = (
            [relative_path(path) for path in value]
            if isinstance(value, list)
            else relative_path(value)
        )
    return CheckedCall(spec, arguments)


def check_identity(context: CallContext, call: ToolCall) -> None:
    """Raise `Stopped` unless the seat belongs to this workspace and the request id is usable. Its
    tenant is that of its principal.
    """
    if context.workspace.id != context.workspace_id:
        raise Stopped(
            ToolStatus.BLOCKED,
            f"workspace {context.workspace.id!r} is not this seat's, which is "
            f"{context.workspace_id!r}",
        )
    if context.role not in ROLES:
        raise Stopped(ToolStatus.BLOCKED, f"unknown role {context.role[:40]!r}")
    try:
        check_id(context.tenant, "tenant")
        check_key(context.task_id, "task_id")
        check_id(context.seat, "seat")
    except InvalidRequest as error:
        raise Stopped(ToolStatus.BLOCKED, error.message) from error
    if not 0 < len(call.request_id) <= _MAX_REQUEST_ID:
        raise Stopped(ToolStatus.INVALID, f"a request_id has 1 to {_MAX_REQUEST_ID} characters")


def check_grants(
    grant: Grant,
    checked_call: CheckedCall,
    *,
    catalogue: Mapping[str, ToolSpec] = CATALOGUE,
    off: Collection[str] = (),
) -> None:
    """Raise `Stopped` unless the grant covers the tool and all paths stay inside the workspace and
    off protected files.
    """
    spec = checked_call.spec
    if not is_granted(grant, spec.name):
        names = (
            ", ".join(tool.name for tool in list_tools(grant, excluded=off, catalogue=catalogue))
            or "none"
        )
        raise Stopped(
            ToolStatus.BLOCKED, f"{spec.name} is not granted to this seat; granted are {names}"
        )
    for path in checked_call.values(spec.paths):
        if reason := refuse_path(path):
            raise Stopped(ToolStatus.BLOCKED, reason, escape=True)
    for path in checked_call.values(spec.writes):
        for pattern in grant.protected:
            if covers(pattern, path):
                raise Stopped(
                    ToolStatus.BLOCKED,
                    f"{path[:80]!r} may not be changed by this role (protected: {pattern})",
                )


def check_set(checked_call: CheckedCall, unset: Mapping[str, str]) -> None:
    """Raise `Stopped` if the tool lacks a setting. `unset` maps tool names to the missing one."""
    if reason := unset.get(checked_call.spec.name):
        raise Stopped(ToolStatus.BLOCKED, f"{checked_call.spec.name} is not set up here: {reason}")


def check_capability(
    tokens: Tokens, context: CallContext, call: ToolCall, checked_call: CheckedCall
) -> None:
    """Raise `Stopped` unless the seat's token is valid, belongs to this seat, and covers the tool
    and the paths it writes.
    """
    if not context.token:
        raise Stopped(
            ToolStatus.BLOCKED,
            "the capability token is missing; opening a workspace returns one",
        )
    try:
        capability = tokens.check(context.token, context.workspace_id)
    except Refused as error:
        raise Stopped(ToolStatus.BLOCKED, error.message, escape=True) from error
    holder = (capability.tenant, capability.principal, capability.role, capability.persona)
    if holder != (context.tenant, context.principal.name, context.role, context.persona):
        raise Stopped(
            ToolStatus.BLOCKED, "the capability token belongs to another principal", escape=True
        )
    if capability.request and capability.request != request_digest(call):
        raise Stopped(ToolStatus.BLOCKED, "the capability token is bound to another request")
    if not is_granted(capability.grant, checked_call.spec.name):
        raise Stopped(
            ToolStatus.BLOCKED, f"{checked_call.spec.name} is not covered by the capability token"
        )
    for path in checked_call.values(checked_call.spec.writes):
        for pattern in capability.grant.protected:
            if covers(pattern, path):
                raise Stopped(
                    ToolStatus.BLOCKED,
                    f"{path[:80]!r} may not be changed with this token (protected: {pattern})",
                )


def note_of(grant: Grant, checked_call: CheckedCall) -> str:
    """Return a note for a write to a judged path, which has no effect on the verdict, or an empty
    string.
    """
    for path in checked_call.values(checked_call.spec.writes):
        if any(covers(pattern, path) for pattern in grant.judged):
            return (
                f"{path[:80]} is protected: if it was there before, it is judged as it was. Change "
                "the code instead."
            )
    return ""


def with_token(tokens: Tokens, context: CallContext) -> CallContext:
    """Return the seat with a token for its grant, valid until its deadline."""
    seconds = seconds_until(context.deadline)
    token = tokens.mint(
        principal=context.principal.name,
        tenant=context.tenant,
        workspace=context.workspace_id,
        role=context.role,
        persona=context.persona,
        grant=context.grant,
        seconds=max(seconds, 1.0) + 1.0,  # claims count in whole seconds
    )
    return replace(context, token=token)


def _describe_unknown_tool(name: str, specs: Iterable[ToolSpec]) -> str:
    names = [spec.name for spec in specs]
    dotted = name[:60].lower().replace("_", ".").replace(":", ".").replace("/", ".")
    swapped_name = ".".join(reversed(dotted.split(".")))
    matches = get_close_matches(dotted, names, n=1) or get_close_matches(swapped_name, names, n=1)
    matches = (
        matches
        or [
            candidate
            for candidate in names
            if candidate.rpartition(".")[2] in {dotted, *dotted.split(".")}
        ][:1]
    )
    hint = (
        f"did you mean {matches[0]}?" if matches else f"the tools are {', '.join(names) or 'none'}"
    )
    return f"there is no tool {name[:60]!r}; {hint}"


def _signature(spec: ToolSpec) -> str:
    schema = spec.schema(None)
    fields = (
        f"{name}{'' if name in schema['required'] else '?'}: {_type_name(field)}"
        for name, field in schema["properties"].items()
    )
    return f"{spec.name}({', '.join(fields)})"


def _type_name(field: Mapping[str, Any]) -> str:
    if alternatives := field.get("anyOf"):
        return " or ".join(map(_type_name, alternatives))
    if choices := field.get("enum"):
        return f"one of {', '.join(map(str, choices[:_MAX_SHOWN_CHOICES]))}"
    if field.get("type") == "array":
        return f"list of {_type_name(field.get('items', {}))}s"
    return str(field.get("type", "anything"))


def _describe_wrong_arguments(spec: ToolSpec, error: ValidationError) -> str:
    names = spec.argument_names
    faults = []
    for item in wrong_fields(error)[:5]:
        name = ".".join(str(part)[:60] for part in item.place)
        if not name:
            faults.append("the arguments are not an object")
        elif item.fault == "missing":
            faults.append(f"argument {name!r} is missing")
        elif item.fault == "extra_forbidden":
            matches = get_close_matches(name, names, n=1)
            faults.append(
                f"there is no argument {name!r}"
                + (f" (did you mean {matches[0]!r}?)" if matches else "")
            )
        else:
            faults.append(f"argument {name!r}: {item.sentence}")
    return f"{spec.name}: {'; '.join(faults)}. Right is {_signature(spec)}"


# Tool calls of a Python block on their way to the gateway: numbered, counted, and checked like any
# other call.


@dataclass(slots=True)
class BlockBudget:
    """The tool calls and sub-agents that a block and its sub-agents may still start."""

    calls: int
    agents: int = 0


@dataclass(slots=True)
class BlockCalls:
    """The tool calls of one block. `call_tool` calls the gateway; `id_prefix` starts its request
    ids.
    """

    call_tool: Callable[[ToolCall], Awaitable[ToolResult]]
    id_prefix: str
    deadline: datetime
    budget: BlockBudget
    completed: list[tuple[ToolCall, ToolResult]] = field(default_factory=list)
    exhausted: bool = False

    async def __call__(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool and return its result; `budget_exceeded` if the block has no calls left.
        Raises what the gateway raises.
        """
        call = ToolCall(
            f"{self.id_prefix}.{len(self.completed) + 1}", tool, arguments, self.deadline
        )
        if self.budget.calls <= 0:
            self.exhausted = True
            return ToolResult(
                call.request_id,
                tool,
                ToolStatus.BUDGET_EXCEEDED,
                error="this block may call no more tools",
            )
        self.budget.calls -= 1
        result = await self.call_tool(call)
        self.completed.append((call, result))
        return result

    @property
    def results(self) -> list[ToolResult]:
        """The results of the block's calls, in order."""
        return [result for _, result in self.completed]

    @property
    def operations(self) -> list[Operation]:
        """The block's calls as they are recorded, in order."""
        return [
            Operation(
                result.tool,
                arguments_digest(call.arguments),
                str(result.status),
                result.duration_ms,
            )
            for call, result in self.completed
        ]
