"""The questions that the graph answers, by name and with typed parameters. Callers cannot send
Cypher.
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
from moothall.stories.notes import Scope, scopes

Row = dict[str, Any]
_MAX_LIMIT, _MAX_DEPTH = 1000, 3
_SHA = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class QuestionParameter:
    """A parameter of a question. It is required if `default` is None. A number is limited by
    `minimum` and `maximum`.
    """

    description: str
    default: str | int | None = None
    minimum: int = 0
    maximum: int = 0

    @property
    def is_number(self) -> bool:
        """Whether the parameter is an integer, not a text."""
        return self.maximum > 0


@dataclass(frozen=True, slots=True)
class Question:
    """A question. `cypher` may depend on parameters that are validated against a closed list.

    `keys` maps parameters that identify a node to its label; the query gets the node's uid as
    `<name>_uid`. If the label is empty, it is the value of the parameter `label`.
    """

    description: str
    columns: Mapping[str, str]
    parameters: Mapping[str, QuestionParameter]
    cypher: Callable[[Mapping[str, Any]], str]
    keys: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], None] = lambda _: None
    convert_row: Callable[[Row], Row] = field(default=lambda row: row)
    derived: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}
    """Computes further parameters of the query, which callers cannot set."""


_TENANT = QuestionParameter("the tenant whose data is read")
_ROW_LIMIT = QuestionParameter("the maximum number of rows", 20, 1, _MAX_LIMIT)


def _check_commit(values: Mapping[str, Any]) -> None:
    if not _SHA.fullmatch(values["commit_sha"]):
        raise InvalidRequest(
            f"commit_sha {values['commit_sha'][:60]!r} is not a commit: give all 40 hexadecimal "
            "digits"
        )


def _check_ids(values: Mapping[str, Any]) -> None:
    if not values["task_id"] and not values["story_id"]:
        raise InvalidRequest("task_id and story_id are missing; give at least one of them")


def _check_label(values: Mapping[str, Any]) -> None:
    if values["label"] not in LABELS:
        raise InvalidRequest(
            f"no label {values['label'][:60]!r}; the labels are {', '.join(LABELS)}"
        )


def _scope_parameters(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scopes that the role and phase allow and the caller requests."""
    allowed_scopes = scopes().allowed_scopes(values["role"].strip().lower(), values["phase"])
    requested_scopes = (
        scopes().check(tuple(name for name in values["only"].split(",") if name.strip()))
        or allowed_scopes
    )
    selected_scopes = [scope for scope in allowed_scopes if scope in requested_scopes]
    return {"scopes": selected_scopes, "noted": list(scopes().note_kinds(selected_scopes))}


def _similar_parameters(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "allowed": "similar"
        in scopes().allowed_scopes(values["role"].strip().lower(), values["phase"])
    }


_SCOPE_BY_PREFIX: Mapping[str, Scope] = {
    "decision": "decisions",
    "deliberation": "summaries",
    "seat": "summaries",
}
_SCOPE_BY_STORY_KIND: Mapping[str, Scope] = {
    "story.commented": "comments",
    "story.transitioned": "milestones",
    "story.changed": "brief",
}


def _hidden_kinds(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the kinds of entries whose scope the role does not have in the phase. Without a phase,
    nothing is hidden.
    """
    if not values["phase"]:
        return {"hidden": []}
    allowed_scopes = scopes().allowed_scopes(values["role"].strip().lower(), values["phase"])
    scope_by_kind = {
        kind: _SCOPE_BY_STORY_KIND.get(kind) or _SCOPE_BY_PREFIX[kind.partition(".")[0]]
        for kind in cypher.KINDS
    }
    return {
        "hidden": [kind for kind, scope in scope_by_kind.items() if scope not in allowed_scopes]
    }


def _without_foreign_properties(row: Row) -> Row:
    """Return the row without properties that are not in the schema: stores add some themselves."""

    def convert(node: Mapping[str, Any]) -> Row:
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
        "node": convert(row["node"]),
        "neighbours": [convert(node) for node in row["neighbours"]],
    }


QUESTIONS: Mapping[str, Question] = {
    "provenance": Question(
        "The origin of a commit: one row for each proposal behind it.",
        {
            "commit": "its sha",
            "repository": "id, url",
            "story": "story_id, headline, state; null without a story",
            "task": "task_id, description, role",
            "deliberation": "the request and the outcome",
            "seat": "the seat that made the proposal",
            "proposal": "the proposal and its rank",
            "reviews": "the reviews of the proposal",
            "evidence": "the results of checks, such as test runs",
            "model_calls": "sha256 of the prompt, model, tokens; in order",
            "tool_calls": "the tool calls of the seat, in order",
            "decisions": "approvals, rejections and requests for changes",
        },
        {
            "commit_sha": QuestionParameter("the commit, 40 digits"),
            "path": QuestionParameter("a file that the proposal changed; empty for any", ""),
        },
        lambda _: cypher.PROVENANCE,
        keys={"commit_sha": "Commit"},
        check=_check_commit,
    ),
    "deliberation": Question(
        "A complete deliberation: at most one row.",
        {
            "deliberation": "the request and the outcome",
            "task": "task_id, description, role",
            "story": "story_id, headline, state; null without a story",
            "repository": "id, url; null for a deliberation on text",
            "seats": "each with its result",
            "proposals": "best first, with evidence and reviews",
            "model_calls": "in order",
            "tool_calls": "in order",
            "decisions": "decisions of the product owner",
        },
        {"task_id": QuestionParameter("the deliberation")},
        lambda _: cypher.DELIBERATION,
        keys={"task_id": "Deliberation"},
    ),
    "task_context": Question(
        "Earlier decided deliberations in a repository or a story, latest first.",
        {
            "task_id": "the earlier deliberation",
            "story_id": "its story, or empty",
            "description": "its task",
            "role": "its role",
            "status": "COMPLETED, FAILED, …",
            "final_state": "committed, no_winner, …",
            "proven": "whether the winner was proven",
            "decided_at": "UTC time",
            "branch": "the branch of the winner",
            "commit_sha": "the winner's commit",
            "winner": "candidate, seat, summary, paths, score, reasons; null without a winner",
            "reviews": "reviews of the winner",
            "checks": "checks of the winner",
            "decisions": "decisions of the product owner",
        },
        {
            "task_id": QuestionParameter(
                "a deliberation whose repository and story are used; it is not in the answer", ""
            ),
            "story_id": QuestionParameter("a story", ""),
            "repository": QuestionParameter("a repository's id", ""),
            "role": QuestionParameter("only deliberations with this role", ""),
            "limit": _ROW_LIMIT,
        },
        lambda _: cypher.TASK_CONTEXT,
        keys={"task_id": "Deliberation"},
    ),
    "context": Question(
        "The context of a story for a role: one row. Data that is missing or not allowed is empty.",
        {
            "story": "story_id, headline, state, rigor",
            "brief": "brief, criteria",
            "decisions": (
                "decisions of the product owner, each with its deliberations; latest first, like "
                "the following columns"
            ),
            "comments": "comments on the story",
            "summaries": "its decided deliberations, with winner and reviews",
            "plan": "its plans",
            "tasks": (
                "in the order of the latest plan, each with its dependencies and the outcomes of "
                "its deliberations"
            ),
            "milestones": "its transitions",
            "notes": "notes of callers, of the allowed kinds",
            "about": "a text to compare with similar deliberations",
            "repository": "its repository, or empty",
            "of_story": "the story's id, or empty",
        },
        {
            "story_id": QuestionParameter("the story", ""),
            "task_id": QuestionParameter(
                "a deliberation whose story and repository are the defaults; it is not in the "
                "answer",
                "",
            ),
            "repository": QuestionParameter("a repository's id", ""),
            "role": QuestionParameter("the role that gets the context", ""),
            "phase": QuestionParameter("the phase, such as build or review", ""),
            "only": QuestionParameter(
                "requested scopes, separated by commas; default: all allowed scopes", ""
            ),
            "limit": _ROW_LIMIT,
        },
        lambda values: cypher.context(values["story_id"]),
        keys={"story_id": "Story", "task_id": "Deliberation"},
        check=_check_ids,
        derived=_scope_parameters,
    ),
    "similar": Question(
        "Excerpts of deliberations with a winner in a repository, for other stories; latest first.",
        {
            "task_id": "the deliberation",
            "role": "its role",
            "description": "its task",
            "summary": "the winner's summary",
            "paths": "the files that the winner changed",
        },
        {
            "repository": QuestionParameter("a repository's id"),
            "story_id": QuestionParameter("a story to exclude", ""),
            "task_id": QuestionParameter("a deliberation to exclude", ""),
            "role": QuestionParameter("the role that gets the answer", ""),
            "phase": QuestionParameter("the phase, such as build or review", ""),
            "limit": QuestionParameter("the maximum number of rows", 100, 1, _MAX_LIMIT),
        },
        lambda values: cypher.similar(values["limit"]),
        derived=_similar_parameters,
    ),
    "timeline": Question(
        "The latest events of a deliberation or a story, oldest first.",
        {
            "time": "UTC time",
            "kind": "story.changed, deliberation.decided, …",
            "task_id": "the deliberation, or empty",
            "seat": "the seat, or empty",
            "text": "a short description",
        },
        {
            "task_id": QuestionParameter("a deliberation", ""),
            "story_id": QuestionParameter("a story, with its deliberations", ""),
            "role": QuestionParameter("the role that gets the answer in a prompt", ""),
            "phase": QuestionParameter("the phase of that prompt; empty: nothing is hidden", ""),
            "limit": QuestionParameter("the maximum number of entries", 100, 1, _MAX_LIMIT),
        },
        lambda _: cypher.TIMELINE,
        keys={"task_id": "Deliberation", "story_id": "Story"},
        check=_check_ids,
        derived=_hidden_kinds,
    ),
    "story": Question(
        "A story and its progress: at most one row.",
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
        "A node and its neighbours: at most one row.",
        {
            "node": "label, id, properties",
            "neighbours": "label, id, properties of each neighbour",
            "relationships": "type, from {label, id}, to {label, id}; between all these nodes",
        },
        {
            "label": QuestionParameter("the node's label, such as Story or Proposal"),
            "id": QuestionParameter("the node's id (its key in the schema)"),
            "depth": QuestionParameter("the maximum distance", 1, 1, _MAX_DEPTH),
            "limit": QuestionParameter("the maximum number of neighbours", 100, 1, _MAX_LIMIT),
        },
        lambda values: cypher.neighbours(values["label"], values["depth"]),
        keys={"id": ""},
        check=_check_label,
        convert_row=_without_foreign_properties,
    ),
}


def prepare(
    name: str, arguments: Mapping[str, Any]
) -> tuple[str, dict[str, Any], Callable[[Row], Row]]:
    """Return the Cypher, its parameters, and a function that converts each row of the result.
    Raises `InvalidRequest`.
    """
    question = QUESTIONS.get(name)
    if question is None:
        matches = get_close_matches(name, QUESTIONS, 1)
        hint = f"; did you mean {matches[0]}?" if matches else ""
        raise InvalidRequest(
            f"no question {name[:60]!r}; the questions are {', '.join(QUESTIONS)}{hint}"
        )
    parameters = {"tenant": _TENANT, **question.parameters}
    if unknown := sorted(arguments.keys() - parameters.keys()):
        raise InvalidRequest(
            f"{name} has no parameter {', '.join(key[:40] for key in unknown)}; the parameters are "
            f"{', '.join(parameters)}"
        )
    values = {
        key: _parse_value(name, key, parameter, arguments.get(key))
        for key, parameter in parameters.items()
    }
    question.check(values)
    tenant = values["tenant"]
    uids = {
        f"{key}_uid": uid(label or values["label"], tenant, values[key])
        for key, label in question.keys.items()
    }
    return (
        question.cypher(values),
        {**values, "tenant": bound_name(tenant), **uids, **question.derived(values)},
        question.convert_row,
    )


def _parse_value(question: str, name: str, parameter: QuestionParameter, value: Any) -> Any:
    if value is None or (value == "" and parameter.default is None):
        if parameter.default is None:
            raise InvalidRequest(f"{question} needs {name}: {parameter.description}")
        return parameter.default
    if parameter.is_number:
        try:
            number = int(value)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{name} {str(value)[:40]!r} is not an integer") from error
        if not parameter.minimum <= number <= parameter.maximum:
            raise InvalidRequest(
                f"{name} is {number}; allowed are {parameter.minimum} to {parameter.maximum}"
            )
        return number
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, not {type(value).__name__}")
    return bound_name(value)
