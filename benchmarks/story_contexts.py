"""Measure the context of a council, which is queried from a graph of a hundred thousand nodes."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from benchmarks.microbenchmarks import Times
from moothall.config import GraphSettings, LimitSettings
from moothall.deliberation.prompts.briefing import Briefings
from moothall.domain.council import BriefingRequest
from moothall.domain.event import Event, EventType, Recorded, new_event
from moothall.domain.ids import LOCAL, digest
from moothall.graph.embedded import embedded_store
from moothall.graph.neo4j import neo4j_store
from moothall.graph.schema import LABELS
from moothall.graph.store import CypherGraph

SERVER = "MOOTHALL_TEST_NEO4J_URL"
"""The variable with the URL of a Neo4j whose data may be deleted: bolt://user:password@host:port."""
_TASKS, _SEATS = 3, 3  # tasks of a story, seats of a deliberation
_BATCH = 2000
_START = datetime(2026, 1, 1, tzinfo=UTC)
_WORDS = [
    "export",
    "import",
    "invoice",
    "month",
    "filter",
    "report",
    "login",
    "session",
    "cache",
    "table",
    "column",
    "index",
    "upload",
    "resize",
    "retry",
    "limit",
    "page",
]


def _events(stories: int) -> Iterator[Event]:
    """Yield the events of stories of one repository: created, planned, built and approved."""
    generator = random.Random(7)  # noqa: S311 - words
    for number in range(stories):
        story, tasks = f"story-{number}", [f"task-{number}-{index}" for index in range(_TASKS)]
        descriptions = {
            task: f"Let {' '.join(generator.sample(_WORDS, 5))} work as the product owner asks"
            for task in tasks
        }
        yield from _story_events(story, number, descriptions)


def _story_events(story: str, number: int, descriptions: dict[str, str]) -> Iterator[Event]:
    clock = _START + timedelta(minutes=number)

    def event(kind: EventType, subject: str, **data: Any) -> Event:
        nonlocal clock
        clock += timedelta(seconds=1)
        return new_event(kind, subject, data, ordinal=f"{story} {clock}", time=clock.isoformat())

    story_data = {
        "title": f"Story {number}",
        "brief": " ".join(descriptions.values()),
        "ac": list(descriptions.values()),
        "repository": "shared",
    }
    yield event(EventType.STORY_CREATED, story, story_id=story, **story_data, rigor_level="L1")
    for before, after in (
        ("backlog", "draft"),
        ("draft", "design"),
        ("design", "build"),
        ("build", "test"),
    ):
        yield event(
            EventType.STORY_TRANSITIONED,
            story,
            story_id=story,
            from_state=before,
            to_state=after,
            event="on",
            actor="ann",
        )
    yield event(
        EventType.STORY_COMMENTED, story, story_id=story, comment="Mind the old files.", actor="ann"
    )
    planned = [
        {"task_id": task, "role": "dev", "description": text, "dependencies": []}
        for task, text in descriptions.items()
    ]
    yield event(
        EventType.PLAN_DERIVED, story, story_id=story, plan_id=f"plan-{number}", tasks=planned
    )
    seats = [f"agent-dev-{seat:03d}" for seat in range(1, _SEATS + 1)]
    for task, text in descriptions.items():
        request_data = {
            "description": text,
            "role": "dev",
            "story_id": story,
            "repository": {"id": "shared"},
            "seats": seats,
        }
        yield event(EventType.DELIBERATION_REQUESTED, task, task_id=task, **request_data)
        results: list[dict[str, Any]] = []
        for seat in seats:
            diff = f"diff --git a/src/{task}.py b/src/{task}.py\n+{seat}\n"
            proposal = {"content": f"{text}, by {seat}", "diff": diff, "seat": seat}
            yield event(EventType.SEAT_STARTED, task, task_id=task, seat=seat, role="dev")
            for turn in range(2):
                yield event(
                    EventType.MODEL_CALLED,
                    task,
                    task_id=task,
                    seat=seat,
                    call_id=f"{task}/{seat}/propose/0.{turn}",
                    answer="x",
                )
            yield event(
                EventType.SEAT_PROPOSED,
                task,
                task_id=task,
                seat=seat,
                candidate=seat,
                proposal=proposal,
            )
            check_data = {"seat": seat, "candidate": seat, "fingerprint": digest(diff)[:16]}
            yield event(
                EventType.CHECK_FINISHED,
                task,
                task_id=task,
                **check_data,
                evidence={"check": "tests", "verdict": "passed"},
            )
            yield event(
                EventType.SEAT_REVIEWED,
                task,
                task_id=task,
                **check_data,
                review={"comment": "It does what was asked.", "score": 0.8},
            )
            results.append(
                {**proposal, "rank": len(results) + 1, "reasons": ["proven", "smaller diff"]}
            )
        outcome = {
            "status": "COMPLETED",
            "final_state": "committed",
            "winner_id": seats[0],
            "results": results,
            "proven": True,
        }
        yield event(EventType.DELIBERATION_DECIDED, task, task_id=task, **outcome)
        yield event(
            EventType.DECISION_MADE,
            story,
            story_id=story,
            task_id=task,
            approver="ann",
            decision="approved",
            comment="Good.",
        )


@asynccontextmanager
async def _open_graphs(folder: Path, url: str) -> AsyncIterator[dict[str, CypherGraph]]:
    async with embedded_store(folder / "contexts.kgl", query_seconds=60) as store:
        graphs = {"embedded": CypherGraph(store)}
        if not url:
            yield graphs
            return
        parts = urlsplit(url)
        settings = GraphSettings(
            url=f"{parts.scheme}://{parts.username or ''}@{parts.hostname}:{parts.port}",
            password=SecretStr(unquote(parts.password or "")),
        )
        async with neo4j_store(settings) as server:
            await server.empty()
            yield graphs | {"Neo4j": CypherGraph(server)}


async def measure_contexts(
    folder: Path, stories: int, count: int, server: str = ""
) -> dict[str, dict[str, float]]:
    """Return, for each store, the milliseconds of `count` contexts after a warm-up, and the number
    of nodes in the graph. `server` is the URL of a Neo4j, as in `SERVER`; empty if there is none.
    """
    figures = {}
    async with _open_graphs(folder, server) as graphs:
        for name, graph in graphs.items():
            batch: list[Recorded] = []
            for seq, event in enumerate(_events(stories), 1):
                batch.append(Recorded(seq, event))
                if len(batch) == _BATCH:
                    await graph.project(batch)
                    batch.clear()
            await graph.project(batch)
            counts = await graph.counts()
            times = Times(
                await _measure_briefings(Briefings(graph.ask, LimitSettings()), stories, count)
            )
            nodes = sum(counts[label] for label in LABELS)
            figures[name] = {
                "nodes": nodes,
                "p50": times.p50,
                "p95": times.p95,
                "p99": times.p99,
                "count": count,
            }
    return figures


async def _measure_briefings(briefings: Briefings, stories: int, count: int) -> tuple[float, ...]:
    generator, seconds = random.Random(3), []  # noqa: S311 - which story
    for _ in range(count + 10):
        request = BriefingRequest(
            task_id="task-new",
            story_id=f"story-{generator.randrange(stories)}",
            role="dev",
            phase="build",
            description=f"Let {' '.join(generator.sample(_WORDS, 5))} work",
            repository="shared",
        )
        start = time.perf_counter()
        context = await briefings.brief_seats(request, LOCAL, LimitSettings().context_tokens)
        seconds.append(time.perf_counter() - start)
        if "elsewhere in the repository" not in context or "its tasks" not in context:
            raise AssertionError(f"the context is incomplete: {context[:500]}")
    return tuple(seconds[10:])
