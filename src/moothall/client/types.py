"""What a client receives beside `Outcome`: events of a deliberation, and stories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moothall.domain.event import EventType


@dataclass(frozen=True, slots=True)
class Update:
    """One event of a deliberation.

    seq: the position to continue after, for `watch(after_seq=…)`; it increases.
    data: the event's data, as `moothall log asyncapi` describes it by type.
    status: PENDING, IN_PROGRESS or how it ended, as of this event.
    progress_percent: 0 to 100.
    step: what happened, in words.
    agent: the seat that the event is about, or an empty string.
    """

    seq: int
    type: EventType
    data: Mapping[str, Any]
    status: str = ""
    progress_percent: int = 0
    step: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True)
class StorySummary:
    """A story on the board. `dor_score`: 0 to 100, by the story coach."""

    story_id: str
    title: str
    state: str
    dor_score: int
    brief: str


@dataclass(frozen=True, slots=True)
class Story:
    """A story with its acceptance criteria and results.

    task_ids: the deliberations of its plan, in their order.
    branch, commit_sha: the combined result, once its check passed.
    """

    summary: StorySummary
    criteria: tuple[str, ...]
    task_ids: tuple[str, ...] = ()
    checked: bool = False
    branch: str = ""
    commit_sha: str = ""
    check_error: str = ""


@dataclass(frozen=True, slots=True)
class StoryMove:
    """The result of a move: the state after it. `blocked`: evidence is missing, and the story did
    not move; `reason` says what is missing.
    """

    story_id: str
    state: str
    blocked: bool
    reason: str
