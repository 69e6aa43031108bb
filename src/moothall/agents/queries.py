"""What a caller asks for: a query for an agent, or tools to run without a model, read from the
query's context.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from moothall.agents.tool_names import check_names, tool_action
from moothall.domain.task import RepositoryRef
from moothall.domain.tool import Action
from moothall.errors import InvalidRequest, Refused

_DIRECT, _SEQUENCE, _ALLOWED = "tool_parameters", "tool_calls", "allowed_tools"
_PROFILE, _TIER = "model_profile", "model_tier"
_TIERS = ("", "small", "medium", "large")
_OURS = {
    _DIRECT,
    _SEQUENCE,
    _ALLOWED,
    _PROFILE,
    _TIER,
    "tool",
    "tool_name",
    "name",
    "repository",
    "role",
}
_WEB = frozenset({"web.search", "web.fetch"})
_MOST_CALLS = 256


class Mode(StrEnum):
    """How a query is answered."""

    SIMPLE = "simple"
    STANDARD = "standard"
    COMPLEX = "complex"


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What is known of a session: what was asked and answered, oldest first, and what came of
    it.
    """

    session_id: str = ""
    history: tuple[str, ...] = ()
    persistent_context: Mapping[str, Any] = field(default_factory=dict)
    files_created: tuple[str, ...] = ()
    tools_used: tuple[str, ...] = ()
    total_tokens_used: int = 0
    total_cost_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Query:
    """A caller's request, before anything is checked but its shape. Zero and empty mean the
    default.
    """

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
        return _text(self.context, "role") or "dev"

    @property
    def model(self) -> str:
        """The model that is asked for: `context.model_profile`, else `context.model_tier`, by
        number (1 small, 2 medium, 3 large) or name.
        """
        tier = self.context.get(_TIER, "")
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
                f"context.{_TIER} is {str(tier)[:40]!r}; there are 1 (small), 2 (medium) and 3 "
                "(large)"
            )
        return _text(self.context, _PROFILE) or tier

    @property
    def length(self) -> int:
        """Characters of all that a model would be told."""
        told = json.dumps([self.context, self.session.persistent_context], default=str)
        return len(self.query) + len(told) + sum(map(len, self.session.history))

    def repository(self) -> RepositoryRef | None:
        """Return which repository the context names: an id, a path or a URL, or an object of id,
        url and ref. Raises `InvalidRequest`.
        """
        named = self.context.get("repository")
        if named is None or named == "":
            return None
        if isinstance(named, str):
            return RepositoryRef.from_name(named)
        if isinstance(named, Mapping) and named and named.keys() <= {"id", "url", "ref"}:
            return RepositoryRef(**{name: _text(named, name) for name in named})
        raise InvalidRequest(
            "context.repository is neither a text nor an object with id, url and ref"
        )

    def with_known_tools(self, known: Collection[str]) -> Query:
        """Return the query with its allowed tools under their names in the catalogue.

        Raises `InvalidRequest` for names of tools that do not exist.
        """
        available = check_names(self.available_tools, known, "available_tools")
        allowed = self.context.get(_ALLOWED)
        if allowed is None:
            return replace(self, available_tools=available)
        if not _are_names(allowed):
            raise InvalidRequest(f"context.{_ALLOWED} is no list of names of tools")
        names = list(check_names(allowed, known, f"context.{_ALLOWED}"))
        return replace(self, available_tools=available, context={**self.context, _ALLOWED: names})

    def tools(self) -> frozenset[str] | None:
        """Return the tools that an agent may use; None: all of its role. Who may search the web may
        read what is found, and the reverse. Call `with_known_tools` first.
        """
        allowed = self.context.get(_ALLOWED)
        given = [
            frozenset(names)
            for names in (self.available_tools or None, allowed)
            if names is not None
        ]
        if not given:
            return None
        found = frozenset.intersection(*given)
        return found | _WEB if found & _WEB else found

    def direct(self) -> tuple[Action, ...] | None:
        """Return the tools to run without a model; None where an agent is asked. Raises
        `InvalidRequest`, `Refused`.
        """
        if _DIRECT in self.context:
            found: tuple[Action, ...] = (self._one(),)
        elif _SEQUENCE in self.context:
            found = self._several(self.context[_SEQUENCE])
        else:
            return None
        for wanted in found:
            self._check(wanted.tool)
        return found

    def is_sequence(self) -> bool:
        """Whether a list of tools was asked for, not one."""
        return _DIRECT not in self.context and _SEQUENCE in self.context

    def instructions(self) -> str:
        """Return the query as an agent is told it: after what the session and the context say."""
        parts = []
        if self.session.history:
            parts.append(
                "Earlier in this session, oldest first:\n"
                + "\n".join(f"- {line}" for line in self.session.history)
            )
        more = {name: value for name, value in self.context.items() if name not in _OURS}
        known = {**self.session.persistent_context, **more}
        if known:
            parts.append(
                "What is known:\n"
                + json.dumps(known, ensure_ascii=False, sort_keys=True, default=str)
            )
        return "\n\n".join([*parts, self.query])

    def _one(self) -> Action:
        given = self.context[_DIRECT]
        if not isinstance(given, Mapping):
            raise InvalidRequest(f"context.{_DIRECT} is no object; give {{tool, parameters}}")
        name = next(
            (
                _text(at, key)
                for at in (given, self.context)
                for key in ("tool", "tool_name", "name")
                if _text(at, key)
            ),
            "",
        )
        if not name and len(self.available_tools) == 1:
            name = self.available_tools[0]
        if not name:
            raise InvalidRequest(
                f"context.{_DIRECT} names no tool: give tool, tool_name or name, or one tool in "
                "available_tools"
            )
        rest = {
            key: value
            for key, value in given.items()
            if key not in {"tool", "tool_name", "parameters"}
        }
        if _text(given, "name") == name and not (_text(given, "tool") or _text(given, "tool_name")):
            del rest["name"]
        return tool_action(name, {**rest, **_parameters(given, _DIRECT)})

    def _several(self, given: Any) -> tuple[Action, ...]:
        if (
            not isinstance(given, Sequence)
            or isinstance(given, str)
            or not 1 <= len(given) <= _MOST_CALLS
        ):
            raise InvalidRequest(
                f"context.{_SEQUENCE} is no list of 1 to {_MOST_CALLS} objects with tool and "
                "parameters"
            )
        found = []
        for place, item in enumerate(given):
            if not isinstance(item, Mapping) or not _text(item, "tool"):
                raise InvalidRequest(
                    f"context.{_SEQUENCE}[{place}] names no tool; give {{tool, parameters}}"
                )
            found.append(
                tool_action(_text(item, "tool"), _parameters(item, f"{_SEQUENCE}[{place}]"))
            )
        return tuple(found)

    def _check(self, tool: str) -> None:
        """A list that is given allows what it names alone, an empty one in the context nothing."""
        if self.available_tools and tool not in self.available_tools:
            raise Refused(f"{tool[:80]} is not among available_tools")
        allowed = self.context.get(_ALLOWED)
        if allowed is not None and tool not in allowed:
            raise Refused(f"{tool[:80]} is not among context.{_ALLOWED}")


def _are_names(given: object) -> bool:
    return (
        isinstance(given, Sequence)
        and not isinstance(given, str)
        and all(isinstance(name, str) for name in given)
    )


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name, "")
    return value if isinstance(value, str) else ""


def _parameters(given: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    parameters = given.get("parameters", {})
    if not isinstance(parameters, Mapping):
        raise InvalidRequest(f"context.{where}.parameters is no object")
    return parameters
