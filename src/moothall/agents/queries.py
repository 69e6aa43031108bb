"""Queries of callers: for an agent, or for tools that run without a model, as the query's
context says. Tools that run without a model: one, or a list that runs partly in parallel.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from moothall.authorization.limits import Rates, too_often
from moothall.domain.ids import Principal, digest
from moothall.domain.task import RepositoryRef
from moothall.domain.tool import Action, ToolCall, ToolResult, ToolStatus
from moothall.errors import InvalidRequest, Refused
from moothall.tool_sessions.manager import OpenedSession, ToolSessions

# Tools that run without a model: one, or a list that runs partly in parallel.


_MAX_CALL_TIME = timedelta(hours=1)  # the gateway's own limits are shorter


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A tool call and its result. `tool_id` distinguishes it from the other calls of its task."""

    action: Action
    tool_id: str
    result: ToolResult

    @property
    def ok(self) -> bool:
        """True if the call succeeded."""
        return self.result.status is ToolStatus.SUCCESS


class ToolSequenceRunner:
    """A runner of tools in callers' workspaces, at most `parallelism` of a list side by side.

    Each call may have a workspace of its own, so the rate limits of tools that run code or act
    outside are counted here, over all workspaces of a caller.
    """

    def __init__(self, tool_sessions: ToolSessions, parallelism: int) -> None:
        self._tool_sessions = tool_sessions
        self._parallelism = parallelism
        self._rates = Rates()

    async def run_tools(
        self,
        principal: Principal,
        opened_session: OpenedSession,
        actions: Sequence[Action],
        task_id: str,
    ) -> tuple[ToolRun, ...]:
        """Run tools and return their results, in order. A failed tool does not stop the others.

        Raises what `ToolSessions.call` raises for a call that is refused, after the other calls are
        cancelled.
        """
        slots = asyncio.Semaphore(self._parallelism)
        began = time.time_ns()

        async def run_one(index: int, action: Action) -> ToolRun:
            async with slots:
                # Request ids are unique in a workspace, which may outlive the task.
                request_id = digest(task_id, str(began), str(index))[:32]
                call = ToolCall(
                    request_id, action.tool, action.arguments, datetime.now(UTC) + _MAX_CALL_TIME
                )
                result = self._too_often(principal, call) or await self._tool_sessions.call(
                    principal, opened_session.workspace, opened_session.token, call
                )
                return ToolRun(action, f"{task_id}.{index}", result)

        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(run_one(index, action)) for index, action in enumerate(actions)
            ]
        return tuple(task.result() for task in running)

    def _too_often(self, principal: Principal, call: ToolCall) -> ToolResult | None:
        spec = self._tool_sessions.gateway.catalogue.get(call.tool)
        if spec is None or not spec.dangerous:
            return None
        seconds = self._rates.count_call((principal.tenant, principal.name, call.tool), spec)
        if not seconds:
            return None
        return ToolResult(
            call.request_id, call.tool, ToolStatus.RATE_LIMITED, error=too_often(spec, seconds)
        )


# Queries of callers: for an agent, or for tools that run without a model, as the query's context
# says.
#
# Tools may be called by the names that other systems use. docs/api.md has the same table, and a
# test compares them.


_MAX_SHOWN_NAMES = 5
_DIRECT_KEY, _SEQUENCE_KEY, _ALLOWED_KEY = "tool_parameters", "tool_calls", "allowed_tools"
_PROFILE_KEY, _TIER_KEY = "model_profile", "model_tier"
_TIERS = ("", "small", "medium", "large")
_RESERVED_KEYS = {
    _DIRECT_KEY,
    _SEQUENCE_KEY,
    _ALLOWED_KEY,
    _PROFILE_KEY,
    _TIER_KEY,
    "tool",
    "tool_name",
    "name",
    "repository",
    "role",
}
_WEB_TOOLS = frozenset({"web.search", "web.fetch"})
_MAX_CALLS = 256


@dataclass(frozen=True, slots=True)
class Alias:
    """The tool of an alias, and the names of its arguments there."""

    tool: str
    arguments: Mapping[str, str] = field(default_factory=dict)


ALIASES: Mapping[str, Alias] = {
    "bash": Alias("code.shell"),
    "browser": Alias("browser.run"),
    "code_executor": Alias("code.python"),
    "diff_files": Alias("files.diff", {"path_a": "path", "path_b": "other"}),
    "file_delete": Alias("files.delete"),
    "file_edit": Alias("files.edit", {"old_text": "old", "new_text": "new"}),
    "file_list": Alias("files.list", {"pattern": "glob"}),
    "file_read": Alias("files.read", {"offset": "start", "limit": "lines"}),
    "file_search": Alias("files.search", {"query": "pattern", "include": "glob"}),
    "file_write": Alias("files.write"),
    "python_executor": Alias("code.python", {"session_id": "session"}),
    "session_file_list": Alias("files.list", {"filter_pattern": "glob"}),
    "session_file_write": Alias("files.write"),
    "web_fetch": Alias("web.fetch"),
    "web_search": Alias("web.search"),
}
"""Tools by alias. Arguments that are not listed keep their names; a tool refuses unknown ones."""


def tool_name(name: str) -> str:
    """Return the name of the tool in the catalogue."""
    alias = ALIASES.get(name)
    return alias.tool if alias else name


def tool_action(name: str, arguments: Mapping[str, Any]) -> Action:
    """Translate a call into one of a tool in the catalogue.

    Null, and 0 for a renamed argument, mean that the argument is left out.
    """
    alias = ALIASES.get(name)
    if alias is None:
        return Action(name, arguments)
    present = {
        key: value
        for key, value in arguments.items()
        if value is not None and not (key in alias.arguments and value == 0)
    }
    return Action(
        alias.tool, {alias.arguments.get(key, key): value for key, value in present.items()}
    )


def check_names(names: Iterable[str], catalogue: Collection[str], field: str) -> tuple[str, ...]:
    """Translate names into those of the catalogue, each once.

    Raises `InvalidRequest` for unknown names.
    """
    catalogue_names = tuple(dict.fromkeys(map(tool_name, names)))
    if unknown := [name for name in catalogue_names if name not in catalogue]:
        listed_names = ", ".join(repr(name[:80]) for name in unknown[:_MAX_SHOWN_NAMES]) + (
            ", …" if len(unknown) > _MAX_SHOWN_NAMES else ""
        )
        raise InvalidRequest(
            f"{field} names tools that do not exist: {listed_names}; DiscoverTools lists all tools"
        )
    return catalogue_names


class Mode(StrEnum):
    """How a query is answered."""

    SIMPLE = "simple"
    STANDARD = "standard"
    COMPLEX = "complex"


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The context of a session: questions and answers, oldest first, and their results."""

    session_id: str = ""
    history: tuple[str, ...] = ()
    persistent_context: Mapping[str, Any] = field(default_factory=dict)
    files_created: tuple[str, ...] = ()
    tools_used: tuple[str, ...] = ()
    total_tokens_used: int = 0
    total_cost_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Query:
    """A caller's request. Only its shape is checked. Zero and empty fields mean the default."""

    task_id: str
    query: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)
    mode: Mode = Mode.STANDARD
    available_tools: tuple[str, ...] = ()
    max_agents: int = 0
    max_iterations: int = 0
    timeout_seconds: int = 0
    token_budget: int = 0
    session: SessionContext = SessionContext()

    @property
    def role(self) -> str:
        """The role whose tools may be used."""
        return _read_text(self.context, "role") or "dev"

    @property
    def model(self) -> str:
        """The requested model: `context.model_profile`, else `context.model_tier` by number (1
        small, 2 medium, 3 large) or name.
        """
        tier = self.context.get(_TIER_KEY, "")
        if isinstance(tier, str):
            tier = tier.lower().removeprefix("model_tier_").replace("unspecified", "")
        elif (
            isinstance(tier, int | float)
            and not isinstance(tier, bool)
            and tier in range(len(_TIERS))
        ):
            tier = _TIERS[int(tier)]
        if tier not in _TIERS:
            raise InvalidRequest(
                f"context.{_TIER_KEY} is {str(tier)[:40]!r}; allowed are 1 (small), 2 (medium) "
                "and 3 "
                "(large)"
            )
        return _read_text(self.context, _PROFILE_KEY) or tier

    @property
    def length(self) -> int:
        """The number of characters that a model would get."""
        context_text = json.dumps([self.context, self.session.persistent_context], default=str)
        return len(self.query) + len(context_text) + sum(map(len, self.session.history))

    def repository(self) -> RepositoryRef | None:
        """Return the repository that the context names: by an id, a path or a URL, or as an object
        of id, url and ref. Raises `InvalidRequest`.
        """
        reference = self.context.get("repository")
        if reference is None or reference == "":
            return None
        if isinstance(reference, str):
            return RepositoryRef.from_name(reference)
        if (
            isinstance(reference, Mapping)
            and reference
            and reference.keys() <= {"id", "url", "ref"}
        ):
            return RepositoryRef(**{name: _read_text(reference, name) for name in reference})
        raise InvalidRequest(
            "context.repository is neither a string nor an object with id, url and ref"
        )

    def with_known_tools(self, catalogue: Collection[str]) -> Query:
        """Return the query with its allowed tools under their names in the catalogue.

        Raises `InvalidRequest` for names of tools that do not exist.
        """
        available = check_names(self.available_tools, catalogue, "available_tools")
        allowed = self.context.get(_ALLOWED_KEY)
        if allowed is None:
            return replace(self, available_tools=available)
        if not _are_names(allowed):
            raise InvalidRequest(f"context.{_ALLOWED_KEY} is not a list of tool names")
        names = list(check_names(allowed, catalogue, f"context.{_ALLOWED_KEY}"))
        return replace(
            self, available_tools=available, context={**self.context, _ALLOWED_KEY: names}
        )

    def tools(self) -> frozenset[str] | None:
        """Return the tools that an agent may use, None for all of its role. Searching the web and
        fetching pages imply each other. Call `with_known_tools` first.
        """
        allowed = self.context.get(_ALLOWED_KEY)
        restrictions = [
            frozenset(names)
            for names in (self.available_tools or None, allowed)
            if names is not None
        ]
        if not restrictions:
            return None
        tools = frozenset.intersection(*restrictions)
        return tools | _WEB_TOOLS if tools & _WEB_TOOLS else tools

    def direct(self) -> tuple[Action, ...] | None:
        """Return the tools to run without a model, None if an agent is asked. Raises
        `InvalidRequest`, `Refused`.
        """
        if _DIRECT_KEY in self.context:
            actions: tuple[Action, ...] = (self._single_action(),)
        elif _SEQUENCE_KEY in self.context:
            actions = self._action_list(self.context[_SEQUENCE_KEY])
        else:
            return None
        for action in actions:
            self._check_allowed(action.tool)
        return actions

    def is_sequence(self) -> bool:
        """Return True if the query asks for a list of tools, not for one."""
        return _DIRECT_KEY not in self.context and _SEQUENCE_KEY in self.context

    def instructions(self) -> str:
        """Return the query as an agent gets it, after the context of the session and of the
        query.
        """
        parts = []
        if self.session.history:
            parts.append(
                "Earlier in this session, oldest first:\n"
                + "\n".join(f"- {line}" for line in self.session.history)
            )
        extra = {name: value for name, value in self.context.items() if name not in _RESERVED_KEYS}
        facts = {**self.session.persistent_context, **extra}
        if facts:
            parts.append(
                "What is known:\n"
                + json.dumps(facts, ensure_ascii=False, sort_keys=True, default=str)
            )
        return "\n\n".join([*parts, self.query])

    def _single_action(self) -> Action:
        parameters = self.context[_DIRECT_KEY]
        if not isinstance(parameters, Mapping):
            raise InvalidRequest(
                f"context.{_DIRECT_KEY} is not an object; give {{tool, parameters}}"
            )
        name = next(
            (
                _read_text(source, key)
                for source in (parameters, self.context)
                for key in ("tool", "tool_name", "name")
                if _read_text(source, key)
            ),
            "",
        )
        if not name and len(self.available_tools) == 1:
            name = self.available_tools[0]
        if not name:
            raise InvalidRequest(
                f"context.{_DIRECT_KEY} names no tool: give tool, tool_name or name, or one tool "
                "in available_tools"
            )
        arguments = {
            key: value
            for key, value in parameters.items()
            if key not in {"tool", "tool_name", "parameters"}
        }
        if _read_text(parameters, "name") == name and not (
            _read_text(parameters, "tool") or _read_text(parameters, "tool_name")
        ):
            del arguments["name"]
        return tool_action(name, {**arguments, **_read_parameters(parameters, _DIRECT_KEY)})

    def _action_list(self, calls: Any) -> tuple[Action, ...]:
        if (
            not isinstance(calls, Sequence)
            or isinstance(calls, str)
            or not 1 <= len(calls) <= _MAX_CALLS
        ):
            raise InvalidRequest(
                f"context.{_SEQUENCE_KEY} is not a list of 1 to {_MAX_CALLS} objects with tool and "
                "parameters"
            )
        actions = []
        for index, item in enumerate(calls):
            if not isinstance(item, Mapping) or not _read_text(item, "tool"):
                raise InvalidRequest(
                    f"context.{_SEQUENCE_KEY}[{index}] names no tool; give {{tool, parameters}}"
                )
            actions.append(
                tool_action(
                    _read_text(item, "tool"), _read_parameters(item, f"{_SEQUENCE_KEY}[{index}]")
                )
            )
        return tuple(actions)

    def _check_allowed(self, tool: str) -> None:
        """Raise `Refused` unless each given list names the tool. An empty list in the context
        allows nothing.
        """
        if self.available_tools and tool not in self.available_tools:
            raise Refused(f"{tool[:80]} is not among available_tools")
        allowed = self.context.get(_ALLOWED_KEY)
        if allowed is not None and tool not in allowed:
            raise Refused(f"{tool[:80]} is not among context.{_ALLOWED_KEY}")


def _are_names(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(name, str) for name in value)
    )


def _read_text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "")
    return value if isinstance(value, str) else ""


def _read_parameters(fields: Mapping[str, Any], location: str) -> Mapping[str, Any]:
    parameters = fields.get("parameters", {})
    if not isinstance(parameters, Mapping):
        raise InvalidRequest(f"context.{location}.parameters is not an object")
    return parameters
