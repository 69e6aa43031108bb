"""The workload on text: its cases, and their measurement on Moothall."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import grpc

from benchmarks.load import Operation, Run, run_concurrent, run_sequential
from benchmarks.server import Server, text_request
from benchmarks.stub import Stub
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb

PHASES = 3
"""Propose, review, revise: the number of consecutive model calls."""


@dataclass(frozen=True, slots=True)
class Case:
    """The delay of the stub and the number of concurrent deliberations of a measurement.

    count: the number of deliberations if they are sequential.
    """

    delay_ms: int
    at_once: int
    count: int = 0
    seconds: float = 0.0
    generations: int = 2

    @property
    def name(self) -> str:
        """The name of the case in tables and results."""
        return f"{self.delay_ms} ms, {self.at_once} at once"


class UnexpectedOutcome(Exception):
    """A deliberation had another outcome than expected."""


class DeliberationClient(Protocol):
    """A client that can run deliberations."""

    async def deliberate(
        self, request: pb.DeliberateRequest, *, seconds: float = 600
    ) -> pb.DeliberateResponse:
        """Send one unary call."""


def text_operation(app: DeliberationClient, *, seconds: float = 120) -> Operation:
    """Return a deliberation on text.

    It raises `UnexpectedOutcome` unless one of three candidates wins.
    """
    request = text_request()

    async def deliberate() -> None:
        try:
            response = await app.deliberate(request, seconds=seconds)
        except grpc.aio.AioRpcError as error:
            raise UnexpectedOutcome(f"{error.code().name}: {error.details()}") from error
        if (
            not response.winner_id
            or len({result.proposal.author_id for result in response.results}) != PHASES
        ):
            raise UnexpectedOutcome(
                f"no winner among three candidates: {response.error_message or response}"[:500]
            )

    return deliberate


async def measure(app: Server, stub: Stub, case: Case) -> Run:
    """Run one case and measure the CPU of every process."""
    await stub.set(delay_ms=case.delay_ms, reset=1)

    def probe() -> Mapping[str, float]:
        return {**app.system.cpu_usage().cpu, "caller": time.process_time(), "stub": stub.cpu()}

    deliberate = text_operation(app)
    if case.at_once == 1:
        return await run_sequential(deliberate, case.count, probe)
    return await run_concurrent(
        deliberate, case.at_once, case.seconds, probe, generations=case.generations
    )
