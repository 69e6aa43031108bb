"""The setup of the seats of one model: reply mode, prompts and tools. The models of a council may
differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from moothall.authorization.gateway import ToolGateway
from moothall.authorization.grants import intersection
from moothall.config import LlmSettings
from moothall.deliberation.function import DEFINE, Function, find_function
from moothall.deliberation.prompts import prompts, tool_prompt
from moothall.deliberation.prompts.guides import Guides, read_guides
from moothall.deliberation.prompts.repo_map import RepoMap, RepoMapRequest
from moothall.deliberation.prompts.repository_context import Look, Read, show
from moothall.deliberation.prompts.text import tokens
from moothall.deliberation.recorded_model import NamedModel
from moothall.deliberation.seat_tools import SeatTools
from moothall.domain.chat import ReplyMode
from moothall.domain.code import PYTHON_WINDOW
from moothall.domain.repository import Prepared
from moothall.domain.task import Deliberation
from moothall.domain.tool import Action, Grant
from moothall.tools.catalogue import ToolSpec

if TYPE_CHECKING:
    from moothall.deliberation.context import Dependencies

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
        dependencies.run_code is not None and bool(specs) and llm.context_tokens >= PYTHON_WINDOW
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
    repository_context = await show(
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


def _create_readers(prepared: Prepared, dependencies: Dependencies) -> tuple[Read, Look]:
    """Return functions that read a file of the base and survey it."""

    async def read_file(path: str) -> str:
        return await dependencies.read_file(prepared.base, path, _MAX_FILE_CHARS)

    async def survey(request: RepoMapRequest) -> RepoMap:
        return (
            await dependencies.repo_mapper.survey(prepared, request)
            if dependencies.repo_mapper
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
