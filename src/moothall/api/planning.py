"""OrchestratorService, the part about stories: orchestration, derivation, context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moothall.api import protobuf
from moothall.api.dependencies import ApiDependencies
from moothall.api.identity import caller
from moothall.domain.briefing import BriefingRequest
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, new_task_id
from moothall.domain.outcome import Outcome
from moothall.domain.plan import PlanningEvent, Strategy
from moothall.domain.task import Constraints, DeliberationRequest
from moothall.errors import InvalidRequest
from moothall.orchestrator import council_params
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb


class StoryCalls:
    """What is done for a story. Needs `_decided` of the part about deliberations."""

    _dependencies: ApiDependencies

    async def _submit_and_wait(self, asked: DeliberationRequest, who: Principal) -> Outcome:
        raise NotImplementedError

    async def Orchestrate(
        self, request: pb.OrchestrateRequest, context: Any
    ) -> pb.OrchestrateResponse:
        """Let a council work on a task of a story; the deliberation dies with the call."""
        who = caller()
        asked = orchestration(request)
        if request.HasField("context_options"):
            briefing = await self._dependencies.briefings.brief(
                _briefing(request.context_options, asked.task_id, asked.story_id, request.role, ""),
                who,
            )
            told = "\n\n".join(part for part in (briefing.told, briefing.history) if part)
            asked = replace(asked, context=told)
        return protobuf.orchestrate_response(await self._submit_and_wait(asked, who))

    async def ProcessPlanningEvent(
        self, request: pb.ProcessPlanningEventRequest, context: Any
    ) -> pb.ProcessPlanningEventResponse:
        """Record what happened to a story, and plan it where it moved to planning."""
        done = await self._dependencies.plans.process(
            protobuf.from_message(PlanningEvent, request), caller()
        )
        return pb.ProcessPlanningEventResponse(
            processed=done.processed, message=done.message, derived_task_ids=done.task_ids
        )

    async def DeriveSubtasks(
        self, request: pb.DeriveSubtasksRequest, context: Any
    ) -> pb.DeriveSubtasksResponse:
        """Return the ordered tasks of a story; published, councils take them up."""
        asked = request.strategy
        strategy = Strategy(
            asked.parallel_execution, tuple(asked.dependency_order), asked.max_tasks_per_role
        )
        made = await self._dependencies.plans.derive(
            request.case_id,
            request.plan_id,
            request.roles,
            strategy,
            caller(),
            publish=asked.auto_publish_to_nats,
        )
        return pb.DeriveSubtasksResponse(
            tasks=[protobuf.to_message(pb.AtomicTask, task) for task in made.tasks],
            derivation_id=made.id,
            total_tasks=len(made.tasks),
        )

    async def GetTaskContext(
        self, request: pb.GetTaskContextRequest, context: Any
    ) -> pb.GetTaskContextResponse:
        """Tell what is known of a task and its story."""
        story_id = _story_of(request.story_id, request.case_id)
        made = await self._dependencies.briefings.brief(
            _briefing(request.options, request.task_id, story_id, request.role, request.phase),
            caller(),
        )
        return pb.GetTaskContextResponse(
            context_text=made.text,
            blocks=protobuf.to_message(pb.ContextBlocks, made),
            token_count=made.tokens,
            version_hash=made.version,
        )


def orchestration(request: pb.OrchestrateRequest) -> DeliberationRequest:
    """Return what a caller asks for. An architect's selection: the reviews are an architect's, and
    all are reviewed.
    """
    options = request.options
    asked = DeliberationRequest(
        description=request.task_description,
        role=request.role,
        task_id=check_id(request.task_id, "task_id") if request.task_id else new_task_id(),
        constraints=protobuf.from_message(Constraints, request.constraints),
        rounds=options.deliberation_rounds or None,
        repository=protobuf.repository_of(request.repository),
        peer_review=options.enable_peer_review or options.enable_architect_selection,
        reviewer="architect" if options.enable_architect_selection else "",
        story_id=_story_of(request.story_id, request.case_id),
        plan_id=request.plan_id,
        origin="orchestrate",
    )
    return council_params.apply_params(asked, options.custom_params, council_params.REQUEST_PARAMS)


def _story_of(story_id: str, case_id: str) -> str:
    """A case is known by its story; a caller names one of the two, or both alike."""
    if story_id and case_id and story_id != case_id:
        raise InvalidRequest(
            f"story_id {story_id[:80]!r} and case_id {case_id[:80]!r} differ; they name the same "
            "story here"
        )
    return (
        check_id(story_id or case_id, "story_id" if story_id else "case_id")
        if story_id or case_id
        else ""
    )


def _briefing(
    options: pb.ContextOptions, task_id: str, story_id: str, role: str, phase: str
) -> BriefingRequest:
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
