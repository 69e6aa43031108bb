"""The workload on text, run on Moothall: what is asked, and how it is measured."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import grpc

from benchmarks.load import Act, Run, in_turn, side_by_side
from benchmarks.served import Served, text_request
from benchmarks.stub import Stub
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb

PHASES = 3
"""Propose, review, revise: so many model calls lie one behind the other."""


@dataclass(frozen=True, slots=True)
class Case:
    """One setting: the stub's delay and how many deliberations are under way. `count` is for one at
    a time.
    """

    delay_ms: int
    at_once: int
    count: int = 0
    seconds: float = 0.0
    generations: int = 2

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"{self.delay_ms} ms, {self.at_once} at once"


class Wrong(Exception):
    """A deliberation ended otherwise than it had to."""


class ApiDependencies(Protocol):
    """Whoever answers calls."""

    async def deliberate(
        self, request: pb.DeliberateRequest, *, seconds: float = 600
    ) -> pb.DeliberateResponse:
        """One unary call."""


def text_act(app: ApiDependencies, *, seconds: float = 120) -> Act:
    """One deliberation on text; raises `Wrong` unless it has a winner among three answers."""
    request = text_request()

    async def act() -> None:
        try:
            response = await app.deliberate(request, seconds=seconds)
        except grpc.aio.AioRpcError as error:
            raise Wrong(f"{error.code().name}: {error.details()}") from error
        if (
            not response.winner_id
            or len({result.proposal.author_id for result in response.results}) != PHASES
        ):
            raise Wrong(f"no winner among three: {response.error_message or response}"[:500])

    return act


async def measure(app: Served, stub: Stub, case: Case) -> Run:
    """Run one case and count the CPU of every process; raises `Wrong` where the calls were not nine
    each.
    """
    await stub.set(delay_ms=case.delay_ms, reset=1)

    def probe() -> Mapping[str, float]:
        return {**app.system.used().cpu, "caller": time.process_time(), "stub": stub.cpu()}

    act = text_act(app)
    if case.at_once == 1:
        return await in_turn(act, case.count, probe)
    return await side_by_side(act, case.at_once, case.seconds, probe, generations=case.generations)
