"""The briefing that an agent gets about a task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BriefingRequest:
    """A request for the parts of a briefing, limited to the scopes of the role in the phase. If no
    part is requested, all but the timeline are; otherwise the story and the requested parts.
    `scopes` restrict the request further.

    `story_id` or `task_id` is required. `events` limits the timeline, `budget` the whole in tokens;
    0 means the default. `description` and `repository` of a task that does not exist yet are
    compared with past work.
    """

    task_id: str = ""
    story_id: str = ""
    role: str = ""
    phase: str = ""
    timeline: bool = False
    decisions: bool = False
    summaries: bool = False
    events: int = 0
    scopes: tuple[str, ...] = ()
    budget: int = 0
    description: str = ""
    repository: str = ""


@dataclass(frozen=True, slots=True)
class Briefing:
    """The parts and the whole. `told` is the graph's text without its fence. `tokens` are those of
    `text`. `version` changes with the text. `scopes` are those that were read.
    """

    system: str
    context: str
    tools: str
    history: str
    text: str
    tokens: int
    version: str
    told: str = ""
    scopes: tuple[str, ...] = ()
