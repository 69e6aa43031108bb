"""What the seats of one model work with: how they reply, their prompts and their tools. Models of
one council may differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moothall.authorization.gateway import ToolGateway
from moothall.authorization.grants import intersection
from moothall.config import LlmSettings
from moothall.deliberation.function import DEFINE, Function, function_of
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


async def set_up(
    d: Deliberation,
    prepared: Prepared | None,
    parts: Dependencies,
    named: NamedModel,
    found: ReplyMode,
) -> SeatSetup:
    """Return the setup of the seats of a model that replies as `found`. Raises what the reader
    raises.
    """
    llm, native = named.llm, found == "tools"
    mode: ReplyMode = "blocks" if native else found
    turns = (
        d.max_turns if native else min(d.max_turns, parts.limits.text_turns)
    )  # in json and blocks more lead nowhere
    grant = grant_of(d, parts.gate, prepared)
    specs = (
        tuple(parts.gate.list_tools(d.tenant, grant, core=llm.context_tokens < _SMALL_WINDOW))
        if prepared
        else ()
    )
    tools = SeatTools.of(specs) if native and specs else None
    if tools is not None and prepared is not None:
        overview = await tool_prompt.survey_repository(
            prepared, d.description, *_readers(prepared, parts)
        )
        shared = tool_prompt.shared_text(d, overview, prepared)
        system = tool_prompt.system_text(shell=tools.has_shell, alone=len(d.seats) == 1)
        return SeatSetup(llm, native, mode, turns, system, shared, specs, tools)
    python = (
        parts.run_code is not None
        and bool(specs)
        and llm.context_tokens >= parts.python.offer_from_tokens
    )
    setup = SeatSetup(llm, native, mode, turns, "", "", specs, python=python)
    return await _show(d, prepared, parts, setup)


async def _show(
    d: Deliberation, prepared: Prepared | None, parts: Dependencies, setup: SeatSetup
) -> SeatSetup:
    """Return the setup of seats that reply in json or blocks with its prompts, and what of the
    repository goes into them.
    """
    llm, specs, mode, python = setup.llm, setup.specs, setup.mode, setup.python
    system = prompts.system_text(specs, mode, python=python, document=bool(d.document))
    if prepared is None or d.merge:
        return replace(setup, system=system, shared=prompts.shared_text(d, None))
    room = max(
        llm.context_tokens
        - llm.max_tokens
        - tokens(system)
        - tokens(d.description)
        - tokens(d.context),
        0,
    )
    read, look = _readers(prepared, parts)
    shown = await show(prepared, d.description, read, int(room * _CONTEXT_SHARE), look)
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
        shared=prompts.shared_text(d, shown),
        example=prompts.example_of(shown),
        function=function_of(d.description, shown, prepared.files)
        if functions and not d.is_answer("")
        else None,
    )


def _readers(prepared: Prepared, parts: Dependencies) -> tuple[Read, Look]:
    """Return what reads a file of the base, and what surveys it."""

    async def read(path: str) -> str:
        return await parts.read(prepared.base, path, _SHOWN_CHARS)

    async def look(order: RepoMapRequest) -> RepoMap:
        return await parts.surveyor.survey(prepared, order) if parts.surveyor else RepoMap()

    return read, look


def grant_of(d: Deliberation, gate: ToolGateway, prepared: Prepared | None) -> Grant:
    """Return what the seats may do: what their role may, or those of the task's tools among it."""
    grant = gate.grant_for(d.role, prepared.base.profile.protected if prepared else ())
    return intersection(grant, Grant(d.tools)) if d.tools else grant
