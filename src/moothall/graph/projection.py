"""From an event to what it adds to the graph. Pure; events are data from outside, so nothing here trusts their fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moothall.domain.event import Event, EventType
from moothall.domain.ids import digest, own_id
from moothall.graph.upserts import Ref, Writes, clean, ref

_RUN = re.compile(r"-r\d+$")
_PATH = re.compile(r"^diff --git a/.* b/(.*)$", re.MULTILINE)
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NO_SEAT = "-"
_MOST = 1000
"""Entries of a list that one event may bring."""
_COST = ("prompt_tokens", "cached_tokens", "completion_tokens", "calls", "cost_usd")


@dataclass(frozen=True, slots=True)
class _Telling:
    """An event, and what every reader needs of it. `time` is UTC in one length, so that it sorts as text."""

    writes: Writes
    event: Event
    data: Mapping[str, Any]
    time: str

    @property
    def by(self) -> str:
        return f"{self.time} {self.event.id}"

    def ref(self, label: str, *parts: str) -> Ref:
        return ref(label, self.event.tenant, *parts)

    def text(self, name: str) -> str:
        value = _text(self.data.get(name))
        return own_id(value, self.event.tenant) if name == "task_id" else value  # the graph keeps tenants apart by itself

    def object(self, name: str) -> Mapping[str, Any]:
        value = self.data.get(name)
        return value if isinstance(value, Mapping) else {}

    @property
    def deliberation(self) -> Ref:
        return self.ref("Deliberation", self.text("task_id"))

    @property
    def story(self) -> Ref:
        return self.ref("Story", self.text("story_id"))

    def seat(self, name: str) -> Ref:
        """The seat, bound to its deliberation."""
        seat = self.ref("Seat", self.text("task_id"), name)
        self.writes.relate(self.deliberation, "HAS_SEAT", seat)
        return seat

    def proposal(self, candidate: str, fingerprint: str) -> Ref:
        """Two hosts at once may make two proposals of one name: what is found of one belongs to no other."""
        return self.ref("Proposal", self.text("task_id"), candidate, fingerprint)


def write(event: Event, writes: Writes) -> bool:
    """Add what the event says; False where it says nothing to the graph, or lacks the ids that name what it is about."""
    reader = READERS.get(event.type)
    if reader is None:
        return False
    needed, tell = reader
    if not all(_text(event.data.get(name)) for name in needed):
        return False
    tell(_Telling(writes, event, event.data, _time(event)))
    return True


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _items(value: object) -> Sequence[Any]:
    return value[:_MOST] if isinstance(value, list | tuple) else ()


def _time(event: Event) -> str:
    if not event.time:
        return ""
    try:
        time = datetime.fromisoformat(event.time)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError):
        return ""


def _fingerprint(said: Mapping[str, Any]) -> str:
    """As `domain.proposal.Proposal.fingerprint`."""
    answer = _text(said.get("diff")) or _text(said.get("content"))
    return digest(clean(answer))[:16]


def _cost(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {name: usage.get(name) for name in _COST}


def _on_told(t: _Telling) -> None:
    repository = t.data.get("repository")
    where = _text(repository.get("id")) or _text(repository.get("url")) if isinstance(repository, Mapping) else _text(repository)
    t.writes.tell(
        t.story,
        "told",
        t.by,
        headline=t.data.get("title"),
        brief=t.data.get("brief"),
        criteria=t.data.get("ac"),
        repository=where,
        rigor=t.data.get("rigor_level"),
        told_at=t.time,
    )


def _on_moved(t: _Telling) -> None:
    step = t.ref("Transition", t.event.id)
    states = {"from_state": t.data.get("from_state"), "to_state": t.data.get("to_state")}
    t.writes.tell(step, "made", t.by, event=t.data.get("event"), actor=t.data.get("actor"), made_at=t.time, **states)
    t.writes.tell(t.story, "moved", t.by, state=t.data.get("to_state"), moved_at=t.time)
    t.writes.relate(t.story, "MOVED_BY", step)


def _on_whole_checked(t: _Telling) -> None:
    words = {name: t.data.get(name) for name in ("branch", "commit_sha", "why")}
    t.writes.tell(t.story, "checked", t.by, check=t.data.get("status"), checked_at=t.time, **words)
    if t.text("task_id"):
        t.writes.relate(t.story, "CHECKED_IN", t.deliberation)


def _on_delivered(t: _Telling) -> None:
    t.writes.tell(
        t.story, "delivered", t.by, delivered=t.data.get("status"), delivered_to=t.data.get("branch"), delivered_at=t.time
    )
    if t.text("commit_sha"):
        t.writes.relate(t.story, "DELIVERED_IN", t.ref("Commit", t.text("commit_sha")))


def _on_commented(t: _Telling) -> None:
    comment = t.ref("Comment", t.event.id)
    t.writes.tell(comment, "made", t.by, comment=t.data.get("comment"), actor=t.data.get("actor"), made_at=t.time)
    t.writes.relate(t.story, "HAS_COMMENT", comment)


def _on_noted(t: _Telling) -> None:
    """The version orders notes: two of one millisecond have an order all the same."""
    version = t.data.get("version")
    if not isinstance(version, int):
        return
    who = {"actor": t.data.get("actor"), "role": t.data.get("role"), "task": t.text("task_id")}
    for change in _items(t.data.get("changes")):
        named = [_text(change.get(name)) for name in ("entity_type", "entity_id")] if isinstance(change, Mapping) else [""]
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


def _on_planned(t: _Telling) -> None:
    plan = t.ref("Plan", t.text("plan_id"))
    t.writes.tell(plan, "derived", t.by, derived_at=t.time)
    t.writes.relate(t.story, "PLANNED_AS", plan)
    for place, entry in enumerate(_items(t.data.get("tasks"))):
        task_id = _text(entry.get("task_id")) if isinstance(entry, Mapping) else _text(entry)
        if not task_id:
            continue
        task = t.ref("Task", _task_of(task_id))
        t.writes.relate(plan, "CONTAINS", task)
        t.writes.relate(t.story, "HAS_TASK", task)
        if isinstance(entry, Mapping):
            said = {name: entry.get(name) for name in ("description", "role", "priority")}
            t.writes.tell(task, "planned", t.by, place=place, planned_at=t.time, **said)
            for other in _items(entry.get("dependencies")):
                if _text(other):
                    t.writes.relate(task, "DEPENDS_ON", t.ref("Task", _task_of(other)))


def _task_of(task_id: str) -> str:
    """A run again of a task has the task's id and `-r<number>`."""
    return _RUN.sub("", task_id)


def _on_requested(t: _Telling) -> None:
    where, constraints = t.object("repository"), t.object("constraints")
    repository = _text(where.get("id")) or _text(where.get("url"))
    t.writes.tell(
        t.deliberation,
        "asked",
        t.by,
        **{name: t.data.get(name) for name in ("description", "role", "protocol", "base_sha", "principal", "rounds", "seats")},
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
    for name in _items(t.data.get("seats")):
        if _text(name):
            t.seat(name)


def _on_plan_finished(t: _Telling) -> None:
    t.writes.tell(t.ref("Plan", t.text("plan_id")), "finished", t.by, status=t.data.get("status"), finished_at=t.time)


def _on_started(t: _Telling) -> None:
    t.writes.tell(t.deliberation, "started", t.by, started_at=t.time)


def _on_cancelled(t: _Telling) -> None:
    t.writes.tell(t.deliberation, "cancelled", t.by, cancel_reason=t.data.get("reason"), cancelled_at=t.time)


def _on_decided(t: _Telling) -> None:
    names = ("status", "final_state", "proven", "branch", "commit_sha", "error_message", "duration_ms")
    winner = t.text("winner_id")
    known = {name: t.data.get(name) for name in names}
    t.writes.tell(t.deliberation, "decided", t.by, winner=winner, decided_at=t.time, **known, **_cost(t.object("usage")))
    won = False
    for result in _items(t.data.get("results")):
        seat = _text(result.get("seat")) if isinstance(result, Mapping) else ""
        if not seat:
            continue
        revision = result.get("revision")
        candidate = f"{seat}.r{revision}" if isinstance(revision, int) and revision > 0 else seat
        proposal = t.proposal(candidate, _fingerprint(result))
        first = not won and seat == winner  # results come best first
        won = won or first
        facts = {name: result.get(name) for name in ("rank", "score", "reasons", "passed_gates")}
        t.writes.tell(proposal, "ranked", t.by, won=first, **facts)
        if first:
            t.writes.relate(t.deliberation, "WON_BY", proposal)
            if _SHA.fullmatch(t.text("commit_sha")):
                t.writes.relate(proposal, "DELIVERED_AS", t.ref("Commit", t.text("commit_sha")))


def _on_seat_started(t: _Telling) -> None:
    seat, role = t.seat(t.text("seat")), t.data.get("role")
    t.writes.tell(seat, "began", t.by, seat=t.text("seat"), role=role, approach=t.data.get("approach"), began_at=t.time)
    agent = t.ref("Agent", t.text("agent_id") or t.text("seat"))
    t.writes.tell(agent, "seen", t.by, role=role)
    t.writes.relate(seat, "TAKEN_BY", agent)


def _on_proposed(t: _Telling) -> None:
    said = t.object("proposal")
    candidate, diff = t.text("candidate"), _text(said.get("diff"))
    node = t.proposal(candidate, _fingerprint(said))
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
        operations=len(_items(said.get("operations"))),
        own_tests=said.get("own_tests"),
        made_at=t.time,
    )
    t.writes.relate(t.seat(t.text("seat")), "PROPOSED", node)
    if _SHA.fullmatch(_text(said.get("commit_sha"))):
        t.writes.relate(node, "COMMITTED_AS", t.ref("Commit", said["commit_sha"]))


def _on_reviewed(t: _Telling) -> None:
    """The envelope says who reviewed whom: a review's own words for it come from further out."""
    said, review = t.object("review"), t.ref("Review", t.event.id)
    words = {name: said.get(name) for name in ("score", "met", "unmet", "comment")}
    t.writes.tell(review, "made", t.by, reviewer=t.text("seat"), candidate=t.text("candidate"), made_at=t.time, **words)
    t.writes.relate(t.seat(t.text("seat")), "GAVE", review)
    t.writes.relate(review, "JUDGES", t.proposal(t.text("candidate"), t.text("fingerprint")))


def _on_checked(t: _Telling) -> None:
    said, assessment, author = t.object("evidence"), t.object("assessment"), t.text("cross_author")
    proposal = t.proposal(t.text("candidate"), t.text("fingerprint"))
    whose = (author, t.text("cross_fingerprint")) if author else ()
    evidence = t.ref("Evidence", proposal.key, _text(said.get("check")), *whose)
    facts = {name: said.get(name) for name in ("check", "verdict", "output", "passed", "failed", "skipped", "duration_ms")}
    t.writes.tell(evidence, "made", t.by, candidate=t.text("candidate"), tests_of=author, made_at=t.time, **facts)
    t.writes.relate(proposal, "HAS_EVIDENCE", evidence)
    t.writes.relate(t.seat(t.text("seat")), "PROPOSED", proposal)
    if author:
        t.writes.relate(evidence, "RAN_TESTS_OF", t.seat(author))
    if assessment:
        names = ("applies", "required", "regressions", "proven", "behaviour")
        t.writes.tell(proposal, "assessed", t.by, **{name: assessment.get(name) for name in names})


def _on_failed(t: _Telling) -> None:
    error = t.object("error")
    t.writes.tell(
        t.seat(t.text("seat")), "failed", t.by, failure_code=error.get("code"), failure=error.get("message"), failed_at=t.time
    )


def _on_finished(t: _Telling) -> None:
    outcome = t.object("outcome")
    said = {name: outcome.get(name) for name in ("status", "error_code", "error_message")}
    usage = outcome.get("usage")
    cost = _cost(usage if isinstance(usage, Mapping) else {})
    t.writes.tell(t.seat(t.text("seat")), "finished", t.by, finished_at=t.time, **said, **cost)


def _on_model_called(t: _Telling) -> None:
    call = t.ref("ModelCall", t.text("call_id"))
    sampling, usage, answer = t.object("sampling"), _cost(t.object("usage")), t.text("answer")
    del usage["calls"]
    t.writes.tell(
        call,
        "made",
        t.by,
        **{name: t.data.get(name) for name in ("phase", "prompt_sha256", "model", "finish_reason", "duration_ms")},
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


def _tool(t: _Telling) -> Ref:
    call = t.ref("ToolCall", t.text("request_id"))
    if t.text("seat") and t.text("task_id"):
        t.writes.relate(t.seat(t.text("seat")), "CALLED_TOOL", call)
    return call


def _on_tool_started(t: _Telling) -> None:
    t.writes.tell(_tool(t), "started", t.by, arguments_sha256=t.data.get("arguments_digest"), started_at=t.time)


def _on_tool_finished(t: _Telling) -> None:
    usage = t.object("usage")
    t.writes.tell(
        _tool(t),
        "finished",
        t.by,
        **{name: t.data.get(name) for name in ("tool", "seat", "workspace", "status", "error", "audit_id", "duration_ms")},
        cpu_ms=usage.get("cpu_ms"),
        max_rss_bytes=usage.get("max_rss_bytes"),
        finished_at=t.time,
    )


def _on_decision(t: _Telling) -> None:
    decision = t.ref("Decision", t.event.id)
    words = {name: t.data.get(name) for name in ("approver", "decision", "comment")}
    t.writes.tell(decision, "made", t.by, made_at=t.time, **words)
    t.writes.relate(t.story, "DECIDED_BY", decision)
    if t.text("task_id"):
        t.writes.relate(decision, "DECIDES", t.deliberation)


_Reader = tuple[tuple[str, ...], Callable[[_Telling], None]]
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
"""By type: the fields without which an event names nothing, and what it adds. Not projected, because nobody asks the graph
for them: seat.turn (its calls are there one by one), deliberation.steered (which calls heard it is in the log), deliberation.paused and deliberation.resumed, agent.progress, audit.recorded, and who is registered where.
"""
