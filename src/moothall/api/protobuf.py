"""Between protobuf and the domain's words. Nothing is decided here."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

from google.protobuf import json_format, struct_pb2
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import moothall
from moothall.domain.budget import Budget
from moothall.domain.codec import whole_numbers
from moothall.domain.event import Event
from moothall.domain.evidence import Evidence, Verdict
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.proposal import Proposal
from moothall.domain.task import Constraints, DeliberationRequest, Fork, RepositoryRef
from moothall.errors import InvalidRequest
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.sandbox_runtime.findings import findings

_LINT_ERRORS = 50
_WARNING = re.compile(
    r"warning\b|W\d{2,5}\b", re.IGNORECASE
)  # in words, or by its code, as of pylint and flake8
# protobuf's JSON parser takes 100 levels, and counts a Struct's several times.
_STRUCT_DEPTH = 24
_STRUCT_NUMBER = 2**53


M = TypeVar("M", bound=Message)
D = TypeVar("D")


def to_message(kind: type[M], value: object, **more: Any) -> M:
    """Return a dataclass as a message: what both have under one name, messages in it too. `more` is
    what is said otherwise.
    """
    plain, made = _shared_fields(cast("Hashable", kind), cast("Hashable", type(value)))
    said = {name: getattr(value, name) for name in plain}
    for name, make in made:
        if name not in more and (given := getattr(value, name)) is not None:
            said[name] = make(given)
    said |= more
    build: Any = kind
    return cast("M", build(**said))


@cache
def _shared_fields(
    kind: Hashable, source: Hashable
) -> tuple[list[str], list[tuple[str, Callable[[Any], Any]]]]:
    """Return the names that a message and a dataclass share: of what goes over as it is, and the
    others with what makes it.
    """
    names = {field.name for field in fields(cast("Any", source))}
    shared = [field for field in cast("Any", kind).DESCRIPTOR.fields if field.name in names]
    plain = [field.name for field in shared if field.message_type is None]
    return plain, [
        (field.name, _maker(field)) for field in shared if field.message_type is not None
    ]


def _maker(field: Any) -> Callable[[Any], Any]:
    """Return what makes a field's message, or map, of what a dataclass has there."""
    inner = field.message_type
    if inner.GetOptions().map_entry:
        return dict
    if inner is struct_pb2.Struct.DESCRIPTOR:
        return struct
    kind = GetMessageClass(inner)
    if field.is_repeated:
        return lambda given: [to_message(kind, item) for item in given]
    return lambda given: to_message(kind, given)


def from_message(kind: type[D], message: Message, **more: Any) -> D:
    """Return a message as a dataclass: the scalars, lists and maps that both have under one name.
    `more` is what is said otherwise.
    """
    names = {field.name for field in fields(cast("Any", kind))} - more.keys()
    said: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.name in names:
            given, inner = getattr(message, field.name), field.message_type
            said[field.name] = (
                given
                if not field.is_repeated
                else dict(given)
                if inner is not None
                else tuple(given)
            )
    return kind(**said, **more)


# ---- from callers


def request_of(message: pb.DeliberateRequest) -> DeliberationRequest:
    """Return what a caller asks for; unset stays unset, the deliberation service fills in and
    checks.
    """
    return from_message(
        DeliberationRequest,
        message,
        description=message.task_description,
        constraints=from_message(Constraints, message.constraints),
        rounds=message.rounds if message.HasField("rounds") else None,
        repository=repository_of(message.repository),
        budget=from_message(Budget, message.budget),
        fork=from_message(Fork, message.fork) if message.HasField("fork") else None,
    )


def request_message(request: DeliberationRequest) -> pb.DeliberateRequest:
    """Return a request as a caller of a server elsewhere says it."""
    return to_message(pb.DeliberateRequest, request, task_description=request.description)


def repository_of(message: common_pb2.Repository) -> RepositoryRef | None:
    """Return which repository; an empty message names none."""
    named = from_message(RepositoryRef, message)
    return named if named != RepositoryRef() else None


def struct_data(given: struct_pb2.Struct, what: str) -> dict[str, Any]:
    """Return a Struct as JSON data. It knows one kind of number: whole ones become integers again.
    Raises `InvalidRequest`.
    """
    try:
        told: dict[str, Any] = json_format.MessageToDict(given)
    except (json_format.Error, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what}: no JSON object: {error}") from error
    return {name: whole_numbers(value) for name, value in told.items()}


# ---- to callers


def status_message(status: DeliberationStatus) -> pb.DeliberationStatus.ValueType:
    """Return the wire's enum value."""
    return pb.DeliberationStatus.Value(f"DELIBERATION_STATUS_{status.value}")


def status_of(status: pb.DeliberationStatus.ValueType) -> DeliberationStatus:
    """Return what the wire's value says."""
    return DeliberationStatus(
        pb.DeliberationStatus.Name(status).removeprefix("DELIBERATION_STATUS_")
    )


def deliberate_response(outcome: Outcome) -> pb.DeliberateResponse:
    """Return the answer to the caller who waited."""
    return to_message(pb.DeliberateResponse, outcome, **_fields_of(outcome))


def result_response(outcome: Outcome) -> pb.GetDeliberationResultResponse:
    """Return how it stands to the caller who polls."""
    return to_message(pb.GetDeliberationResultResponse, outcome, **_fields_of(outcome))


def _fields_of(outcome: Outcome) -> dict[str, Any]:
    return {
        "results": result_messages(outcome.results),
        "metadata": _metadata(outcome),
        "status": status_message(outcome.status),
        "seats": [to_message(pb.SeatOutcome, seat, agent_id=seat.seat) for seat in outcome.seats],
    }


def orchestrate_response(outcome: Outcome) -> pb.OrchestrateResponse:
    """Return the winner, absent where none got through the gates, and all candidates, best
    first.
    """
    ranked = result_messages(outcome.results)
    metadata = _metadata(outcome)
    tags = {
        "status": outcome.status.value,
        "winner_id": outcome.winner_id,
        "error_message": outcome.error_message,
    }
    metadata.tags.update({key: value for key, value in tags.items() if value})
    return pb.OrchestrateResponse(
        winner=ranked[0] if outcome.winner_id and ranked else None,
        candidates=ranked,
        execution_id=outcome.task_id,
        duration_ms=outcome.duration_ms,
        metadata=metadata,
    )


def result_messages(results: Sequence[Result]) -> list[pb.DeliberationResult]:
    """Return the ranking; each candidate with the earlier contents of its seat, oldest first."""
    oldest_first = sorted(results, key=lambda result: result.revision)

    def earlier(result: Result) -> list[str]:
        return [
            other.content
            for other in oldest_first
            if other.seat == result.seat and other.revision < result.revision
        ]

    return [
        to_message(
            pb.DeliberationResult,
            result,
            proposal=_proposal(result, revisions=earlier(result)),
            checks=check_suite(result.evidence, all_passed=result.passed_gates),
            reviews=[
                to_message(common_pb2.Review, review, reviewer_id=review.reviewer)
                for review in result.reviews
            ],
        )
        for result in results
    ]


def proposal_message(proposal: Proposal) -> pb.DeliberationResult:
    """Return a candidate that nothing is known of yet but its content: no rank, no checks."""
    return pb.DeliberationResult(proposal=_proposal(proposal))


def _proposal(told: Proposal | Result, **more: Any) -> pb.Proposal:
    return to_message(pb.Proposal, told, author_id=told.seat, author_role=told.role, **more)


def check_suite(evidence: Iterable[Evidence], *, all_passed: bool) -> pb.CheckSuite:
    """Return the checks by kind. A part without its check stays unset: that is not `passed`."""
    suite = pb.CheckSuite(all_passed=all_passed)
    for item in evidence:
        passed = item.verdict == Verdict.PASSED
        complaints = (
            []
            if passed
            else [line for line in item.output.splitlines() if line.strip()][:_LINT_ERRORS]
        )
        if item.check == "lint":
            suite.lint.CopyFrom(_lint(item, complaints, passed=passed))
        elif item.check == "policy":
            suite.policy.CopyFrom(
                pb.PolicyCheck(passed=passed, violations=complaints, message=item.verdict.value)
            )
        else:
            suite.additional_checks.append(_additional(item))
        if item.check == "applies":
            dryrun = pb.DryRunCheck(
                passed=passed,
                output=item.output,
                exit_code=int(not passed),
                message=item.verdict.value,
            )
            suite.dryrun.CopyFrom(dryrun)
    return suite


def _lint(item: Evidence, complaints: Sequence[str], *, passed: bool) -> pb.LintCheck:
    """Warnings are counted also where none of them stands against the candidate."""
    said = [line.partition(": ")[2] for line in findings(item.output)]
    warnings = sum(_WARNING.match(words) is not None for words in said)
    errors = 0 if passed else item.failed or (len(said) - warnings if said else len(complaints))
    return pb.LintCheck(
        passed=passed, error_count=errors, warning_count=warnings, errors=complaints
    )


def _additional(item: Evidence) -> pb.AdditionalCheck:
    counted = item.passed + item.failed
    whole = 1.0 if item.verdict == Verdict.PASSED else 0.0
    return pb.AdditionalCheck(
        check_type=item.check,
        passed=item.verdict == Verdict.PASSED,
        score=item.passed / counted if counted else whole,
        message=f"{item.verdict.value}: {item.passed} passed, {item.failed} failed, {item.skipped} "
        "skipped",
        details={
            "verdict": item.verdict.value,
            "duration_ms": str(item.duration_ms),
            "proven": str(item.proven).lower(),
        },
    )


def event_message(event: Event) -> common_pb2.Event:
    """Return a fact; its data as a Struct, in which every number is a double (integers beyond 2**53
    are text).
    """
    return to_message(
        common_pb2.Event, event, correlation_id=event.correlationid, causation_id=event.causationid
    )


def struct(data: Mapping[str, Any]) -> struct_pb2.Struct:
    """Return JSON data as a Struct; see `event_message`."""
    return json_format.ParseDict(_fit_struct(data, _STRUCT_DEPTH), struct_pb2.Struct())


def value(data: Any) -> struct_pb2.Value:
    """Return JSON data as a Value; see `event_message`."""
    return json_format.ParseDict(_fit_struct(data, _STRUCT_DEPTH), struct_pb2.Value())


def _fit_struct(value: Any, depth: int) -> Any:
    """Return JSON data that a Struct can hold exactly; larger integers as text, deeper nesting left
    out.
    """
    match value:
        case Mapping() if depth:
            return {str(key): _fit_struct(item, depth - 1) for key, item in value.items()}
        case list() | tuple() if depth:
            return [_fit_struct(item, depth - 1) for item in value]
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
