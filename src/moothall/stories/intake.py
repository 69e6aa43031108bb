"""Validation of story events, which any program may publish. An invalid one becomes a dead
letter.
"""

from __future__ import annotations

from collections.abc import Mapping

from moothall.domain.budget import Budget, check_budget
from moothall.domain.codec import load
from moothall.domain.event import Event, EventType
from moothall.domain.ids import check_id
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest
from moothall.stories.lifecycle import lifecycle

_DESCRIPTIVE = {EventType.STORY_CREATED, EventType.STORY_CHANGED, EventType.STORY_TRANSITIONED}
"""The event types whose fields describe a story."""
_TEXT_FIELDS = (
    "title",
    "brief",
    "ref",
    "plan_id",
    "actor",
    "event",
    "from_state",
    "to_state",
    "comment",
)


def check_event(event: Event) -> str:
    """Return the id of an event's story. Raises `InvalidRequest` naming the invalid field."""
    data = event.data
    story_id = data.get("story_id")
    if not isinstance(story_id, str):
        raise InvalidRequest("the event's data has no story_id: expected an id")
    check_id(story_id, "story_id")
    check_id(event.tenant, "tenant")
    if event.type not in _DESCRIPTIVE:
        return story_id
    for name in _TEXT_FIELDS:
        if name in data and not isinstance(data[name], str):
            raise InvalidRequest(f"{name} is not a text")
    _check_fields(data)
    if (
        event.type is EventType.STORY_CREATED
        and not str(data.get("title") or data.get("brief") or "").strip()
    ):
        raise InvalidRequest("the story has neither a title nor a brief")
    if event.type is EventType.STORY_TRANSITIONED and not str(data.get("to_state") or "").strip():
        raise InvalidRequest("to_state is empty; give the new state, for example planning")
    return story_id


def _check_fields(data: Mapping[str, object]) -> None:
    criteria, repository, rigor = (
        data.get("ac", ()),
        data.get("repository", ""),
        data.get("rigor_level", ""),
    )
    if not isinstance(criteria, list | tuple) or not all(
        isinstance(line, str) for line in criteria
    ):
        raise InvalidRequest("ac is not a list of texts")
    if isinstance(repository, Mapping):
        load(RepositoryRef, repository)
    elif not isinstance(repository, str):
        raise InvalidRequest("repository is neither a text nor an object with id, url and ref")
    if rigor and str(rigor) not in lifecycle().ready:  # it may be of any type
        raise InvalidRequest(
            f"rigor_level is {str(rigor)[:40]!r}; allowed are {', '.join(lifecycle().ready)}"
        )
    if not isinstance(data.get("metadata", {}), Mapping):
        raise InvalidRequest("metadata is not an object")
    if "budget" in data:
        check_budget(load(Budget, data["budget"]))
