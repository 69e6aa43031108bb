"""The decision of a person that a move of a story implies, as an event."""

from __future__ import annotations

from moothall.domain.event import Event, EventType
from moothall.stories.architect_prompts import design_task
from moothall.stories.story_state import StoryState
from moothall.telemetry.events import write

_DECISION_PREFIXES = ("accept", "reject")
"""The prefixes of events by which people decide."""


def decision_event(card: StoryState) -> Event | None:
    """Return the decision that the last move of a story implies, None if it implies none."""
    move = card.entered
    if move is None or not str(move.data.get("event")).startswith(_DECISION_PREFIXES):
        return None
    move_event = str(move.data.get("event"))
    comment = str(move.data.get("comment") or "")
    plan = (
        card.plan.data if card.plan is not None and move.data.get("from_state") == "design" else {}
    )
    designed = (
        design_task(str(plan.get("plan_id")))
        if plan.get("by") == "architects"
        else str(plan.get("design") or "")
    )
    checked = (
        str(card.check.data.get("task_id") or "")
        if card.check and move.data.get("from_state") != "design"
        else ""
    )
    data = {
        "story_id": card.story.id,
        "task_id": designed or checked,
        "approver": move.data.get("actor"),
        "decision": "approved"
        if move_event.startswith("accept")
        else "changes"
        if comment or card.remarks
        else "rejected",
        "comment": comment,
    }
    origin = {"ordinal": move.id, "causationid": move.id, "tenant": move.tenant}
    return write(EventType.DECISION_MADE, card.story.id, data, **origin, time=move.time)
