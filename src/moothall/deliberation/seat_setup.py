"""The setup of the seats of one model: reply mode, prompts and tools. The tools that a seat
calls natively: short names for the catalogue's tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from moothall.authorization.gateway import ToolGateway
from moothall.config import LlmSettings
from moothall.deliberation.function_writing import DEFINE, Function, find_function
from moothall.deliberation.prompts import prompts, tool_prompt
from moothall.deliberation.prompts.excerpts import RepoMap, RepoMapRequest
from moothall.deliberation.prompts.guides import Guides, read_guides
from moothall.deliberation.prompts.repository_context import Read, SurveyCode, select_context
from moothall.deliberation.recorded_model import NamedModel
from moothall.domain.chat import FunctionCall, FunctionTool, ReplyMode
from moothall.domain.repository import Prepared
from moothall.domain.task import Deliberation
from moothall.domain.text import tokens
from moothall.domain.tool import PYTHON_WINDOW, Action, Grant
from moothall.tools.catalogue import ToolSpec, intersection

if TYPE_CHECKING:
    from moothall.deliberation.context import Dependencies


# The tools that a seat calls natively: short names for the catalogue's tools.


SUBMIT = "submit"
BASH, VIEW, EDIT, WRITE = "code.shell", "files.read", "files.edit", "files.write"
_SHELL_REPLACES = frozenset({"files", "git", "tests", "code", "system"})
"""Categories of tools that seats with a shell do not need under separate names."""
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_COUNT_ARGUMENT = re.compile(r"\bcount=\d+\b")
_CATALOGUE_NAME = re.compile(r"(?<![\w/.'-])(?:files|git|tests|code|system)\.[a-z_]+\b(?![/(])")
_USAGE_HINT = re.compile(r" Right is [a-z]+\.[a-z_]+\([^()]*\)\Z")
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


# The setup of the seats of one model: reply mode, prompts and tools. The models of a council may
# differ.


_ALL_TOOLS_WINDOW = 16_000  # smaller windows get the core tools only
_REPOSITORY_CONTEXT_SHARE = 0.5  # of the prompt; the rest is for the conversation
_MAX_FILE_CHARS = 65_536  # before the file is cut to the window
TEXT_TURNS = 12
"""Turns of a seat whose model replies in JSON or blocks, without native tool calls."""


@dataclass(frozen=True, slots=True)
class SeatSetup:
    """The setup of the seats of one model. native: the model calls tools natively. mode: the format
    of replies in text.
    """

    llm: LlmSettings
    native: bool
    mode: ReplyMode
    max_turns: int
    system: str
    shared: str
    specs: tuple[ToolSpec, ...] = ()
    tools: SeatTools | None = None
    """The native tools; None about text, and for replies in JSON or blocks."""
    python: bool = False
    example: tuple[Action, ...] = ()
    """The actions of the worked example in `system`: a reply with only these is a copy of it."""
    function: Function | None = None
    guides: Guides = field(default_factory=Guides)

    @property
    def reply_mode(self) -> ReplyMode:
        """How seats call tools."""
        return "tools" if self.tools is not None else self.mode

    @property
    def judge_system(self) -> str:
        """The system message of calls that judge answers."""
        return prompts.JUDGE if self.native else self.system


async def create_seat_setup(
    deliberation: Deliberation,
    prepared: Prepared | None,
    dependencies: Dependencies,
    named: NamedModel,
    reply_mode: ReplyMode,
) -> SeatSetup:
    """Return the setup of the seats of a model. Raises the errors of the reader."""
    llm, native = named.llm, reply_mode == "tools"
    mode: ReplyMode = "blocks" if native else reply_mode
    turns = deliberation.max_turns
    if not native:  # in JSON and blocks, further turns are useless
        turns = min(turns, TEXT_TURNS)
    grant = grant_of(deliberation, dependencies.gateway, prepared)
    specs = (
        tuple(
            dependencies.gateway.list_tools(
                deliberation.tenant, grant, core=llm.context_tokens < _ALL_TOOLS_WINDOW
            )
        )
        if prepared
        else ()
    )
    tools = SeatTools.from_specs(specs) if native and specs else None
    if tools is not None and prepared is not None:
        overview = await tool_prompt.survey_repository(
            prepared, deliberation.description, *_create_readers(prepared, dependencies)
        )
        shared = tool_prompt.shared_text(deliberation, overview, prepared)
        system = tool_prompt.system_text(shell=tools.has_shell, alone=len(deliberation.seats) == 1)
        return SeatSetup(
            llm, native, mode, turns, system, shared, specs, tools, guides=overview.guides
        )
    python = (
        dependencies.python.run_code is not None
        and bool(specs)
        and llm.context_tokens >= PYTHON_WINDOW
    )
    setup = SeatSetup(llm, native, mode, turns, "", "", specs, python=python)
    return await _add_prompts(deliberation, prepared, dependencies, setup)


async def _add_prompts(
    deliberation: Deliberation,
    prepared: Prepared | None,
    dependencies: Dependencies,
    setup: SeatSetup,
) -> SeatSetup:
    """Add the prompts of seats that reply in JSON or blocks, with the repository's context."""
    llm, specs, mode, python = setup.llm, setup.specs, setup.mode, setup.python
    system = prompts.system_text(specs, mode, python=python, document=bool(deliberation.document))
    if prepared is None or deliberation.asks_no_model:
        return replace(setup, system=system, shared=prompts.shared_text(deliberation, None))
    max_prompt_tokens = max(
        llm.context_tokens
        - llm.max_tokens
        - tokens(system)
        - tokens(deliberation.description)
        - tokens(deliberation.context),
        0,
    )
    read_file, survey = _create_readers(prepared, dependencies)
    guides = await read_guides(prepared.files, (), read_file)
    guide_lists = list(guides.list_parts()) if specs else []
    repository_context = await select_context(
        prepared,
        deliberation.description,
        read_file,
        max(int(max_prompt_tokens * _REPOSITORY_CONTEXT_SHARE) - sum(map(tokens, guide_lists)), 0),
        survey,
    )
    can_define = any(spec.name == DEFINE for spec in specs)
    if not can_define:
        # The example must not use tools that are not granted.
        repository_context = replace(repository_context, example=None)
    if repository_context.example is not None:
        system = prompts.system_text(specs, mode, python=python, example=repository_context.example)
    asks_for_function = can_define and (
        llm.functions == "on" or (llm.functions == "auto" and llm.base_url is None)
    )
    return replace(
        setup,
        system=system,
        guides=guides,
        shared=prompts.shared_text(deliberation, repository_context, guide_lists),
        example=prompts.example_of(repository_context),
        function=find_function(deliberation.description, repository_context, prepared.files)
        if asks_for_function and not deliberation.is_answer("")
        else None,
    )


def _create_readers(prepared: Prepared, dependencies: Dependencies) -> tuple[Read, SurveyCode]:
    """Return functions that read a file of the base and survey it."""

    async def read_file(path: str) -> str:
        return await dependencies.repositories.read_file(prepared.base, path, _MAX_FILE_CHARS)

    async def survey(request: RepoMapRequest) -> RepoMap:
        return (
            await dependencies.repositories.mapper.survey(prepared, request)
            if dependencies.repositories.mapper
            else RepoMap()
        )

    return read_file, survey


def grant_of(deliberation: Deliberation, gateway: ToolGateway, prepared: Prepared | None) -> Grant:
    """Return the grant of the seats: that of their role, limited to the task's tools if it names
    any.
    """
    grant = gateway.grant_for(
        deliberation.role, prepared.base.profile.protected if prepared else ()
    )
    return intersection(grant, Grant(deliberation.tools)) if deliberation.tools else grant
