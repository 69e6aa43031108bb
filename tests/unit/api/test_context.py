"""ContextService over gRPC, on a real embedded graph."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format

from moothall.api.dependencies import BUCKET, Bundles
from moothall.config import LimitSettings
from moothall.deliberation.prompts.briefing import Briefings
from moothall.domain.council import BriefingRequest
from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL
from moothall.graph.embedded import embedded_store
from moothall.graph.store import CypherGraph
from moothall.pb.context.v1 import context_pb2 as pb
from moothall.pb.context.v1 import context_pb2_grpc as pb_grpc
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as orchestrator
from moothall.stories.notes import scopes
from moothall.testing.bus import MemoryBus
from support.callers import OTHER, TOKEN, Client, api_dependencies, serving, with_parts
from support.deliberation_service import MemoryDeliberations
from support.event_log import EventLog, as_recorded
from support.working import DRAFT

CALL_OPTIONS: Any = {"metadata": [("authorization", f"Bearer {TOKEN}")], "timeout": 20}


@pytest_asyncio.fixture
async def graph(tmp_path: Path) -> AsyncIterator[CypherGraph]:
    async with embedded_store(tmp_path / "context.kgl", query_seconds=30) as store:
        graph = CypherGraph(store)
        await graph.project(as_recorded(EventLog("task-a").completed().events))
        await graph.project(
            as_recorded(EventLog("task-b", "story-2", days=1).completed().events, 100)
        )
        yield graph


@pytest_asyncio.fixture
async def client(graph: CypherGraph) -> AsyncIterator[Any]:
    dependencies = with_parts(
        api_dependencies(MemoryDeliberations()),
        briefings=Briefings(graph.ask, LimitSettings()),
        query=graph.ask,
    )
    async with serving(MemoryDeliberations(), dependencies) as app:
        yield app


async def test_a_pack_is_the_context_that_callers_and_seats_get(
    client: Any, graph: CypherGraph
) -> None:
    stub: Any = pb_grpc.ContextServiceStub(client.channel)
    context = await stub.GetContext(
        pb.GetContextRequest(story_id="story-2", role="DEV", phase="build"), **CALL_OPTIONS
    )
    assert list(context.scopes) == [
        scope for scope in scopes().allowed_scopes("dev", "build") if scope != "timeline"
    ]
    assert "- task-b (dev), COMPLETED, committed, proven: add it" in context.blocks.context
    task_context_request = orchestrator.GetTaskContextRequest(
        story_id="story-2", role="DEV", phase="build"
    )
    repeated = await Client(client.channel).GetTaskContext(task_context_request)
    assert (repeated.context_text, repeated.token_count, repeated.version_hash) == (
        context.context,
        context.token_count,
        context.version,
    )
    seats = await Briefings(graph.ask, LimitSettings()).brief_seats(
        BriefingRequest(story_id="story-2", role="dev", phase="build"), LOCAL, 2000
    )
    assert seats in context.blocks.context
    limited = await stub.GetContext(
        pb.GetContextRequest(story_id="story-2", role="DEV", token_budget=60), **CALL_OPTIONS
    )
    assert limited.token_count <= 60
    options_of_other = {**CALL_OPTIONS, "metadata": [("authorization", f"Bearer {OTHER}")]}
    assert (
        await stub.GetContext(
            pb.GetContextRequest(story_id="story-2", role="DEV"), **options_of_other
        )
    ).blocks.context == ""
    with pytest.raises(grpc.aio.AioRpcError, match="token_budget is 99999; allowed are 0"):
        await stub.GetContext(
            pb.GetContextRequest(story_id="story-2", token_budget=99_999), **CALL_OPTIONS
        )


async def test_contexts_of_several_roles_include_timeline_and_summaries(client: Any) -> None:
    stub: Any = pb_grpc.ContextServiceStub(client.channel)
    rehydrate_request = pb.RehydrateSessionRequest(
        case_id="story-2", roles=["DEV", "qa", "dev"], include_timeline=True, include_summaries=True
    )
    session = await stub.RehydrateSession(rehydrate_request, **CALL_OPTIONS)
    assert set(session.packs) == {"dev", "qa"}
    assert "deliberation.decided task-b" in session.packs["qa"].context
    stats = session.stats
    assert (
        stats.decisions,
        stats.decision_edges,
        stats.impacts,
        stats.events,
        list(stats.roles),
    ) == (1, 1, 1, 1, ["dev", "qa"])
    assert session.generated_at_ms > 0
    for invalid_request, message in (
        (pb.RehydrateSessionRequest(case_id="story-2"), "roles is empty"),
        (
            pb.RehydrateSessionRequest(case_id="story-2", roles=["dev"], ttl_seconds=60),
            "set persist_bundle too",
        ),
        (
            pb.RehydrateSessionRequest(
                case_id="story-2", roles=["dev"], persist_bundle=True, ttl_seconds=604_801
            ),
            "to 604800",
        ),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=message):
            await stub.RehydrateSession(invalid_request, **CALL_OPTIONS)


async def test_a_bundle_stays_unchanged_and_private_to_its_caller(graph: CypherGraph) -> None:
    bus, now = MemoryBus(), [1_000.0]
    dependencies = with_parts(
        api_dependencies(MemoryDeliberations(), bus),
        briefings=Briefings(graph.ask, LimitSettings()),
        query=graph.ask,
        bundles=Bundles(bus.bucket(BUCKET), lambda: now[0]),
    )
    rehydrate_request = pb.RehydrateSessionRequest(case_id="story-2", roles=["dev", "qa"])
    async with serving(MemoryDeliberations(), dependencies) as app:
        stub: Any = pb_grpc.ContextServiceStub(app.channel)
        bundle = await stub.RehydrateSession(
            pb.RehydrateSessionRequest(
                case_id="story-2", roles=["QA", "dev"], persist_bundle=True, ttl_seconds=60
            ),
            **CALL_OPTIONS,
        )
        assert (bundle.generated_at_ms, bundle.expires_at_ms) == (1_000_000, 1_060_000)
        later_log = EventLog("task-c", "story-2", days=2)
        await graph.project(
            as_recorded(
                [later_log.of_story(EventType.STORY_COMMENTED, comment="much later", actor="ann")],
                200,
            )
        )
        now[0] += 59
    async with serving(
        MemoryDeliberations(), dependencies
    ) as second_server:  # another server on the same bus
        stub = pb_grpc.ContextServiceStub(second_server.channel)
        assert await stub.RehydrateSession(rehydrate_request, **CALL_OPTIONS) == bundle
        options_of_other = {**CALL_OPTIONS, "metadata": [("authorization", f"Bearer {OTHER}")]}
        assert (
            await stub.RehydrateSession(rehydrate_request, **options_of_other)
        ).expires_at_ms == 0
        now[0] += 2
        fresh = await stub.RehydrateSession(rehydrate_request, **CALL_OPTIONS)
        assert (fresh.expires_at_ms, "much later" in fresh.packs["dev"].context) == (0, True)


async def test_notes_reach_those_who_may_read_them(graph: CypherGraph) -> None:
    bus = MemoryBus()
    dependencies = with_parts(
        api_dependencies(MemoryDeliberations(), bus),
        briefings=Briefings(graph.ask, LimitSettings()),
        query=graph.ask,
    )
    story_id = (await dependencies.stories.board.create(DRAFT, LOCAL, key="1")).story.id
    text = json.dumps({"text": f"hide ghp_{'a' * 36}\n--- end ---"})
    changes = [
        pb.ContextChange(
            operation="CREATE",
            entity_type="DECISION",
            entity_id="d-1",
            payload=text,
            reason="ann decided it",
        ),
        pb.ContextChange(
            operation="CREATE",
            entity_type="comment",
            entity_id="c-1",
            payload='{"text": "for some"}',
        ),
    ]
    update_request = pb.UpdateContextRequest(
        story_id=story_id, task_id="task-a", role="DEV", changes=changes, expected_version=0
    )
    async with serving(MemoryDeliberations(), dependencies) as app:
        stub: Any = pb_grpc.ContextServiceStub(app.channel)

        async def pack(role: str, **fields: Any) -> Any:
            await graph.project([item async for item in bus.replay()])
            return await stub.GetContext(
                pb.GetContextRequest(story_id=story_id, role=role, **fields), **CALL_OPTIONS
            )

        context_before = await pack("dev")
        noted = await stub.UpdateContext(update_request, **CALL_OPTIONS)
        assert (noted.version, list(noted.warnings)) == (
            1,
            ["decision d-1: a secret was removed"],
        )
        with pytest.raises(grpc.aio.AioRpcError, match="at version 1, and you expected 0") as late:
            await stub.UpdateContext(update_request, **CALL_OPTIONS)
        assert late.value.code() is grpc.StatusCode.ABORTED
        context_after = await pack("dev")
        assert context_after.version != context_before.version
        line = (
            'noted by local for dev, on task-a: decision d-1: {"text": "hide [redacted]\\n--- end '
            '---"} | because ann decided it'
        )
        assert f"decisions, the last first:\n- {line}\n" in context_after.context
        assert "comment c-1" in context_after.context
        assert "comment c-1" not in (await pack("data")).context, (
            "a role without access to comments gets no note on one"
        )
        deletion = pb.UpdateContextRequest(
            story_id=story_id,
            role="qa",
            changes=[pb.ContextChange(operation="delete", entity_type="decision", entity_id="d-1")],
            timestamp="2026-01-31T12:00:00Z",
        )
        assert (await stub.UpdateContext(deletion, **CALL_OPTIONS)).version == 2
        assert (await stub.UpdateContext(deletion, **CALL_OPTIONS)).version == 2
        assert "d-1" not in (await pack("dev")).context
        options_of_other = {**CALL_OPTIONS, "metadata": [("authorization", f"Bearer {OTHER}")]}
        for request, call_options, code in (
            (deletion, options_of_other, grpc.StatusCode.NOT_FOUND),
            (
                pb.UpdateContextRequest(story_id=story_id, role="data", changes=changes[1:]),
                CALL_OPTIONS,
                grpc.StatusCode.PERMISSION_DENIED,
            ),
            (
                pb.UpdateContextRequest(story_id=story_id, role="dev"),
                CALL_OPTIONS,
                grpc.StatusCode.INVALID_ARGUMENT,
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.UpdateContext(request, **call_options)
            assert refused.value.code() is code


async def test_scopes_are_validated_against_the_tables(client: Any) -> None:
    stub: Any = pb_grpc.ContextServiceStub(client.channel)
    allowed = scopes().allowed_scopes("data", "build")
    fine = await stub.ValidateScope(
        pb.ValidateScopeRequest(role="DATA", phase="build", provided_scopes=["Story"]),
        **CALL_OPTIONS,
    )
    assert (fine.allowed, list(fine.missing), fine.reason) == (
        True,
        [scope for scope in allowed if scope != "story"],
        "",
    )
    wide = await stub.ValidateScope(
        pb.ValidateScopeRequest(
            role="data", phase="build", provided_scopes=["comments", "moon", *allowed]
        ),
        **CALL_OPTIONS,
    )
    assert (wide.allowed, list(wide.missing), list(wide.extra)) == (False, [], ["comments", "moon"])
    assert wide.reason == "not allowed for data in build: comments, moon"


async def test_graph_relationships_are_returned_by_node(client: Any) -> None:
    stub: Any = pb_grpc.ContextServiceStub(client.channel)
    relationships = await stub.GetGraphRelationships(
        pb.GetGraphRelationshipsRequest(node_id="task-b", node_type="Task"), **CALL_OPTIONS
    )
    assert relationships.success
    assert json_format.MessageToDict(relationships.node.properties)["description"] == "add it"
    assert ("Story", "story-2") in {(node.type, node.id) for node in relationships.neighbors}
    assert ("HAS_TASK", "story-2", "task-b") in {
        (item.type, item.from_id, item.to_id) for item in relationships.relationships
    }
    none = await stub.GetGraphRelationships(
        pb.GetGraphRelationshipsRequest(node_id="moon", node_type="Task"), **CALL_OPTIONS
    )
    assert (none.success, none.message) == (False, "the graph has no Task 'moon'")
    with pytest.raises(grpc.aio.AioRpcError, match="the labels are Story"):
        await stub.GetGraphRelationships(
            pb.GetGraphRelationshipsRequest(node_id="x", node_type="Moon"), **CALL_OPTIONS
        )
