"""What a server lets callers through to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from moothall.agents.service import AgentTasks
from moothall.api.bundles import Bundles
from moothall.api.health import Checkup
from moothall.authorization.approval_queue import Parking
from moothall.authorization.recent_decisions import Decisions
from moothall.authorization.story_budgets import Accounts
from moothall.collector.overview import Overview
from moothall.collector.statistics import Tally
from moothall.config import Models
from moothall.deliberation.prompts.briefing import Ask, Briefings
from moothall.orchestrator.council_registry import Roster
from moothall.orchestrator.story_writer import Author
from moothall.ports import Deliberations
from moothall.repositories.service import TrustedRepositories
from moothall.stories.board import Board
from moothall.stories.notes import Notes
from moothall.stories.planner import Planner
from moothall.tool_sessions.executions import Executions
from moothall.tool_sessions.manager import Visits
from moothall.workflows.runner import Workflows


@dataclass(frozen=True, slots=True)
class Doors:
    """The rooms behind the services; `models` are those of the settings. `visits`: where callers
    may use
    tools themselves, None where another process has the role. `ask` asks the graph, `repositories`
    are what a page shows files of. `served` says which of api and page are. `taking` is set while a
    server takes calls and was not told to stop, `stopping` when it takes none any more: a call that
    ends early ends by its will then, not by its caller's.
    """

    desk: Deliberations
    councils: Roster
    plans: Planner
    author: Author
    board: Board
    accounts: Accounts
    tallies: Tally
    tasks: Overview
    decisions: Decisions
    briefings: Briefings
    ask: Ask
    notes: Notes
    bundles: Bundles
    checkup: Checkup
    models: Models
    visits: Visits | None
    parking: Parking | None
    executions: Executions | None
    workflows: Workflows | None
    agents: AgentTasks | None
    repositories: TrustedRepositories | None
    served: frozenset[str]
    taking: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
