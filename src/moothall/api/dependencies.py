"""What a server lets callers through to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from moothall.agents.service import AgentTasks
from moothall.api.bundles import Bundles
from moothall.api.health import HealthCheck
from moothall.authorization.approval_queue import ApprovalQueue
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
    """The packages behind the services; `models` are those of the settings. `visits`: where callers
    may use
    tools themselves, None where another process has the role. `ask` asks the graph, `repositories`
    are what a page shows files of. `served` says which of api and page are. `taking` is set while a
    server takes calls and was not told to stop, `stopping` when it takes none any more: a call that
    ends early ends by its will then, not by its caller's.
    """

    deliberations: Deliberations
    councils: CouncilRegistry
    plans: Planner
    author: StoryWriter
    board: Board
    accounts: StoryBudgets
    tallies: Statistics
    tasks: Overview
    decisions: Decisions
    briefings: Briefings
    ask: Ask
    notes: Notes
    bundles: Bundles
    checkup: HealthCheck
    models: Models
    visits: ToolSessions | None
    parking: ApprovalQueue | None
    executions: Executions | None
    workflows: Workflows | None
    agents: AgentTasks | None
    repositories: RepositoryService | None
    served: frozenset[str]
    taking: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
