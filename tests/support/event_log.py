"""A whole story as events (created, planned, deliberated by three seats, decided), with every field
that the graph reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from moothall.domain.budget import Usage
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType, Recorded, new_event
from moothall.domain.evidence import Evidence, Verdict
from moothall.domain.ids import digest
from moothall.domain.proposal import Proposal, SeatOutcome, SeatStatus

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SEATS = ("agent-dev-001", "agent-dev-002")
BASE = "b" * 40
PATH = "src/utils.py"


def delivered_sha(task_id: str = "task-a") -> str:
    """Return the sha of the commit that a log delivers."""
    return digest("delivered", task_id)[:40]


def proposal_of(seat: str, task_id: str = "task-a") -> Proposal:
    """Return the proposal of a seat."""
    body = f"def {seat.replace('-', '_')}(): ...  # {task_id}"
    diff = f"diff --git a/{PATH} b/{PATH}\n--- a/{PATH}\n+++ b/{PATH}\n@@ -0,0 +1 @@\n+{body}\n"
    return Proposal(
        seat,
        "dev",
        f"adds {body}",
        diff,
        commit_sha=digest(diff)[:40],
        own_tests=("tests/test_utils.py",),
    )


class EventLog:
    """Events a second apart, in the order in which the server publishes them."""

    def __init__(
        self,
        task_id: str = "task-a",
        story_id: str = "story-1",
        tenant: str = "local",
        *,
        days: int = 0,
    ) -> None:
        self.task_id = task_id
        self.story_id = story_id
        self.tenant = tenant
        self.start = START + timedelta(days=days)
        self.events: list[Event] = []

    def add(self, kind: EventType, about: str, data: Mapping[str, Any]) -> Event:
        """Append an event."""
        time = (self.start + timedelta(seconds=len(self.events))).isoformat()
        event = new_event(
            kind,
            about,
            data,
            ordinal=len(self.events),
            tenant=self.tenant,
            time=time,
            cause=str(self.start),
        )
        self.events.append(event)
        return event

    def of_story(self, kind: EventType, **data: Any) -> Event:
        """Append an event of the story."""
        return self.add(kind, self.story_id, {"story_id": self.story_id, **data})

    def of_task(self, kind: EventType, **data: Any) -> Event:
        """Append an event of the deliberation."""
        return self.add(kind, self.task_id, {"task_id": self.task_id, **data})

    def received(self) -> EventLog:
        """Append the story, its plan and its first steps."""
        criteria = ["greets the world"]
        texts = {
            "title": "Greeting",
            "brief": "Greet.",
            "ac": criteria,
            "repository": {"id": "sample"},
            "rigor_level": "L1",
        }
        self.of_story(EventType.STORY_CREATED, **texts, actor="ann")
        self.of_story(
            EventType.STORY_CHANGED, **{**texts, "brief": "Greet everybody."}, actor="ann"
        )
        self.of_story(
            EventType.STORY_TRANSITIONED,
            from_state="draft",
            to_state="ready",
            event="accept",
            actor="ann",
        )
        self.of_story(EventType.STORY_COMMENTED, comment="soon, please", actor="ann")
        change = {
            "entity_type": "milestone",
            "entity_id": "m-1",
            "payload": '{"text":"shown to ben"}',
            "reason": "he asked",
        }
        self.of_story(
            EventType.STORY_NOTED,
            version=1,
            changes=[{"operation": "create", **change}],
            role="dev",
            task_id=self.task_id,
            actor="ann",
        )
        tasks = [
            {
                "task_id": self.task_id,
                "role": "dev",
                "description": "add it",
                "dependencies": [],
                "priority": 1,
            },
            {
                "task_id": f"{self.task_id}-check",
                "role": "qa",
                "description": "try it",
                "dependencies": [self.task_id],
                "priority": 2,
            },
        ]
        self.of_story(EventType.PLAN_DERIVED, plan_id=f"plan-{self.story_id}", tasks=tasks)
        return self

    def deliberated(self) -> EventLog:
        """Append a council of two: the first solves the task, the second does not."""
        self.of_task(
            EventType.DELIBERATION_REQUESTED,
            description="add it",
            role="dev",
            protocol="tests_then_verify",
            seats=list(SEATS),
            rounds=1,
            story_id=self.story_id,
            repository={"id": "sample", "url": "/r", "ref": "main"},
            base_sha=BASE,
            principal="ann",
            choice="auto: a + b",
            constraints={"rubric": "short", "requirements": ["greets"]},
            deadline=(self.start + timedelta(hours=1)).isoformat(),
        )
        guides = [{"path": "AGENTS.md", "sha256": "a" * 64}]
        self.of_task(EventType.DELIBERATION_STARTED, seats=list(SEATS), guides=guides)
        self._add_call("-", "plan", "0.0")
        for seat in SEATS:
            self.of_task(
                EventType.SEAT_STARTED, seat=seat, role="dev", agent_id=seat, approach="plainly"
            )
            self._add_call(seat, "propose", "0.0")
            self._add_tool_call(seat)
            proposal = proposal_of(seat, self.task_id)
            self.of_task(
                EventType.SEAT_PROPOSED, seat=seat, candidate=seat, proposal=dump(proposal)
            )
        for seat in SEATS:
            self._add_check(seat)
        first, second = SEATS
        review = {"score": 0.8, "met": ["greets"], "unmet": [], "comment": "reads well"}
        self.of_task(
            EventType.SEAT_REVIEWED,
            seat=second,
            candidate=first,
            fingerprint=self._print(first),
            review=review,
        )
        for seat in SEATS:
            outcome = dump(SeatOutcome(seat, SeatStatus.PROPOSED, usage=Usage(20, 5, 7, 1, 0.5)))
            self.of_task(EventType.SEAT_FINISHED, seat=seat, outcome=outcome)
        return self

    def decided(self) -> EventLog:
        """Append the decision: the first seat wins and is delivered."""
        results = [
            {
                **dump(proposal_of(seat, self.task_id)),
                "rank": rank,
                "score": 1.0 / rank,
                "reasons": ["tests"],
                "passed_gates": rank == 1,
            }
            for rank, seat in enumerate(SEATS, 1)
        ]
        self.of_task(
            EventType.DELIBERATION_DECIDED,
            status="COMPLETED",
            winner_id=SEATS[0],
            proven=True,
            results=results,
            final_state="committed",
            branch=f"moothall/{self.task_id}",
            commit_sha=delivered_sha(self.task_id),
            usage=dump(Usage(60, 15, 21, 3, 1.5)),
            duration_ms=1234,
        )
        return self

    def approved(self) -> EventLog:
        """Append the product owner's approval."""
        self.of_story(
            EventType.STORY_CHECKED,
            task_id=self.task_id,
            moved="m",
            status="passed",
            branch="moothall/story-1",
        )
        self.of_story(
            EventType.STORY_DELIVERED,
            moved="d",
            status="merged",
            branch="main",
            commit_sha=digest("merge")[:40],
        )
        self.of_story(
            EventType.DECISION_MADE,
            task_id=self.task_id,
            approver="ann",
            decision="approved",
            comment="thanks",
        )
        return self

    def completed(self) -> EventLog:
        """Append all of it."""
        return self.received().deliberated().decided().approved()

    def _print(self, seat: str) -> str:
        return proposal_of(seat, self.task_id).fingerprint

    def _add_call(self, seat: str, phase: str, step: str) -> None:
        self.of_task(
            EventType.MODEL_CALLED,
            seat=seat,
            call_id=f"{self.task_id}/{seat}/{phase}/{step}",
            phase=phase,
            prompt_sha256=digest("prompt", self.task_id, seat),
            model="small",
            sampling={"temperature": 0.8, "seed": 7, "max_tokens": 100},
            usage=dump(Usage(20, 5, 7, 1, 0.5)),
            answer=f"{seat} says \N{SNOWMAN}",
            finish_reason="stop",
            duration_ms=50,
        )

    def _add_tool_call(self, seat: str) -> None:
        request = f"{self.task_id}/{seat}/propose/0.0.0"
        about = {
            "request_id": request,
            "tool": "files.append",
            "workspace": "ws-1",
            "task_id": self.task_id,
            "seat": seat,
        }
        self.add(EventType.TOOL_STARTED, "ws-1", {**about, "arguments_digest": digest("arguments")})
        outcome = {
            "status": "success",
            "duration_ms": 3,
            "usage": {"cpu_ms": 2, "max_rss_bytes": 4096},
            "audit_id": "host:1",
        }
        self.add(EventType.TOOL_FINISHED, "ws-1", {**about, **outcome, "output": {}, "error": ""})

    def _add_check(self, seat: str) -> None:
        passed = seat == SEATS[0]
        verdict = Verdict.PASSED if passed else Verdict.FAILED
        about = {"seat": seat, "candidate": seat, "fingerprint": self._print(seat)}
        tests = Evidence(
            "tests",
            verdict,
            passed=int(passed),
            failed=int(not passed),
            duration_ms=90,
            output="1 test",
        )
        self.of_task(EventType.CHECK_FINISHED, **about, evidence=dump(tests))
        facts = {
            "applies": True,
            "required": ["tests"],
            "regressions": [],
            "proven": passed,
            "behaviour": verdict.value,
        }
        self.of_task(
            EventType.CHECK_FINISHED,
            **about,
            evidence=dump(Evidence("applies", Verdict.PASSED)),
            assessment=facts,
        )
        if passed:
            cross = {"cross_author": SEATS[1], "cross_fingerprint": self._print(SEATS[1])}
            self.of_task(
                EventType.CHECK_FINISHED,
                **about,
                **cross,
                evidence=dump(Evidence("cross", verdict, passed=2)),
            )


def as_recorded(events: Sequence[Event], last_seq: int = 0) -> list[Recorded]:
    """Return the events as recorded on the log."""
    return [Recorded(last_seq + number, event) for number, event in enumerate(events, 1)]
