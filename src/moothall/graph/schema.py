"""What is in the graph: labels, their properties, relations. The one description; statements,
constraints, the
canonical dump and the picture in docs/graph.md are made from it.

Every node has `uid` (label, tenant and key; unique), `tenant` and `key` (its id for people). Its
other
properties come in groups: a group is written whole, by one kind of event, and where two events
write the same
group the earliest or the latest of them counts, whatever the order in which they arrive. `title`,
`type` and `name` are never used: the embedded store fills them in by itself. `id`, by which it
knows nodes, is the `uid` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "whole", "number", "flag", "texts"]
EMPTY: Mapping[Kind, object] = {"text": "", "whole": 0, "number": 0.0, "flag": False, "texts": ()}


@dataclass(frozen=True, slots=True)
class Group:
    """Properties that are written together. `latest`: the latest event counts, not the earliest."""

    name: str
    properties: Mapping[str, Kind]
    latest: bool = False

    @property
    def stamp(self) -> str:
        """The property that remembers which event wrote the group."""
        return f"{self.name}_by"


@dataclass(frozen=True, slots=True)
class Label:
    """A kind of node. `indexed` are properties besides `uid` that questions look nodes up by, or
    several together.
    """

    name: str
    about: str
    key: str
    groups: tuple[Group, ...] = ()
    indexed: tuple[tuple[str, ...], ...] = ()

    @property
    def properties(self) -> tuple[str, ...]:
        """Names of all properties, stamps included, in order."""
        told = (name for group in self.groups for name in (*group.properties, group.stamp))
        return ("uid", "tenant", "key", *told)


@dataclass(frozen=True, slots=True)
class Relation:
    """A kind of relation between two labels. Relations carry no properties."""

    start: str
    type: str
    end: str
    about: str


def _words(kind: Kind, names: str) -> dict[str, Kind]:
    return dict.fromkeys(names.split(), kind)


_COST: Mapping[str, Kind] = {
    **_words("whole", "prompt_tokens cached_tokens completion_tokens calls"),
    "cost_usd": "number",
}

_LABELS = (
    Label(
        "Story",
        "what the product owner asks for",
        "story id",
        (
            # A group each: an event may have some of these fields and leave the others as they are.
            Group("titled", _words("text", "headline"), latest=True),
            Group("briefed", _words("text", "brief"), latest=True),
            Group("required", _words("texts", "criteria"), latest=True),
            Group("placed", _words("text", "repository"), latest=True),
            Group("rated", _words("text", "rigor"), latest=True),
            Group("told", _words("text", "told_at"), latest=True),
            Group("moved", _words("text", "state moved_at"), latest=True),
            Group("checked", _words("text", "check branch commit_sha why checked_at"), latest=True),
            Group("delivered", _words("text", "delivered delivered_to delivered_at"), latest=True),
        ),
    ),
    Label(
        "Transition",
        "a story's step from one state to another",
        "event id",
        (Group("made", _words("text", "from_state to_state event actor made_at")),),
    ),
    Label(
        "Comment",
        "words on a story",
        "event id",
        (Group("made", _words("text", "comment actor made_at")),),
    ),
    Label(
        "Note",
        "what a caller noted of a story; `gone` once it was deleted",
        "story id/kind/entity id",
        (
            Group(
                "noted",
                {
                    **_words("text", "kind entity words reason actor role task noted_at"),
                    "gone": "flag",
                    "version": "whole",
                },
                latest=True,
            ),
        ),
    ),
    Label(
        "Plan",
        "the ordered tasks of a story",
        "plan id",
        (
            Group("derived", _words("text", "derived_at")),
            Group("finished", _words("text", "status finished_at")),
        ),
    ),
    Label(
        "Task",
        "the smallest unit that one council handles",
        "task id without its run",
        (
            Group(
                "planned",
                {
                    **_words("text", "description role planned_at"),
                    **_words("whole", "place priority"),
                },
                latest=True,
            ),
        ),
    ),
    Label(
        "Deliberation",
        "one run of a council on a task",
        "task id",
        (
            Group(
                "asked",
                {
                    **_words(
                        "text",
                        "description role protocol repository base_sha story principal rubric "
                        "asked_at deadline",
                    ),
                    **_words("texts", "seats requirements"),
                    "rounds": "whole",
                },
            ),
            Group("started", _words("text", "started_at")),
            Group("cancelled", _words("text", "cancel_reason cancelled_at")),
            Group(
                "decided",
                {
                    **_words(
                        "text",
                        "status final_state evidence_level winner branch commit_sha error_message "
                        "decided_at",
                    ),
                    "proven": "flag",
                    "duration_ms": "whole",
                    **_COST,
                },
            ),
        ),
        indexed=(("repository",), ("repository", "decided_at"), ("story",)),
    ),
    Label(
        "Repository",
        "a repository that councils work on",
        "repository id",
        (Group("seen", _words("text", "url")),),
    ),
    Label("Commit", "a commit: a base, a proposal's or a delivered one", "sha"),
    Label("Agent", "who takes a seat", "agent id", (Group("seen", _words("text", "role")),)),
    Label(
        "Seat",
        "an agent's place in one deliberation",
        "task id/seat",
        (
            Group("began", _words("text", "seat role approach began_at")),
            Group("failed", _words("text", "failure_code failure failed_at")),
            Group(
                "finished",
                {**_words("text", "status error_code error_message finished_at"), **_COST},
            ),
        ),
    ),
    Label(
        "Proposal",
        "a seat's answer, or a revision of it",
        "task id/candidate/fingerprint",
        (
            Group(
                "made",
                {
                    **_words("text", "candidate seat summary diff_sha256 commit_sha made_at"),
                    **_words("whole", "revision operations"),
                    **_words("texts", "paths own_tests"),
                },
            ),
            Group(
                "assessed",
                {
                    **_words("flag", "applies proven"),
                    **_words("texts", "required regressions"),
                    "behaviour": "text",
                },
            ),
            Group(
                "ranked",
                {
                    "rank": "whole",
                    "score": "number",
                    "reasons": "texts",
                    "passed_gates": "flag",
                    "won": "flag",
                },
            ),
        ),
    ),
    Label(
        "Review",
        "a seat's judgement of another's proposal",
        "event id",
        (
            Group(
                "made",
                {
                    **_words("text", "reviewer candidate comment made_at"),
                    "score": "number",
                    **_words("texts", "met unmet"),
                },
            ),
        ),
    ),
    Label(
        "Evidence",
        "what a check showed of a proposal on a clean checkout; `tests_of` names the author of "
        "tests that aren't its own",
        "task id/candidate/fingerprint/check",
        (
            Group(
                "made",
                {
                    **_words("text", "candidate check verdict output tests_of made_at"),
                    **_words("whole", "passed failed skipped duration_ms"),
                },
            ),
        ),
    ),
    Label(
        "ModelCall",
        "one question to a model: the prompt by its sha256, the answer's beginning",
        "call id",
        (
            Group(
                "made",
                {
                    **_words(
                        "text",
                        "seat phase prompt_sha256 model answer answer_sha256 finish_reason made_at",
                    ),
                    **_words("number", "temperature cost_usd"),
                    **_words(
                        "whole",
                        "seed max_tokens prompt_tokens cached_tokens completion_tokens duration_ms",
                    ),
                },
            ),
        ),
    ),
    Label(
        "ToolCall",
        "one action in a workspace",
        "request id",
        (
            Group("started", _words("text", "arguments_sha256 started_at")),
            Group(
                "finished",
                {
                    **_words("text", "tool seat workspace status error audit_id finished_at"),
                    **_words("whole", "duration_ms cpu_ms max_rss_bytes"),
                },
            ),
        ),
    ),
    Label(
        "Decision",
        "the product owner's approval, rejection or request for changes",
        "event id",
        (Group("made", _words("text", "approver decision comment made_at")),),
    ),
)

LABELS: Mapping[str, Label] = {label.name: label for label in _LABELS}

RELATIONS = (
    Relation("Story", "HAS_TASK", "Task", "the task serves the story"),
    Relation("Story", "PLANNED_AS", "Plan", "a plan of the story"),
    Relation("Story", "MOVED_BY", "Transition", "a change of its state"),
    Relation(
        "Story",
        "CHECKED_IN",
        "Deliberation",
        "its winners were brought together and checked as a whole there",
    ),
    Relation(
        "Story",
        "DELIVERED_IN",
        "Commit",
        "what approval made of it: the commit on its branch, or the merge into another",
    ),
    Relation("Story", "HAS_COMMENT", "Comment", "said about it"),
    Relation("Story", "HAS_NOTE", "Note", "a caller noted it"),
    Relation("Story", "DECIDED_BY", "Decision", "a decision on it"),
    Relation("Plan", "CONTAINS", "Task", "the task is part of the plan"),
    Relation("Task", "DEPENDS_ON", "Task", "has to wait for it"),
    Relation("Task", "DELIBERATED_IN", "Deliberation", "a council's run on it"),
    Relation("Deliberation", "WORKS_ON", "Repository", "where it works"),
    Relation("Deliberation", "BASED_ON", "Commit", "the pinned commit"),
    Relation("Deliberation", "HAS_SEAT", "Seat", "a seat of its council"),
    Relation(
        "Deliberation",
        "ASKED_MODEL",
        "ModelCall",
        "a call of no seat, such as the list of approaches",
    ),
    Relation("Deliberation", "WON_BY", "Proposal", "the winner"),
    Relation("Seat", "TAKEN_BY", "Agent", "who sits there"),
    Relation("Seat", "PROPOSED", "Proposal", "its answer"),
    Relation("Seat", "GAVE", "Review", "its judgement"),
    Relation("Seat", "CALLED_MODEL", "ModelCall", "asked the model"),
    Relation("Seat", "CALLED_TOOL", "ToolCall", "acted"),
    Relation("Proposal", "HAS_EVIDENCE", "Evidence", "what a check showed"),
    Relation("Proposal", "COMMITTED_AS", "Commit", "the seat's own commit in the trusted clone"),
    Relation("Proposal", "DELIVERED_AS", "Commit", "the commit that was delivered"),
    Relation("Review", "JUDGES", "Proposal", "what was judged"),
    Relation("Evidence", "RAN_TESTS_OF", "Seat", "whose tests ran"),
    Relation("Decision", "DECIDES", "Deliberation", "what was decided on"),
)
RELATED: Mapping[tuple[str, str, str], Relation] = {(r.start, r.type, r.end): r for r in RELATIONS}

POSITION = "LogPosition"
"""The node that remembers how far the log is written; no part of what the log says."""
