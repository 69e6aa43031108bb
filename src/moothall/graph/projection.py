"""Translate events into changes of the graph. Pure. Events come from outside, so their fields are
not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from moothall.domain.codec import text_of
from moothall.domain.event import Event, EventType
from moothall.domain.ids import digest
from moothall.graph.upserts import (
    EventFields,
    Ref,
    Writes,
    clean,
    cost_of,
    fingerprint_of,
    items_of,
    time_of,
)

_RUN = re.compile(r"-r\d+$")
_DIFF_PATH = re.compile(r"^diff --git a/.* b/(.*)$", re.MULTILINE)
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NO_SEAT = "-"


def write(event: Event, writes: Writes) -> bool:
    """Add the changes of an event. Return False if its type is not projected, or if it lacks a
    required id.
    """
    projection = PROJECTIONS.get(event.type)
    if projection is None:
        return False
    required, project = projection
    if not all(text_of(event.data.get(name)) for name in required):
        return False
    project(EventFields(writes, event, event.data, time_of(event)))
    return True


def _project_story(fields: EventFields) -> None:
    _write_story_fields(fields)
    fields.writes.set_group(fields.story, "told", fields.sort_key, told_at=fields.time)


def _write_story_fields(fields: EventFields) -> bool:
    """Write the fields of a story that the event contains. Return whether it contains any."""
    repository = fields.data.get("repository")
    repository_id = (
        text_of(repository.get("id")) or text_of(repository.get("url"))
        if isinstance(repository, Mapping)
        else text_of(repository)
    )
    groups: dict[str, Mapping[str, str | list[str]]] = {
        "titled": {"headline": _unless_blank(fields.data.get("title"))},
        "briefed": {"brief": _unless_blank(fields.data.get("brief"))},
        "required": {
            "criteria": [
                line for item in items_of(fields.data.get("ac")) if (line := _unless_blank(item))
            ]
        },
        "placed": {"repository": repository_id},
        "rated": {"rigor": _unless_blank(fields.data.get("rigor_level"))},
    }
    groups = {group: values for group, values in groups.items() if any(values.values())}
    for group, values in groups.items():
        fields.writes.set_group(fields.story, group, fields.sort_key, **values)
    return bool(groups)


def _unless_blank(value: object) -> str:
    """Return a text; '' if it is blank or not a text."""
    text = text_of(value)
    return text if text.strip() else ""


def _project_story_transition(fields: EventFields) -> None:
    transition = fields.ref("Transition", fields.event.id)
    states = {"from_state": fields.data.get("from_state"), "to_state": fields.data.get("to_state")}
    fields.writes.set_group(
        transition,
        "made",
        fields.sort_key,
        event=fields.data.get("event"),
        actor=fields.data.get("actor"),
        made_at=fields.time,
        **states,
    )
    fields.writes.set_group(
        fields.story,
        "moved",
        fields.sort_key,
        state=fields.data.get("to_state"),
        moved_at=fields.time,
    )
    fields.writes.relate(fields.story, "MOVED_BY", transition)
    if _write_story_fields(fields):  # transitions of externally planned stories contain the fields
        fields.writes.set_group(fields.story, "told", fields.sort_key, told_at=fields.time)


def _project_story_check(fields: EventFields) -> None:
    details = {name: fields.data.get(name) for name in ("branch", "commit_sha", "why")}
    fields.writes.set_group(
        fields.story,
        "checked",
        fields.sort_key,
        check=fields.data.get("status"),
        checked_at=fields.time,
        **details,
    )
    if fields.text("task_id"):
        fields.writes.relate(fields.story, "CHECKED_IN", fields.deliberation)


def _project_story_delivery(fields: EventFields) -> None:
    fields.writes.set_group(
        fields.story,
        "delivered",
        fields.sort_key,
        delivered=fields.data.get("status"),
        delivered_to=fields.data.get("branch"),
        delivered_at=fields.time,
    )
    if fields.text("commit_sha"):
        fields.writes.relate(
            fields.story, "DELIVERED_IN", fields.ref("Commit", fields.text("commit_sha"))
        )


def _project_comment(fields: EventFields) -> None:
    comment = fields.ref("Comment", fields.event.id)
    fields.writes.set_group(
        comment,
        "made",
        fields.sort_key,
        comment=fields.data.get("comment"),
        actor=fields.data.get("actor"),
        made_at=fields.time,
    )
    fields.writes.relate(fields.story, "HAS_COMMENT", comment)


def _project_notes(fields: EventFields) -> None:
    """Notes are ordered by version, since two may have the same millisecond."""
    version = fields.data.get("version")
    if not isinstance(version, int):
        return
    author = {
        "actor": fields.data.get("actor"),
        "role": fields.data.get("role"),
        "task": fields.text("task_id"),
    }
    for change in items_of(fields.data.get("changes")):
        if not isinstance(change, Mapping):
            continue
        entity_type = text_of(change.get("entity_type"))
        entity_id = text_of(change.get("entity_id"))
        if not entity_type or not entity_id:
            continue
        note = fields.ref("Note", fields.text("story_id"), entity_type, entity_id)
        fields.writes.set_group(
            note,
            "noted",
            f"{version:012d} {fields.event.id}",
            kind=entity_type,
            entity=entity_id,
            words=change.get("payload"),
            reason=change.get("reason"),
            noted_at=fields.time,
            gone=change.get("operation") == "delete",
            version=version,
            **author,
        )
        fields.writes.relate(fields.story, "HAS_NOTE", note)


def _project_plan(fields: EventFields) -> None:
    plan = fields.ref("Plan", fields.text("plan_id"))
    fields.writes.set_group(plan, "derived", fields.sort_key, derived_at=fields.time)
    fields.writes.relate(fields.story, "PLANNED_AS", plan)
    for place, entry in enumerate(items_of(fields.data.get("tasks"))):
        task_id = text_of(entry.get("task_id")) if isinstance(entry, Mapping) else text_of(entry)
        if not task_id:
            continue
        task = fields.ref("Task", _base_task_id(task_id))
        fields.writes.relate(plan, "CONTAINS", task)
        fields.writes.relate(fields.story, "HAS_TASK", task)
        if isinstance(entry, Mapping):
            details = {name: entry.get(name) for name in ("description", "role", "priority")}
            fields.writes.set_group(
                task, "planned", fields.sort_key, place=place, planned_at=fields.time, **details
            )
            for dependency in items_of(entry.get("dependencies")):
                if text_of(dependency):
                    fields.writes.relate(
                        task, "DEPENDS_ON", fields.ref("Task", _base_task_id(dependency))
                    )


def _base_task_id(task_id: str) -> str:
    """Return the task id without the `-r<number>` of a repeated run."""
    return _RUN.sub("", task_id)


def _project_request(fields: EventFields) -> None:
    origin, constraints = fields.object("repository"), fields.object("constraints")
    repository = text_of(origin.get("id")) or text_of(origin.get("url"))
    fields.writes.set_group(
        fields.deliberation,
        "asked",
        fields.sort_key,
        **{
            name: fields.data.get(name)
            for name in (
                "description",
                "role",
                "protocol",
                "base_sha",
                "principal",
                "rounds",
                "seats",
                "choice",
            )
        },
        repository=repository,
        story=fields.text("story_id"),
        rubric=constraints.get("rubric"),
        requirements=constraints.get("requirements"),
        asked_at=fields.time,
        deadline=fields.data.get("deadline"),
    )
    task = fields.ref("Task", _base_task_id(fields.text("task_id")))
    fields.writes.relate(task, "DELIBERATED_IN", fields.deliberation)
    if fields.text("story_id"):
        fields.writes.relate(fields.story, "HAS_TASK", task)
    if repository:
        node = fields.ref("Repository", repository)
        fields.writes.set_group(node, "seen", fields.sort_key, url=origin.get("url"))
        fields.writes.relate(fields.deliberation, "WORKS_ON", node)
    if _SHA.fullmatch(fields.text("base_sha")):
        fields.writes.relate(
            fields.deliberation, "BASED_ON", fields.ref("Commit", fields.text("base_sha"))
        )
    for name in items_of(fields.data.get("seats")):
        if text_of(name):
            fields.seat(name)


def _project_plan_end(fields: EventFields) -> None:
    fields.writes.set_group(
        fields.ref("Plan", fields.text("plan_id")),
        "finished",
        fields.sort_key,
        status=fields.data.get("status"),
        finished_at=fields.time,
    )


def _project_start(fields: EventFields) -> None:
    guides = [
        f"{guide.get('path')} sha256:{guide.get('sha256')}"
        for guide in items_of(fields.data.get("guides"))
        if isinstance(guide, Mapping)
    ]
    fields.writes.set_group(
        fields.deliberation, "started", fields.sort_key, started_at=fields.time, guides=guides
    )


def _project_cancellation(fields: EventFields) -> None:
    fields.writes.set_group(
        fields.deliberation,
        "cancelled",
        fields.sort_key,
        cancel_reason=fields.data.get("reason"),
        cancelled_at=fields.time,
    )


def _project_outcome(fields: EventFields) -> None:
    names = (
        "status",
        "final_state",
        "proven",
        "evidence_level",
        "branch",
        "commit_sha",
        "error_message",
        "duration_ms",
    )
    winner = fields.text("winner_id")
    details = {name: fields.data.get(name) for name in names}
    fields.writes.set_group(
        fields.deliberation,
        "decided",
        fields.sort_key,
        winner=winner,
        decided_at=fields.time,
        **details,
        **cost_of(fields.object("usage")),
    )
    has_winner = False
    for result in items_of(fields.data.get("results")):
        seat = text_of(result.get("seat")) if isinstance(result, Mapping) else ""
        if not seat:
            continue
        revision = result.get("revision")
        candidate = f"{seat}.r{revision}" if isinstance(revision, int) and revision > 0 else seat
        proposal = fields.proposal(candidate, fingerprint_of(result))
        won = not has_winner and seat == winner  # the best result of a seat comes first
        has_winner = has_winner or won
        details = {name: result.get(name) for name in ("rank", "score", "reasons", "passed_gates")}
        fields.writes.set_group(proposal, "ranked", fields.sort_key, won=won, **details)
        if won:
            fields.writes.relate(fields.deliberation, "WON_BY", proposal)
            if _SHA.fullmatch(fields.text("commit_sha")):
                fields.writes.relate(
                    proposal, "DELIVERED_AS", fields.ref("Commit", fields.text("commit_sha"))
                )


def _project_seat_start(fields: EventFields) -> None:
    seat, role = fields.seat(fields.text("seat")), fields.data.get("role")
    fields.writes.set_group(
        seat,
        "began",
        fields.sort_key,
        seat=fields.text("seat"),
        role=role,
        approach=fields.data.get("approach"),
        began_at=fields.time,
    )
    agent = fields.ref("Agent", fields.text("agent_id") or fields.text("seat"))
    fields.writes.set_group(agent, "seen", fields.sort_key, role=role)
    fields.writes.relate(seat, "TAKEN_BY", agent)


def _project_proposal(fields: EventFields) -> None:
    proposal = fields.object("proposal")
    candidate, diff = fields.text("candidate"), text_of(proposal.get("diff"))
    node = fields.proposal(candidate, fingerprint_of(proposal))
    fields.writes.set_group(
        node,
        "made",
        fields.sort_key,
        candidate=candidate,
        seat=fields.text("seat"),
        summary=proposal.get("content"),
        diff_sha256=digest(clean(diff)) if diff else "",
        paths=_DIFF_PATH.findall(diff),
        commit_sha=proposal.get("commit_sha"),
        revision=proposal.get("revision"),
        operations=len(items_of(proposal.get("operations"))),
        own_tests=proposal.get("own_tests"),
        made_at=fields.time,
    )
    fields.writes.relate(fields.seat(fields.text("seat")), "PROPOSED", node)
    if _SHA.fullmatch(text_of(proposal.get("commit_sha"))):
        fields.writes.relate(node, "COMMITTED_AS", fields.ref("Commit", proposal["commit_sha"]))


def _project_review(fields: EventFields) -> None:
    """Reviewer and candidate come from the envelope, which is more trustworthy than the review."""
    review, node = fields.object("review"), fields.ref("Review", fields.event.id)
    details = {name: review.get(name) for name in ("score", "met", "unmet", "comment")}
    fields.writes.set_group(
        node,
        "made",
        fields.sort_key,
        reviewer=fields.text("seat"),
        candidate=fields.text("candidate"),
        made_at=fields.time,
        **details,
    )
    fields.writes.relate(fields.seat(fields.text("seat")), "GAVE", node)
    fields.writes.relate(
        node, "JUDGES", fields.proposal(fields.text("candidate"), fields.text("fingerprint"))
    )


def _project_evidence(fields: EventFields) -> None:
    evidence, assessment = fields.object("evidence"), fields.object("assessment")
    author = fields.text("cross_author")
    proposal = fields.proposal(fields.text("candidate"), fields.text("fingerprint"))
    tests = (author, fields.text("cross_fingerprint")) if author else ()
    node = fields.ref("Evidence", proposal.key, text_of(evidence.get("check")), *tests)
    details = {
        name: evidence.get(name)
        for name in ("check", "verdict", "output", "passed", "failed", "skipped", "duration_ms")
    }
    fields.writes.set_group(
        node,
        "made",
        fields.sort_key,
        candidate=fields.text("candidate"),
        tests_of=author,
        made_at=fields.time,
        **details,
    )
    fields.writes.relate(proposal, "HAS_EVIDENCE", node)
    fields.writes.relate(fields.seat(fields.text("seat")), "PROPOSED", proposal)
    if author:
        fields.writes.relate(node, "RAN_TESTS_OF", fields.seat(author))
    if assessment:
        names = ("applies", "required", "regressions", "proven", "behaviour")
        fields.writes.set_group(
            proposal, "assessed", fields.sort_key, **{name: assessment.get(name) for name in names}
        )


def _project_seat_failure(fields: EventFields) -> None:
    error = fields.object("error")
    fields.writes.set_group(
        fields.seat(fields.text("seat")),
        "failed",
        fields.sort_key,
        failure_code=error.get("code"),
        failure=error.get("message"),
        failed_at=fields.time,
    )


def _project_seat_end(fields: EventFields) -> None:
    outcome = fields.object("outcome")
    details = {name: outcome.get(name) for name in ("status", "error_code", "error_message")}
    usage = outcome.get("usage")
    cost = cost_of(usage if isinstance(usage, Mapping) else {})
    fields.writes.set_group(
        fields.seat(fields.text("seat")),
        "finished",
        fields.sort_key,
        finished_at=fields.time,
        **details,
        **cost,
    )


def _project_model_call(fields: EventFields) -> None:
    call = fields.ref("ModelCall", fields.text("call_id"))
    sampling, usage, answer = (
        fields.object("sampling"),
        cost_of(fields.object("usage")),
        fields.text("answer"),
    )
    del usage["calls"]
    fields.writes.set_group(
        call,
        "made",
        fields.sort_key,
        **{
            name: fields.data.get(name)
            for name in ("phase", "prompt_sha256", "model", "finish_reason", "duration_ms")
        },
        **{name: sampling.get(name) for name in ("temperature", "seed", "max_tokens")},
        **usage,
        seat=fields.text("seat"),
        answer=answer,
        answer_sha256=digest(clean(answer)) if answer else "",
        made_at=fields.time,
    )
    if fields.text("seat") in {"", _NO_SEAT}:
        fields.writes.relate(fields.deliberation, "ASKED_MODEL", call)
    else:
        fields.writes.relate(fields.seat(fields.text("seat")), "CALLED_MODEL", call)


def _tool_call(fields: EventFields) -> Ref:
    """Return the node of the tool call, connected to its seat if it has one."""
    call = fields.ref("ToolCall", fields.text("request_id"))
    if fields.text("seat") and fields.text("task_id"):
        fields.writes.relate(fields.seat(fields.text("seat")), "CALLED_TOOL", call)
    return call


def _project_tool_start(fields: EventFields) -> None:
    fields.writes.set_group(
        _tool_call(fields),
        "started",
        fields.sort_key,
        arguments_sha256=fields.data.get("arguments_digest"),
        started_at=fields.time,
    )


def _project_tool_end(fields: EventFields) -> None:
    usage = fields.object("usage")
    fields.writes.set_group(
        _tool_call(fields),
        "finished",
        fields.sort_key,
        **{
            name: fields.data.get(name)
            for name in ("tool", "seat", "workspace", "status", "error", "audit_id", "duration_ms")
        },
        cpu_ms=usage.get("cpu_ms"),
        max_rss_bytes=usage.get("max_rss_bytes"),
        finished_at=fields.time,
    )


def _project_decision(fields: EventFields) -> None:
    decision = fields.ref("Decision", fields.event.id)
    details = {name: fields.data.get(name) for name in ("approver", "decision", "comment")}
    fields.writes.set_group(decision, "made", fields.sort_key, made_at=fields.time, **details)
    fields.writes.relate(fields.story, "DECIDED_BY", decision)
    if fields.text("task_id"):
        fields.writes.relate(decision, "DECIDES", fields.deliberation)


_Projection = tuple[tuple[str, ...], Callable[[EventFields], None]]
_SEAT = ("task_id", "seat")
_CANDIDATE = (*_SEAT, "candidate")

PROJECTIONS: Mapping[EventType, _Projection] = {
    EventType.STORY_CREATED: (("story_id",), _project_story),
    EventType.STORY_CHANGED: (("story_id",), _project_story),
    EventType.STORY_TRANSITIONED: (("story_id",), _project_story_transition),
    EventType.STORY_CHECKED: (("story_id",), _project_story_check),
    EventType.STORY_DELIVERED: (("story_id",), _project_story_delivery),
    EventType.STORY_COMMENTED: (("story_id",), _project_comment),
    EventType.STORY_NOTED: (("story_id",), _project_notes),
    EventType.PLAN_DERIVED: (("story_id", "plan_id"), _project_plan),
    EventType.PLAN_FINISHED: (("story_id", "plan_id"), _project_plan_end),
    EventType.DELIBERATION_REQUESTED: (("task_id",), _project_request),
    EventType.DELIBERATION_STARTED: (("task_id",), _project_start),
    EventType.DELIBERATION_CANCELLED: (("task_id",), _project_cancellation),
    EventType.DELIBERATION_DECIDED: (("task_id",), _project_outcome),
    EventType.SEAT_STARTED: (_SEAT, _project_seat_start),
    EventType.SEAT_PROPOSED: (_CANDIDATE, _project_proposal),
    EventType.SEAT_REVISED: (_CANDIDATE, _project_proposal),
    EventType.SEAT_REVIEWED: (_CANDIDATE, _project_review),
    EventType.SEAT_FAILED: (_SEAT, _project_seat_failure),
    EventType.SEAT_FINISHED: (_SEAT, _project_seat_end),
    EventType.CHECK_FINISHED: (_CANDIDATE, _project_evidence),
    EventType.MODEL_CALLED: (("task_id", "call_id"), _project_model_call),
    EventType.TOOL_STARTED: (("request_id",), _project_tool_start),
    EventType.TOOL_FINISHED: (("request_id",), _project_tool_end),
    EventType.DECISION_MADE: (("story_id",), _project_decision),
}
"""The required ids and the projection of each event type. The other types are not projected,
because no question needs them: story.merge_requested (the delivery is projected), seat.turn (its
calls are projected individually), deliberation.steered (the log contains which calls received the
message), deliberation.paused and deliberation.resumed, evidence.reported (its tests are projected
as checks), agent.progress, audit.recorded, and registrations.
"""
