"""The services that the API servers call."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from moothall.agents.service import AgentTasks
from moothall.api.bundles import Bundles
from moothall.api.health import HealthCheck
from moothall.authorization.approval_queue import ApprovalQueue
from moothall.authorization.quotas import Quotas
from moothall.authorization.recent_decisions import Decisions
from moothall.authorization.story_budgets import StoryBudgets
from moothall.collector.overview import Overview
from moothall.collector.statistics import Statistics
from moothall.config import Models
from moothall.deliberation.prompts.briefing import Ask, Briefings
from moothall.orchestrator.council_registry import CouncilRegistry
from moothall.orchestrator.story_writer import StoryWriter
from moothall.ports import Deliberations
from moothall.repositories.service import RepositoryService
from moothall.stories.board import Board
from moothall.stories.notes import Notes
from moothall.stories.planner import Planner
from moothall.tool_sessions.executions import Executions
from moothall.tool_sessions.manager import ToolSessions
from moothall.workflows.runner import Workflows


@dataclass(frozen=True, slots=True)
class ApiDependencies:
    """The services behind the API. `models` are those of the settings. `tool_sessions` is None if
    another process serves tools. `query_graph` queries the graph, `repositories` provides files for
    the web page. `served` tells which of "api" and "page" this process serves. `taking` is set
    while a server accepts calls and was not told to stop. `stopping` is set once it accepts none: a
    call that ends early was then ended by the server, not by its caller.
    """

    deliberations: Deliberations
    councils: CouncilRegistry
    plans: Planner
    author: StoryWriter
    board: Board
    story_budgets: StoryBudgets
    quotas: Quotas
    statistics: Statistics
    tasks: Overview
    decisions: Decisions
    briefings: Briefings
    query_graph: Ask
    notes: Notes
    bundles: Bundles
    health_check: HealthCheck
    models: Models
    tool_sessions: ToolSessions | None
    approvals: ApprovalQueue | None
    executions: Executions | None
    workflows: Workflows | None
    agents: AgentTasks | None
    repositories: RepositoryService | None
    served: frozenset[str]
    taking: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
