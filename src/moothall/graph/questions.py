"""The questions that the graph answers. Nobody asks in Cypher of their own: a question has a name
and typed parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from moothall.errors import InvalidRequest
from moothall.graph import cypher
from moothall.graph.schema import LABELS
from moothall.graph.upserts import bound_name, uid
from moothall.stories.scopes import Scope, scopes

Row = dict[str, Any]
_LIMIT, _DEPTH = 1000, 3
_SHA = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class QuestionParameter:
    """`default` None: it has to be given. `least` and `most` bound a number."""

    about: str
    default: str | int | None = None
    least: int = 0
    most: int = 0

    @property
    def number(self) -> bool:
        """Whether it is a whole number, not a text."""
        return self.most > 0


@dataclass(frozen=True, slots=True)
class Question:
    """What can be asked. `cypher` may depend on parameters that are checked against a closed list.

    `keys` are parameters that name a node, and its label: `<name>_uid` is what it is found by. An
    empty label is the
    one that the parameter `label` names.
    """

    about: str
    columns: Mapping[str, str]
    parameters: Mapping[str, QuestionParameter]
    cypher: Callable[[Mapping[str, Any]], str]
    keys: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], None] = lambda _: None
    finish: Callable[[Row], Row] = field(default=lambda row: row)
    bound: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}
    """Further parameters of the query, which no caller gives."""


_TENANT = QuestionParameter("whose data")
_MANY = QuestionParameter("at most so many rows", 20, 1, _LIMIT)


def _commit(values: Mapping[str, Any]) -> None:
    if not _SHA.fullmatch(values["commit_sha"]):
        raise InvalidRequest(
            f"commit_sha {values['commit_sha'][:60]!r} is not a commit: give all 40 hexadecimal "
            "digits"
        )


def _some(values: Mapping[str, Any]) -> None:
    if not values["task_id"] and not values["story_id"]:
        raise InvalidRequest("of what? give task_id or story_id")


def _label(values: Mapping[str, Any]) -> None:
    if values["label"] not in LABELS:
        raise InvalidRequest(
            f"no label {values['label'][:60]!r}; the labels are {', '.join(LABELS)}"
        )


def _scopes(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """What may be told, by the table alone: a caller can only want less."""
    allowed = scopes().allowed_scopes(values["role"].strip().lower(), values["phase"])
    wanted = (
        scopes().check(tuple(name for name in values["only"].split(",") if name.strip())) or allowed
    )
    told = [scope for scope in allowed if scope in wanted]
    return {"scopes": told, "noted": list(scopes().note_kinds(told))}


def _may_compare(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "allowed": "similar"
        in scopes().allowed_scopes(values["role"].strip().lower(), values["phase"])
    }


_TOLD_OF: Mapping[str, Scope] = {
    "decision": "decisions",
    "deliberation": "summaries",
    "seat": "summaries",
}
_OF_STORY: Mapping[str, Scope] = {
    "story.commented": "comments",
    "story.transitioned": "milestones",
    "story.changed": "brief",
}


def _hidden_kinds(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Kinds of entries whose scope a role does not have in a phase; without a phase nothing is
    hidden.
    """
    if not values["phase"]:
        return {"hidden": []}
    allowed = scopes().allowed_scopes(values["role"].strip().lower(), values["phase"])
    told_of = {
        kind: _OF_STORY.get(kind) or _TOLD_OF[kind.partition(".")[0]] for kind in cypher.KINDS
    }
    return {"hidden": [kind for kind, scope in told_of.items() if scope not in allowed]}


def _in_shape(row: Row) -> Row:
    """Only what the shape says: stores add properties of their own."""

    def show(node: Mapping[str, Any]) -> Row:
        label = LABELS[node["label"]]
        stamps = {group.stamp for group in label.groups}
        names = [name for name in label.properties if name not in stamps]
        properties = {
            name: node["properties"][name]
            for name in names
            if node["properties"].get(name) is not None
        }
        return {"label": node["label"], "id": node["id"], "properties": properties}

    return {
        **row,
        "node": show(row["node"]),
        "neighbours": [show(node) for node in row["neighbours"]],
    }


QUESTIONS: Mapping[str, Question] = {
    "provenance": Question(
        "Where does a commit come from? One row for each proposal behind it.",
        {
            "commit": "its sha",
            "repository": "id, url",
            "story": "story_id, headline, state; null without one",
            "task": "task_id, description, role",
            "deliberation": "how it was asked and decided",
            "seat": "who proposed",
            "proposal": "what was proposed and its place",
            "reviews": "what others thought of it",
            "evidence": "what checks showed: test runs above all",
            "model_calls": "prompts by their sha256, model, tokens, in order",
            "tool_calls": "what the seat did, in order",
            "decisions": "who approved, rejected or wanted changes",
        },
        {
            "commit_sha": QuestionParameter("the commit, 40 digits"),
            "path": QuestionParameter("a file that the proposal must have changed; empty: any", ""),
        },
        lambda _: cypher.PROVENANCE,
        keys={"commit_sha": "Commit"},
        check=_commit,
    ),
    "deliberation": Question(
        "Everything of a deliberation. One row, or none.",
        {
            "deliberation": "how it was asked and decided",
            "task": "task_id, description, role",
            "story": "story_id, headline, state; null without one",
            "repository": "id, url; null about text",
            "seats": "each with its end",
            "proposals": "best first, with evidence and reviews",
            "model_calls": "in order",
            "tool_calls": "in order",
            "decisions": "of the product owner",
        },
        {"task_id": QuestionParameter("the deliberation")},
        lambda _: cypher.DELIBERATION,
        keys={"task_id": "Deliberation"},
    ),
    "task_context": Question(
        "What happened before in this repository or story? Decided deliberations, latest first.",
        {
            "task_id": "the earlier deliberation",
            "story_id": "its story, or empty",
            "description": "its task",
            "role": "kind of work",
            "status": "COMPLETED, FAILED, …",
            "final_state": "committed, no_winner, …",
            "proven": "whether a test that the author didn't write showed it",
            "decided_at": "UTC instant",
            "branch": "where the winner lies",
            "commit_sha": "the winner's commit",
            "winner": "candidate, seat, summary, paths, score, reasons; null without one",
            "reviews": "of the winner",
            "checks": "of the winner",
            "decisions": "of the product owner",
        },
        {
            "task_id": QuestionParameter(
                "a deliberation: what is asked about is its repository and story; itself is left "
                "out",
                "",
            ),
            "story_id": QuestionParameter("a story", ""),
            "repository": QuestionParameter("a repository's id", ""),
            "role": QuestionParameter("only this kind of work", ""),
            "limit": _MANY,
        },
        lambda _: cypher.TASK_CONTEXT,
        keys={"task_id": "Deliberation"},
    ),
    "context": Question(
        "What should a role know of a story before it begins? One row; what may not be told, or "
        "isn't known, is empty.",
        {
            "story": "story_id, headline, state, rigor",
            "brief": "brief, criteria",
            "decisions": (
                "of the product owner, each with the deliberations that it is about; latest first, "
                "as all that follow"
            ),
            "comments": "words on the story",
            "summaries": "its decided deliberations, with winner and reviews",
            "plan": "its plans",
            "tasks": (
                "in the order of the latest plan, each with those that it waits for and how its "
                "deliberations ended"
            ),
            "milestones": "its moves",
            "notes": "what callers noted, of the kinds that may be told",
            "about": "what the deliberation, else the story, is about: what similar ones are like",
            "repository": "where it works, or empty",
            "of_story": "the story's id, or empty",
        },
        {
            "story_id": QuestionParameter("the story", ""),
            "task_id": QuestionParameter(
                "a deliberation, whose story and repository are meant where they aren't given; "
                "itself is left out",
                "",
            ),
            "repository": QuestionParameter("a repository's id", ""),
            "role": QuestionParameter("whose prompt it is for", ""),
            "phase": QuestionParameter("what it is for, such as build or review", ""),
            "only": QuestionParameter(
                "scopes, with commas between them, that are wanted of those that the role may have "
                "in the phase",
                "",
            ),
            "limit": _MANY,
        },
        lambda values: cypher.context(values["story_id"]),
        keys={"story_id": "Story", "task_id": "Deliberation"},
        check=_some,
        bound=_scopes,
    ),
    "similar": Question(
        "What was done in a repository, for other stories? Won deliberations in a few words, "
        "latest first.",
        {
            "task_id": "the deliberation",
            "role": "kind of work",
            "description": "its task",
            "summary": "the winner's words",
            "paths": "what the winner changed",
        },
        {
            "repository": QuestionParameter("a repository's id"),
            "story_id": QuestionParameter("a story that is left out", ""),
            "task_id": QuestionParameter("a deliberation that is left out", ""),
            "role": QuestionParameter("whose prompt it is for", ""),
            "phase": QuestionParameter("what it is for, such as build or review", ""),
            "limit": QuestionParameter("at most so many rows", 100, 1, _LIMIT),
        },
        lambda values: cypher.similar(values["limit"]),
        bound=_may_compare,
    ),
    "timeline": Question(
        "What happened? The latest entries, oldest first.",
        {
            "time": "UTC instant",
            "kind": "story.created, deliberation.decided, …",
            "task_id": "the deliberation, or empty",
            "seat": "who, or empty",
            "text": "in a few words",
        },
        {
            "task_id": QuestionParameter("a deliberation", ""),
            "story_id": QuestionParameter("a story, with its deliberations", ""),
            "role": QuestionParameter("whose prompt it is for, where it is for one", ""),
            "phase": QuestionParameter("what it is for; empty: not for a prompt", ""),
            "limit": QuestionParameter("at most so many entries", 100, 1, _LIMIT),
        },
        lambda _: cypher.TIMELINE,
        keys={"task_id": "Deliberation", "story_id": "Story"},
        check=_some,
        bound=_hidden_kinds,
    ),
    "story": Question(
        "A story, with what became of it. One row, or none.",
        {
            "story": "headline, brief, criteria, repository, rigor, state",
            "tasks": "in the order of the plan, with their deliberations",
            "comments": "oldest first",
            "decisions": "oldest first",
        },
        {"story_id": QuestionParameter("the story")},
        lambda _: cypher.STORY,
        keys={"story_id": "Story"},
    ),
    "neighbours": Question(
        "What is around a node? One row, or none.",
        {
            "node": "label, id, properties",
            "neighbours": "the same of each",
            "relationships": "type, from {label, id}, to {label, id}; between all of them",
        },
        {
            "label": QuestionParameter("the node's label, such as Story or Proposal"),
            "id": QuestionParameter("the node's id (its key in the shape)"),
            "depth": QuestionParameter("steps away", 1, 1, _DEPTH),
            "limit": QuestionParameter("at most so many neighbours", 100, 1, _LIMIT),
        },
        lambda values: cypher.neighbours(values["label"], values["depth"]),
        keys={"id": ""},
        check=_label,
        finish=_in_shape,
    ),
}


def prepare(
    name: str, given: Mapping[str, Any]
) -> tuple[str, dict[str, Any], Callable[[Row], Row]]:
    """Return Cypher, parameters and what makes an answer's row whole. Raises `InvalidRequest`."""
    question = QUESTIONS.get(name)
    if question is None:
        near = get_close_matches(name, QUESTIONS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidRequest(f"no question {name[:60]!r}; there are {', '.join(QUESTIONS)}{hint}")
    known = {"tenant": _TENANT, **question.parameters}
    if strange := sorted(given.keys() - known.keys()):
        raise InvalidRequest(
            f"{name} knows no {', '.join(s[:40] for s in strange)}; it takes {', '.join(known)}"
        )
    values = {key: _value(name, key, parameter, given.get(key)) for key, parameter in known.items()}
    question.check(values)
    tenant = values["tenant"]
    found_by = {
        f"{key}_uid": uid(label or values["label"], tenant, values[key])
        for key, label in question.keys.items()
    }
    return (
        question.cypher(values),
        {**values, "tenant": bound_name(tenant), **found_by, **question.bound(values)},
        question.finish,
    )


def _value(question: str, name: str, parameter: QuestionParameter, value: Any) -> Any:
    if value is None or (value == "" and parameter.default is None):
        if parameter.default is None:
            raise InvalidRequest(f"{question} needs {name}: {parameter.about}")
        return parameter.default
    if parameter.number:
        try:
            number = int(value)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{name} {str(value)[:40]!r} is not a whole number") from error
        if not parameter.least <= number <= parameter.most:
            raise InvalidRequest(
                f"{name} is {number}; allowed are {parameter.least} to {parameter.most}"
            )
        return number
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is a text, not {type(value).__name__}")
    return bound_name(value)
