"""What somebody is told of a task before they begin."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BriefingRequest:
    """What is asked for, of that which the table of scopes allows to the role in the phase. No part
    at all means all but the timeline; any of them means the story and these. `scopes` narrow what
    was asked for.

    `story_id` or `task_id` is needed. `events` bounds the timeline, 0: the default; `budget` the
    whole in tokens, 0: the default. `description`, of a task that is not asked for yet, and its
    `repository`: past work is compared with it.
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
    """The parts and the whole. `told` is what the graph said, without its fence; `tokens` those of
    `text`; `version` changes with the text; `scopes` are those that were looked up.
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
