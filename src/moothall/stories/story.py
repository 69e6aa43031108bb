"""A story folded from its events, and the fields that a caller's metadata sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moothall.domain.budget import NO_BUDGET, Budget, check_budget
from moothall.domain.codec import load
from moothall.domain.event import Event, EventType
from moothall.domain.plan import Story, Strategy
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest

_DESCRIPTIVE = {EventType.STORY_CREATED, EventType.STORY_CHANGED, EventType.STORY_TRANSITIONED}
"""The event types whose fields describe a story; other keys are stored and ignored here."""


def fold(story: Story, event: Event) -> Story:
    """Return the story updated by an event. Malformed fields are ignored, since any program may
    write to the log. The fields of an edit (`edited`) are complete: empty ones clear the story's.
    """
    if event.type not in _DESCRIPTIVE or event.data.get("story_id") != story.id:
        return story
    data = event.data
    if event.type is EventType.STORY_CHANGED and data.get("edited") is True:
        return replace(
            story,
            title=_text(data.get("title")) or story.title,
            brief=_text(data.get("brief")),
            ac=_texts(data.get("ac")),
            repository=_repository(data.get("repository"), _text(data.get("ref"))),
            budget=_budget(data.get("budget")) or NO_BUDGET,
        )
    return replace(
        story,
        title=_text(data.get("title")) or story.title,
        brief=_text(data.get("brief")) or story.brief,
        ac=_texts(data.get("ac")) or story.ac,
        repository=_repository(data.get("repository"), _text(data.get("ref"))) or story.repository,
        budget=_budget(data.get("budget")) or story.budget,
    )


def story_fields(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return metadata as fields of a story event; `ac` has one criterion on each line."""
    fields: dict[str, Any] = {
        name: metadata[name]
        for name in ("title", "brief", "repository", "ref")
        if metadata.get(name)
    }
    criteria = [line.strip().lstrip("-* ").strip() for line in metadata.get("ac", "").splitlines()]
    return fields | ({"ac": [line for line in criteria if line]} if any(criteria) else {})


def read_roles(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the comma-separated roles that metadata names."""
    return _split_list(metadata.get("roles"))


def read_strategy(metadata: Mapping[str, Any]) -> Strategy:
    """Return the strategy for deriving tasks that metadata asks for. Raises `InvalidRequest`."""
    number = _text(metadata.get("max_tasks_per_role")) or "0"
    if not (number.isascii() and number.isdecimal() and len(number) < 5):  # noqa: PLR2004 - thousands are enough
        raise InvalidRequest(
            f"metadata max_tasks_per_role is {number[:40]!r}; allowed are whole numbers from 0"
        )
    parallel = _text(metadata.get("parallel_execution")).lower() or "false"
    if parallel not in {"true", "false"}:
        raise InvalidRequest(
            f"metadata parallel_execution is {parallel[:40]!r}; allowed are true and false"
        )
    return Strategy(parallel == "true", _split_list(metadata.get("dependency_order")), int(number))


def _split_list(value: object) -> tuple[str, ...]:
    return tuple(part.strip() for part in _text(value).split(",") if part.strip())


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    return (
        tuple(text for item in value if (text := _text(item)))
        if isinstance(value, list | tuple)
        else ()
    )


def _budget(value: object) -> Budget | None:
    if not isinstance(value, Mapping):
        return None
    try:
        return check_budget(load(Budget, value))
    except InvalidRequest:
        return None


def _repository(value: object, ref: str) -> RepositoryRef | None:
    """Return the repository that a story names by its registered id, a path or a URL, or by id, url
    and ref.
    """
    if isinstance(value, Mapping):
        repository = RepositoryRef(
            _text(value.get("id")), _text(value.get("url")), _text(value.get("ref")) or ref
        )
    else:
        repository = RepositoryRef.from_name(_text(value), ref)
    return repository if repository.id or repository.url else None
