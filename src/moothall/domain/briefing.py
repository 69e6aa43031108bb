"""What somebody is told of a task before they begin."""

from __future__ import annotations

from dataclasses import dataclass

SCOPES = ("story", "summaries", "decisions", "timeline")
"""Parts of a briefing: the story itself; what came of earlier work; what was decided on it; what happened."""
PHASES = ("plan", "propose", "critique", "revise", "verify", "derive", "coach", "design", "build", "test", "review")


@dataclass(frozen=True, slots=True)
class BriefingRequest:
    """What is asked for. No part at all means story, summaries and decisions; `scopes` narrow what was asked for.

    `story_id` or `task_id` is needed. `events` bounds the timeline, 0: the default.
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


@dataclass(frozen=True, slots=True)
class Briefing:
    """The parts and the whole. `tokens` is an estimate, rather too many than too few; `version` changes with the text."""

    system: str
    context: str
    tools: str
    history: str
    text: str
    tokens: int
    version: str
