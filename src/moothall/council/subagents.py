"""`agents.run`: agents that a block of Python starts, in the same workspace, with no more than its seat may and has left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from moothall.config import Llm, Runner
from moothall.council import prompts
from moothall.council.history import Exchange, window
from moothall.council.recording import RecordedModel
from moothall.council.reply import MalformedReplyError, Turn, read_turn, turn_schema
from moothall.council.report import block_text, result_text
from moothall.council.text import CHARS_PER_TOKEN
from moothall.domain.chat import ChatRequest, ReplyMode
from moothall.domain.code import AGENTS_RUN
from moothall.domain.ids import digest
from moothall.domain.proposal import Operation
from moothall.domain.tool import Grant, ToolCall, ToolResult, ToolStatus
from moothall.errors import BudgetExceeded, DeadlineExceeded, MoothallError
from moothall.guard.blocks import Allowance, BlockCalls
from moothall.guard.gate import Gate
from moothall.guard.grants import narrowed
from moothall.guard.seat import SeatContext
from moothall.guard.tokens import narrow

if TYPE_CHECKING:
    from moothall.council.coding import Coding

_PROMPT_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Speech:
    """How a seat's sub-agents speak to the model."""

    model: RecordedModel
    llm: Llm
    mode: ReplyMode
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Caller:
    """Who runs a block: the seat itself at depth 0, or a sub-agent by its number, in its own turn."""

    depth: int = 0
    number: int = 0
    turn: int = 1

    def child(self, index: int, settings: Runner) -> Caller:
        """Return the `index`-th sub-agent, from 1. No two of a turn have one number, and a turn done again gives the same."""
        below = settings.agents_fan_out
        if self.depth:
            index += below + ((self.number - 1) * settings.agents_turns + self.turn - 1) * below
        return Caller(self.depth + 1, index)

    def ordinal(self, turn: int, settings: Runner) -> int:
        """Return the last part of the call id of a sub-agent's turn."""
        return (self.number - 1) * settings.agents_turns + turn


@dataclass(slots=True)
class SubAgents:
    """The sub-agents of one block. `results` and `operations` are those of their tools, agent by agent."""

    coding: Coding
    context: SeatContext
    gate: Gate
    step: str
    caller: Caller
    allowance: Allowance
    results: list[ToolResult] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    _started: int = 0

    async def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Let an agent work on each of `prompts`, side by side; `answers` are their answers in order. `tools` narrows what they
        may call. Raises what the model raises when it is gone.
        """
        settings = self.coding.settings
        given, tools = arguments.get("prompts"), arguments.get("tools")
        if not isinstance(given, list) or not given or not all(isinstance(item, str) and item.strip() for item in given):
            return _refused(ToolStatus.INVALID, "give a prompt, or a list of prompts")
        if tools is not None and not (isinstance(tools, list) and all(isinstance(item, str) for item in tools)):
            return _refused(ToolStatus.INVALID, "tools is a list of names of tools")
        if self.caller.depth >= settings.agents_depth:
            return _refused(ToolStatus.BLOCKED, f"agents may be {settings.agents_depth} deep, and this one is")
        if len(given) > self.allowance.agents or self._started + len(given) > settings.agents_fan_out:
            left = min(self.allowance.agents, settings.agents_fan_out - self._started)
            return _refused(ToolStatus.BUDGET_EXCEEDED, f"{len(given)} agents were asked for, and {left} are left to this block")
        self.allowance.agents -= len(given)
        first, self._started = self._started + 1, self._started + len(given)
        context = _narrow(self.context, tools)
        slots = asyncio.Semaphore(settings.agents_at_once)
        agents = [
            SubAgent(self, context, self.caller.child(first + index, settings), prompt) for index, prompt in enumerate(given)
        ]
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(agent.run(slots), name=f"agent {agent.who.number}")
        for agent in agents:
            self.results += agent.results
            self.operations += agent.operations
        for number, agent in enumerate(agents, 1):
            if agent.failed is not None:
                if not isinstance(agent.failed, BudgetExceeded | DeadlineExceeded):
                    raise agent.failed
                status = ToolStatus.TIMEOUT if isinstance(agent.failed, DeadlineExceeded) else ToolStatus.BUDGET_EXCEEDED
                return _refused(status, f"agent {number} of {len(agents)}: {agent.failed.message}")
        return ToolResult("", AGENTS_RUN, ToolStatus.SUCCESS, {"answers": [agent.answer for agent in agents]})


@dataclass(slots=True)
class SubAgent:
    """One of them: turns until it finishes, or has no turns left. `failed` is what ended it otherwise."""

    of: SubAgents
    context: SeatContext
    who: Caller
    prompt: str
    answer: str = ""
    failed: MoothallError | None = None
    results: list[ToolResult] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    _exchanges: list[Exchange] = field(default_factory=list)

    async def run(self, slots: asyncio.Semaphore) -> None:
        """Work on the prompt; never raises a `MoothallError`."""
        async with slots:
            try:
                self.answer = await self._work()
            except MoothallError as error:
                self.failed = error

    async def _work(self) -> str:
        settings = self.of.coding.settings
        specs = self.of.gate.offered(self.context.tenant, self.context.grant)
        speech = self.of.coding.speech
        python = self.who.depth < settings.agents_depth
        head = prompts.sub_agent_prompt(specs, speech.mode, self.prompt[:_PROMPT_CHARS])
        most = min(speech.llm.max_tokens, speech.llm.context_tokens // 3)
        for turn in range(1, settings.agents_turns + 1):
            step = self._step(turn)
            last = turn == settings.agents_turns
            reply = await speech.model.ask(
                ChatRequest(
                    call_id=f"{self.context.task_id}/{self.context.seat}/{step}",
                    messages=window(head, self._exchanges, speech.llm.context_tokens - most),
                    max_tokens=most,
                    deadline=self.context.deadline,
                    schema=turn_schema(() if last else specs, python=python and not last) if speech.mode == "json" else None,
                    temperature=speech.temperature,
                    seed=int(digest(str(speech.seed), self.context.seat, step)[:7], 16),
                )
            )
            try:
                said = read_turn(reply, speech.mode)
            except MalformedReplyError as error:
                self._exchanges.append(Exchange(reply.text, str(error), "malformed"))
                continue
            if said.finish is not None:
                return said.finish.strip()
            came = await self._do(said, step, turn)
            self._exchanges.append(Exchange(reply.text, came, "done"))
        return "(no answer: the agent used all its turns)"

    def _step(self, turn: int) -> str:
        """The step of the seat's turn, with this agent's own number: a sub-agent's sub-agents are numbered with it."""
        phase, _, place = self.of.step.partition("/")
        return f"{phase}/{'.'.join(place.split('.')[:2])}.{self.who.ordinal(turn, self.of.coding.settings)}"

    async def _do(self, said: Turn, step: str, turn: int) -> str:
        """Run what a turn asks for and return what is told of it."""
        room = int(self.of.coding.speech.llm.context_tokens * CHARS_PER_TOKEN / 5)
        if said.python is not None:
            coded = await self.of.coding.run(
                said.python,
                self.context,
                self.of.gate,
                step,
                caller=replace(self.who, turn=turn),
                allowance=self.of.allowance,
            )
            self.results += coded.results
            self.operations += coded.operations
            return block_text(coded.run, room)
        calls = BlockCalls(
            self._through, f"{self.context.task_id}/{self.context.seat}/{step}", self.context.deadline, self.of.allowance
        )
        told: list[str] = []
        for number, action in enumerate(said.actions, 1):
            result = await calls(action.tool, action.args)
            told.append(result_text(number, result, room // len(said.actions)))
            if result.status is not ToolStatus.SUCCESS:
                break
        self.results += calls.results
        self.operations += calls.operations
        return "\n\n".join(told)

    async def _through(self, call: ToolCall) -> ToolResult:
        return await self.of.gate.call(self.context, call)


def _narrow(context: SeatContext, tools: list[str] | None) -> SeatContext:
    """Return the seat with these of its tools alone; None: all that it has."""
    if tools is None:
        return context
    token = narrow(context.token, seconds=_seconds(context), tools=tools) if context.token else ""
    return replace(context, grant=narrowed(context.grant, Grant(tuple(tools))), token=token)


def _seconds(context: SeatContext) -> float:
    return max((context.deadline - datetime.now(UTC)).total_seconds(), 1.0)


def _refused(status: ToolStatus, reason: str) -> ToolResult:
    return ToolResult("", AGENTS_RUN, status, error=reason)
