"""The services about stories: PlanningService with stories and their state, StoryCoachService,
and the calls of OrchestratorService about stories.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from moothall.api import protobuf
from moothall.api.dependencies import ApiDependencies
from moothall.api.identity import caller
from moothall.domain.budget import Budget, BudgetAccount
from moothall.domain.council import BriefingRequest
from moothall.domain.ids import Principal, check_id, check_task_id, new_task_id
from moothall.domain.outcome import Outcome
from moothall.domain.plan import PlanningEvent, Strategy
from moothall.domain.task import Constraints, DeliberationRequest
from moothall.errors import InvalidRequest, Refused
from moothall.orchestrator import council_registry
from moothall.orchestrator.story_writer import StoryWriter, WrittenStory
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as orchestrator_pb
from moothall.pb.planning.v1 import planning_pb2 as pb
from moothall.pb.planning.v1 import planning_pb2_grpc as pb_grpc
from moothall.pb.storycoach.v1 import storycoach_pb2 as storycoach_pb
from moothall.pb.storycoach.v1 import storycoach_pb2_grpc as storycoach_pb_grpc
from moothall.stories import coach
from moothall.stories.coach import StoryDraft
from moothall.stories.council_actions import Spot, remark
from moothall.stories.lifecycle import Blocked
from moothall.stories.planner import plan_of
from moothall.stories.plans import read_outline, to_outlines
from moothall.stories.story_state import PASSED, StoryState

# PlanningService: stories and their state.


class Planning(pb_grpc.PlanningServiceServicer):
    """The gRPC servicer of PlanningService."""

    def __init__(self, dependencies: ApiDependencies) -> None:
        self._board = dependencies.stories.board
        self._story_budgets = dependencies.stories.budgets
        self._deliberations = dependencies.deliberations
        self._plans = dependencies.stories.plans

    async def CreateStory(
        self, request: pb.CreateStoryRequest, context: Any
    ) -> pb.CreateStoryResponse:
        """Put a story on the board."""
        return await self.create(request, new_task_id())

    async def create(self, request: pb.CreateStoryRequest, key: str) -> pb.CreateStoryResponse:
        """Put a story on the board; `key` identifies the request within the tenant."""
        await self._plans.check_repository(request.repository, caller())
        card = await self._board.create(
            StoryDraft(request.title, request.brief, tuple(request.ac)),
            caller(),
            key=key,
            repository=request.repository,
            rigor=request.rigor_level,
            budget=protobuf.from_message(Budget, request.budget),
        )
        return pb.CreateStoryResponse(
            story_id=card.story.id, state=card.position.state, dor_score=card.position.points
        )

    async def ListStories(
        self, request: pb.ListStoriesRequest, context: Any
    ) -> pb.ListStoriesResponse:
        """List the stories of the caller's tenant."""
        return pb.ListStoriesResponse(
            stories=[_story(card) for card in await self._board.cards(caller())]
        )

    async def GetStory(self, request: pb.GetStoryRequest, context: Any) -> pb.GetStoryResponse:
        """Return a story with its criteria, plan, check and budget account."""
        principal = caller()
        card = await self._board.card(request.story_id, principal)
        account = await self._story_budgets.of(card.story.id, principal.tenant, card.story.budget)
        return pb.GetStoryResponse(
            story=_story(card),
            ac=card.story.ac,
            plan_json=_plan(card),
            check=_check_message(card),
            account=_account(account),
            repository=card.story.repository_name,
            rigor_level=card.position.rigor,
            budget=protobuf.to_message(pb.Amount, card.story.budget),
            seq=card.seq,
            delivery=_delivery(card),
        )

    async def UpdateStory(
        self, request: pb.UpdateStoryRequest, context: Any
    ) -> pb.UpdateStoryResponse:
        """Replace the text, repository, rigor level and budget of a story."""
        return await self.update(request, request.seq or None)

    async def update(
        self, request: pb.UpdateStoryRequest, seen_seq: int | None
    ) -> pb.UpdateStoryResponse:
        """Replace a story's text. With `seen_seq`, only if nothing happened after that seq."""
        await self._plans.check_repository(request.repository, caller())
        card = await self._board.update(
            request.story_id,
            StoryDraft(request.title, request.brief, tuple(request.ac)),
            caller(),
            repository=request.repository,
            rigor=request.rigor_level,
            budget=protobuf.from_message(Budget, request.budget),
            seen_seq=seen_seq,
        )
        return pb.UpdateStoryResponse(story=_story(card), seq=card.seq)

    async def RetryTasks(
        self, request: pb.RetryTasksRequest, context: Any
    ) -> pb.RetryTasksResponse:
        """Start the tasks of a build again that ended without a winner."""
        card = await self._plans.retry(request.story_id, caller())
        return pb.RetryTasksResponse(plan_id=str(card.plan.data["plan_id"]) if card.plan else "")

    async def MergeStory(
        self, request: pb.MergeStoryRequest, context: Any
    ) -> pb.MergeStoryResponse:
        """Request that the commit of an accepted story is merged."""
        return await self.merge(request, request.seq or None)

    async def merge(
        self, request: pb.MergeStoryRequest, seen_seq: int | None
    ) -> pb.MergeStoryResponse:
        """Request a merge. With `seen_seq`, only if nothing happened after that seq."""
        card = await self._board.request_merge(request.story_id, caller(), seen_seq=seen_seq)
        return pb.MergeStoryResponse(seq=card.seq)

    async def Transition(
        self, request: pb.TransitionRequest, context: Any
    ) -> pb.TransitionResponse:
        """Move a story, or return what is missing for the move."""
        return await self.move(request)

    async def move(
        self, request: pb.TransitionRequest, seen_seq: int | None = None
    ) -> pb.TransitionResponse:
        """Move a story, or return what is missing for the move. With `seen_seq`, move only if
        nothing happened after that seq.
        """
        principal = caller()
        if request.actor and request.actor != principal.name:
            raise Refused(
                f"actor is {request.actor[:80]!r}, but the token belongs to {principal.name}: a "
                "story cannot be moved in another user's name"
            )
        try:
            card = await self._board.move(
                request.story_id,
                request.event,
                principal,
                comment=request.comment,
                seen_seq=seen_seq,
            )
        except Blocked as blocked:
            card = await self._board.card(request.story_id, principal)
            return pb.TransitionResponse(
                story_id=card.story.id,
                state=card.position.state,
                blocked=True,
                reason=blocked.message,
            )
        return pb.TransitionResponse(story_id=card.story.id, state=card.position.state)

    async def Comment(self, request: pb.CommentRequest, context: Any) -> pb.CommentResponse:
        """Comment on a story, or on a line of its result."""
        await self.comment(request, request.request_id or new_task_id())
        return pb.CommentResponse()

    async def comment(self, request: pb.CommentRequest, key: str) -> None:
        """Comment on a story; `key` identifies the request among the caller's."""
        principal = caller()
        if not request.HasField("on"):
            await self._board.comment(request.story_id, request.comment, principal, key=key)
            return
        position = request.on
        place = Spot(
            position.path, position.line, position.removed, position.task_id, position.rank
        )
        await remark(
            self._board,
            self._deliberations,
            request.story_id,
            request.comment,
            principal,
            place=place,
            key=key,
        )

    async def GetPlan(self, request: pb.GetPlanRequest, context: Any) -> pb.GetPlanResponse:
        """Return the tasks of a story; empty if none are derived."""
        card = await self._board.card(request.story_id, caller())
        if card.plan is None:
            return pb.GetPlanResponse()
        plan = plan_of(card.plan)
        tasks = [
            pb.PlanTask(**outline.model_dump()) for outline in to_outlines(plan.tasks, card.story)
        ]
        return pb.GetPlanResponse(json=_plan(card), plan_id=plan.plan_id, tasks=tasks)

    async def ChangePlan(
        self, request: pb.ChangePlanRequest, context: Any
    ) -> pb.ChangePlanResponse:
        """Replace the tasks of a story."""
        outlines = [
            read_outline(
                {
                    "id": task.id,
                    "role": task.role,
                    "description": task.description,
                    "criteria": list(task.criteria),
                    "after": list(task.after),
                }
            )
            for task in request.tasks
        ]
        card = await self._plans.change(request.story_id, request.plan_id, outlines, caller())
        return pb.ChangePlanResponse(plan_id=str(card.plan.data["plan_id"]) if card.plan else "")

    async def WatchStories(
        self, request: pb.WatchStoriesRequest, context: Any
    ) -> AsyncGenerator[pb.WatchStoriesResponse, None]:
        """Stream the board's events after a seq. A caller that disconnects only detaches."""
        if request.after_seq < 0:
            raise InvalidRequest(
                f"after_seq is {request.after_seq}; give the last seq that you saw, or 0 for all"
            )
        async with aclosing(self._board.watch(request.after_seq, caller())) as batches:
            async for batch in batches:
                for board_event in batch:
                    if board_event.card is not None:
                        yield pb.WatchStoriesResponse(
                            seq=board_event.seq,
                            event=board_event.type,
                            story=_story(board_event.card),
                        )


def _story(card: StoryState) -> pb.Story:
    story, position = card.story, card.position
    return pb.Story(
        story_id=story.id,
        title=story.title,
        state=position.state,
        dor_score=position.points,
        brief=story.brief,
    )


def _account(account: BudgetAccount) -> pb.Account:
    amounts = {
        "limit": account.limit,
        "spent": account.spent,
        "reserved": account.reserved,
        "left": account.left,
    }
    return pb.Account(
        **{name: protobuf.to_message(pb.Amount, amount) for name, amount in amounts.items()}
    )


def _check_message(card: StoryState) -> pb.Check | None:
    if card.check is None:
        return None
    details = {
        name: str(card.check.data.get(name, ""))
        for name in ("branch", "commit_sha", "task_id", "why")
    }
    return pb.Check(passed=card.check.data.get("status") == PASSED, **details)


def _delivery(card: StoryState) -> pb.Delivery | None:
    if card.delivery is None:
        return None
    names = ("status", "branch", "commit_sha", "why")
    return pb.Delivery(
        **{name: str(card.delivery.data.get(name, "")) for name in names},
        merging=card.merge_request is not None,
    )


def _plan(card: StoryState) -> str:
    return json.dumps(dict(card.plan.data)) if card.plan else ""


# The calls of OrchestratorService about stories: orchestration, derivation, context.


class StoryCalls:
    """The story methods of OrchestratorService. Subclasses implement `_submit_and_wait`."""

    _dependencies: ApiDependencies

    async def _submit_and_wait(
        self, deliberation_request: DeliberationRequest, principal: Principal
    ) -> Outcome:
        raise NotImplementedError

    async def Orchestrate(
        self, request: orchestrator_pb.OrchestrateRequest, context: Any
    ) -> orchestrator_pb.OrchestrateResponse:
        """Let a council work on a task of a story. The deliberation is cancelled if the call ends
        early.
        """
        principal = caller()
        deliberation_request = orchestration(request)
        if request.HasField("context_options"):
            briefing = await self._dependencies.context.briefings.brief(
                _briefing(
                    request.context_options,
                    deliberation_request.task_id,
                    deliberation_request.story_id,
                    request.role,
                    "",
                ),
                principal,
            )
            context_text = "\n\n".join(
                part for part in (briefing.graph_text, briefing.history) if part
            )
            deliberation_request = replace(deliberation_request, context=context_text)
        return protobuf.orchestrate_response(
            await self._submit_and_wait(deliberation_request, principal)
        )

    async def ProcessPlanningEvent(
        self, request: orchestrator_pb.ProcessPlanningEventRequest, context: Any
    ) -> orchestrator_pb.ProcessPlanningEventResponse:
        """Record an event of a story, and plan the story if it moved to planning."""
        planned = await self._dependencies.stories.plans.process(
            protobuf.from_message(PlanningEvent, request), caller()
        )
        return orchestrator_pb.ProcessPlanningEventResponse(
            processed=planned.processed, message=planned.message, derived_task_ids=planned.task_ids
        )

    async def DeriveSubtasks(
        self, request: orchestrator_pb.DeriveSubtasksRequest, context: Any
    ) -> orchestrator_pb.DeriveSubtasksResponse:
        """Derive the ordered tasks of a story. If they are published, councils start to work on
        them.
        """
        options = request.strategy
        strategy = Strategy(
            options.parallel_execution, tuple(options.dependency_order), options.max_tasks_per_role
        )
        derivation = await self._dependencies.stories.plans.derive(
            request.case_id,
            request.plan_id,
            request.roles,
            strategy,
            caller(),
            publish=options.auto_publish_to_nats,
        )
        return orchestrator_pb.DeriveSubtasksResponse(
            tasks=[
                protobuf.to_message(orchestrator_pb.AtomicTask, task) for task in derivation.tasks
            ],
            derivation_id=derivation.id,
            total_tasks=len(derivation.tasks),
        )

    async def GetTaskContext(
        self, request: orchestrator_pb.GetTaskContextRequest, context: Any
    ) -> orchestrator_pb.GetTaskContextResponse:
        """Return the briefing about a task and its story."""
        story_id = _check_story_id(request.story_id, request.case_id)
        briefing = await self._dependencies.context.briefings.brief(
            _briefing(request.options, request.task_id, story_id, request.role, request.phase),
            caller(),
        )
        return orchestrator_pb.GetTaskContextResponse(
            context_text=briefing.text,
            blocks=protobuf.to_message(orchestrator_pb.ContextBlocks, briefing),
            token_count=briefing.tokens,
            version_hash=briefing.version,
        )


def orchestration(request: orchestrator_pb.OrchestrateRequest) -> DeliberationRequest:
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
    return council_registry.apply_params(
        deliberation_request, options.custom_params, council_registry.REQUEST_PARAMS
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
    options: orchestrator_pb.ContextOptions, task_id: str, story_id: str, role: str, phase: str
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


# StoryCoachService: scores, refines and suggests stories.


class StoryCoach(storycoach_pb_grpc.StoryCoachServiceServicer):
    """The gRPC servicer of StoryCoachService."""

    def __init__(self, author: StoryWriter) -> None:
        self._author = author

    async def ScoreStory(
        self, request: storycoach_pb.ScoreStoryRequest, context: Any
    ) -> storycoach_pb.ScoreStoryResponse:
        """Score a story by rules."""
        return _score(coach.score(_draft(request)))

    async def RefineStory(
        self, request: storycoach_pb.RefineStoryRequest, context: Any
    ) -> storycoach_pb.RefineStoryResponse:
        """Refine a story. The model call is cancelled if the call ends."""
        return storycoach_pb.RefineStoryResponse(
            **_fields(await self._author.refine(_draft(request), caller()))
        )

    async def SuggestStory(
        self, request: storycoach_pb.SuggestStoryRequest, context: Any
    ) -> storycoach_pb.SuggestStoryResponse:
        """Draft a story. The model call is cancelled if the call ends."""
        return storycoach_pb.SuggestStoryResponse(
            **_fields(await self._author.suggest(request.goal, caller()))
        )


def _draft(
    request: storycoach_pb.ScoreStoryRequest | storycoach_pb.RefineStoryRequest,
) -> coach.StoryDraft:
    return coach.StoryDraft(request.title, request.description, tuple(request.ac))


def _score(score: coach.Score) -> storycoach_pb.ScoreStoryResponse:
    findings = [
        storycoach_pb.Finding(code=item.code, message=item.message, weight=item.weight)
        for item in score.findings
    ]
    return storycoach_pb.ScoreStoryResponse(total=score.total, findings=findings)


def _fields(story: WrittenStory) -> dict[str, Any]:
    draft = story.draft
    return {
        "title": draft.title,
        "description": draft.description,
        "ac": draft.ac,
        "by": story.by,
        "score": _score(story.score),
    }
