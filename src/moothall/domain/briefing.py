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
    """The parts of a briefing, and the whole text.

    graph_text: the text of the graph without its fence.
    tokens: the number of tokens of `text`.
    version: changes with the text.
    scopes: the scopes that were read.
    """

    system: str
    context: str
    tools: str
    history: str
    text: str
    tokens: int
    version: str
    graph_text: str = ""
    scopes: tuple[str, ...] = ()
