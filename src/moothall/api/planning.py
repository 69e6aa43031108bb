"""The calls of OrchestratorService about stories: orchestration, derivation, context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moothall.api import protobuf
from moothall.api.dependencies import ApiDependencies
from moothall.api.identity import caller
from moothall.domain.briefing import BriefingRequest
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, check_task_id, new_task_id
from moothall.domain.outcome import Outcome
from moothall.domain.plan import PlanningEvent, Strategy
from moothall.domain.task import Constraints, DeliberationRequest
from moothall.errors import InvalidRequest
from moothall.orchestrator import council_params
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb


class StoryCalls:
    """The story methods of OrchestratorService. Subclasses implement `_submit_and_wait`."""

    _dependencies: ApiDependencies

    async def _submit_and_wait(
        self, deliberation_request: DeliberationRequest, who: Principal
    ) -> Outcome:
        raise NotImplementedError

    async def Orchestrate(
        self, request: pb.OrchestrateRequest, context: Any
    ) -> pb.OrchestrateResponse:
        """Let a council work on a task of a story. The deliberation is cancelled if the call ends
        early.
        """
        who = caller()
        deliberation_request = orchestration(request)
        if request.HasField("context_options"):
            briefing = await self._dependencies.briefings.brief(
                _briefing(
                    request.context_options,
                    deliberation_request.task_id,
                    deliberation_request.story_id,
                    request.role,
                    "",
                ),
                who,
            )
            context_text = "\n\n".join(
                part for part in (briefing.graph_text, briefing.history) if part
            )
            deliberation_request = replace(deliberation_request, context=context_text)
        return protobuf.orchestrate_response(await self._submit_and_wait(deliberation_request, who))

    async def ProcessPlanningEvent(
        self, request: pb.ProcessPlanningEventRequest, context: Any
    ) -> pb.ProcessPlanningEventResponse:
        """Record an event of a story, and plan the story if it moved to planning."""
        planned = await self._dependencies.plans.process(
            protobuf.from_message(PlanningEvent, request), caller()
        )
        return pb.ProcessPlanningEventResponse(
            processed=planned.processed, message=planned.message, derived_task_ids=planned.task_ids
        )

    async def DeriveSubtasks(
        self, request: pb.DeriveSubtasksRequest, context: Any
    ) -> pb.DeriveSubtasksResponse:
        """Derive the ordered tasks of a story. If they are published, councils start to work on
        them.
        """
        options = request.strategy
        strategy = Strategy(
            options.parallel_execution, tuple(options.dependency_order), options.max_tasks_per_role
        )
        derivation = await self._dependencies.plans.derive(
            request.case_id,
            request.plan_id,
            request.roles,
            strategy,
            caller(),
            publish=options.auto_publish_to_nats,
        )
        return pb.DeriveSubtasksResponse(
            tasks=[protobuf.to_message(pb.AtomicTask, task) for task in derivation.tasks],
            derivation_id=derivation.id,
            total_tasks=len(derivation.tasks),
        )

    async def GetTaskContext(
        self, request: pb.GetTaskContextRequest, context: Any
    ) -> pb.GetTaskContextResponse:
        """Return the briefing about a task and its story."""
        story_id = _check_story_id(request.story_id, request.case_id)
        briefing = await self._dependencies.briefings.brief(
            _briefing(request.options, request.task_id, story_id, request.role, request.phase),
            caller(),
        )
        return pb.GetTaskContextResponse(
            context_text=briefing.text,
            blocks=protobuf.to_message(pb.ContextBlocks, briefing),
            token_count=briefing.tokens,
            version_hash=briefing.version,
        )


def orchestration(request: pb.OrchestrateRequest) -> DeliberationRequest:
    """Convert a request. With architect selection, the reviewer is an architect and all candidates
    are reviewed.
    """
    options = request.options
    deliberation_request = DeliberationRequest(
        description=request.task_description,
        role=request.role,
        task_id=check_task_id(request.task_id) if request.task_id else new_task_id(),
        constraints=protobuf.from_message(Constraints, request.constraints),
        rounds=options.deliberation_rounds or None,
        repository=protobuf.read_repository(request.repository),
        peer_review=options.enable_peer_review or options.enable_architect_selection,
        reviewer="architect" if options.enable_architect_selection else "",
        story_id=_check_story_id(request.story_id, request.case_id),
        plan_id=request.plan_id,
        origin="orchestrate",
    )
    return council_params.apply_params(
        deliberation_request, options.custom_params, council_params.REQUEST_PARAMS
    )


def _check_story_id(story_id: str, case_id: str) -> str:
    """Return the story id. A case is its story: callers give one of the two ids, or both with the
    same value.
    """
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
