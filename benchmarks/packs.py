"""How long a pack takes: what the seats of a council are told of their story, from a graph of a
hundred thousand nodes.
"""

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

from benchmarks.micro import Times
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
"""Names a Neo4j that may be emptied: bolt://user:password@host:port."""
_TASKS, _SEATS = 3, 3  # of a story, of a deliberation
_BATCH = 2000
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
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
    """Stories of one repository, told, planned, built and approved."""
    dice = random.Random(7)  # noqa: S311 - words
    for number in range(stories):
        story, tasks = f"story-{number}", [f"task-{number}-{place}" for place in range(_TASKS)]
        about = {
            task: f"Let {' '.join(dice.sample(_WORDS, 5))} work as the product owner asks"
            for task in tasks
        }
        yield from _of_story(story, number, about)


def _of_story(story: str, number: int, about: dict[str, str]) -> Iterator[Event]:
    when = _BEGAN + timedelta(minutes=number)

    def event(kind: EventType, subject: str, **data: Any) -> Event:
        nonlocal when
        when += timedelta(seconds=1)
        return new_event(kind, subject, data, ordinal=f"{story} {when}", time=when.isoformat())

    received = {
        "title": f"Story {number}",
        "brief": " ".join(about.values()),
        "ac": list(about.values()),
        "repository": "shared",
    }
    yield event(EventType.STORY_CREATED, story, story_id=story, **received, rigor_level="L1")
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
        for task, text in about.items()
    ]
    yield event(
        EventType.PLAN_DERIVED, story, story_id=story, plan_id=f"plan-{number}", tasks=planned
    )
    seats = [f"agent-dev-{seat:03d}" for seat in range(1, _SEATS + 1)]
    for task, text in about.items():
        requested = {
            "description": text,
            "role": "dev",
            "story_id": story,
            "repository": {"id": "shared"},
            "seats": seats,
        }
        yield event(EventType.DELIBERATION_REQUESTED, task, task_id=task, **requested)
        results: list[dict[str, Any]] = []
        for seat in seats:
            diff = f"diff --git a/src/{task}.py b/src/{task}.py\n+{seat}\n"
            output_text = {"content": f"{text}, by {seat}", "diff": diff, "seat": seat}
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
                proposal=output_text,
            )
            of = {"seat": seat, "candidate": seat, "fingerprint": digest(diff)[:16]}
            yield event(
                EventType.CHECK_FINISHED,
                task,
                task_id=task,
                **of,
                evidence={"check": "tests", "verdict": "passed"},
            )
            yield event(
                EventType.SEAT_REVIEWED,
                task,
                task_id=task,
                **of,
                review={"comment": "It does what was asked.", "score": 0.8},
            )
            results.append(
                {**output_text, "rank": len(results) + 1, "reasons": ["proven", "smaller diff"]}
            )
        end = {
            "status": "COMPLETED",
            "final_state": "committed",
            "winner_id": seats[0],
            "results": results,
            "proven": True,
        }
        yield event(EventType.DELIBERATION_DECIDED, task, task_id=task, **end)
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
async def _graphs(folder: Path, named: str) -> AsyncIterator[dict[str, CypherGraph]]:
    async with embedded_store(folder / "packs.kgl", query_seconds=60) as file:
        graphs = {"embedded": CypherGraph(file)}
        if not named:
            yield graphs
            return
        at = urlsplit(named)
        settings = GraphSettings(
            url=f"{at.scheme}://{at.username or ''}@{at.hostname}:{at.port}",
            password=SecretStr(unquote(at.password or "")),
        )
        async with neo4j_store(settings) as server:
            await server.empty()
            yield graphs | {"Neo4j": CypherGraph(server)}


async def packs(
    folder: Path, stories: int, count: int, server: str = ""
) -> dict[str, dict[str, float]]:
    """Milliseconds of a pack for each store, of `count` of them after some that are not counted;
    and how many nodes it lies among. `server` as `SERVER` names it.
    """
    found = {}
    async with _graphs(folder, server) as graphs:
        for name, graph in graphs.items():
            batch: list[Recorded] = []
            for seq, event in enumerate(_events(stories), 1):
                batch.append(Recorded(seq, event))
                if len(batch) == _BATCH:
                    await graph.project(batch)
                    batch.clear()
            await graph.project(batch)
            counts = await graph.counts()
            times = Times(await _timed(Briefings(graph.ask, LimitSettings()), stories, count))
            nodes = sum(counts[label] for label in LABELS)
            found[name] = {
                "nodes": nodes,
                "p50": times.p50,
                "p95": times.p95,
                "p99": times.p99,
                "count": count,
            }
    return found


async def _timed(briefings: Briefings, stories: int, count: int) -> tuple[float, ...]:
    dice, seconds = random.Random(3), []  # noqa: S311 - which story
    for _ in range(count + 10):
        requested = BriefingRequest(
            task_id="task-new",
            story_id=f"story-{dice.randrange(stories)}",
            role="dev",
            phase="build",
            description=f"Let {' '.join(dice.sample(_WORDS, 5))} work",
            repository="shared",
        )
        began = time.perf_counter()
        received = await briefings.brief_seats(requested, LOCAL, LimitSettings().context_tokens)
        seconds.append(time.perf_counter() - began)
        if "elsewhere in the repository" not in received or "its tasks" not in received:
            raise AssertionError(f"that is no pack: {received[:500]}")
    return tuple(seconds[10:])
