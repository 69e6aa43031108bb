"""`agents.run`: agents that a block of Python starts in the same workspace, with at most its seat's
grants and remaining budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moothall.authorization.checks import CallContext
from moothall.authorization.tokens import narrow
from moothall.concurrency import seconds_until
from moothall.config import LlmSettings
from moothall.deliberation.agent import AgentLoop
from moothall.deliberation.attempt import AttemptState, MalformedReplies
from moothall.deliberation.code_blocks import Block, BlockRunner, SubAgentLimits, TurnContext
from moothall.deliberation.conversation import Conversation, SamplingSettings
from moothall.deliberation.local_checks import CheckedWorkspace
from moothall.deliberation.prompts import prompts
from moothall.deliberation.recorded_model import RecordedModel
from moothall.domain.tool import AGENTS_RUN, Grant, ToolResult, ToolStatus
from moothall.errors import BudgetExceeded, DeadlineExceeded, MoothallError
from moothall.tools.catalogue import intersection

_PROMPT_CHARS = 20_000
_MAX_CONCURRENT = 4
"""Sub-agents of one block that run side by side; more wait."""


@dataclass(frozen=True, slots=True)
class SubAgents:
    """Starts the sub-agents of one seat's blocks, with the seat's model settings."""

    model: RecordedModel
    llm: LlmSettings
    sampling: SamplingSettings

    async def run_agents(
        self, block_runner: BlockRunner, block: Block, arguments: Mapping[str, Any]
    ) -> ToolResult:
        """Run an agent for each of `prompts` concurrently; `answers` has their answers in order.
        `tools` narrows their grants. Raises the errors of an unavailable model.
        """
        limits, turn_context = block_runner.agent_limits, block.turn_context
        texts, tools = arguments.get("prompts"), arguments.get("tools")
        if (
            not isinstance(texts, list)
            or not texts
            or not all(isinstance(item, str) and item.strip() for item in texts)
        ):
            return _refusal(ToolStatus.INVALID, "give a prompt, or a list of prompts")
        if tools is not None and not (
            isinstance(tools, list) and all(isinstance(item, str) for item in tools)
        ):
            return _refusal(ToolStatus.INVALID, "tools is a list of names of tools")
        if turn_context.caller.depth >= limits.depth:
            return _refusal(
                ToolStatus.BLOCKED, f"agents may be {limits.depth} deep, and this one is"
            )
        if len(texts) > block.budget.agents or block.started + len(texts) > limits.fan_out:
            agents_left = min(block.budget.agents, limits.fan_out - block.started)
            return _refusal(
                ToolStatus.BUDGET_EXCEEDED,
                f"{len(texts)} agents were asked for, and {agents_left} are left to this block",
            )
        block.budget.agents -= len(texts)
        first_number, block.started = block.started + 1, block.started + len(texts)
        child_context = replace(
            turn_context,
            call_context=_narrow_tools(turn_context.call_context, tools),
            budget=block.budget,
        )
        slots = asyncio.Semaphore(_MAX_CONCURRENT)
        agents = [
            self._create_agent(
                block_runner,
                replace(
                    child_context, caller=turn_context.caller.child(first_number + index, limits)
                ),
                prompt,
            )
            for index, prompt in enumerate(texts)
        ]
        async with asyncio.TaskGroup() as group:
            for number, agent in enumerate(agents, first_number):
                group.create_task(agent.work(slots), name=f"agent {number}")
        for agent in agents:
            block.results += agent.agent.results
            block.operations += agent.agent.operations
        return _result_of(agents)

    def _create_agent(
        self, block_runner: BlockRunner, turn_context: TurnContext, prompt: str
    ) -> SubAgent:
        context, depth = turn_context.call_context, turn_context.caller.depth
        specs = turn_context.gateway.list_tools(context.tenant, context.grant)
        conversation = Conversation(
            context.task_id,
            context.seat,
            prompts.sub_agent_prompt(specs, self.sampling.mode, prompt[:_PROMPT_CHARS]),
            self.sampling,
            model=self.model,
            llm=self.llm,
            specs=specs,
            python=depth < block_runner.agent_limits.depth,
        )
        return SubAgent(
            AgentLoop(conversation, block_runner, may_answer=True),
            turn_context,
            block_runner.agent_limits,
        )


def _result_of(agents: Sequence[SubAgent]) -> ToolResult:
    """Return the answers, or the first lack of budget or time. Raises any other error."""
    for number, agent in enumerate(agents, 1):
        if agent.failed is not None:
            if not isinstance(agent.failed, BudgetExceeded | DeadlineExceeded):
                raise agent.failed
            status = (
                ToolStatus.TIMEOUT
                if isinstance(agent.failed, DeadlineExceeded)
                else ToolStatus.BUDGET_EXCEEDED
            )
            return _refusal(status, f"agent {number} of {len(agents)}: {agent.failed.message}")
    return ToolResult(
        "", AGENTS_RUN, ToolStatus.SUCCESS, {"answers": [agent.answer for agent in agents]}
    )


@dataclass(slots=True)
class SubAgent:
    """A sub-agent. `failed` is the error that ended it without an answer."""

    agent: AgentLoop
    turn_context: TurnContext
    limits: SubAgentLimits
    answer: str = ""
    failed: MoothallError | None = None

    async def work(self, slots: asyncio.Semaphore) -> None:
        """Work on the prompt until done, stuck or out of turns. Never raises a `MoothallError`."""
        # The round is the seat's turn, at all depths; the offset keeps the agents' call ids apart.
        phase, _, turn = self.turn_context.step.partition("/")
        attempt = AttemptState(
            f"{phase}/{'.'.join(turn.split('.')[:2])}",
            self.turn_context.call_context.deadline,
            CheckedWorkspace(self.turn_context),
            turn_offset=self.turn_context.caller.turn_offset(self.limits),
        )
        async with slots:
            try:
                await self.agent.run_turns(attempt, range(1, self.limits.turns + 1))
            except MalformedReplies as error:
                attempt.stuck_reason = error.message
            except MoothallError as error:
                self.failed = error
        self.answer = (
            attempt.summary
            or f"(no answer: {attempt.stuck_reason or 'the agent used all its turns'})"
        )


def _narrow_tools(context: CallContext, tools: list[str] | None) -> CallContext:
    """Return the context with only these of the seat's tools; all of them for None."""
    if tools is None:
        return context
    token = (
        narrow(context.token, seconds=max(seconds_until(context.deadline), 1.0), tools=tools)
        if context.token
        else ""
    )
    return replace(context, grant=intersection(context.grant, Grant(tuple(tools))), token=token)


def _refusal(status: ToolStatus, reason: str) -> ToolResult:
    return ToolResult("", AGENTS_RUN, status, error=reason)
