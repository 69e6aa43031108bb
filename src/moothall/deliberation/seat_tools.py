"""The tools that a seat calls natively: short names for the catalogue's tools."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moothall.domain.chat import FunctionCall, FunctionTool
from moothall.domain.tool import Action
from moothall.tools.catalogue import ToolSpec

SUBMIT = "submit"
BASH, VIEW, EDIT, WRITE = "code.shell", "files.read", "files.edit", "files.write"
_SHELL_REPLACES = frozenset({"files", "git", "tests", "code", "system"})
"""Categories of tools that seats with a shell do not need under separate names."""
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_COUNT_ARGUMENT = re.compile(r"\bcount=\d+\b")
_CATALOGUE_NAME = re.compile(r"(?<![\w/.'-])(?:files|git|tests|code|system)\.[a-z]+\b(?![/(])")
_USAGE_HINT = re.compile(r" Right is [a-z]+\.[a-z]+\([^()]*\)\Z")
_SHELL_COMMANDS = {
    f"git.{command}": f"git {command}" for command in ("status", "diff", "log", "show", "blame")
}
_MAX_VIEWED_LINES = 400  # without a range
_SUBMIT_TOOL = FunctionTool(
    SUBMIT,
    "Hand in your change. The tests near it and your new tests run once. Call it only when the "
    "task is done.",
    {
        "type": "object",
        "properties": {
            "summary": {
                "type": "string",
                "description": "what was wrong, what you changed, and how you tested it",
            }
        },
        "required": ["summary"],
        "additionalProperties": False,
    },
)


class UnusableCallError(ValueError):
    """A call that no tool accepts; the message is for the model."""


@dataclass(frozen=True, slots=True)
class _SeatTool:
    """A tool with a short name: its arguments (name → JSON schema), the required ones, and their
    translation into the arguments of the catalogue's tool.
    """

    name: str
    description: str
    arguments: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]
    translate: Callable[[dict[str, Any]], dict[str, Any]]

    def function_tool(self, spec: ToolSpec) -> FunctionTool:
        """Return the tool for the model. Its description names the catalogue tool's limits."""
        parameters = {
            "type": "object",
            "properties": dict(self.arguments),
            "required": list(self.required),
            "additionalProperties": False,
        }
        usual_seconds, max_seconds = (
            f"{seconds:g}" for seconds in (spec.caps.usual_seconds, spec.caps.seconds)
        )
        return FunctionTool(
            self.name,
            self.description.replace("USUAL", usual_seconds).replace("MOST", max_seconds),
            parameters,
        )


def _translate_view(arguments: dict[str, Any]) -> dict[str, Any]:
    start = arguments.get("start", 1)
    end = arguments.get("end", start + _MAX_VIEWED_LINES - 1)
    if end < start:
        raise UnusableCallError(f"view: end ({end}) is before start ({start})")
    return {"path": arguments["path"], "start": start, "lines": end - start + 1}


def _translate_edit(arguments: dict[str, Any]) -> dict[str, Any]:
    replace_all = arguments.pop("all", False)
    if not isinstance(replace_all, bool):
        raise UnusableCallError("edit: all is true or false")
    return {**arguments, "count": 0} if replace_all else arguments


def _keep_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


_TEXT, _LINE = {"type": "string"}, {"type": "integer", "minimum": 1}
_PATH = {"type": "string", "description": "relative to the root of the repository"}
_SEAT_TOOLS: Mapping[str, _SeatTool] = {
    BASH: _SeatTool(
        "bash",
        "Run a command in bash. The working directory is kept from call to call, and begins as the "
        "root of the repository; exported variables and shell functions are lost, and background "
        "processes end with the call. A command may take USUAL s, or timeout_seconds, up to MOST. "
        "Of long output the head and the tail are shown, and the file that holds all of it. git "
        "reads the history up to the base commit: log, blame, show, grep, diff, stash.",
        {"command": _TEXT, "timeout_seconds": {"type": "integer", "minimum": 1}},
        ("command",),
        _keep_arguments,
    ),
    VIEW: _SeatTool(
        "view",
        "Show a text file with line numbers, or the lines from start to end. Without a range: the "
        f"first {_MAX_VIEWED_LINES} lines. Of a folder: the names in it.",
        {"path": _PATH, "start": _LINE, "end": _LINE},
        ("path",),
        _translate_view,
    ),
    EDIT: _SeatTool(
        "edit",
        "Replace the text old, which has to occur exactly once, by new. With all, replace every "
        "occurrence. Copy old from the file as it is, white space included.",
        {"path": _PATH, "old": _TEXT, "new": _TEXT, "all": {"type": "boolean"}},
        ("path", "old", "new"),
        _translate_edit,
    ),
    WRITE: _SeatTool(
        "write",
        "Write a whole file: create it, or replace its content.",
        {"path": _PATH, "content": _TEXT},
        ("path", "content"),
        _keep_arguments,
    ),
}


@dataclass(frozen=True, slots=True)
class SeatTools:
    """The tools that one seat is offered, and the catalogue's tool for each name."""

    offered: tuple[FunctionTool, ...]
    _specs: Mapping[str, ToolSpec]

    @classmethod
    def from_specs(cls, specs: Sequence[ToolSpec]) -> SeatTools:
        """Offer the short-named tools among `specs`, and the others that a shell does not replace
        under names of their own.
        """
        specs_by_catalogue_name = {spec.name: spec for spec in specs}
        has_shell = BASH in specs_by_catalogue_name
        offered: list[FunctionTool] = []
        specs_by_name: dict[str, ToolSpec] = {}
        for name, seat_tool in _SEAT_TOOLS.items():
            if name in specs_by_catalogue_name:
                offered.append(seat_tool.function_tool(specs_by_catalogue_name[name]))
                specs_by_name[seat_tool.name] = specs_by_catalogue_name[name]
        for spec in specs:
            name = spec.name.replace(".", "_")
            if (
                spec.name in _SEAT_TOOLS
                or (has_shell and spec.category in _SHELL_REPLACES)
                or name in specs_by_name
                or not _TOOL_NAME.fullmatch(name)
            ):
                continue
            offered.append(FunctionTool(name, spec.summary, spec.schema(None)))
            specs_by_name[name] = spec
        return cls((*offered, _SUBMIT_TOOL), specs_by_name)

    def with_submit(self, submit: FunctionTool) -> SeatTools:
        """Return the same tools with a different submit tool."""
        return replace(self, offered=(*self.offered[:-1], submit))

    @property
    def names(self) -> tuple[str, ...]:
        """The offered names, in order."""
        return tuple(tool.name for tool in self.offered)

    def offers(self, name: str) -> bool:
        """Return True if a tool of the catalogue is offered."""
        return any(spec.name == name for spec in self._specs.values())

    @property
    def has_shell(self) -> bool:
        """True if the seat can run commands."""
        return "bash" in self._specs

    def read_action(self, call: FunctionCall) -> Action:
        """Return the call as an action of the catalogue. Raises `UnusableCallError`."""
        spec = self._specs.get(call.name)
        if spec is None:
            raise UnusableCallError(
                f"there is no tool {call.name[:60]!r}; there are: {', '.join(self.names)}"
            )
        arguments = read_arguments(call)
        seat_tool = _SEAT_TOOLS.get(spec.name)
        if seat_tool is None:
            return Action(spec.name, arguments)
        if missing := [name for name in seat_tool.required if name not in arguments]:
            raise UnusableCallError(f"{call.name} needs {' and '.join(missing)}")
        if unknown := [name for name in arguments if name not in seat_tool.arguments]:
            raise UnusableCallError(
                f"{call.name} has no argument {unknown[0][:60]!r}; it has: "
                f"{', '.join(seat_tool.arguments)}"
            )
        for name, value in arguments.items():
            if seat_tool.arguments[name]["type"] == "integer":
                arguments[name] = _read_integer(call.name, name, value)
        return Action(spec.name, seat_tool.translate(arguments))

    def translate_error(self, error: str, call: FunctionCall) -> str:
        """Return an error of the catalogue's tool with the names and arguments of the tools that
        the seat is offered.
        """
        spec = self._specs.get(call.name)
        if spec is not None and (seat_tool := _SEAT_TOOLS.get(spec.name)) is not None:
            arguments = (
                name if name in seat_tool.required else f"{name}?" for name in seat_tool.arguments
            )
            error = _USAGE_HINT.sub(f" Right is {seat_tool.name}({', '.join(arguments)})", error)
        names = {spec.name: name for name, spec in self._specs.items()}
        if self.has_shell:
            names |= _SHELL_COMMANDS
        return _COUNT_ARGUMENT.sub(
            "all=true", _CATALOGUE_NAME.sub(lambda match: names.get(match[0], match[0]), error)
        )


def read_arguments(call: FunctionCall) -> dict[str, Any]:
    """Return the arguments of a call. Raises `UnusableCallError` if they are not a JSON object."""
    try:
        # Not strict: models often write line breaks into strings.
        arguments = json.loads(call.arguments or "{}", strict=False)
    except (ValueError, RecursionError) as error:
        raise UnusableCallError(f"the arguments of {call.name} are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise UnusableCallError(f"the arguments of {call.name} are not a JSON object")
    return {name: value for name, value in arguments.items() if value is not None}


def _read_integer(tool: str, name: str, value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise UnusableCallError(f"{tool}: {name} is a whole number from 1")
