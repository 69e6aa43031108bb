"""The schema of the graph: labels, properties and relations. Cypher statements for constraints
and indexes, and for the removal of the oldest deliberations with the nodes that belong only
to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

# The schema of the graph: labels, properties and relations. Statements, constraints, the canonical
# dump and the diagram in docs/graph.md are generated from it.
#
# Each node has `uid` (label, tenant and key; unique), `tenant` and `key` (its id for people). The
# other properties form groups. A group is always written as a whole, by one kind of event. If two
# events write the same group, the earliest or the latest event counts, regardless of the order of
# arrival. `title`, `type` and `name` are not used, because the embedded store sets them itself. Its
# `id`, by which it finds nodes, equals `uid`.


Kind = Literal["text", "integer", "float", "boolean", "texts"]
EMPTY: Mapping[Kind, object] = {
    "text": "",
    "integer": 0,
    "float": 0.0,
    "boolean": False,
    "texts": (),
}


@dataclass(frozen=True, slots=True)
class Group:
    """Properties that are written together. With `latest`, the latest event counts, else the
    earliest.
    """

    name: str
    properties: Mapping[str, Kind]
    latest: bool = False

    @property
    def stamp(self) -> str:
        """The property with the sort key of the event that wrote the group."""
        return f"{self.name}_by"


@dataclass(frozen=True, slots=True)
class Label:
    """A kind of node. `indexed` lists the properties besides `uid` by which questions find nodes,
    alone or in combination.
    """

    name: str
    description: str
    key: str
    groups: tuple[Group, ...] = ()
    indexed: tuple[tuple[str, ...], ...] = ()

    @property
    def properties(self) -> tuple[str, ...]:
        """The names of all properties in order, including stamps."""
        names = (name for group in self.groups for name in (*group.properties, group.stamp))
        return ("uid", "tenant", "key", *names)


@dataclass(frozen=True, slots=True)
class Relation:
    """A kind of relation between two labels. Relations have no properties."""

    start: str
    type: str
    end: str
    description: str


def _properties(kind: Kind, names: str) -> dict[str, Kind]:
    return dict.fromkeys(names.split(), kind)


_COST: Mapping[str, Kind] = {
    **_properties("integer", "prompt_tokens cached_tokens completion_tokens calls"),
    "cost_usd": "float",
}

_LABELS = (
    Label(
        "Story",
        "a request of the product owner",
        "story id",
        (
            # One group per field, since an event may contain only some of these fields.
            Group("titled", _properties("text", "headline"), latest=True),
            Group("briefed", _properties("text", "brief"), latest=True),
            Group("required", _properties("texts", "criteria"), latest=True),
            Group("placed", _properties("text", "repository"), latest=True),
            Group("rated", _properties("text", "rigor"), latest=True),
            Group("told", _properties("text", "told_at"), latest=True),
            Group("moved", _properties("text", "state moved_at"), latest=True),
            Group(
                "checked",
                _properties("text", "check branch commit_sha why checked_at"),
                latest=True,
            ),
            Group(
                "delivered", _properties("text", "delivered delivered_to delivered_at"), latest=True
            ),
        ),
    ),
    Label(
        "Transition",
        "a change of a story's state",
        "event id",
        (Group("made", _properties("text", "from_state to_state event actor made_at")),),
    ),
    Label(
        "Comment",
        "a comment on a story",
        "event id",
        (Group("made", _properties("text", "comment actor made_at")),),
    ),
    Label(
        "Note",
        "a note of a caller on a story; `gone` after its deletion",
        "story id/kind/entity id",
        (
            Group(
                "noted",
                {
                    **_properties("text", "kind entity words reason actor role task noted_at"),
                    "gone": "boolean",
                    "version": "integer",
                },
                latest=True,
            ),
        ),
    ),
    Label(
        "Plan",
        "the tasks of a story in order",
        "plan id",
        (
            Group("derived", _properties("text", "derived_at")),
            Group("finished", _properties("text", "status finished_at")),
        ),
    ),
    Label(
        "Task",
        "a unit of work for one council",
        "task id without the number of a repeated run",
        (
            Group(
                "planned",
                {
                    **_properties("text", "description role planned_at"),
                    **_properties("integer", "place priority"),
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
                    **_properties(
                        "text",
                        "description role protocol repository base_sha story principal rubric "
                        "asked_at deadline choice",
                    ),
                    **_properties("texts", "seats requirements"),
                    "rounds": "integer",
                },
            ),
            Group("started", {"started_at": "text", "guides": "texts"}),
            Group("cancelled", _properties("text", "cancel_reason cancelled_at")),
            Group(
                "decided",
                {
                    **_properties(
                        "text",
                        "status final_state evidence_level winner branch commit_sha error_message "
                        "decided_at",
                    ),
                    "proven": "boolean",
                    "duration_ms": "integer",
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
        (Group("seen", _properties("text", "url")),),
    ),
    Label("Commit", "the base commit, a proposal's commit or a delivered commit", "sha"),
    Label(
        "Agent",
        "an agent that takes seats",
        "agent id",
        (Group("seen", _properties("text", "role")),),
    ),
    Label(
        "Seat",
        "an agent's place in one deliberation",
        "task id/seat",
        (
            Group("began", _properties("text", "seat role approach began_at")),
            Group("failed", _properties("text", "failure_code failure failed_at")),
            Group(
                "finished",
                {**_properties("text", "status error_code error_message finished_at"), **_COST},
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
                    **_properties("text", "candidate seat summary diff_sha256 commit_sha made_at"),
                    **_properties("integer", "revision operations"),
                    **_properties("texts", "paths own_tests"),
                },
            ),
            Group(
                "assessed",
                {
                    **_properties("boolean", "applies proven"),
                    **_properties("texts", "required regressions"),
                    "behaviour": "text",
                },
            ),
            Group(
                "ranked",
                {
                    "rank": "integer",
                    "score": "float",
                    "reasons": "texts",
                    "passed_gates": "boolean",
                    "won": "boolean",
                },
            ),
        ),
    ),
    Label(
        "Review",
        "a seat's review of another seat's proposal",
        "event id",
        (
            Group(
                "made",
                {
                    **_properties("text", "reviewer candidate comment made_at"),
                    "score": "float",
                    **_properties("texts", "met unmet"),
                },
            ),
        ),
    ),
    Label(
        "Evidence",
        "the result of a check of a proposal on a clean checkout; `tests_of` names the author of "
        "the tests if it is another seat",
        "task id/candidate/fingerprint/check",
        (
            Group(
                "made",
                {
                    **_properties("text", "candidate check verdict output tests_of made_at"),
                    **_properties("integer", "passed failed skipped duration_ms"),
                },
            ),
        ),
    ),
    Label(
        "ModelCall",
        "a request to a model, with the sha256 of the prompt and the beginning of the answer",
        "call id",
        (
            Group(
                "made",
                {
                    **_properties(
                        "text",
                        "seat phase prompt_sha256 model answer answer_sha256 finish_reason made_at",
                    ),
                    **_properties("float", "temperature cost_usd"),
                    **_properties(
                        "integer",
                        "seed max_tokens prompt_tokens cached_tokens completion_tokens duration_ms",
                    ),
                },
            ),
        ),
    ),
    Label(
        "ToolCall",
        "a call of a tool",
        "request id",
        (
            Group("started", _properties("text", "arguments_sha256 started_at")),
            Group(
                "finished",
                {
                    **_properties("text", "tool seat workspace status error audit_id finished_at"),
                    **_properties("integer", "duration_ms cpu_ms max_rss_bytes"),
                },
            ),
        ),
    ),
    Label(
        "Decision",
        "the product owner's approval, rejection or request for changes",
        "event id",
        (Group("made", _properties("text", "approver decision comment made_at")),),
    ),
)

LABELS: Mapping[str, Label] = {label.name: label for label in _LABELS}

RELATIONS = (
    Relation("Story", "HAS_TASK", "Task", "a task of the story"),
    Relation("Story", "PLANNED_AS", "Plan", "a plan of the story"),
    Relation("Story", "MOVED_BY", "Transition", "a change of its state"),
    Relation(
        "Story",
        "CHECKED_IN",
        "Deliberation",
        "the deliberation that merged and checked the winners of its tasks",
    ),
    Relation(
        "Story",
        "DELIVERED_IN",
        "Commit",
        "the result of its approval: the commit on its branch, or the merge into another branch",
    ),
    Relation("Story", "HAS_COMMENT", "Comment", "a comment on it"),
    Relation("Story", "HAS_NOTE", "Note", "a note on it"),
    Relation("Story", "DECIDED_BY", "Decision", "a decision on it"),
    Relation("Plan", "CONTAINS", "Task", "a task of the plan"),
    Relation("Task", "DEPENDS_ON", "Task", "a task that must be finished first"),
    Relation("Task", "DELIBERATED_IN", "Deliberation", "a deliberation on it"),
    Relation("Deliberation", "WORKS_ON", "Repository", "its repository"),
    Relation("Deliberation", "BASED_ON", "Commit", "its base commit"),
    Relation("Deliberation", "HAS_SEAT", "Seat", "a seat of its council"),
    Relation(
        "Deliberation",
        "ASKED_MODEL",
        "ModelCall",
        "a model call without a seat, such as the list of approaches",
    ),
    Relation("Deliberation", "WON_BY", "Proposal", "the winner"),
    Relation("Seat", "TAKEN_BY", "Agent", "its agent"),
    Relation("Seat", "PROPOSED", "Proposal", "its proposal"),
    Relation("Seat", "GAVE", "Review", "its review"),
    Relation("Seat", "CALLED_MODEL", "ModelCall", "its model call"),
    Relation("Seat", "CALLED_TOOL", "ToolCall", "its tool call"),
    Relation("Proposal", "HAS_EVIDENCE", "Evidence", "the result of a check"),
    Relation("Proposal", "COMMITTED_AS", "Commit", "its commit in the trusted clone"),
    Relation("Proposal", "DELIVERED_AS", "Commit", "the delivered commit"),
    Relation("Review", "JUDGES", "Proposal", "the reviewed proposal"),
    Relation("Evidence", "RAN_TESTS_OF", "Seat", "the author of the tests that ran"),
    Relation("Decision", "DECIDES", "Deliberation", "the deliberation that it is about"),
)
RELATED: Mapping[tuple[str, str, str], Relation] = {(r.start, r.type, r.end): r for r in RELATIONS}

POSITION = "LogPosition"
"""The label of the node with the position up to which the log is projected."""


# Cypher statements for constraints and indexes, and for the removal of the oldest deliberations
# with the nodes that belong only to them.


Statement = tuple[str, Mapping[str, Any]]
Rows = list[dict[str, Any]]

OLDEST = (
    "MATCH (d:Deliberation) WHERE d.decided_at <> '' RETURN d.uid AS uid ORDER BY d.decided_at "
    "DESC, d.uid DESC SKIP $keep"
)
"""Find the decided deliberations beyond the newest `keep`. Running deliberations stay."""

_OWNED_PATHS = (
    "-[:ASKED_MODEL]->(n:ModelCall)",
    "-[:HAS_SEAT]->(:Seat)-[:CALLED_MODEL]->(n:ModelCall)",
    "-[:HAS_SEAT]->(:Seat)-[:CALLED_TOOL]->(n:ToolCall)",
    "-[:HAS_SEAT]->(:Seat)-[:GAVE]->(n:Review)",
    "-[:HAS_SEAT]->(:Seat)-[:PROPOSED]->(:Proposal)-[:HAS_EVIDENCE]->(n:Evidence)",
    "-[:HAS_SEAT]->(:Seat)-[:PROPOSED]->(n:Proposal)",
    "-[:HAS_SEAT]->(n:Seat)",
)
_SHARED_LABELS = ("Commit", "Task")
"""Removed with the last node that refers to them; stories, plans and decisions stay."""


def removal(uids: Sequence[str]) -> list[Statement]:
    """Return the statements that remove these deliberations, the outermost nodes first."""
    parameters = {"uids": list(uids)}
    match = "UNWIND $uids AS uid MATCH (d:Deliberation {uid: uid})"
    return [
        *((f"{match}{path} DETACH DELETE n", parameters) for path in _OWNED_PATHS),
        (f"{match} DETACH DELETE d", parameters),
        *((f"MATCH (n:{label}) WHERE NOT (n)--() DELETE n", {}) for label in _SHARED_LABELS),
    ]


def schema() -> tuple[str, ...]:
    """Return the statements that create constraints and indexes. They can be run repeatedly."""
    statements = [
        f"CREATE CONSTRAINT moothall_{name.lower()}_uid IF NOT EXISTS FOR (n:{name}) REQUIRE n.uid "
        "IS UNIQUE"
        for name in (*LABELS, POSITION)
    ]
    statements += [
        f"CREATE INDEX moothall_{label.name.lower()}_{'_'.join(names)} IF NOT EXISTS FOR "
        f"(n:{label.name}) ON ({', '.join(f'n.{name}' for name in names)})"
        for label in LABELS.values()
        for names in label.indexed
    ]
    return tuple(statements)
