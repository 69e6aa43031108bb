"""The only registry of addresses and event types: the subject and the data fields of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moothall.domain.council import PROTOCOLS
from moothall.domain.event import Channel, EventType
from moothall.domain.evidence import EvidenceLevel

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
"""The subject template of each channel."""


@dataclass(frozen=True, slots=True)
class EventSpec:
    """An event type: its channel and the description of each data field."""

    type: EventType
    channel: Channel
    fields: Mapping[str, str]
    version: int = 1

    @property
    def subject(self) -> str:
        """The subject template; names in braces are filled in from the data."""
        return ADDRESSES[self.channel]


_TASK = {"task_id": "the deliberation", "story_id": "its story, if any"}
_SEAT = {"task_id": "the deliberation", "seat": "the seat's stable id"}
_STORY = {"story_id": "the story", "title": "title", "brief": "what the product owner asks for"}
_TOOL = {
    "request_id": "unique within a tenant",
    "tool": "name in the catalogue",
    "workspace": "the workspace of the call",
    "task_id": "the deliberation",
    "seat": "the seat that made the call",
}
_FLOW = {"workflow_id": "unique within the workspace", "workspace": "the workspace it runs in"}
_ROLE = {"tenant": "from the event", "role": "kind of work"}


def _spec(
    kind: EventType, channel: Channel, shared_fields: Mapping[str, str], **fields: str
) -> EventSpec:
    return EventSpec(kind, channel, {**shared_fields, **fields})


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
            budget="tokens, calls and money for all its deliberations; only if the author set one",
        ),
        _spec(
            _E.STORY_CHANGED,
            _C.STORIES,
            _STORY,
            ac="criteria",
            repository="where to work",
            rigor_level="L0..L3",
            actor="who",
            edited="true: the fields are complete, and empty ones clear the story's",
        ),
        _spec(
            _E.STORY_TRANSITIONED,
            _C.STORIES,
            _STORY,
            from_state="the previous state",
            to_state="the new state",
            event="the lifecycle event that caused the transition",
            actor="who",
        ),
        _spec(
            _E.STORY_CHECKED,
            _C.STORIES,
            {"story_id": "the story"},
            moved="the transition to test that caused this check",
            task_id="the deliberation that merged the winners",
            status="passed, or failed",
            branch="the branch of the merged result",
            commit_sha="its commit",
            why="the reason for a failure",
        ),
        _spec(
            _E.STORY_DELIVERED,
            _C.STORIES,
            {"story_id": "the story"},
            moved="the transition to done with which it was approved",
            status="left, pushed or merged, according to the repository's policy; failed if it no "
            "longer merges with the base",
            branch="the branch it is on",
            commit_sha="its commit on that branch",
            start="after a failure: the commit on which the rework starts",
            why="the reason if it was left or failed",
        ),
        _spec(
            _E.STORY_MERGE_REQUESTED,
            _C.STORIES,
            {"story_id": "the story"},
            delivery="the delivery whose commit is to be merged",
            actor="who",
            roles="the roles of the actor",
        ),
        _spec(
            _E.STORY_COMMENTED,
            _C.STORIES,
            _STORY,
            comment="the text",
            actor="who",
            task_id="for a comment on a diff line: the deliberation of the diff",
            path="the file of the diff line",
            line="the line number in that file",
            quoted="the diff line with its sign",
        ),
        _spec(
            _E.STORY_NOTED,
            _C.STORIES,
            {"story_id": "the story"},
            version="the version of the story's notes, from 1; each of these events adds one",
            changes="operation, entity_type, entity_id, payload (JSON), reason",
            role="the role whose view changed",
            task_id="the deliberation it comes from, if any",
            actor="who",
            at="the caller's timestamp, RFC 3339; or empty",
        ),
        _spec(
            _E.PLAN_DERIVED,
            _C.STORIES,
            {"story_id": "the story"},
            plan_id="the plan",
            tasks="its tasks, in order",
            publish="whether the tasks are sent to councils",
            by="architects, roles, repair or people",
            why="the reason if architects were asked but did not derive them",
            design="the deliberation of the architects whose tasks were edited",
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
            choice="why its models were chosen, if the request left that to their results",
            budget="tokens, seconds, calls, money",
            deadline="UTC instant",
        ),
        _spec(
            _E.DELIBERATION_STARTED,
            _C.RESULTS,
            _TASK,
            seats="the seats, in order",
            models="for each model: profile, model, api, reply, window, window_source, "
            "reply_tokens, harness if there is one",
            limits="turns of each seat; tokens, calls and seconds of the deliberation",
            guides="path and sha256 of each AGENTS.md and SKILL.md that the prompts name",
        ),
        _spec(
            _E.DELIBERATION_DECIDED,
            _C.RESPONSES,
            _TASK,
            status="how it ended",
            winner_id="the winning seat, or empty",
            proven="whether a test that the author did not write proves it",
            evidence_level=", ".join(EvidenceLevel),
            undecided="whether no test or review ranked the winner above another answer",
            results="rank, score, reasons, checks, evidence, diff or its reference",
            final_state="committed, no_winner, failed, timeout, cancelled, answered, already_done, "
            "judged",
            branch="the winner's branch",
            commit_sha="the winner's commit",
            usage="tokens, calls, money",
            duration_ms="from request to decision",
        ),
        _spec(_E.DELIBERATION_CANCELLED, _C.RESPONSES, _TASK, reason="why"),
        _spec(
            _E.DELIBERATION_STEERED,
            _C.WORDS,
            _TASK,
            message="the text that the seats receive at their next turn",
            by="the author",
        ),
        _spec(
            _E.DELIBERATION_PAUSED,
            _C.WORDS,
            _TASK,
            number="the count of pauses and resumptions so far, from 0; always even",
            by="who",
        ),
        _spec(
            _E.DELIBERATION_RESUMED,
            _C.WORDS,
            _TASK,
            number="as in deliberation.paused; always odd",
            by="who",
        ),
        _spec(
            _E.DELIBERATION_DAMAGED,
            _C.RESULTS,
            _TASK,
            missing="the first hundred seqs of lost records that may belong to it",
            count="the number of lost records",
        ),
        _spec(
            _E.SEAT_STARTED,
            _C.RESULTS,
            _SEAT,
            role="kind of work",
            agent_id="the agent",
            approach="the approach it will try",
        ),
        _spec(
            _E.SEAT_TURN,
            _C.RESULTS,
            _SEAT,
            phase="propose, derive, coach or revise",
            round="from 0",
            turn="from 1, through all attempts",
            attempt="from 1",
            attempts="the maximum number of attempts",
            stuck="the repetition that ended the attempt; or empty",
            operations="tool calls with status",
            calls="id, tool, arguments, status, output, error, duration_ms of the tool calls, if "
            "the request has records_calls",
            thought="the model's text beside the tool calls",
            usage="tokens, calls, money",
            tools="cpu_ms, max_rss_bytes of the seat's tools and checks so far",
            checks="check name to verdict",
            refused_calls="tool, status and reason of the calls that the tool gateway refused; "
            "omitted if there are none",
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
            candidate="id of the reviewed proposal or revision",
            fingerprint="fingerprint of the reviewed proposal",
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
            model="the name reported by the server",
            sampling="temperature, seed, max_tokens",
            usage="tokens, calls, money",
            answer="the whole answer or its reference",
            finish_reason="stop, length, …",
            digits="for a review's score: the possible numbers and the probability of each; "
            "omitted if the server does not report them",
            earlier_digits="the same for the numbers before it: scores by criterion",
            told="ids of the deliberation.steered events that the prompt includes; omitted if "
            "there are none",
            duration_ms="wall time",
            prompt="the messages, without secrets: `of`, `kept` and `chars` are what they share "
            "with an earlier call (its step, whole messages, characters of the next one), "
            "`messages` the others",
        ),
        _spec(
            _E.TOOL_REQUESTED,
            _C.CALLS,
            {
                "request_id": "unique within the workspace",
                "workspace": "the workspace of the call",
                "tool": "name in the catalogue",
            },
            arguments="an object",
            capability_token="bound to this request",  # noqa: S106 - what it is, not one
            deadline="UTC instant; optional",
            context="story_id, task_id, seat, role, session_id, persona_id; optional",
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
            error="the error message, if it failed",
            duration_ms="wall time",
            usage="cpu_ms, max_rss_bytes",
            audit_id="its audit record",
            cached="whether the output was reused from an earlier call",
        ),
        _spec(
            _E.WORKFLOW_STARTED,
            _C.TOOLS,
            _FLOW,
            name="its name",
            plan="the workflow document as submitted",
            digest="the digest of the document",
            commit_sha="a commit of the workspace's files at the start",
            steps="the number of steps",
        ),
        _spec(
            _E.WORKFLOW_STEP,
            _C.TOOLS,
            _FLOW,
            step="the step's id",
            state="started, parked, retrying, succeeded, failed, unknown, skipped",
            compensation="whether it is the step's compensation",
            attempt="from 1",
            result="the result of the finished attempt, with the fields of tool.finished",
            error="the reason, if it did not succeed",
            commit_sha="a commit of the workspace's files after the step, if it may have changed "
            "them",
            done="the number of finished steps",
            steps="the number of steps",
        ),
        _spec(
            _E.WORKFLOW_FINISHED,
            _C.TOOLS,
            _FLOW,
            state="succeeded, partial, failed, compensated, cancelled",
            error="the reason, if it did not succeed",
            done="the number of finished steps",
            steps="the number of steps",
        ),
        _spec(
            _E.CHECK_FINISHED,
            _C.RESULTS,
            _SEAT,
            candidate="id of the checked proposal",
            fingerprint="fingerprint of the checked proposal; two hosts that run at once may "
            "create two proposals with the same id",
            evidence="check, verdict, counts, output",
            assessment="applies, required, regressions, proven, behaviour; only with the check "
            "`applies`",
            cross_author="the author of the tests; only with the check `cross`",
            cross_fingerprint="fingerprint of the proposal that these tests come from",
        ),
        _spec(
            _E.EVIDENCE_REPORTED,
            _C.RESULTS,
            _TASK,
            report="agent, message, candidate, cases, diff, missing, usage: the findings of an "
            "agent that is not a seat",
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
            progress="0..1; never decreases for an agent",
            current_task="the current activity",
            metrics="turns, tool_calls, tokens, cost_usd, checks, checks_passed, cpu_ms, "
            "max_rss_bytes",
            agent="the agent's name in its agent file",
            seat="the seat that took the step",
        ),
        _spec(
            _E.GUARD_ALERTED,
            _C.AUDIT,
            {
                "tenant": "from the event",
                "kind": "denials or escapes (attempts to escape a sandbox)",
            },
            count="the number of denials or escapes",
            seconds="the length of the time window",
            principal="the caller",
            task_id="the deliberation, or the workspace of an external caller",
            seat="the seat of the last denial or escape",
            workspace="the workspace of the last denial or escape",
            tool="the tool of the last denial or escape",
            reason="the reason for the last denial",
            request_id="the request id of the last denial or escape",
        ),
        _spec(
            _E.AUDIT_RECORDED,
            _C.AUDIT,
            {"tenant": "from the event"},
            record="the chained record",
            writer="the writer of the chain; a tenant has one chain for each writer",
            mac="the signature of the record as the head of its chain",
            records="earlier records of the chain that were not published yet, in order",
        ),
        _spec(
            _E.PLAN_FINISHED,
            _C.STORIES,
            {"story_id": "the story"},
            plan_id="the plan",
            derivation_id="id of the plan.derived event that started it",
            status="completed, or failed",
            tasks="final status by task id; SKIPPED if a dependency did not complete",
            why="error by task id, for failed tasks",
            commits="the resulting commits: one for each task that no other task builds on",
        ),
        _spec(
            _E.COUNCIL_CREATED,
            _C.COUNCILS,
            _ROLE,
            agents="the council's agents, in seat order",
            config="the council's defaults",
        ),
        _spec(_E.COUNCIL_DELETED, _C.COUNCILS, _ROLE),
        _spec(
            _E.AGENT_REGISTERED, _C.COUNCILS, _ROLE, agent="id, capabilities, endpoint, metadata"
        ),
        _spec(_E.AGENT_UNREGISTERED, _C.COUNCILS, _ROLE, agent_id="which"),
    )
}
