from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2

from moothall import errors
from moothall.api.protobuf import grpc_code, rich_status


def all_kinds(
    kind: type[errors.MoothallError] = errors.MoothallError,
) -> list[type[errors.MoothallError]]:
    return [kind, *(subclass for direct in kind.__subclasses__() for subclass in all_kinds(direct))]


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_failure_status(kind: type[errors.MoothallError]) -> None:
    assert grpc_code(kind("x")) not in {grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ModelUnavailable, grpc.StatusCode.UNAVAILABLE),
        (errors.RateLimited, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.Refused, grpc.StatusCode.PERMISSION_DENIED),
        (errors.RepositoryError, grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
def test_an_error_type_has_its_own_status_or_that_of_its_parent(
    kind: type[errors.MoothallError], code: grpc.StatusCode
) -> None:
    assert grpc_code(kind("x")) is code


def test_the_status_names_reason_domain_and_when_to_retry() -> None:
    status = rich_status(grpc.StatusCode.UNAVAILABLE, "BUS_UNAVAILABLE", "the bus is down", 2.5)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (status.code, status.message) == (14, "the bus is down")
    assert (info.reason, info.domain) == ("BUS_UNAVAILABLE", "moothall")
    assert retry.retry_delay.ToNanoseconds() == 2_500_000_000


@pytest.mark.parametrize("character", ["a", "é", "\N{PILE OF POO}", "\udcff"])
def test_a_long_message_is_cut_to_fit_headers(character: str) -> None:
    message = rich_status(grpc.StatusCode.NOT_FOUND, "NOT_FOUND", character * 100_000).message
    assert 900 < len(message.encode()) <= 1003
    assert message.endswith("…")
