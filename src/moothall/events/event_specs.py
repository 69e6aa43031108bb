"""The only registry of addresses and of event types: where each travels, and what its data
holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moothall.domain.event import EventType
from moothall.domain.protocol import PROTOCOLS
from moothall.domain.topic import Channel

ADDRESSES: Mapping[Channel, str] = {
    Channel.STORIES: "agile.events.{story_id}",
    Channel.RESULTS: "agent.results.{task_id}",
    Channel.RESPONSES: "agent.responses.{task_id}",
    Channel.WORDS: "agent.words.{task_id}",
    Channel.PROGRESS: "agent.progress.{agent_id}",
    Channel.TOOLS: "tool.results.{workspace}",
    Channel.AUDIT: "audit.{tenant}",
    Channel.COUNCILS: "council.{tenant}",
    Channel.WORK: "agent.requests.{role}",
    Channel.CALLS: "tool.requests.{workspace}",
    Channel.CANCEL: "agent.cancel.{task_id}",
    Channel.STEER: "agent.steer.{task_id}",
    Channel.GROWING: "agent.text.{task_id}",
    Channel.TAKEN: "agent.taken.{task_id}",
    Channel.LINK: "workspace.link.{end}",
    Channel.FIGURES: "agent.metrics.{process}",
    Channel.HOSTS: "host.requests.{fleet}",
    Channel.GRAPH: "graph.questions.{graph}",
    Channel.REPOSITORIES: "repository.requests.{holder}",
}
"""Where the messages of each channel travel."""


@dataclass(frozen=True, slots=True)
class EventSpec:
    """Where a type of event travels and what its data holds."""

    type: EventType
    channel: Channel
    fields: Mapping[str, str]
    version: int = 1

    @property
    def subject(self) -> str:
        """Where it travels; what stands in braces is filled in from the data."""
        return ADDRESSES[self.channel]


_TASK = {"task_id": "the deliberation", "story_id": "its story, if any"}
_SEAT = {"task_id": "the deliberation", "seat": "the seat's stable id"}
_STORY = {"story_id": "the story", "title": "title", "brief": "what the product owner asks for"}
_TOOL = {
    "request_id": "unique within a tenant",
    "tool": "name in the catalogue",
    "workspace": "the workspace it acts in",
    "task_id": "the deliberation",
    "seat": "who asked",
}
_FLOW = {"workflow_id": "unique within the workspace", "workspace": "the workspace it acts in"}
_ROLE = {"tenant": "from the event", "role": "kind of work"}


def _spec(kind: EventType, channel: Channel, known: Mapping[str, str], **more: str) -> EventSpec:
    return EventSpec(kind, channel, {**known, **more})


_E, _C = EventType, Channel
EVENT_SPECS: Mapping[EventType, EventSpec] = {
    spec.type: spec
    for spec in (
        _spec(
            _E.STORY_CREATED,
            _C.STORIES,
            _STORY,
            ac="criteria",
            repository="where to work",
            rigor_level="L0..L3",
            actor="who",
            budget="tokens, calls, money for all its deliberations; where its author gave one",
        ),
        _spec(
            _E.STORY_CHANGED,
            _C.STORIES,
            _STORY,
            ac="criteria",
            repository="where to work",
            rigor_level="L0..L3",
            actor="who",
        ),
        _spec(
            _E.STORY_TRANSITIONED,
            _C.STORIES,
            _STORY,
            from_state="before",
            to_state="after",
            event="what led there",
            actor="who",
        ),
        _spec(
            _E.STORY_CHECKED,
            _C.STORIES,
            {"story_id": "the story"},
            moved="the move to test for which it was checked",
            task_id="the deliberation that brought the winners together",
            status="passed, or failed",
            branch="where the whole lies",
            commit_sha="its commit",
            why="why it failed",
        ),
        _spec(
            _E.STORY_DELIVERED,
            _C.STORIES,
            {"story_id": "the story"},
            moved="the move to done with which it was approved",
            status="left, pushed or merged, as the repository's policy says; failed where it does "
            "not go together with the base any more",
            branch="where it lies",
            commit_sha="its commit there",
            start="where it failed: the commit on which it is changed",
            why="why it was left, or failed",
        ),
        _spec(
            _E.STORY_COMMENTED,
            _C.STORIES,
            _STORY,
            comment="the words",
            actor="who",
            task_id="of a line of a diff: the deliberation that it is of",
            path="its file",
            line="its number there",
            quoted="the line, with its sign",
        ),
        _spec(
            _E.STORY_NOTED,
            _C.STORIES,
            {"story_id": "the story"},
            version="of the story's notes, from 1: it grows by one with each of these events",
            changes="operation, entity_type, entity_id, payload (JSON), reason",
            role="whose view it is",
            task_id="the deliberation that it comes from, if any",
            actor="who",
            at="the caller's own time, RFC 3339; or empty",
        ),
        _spec(
            _E.PLAN_DERIVED,
            _C.STORIES,
            {"story_id": "the story"},
            plan_id="the plan",
            tasks="its tasks, in order",
            publish="whether councils get them",
            by="architects, roles, repair or people",
            why="why not by architects, where those were asked",
            design="the deliberation of the architects whose tasks people changed",
        ),
        _spec(
            _E.DELIBERATION_REQUESTED,
            _C.RESULTS,
            _TASK,
            role="kind of work",
            description="the task",
            constraints="rubric, requirements, limits",
            repository="id, url, ref",
            base_sha="the pinned commit",
            protocol=", ".join(PROTOCOLS),
            seats="the seats, in order",
            rounds="review-and-revise rounds",
            budget="tokens, seconds, calls, money",
            deadline="UTC instant",
        ),
        _spec(
            _E.DELIBERATION_STARTED,
            _C.RESULTS,
            _TASK,
            seats="the seats, in order",
            models="of each model: profile, model, api, reply, window, window_source, reply_tokens",
            limits="turns of a seat; tokens, calls and seconds of all",
        ),
        _spec(
            _E.DELIBERATION_DECIDED,
            _C.RESPONSES,
            _TASK,
            status="how it ended",
            winner_id="the winning seat, or empty",
            proven="whether a test that the author didn't write shows it",
            evidence_level="proven, reproduced, self_tested, unproven",
            undecided="whether no test or review put the winner before another answer",
            results="rank, score, reasons, checks, evidence, diff or its reference",
            final_state="committed, no_winner, failed, timeout, cancelled, answered, already_done",
            branch="where the winner lies",
            commit_sha="the winner's commit",
            usage="tokens, calls, money",
            duration_ms="from request to decision",
        ),
        _spec(_E.DELIBERATION_CANCELLED, _C.RESPONSES, _TASK, reason="why"),
        _spec(
            _E.DELIBERATION_STEERED,
            _C.WORDS,
            _TASK,
            message="what the seats hear at their next turn",
            by="who says it",
        ),
        _spec(
            _E.DELIBERATION_PAUSED,
            _C.WORDS,
            _TASK,
            number="of its pauses and resumptions, from 0: an even one",
            by="who",
        ),
        _spec(
            _E.DELIBERATION_RESUMED,
            _C.WORDS,
            _TASK,
            number="as of deliberation.paused: an odd one",
            by="who",
        ),
        _spec(
            _E.DELIBERATION_DAMAGED,
            _C.RESULTS,
            _TASK,
            missing="seqs of lost records, of which some may be its own; the first hundred",
            count="how many they are",
        ),
        _spec(
            _E.SEAT_STARTED,
            _C.RESULTS,
            _SEAT,
            role="kind of work",
            agent_id="the agent",
            approach="what it will try",
        ),
        _spec(
            _E.SEAT_TURN,
            _C.RESULTS,
            _SEAT,
            phase="propose, derive, coach or revise",
            round="from 0",
            turn="from 1, through all attempts",
            attempt="from 1",
            attempts="how many there may be",
            stuck="how the seat went in circles, which ends the attempt; or empty",
            operations="tool calls with status",
            calls="id, tool, arguments, status, output, error, duration_ms of the tool calls, if "
            "the request has records_calls",
            thought="the model's words",
            usage="tokens, calls, money",
            tools="cpu_ms, max_rss_bytes of the seat's tools and checks so far",
            checks="check name to verdict",
        ),
        _spec(
            _E.SEAT_PROPOSED,
            _C.RESULTS,
            _SEAT,
            candidate="id of the proposal",
            proposal="content, diff, commit, operations",
        ),
        _spec(
            _E.SEAT_REVIEWED,
            _C.RESULTS,
            _SEAT,
            candidate="what was judged",
            fingerprint="of what was judged",
            review="score, met, unmet, comment",
        ),
        _spec(
            _E.SEAT_REVISED,
            _C.RESULTS,
            _SEAT,
            candidate="id of the revision",
            proposal="content, diff, commit, operations",
        ),
        _spec(_E.SEAT_FAILED, _C.RESULTS, _SEAT, error="code and message"),
        _spec(
            _E.SEAT_FINISHED,
            _C.RESULTS,
            _SEAT,
            outcome="status, error, usage; the seat's last event",
        ),
        _spec(
            _E.MODEL_CALLED,
            _C.RESULTS,
            _SEAT,
            call_id="deterministic id of the call",
            phase="plan, propose, critique, revise, verify, derive, coach",
            prompt_sha256="of the prompt's bytes",
            model="name that the server gave",
            sampling="temperature, seed, max_tokens",
            usage="tokens, calls, money",
            answer="the whole answer or its reference",
            finish_reason="stop, length, …",
            digits="of a review's score, numbers that might have stood there and how likely each "
            "was; left out where the server does not tell",
            earlier_digits="the same for the numbers before it: scores by criterion",
            told="ids of the deliberation.steered events that the prompt tells of; left out where "
            "it tells of none",
            duration_ms="wall time",
        ),
        _spec(
            _E.TOOL_REQUESTED,
            _C.CALLS,
            {
                "request_id": "unique within the workspace",
                "workspace": "the workspace it is for",
                "tool": "name in the catalogue",
            },
            arguments="an object",
            capability_token="bound to this request",  # noqa: S106 - what it is, not one
            deadline="UTC instant; may be left out",
            context="story_id, task_id, seat, role, session_id, persona_id; may be left out",
        ),
        _spec(
            _E.TOOL_STARTED, _C.TOOLS, _TOOL, arguments_digest="sha256 of the canonical arguments"
        ),
        _spec(
            _E.TOOL_FINISHED,
            _C.TOOLS,
            _TOOL,
            status="success, error, invalid, blocked, …",
            output="the tool's answer",
            error="a sentence, if it failed",
            duration_ms="wall time",
            usage="cpu_ms, max_rss_bytes",
            audit_id="its audit record",
            cached="it stood from an earlier call",
        ),
        _spec(
            _E.WORKFLOW_STARTED,
            _C.TOOLS,
            _FLOW,
            name="its name",
            plan="its document, as it was sent",
            digest="of the document",
            commit_sha="the workspace's files as they were",
            steps="how many there are",
        ),
        _spec(
            _E.WORKFLOW_STEP,
            _C.TOOLS,
            _FLOW,
            step="the step's id",
            state="started, parked, retrying, succeeded, failed, unknown, skipped",
            compensation="whether it is the step's compensation",
            attempt="from 1",
            result="of the attempt that ended: as a tool.finished",
            error="why it is no success",
            commit_sha="the workspace's files as they are now, where the step may have changed "
            "them",
            done="steps that are over",
            steps="how many there are",
        ),
        _spec(
            _E.WORKFLOW_FINISHED,
            _C.TOOLS,
            _FLOW,
            state="succeeded, partial, failed, compensated, cancelled",
            error="why it is no success",
            done="steps that are over",
            steps="how many there are",
        ),
        _spec(
            _E.CHECK_FINISHED,
            _C.RESULTS,
            _SEAT,
            candidate="what was checked",
            fingerprint="of the proposal that was checked: two hosts at once may make two of one "
            "name",
            evidence="check, verdict, counts, output",
            assessment="applies, required, regressions, proven, behaviour; with the check "
            "`applies`",
            cross_author="whose tests, with the check `cross`",
            cross_fingerprint="of the proposal that these tests are taken from",
        ),
        _spec(
            _E.EVIDENCE_REPORTED,
            _C.RESULTS,
            _TASK,
            report="agent, message, candidate, cases, diff, missing, usage: what an agent beside "
            "the seats found",
        ),
        _spec(
            _E.DECISION_MADE,
            _C.STORIES,
            {"story_id": "the story", "task_id": "the deliberation"},
            approver="who",
            decision="approved, rejected, changes",
            comment="why",
        ),
        _spec(
            _E.AGENT_PROGRESS,
            _C.PROGRESS,
            {"agent_id": "the agent"},
            workstream="part of the work",
            progress="0..1; of one agent it never falls",
            current_task="what it is at",
            metrics="turns, tool_calls, tokens, cost_usd, checks, checks_passed, cpu_ms, "
            "max_rss_bytes",
            agent="its name in its file",
            seat="whose step it is",
        ),
        _spec(
            _E.GUARD_ALERTED,
            _C.AUDIT,
            {
                "tenant": "from the event",
                "kind": "denials or escapes (attempts to escape a sandbox)",
            },
            count="how many of them",
            seconds="within how long",
            principal="who asked",
            task_id="the deliberation, or the workspace of a external caller",
            seat="the seat of the last one",
            workspace="the workspace of the last one",
            tool="what the last one asked for",
            reason="why it was refused",
            request_id="its request",
        ),
        _spec(
            _E.AUDIT_RECORDED,
            _C.AUDIT,
            {"tenant": "from the event"},
            record="the chained record",
            writer="whose chain of the tenant's it is in",
            mac="what signs it as the head of its chain",
            records="those of the chain before it that were not told yet, in order",
        ),
        _spec(
            _E.PLAN_FINISHED,
            _C.STORIES,
            {"story_id": "the story"},
            plan_id="the plan",
            derivation_id="the plan.derived event that it ends",
            status="completed, or failed",
            tasks="task id to how it ended; SKIPPED where a dependency did not complete",
            why="task id to what went wrong, of those that ended in an error",
            commits="what it came to: of each task whose work no other builds on",
        ),
        _spec(
            _E.COUNCIL_CREATED,
            _C.COUNCILS,
            _ROLE,
            agents="its agents, in the order of their seats",
            config="its defaults",
        ),
        _spec(_E.COUNCIL_DELETED, _C.COUNCILS, _ROLE),
        _spec(
            _E.AGENT_REGISTERED, _C.COUNCILS, _ROLE, agent="id, capabilities, endpoint, metadata"
        ),
        _spec(_E.AGENT_UNREGISTERED, _C.COUNCILS, _ROLE, agent_id="which"),
    )
}
