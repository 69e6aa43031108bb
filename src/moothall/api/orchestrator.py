"""OrchestratorService: deliberations, and the server's status and metrics. The calls of
OrchestratorService about councils and agents.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from typing import Any

from moothall import telemetry
from moothall.api import protobuf
from moothall.api.dependencies import ApiDependencies
from moothall.api.identity import caller
from moothall.api.protobuf import to_message
from moothall.api.stories import StoryCalls
from moothall.authorization.approvals import refuse_unless_operator
from moothall.collector.progress import Progress, ProgressStep, apply_event
from moothall.domain.codec import load
from moothall.domain.council import Agent, Capabilities, Council, CouncilConfig
from moothall.domain.event import EventType, Recorded
from moothall.domain.ids import Principal, TaskId, check_task_id, new_task_id
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.proposal import Proposal
from moothall.domain.status import Condition
from moothall.domain.task import DeliberationRequest
from moothall.errors import AlreadyExists, InvalidRequest, MoothallError, NotFound
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from moothall.stories import council_actions


class QuotaCalls:
    """The methods for quotas. Operators name any tenant, other callers only their own."""

    _dependencies: ApiDependencies

    async def GetQuotas(self, request: pb.GetQuotasRequest, context: Any) -> pb.GetQuotasResponse:
        """Return the quotas of a tenant, their use, and the last changes."""
        tenant, quotas = _tenant_of(request.tenant), self._dependencies.quotas
        current = await quotas.read(tenant)
        return pb.GetQuotasResponse(
            tenant=tenant,
            quotas=_to_quotas(current.quota.model_dump()),
            own=_to_quotas(current.values),
            uses=[
                to_message(pb.QuotaUse, use, resets=use.resets.isoformat())
                for use in await quotas.list_uses(tenant)
            ],
            changes=[
                pb.QuotaChange(
                    actor=change.actor, time=change.time, quotas=_to_quotas(change.values)
                )
                for change in current.changes
            ],
        )

    async def SetQuotas(self, request: pb.SetQuotasRequest, context: Any) -> pb.SetQuotasResponse:
        """Set the quotas of a tenant that differ from the settings."""
        values = {field.name: value for field, value in request.quotas.ListFields()}
        changed = await self._dependencies.quotas.change(
            _tenant_of(request.tenant), values, caller()
        )
        return pb.SetQuotasResponse(quotas=_to_quotas(changed.quota.model_dump()))


def _tenant_of(name: str) -> str:
    """Return the tenant that a request is about. Raises `Refused`."""
    principal = caller()
    if name and name != principal.tenant:
        refuse_unless_operator(principal)
    return name or principal.tenant


def _to_quotas(values: Mapping[str, float]) -> pb.Quotas:
    message = pb.Quotas()
    for name, value in values.items():
        is_whole = isinstance(getattr(message, name), int)
        setattr(message, name, int(value) if is_whole else value)
    return message


# The calls of OrchestratorService about councils and agents.


_ENDPOINT_MESSAGE = (
    "registered; its seat runs at its endpoint if an operator allows that (agents.endpoints), "
    "otherwise on this service's hosts"
)


class CouncilCalls:
    """The council and agent methods of OrchestratorService."""

    _dependencies: ApiDependencies

    async def CreateCouncil(
        self, request: pb.CreateCouncilRequest, context: Any
    ) -> pb.CreateCouncilResponse:
        """Create the council of a role."""
        settings = request.config
        config = protobuf.from_message(
            CouncilConfig,
            settings,
            rounds=settings.deliberation_rounds,
            peer_review=settings.enable_peer_review,
            params=dict(settings.custom_params),
        )
        council = await self._dependencies.councils.create(
            request.role, request.num_agents, config, caller()
        )
        ids = [agent.id for agent in council.agents]
        return pb.CreateCouncilResponse(
            council_id=council.id, agents_created=len(ids), agent_ids=ids
        )

    async def ListCouncils(
        self, request: pb.ListCouncilsRequest, context: Any
    ) -> pb.ListCouncilsResponse:
        """List the councils that exist."""
        principal = caller()
        councils = await self._dependencies.councils.list(principal, request.role_filter)
        busy = self._dependencies.records.statistics.find_busy_agents(principal)
        return pb.ListCouncilsResponse(
            councils=[
                _council_info(
                    council,
                    busy.get(council.role, ()),
                    self._model(council),
                    agents=request.include_agents,
                )
                for council in councils
            ]
        )

    def _model(self, council: Council) -> str:
        """Return the name of a council's model at its server; the configured profile's name if the
        settings no longer have it.
        """
        profile, models = council.config.model_profile, self._dependencies.models
        try:
            return models.get(
                models.choose(profile) if profile else models.of_role(council.role)
            ).model
        except InvalidRequest:
            return profile

    async def DeleteCouncil(
        self, request: pb.DeleteCouncilRequest, context: Any
    ) -> pb.DeleteCouncilResponse:
        """Delete a role's council. Requests to the role are refused until it is created again."""
        council = await self._dependencies.councils.delete(request.role, caller())
        return pb.DeleteCouncilResponse(
            success=True,
            message=f"deleted; requests to {council.role} are refused until CreateCouncil creates "
            "another council",
            agents_removed=len(council.agents),
        )

    async def RegisterAgent(
        self, request: pb.RegisterAgentRequest, context: Any
    ) -> pb.RegisterAgentResponse:
        """Add an agent to the council of a role."""
        capabilities = protobuf.from_message(Capabilities, request.capabilities)
        agent = protobuf.from_message(
            Agent, request, id=request.agent_id, capabilities=capabilities
        )
        council = await self._dependencies.councils.register(request.role, agent, caller())
        message = (
            _ENDPOINT_MESSAGE
            if agent.endpoint
            else "registered; its seat runs on this service's hosts, with its model"
        )
        return pb.RegisterAgentResponse(success=True, message=message, council_id=council.id)

    async def UnregisterAgent(
        self, request: pb.UnregisterAgentRequest, context: Any
    ) -> pb.UnregisterAgentResponse:
        """Remove an agent from the council of a role."""
        council = await self._dependencies.councils.unregister(
            request.role, request.agent_id, caller()
        )
        remaining = f"{len(council.agents)} left in {council.id}"
        return pb.UnregisterAgentResponse(success=True, message=f"unregistered; {remaining}")


def _council_info(
    council: Council, busy: Collection[str], model: str, *, agents: bool
) -> pb.CouncilInfo:
    status = "busy" if busy else "idle" if council.agents else "empty"
    return pb.CouncilInfo(
        council_id=council.id,
        role=council.role,
        num_agents=len(council.agents),
        agents=[_agent_info(agent, council.role, agent.id in busy) for agent in council.agents]
        if agents
        else (),
        status=status,
        model=model,
    )


def _agent_info(agent: Agent, role: str, busy: bool) -> pb.AgentInfo:  # noqa: FBT001 - private
    return protobuf.to_message(
        pb.AgentInfo, agent, agent_id=agent.id, role=role, status="busy" if busy else "idle"
    )


# OrchestratorService: deliberations, and the server's status and metrics.


log = telemetry.get_logger(__name__)

_STATES = ("", "live", "ended", "failed")
_PAGE_SIZE, _MAX_PAGE_SIZE = 50, 1000
METRICS = ("performance", "agents", "councils")
_CANCEL_SECONDS = 10.0


class MetricsService:
    """The methods for status and metrics; metrics are those of the caller's tenant."""

    _dependencies: ApiDependencies
    _started_at: float

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        """Return the health with reasons, the uptime and totals."""
        health = await self._dependencies.health_check.check()
        is_down = health.status is Condition.DOWN
        totals = (
            await self._dependencies.records.statistics.get_totals(caller())
            if request.include_stats and not is_down
            else None
        )
        return pb.GetStatusResponse(
            status="unhealthy" if is_down else health.status.value,
            reasons=[
                f"{part.name}: {part.detail}"
                for part in health.parts
                if part.status is not Condition.HEALTHY
            ],
            uptime_seconds=int(time.monotonic() - self._started_at),
            stats=None
            if totals is None
            else pb.OrchestratorStats(
                total_deliberations=totals.deliberations,
                total_orchestrations=totals.orchestrations,
                avg_deliberation_time_ms=totals.average_ms,
                active_councils=totals.active_councils,
                role_counts=totals.by_role,
            ),
        )

    async def GetMetrics(
        self, request: pb.GetMetricsRequest, context: Any
    ) -> pb.GetMetricsResponse:
        """Return the metrics of a time range: one kind or all."""
        kind = request.metric_type.strip().lower() or "all"
        if kind not in {"all", *METRICS}:
            raise InvalidRequest(
                f"unknown metric_type {request.metric_type[:40]!r}; allowed are "
                f"{', '.join(METRICS)}, and all"
            )
        if request.time_range_ms < 0:
            raise InvalidRequest(
                f"time_range_ms is {request.time_range_ms}; milliseconds back from now, 0 for all"
            )
        metrics = await self._dependencies.records.statistics.get_metrics(
            caller(), request.time_range_ms
        )
        response = pb.GetMetricsResponse()
        if kind in {"all", "performance"}:
            latencies = metrics.latencies
            response.performance.CopyFrom(
                pb.PerformanceMetrics(
                    avg_deliberation_ms=latencies.deliberation_ms,
                    avg_orchestration_ms=latencies.orchestration_ms,
                    p50_latency_ms=latencies.p50_ms,
                    p95_latency_ms=latencies.p95_ms,
                    p99_latency_ms=latencies.p99_ms,
                )
            )
        if kind in {"all", "agents"}:
            response.agents.CopyFrom(
                pb.AgentMetrics(
                    total_agents=sum(metrics.agents_by_role.values()),
                    active_agents=metrics.active_agents,
                    agents_per_role=metrics.agents_by_role,
                    avg_agent_response_time_ms=metrics.response_ms,
                )
            )
        if kind in {"all", "councils"}:
            response.councils.CopyFrom(
                pb.CouncilMetrics(
                    total_councils=len(metrics.councils),
                    active_councils=sum(health.busy > 0 for health in metrics.councils.values()),
                    health_per_council={
                        name: pb.CouncilHealth(
                            status=health.status,
                            available_agents=health.available,
                            busy_agents=health.busy,
                            success_rate=health.success_rate,
                        )
                        for name, health in metrics.councils.items()
                    },
                )
            )
        return response

    async def ListDeliberations(
        self, request: pb.ListDeliberationsRequest, context: Any
    ) -> pb.ListDeliberationsResponse:
        """Return a page of the tenant's deliberations: the token of a page is the index of its
        first one.
        """
        if request.state not in _STATES:
            raise InvalidRequest(
                f"state is {request.state[:40]!r}; allowed are live, ended and failed, or omit it "
                "for all"
            )
        size, token = request.page_size or _PAGE_SIZE, request.page_token or "0"
        if not 1 <= size <= _MAX_PAGE_SIZE:
            raise InvalidRequest(f"page_size is {size}; allowed are 1 to {_MAX_PAGE_SIZE}")
        if re.fullmatch(r"[0-9]{1,4}", token, re.ASCII) is None:
            raise InvalidRequest("page_token is not the next_page_token of a page")
        first = int(token)
        # One more than are returned tells whether there is a next page.
        views = await self._dependencies.records.tasks.list_tasks(
            caller(), request.state, size + 1, query=request.query, first=first
        )
        return pb.ListDeliberationsResponse(
            deliberations=[
                protobuf.to_message(
                    pb.DeliberationSummary, view, status=protobuf.status_message(view.status)
                )
                for view in views[:size]
            ],
            next_page_token=str(first + size) if len(views) > size else "",
        )


class OrchestratorService(
    StoryCalls, CouncilCalls, QuotaCalls, MetricsService, pb_grpc.OrchestratorServiceServicer
):
    """All methods of orchestrator.v1."""

    def __init__(self, dependencies: ApiDependencies) -> None:
        self._dependencies = dependencies
        self._deliberations = dependencies.deliberations
        self._started_at = time.monotonic()

    async def Deliberate(
        self, request: pb.DeliberateRequest, context: Any
    ) -> pb.DeliberateResponse:
        """Submit and wait. The deliberation is cancelled if the call ends early."""
        return protobuf.deliberate_response(
            await self._submit_and_wait(_with_id(protobuf.read_request(request)), caller())
        )

    async def _submit_and_wait(
        self, deliberation_request: DeliberationRequest, principal: Principal
    ) -> Outcome:
        """Submit a deliberation and wait for its outcome; cancel it if the call ends early."""
        submitted = False
        try:
            deliberation = await self._deliberations.submit(deliberation_request, principal)
            submitted = True
            return await self._deliberations.wait(deliberation.own_id, principal)
        except asyncio.CancelledError:
            if not self._dependencies.serving.stopping.is_set():
                await self._abandon(deliberation_request, principal, submitted=submitted)
            raise

    async def SubmitDeliberation(
        self, request: pb.DeliberateRequest, context: Any
    ) -> pb.SubmitDeliberationResponse:
        """Submit a deliberation and return at once."""
        deliberation = await self._deliberations.submit(protobuf.read_request(request), caller())
        return pb.SubmitDeliberationResponse(
            task_id=deliberation.own_id,
            status=protobuf.status_message(DeliberationStatus.PENDING),
            agent_count=len(deliberation.seats),
        )

    async def GetDeliberationResult(
        self, request: pb.GetDeliberationResultRequest, context: Any
    ) -> pb.GetDeliberationResultResponse:
        """Return the result so far. A planned task that waits for earlier tasks is PENDING."""
        task_id, principal = check_task_id(request.task_id), caller()
        try:
            outcome = await self._deliberations.result(task_id, principal)
        except NotFound:
            if not await self._dependencies.stories.plans.is_waiting(task_id, principal):
                raise
            outcome = Outcome(task_id, DeliberationStatus.PENDING, tenant=principal.tenant)
        return protobuf.result_response(outcome)

    async def StreamDeliberation(
        self, request: pb.DeliberateRequest, context: Any
    ) -> AsyncIterator[pb.DeliberationUpdate]:
        """Submit a deliberation and stream its updates; it continues if the caller disconnects."""
        principal = caller()
        deliberation = await self._deliberations.submit(protobuf.read_request(request), principal)
        async for update in self._updates(deliberation.own_id, 0, principal):
            yield update

    async def WatchDeliberation(
        self, request: pb.WatchDeliberationRequest, context: Any
    ) -> AsyncIterator[pb.DeliberationUpdate]:
        """Stream the updates of a deliberation after a seq."""
        if request.after_seq < 0:
            raise InvalidRequest(
                f"after_seq is {request.after_seq}; give the last seq that you saw, or 0 for all"
            )
        async for update in self._updates(
            check_task_id(request.task_id), request.after_seq, caller()
        ):
            yield update

    async def CancelDeliberation(
        self, request: pb.CancelDeliberationRequest, context: Any
    ) -> pb.CancelDeliberationResponse:
        """Cancel a deliberation."""
        reason = request.reason or "cancelled by its caller"
        status = await self._deliberations.cancel(check_task_id(request.task_id), reason, caller())
        return pb.CancelDeliberationResponse(status=protobuf.status_message(status))

    async def SteerDeliberation(
        self, request: pb.SteerDeliberationRequest, context: Any
    ) -> pb.SteerDeliberationResponse:
        """Send a message to the seats of a deliberation."""
        await self.steer(request, request.request_id or new_task_id())
        return pb.SteerDeliberationResponse()

    async def steer(self, request: pb.SteerDeliberationRequest, key: str) -> None:
        """Send a message to the seats; `key` identifies the request among the caller's."""
        await council_actions.steer(
            self._deliberations, request.task_id, request.message, caller(), key=key
        )

    async def PauseDeliberation(
        self, request: pb.PauseDeliberationRequest, context: Any
    ) -> pb.PauseDeliberationResponse:
        """Pause a deliberation."""
        return pb.PauseDeliberationResponse(
            changed=await council_actions.pause(
                self._deliberations, request.task_id, caller(), paused=True
            )
        )

    async def ResumeDeliberation(
        self, request: pb.ResumeDeliberationRequest, context: Any
    ) -> pb.ResumeDeliberationResponse:
        """Resume a paused deliberation."""
        return pb.ResumeDeliberationResponse(
            changed=await council_actions.pause(
                self._deliberations, request.task_id, caller(), paused=False
            )
        )

    async def _updates(
        self, task_id: TaskId, after_seq: int, principal: Principal
    ) -> AsyncIterator[pb.DeliberationUpdate]:
        progress = Progress()
        # Read from the beginning: progress is computed from all events, including those that the
        # caller has already seen.
        async for recorded in self._deliberations.watch(task_id, 0, principal):
            progress, step = apply_event(progress, recorded)
            if recorded.comes_after(after_seq):
                yield _update(task_id, recorded, step)

    async def _abandon(
        self, deliberation_request: DeliberationRequest, principal: Principal, *, submitted: bool
    ) -> None:
        """Cancel a deliberation whose caller has disconnected."""
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                if not submitted:
                    # The submission was interrupted and may have been recorded. Repeating it is
                    # harmless, and raises `AlreadyExists` if the id is another caller's.
                    await self._deliberations.submit(deliberation_request, principal)
                await self._deliberations.cancel(
                    check_task_id(deliberation_request.task_id), "the caller went away", principal
                )
        except AlreadyExists:
            return
        except (MoothallError, TimeoutError) as error:
            log.warning(
                "could not cancel after the caller went away",
                task_id=deliberation_request.task_id,
                error=str(error),
            )


def _with_id(request: DeliberationRequest) -> DeliberationRequest:
    """Set the task id before submission, so that the deliberation can be cancelled at any time."""
    return request if request.task_id else replace(request, task_id=new_task_id())


def _update(task_id: TaskId, recorded: Recorded, step: ProgressStep) -> pb.DeliberationUpdate:
    return pb.DeliberationUpdate(
        status=step.status.value,
        progress_percent=step.percent,
        current_step=step.step,
        current_agent=step.agent,
        partial_result=_partial_result(recorded),
        seq=recorded.position,
        event=protobuf.event_message(recorded.event),
        task_id=task_id,
    )


def _partial_result(recorded: Recorded) -> pb.DeliberationResult | None:
    """Return the candidate of an event: a new proposal, or the winner at the end."""
    event = recorded.event
    if event.type in {EventType.SEAT_PROPOSED, EventType.SEAT_REVISED}:
        return protobuf.proposal_message(load(Proposal, event.data.get("proposal")))
    if event.type == EventType.DELIBERATION_DECIDED and event.data.get("winner_id"):
        return next(iter(protobuf.result_messages(load(Outcome, event.data).results)), None)
    return None
