"""A story on the board: what is recorded of it, folded. A recorded move counts only where the life
cycle allowed it, so that a story stands where its evidence put it, whoever wrote to the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from moothall.domain.event import Event, EventType, Recorded
from moothall.domain.plan import LineComment, Story
from moothall.errors import InvalidRequest, Permanent
from moothall.stories import coach
from moothall.stories import story as stories
from moothall.stories.lifecycle import Need, StoryPosition, decide, lifecycle

_REMARKS = 100
COMPLETED, PASSED, FAILED = "completed", "passed", "failed"
"""How a plan, and the check of a story's result as a whole, end where all is well; how what can't
be delivered ends.
"""


@dataclass(frozen=True, slots=True)
class StoryState:
    """A story on the board; `seq` is that of its last event, 0 for one that there is not; not
    `created`: something is known of it, but nobody put it on the board. `entered` is the event that
    moved it last, `plan` that of its tasks (`plans` of them so far), `ended` how they ended since
    then, `worn` that they ended before. `commits` are what they came to since the story was
    designed, newest first, `check` is the last check of all that as a whole, of `checks`;
    `delivery` what approval did with it last. `decided`
    is the last move that is recorded as a decision. `remarks` are what was said of lines since its
    tasks were derived.
    """

    story: Story
    stand: StoryPosition = field(default_factory=lambda: StoryPosition(lifecycle().start))
    seq: int = 0
    created: bool = False
    entered: Event | None = None
    plan: Event | None = None
    plans: int = 0
    ended: Event | None = None
    worn: bool = False
    commits: tuple[str, ...] = ()
    check: Event | None = None
    checks: int = 0
    delivery: Event | None = None
    decided: str = ""
    remarks: tuple[LineComment, ...] = ()

    @property
    def moved(self) -> str:
        """The id of the event that moved it last."""
        return self.entered.id if self.entered else ""

    @property
    def draft(self) -> coach.StoryDraft:
        """What the coach scores."""
        return coach.StoryDraft(self.story.title, self.story.brief, self.story.ac)


def fold(card: StoryState, recorded: Recorded, tenant: str) -> StoryState:
    """Return a card with what an event of its topic says. What is malformed, of another tenant or
    not allowed moves nothing.
    """
    event = recorded.event
    card = replace(card, seq=recorded.seq)
    if event.tenant != tenant or event.data.get("story_id") != card.story.id:
        return card
    card = replace(card, story=stories.fold(card.story, event))
    stand = _stand(card, event)
    if stand.state != card.stand.state:
        return enter(card, stand, event)
    begun = (
        event.type is EventType.STORY_CREATED
        and str(event.data.get("rigor_level")) in lifecycle().ready
    )
    card = replace(card, stand=stand, created=card.created or begun)
    if event.type is EventType.PLAN_DERIVED:
        return replace(card, plan=event, plans=card.plans + 1, ended=None, worn=False, remarks=())
    if event.type is EventType.STORY_COMMENTED and (said := remark(event)) is not None:
        return replace(card, remarks=(*card.remarks, said)[-_REMARKS:])
    if event.type is EventType.PLAN_FINISHED and _of_plan(card, event):
        made = event.data.get("commits")
        made = [str(sha) for sha in made] if isinstance(made, list | tuple) else []
        return replace(card, ended=event, commits=tuple(dict.fromkeys((*made, *card.commits))))
    if event.type is EventType.STORY_CHECKED:
        card = replace(card, check=event, checks=card.checks + 1)
    elif event.type is EventType.STORY_DELIVERED:
        card = replace(card, delivery=event)
    elif event.type is EventType.DECISION_MADE:
        card = replace(card, decided=event.causationid)
    return card


def remark(event: Event) -> LineComment | None:
    """Return what an event says of a line of a diff; None for any other, and what is malformed."""
    data = event.data
    line = data.get("line")
    named = [
        value
        for name in ("task_id", "path", "comment")
        if isinstance(value := data.get(name), str) and value
    ]
    if event.type is not EventType.STORY_COMMENTED or len(named) < 3 or not isinstance(line, int):  # noqa: PLR2004 - all of them
        return None
    task_id, path, comment = named
    return LineComment(
        task_id, path, line, str(data.get("quoted") or ""), comment, str(data.get("actor") or "")
    )


def enter(card: StoryState, stand: StoryPosition, event: Event) -> StoryState:
    """Return a card in another state. A design begins anew, and so does what did not go together
    with its base; elsewhere what was made stays.
    """
    anew = stand.state == "design" or card.stand.state in lifecycle().end
    return replace(
        card,
        stand=stand,
        entered=event,
        ended=None,
        worn=card.worn or card.ended is not None,
        commits=() if anew else card.commits,
    )


def _of_plan(card: StoryState, event: Event) -> bool:
    return card.plan is not None and event.data.get("derivation_id") == card.plan.id


def _stand(card: StoryState, event: Event) -> StoryPosition:
    stand, data = card.stand, event.data
    if event.type in {EventType.STORY_CREATED, EventType.STORY_CHANGED}:
        rigor = str(data.get("rigor_level"))
        return replace(
            stand, rigor=rigor if rigor in lifecycle().ready else stand.rigor, points=_points(card)
        )
    if event.type is EventType.STORY_TRANSITIONED:
        roles = data.get("roles")
        try:
            return decide(
                stand,
                str(data.get("event")),
                {str(role) for role in roles} if isinstance(roles, list | tuple) else (),
            )
        except Permanent:  # the table does not allow it
            return stand
    fact = _fact(card, event)
    return stand.record(fact) if fact else stand


def _fact(card: StoryState, event: Event) -> Need | None:
    """Return what an event is evidence of."""
    status = event.data.get("status")
    if event.type is EventType.PLAN_DERIVED:
        return "planned"
    if event.type is EventType.PLAN_FINISHED and status == COMPLETED and _of_plan(card, event):
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


def _points(card: StoryState) -> int:
    try:
        return coach.score(card.draft).total
    except InvalidRequest:
        return 0


def by_state(cards: Iterable[StoryState]) -> Mapping[str, list[StoryState]]:
    """Return the board's columns, every state among them."""
    columns: dict[str, list[StoryState]] = {state: [] for state in lifecycle().states}
    for card in cards:
        columns[card.stand.state].append(card)
    return columns
