"""`agents.run`: agents that a block of Python starts, in the same workspace, with no more than its seat may and has left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moothall.aio import seconds_until
from moothall.config import Limits, Llm
from moothall.council.coding import Block, Coding, TurnContext
from moothall.council.conversation import Conversation, Voice
from moothall.council.prompting import prompts
from moothall.council.prompting.text import CHARS_PER_TOKEN
from moothall.council.recording import RecordedModel
from moothall.council.turns import TurnStep, asked_of, do, stuck
from moothall.domain.code import AGENTS_RUN
from moothall.domain.ids import digest
from moothall.domain.proposal import Operation
from moothall.domain.tool import Grant, ToolResult, ToolStatus
from moothall.errors import BudgetExceeded, DeadlineExceeded, MoothallError
from moothall.guard.grants import intersection
from moothall.guard.seat import SeatContext
from moothall.guard.tokens import narrow

_PROMPT_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class SubAgents:
    """Starts the sub-agents of one seat's blocks; they speak to the model as it does."""

    model: RecordedModel
    llm: Llm
    limits: Limits
    voice: Voice

    async def run(self, coding: Coding, block: Block, arguments: Mapping[str, Any]) -> ToolResult:
        """Let an agent work on each of `prompts`, side by side; `answers` are their answers in order. `tools` narrows what they
        may call. Raises what the model raises when it is gone.
        """
        settings, at = coding.settings, block.at
        given, tools = arguments.get("prompts"), arguments.get("tools")
        if not isinstance(given, list) or not given or not all(isinstance(item, str) and item.strip() for item in given):
            return _refused(ToolStatus.INVALID, "give a prompt, or a list of prompts")
        if tools is not None and not (isinstance(tools, list) and all(isinstance(item, str) for item in tools)):
            return _refused(ToolStatus.INVALID, "tools is a list of names of tools")
        if at.caller.depth >= settings.agents_depth:
            return _refused(ToolStatus.BLOCKED, f"agents may be {settings.agents_depth} deep, and this one is")
        if len(given) > block.allowance.agents or block.started + len(given) > settings.agents_fan_out:
            left = min(block.allowance.agents, settings.agents_fan_out - block.started)
            return _refused(ToolStatus.BUDGET_EXCEEDED, f"{len(given)} agents were asked for, and {left} are left to this block")
        block.allowance.agents -= len(given)
        first, block.started = block.started + 1, block.started + len(given)
        place = replace(at, context=_narrow(at.context, tools), allowance=block.allowance)
        slots = asyncio.Semaphore(settings.agents_at_once)
        agents = [
            SubAgent(self, coding, replace(place, caller=at.caller.child(first + index, settings)), prompt)
            for index, prompt in enumerate(given)
        ]
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(agent.run(slots), name=f"agent {agent.place.caller.number}")
        for agent in agents:
            block.results += agent.results
            block.operations += agent.operations
        for number, agent in enumerate(agents, 1):
            if agent.failed is not None:
                if not isinstance(agent.failed, BudgetExceeded | DeadlineExceeded):
                    raise agent.failed
                status = ToolStatus.TIMEOUT if isinstance(agent.failed, DeadlineExceeded) else ToolStatus.BUDGET_EXCEEDED
                return _refused(status, f"agent {number} of {len(agents)}: {agent.failed.message}")
        return ToolResult("", AGENTS_RUN, ToolStatus.SUCCESS, {"answers": [agent.answer for agent in agents]})


@dataclass(slots=True)
class SubAgent:
    """One of them: turns until it finishes, goes in circles or has no turns left. `failed` is what ended it otherwise."""

    of: SubAgents
    coding: Coding
    place: TurnContext
    prompt: str
    answer: str = ""
    failed: MoothallError | None = None
    results: list[ToolResult] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    _steps: list[TurnStep] = field(default_factory=list)

    async def run(self, slots: asyncio.Semaphore) -> None:
        """Work on the prompt; never raises a `MoothallError`."""
        async with slots:
            try:
                self.answer = await self._work()
            except MoothallError as error:
                self.failed = error

    async def _work(self) -> str:
        settings, caller, context = self.coding.settings, self.place.caller, self.place.context
        specs = self.place.gate.list_tools(context.tenant, context.grant)
        talk = Conversation(
            f"{context.task_id}/{context.seat}",
            prompts.sub_agent_prompt(specs, self.of.voice.mode, self.prompt[:_PROMPT_CHARS]),
            self.of.voice,
            model=self.of.model,
            llm=self.of.llm,
            specs=specs,
            python=caller.depth < settings.agents_depth,
        )
        malformed = 0
        for turn in range(1, settings.agents_turns + 1):
            place = replace(self.place, step=self._step(turn), caller=replace(caller, turn=turn))
            said, text = await talk.ask(place.step, context.deadline, must_finish=turn == settings.agents_turns, runs_python=True)
            if isinstance(said, str):
                malformed += 1
                self._steps.append(TurnStep(digest(text), malformed=True))
                talk.add(text, said, "malformed")
                if malformed > self.of.limits.malformed_replies:
                    return f"(no answer: {malformed} replies were no turn)"
            elif said.finish is not None:
                return said.finish.strip()
            else:
                did = await do(said, self.coding, place)
                self.results += did.results
                self.operations += did.operations
                tree = str(turn) if did.may_have_changed else self._steps[-1].tree if self._steps else ""
                self._steps.append(TurnStep(asked_of(said), tree, changed=did.may_have_changed))
                room = int(self.of.llm.context_tokens * CHARS_PER_TOKEN / 5) // len(did.texts)
                talk.add(text, "\n\n".join(part(room) for part in did.texts), did.brief)
            if circle := stuck(self._steps, self.of.limits.stuck_turns):
                return f"(no answer: {circle})"
        return "(no answer: the agent used all its turns)"

    def _step(self, turn: int) -> str:
        """The step of the seat's turn, with this agent's own number: a sub-agent's sub-agents are numbered with it."""
        phase, _, place = self.place.step.partition("/")
        return f"{phase}/{'.'.join(place.split('.')[:2])}.{self.place.caller.ordinal(turn, self.coding.settings)}"


def _narrow(context: SeatContext, tools: list[str] | None) -> SeatContext:
    """Return the seat with these of its tools alone; None: all that it has."""
    if tools is None:
        return context
    token = narrow(context.token, seconds=max(seconds_until(context.deadline), 1.0), tools=tools) if context.token else ""
    return replace(context, grant=intersection(context.grant, Grant(tuple(tools))), token=token)


def _refused(status: ToolStatus, reason: str) -> ToolResult:
    return ToolResult("", AGENTS_RUN, status, error=reason)
