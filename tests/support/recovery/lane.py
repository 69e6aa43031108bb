"""One lane: deliberations one after another, each with one blow at one boundary."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import grpc.aio

from moothall.app.repositories import trusted_repositories
from moothall.config import BusSettings
from moothall.domain.codec import load
from moothall.domain.event import Channel, EventType, Recorded, deliberation_topics
from moothall.domain.ids import TaskKey
from moothall.domain.outcome import Outcome
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from moothall.events.registry import DEAD, EVENTS, WORK
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from moothall.settings import load_settings
from support.recovery.app import App, Kind, app, hit
from support.recovery.scene import HANGING, TASK, End, repository
from support.repos import Repo

STOPPED_SECONDS = 60.0
_RUN_SECONDS = 400.0
_OPEN_SECONDS = 180.0
_CALL_SECONDS = 5.0
_QUIET_SECONDS = 60.0
_EXECUTOR_SECONDS = 1.5
_CANCELLABLE = EventType.SEAT_STARTED  # in a cancelled run, the cancellation is here
_UNREACHED = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Blow:
    """A signal for a process kind at a time: the `nth` event of a type (from 1) in a
    deliberation.
    """

    kind: Kind
    type: EventType
    nth: int
    stop: bool = False
    """Stopped for a minute, not killed."""

    def __str__(self) -> str:
        return (
            f"{'stop' if self.stop else 'kill'} {self.kind} at "
            f"{self.type.removeprefix('moothall.')} {self.nth}"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `fresh`: on a commit that nobody has prepared yet."""

    blow: Blow | None = None
    cancelled: bool = False
    fresh: bool = False


@dataclass(slots=True)
class RunResult:
    """The outcome of a run. `hit` counts the processes that got the blow."""

    plan: Plan
    end: End | None = None
    seconds: float = 0.0
    types: Counter[EventType] = field(default_factory=Counter)
    hit: int = 0
    calls: int = 0
    repeated: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Lane:
    """A deployment, a repository and a caller."""

    app: App
    bus: JetStreamBus
    stub: OrchestratorServiceStub
    repo: Repo
    repository: str
    runs: int = 0

    async def run(self, plan: Plan) -> RunResult:
        """Deliberate once, with the plan's blow, and check everything afterwards."""
        self.runs += 1
        task_id = f"run-{self.runs}"
        result = RunResult(plan)
        if plan.fresh:
            await asyncio.to_thread(
                self.repo.git, "commit", "--quiet", "--allow-empty", "-m", task_id
            )
        began, offset = time.monotonic(), self._journal_size()
        recorded: dict[str, float] = {}
        outcome: Outcome | None = None
        try:
            async with asyncio.timeout(_RUN_SECONDS), asyncio.TaskGroup() as group:
                following = group.create_task(self._follow(task_id, result, recorded))
                await self._submit(task_id, plan)
                outcome = await following
                await self._check_reported_result(task_id, outcome, result)
        except TimeoutError:
            result.trouble.append(f"no decision within {_RUN_SECONDS:.0f} s")
        result.seconds = time.monotonic() - began
        if outcome is not None:
            result.end = End.of(
                outcome, await asyncio.to_thread(self._delivered, task_id, outcome, result)
            )
        await self._wait_until_idle(result)
        if plan.blow is not None and plan.blow.kind == "host" and not plan.blow.stop:
            await self._wait_for_recovery(result)
        self._calls(offset, recorded, result)
        return result

    async def _follow(self, task_id: str, result: RunResult, recorded: dict[str, float]) -> Outcome:
        """Watch the log from now on, deal the blow at its boundary, and return the decision."""
        last_seq = (await self.bus.state(EVENTS.name)).last_seq
        dealing: asyncio.Task[None] | None = None
        outcome: Outcome | None = None
        async with asyncio.TaskGroup() as group:
            async for item in self.bus.follow(
                (*deliberation_topics(TaskKey(task_id)), Channel.TOOLS.all), last_seq
            ):
                event = item.event
                if event.data.get("task_id") != task_id:
                    continue
                result.types[event.type] += 1
                if event.type is EventType.MODEL_CALLED:
                    recorded.setdefault(str(event.data["call_id"]), _stored_at(item))
                if (
                    result.plan.cancelled
                    and event.type is _CANCELLABLE
                    and result.types[event.type] == 1
                ):
                    group.create_task(self._cancel(task_id))
                blow = result.plan.blow
                if (
                    blow is not None
                    and (event.type, result.types[event.type]) == (blow.type, blow.nth)
                    and dealing is None
                ):
                    self.app.note_instances()
                    dealing = group.create_task(self._deal(blow, result))
                if event.type is EventType.DELIBERATION_DECIDED:
                    outcome = load(Outcome, event.data)
                    break
        if result.plan.blow is not None and dealing is None:
            result.trouble.append("its boundary never came")
        if outcome is None:
            raise AssertionError("the log ended")
        return outcome

    async def _deal(self, blow: Blow, result: RunResult) -> None:
        until = time.monotonic() + (_EXECUTOR_SECONDS if blow.kind == "executor" else 0.0)
        while not (pids := self.app.pids(blow.kind)) and time.monotonic() < until:
            await asyncio.sleep(0.005)
        if not blow.stop:
            result.hit = hit(pids, signal.SIGKILL)
            return
        result.hit = hit(pids, signal.SIGSTOP)
        try:
            async with asyncio.TaskGroup() as group:
                # Work that one host holds and cannot do is resumed by another.
                spare = (
                    group.create_task(self.app.part("host-2", "host-2").keep())
                    if blow.kind == "host"
                    else None
                )
                await asyncio.sleep(STOPPED_SECONDS)
                hit(pids, signal.SIGCONT)
                if spare is not None:
                    await asyncio.sleep(3.0)  # both run: the one that lost its work stops it
                    spare.cancel()
        finally:
            hit(pids, signal.SIGCONT)

    async def _submit(self, task_id: str, plan: Plan) -> None:
        """Retry until the request is accepted: the same id with the same request is the same
        deliberation.
        """
        request = pb.DeliberateRequest(
            task_id=task_id,
            task_description=HANGING if plan.cancelled else TASK,
            role="DEV",
            protocol="tests_then_verify",
            constraints=pb.TaskConstraints(max_iterations=2),
            repository=common_pb2.Repository(id=self.repository),
        )
        await self._insist("SubmitDeliberation", request)

    async def _cancel(self, task_id: str) -> None:
        await self._insist(
            "CancelDeliberation", pb.CancelDeliberationRequest(task_id=task_id, reason="enough")
        )

    async def _insist(self, name: str, request: object) -> object:
        token = (self.app.data / "token").read_text(encoding="ascii").strip()
        metadata = (("authorization", f"Bearer {token}"),)
        while True:
            try:
                return await getattr(self.stub, name)(
                    request, metadata=metadata, timeout=_CALL_SECONDS, wait_for_ready=True
                )
            except grpc.aio.AioRpcError as error:
                if error.code() not in _UNREACHED:
                    raise
            await asyncio.sleep(0.1)

    async def _check_reported_result(
        self, task_id: str, outcome: Outcome, result: RunResult
    ) -> None:
        """Wait until the API reports the end too, and check that it reports the same outcome."""
        request = pb.GetDeliberationResultRequest(task_id=task_id)
        running = {pb.DELIBERATION_STATUS_PENDING, pb.DELIBERATION_STATUS_IN_PROGRESS}
        while True:
            answer = await self._insist("GetDeliberationResult", request)
            if not isinstance(answer, pb.GetDeliberationResultResponse):
                raise TypeError(answer)
            if answer.status not in running:
                break
            await asyncio.sleep(0.05)
        if answer.winner_id != outcome.winner_id or not pb.DeliberationStatus.Name(
            answer.status
        ).endswith(outcome.status):
            result.trouble.append(f"the API reports {answer.status} with {answer.winner_id!r}")

    def _delivered(self, task_id: str, outcome: Outcome, result: RunResult) -> str:
        """Return the changes of the winner's branch; report a mismatch of branch and outcome."""
        ref = f"refs/heads/moothall/{task_id}"
        commit = self.repo.git("for-each-ref", "--format=%(objectname)", ref)
        if commit != outcome.commit_sha:
            result.trouble.append(
                f"the branch is {commit or 'missing'}, the outcome says "
                f"{outcome.commit_sha or 'none'}"
            )
        return self.repo.git("diff", f"{commit}^", commit) if commit else ""

    async def _wait_until_idle(self, result: RunResult) -> None:
        """Wait until no work is left; report dead letters."""
        try:
            async with asyncio.timeout(_QUIET_SECONDS):
                while (await self.bus.state(WORK.name)).messages:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            result.trouble.append("the work item was never acked")
        if (await self.bus.state(DEAD.name)).messages:
            result.trouble.append("there are dead letters")

    async def _wait_for_recovery(self, result: RunResult) -> None:
        """Wait until the restarted host has cleaned up after the killed one, because the lane may
        end next.
        """
        try:
            async with asyncio.timeout(_QUIET_SECONDS):
                while not await asyncio.to_thread(self.app.host_is_up):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            result.trouble.append("no host came back")

    def _journal_size(self) -> int:
        return self.app.journal.stat().st_size if self.app.journal.exists() else 0

    def _calls(self, offset: int, recorded: dict[str, float], result: RunResult) -> None:
        """Count the calls, and those repeated though their answer was on the log."""
        with self.app.journal.open("rb") as lines:
            lines.seek(offset)
            for line in lines:
                arrived, call_id = json.loads(line)
                result.calls += 1
                if arrived > recorded.get(call_id, arrived):
                    result.repeated.append(call_id)


def _stored_at(item: Recorded) -> float:
    return datetime.fromisoformat(item.extra["time"]).timestamp()


@asynccontextmanager
async def lane(folder: Path, ack_wait: float = 5.0) -> AsyncIterator[Lane]:
    """Yield a lane below `folder`, which must not exist yet, ready for its first run."""
    repo = await asyncio.to_thread(repository, folder / "repo")
    async with app(folder, ack_wait) as lane_app:
        settings = load_settings(data_dir=lane_app.data)
        registered = await trusted_repositories(settings).register(str(repo.path))
        async with (
            open_bus(BusSettings(), lane_app.bus_url) as bus,
            grpc.aio.insecure_channel(f"127.0.0.1:{lane_app.grpc_port}") as channel,
        ):
            until = time.monotonic() + _OPEN_SECONDS
            while not (lane_app.data / "token").exists():
                if time.monotonic() > until:
                    raise TimeoutError("the API server did not start; see its log")
                await asyncio.sleep(0.05)
            yield Lane(lane_app, bus, OrchestratorServiceStub(channel), repo, registered.id)
