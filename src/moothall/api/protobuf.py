"""Conversions between protobuf messages and domain objects, without any decisions; and from
errors to gRPC and HTTP statuses.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Never, TypeVar, cast

import grpc
from google.protobuf import json_format, struct_pb2
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import code_pb2, error_details_pb2, status_pb2

import moothall
from moothall import errors
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
from moothall.sandbox_runtime.cases import findings

# Conversions between protobuf messages and domain objects, without any decisions.


_MAX_LINT_ERRORS = 50
_WARNING = re.compile(
    r"warning\b|W\d{2,5}\b", re.IGNORECASE
)  # a word, or a code such as those of pylint and flake8
# protobuf's JSON parser accepts 100 levels; each level of a Struct counts several times.
_MAX_STRUCT_DEPTH = 24
_MAX_STRUCT_INTEGER = 2**53


M = TypeVar("M", bound=Message)
D = TypeVar("D")


def to_message(kind: type[M], value: object, **overrides: Any) -> M:
    """Convert a dataclass to a message: fields with the same name, nested messages included.
    `overrides` replaces or adds fields.
    """
    plain, converters = _shared_fields(cast("Hashable", kind), cast("Hashable", type(value)))
    message_fields = {name: getattr(value, name) for name in plain}
    for name, convert in converters:
        if name not in overrides and (field_value := getattr(value, name)) is not None:
            message_fields[name] = convert(field_value)
    message_fields |= overrides
    build: Any = kind
    return cast("M", build(**message_fields))


@cache
def _shared_fields(
    kind: Hashable, source: Hashable
) -> tuple[list[str], list[tuple[str, Callable[[Any], Any]]]]:
    """Return the field names that a message and a dataclass share: those copied as they are, and
    the others with their converters.
    """
    names = {field.name for field in fields(cast("Any", source))}
    shared = [field for field in cast("Any", kind).DESCRIPTOR.fields if field.name in names]
    plain = [field.name for field in shared if field.message_type is None]
    return plain, [
        (field.name, _converter(field)) for field in shared if field.message_type is not None
    ]


def _converter(field: Any) -> Callable[[Any], Any]:
    """Return the function that converts a dataclass field to a message or map field."""
    inner = field.message_type
    if inner.GetOptions().map_entry:
        return dict
    if inner is struct_pb2.Struct.DESCRIPTOR:
        return struct
    kind = GetMessageClass(inner)
    if field.is_repeated:
        return lambda values: [to_message(kind, item) for item in values]
    return lambda value: to_message(kind, value)


def from_message(kind: type[D], message: Message, **overrides: Any) -> D:
    """Convert a message to a dataclass: scalars, lists and maps with the same name. `overrides`
    replaces or adds fields.
    """
    names = {field.name for field in fields(cast("Any", kind))} - overrides.keys()
    arguments: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.name in names:
            field_value, message_type = getattr(message, field.name), field.message_type
            arguments[field.name] = (
                field_value
                if not field.is_repeated
                else dict(field_value)
                if message_type is not None
                else tuple(field_value)
            )
    return kind(**arguments, **overrides)


# ---- from callers


def read_request(message: pb.DeliberateRequest) -> DeliberationRequest:
    """Convert a request. Unset fields stay unset; the deliberation service checks them and fills in
    defaults.
    """
    return from_message(
        DeliberationRequest,
        message,
        description=message.task_description,
        constraints=from_message(Constraints, message.constraints),
        rounds=message.rounds if message.HasField("rounds") else None,
        repository=read_repository(message.repository),
        budget=from_message(Budget, message.budget),
        fork=from_message(Fork, message.fork) if message.HasField("fork") else None,
    )


def request_message(request: DeliberationRequest) -> pb.DeliberateRequest:
    """Convert a request for a remote server."""
    return to_message(pb.DeliberateRequest, request, task_description=request.description)


def read_repository(message: common_pb2.Repository) -> RepositoryRef | None:
    """Return the repository of a message; None if the message is empty."""
    repository = from_message(RepositoryRef, message)
    return repository if repository != RepositoryRef() else None


def struct_data(message: struct_pb2.Struct, field: str) -> dict[str, Any]:
    """Convert a Struct to JSON data. A Struct has only doubles, so whole numbers become integers
    again. Raises `InvalidRequest`; `field` names the field in it.
    """
    try:
        data: dict[str, Any] = json_format.MessageToDict(message)
    except (json_format.Error, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{field}: not a JSON object: {error}") from error
    return {name: whole_numbers(value) for name, value in data.items()}


# ---- to callers


def status_message(status: DeliberationStatus) -> pb.DeliberationStatus.ValueType:
    """Return the wire's enum value."""
    return pb.DeliberationStatus.Value(f"DELIBERATION_STATUS_{status.value}")


def read_status(status: pb.DeliberationStatus.ValueType) -> DeliberationStatus:
    """Return the domain status of the wire's enum value."""
    return DeliberationStatus(
        pb.DeliberationStatus.Name(status).removeprefix("DELIBERATION_STATUS_")
    )


def deliberate_response(outcome: Outcome) -> pb.DeliberateResponse:
    """Return the response for a caller that waited."""
    return to_message(pb.DeliberateResponse, outcome, **_outcome_fields(outcome))


def result_response(outcome: Outcome) -> pb.GetDeliberationResultResponse:
    """Return the response for a caller that polls."""
    return to_message(pb.GetDeliberationResultResponse, outcome, **_outcome_fields(outcome))


def _outcome_fields(outcome: Outcome) -> dict[str, Any]:
    return {
        "results": result_messages(outcome.results),
        "metadata": _metadata(outcome),
        "status": status_message(outcome.status),
        "seats": [to_message(pb.SeatOutcome, seat, agent_id=seat.seat) for seat in outcome.seats],
    }


def orchestrate_response(outcome: Outcome) -> pb.OrchestrateResponse:
    """Return all candidates, best first, and the winner, which is unset if no candidate passed the
    acceptance checks.
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
    """Return the ranking. Each candidate has the earlier contents of its seat, oldest first."""
    oldest_first = sorted(results, key=lambda result: result.revision)

    def earlier_contents(result: Result) -> list[str]:
        return [
            candidate.content
            for candidate in oldest_first
            if candidate.seat == result.seat and candidate.revision < result.revision
        ]

    return [
        to_message(
            pb.DeliberationResult,
            result,
            proposal=_proposal(result, revisions=earlier_contents(result)),
            checks=check_suite(result.evidence, all_passed=result.passed_gates),
            reviews=[
                to_message(common_pb2.Review, review, reviewer_id=review.reviewer)
                for review in result.reviews
            ],
        )
        for result in results
    ]


def proposal_message(proposal: Proposal) -> pb.DeliberationResult:
    """Return a candidate that has only its content: no rank and no checks yet."""
    return pb.DeliberationResult(proposal=_proposal(proposal))


def _proposal(source: Proposal | Result, **overrides: Any) -> pb.Proposal:
    return to_message(
        pb.Proposal, source, author_id=source.seat, author_role=source.role, **overrides
    )


def check_suite(evidence: Iterable[Evidence], *, all_passed: bool) -> pb.CheckSuite:
    """Return the checks by kind. A kind without a check stays unset, which does not mean passed."""
    suite = pb.CheckSuite(all_passed=all_passed)
    for item in evidence:
        passed = item.verdict == Verdict.PASSED
        complaints = (
            []
            if passed
            else [line for line in item.output.splitlines() if line.strip()][:_MAX_LINT_ERRORS]
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
    """Count warnings even if none of them counts against the candidate."""
    messages = [line.partition(": ")[2] for line in findings(item.output)]
    warnings = sum(_WARNING.match(message) is not None for message in messages)
    errors = (
        0 if passed else item.failed or (len(messages) - warnings if messages else len(complaints))
    )
    return pb.LintCheck(
        passed=passed, error_count=errors, warning_count=warnings, errors=complaints
    )


def _additional(item: Evidence) -> pb.AdditionalCheck:
    total = item.passed + item.failed
    fallback_score = 1.0 if item.verdict == Verdict.PASSED else 0.0
    return pb.AdditionalCheck(
        check_type=item.check,
        passed=item.verdict == Verdict.PASSED,
        score=item.passed / total if total else fallback_score,
        message=f"{item.verdict.value}: {item.passed} passed, {item.failed} failed, {item.skipped} "
        "skipped",
        details={
            "verdict": item.verdict.value,
            "duration_ms": str(item.duration_ms),
            "proven": str(item.proven).lower(),
        },
    )


def event_message(event: Event) -> common_pb2.Event:
    """Convert an event. Its data becomes a Struct, in which every number is a double; integers from
    2**53 are text.
    """
    return to_message(
        common_pb2.Event, event, correlation_id=event.correlationid, causation_id=event.causationid
    )


def struct(data: Mapping[str, Any]) -> struct_pb2.Struct:
    """Convert JSON data to a Struct; see `event_message`."""
    return json_format.ParseDict(_fit_struct(data, _MAX_STRUCT_DEPTH), struct_pb2.Struct())


def value(data: Any) -> struct_pb2.Value:
    """Convert JSON data to a Value; see `event_message`."""
    return json_format.ParseDict(_fit_struct(data, _MAX_STRUCT_DEPTH), struct_pb2.Value())


def _fit_struct(value: Any, depth: int) -> Any:
    """Return JSON data that a Struct can hold exactly. Larger integers become text, deeper nesting
    is left out.
    """
    match value:
        case Mapping() if depth:
            return {str(key): _fit_struct(item, depth - 1) for key, item in value.items()}
        case list() | tuple() if depth:
            return [_fit_struct(item, depth - 1) for item in value]
        case None | bool() | float() | str():
            return value
        case int() if abs(value) < _MAX_STRUCT_INTEGER:
            return value
        case int():
            return str(value)  # as in protobuf's JSON; a double would change the number
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


# The mapping of errors to gRPC and HTTP statuses. Every error carries a `google.rpc.ErrorInfo`.


DOMAIN = "moothall"
# Services of libraries: they need no authentication and set their own statuses.
OPEN_SERVICES = ("/grpc.health.v1.Health/", "/grpc.reflection.")
RETRY_SECONDS = 1.0
# The status is sent twice in HTTP/2 headers, of which clients accept 8 KB.
MESSAGE_BYTES = 1000
_DETAILS = "grpc-status-details-bin"

_GRPC_CODES: Mapping[type[errors.MoothallError], grpc.StatusCode] = {
    errors.MoothallError: grpc.StatusCode.INTERNAL,
    errors.Temporary: grpc.StatusCode.UNAVAILABLE,
    errors.RateLimited: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Permanent: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.ConcurrentUpdate: grpc.StatusCode.ABORTED,
    errors.Refused: grpc.StatusCode.PERMISSION_DENIED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.BudgetExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.RepositoryError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PatchRefused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SandboxUnavailable: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConfigurationError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.WorkspaceFailed: grpc.StatusCode.INTERNAL,
    errors.ModelReplyInvalid: grpc.StatusCode.INTERNAL,
}


_HTTP_STATUSES: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
"""The pairs of `google.rpc.Code`; all other codes are 500."""


def http_status_of(error: errors.MoothallError) -> int:
    """Return the HTTP status of an error."""
    return _HTTP_STATUSES.get(grpc_code(error), 500)


def grpc_code(error: errors.MoothallError) -> grpc.StatusCode:
    """Return the gRPC code of an error: that of its nearest known base class."""
    return next(_GRPC_CODES[kind] for kind in type(error).__mro__ if kind in _GRPC_CODES)


def rich_status(
    code: grpc.StatusCode, reason: str, message: str, retry_after: float | None = None
) -> status_pb2.Status:
    """Return a status with its `ErrorInfo`, and with a `RetryInfo` if `retry_after` (seconds) is
    given.
    """
    status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=_short(message))
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN))
    if retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(retry_after * 1e9))
        status.details.add().Pack(retry)
    return status


def _short(message: str) -> str:
    encoded = message.encode("utf-8", "replace")
    return encoded[:MESSAGE_BYTES].decode("utf-8", "ignore") + (
        "…" if len(encoded) > MESSAGE_BYTES else ""
    )


async def abort(
    context: Any, code: grpc.StatusCode, reason: str, message: str, retry_after: float | None = None
) -> Never:
    """End the call with a rich status."""
    status = rich_status(code, reason, message, retry_after)
    await context.abort(code, status.message, ((_DETAILS, status.SerializeToString()),))
    raise AssertionError("abort returned")
