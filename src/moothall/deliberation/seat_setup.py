"""What the seats of one model work with: how they reply, their prompts and their tools. Models of
one council may differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moothall.authorization.gateway import ToolGateway
from moothall.authorization.grants import intersection
from moothall.config import LlmSettings
from moothall.deliberation.function import DEFINE, Function, find_function
from moothall.deliberation.prompts import prompts, tool_prompt
from moothall.deliberation.prompts.repo_map import RepoMap, RepoMapRequest
from moothall.deliberation.prompts.repository_context import Look, Read, show
from moothall.deliberation.prompts.text import tokens
from moothall.deliberation.recorded_model import NamedModel
from moothall.deliberation.seat_tools import SeatTools
from moothall.domain.chat import ReplyMode
from moothall.domain.repository import Prepared
from moothall.domain.task import Deliberation
from moothall.domain.tool import Action, Grant
from moothall.tools.catalogue import ToolSpec

if TYPE_CHECKING:
    from moothall.deliberation.context import Dependencies

_SMALL_WINDOW = 16_000  # below, only the core tools are offered
_CONTEXT_SHARE = 0.5  # of what the window leaves for a prompt; the rest is history
_SHOWN_CHARS = 65_536  # of one file, before it is cut to the window


@dataclass(frozen=True, slots=True)
class SeatSetup:
    """The setup of the seats of one model. `native`: the model calls tools natively. `mode`: how
    replies in text are spelled.
    """

    llm: LlmSettings
    native: bool
    mode: ReplyMode
    max_turns: int
    system: str
    shared: str
    specs: tuple[ToolSpec, ...] = ()
    tools: SeatTools | None = None
    """What seats call natively; None about text, and where they reply in json or blocks."""
    python: bool = False
    example: tuple[Action, ...] = ()
    """The actions of the worked example in `system`: a seat that replies with just these has copied
    it.
    """
    function: Function | None = None

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
    found: ReplyMode,
) -> SeatSetup:
    """Return the setup of the seats of a model that replies as `found`. Raises what the reader
    raises.
    """
    llm, native = named.llm, found == "tools"
    mode: ReplyMode = "blocks" if native else found
    turns = (
        deliberation.max_turns
        if native
        else min(deliberation.max_turns, dependencies.limits.text_turns)
    )  # in json and blocks more lead nowhere
    grant = grant_of(deliberation, dependencies.gateway, prepared)
    specs = (
        tuple(
            dependencies.gateway.list_tools(
                deliberation.tenant, grant, core=llm.context_tokens < _SMALL_WINDOW
            )
        )
        if prepared
        else ()
    )
    tools = SeatTools.from_specs(specs) if native and specs else None
    if tools is not None and prepared is not None:
        overview = await tool_prompt.survey_repository(
            prepared, deliberation.description, *_readers(prepared, dependencies)
        )
        shared = tool_prompt.shared_text(deliberation, overview, prepared)
        system = tool_prompt.system_text(shell=tools.has_shell, alone=len(deliberation.seats) == 1)
        return SeatSetup(llm, native, mode, turns, system, shared, specs, tools)
    python = (
        dependencies.run_code is not None
        and bool(specs)
        and llm.context_tokens >= dependencies.python.offer_from_tokens
    )
    setup = SeatSetup(llm, native, mode, turns, "", "", specs, python=python)
    return await _show(deliberation, prepared, dependencies, setup)


async def _show(
    deliberation: Deliberation,
    prepared: Prepared | None,
    dependencies: Dependencies,
    setup: SeatSetup,
) -> SeatSetup:
    """Return the setup of seats that reply in json or blocks with its prompts, and what of the
    repository goes into them.
    """
    llm, specs, mode, python = setup.llm, setup.specs, setup.mode, setup.python
    system = prompts.system_text(specs, mode, python=python, document=bool(deliberation.document))
    if prepared is None or deliberation.merge:
        return replace(setup, system=system, shared=prompts.shared_text(deliberation, None))
    room = max(
        llm.context_tokens
        - llm.max_tokens
        - tokens(system)
        - tokens(deliberation.description)
        - tokens(deliberation.context),
        0,
    )
    read, look = _readers(prepared, dependencies)
    shown = await show(prepared, deliberation.description, read, int(room * _CONTEXT_SHARE), look)
    defines = any(spec.name == DEFINE for spec in specs)
    if not defines:
        shown = replace(shown, example=None)  # nothing is shown that may not be used
    if shown.example is not None:
        system = prompts.system_text(specs, mode, python=python, example=shown.example)
    functions = defines and (
        llm.functions == "on" or (llm.functions == "auto" and llm.base_url is None)
    )
    return replace(
        setup,
        system=system,
        shared=prompts.shared_text(deliberation, shown),
        example=prompts.example_of(shown),
        function=find_function(deliberation.description, shown, prepared.files)
        if functions and not deliberation.is_answer("")
        else None,
    )


def _readers(prepared: Prepared, dependencies: Dependencies) -> tuple[Read, Look]:
    """Return what reads a file of the base, and what surveys it."""

    async def read(path: str) -> str:
        return await dependencies.read_file(prepared.base, path, _SHOWN_CHARS)

    async def look(order: RepoMapRequest) -> RepoMap:
        return (
            await dependencies.repo_mapper.survey(prepared, order)
            if dependencies.repo_mapper
            else RepoMap()
        )

    return read, look


def grant_of(deliberation: Deliberation, gate: ToolGateway, prepared: Prepared | None) -> Grant:
    """Return what the seats may do: what their role may, or those of the task's tools among it."""
    grant = gate.grant_for(deliberation.role, prepared.base.profile.protected if prepared else ())
    return intersection(grant, Grant(deliberation.tools)) if deliberation.tools else grant
