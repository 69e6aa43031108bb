"""What a server lets callers through to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from moothall.agents.service import AgentTasks
from moothall.collector.overview import Overview
from moothall.collector.tally import Tally
from moothall.config import Models
from moothall.council.front.author import Author
from moothall.council.front.roster import Roster
from moothall.council.prompting.briefing import Ask, Briefings
from moothall.guard.accounts import Accounts
from moothall.guard.decisions import Decisions
from moothall.guard.parking import Parking
from moothall.planning.board import Board
from moothall.planning.notes import Notes
from moothall.planning.planner import Planner
from moothall.ports import Deliberations
from moothall.repositories.trusted import TrustedRepositories
from moothall.services.bundles import Bundles
from moothall.services.checkup import Checkup
from moothall.visits.executions import Executions
from moothall.visits.visits import Visits
from moothall.workflows.running import Workflows


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
