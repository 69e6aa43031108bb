"""The state of a story on the board, folded from its events. A story folded from its events, and
the fields that a caller's metadata sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moothall.domain.budget import NO_BUDGET, Budget, check_budget
from moothall.domain.codec import load
from moothall.domain.event import Event, EventType, Recorded
from moothall.domain.ids import TaskId
from moothall.domain.plan import LineComment, Story, Strategy
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest, Permanent
from moothall.stories import coach
from moothall.stories.lifecycle import Need, StoryPosition, decide, lifecycle

# A story folded from its events, and the fields that a caller's metadata sets.


_DESCRIPTIVE_EVENTS = {
    EventType.STORY_CREATED,
    EventType.STORY_CHANGED,
    EventType.STORY_TRANSITIONED,
}
"""The event types whose fields describe a story; other keys are stored and ignored here."""


def fold_story(story: Story, event: Event) -> Story:
    """Return the story updated by an event. Malformed fields are ignored, since any program may
    write to the log. The fields of an edit (`edited`) are complete: empty ones clear the story's.
    """
    if event.type not in _DESCRIPTIVE_EVENTS or event.data.get("story_id") != story.id:
        return story
    data = event.data
    if event.type is EventType.STORY_CHANGED and data.get("edited") is True:
        return replace(
            story,
            title=_read_text(data.get("title")) or story.title,
            brief=_read_text(data.get("brief")),
            ac=_read_texts(data.get("ac")),
            repository=_read_repository(data.get("repository"), _read_text(data.get("ref"))),
            budget=_read_budget(data.get("budget")) or NO_BUDGET,
        )
    return replace(
        story,
        title=_read_text(data.get("title")) or story.title,
        brief=_read_text(data.get("brief")) or story.brief,
        ac=_read_texts(data.get("ac")) or story.ac,
        repository=_read_repository(data.get("repository"), _read_text(data.get("ref")))
        or story.repository,
        budget=_read_budget(data.get("budget")) or story.budget,
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
    number = _read_text(metadata.get("max_tasks_per_role")) or "0"
    if not (number.isascii() and number.isdecimal() and len(number) < 5):  # noqa: PLR2004 - thousands are enough
        raise InvalidRequest(
            f"metadata max_tasks_per_role is {number[:40]!r}; allowed are whole numbers from 0"
        )
    parallel = _read_text(metadata.get("parallel_execution")).lower() or "false"
    if parallel not in {"true", "false"}:
        raise InvalidRequest(
            f"metadata parallel_execution is {parallel[:40]!r}; allowed are true and false"
        )
    return Strategy(parallel == "true", _split_list(metadata.get("dependency_order")), int(number))


def _split_list(value: object) -> tuple[str, ...]:
    return tuple(part.strip() for part in _read_text(value).split(",") if part.strip())


def _read_text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _read_texts(value: object) -> tuple[str, ...]:
    return (
        tuple(text for item in value if (text := _read_text(item)))
        if isinstance(value, list | tuple)
        else ()
    )


def _read_budget(value: object) -> Budget | None:
    if not isinstance(value, Mapping):
        return None
    try:
        return check_budget(load(Budget, value))
    except InvalidRequest:
        return None


def _read_repository(value: object, ref: str) -> RepositoryRef | None:
    """Return the repository that a story names by its registered id, a path or a URL, or by id, url
    and ref.
    """
    if isinstance(value, Mapping):
        repository = RepositoryRef(
            _read_text(value.get("id")),
            _read_text(value.get("url")),
            _read_text(value.get("ref")) or ref,
        )
    else:
        repository = RepositoryRef.from_name(_read_text(value), ref)
    return repository if repository.id or repository.url else None


# The state of a story on the board, folded from its events. A recorded move counts only if the life
# cycle allowed it, whoever wrote it to the log.


_MAX_REMARKS = 100
EDITABLE_STATES = ("backlog", "draft")
"""The states in which a story's text can be edited: no council works on it."""
COMPLETED, PASSED, FAILED = "completed", "passed", "failed"
"""The statuses of a successful plan, of a passed check of the whole, and of a failed delivery."""
MERGE_ROLES = ("po", "operator")
"""Roles that may merge an accepted story that its repository's policy left on a branch."""
_UNMERGED = frozenset({"left", "pushed"})


@dataclass(frozen=True, slots=True)
class StoryState:
    """A story on the board.

    `seq` is that of its last event, 0 if the story is unknown. `created` is false if there are
    events about it but nobody put it on the board; `created_time` says when somebody did. `entered`
    is the event that moved it last.
    `plan` is the event with its tasks, `plans` the number of plans so far, `ended` how those tasks
    ended since then; `ended_before` is true if they ended before. `commits` are the results since
    the story was designed, newest first. `check` is the last check of them as a whole, `checks` the
    number of checks. `delivery` is the last attempt at delivery, `merge_request` a person's request
    to merge after it. `decided` is the last move recorded as a decision. `remarks` are the comments
    on lines since the tasks were derived.
    """

    story: Story
    position: StoryPosition = field(default_factory=lambda: StoryPosition(lifecycle().start))
    seq: int = 0
    created: bool = False
    created_time: str = ""
    entered: Event | None = None
    plan: Event | None = None
    plans: int = 0
    ended: Event | None = None
    ended_before: bool = False
    commits: tuple[str, ...] = ()
    check: Event | None = None
    checks: int = 0
    delivery: Event | None = None
    merge_request: Event | None = None
    decided: str = ""
    remarks: tuple[LineComment, ...] = ()

    @property
    def moved(self) -> str:
        """The id of the event that moved the story last."""
        return self.entered.id if self.entered else ""

    @property
    def is_unmerged(self) -> bool:
        """True if the story is accepted, and its commit is on a branch that was not merged."""
        return (
            self.position.state == "done"
            and self.delivery is not None
            and self.delivery.data.get("moved") == self.moved
            and self.delivery.data.get("status") in _UNMERGED
            and bool(self.delivery.data.get("commit_sha"))
        )

    @property
    def draft(self) -> coach.StoryDraft:
        """The text that the coach scores."""
        return coach.StoryDraft(self.story.title, self.story.brief, self.story.ac)


def fold(card: StoryState, recorded: Recorded, tenant: str) -> StoryState:
    """Return a card updated by an event of its topic. A malformed event, one of another tenant and
    a move that is not allowed change nothing but `seq`.
    """
    event = recorded.event
    card = replace(card, seq=recorded.seq)
    if (
        event.tenant != tenant
        or event.data.get("story_id") != card.story.id
        or not _may_edit(card, event)
    ):
        return card
    if (story := fold_story(card.story, event)) is not card.story:
        card = replace(card, story=story)
    position = _position_after(card, event)
    if position.state != card.position.state:
        return enter(card, position, event)
    if position is not card.position:
        card = replace(card, position=position)
    record = _RECORDED.get(event.type)
    return record(card, event) if record else card


def _record_creation(card: StoryState, event: Event) -> StoryState:
    if card.created or str(event.data.get("rigor_level")) not in lifecycle().ready:
        return card
    return replace(card, created=True, created_time=card.created_time or event.time)


def _record_plan(card: StoryState, event: Event) -> StoryState:
    return replace(
        card, plan=event, plans=card.plans + 1, ended=None, ended_before=False, remarks=()
    )


def _record_comment(card: StoryState, event: Event) -> StoryState:
    comment = remark(event)
    if comment is None:
        return card
    return replace(card, remarks=(*card.remarks, comment)[-_MAX_REMARKS:])


def _record_end_of_plan(card: StoryState, event: Event) -> StoryState:
    if not _ends_build(card, event):
        return card
    commits = event.data.get("commits")
    commits = [str(sha) for sha in commits] if isinstance(commits, list | tuple) else []
    return replace(card, ended=event, commits=tuple(dict.fromkeys((*commits, *card.commits))))


def _record_merge_request(card: StoryState, event: Event) -> StoryState:
    return replace(card, merge_request=event) if _asks_to_merge(card, event) else card


_RECORDED: Mapping[EventType, Callable[[StoryState, Event], StoryState]] = {
    EventType.STORY_CREATED: _record_creation,
    EventType.PLAN_DERIVED: _record_plan,
    EventType.STORY_COMMENTED: _record_comment,
    EventType.PLAN_FINISHED: _record_end_of_plan,
    EventType.STORY_CHECKED: lambda card, event: replace(card, check=event, checks=card.checks + 1),
    EventType.STORY_DELIVERED: lambda card, event: replace(
        card, delivery=event, merge_request=None
    ),
    EventType.STORY_MERGE_REQUESTED: _record_merge_request,
    EventType.DECISION_MADE: lambda card, event: replace(card, decided=event.causationid),
}
"""What a card records of an event that does not move the story."""


def _may_edit(card: StoryState, event: Event) -> bool:
    """Return False for an edit of a story that can no longer be edited."""
    is_edit = event.type is EventType.STORY_CHANGED and event.data.get("edited") is True
    return not is_edit or card.position.state in EDITABLE_STATES


def _asks_to_merge(card: StoryState, event: Event) -> bool:
    """Return False for a request without the role, or about another delivery than the last."""
    roles = event.data.get("roles")
    return (
        card.is_unmerged
        and card.delivery is not None
        and event.data.get("delivery") == card.delivery.id
        and isinstance(roles, list | tuple)
        and any(role in MERGE_ROLES for role in roles)
    )


def remark(event: Event) -> LineComment | None:
    """Return the comment on a line of a diff that an event records. Return None for other and for
    malformed events.
    """
    data = event.data
    line = data.get("line")
    values = [
        value
        for name in ("task_id", "path", "comment")
        if isinstance(value := data.get(name), str) and value
    ]
    if event.type is not EventType.STORY_COMMENTED or len(values) < 3 or not isinstance(line, int):  # noqa: PLR2004 - all of them
        return None
    task_id, path, comment = values
    return LineComment(
        TaskId(task_id),
        path,
        line,
        str(data.get("quoted") or ""),
        comment,
        str(data.get("actor") or ""),
    )


def enter(card: StoryState, position: StoryPosition, event: Event) -> StoryState:
    """Return a card in another state. Its commits are dropped when a design begins, and when the
    story is reopened after delivery.
    """
    drops_commits = position.state == "design" or card.position.state in lifecycle().end
    return replace(
        card,
        position=position,
        entered=event,
        ended=None,
        ended_before=card.ended_before or card.ended is not None,
        commits=() if drops_commits else card.commits,
    )


def _ends_build(card: StoryState, event: Event) -> bool:
    """Return whether the tasks of a story that is being built have ended. A plan that ends after
    its story left build does not count.
    """
    return (
        card.position.state == "build"
        and card.plan is not None
        and event.data.get("derivation_id") == card.plan.id
    )


def _position_after(card: StoryState, event: Event) -> StoryPosition:
    position, data = card.position, event.data
    if event.type in {EventType.STORY_CREATED, EventType.STORY_CHANGED}:
        rigor = str(data.get("rigor_level"))
        return replace(
            position,
            rigor=rigor if rigor in lifecycle().ready else position.rigor,
            points=_coach_score(card),
        )
    if event.type is EventType.STORY_TRANSITIONED:
        roles = data.get("roles")
        try:
            return decide(
                position,
                str(data.get("event")),
                {str(role) for role in roles} if isinstance(roles, list | tuple) else (),
            )
        except Permanent:  # the table does not allow it
            return position
    fact = _fact_of(card, event)
    return position.record(fact) if fact else position


def _fact_of(card: StoryState, event: Event) -> Need | None:
    """Return the fact that an event is evidence of, None for other events."""
    status = event.data.get("status")
    if event.type is EventType.PLAN_DERIVED:
        return "planned"
    if event.type is EventType.PLAN_FINISHED and status == COMPLETED and _ends_build(card, event):
        return "built"
    if (
        event.type is EventType.STORY_CHECKED
        and status == PASSED
        and event.data.get("moved") == card.moved
    ):
        return "checked"
    if (
        event.type is EventType.STORY_DELIVERED
        and status == FAILED
        and event.data.get("moved") == card.moved
    ):
        return "failed"
    return None


def _coach_score(card: StoryState) -> int:
    try:
        return coach.score(card.draft).total
    except InvalidRequest:
        return 0


def group_by_state(cards: Iterable[StoryState]) -> Mapping[str, list[StoryState]]:
    """Return the columns of the board, empty ones included."""
    columns: dict[str, list[StoryState]] = {state: [] for state in lifecycle().order}
    for card in cards:
        columns[card.position.state].append(card)
    return columns
