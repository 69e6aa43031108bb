"""From an event to what it adds to the graph. Pure; events are data from outside, so nothing here
trusts their fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from moothall.domain.codec import text_of
from moothall.domain.event import Event, EventType
from moothall.domain.ids import digest
from moothall.graph.event_reader import EventFields, cost_of, fingerprint_of, items_of, time_of
from moothall.graph.upserts import Ref, Writes, clean

_RUN = re.compile(r"-r\d+$")
_PATH = re.compile(r"^diff --git a/.* b/(.*)$", re.MULTILINE)
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NO_SEAT = "-"


def write(event: Event, writes: Writes) -> bool:
    """Add what the event says; False where it says nothing to the graph, or lacks the ids that name
    what it is about.
    """
    reader = READERS.get(event.type)
    if reader is None:
        return False
    needed, tell = reader
    if not all(text_of(event.data.get(name)) for name in needed):
        return False
    tell(EventFields(writes, event, event.data, time_of(event)))
    return True


def _on_told(t: EventFields) -> None:
    _tell_story(t)
    t.writes.tell(t.story, "told", t.by, told_at=t.time)


def _tell_story(t: EventFields) -> bool:
    """Write the fields of a story that an event has; the others stay. Return whether it has any."""
    repository = t.data.get("repository")
    where = (
        text_of(repository.get("id")) or text_of(repository.get("url"))
        if isinstance(repository, Mapping)
        else text_of(repository)
    )
    said: dict[str, Mapping[str, str | list[str]]] = {
        "titled": {"headline": _words(t.data.get("title"))},
        "briefed": {"brief": _words(t.data.get("brief"))},
        "required": {
            "criteria": [line for item in items_of(t.data.get("ac")) if (line := _words(item))]
        },
        "placed": {"repository": where},
        "rated": {"rigor": _words(t.data.get("rigor_level"))},
    }
    said = {group: values for group, values in said.items() if any(values.values())}
    for group, values in said.items():
        t.writes.tell(t.story, group, t.by, **values)
    return bool(said)


def _words(value: object) -> str:
    """Return a text, '' if it is blank."""
    text = text_of(value)
    return text if text.strip() else ""


def _on_moved(t: EventFields) -> None:
    step = t.ref("Transition", t.event.id)
    states = {"from_state": t.data.get("from_state"), "to_state": t.data.get("to_state")}
    t.writes.tell(
        step,
        "made",
        t.by,
        event=t.data.get("event"),
        actor=t.data.get("actor"),
        made_at=t.time,
        **states,
    )
    t.writes.tell(t.story, "moved", t.by, state=t.data.get("to_state"), moved_at=t.time)
    t.writes.relate(t.story, "MOVED_BY", step)
    if _tell_story(t):  # the move of a story that is planned outside has its fields
        t.writes.tell(t.story, "told", t.by, told_at=t.time)


def _on_whole_checked(t: EventFields) -> None:
    words = {name: t.data.get(name) for name in ("branch", "commit_sha", "why")}
    t.writes.tell(t.story, "checked", t.by, check=t.data.get("status"), checked_at=t.time, **words)
    if t.text("task_id"):
        t.writes.relate(t.story, "CHECKED_IN", t.deliberation)


def _on_delivered(t: EventFields) -> None:
    t.writes.tell(
        t.story,
        "delivered",
        t.by,
        delivered=t.data.get("status"),
        delivered_to=t.data.get("branch"),
        delivered_at=t.time,
    )
    if t.text("commit_sha"):
        t.writes.relate(t.story, "DELIVERED_IN", t.ref("Commit", t.text("commit_sha")))


def _on_commented(t: EventFields) -> None:
    comment = t.ref("Comment", t.event.id)
    t.writes.tell(
        comment,
        "made",
        t.by,
        comment=t.data.get("comment"),
        actor=t.data.get("actor"),
        made_at=t.time,
    )
    t.writes.relate(t.story, "HAS_COMMENT", comment)


def _on_noted(t: EventFields) -> None:
    """The version orders notes: two of one millisecond have an order all the same."""
    version = t.data.get("version")
    if not isinstance(version, int):
        return
    who = {"actor": t.data.get("actor"), "role": t.data.get("role"), "task": t.text("task_id")}
    for change in items_of(t.data.get("changes")):
        named = (
            [text_of(change.get(name)) for name in ("entity_type", "entity_id")]
            if isinstance(change, Mapping)
            else [""]
        )
        if not all(named):
            continue
        note = t.ref("Note", t.text("story_id"), *named)
        t.writes.tell(
            note,
            "noted",
            f"{version:012d} {t.event.id}",
            kind=named[0],
            entity=named[1],
            words=change.get("payload"),
            reason=change.get("reason"),
            noted_at=t.time,
            gone=change.get("operation") == "delete",
            version=version,
            **who,
        )
        t.writes.relate(t.story, "HAS_NOTE", note)


def _on_planned(t: EventFields) -> None:
    plan = t.ref("Plan", t.text("plan_id"))
    t.writes.tell(plan, "derived", t.by, derived_at=t.time)
    t.writes.relate(t.story, "PLANNED_AS", plan)
    for place, entry in enumerate(items_of(t.data.get("tasks"))):
        task_id = text_of(entry.get("task_id")) if isinstance(entry, Mapping) else text_of(entry)
        if not task_id:
            continue
        task = t.ref("Task", _task_of(task_id))
        t.writes.relate(plan, "CONTAINS", task)
        t.writes.relate(t.story, "HAS_TASK", task)
        if isinstance(entry, Mapping):
            said = {name: entry.get(name) for name in ("description", "role", "priority")}
            t.writes.tell(task, "planned", t.by, place=place, planned_at=t.time, **said)
            for other in items_of(entry.get("dependencies")):
                if text_of(other):
                    t.writes.relate(task, "DEPENDS_ON", t.ref("Task", _task_of(other)))


def _task_of(task_id: str) -> str:
    """A run again of a task has the task's id and `-r<number>`."""
    return _RUN.sub("", task_id)


def _on_requested(t: EventFields) -> None:
    where, constraints = t.object("repository"), t.object("constraints")
    repository = text_of(where.get("id")) or text_of(where.get("url"))
    t.writes.tell(
        t.deliberation,
        "asked",
        t.by,
        **{
            name: t.data.get(name)
            for name in (
                "description",
                "role",
                "protocol",
                "base_sha",
                "principal",
                "rounds",
                "seats",
            )
        },
        repository=repository,
        story=t.text("story_id"),
        rubric=constraints.get("rubric"),
        requirements=constraints.get("requirements"),
        asked_at=t.time,
        deadline=t.data.get("deadline"),
    )
    task = t.ref("Task", _task_of(t.text("task_id")))
    t.writes.relate(task, "DELIBERATED_IN", t.deliberation)
    if t.text("story_id"):
        t.writes.relate(t.story, "HAS_TASK", task)
    if repository:
        node = t.ref("Repository", repository)
        t.writes.tell(node, "seen", t.by, url=where.get("url"))
        t.writes.relate(t.deliberation, "WORKS_ON", node)
    if _SHA.fullmatch(t.text("base_sha")):
        t.writes.relate(t.deliberation, "BASED_ON", t.ref("Commit", t.text("base_sha")))
    for name in items_of(t.data.get("seats")):
        if text_of(name):
            t.seat(name)


def _on_plan_finished(t: EventFields) -> None:
    t.writes.tell(
        t.ref("Plan", t.text("plan_id")),
        "finished",
        t.by,
        status=t.data.get("status"),
        finished_at=t.time,
    )


def _on_started(t: EventFields) -> None:
    t.writes.tell(t.deliberation, "started", t.by, started_at=t.time)


def _on_cancelled(t: EventFields) -> None:
    t.writes.tell(
        t.deliberation, "cancelled", t.by, cancel_reason=t.data.get("reason"), cancelled_at=t.time
    )


def _on_decided(t: EventFields) -> None:
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
    winner = t.text("winner_id")
    known = {name: t.data.get(name) for name in names}
    t.writes.tell(
        t.deliberation,
        "decided",
        t.by,
        winner=winner,
        decided_at=t.time,
        **known,
        **cost_of(t.object("usage")),
    )
    won = False
    for result in items_of(t.data.get("results")):
        seat = text_of(result.get("seat")) if isinstance(result, Mapping) else ""
        if not seat:
            continue
        revision = result.get("revision")
        candidate = f"{seat}.r{revision}" if isinstance(revision, int) and revision > 0 else seat
        proposal = t.proposal(candidate, fingerprint_of(result))
        first = not won and seat == winner  # results come best first
        won = won or first
        facts = {name: result.get(name) for name in ("rank", "score", "reasons", "passed_gates")}
        t.writes.tell(proposal, "ranked", t.by, won=first, **facts)
        if first:
            t.writes.relate(t.deliberation, "WON_BY", proposal)
            if _SHA.fullmatch(t.text("commit_sha")):
                t.writes.relate(proposal, "DELIVERED_AS", t.ref("Commit", t.text("commit_sha")))


def _on_seat_started(t: EventFields) -> None:
    seat, role = t.seat(t.text("seat")), t.data.get("role")
    t.writes.tell(
        seat,
        "began",
        t.by,
        seat=t.text("seat"),
        role=role,
        approach=t.data.get("approach"),
        began_at=t.time,
    )
    agent = t.ref("Agent", t.text("agent_id") or t.text("seat"))
    t.writes.tell(agent, "seen", t.by, role=role)
    t.writes.relate(seat, "TAKEN_BY", agent)


def _on_proposed(t: EventFields) -> None:
    said = t.object("proposal")
    candidate, diff = t.text("candidate"), text_of(said.get("diff"))
    node = t.proposal(candidate, fingerprint_of(said))
    t.writes.tell(
        node,
        "made",
        t.by,
        candidate=candidate,
        seat=t.text("seat"),
        summary=said.get("content"),
        diff_sha256=digest(clean(diff)) if diff else "",
        paths=_PATH.findall(diff),
        commit_sha=said.get("commit_sha"),
        revision=said.get("revision"),
        operations=len(items_of(said.get("operations"))),
        own_tests=said.get("own_tests"),
        made_at=t.time,
    )
    t.writes.relate(t.seat(t.text("seat")), "PROPOSED", node)
    if _SHA.fullmatch(text_of(said.get("commit_sha"))):
        t.writes.relate(node, "COMMITTED_AS", t.ref("Commit", said["commit_sha"]))


def _on_reviewed(t: EventFields) -> None:
    """The envelope says who reviewed whom: a review's own words for it come from further out."""
    said, review = t.object("review"), t.ref("Review", t.event.id)
    words = {name: said.get(name) for name in ("score", "met", "unmet", "comment")}
    t.writes.tell(
        review,
        "made",
        t.by,
        reviewer=t.text("seat"),
        candidate=t.text("candidate"),
        made_at=t.time,
        **words,
    )
    t.writes.relate(t.seat(t.text("seat")), "GAVE", review)
    t.writes.relate(review, "JUDGES", t.proposal(t.text("candidate"), t.text("fingerprint")))


def _on_checked(t: EventFields) -> None:
    said, assessment, author = t.object("evidence"), t.object("assessment"), t.text("cross_author")
    proposal = t.proposal(t.text("candidate"), t.text("fingerprint"))
    whose = (author, t.text("cross_fingerprint")) if author else ()
    evidence = t.ref("Evidence", proposal.key, text_of(said.get("check")), *whose)
    facts = {
        name: said.get(name)
        for name in ("check", "verdict", "output", "passed", "failed", "skipped", "duration_ms")
    }
    t.writes.tell(
        evidence,
        "made",
        t.by,
        candidate=t.text("candidate"),
        tests_of=author,
        made_at=t.time,
        **facts,
    )
    t.writes.relate(proposal, "HAS_EVIDENCE", evidence)
    t.writes.relate(t.seat(t.text("seat")), "PROPOSED", proposal)
    if author:
        t.writes.relate(evidence, "RAN_TESTS_OF", t.seat(author))
    if assessment:
        names = ("applies", "required", "regressions", "proven", "behaviour")
        t.writes.tell(proposal, "assessed", t.by, **{name: assessment.get(name) for name in names})


def _on_failed(t: EventFields) -> None:
    error = t.object("error")
    t.writes.tell(
        t.seat(t.text("seat")),
        "failed",
        t.by,
        failure_code=error.get("code"),
        failure=error.get("message"),
        failed_at=t.time,
    )


def _on_finished(t: EventFields) -> None:
    outcome = t.object("outcome")
    said = {name: outcome.get(name) for name in ("status", "error_code", "error_message")}
    usage = outcome.get("usage")
    cost = cost_of(usage if isinstance(usage, Mapping) else {})
    t.writes.tell(t.seat(t.text("seat")), "finished", t.by, finished_at=t.time, **said, **cost)


def _on_model_called(t: EventFields) -> None:
    call = t.ref("ModelCall", t.text("call_id"))
    sampling, usage, answer = t.object("sampling"), cost_of(t.object("usage")), t.text("answer")
    del usage["calls"]
    t.writes.tell(
        call,
        "made",
        t.by,
        **{
            name: t.data.get(name)
            for name in ("phase", "prompt_sha256", "model", "finish_reason", "duration_ms")
        },
        **{name: sampling.get(name) for name in ("temperature", "seed", "max_tokens")},
        **usage,
        seat=t.text("seat"),
        answer=answer,
        answer_sha256=digest(clean(answer)) if answer else "",
        made_at=t.time,
    )
    if t.text("seat") in {"", _NO_SEAT}:
        t.writes.relate(t.deliberation, "ASKED_MODEL", call)
    else:
        t.writes.relate(t.seat(t.text("seat")), "CALLED_MODEL", call)


def _tool(t: EventFields) -> Ref:
    call = t.ref("ToolCall", t.text("request_id"))
    if t.text("seat") and t.text("task_id"):
        t.writes.relate(t.seat(t.text("seat")), "CALLED_TOOL", call)
    return call


def _on_tool_started(t: EventFields) -> None:
    t.writes.tell(
        _tool(t),
        "started",
        t.by,
        arguments_sha256=t.data.get("arguments_digest"),
        started_at=t.time,
    )


def _on_tool_finished(t: EventFields) -> None:
    usage = t.object("usage")
    t.writes.tell(
        _tool(t),
        "finished",
        t.by,
        **{
            name: t.data.get(name)
            for name in ("tool", "seat", "workspace", "status", "error", "audit_id", "duration_ms")
        },
        cpu_ms=usage.get("cpu_ms"),
        max_rss_bytes=usage.get("max_rss_bytes"),
        finished_at=t.time,
    )


def _on_decision(t: EventFields) -> None:
    decision = t.ref("Decision", t.event.id)
    words = {name: t.data.get(name) for name in ("approver", "decision", "comment")}
    t.writes.tell(decision, "made", t.by, made_at=t.time, **words)
    t.writes.relate(t.story, "DECIDED_BY", decision)
    if t.text("task_id"):
        t.writes.relate(decision, "DECIDES", t.deliberation)


_Reader = tuple[tuple[str, ...], Callable[[EventFields], None]]
_SEAT = ("task_id", "seat")
_CANDIDATE = (*_SEAT, "candidate")

READERS: Mapping[EventType, _Reader] = {
    EventType.STORY_CREATED: (("story_id",), _on_told),
    EventType.STORY_CHANGED: (("story_id",), _on_told),
    EventType.STORY_TRANSITIONED: (("story_id",), _on_moved),
    EventType.STORY_CHECKED: (("story_id",), _on_whole_checked),
    EventType.STORY_DELIVERED: (("story_id",), _on_delivered),
    EventType.STORY_COMMENTED: (("story_id",), _on_commented),
    EventType.STORY_NOTED: (("story_id",), _on_noted),
    EventType.PLAN_DERIVED: (("story_id", "plan_id"), _on_planned),
    EventType.PLAN_FINISHED: (("story_id", "plan_id"), _on_plan_finished),
    EventType.DELIBERATION_REQUESTED: (("task_id",), _on_requested),
    EventType.DELIBERATION_STARTED: (("task_id",), _on_started),
    EventType.DELIBERATION_CANCELLED: (("task_id",), _on_cancelled),
    EventType.DELIBERATION_DECIDED: (("task_id",), _on_decided),
    EventType.SEAT_STARTED: (_SEAT, _on_seat_started),
    EventType.SEAT_PROPOSED: (_CANDIDATE, _on_proposed),
    EventType.SEAT_REVISED: (_CANDIDATE, _on_proposed),
    EventType.SEAT_REVIEWED: (_CANDIDATE, _on_reviewed),
    EventType.SEAT_FAILED: (_SEAT, _on_failed),
    EventType.SEAT_FINISHED: (_SEAT, _on_finished),
    EventType.CHECK_FINISHED: (_CANDIDATE, _on_checked),
    EventType.MODEL_CALLED: (("task_id", "call_id"), _on_model_called),
    EventType.TOOL_STARTED: (("request_id",), _on_tool_started),
    EventType.TOOL_FINISHED: (("request_id",), _on_tool_finished),
    EventType.DECISION_MADE: (("story_id",), _on_decision),
}
"""By type: the fields without which an event names nothing, and what it adds. Not projected,
because nobody asks the graph for them: seat.turn (its calls are there one by one),
deliberation.steered (which calls heard it is in the
log), deliberation.paused and deliberation.resumed, evidence.reported (its tests are there as runs),
agent.progress, audit.recorded, and who is registered where.
"""
