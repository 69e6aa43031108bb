"""OrchestratorService, the part about stories: orchestration, derivation, context."""

from __future__ import annotations

from typing import Any

from moothall.council import params
from moothall.domain.briefing import BriefingRequest
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, new_task_id
from moothall.domain.outcome import Outcome
from moothall.domain.plan import AtomicTask, PlanningEvent, Strategy
from moothall.domain.task import DeliberationRequest
from moothall.errors import InvalidRequest
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.services import convert
from moothall.services.doors import Doors
from moothall.services.identity import caller


class StoryCalls:
    """What is done for a story. Needs `_decided` of the part about deliberations."""

    _doors: Doors

    async def _decided(self, asked: DeliberationRequest, who: Principal) -> Outcome:
        raise NotImplementedError

    async def Orchestrate(self, request: pb.OrchestrateRequest, context: Any) -> pb.OrchestrateResponse:  # noqa: N802 - the RPC's name
        """Let a council work on a task of a story; the deliberation dies with the call."""
        del context
        who = caller()
        asked = orchestration(request)
        if request.HasField("context_options"):
            briefing = await self._doors.briefings.brief(
                _briefing(request.context_options, asked.task_id, asked.story_id, request.role, ""), who
            )
            told = "\n\n".join(part for part in (briefing.context, briefing.history) if part)
            asked = convert.with_context(asked, told)
        return convert.orchestrate_response(await self._decided(asked, who))

    async def ProcessPlanningEvent(  # noqa: N802 - the RPC's name
        self, request: pb.ProcessPlanningEventRequest, context: Any
    ) -> pb.ProcessPlanningEventResponse:
        """Record what happened to a story, and plan it where it moved to planning."""
        del context
        told = PlanningEvent(
            event_type=request.event_type,
            case_id=request.case_id,
            plan_id=request.plan_id,
            from_state=request.from_state,
            to_state=request.to_state,
            timestamp_ms=request.timestamp_ms,
            metadata=dict(request.metadata),
        )
        done = await self._doors.plans.process(told, caller())
        return pb.ProcessPlanningEventResponse(processed=done.processed, message=done.message, derived_task_ids=done.task_ids)

    async def DeriveSubtasks(  # noqa: N802 - the RPC's name
        self, request: pb.DeriveSubtasksRequest, context: Any
    ) -> pb.DeriveSubtasksResponse:
        """Return the ordered tasks of a story; published, councils take them up."""
        del context
        asked = request.strategy
        strategy = Strategy(asked.parallel_execution, tuple(asked.dependency_order), asked.max_tasks_per_role)
        made = await self._doors.plans.derive(
            request.case_id, request.plan_id, request.roles, strategy, caller(), publish=asked.auto_publish_to_nats
        )
        return pb.DeriveSubtasksResponse(tasks=map(_task_message, made.tasks), derivation_id=made.id, total_tasks=len(made.tasks))

    async def GetTaskContext(  # noqa: N802 - the RPC's name
        self, request: pb.GetTaskContextRequest, context: Any
    ) -> pb.GetTaskContextResponse:
        """Tell what is known of a task and its story."""
        del context
        story_id = _story_of(request.story_id, request.case_id)
        made = await self._doors.briefings.brief(
            _briefing(request.options, request.task_id, story_id, request.role, request.phase), caller()
        )
        return pb.GetTaskContextResponse(
            context_text=made.text,
            blocks=pb.ContextBlocks(system=made.system, context=made.context, tools=made.tools, history=made.history),
            token_count=made.tokens,
            version_hash=made.version,
        )


def orchestration(request: pb.OrchestrateRequest) -> DeliberationRequest:
    """Return what a caller asks for. An architect's selection: the reviews are an architect's, and all are reviewed."""
    options, repository = request.options, request.repository
    asked = DeliberationRequest(
        description=request.task_description,
        role=request.role,
        task_id=check_id(request.task_id, "task_id") if request.task_id else new_task_id(),
        constraints=convert.constraints_of(request.constraints),
        rounds=options.deliberation_rounds or None,
        repository=convert.repository_of(repository),
        peer_review=options.enable_peer_review or options.enable_architect_selection,
        reviewer="architect" if options.enable_architect_selection else "",
        story_id=_story_of(request.story_id, request.case_id),
        plan_id=request.plan_id,
        origin="orchestrate",
    )
    return params.filled(asked, options.custom_params, params.REQUEST)


def _story_of(story_id: str, case_id: str) -> str:
    """A case is known by its story; a caller names one of the two, or both alike."""
    if story_id and case_id and story_id != case_id:
        raise InvalidRequest(f"story_id {story_id[:80]!r} and case_id {case_id[:80]!r} differ; they name the same story here")
    return check_id(story_id or case_id, "story_id" if story_id else "case_id") if story_id or case_id else ""


def _briefing(options: pb.ContextOptions, task_id: str, story_id: str, role: str, phase: str) -> BriefingRequest:
    return BriefingRequest(
        task_id=task_id,
        story_id=story_id,
        role=role,
        phase=phase,
        timeline=options.include_timeline,
        decisions=options.include_decisions,
        summaries=options.include_summaries,
        events=options.max_events,
        scopes=tuple(options.scopes),
    )


def _task_message(task: AtomicTask) -> pb.AtomicTask:
    where = task.repository
    return pb.AtomicTask(
        task_id=task.task_id,
        role=task.role,
        description=task.description,
        dependencies=task.dependencies,
        constraints=pb.TaskConstraints(requirements=task.constraints.requirements),
        case_id=task.case_id,
        plan_id=task.plan_id,
        priority=task.priority,
        repository=common_pb2.Repository(id=where.id, url=where.url, ref=where.ref) if where else None,
    )
