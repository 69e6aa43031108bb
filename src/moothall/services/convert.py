"""Between protobuf and the domain's words. Nothing is decided here."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf import json_format, struct_pb2

import moothall
from moothall.domain.budget import Budget, Usage
from moothall.domain.event import Event
from moothall.domain.evidence import Evidence, Verdict
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.proposal import Operation, Proposal, Review, SeatOutcome
from moothall.domain.task import Constraints, DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest
from moothall.inside.findings import findings
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb

_LINT_ERRORS = 50
_WARNING = re.compile(r"warning\b|W\d{2,5}\b", re.IGNORECASE)  # in words, or by its code, as of pylint and flake8
# protobuf's JSON parser takes 100 levels, and counts a Struct's several times.
_STRUCT_DEPTH = 24
_STRUCT_NUMBER = 2**53


# ---- from callers


def request_of(message: pb.DeliberateRequest) -> DeliberationRequest:
    """Return what a caller asks for; unset stays unset, the desk fills in and checks."""
    return DeliberationRequest(
        description=message.task_description,
        role=message.role,
        task_id=message.task_id,
        constraints=constraints_of(message.constraints),
        rounds=message.rounds if message.HasField("rounds") else None,
        num_agents=message.num_agents,
        repository=repository_of(message.repository),
        protocol=message.protocol,
        budget=budget_of(message.budget),
        adaptive=message.adaptive,
    )


def budget_of(message: common_pb2.Budget) -> Budget:
    """Return what may be spent; zeros are the default."""
    return Budget(tokens=message.tokens, seconds=message.seconds, calls=message.calls, cost_usd=message.cost_usd)


def struct_data(given: struct_pb2.Struct, what: str) -> dict[str, Any]:
    """Return a Struct as JSON data. It knows one kind of number: whole ones become integers again. Raises `InvalidRequest`."""
    try:
        told: dict[str, Any] = json_format.MessageToDict(given)
    except (json_format.Error, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what}: no JSON object: {error}") from error
    return {name: _whole(value) for name, value in told.items()}


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


def constraints_of(message: pb.TaskConstraints) -> Constraints:
    """Return what an answer must respect."""
    return Constraints(
        rubric=message.rubric,
        requirements=tuple(message.requirements),
        metadata=dict(message.metadata),
        max_iterations=message.max_iterations,
        timeout_seconds=message.timeout_seconds,
    )


def repository_of(message: common_pb2.Repository) -> RepositoryRef | None:
    """Return which repository; an empty message names none."""
    named = RepositoryRef(id=message.id, url=message.url, ref=message.ref)
    return named if named != RepositoryRef() else None


def with_context(request: DeliberationRequest, told: str) -> DeliberationRequest:
    """Return the request with what is known of its story."""
    return replace(request, context=told)


# ---- to callers


def status_message(status: DeliberationStatus) -> pb.DeliberationStatus.ValueType:
    """Return the wire's enum value."""
    return pb.DeliberationStatus.Value(f"DELIBERATION_STATUS_{status.value}")


def deliberate_response(outcome: Outcome) -> pb.DeliberateResponse:
    """Return the answer to the caller who waited."""
    return pb.DeliberateResponse(
        results=result_messages(outcome.results),
        winner_id=outcome.winner_id,
        duration_ms=outcome.duration_ms,
        metadata=_metadata(outcome),
        task_id=outcome.task_id,
        status=status_message(outcome.status),
        usage=_usage(outcome.usage),
        proven=outcome.proven,
        branch=outcome.branch,
        error_message=outcome.error_message,
        seats=map(_seat, outcome.seats),
    )


def result_response(outcome: Outcome) -> pb.GetDeliberationResultResponse:
    """Return how it stands to the caller who polls."""
    return pb.GetDeliberationResultResponse(
        task_id=outcome.task_id,
        status=status_message(outcome.status),
        results=result_messages(outcome.results),
        winner_id=outcome.winner_id,
        duration_ms=outcome.duration_ms,
        error_message=outcome.error_message,
        metadata=_metadata(outcome),
        usage=_usage(outcome.usage),
        proven=outcome.proven,
        branch=outcome.branch,
        seats=map(_seat, outcome.seats),
    )


def orchestrate_response(outcome: Outcome) -> pb.OrchestrateResponse:
    """Return the winner, absent where none got through the gates, and all candidates, best first."""
    ranked = result_messages(outcome.results)
    metadata = _metadata(outcome)
    tags = {"status": outcome.status.value, "winner_id": outcome.winner_id, "error_message": outcome.error_message}
    metadata.tags.update({key: value for key, value in tags.items() if value})
    return pb.OrchestrateResponse(
        winner=ranked[0] if outcome.winner_id and ranked else None,
        candidates=ranked,
        execution_id=outcome.task_id,
        duration_ms=outcome.duration_ms,
        metadata=metadata,
    )


def result_messages(results: Iterable[Result]) -> list[pb.DeliberationResult]:
    """Return the ranking; each candidate with the earlier contents of its seat, oldest first."""
    ranked = list(results)
    return [
        pb.DeliberationResult(
            proposal=pb.Proposal(
                author_id=result.seat,
                author_role=result.role,
                content=result.content,
                created_at_ms=result.created_at_ms,
                revisions=[
                    earlier.content
                    for earlier in sorted(ranked, key=lambda other: other.revision)
                    if earlier.seat == result.seat and earlier.revision < result.revision
                ],
                diff=result.diff,
                commit_sha=result.commit_sha,
                operations=map(_operation, result.operations),
            ),
            checks=check_suite(result.evidence, all_passed=result.passed_gates),
            score=result.score,
            rank=result.rank,
            evidence=map(_evidence, result.evidence),
            reasons=result.reasons,
            reviews=map(_review, result.reviews),
        )
        for result in ranked
    ]


def proposal_message(proposal: Proposal) -> pb.DeliberationResult:
    """Return a candidate that nothing is known of yet but its content: no rank, no checks."""
    return pb.DeliberationResult(
        proposal=pb.Proposal(
            author_id=proposal.seat,
            author_role=proposal.role,
            content=proposal.content,
            created_at_ms=proposal.created_at_ms,
            diff=proposal.diff,
            commit_sha=proposal.commit_sha,
            operations=map(_operation, proposal.operations),
        )
    )


def check_suite(evidence: Iterable[Evidence], *, all_passed: bool) -> pb.CheckSuite:
    """Return the checks by kind. A part without its check stays unset: that is not `passed`."""
    suite = pb.CheckSuite(all_passed=all_passed)
    for item in evidence:
        passed = item.verdict == Verdict.PASSED
        complaints = [] if passed else [line for line in item.output.splitlines() if line.strip()][:_LINT_ERRORS]
        if item.check == "lint":
            suite.lint.CopyFrom(_lint(item, complaints, passed=passed))
        elif item.check == "policy":
            suite.policy.CopyFrom(pb.PolicyCheck(passed=passed, violations=complaints, message=item.verdict.value))
        else:
            suite.additional_checks.append(_additional(item))
        if item.check == "applies":
            dryrun = pb.DryRunCheck(passed=passed, output=item.output, exit_code=int(not passed), message=item.verdict.value)
            suite.dryrun.CopyFrom(dryrun)
    return suite


def _lint(item: Evidence, complaints: Sequence[str], *, passed: bool) -> pb.LintCheck:
    """Warnings are counted also where none of them stands against the candidate."""
    said = [line.partition(": ")[2] for line in findings(item.output)]
    warnings = sum(_WARNING.match(words) is not None for words in said)
    errors = 0 if passed else item.failed or (len(said) - warnings if said else len(complaints))
    return pb.LintCheck(passed=passed, error_count=errors, warning_count=warnings, errors=complaints)


def _additional(item: Evidence) -> pb.AdditionalCheck:
    counted = item.passed + item.failed
    whole = 1.0 if item.verdict == Verdict.PASSED else 0.0
    return pb.AdditionalCheck(
        check_type=item.check,
        passed=item.verdict == Verdict.PASSED,
        score=item.passed / counted if counted else whole,
        message=f"{item.verdict.value}: {item.passed} passed, {item.failed} failed, {item.skipped} skipped",
        details={"verdict": item.verdict.value, "duration_ms": str(item.duration_ms), "proven": str(item.proven).lower()},
    )


def event_message(event: Event) -> common_pb2.Event:
    """Return a fact; its data as a Struct, in which every number is a double (integers beyond 2**53 are text)."""
    return common_pb2.Event(
        id=event.id,
        type=event.type.value,
        subject=event.subject,
        correlation_id=event.correlationid,
        causation_id=event.causationid,
        time=event.time,
        data=struct(event.data),
    )


def struct(data: Mapping[str, Any]) -> struct_pb2.Struct:
    """Return JSON data as a Struct; see `event_message`."""
    return json_format.ParseDict(_bounded(data, _STRUCT_DEPTH), struct_pb2.Struct())


def value(data: Any) -> struct_pb2.Value:
    """Return JSON data as a Value; see `event_message`."""
    return json_format.ParseDict(_bounded(data, _STRUCT_DEPTH), struct_pb2.Value())


def _bounded(value: Any, depth: int) -> Any:
    """Return JSON data that a Struct can hold exactly; larger integers as text, deeper nesting left out."""
    match value:
        case Mapping() if depth:
            return {str(key): _bounded(item, depth - 1) for key, item in value.items()}
        case list() | tuple() if depth:
            return [_bounded(item, depth - 1) for item in value]
        case None | bool() | float() | str():
            return value
        case int() if abs(value) < _STRUCT_NUMBER:
            return value
        case int():
            return str(value)  # as protobuf's JSON does: a double would be another number
        case _:
            return "[left out]"


def _metadata(outcome: Outcome) -> pb.OrchestratorMetadata:
    tags = {"final_state": outcome.final_state, "role": outcome.role, "story_id": outcome.story_id}
    return pb.OrchestratorMetadata(
        orchestrator_version=moothall.__version__,
        timestamp_ms=time.time_ns() // 1_000_000,
        execution_id=outcome.task_id,
        tags={key: value for key, value in tags.items() if value},
    )


def _usage(usage: Usage) -> common_pb2.Usage:
    return common_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        calls=usage.calls,
        cost_usd=usage.cost_usd,
    )


def _evidence(item: Evidence) -> common_pb2.Evidence:
    return common_pb2.Evidence(
        check=item.check,
        verdict=item.verdict.value,
        passed=item.passed,
        failed=item.failed,
        skipped=item.skipped,
        duration_ms=item.duration_ms,
        output=item.output,
        proven=item.proven,
    )


def _review(review: Review) -> common_pb2.Review:
    return common_pb2.Review(
        reviewer_id=review.reviewer, score=review.score, met=review.met, unmet=review.unmet, comment=review.comment
    )


def _operation(operation: Operation) -> common_pb2.ToolOperation:
    return common_pb2.ToolOperation(
        tool=operation.tool,
        arguments_digest=operation.arguments_digest,
        status=operation.status,
        duration_ms=operation.duration_ms,
    )


def _seat(seat: SeatOutcome) -> pb.SeatOutcome:
    return pb.SeatOutcome(
        agent_id=seat.seat,
        status=seat.status.value,
        error_code=seat.error_code,
        error_message=seat.error_message,
        usage=_usage(seat.usage),
    )
