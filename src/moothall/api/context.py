"""ContextService: briefings and notes about a story, and the graph around a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import json_format, struct_pb2

from moothall.api.dependencies import ApiDependencies
from moothall.api.identity import caller
from moothall.domain.council import Briefing, BriefingRequest
from moothall.domain.ids import check_id, read_role
from moothall.errors import InvalidRequest
from moothall.pb.context.v1 import context_pb2 as pb
from moothall.pb.context.v1 import context_pb2_grpc as pb_grpc
from moothall.stories.notes import NoteChange, Update, scopes

_MAX_COUNTED_ROWS = 1000


class Context(pb_grpc.ContextServiceServicer):
    """The gRPC servicer of ContextService."""

    def __init__(self, dependencies: ApiDependencies) -> None:
        self._briefings = dependencies.context.briefings
        self._query_graph = dependencies.context.query
        self._notes = dependencies.context.notes
        self._bundles = dependencies.context.bundles

    async def GetContext(
        self, request: pb.GetContextRequest, context: Any
    ) -> pb.GetContextResponse:
        """Return the briefing of a role."""
        briefing_request = BriefingRequest(
            task_id=request.subtask_id,
            story_id=request.story_id,
            role=request.role,
            phase=request.phase,
            budget=request.token_budget,
        )
        briefing = await self._briefings.brief(briefing_request, caller())
        return pb.GetContextResponse(
            context=briefing.text,
            token_count=briefing.tokens,
            scopes=briefing.scopes,
            version=briefing.version,
            blocks=pb.Blocks(
                system=briefing.system, context=briefing.context, tools=briefing.tools
            ),
        )

    async def UpdateContext(
        self, request: pb.UpdateContextRequest, context: Any
    ) -> pb.UpdateContextResponse:
        """Record a role's notes on a story."""
        update = Update(
            story_id=request.story_id,
            role=request.role,
            changes=tuple(
                NoteChange(
                    item.operation, item.entity_type, item.entity_id, item.payload, item.reason
                )
                for item in request.changes
            ),
            task_id=request.task_id,
            at=request.timestamp,
            expected=request.expected_version if request.HasField("expected_version") else None,
        )
        updated_context = await self._notes.update(update, caller())
        return pb.UpdateContextResponse(
            version=updated_context.version,
            hash=updated_context.hash,
            warnings=updated_context.warnings,
        )

    async def RehydrateSession(
        self, request: pb.RehydrateSessionRequest, context: Any
    ) -> pb.RehydrateSessionResponse:
        """Return the briefings of several roles, from a stored bundle if there is one."""
        if request.ttl_seconds and not request.persist_bundle:
            raise InvalidRequest(
                "ttl_seconds applies only to stored bundles: set persist_bundle too, or leave "
                "ttl_seconds out"
            )
        roles = tuple(dict.fromkeys(map(read_role, request.roles)))
        if not roles:
            raise InvalidRequest("roles is empty: give roles, such as dev and qa")
        principal, story_id = caller(), check_id(request.case_id, "case_id")
        if (
            not request.persist_bundle
            and (stored := await self._bundles.find(request, principal)) is not None
        ):
            return stored
        packs: dict[str, pb.RoleContextPack] = {}
        graph_rows: list[Mapping[str, Any]] = []
        for role in roles:
            briefing_request = BriefingRequest(
                story_id=story_id,
                role=role,
                timeline=request.include_timeline,
                summaries=request.include_summaries,
                events=request.timeline_events,
            )
            packs[role] = _role_context(await self._briefings.brief(briefing_request, principal))
            graph_rows += await self._query_graph(
                "context",
                story_id=story_id,
                role=role,
                limit=_MAX_COUNTED_ROWS,
                tenant=principal.tenant,
            )
        stats = pb.SessionStats(roles=roles, **_count_rows(graph_rows))
        bundle = pb.RehydrateSessionResponse(
            case_id=story_id, generated_at_ms=self._bundles.now_ms(), packs=packs, stats=stats
        )
        if request.persist_bundle:
            await self._bundles.store(request, bundle, principal)
        return bundle

    async def ValidateScope(
        self, request: pb.ValidateScopeRequest, context: Any
    ) -> pb.ValidateScopeResponse:
        """Check scopes against those that a role may see in a phase."""
        role = read_role(request.role) if request.role.strip() else ""
        allowed_scopes = scopes().allowed_scopes(role, request.phase)
        provided = tuple(dict.fromkeys(scope.strip().lower() for scope in request.provided_scopes))
        extra = [scope[:80] for scope in provided if scope not in allowed_scopes]
        return pb.ValidateScopeResponse(
            allowed=not extra,
            missing=[scope for scope in allowed_scopes if scope not in provided],
            extra=extra,
            reason=f"not allowed for {role or 'everybody'} in "
            f"{request.phase.strip().lower() or scopes().phase}: {', '.join(extra)}"
            if extra
            else "",
        )

    async def GetGraphRelationships(
        self, request: pb.GetGraphRelationshipsRequest, context: Any
    ) -> pb.GetGraphRelationshipsResponse:
        """Return the neighbours of a node."""
        rows = await self._query_graph(
            "neighbours",
            label=request.node_type,
            id=request.node_id,
            depth=request.depth or 1,
            tenant=caller().tenant,
        )
        if not rows:
            return pb.GetGraphRelationshipsResponse(
                message=f"the graph has no {request.node_type} {request.node_id[:80]!r}"
            )
        (row,) = rows
        return pb.GetGraphRelationshipsResponse(
            node=_node(row["node"]),
            neighbors=[_node(node) for node in row["neighbours"]],
            relationships=[_relationship(item) for item in row["relationships"]],
            success=True,
        )


def _role_context(briefing: Briefing) -> pb.RoleContextPack:
    return pb.RoleContextPack(
        context=briefing.text,
        token_count=briefing.tokens,
        scopes=briefing.scopes,
        version=briefing.version,
    )


def _count_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return, for each kind of item, the largest count that one of the roles may see."""

    def largest(count: Any) -> int:
        return max((count(row) for row in rows), default=0)

    def count_impacts(row: Mapping[str, Any]) -> int:
        return len(
            {
                path
                for item in row.get("summaries", ())
                for path in (item["winner"] or {}).get("paths") or ()
            }
        )

    return {
        "decisions": largest(lambda row: len(row.get("decisions", ()))),
        "decision_edges": largest(
            lambda row: sum(len(item["about"]) for item in row.get("decisions", ()))
        ),
        "impacts": largest(count_impacts),
        "events": largest(lambda row: len(row.get("milestones", ()))),
    }


def _node(node: Mapping[str, Any]) -> pb.GraphNode:
    return pb.GraphNode(
        id=node["id"],
        type=node["label"],
        properties=json_format.ParseDict(dict(node["properties"]), struct_pb2.Struct()),
    )


def _relationship(item: Mapping[str, Any]) -> pb.GraphRelationship:
    source, target = item["from"], item["to"]
    return pb.GraphRelationship(
        type=item["type"],
        from_id=source["id"],
        from_type=source["label"],
        to_id=target["id"],
        to_type=target["label"],
    )
