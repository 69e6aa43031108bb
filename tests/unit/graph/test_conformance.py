"""The conformance suite of stores, for the embedded store and a real Neo4j."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from moothall.domain.event import EventType
from moothall.domain.ids import ROLES
from moothall.errors import GraphUnavailable, InvalidRequest
from moothall.graph.schema import LABELS, RELATIONS, Statement
from moothall.graph.store import CypherGraph, Store
from moothall.stories.notes import scopes
from support.event_log import BASE, PATH, SEATS, EventLog, as_recorded, delivered_sha, proposal_of

Lines = list[tuple[str, ...]]


async def lines(graph: CypherGraph) -> Lines:
    return sorted([line async for line in graph.dump()])


async def test_a_full_log_creates_every_label_and_relation(graph: CypherGraph) -> None:
    await graph.project(as_recorded(EventLog().completed().events))
    counts = await graph.counts()
    assert {name for name in LABELS if not counts[name]} == set()
    assert {relation.type for relation in RELATIONS if not counts[relation.type]} == set()
    assert counts["Proposal"] == counts["Seat"] == 2
    assert counts["Evidence"] == 5
    assert counts["ModelCall"] == 3


async def test_the_position_is_the_last_sequence_number_and_never_goes_back(
    graph: CypherGraph,
) -> None:
    assert await graph.position() == 0
    records = as_recorded(EventLog().completed().events)
    await graph.project(records)
    assert await graph.position() == len(records)
    await graph.project(records[:3])
    assert await graph.position() == len(records)
    await graph.project([])
    assert await graph.position() == len(records)


async def test_batches_repeats_and_order_do_not_change_the_graph(graph: CypherGraph) -> None:
    records = as_recorded(EventLog().completed().events)
    await graph.project(records)
    first_dump = await lines(graph)
    await graph.project(records)
    assert await lines(graph) == first_dump
    await graph.clear()
    shuffled = records * 2
    random.Random(7).shuffle(shuffled)  # noqa: S311 - an order, no secret
    for start in range(0, len(shuffled), 5):
        await graph.project(shuffled[start : start + 5])
    assert await lines(graph) == first_dump


async def test_a_cleared_graph_is_empty_and_can_be_written_again(graph: CypherGraph) -> None:
    records = as_recorded(EventLog().completed().events)
    await graph.project(records)
    lines_before = await lines(graph)
    await graph.clear()
    assert await lines(graph) == []
    assert await graph.position() == 0
    await graph.project(records)
    assert await lines(graph) == lines_before


async def test_a_uid_must_be_unique(store: Store) -> None:
    make: Statement = ("CREATE (n:Story {uid: 'Story/local/one', tenant: 'local', key: 'one'})", {})
    await store.write([make])
    with pytest.raises(GraphUnavailable):
        await store.write([make])


async def test_transactions_are_atomic(store: Store) -> None:
    statement: Statement = ("CREATE (n:Story {uid: 'Story/local/two'})", {})
    with pytest.raises(GraphUnavailable):
        await store.write([statement, ("THIS IS NO CYPHER", {})])
    assert await store.read("MATCH (n:Story) RETURN count(n) AS number", {}) == [{"number": 0}]


async def test_provenance_contains_everything_behind_a_commit(graph: CypherGraph) -> None:
    await graph.project(as_recorded(EventLog().completed().events))
    (row,) = await graph.ask("provenance", tenant="local", commit_sha=delivered_sha(), path=PATH)
    assert row["commit"] == delivered_sha()
    assert row["repository"] == {"id": "sample", "url": "/r"}
    assert row["story"] == {
        "story_id": "story-1",
        "headline": "Greeting",
        "brief": "Greet everybody.",
        "state": "ready",
    }
    assert row["task"] == {"task_id": "task-a", "description": "add it", "role": "dev"}
    assert row["deliberation"]["branch"] == "moothall/task-a"
    assert row["deliberation"]["base_sha"] == BASE
    assert row["deliberation"]["choice"] == "auto: a + b"
    assert row["deliberation"]["guides"] == [f"AGENTS.md sha256:{'a' * 64}"]
    assert row["seat"]["seat"] == SEATS[0]
    assert row["proposal"]["candidate"] == SEATS[0]
    assert row["proposal"]["commit_sha"] == proposal_of(SEATS[0]).commit_sha
    assert (row["proposal"]["rank"], row["proposal"]["won"], row["proposal"]["proven"]) == (
        1,
        True,
        True,
    )
    assert [(entry["reviewer"], entry["score"]) for entry in row["reviews"]] == [(SEATS[1], 0.8)]
    assert [(entry["check"], entry["verdict"]) for entry in row["evidence"]] == [
        ("tests", "passed"),
        ("applies", "passed"),
        ("cross", "passed"),
    ]
    (call,) = row["model_calls"]
    assert (call["model"], call["prompt_tokens"], call["completion_tokens"]) == ("small", 20, 7)
    assert len(call["prompt_sha256"]) == 64
    assert call["answer"].endswith("\N{SNOWMAN}")
    assert [entry["tool"] for entry in row["tool_calls"]] == ["files.append"]
    assert [(entry["approver"], entry["decision"]) for entry in row["decisions"]] == [
        ("ann", "approved")
    ]
    json.dumps(row)


async def test_provenance_without_an_answer_is_empty(graph: CypherGraph) -> None:
    await graph.project(as_recorded(EventLog().completed().events))
    assert await graph.ask("provenance", tenant="local", commit_sha="0" * 40) == []
    assert (
        await graph.ask("provenance", tenant="local", commit_sha=delivered_sha(), path="other.py")
        == []
    )


async def test_the_answer_contains_the_complete_deliberation(graph: CypherGraph) -> None:
    await graph.project(as_recorded(EventLog().completed().events))
    (row,) = await graph.ask("deliberation", tenant="local", task_id="task-a")
    assert row["deliberation"]["final_state"] == "committed"
    assert row["deliberation"]["requirements"] == ["greets"]
    assert [entry["seat"] for entry in row["seats"]] == list(SEATS)
    assert [entry["candidate"] for entry in row["proposals"]] == list(SEATS)
    assert [len(entry["evidence"]) for entry in row["proposals"]] == [3, 2]
    assert [len(entry["reviews"]) for entry in row["proposals"]] == [1, 0]
    assert [entry["phase"] for entry in row["model_calls"]] == ["plan", "propose", "propose"]
    assert len(row["tool_calls"]) == 2
    assert len(row["decisions"]) == 1
    assert await graph.ask("deliberation", tenant="local", task_id="nothing") == []


async def test_a_started_deliberation_is_in_the_answer(graph: CypherGraph) -> None:
    await graph.project(as_recorded(EventLog().deliberated().events[:1]))
    (row,) = await graph.ask("deliberation", tenant="local", task_id="task-a")
    assert row["deliberation"]["description"] == "add it"
    assert row["proposals"] == row["model_calls"] == row["tool_calls"] == row["decisions"] == []


async def test_task_context_contains_earlier_deliberations_in_the_repository(
    graph: CypherGraph,
) -> None:
    await graph.project(as_recorded(EventLog("task-a").completed().events))
    await graph.project(as_recorded(EventLog("task-b", "story-2", days=1).completed().events, 100))
    await graph.project(
        as_recorded(EventLog("task-c", "story-3", days=2).deliberated().events, 200)
    )
    rows = await graph.ask("task_context", tenant="local", task_id="task-c")
    assert [row["task_id"] for row in rows] == ["task-b", "task-a"]
    assert rows[0]["winner"]["candidate"] == SEATS[0]
    assert rows[0]["winner"]["paths"] == [PATH]
    assert [entry["check"] for entry in rows[0]["checks"]] == ["tests", "applies", "cross"]
    assert [entry["reviewer"] for entry in rows[0]["reviews"]] == [SEATS[1]]
    assert [entry["decision"] for entry in rows[0]["decisions"]] == ["approved"]
    latest = await graph.ask("task_context", tenant="local", repository="sample", limit=1)
    assert [row["task_id"] for row in latest] == ["task-b"]
    of_story = await graph.ask("task_context", tenant="local", story_id="story-1")
    assert [row["task_id"] for row in of_story] == ["task-a"]
    assert await graph.ask("task_context", tenant="local", repository="sample", role="qa") == []
    assert await graph.ask("task_context", tenant="local", task_id="never heard of") == []


async def test_a_timeline_is_in_order_and_ends_with_the_latest(graph: CypherGraph) -> None:
    await graph.project(as_recorded(EventLog().completed().events))
    rows = await graph.ask("timeline", tenant="local", story_id="story-1")
    kinds = [row["kind"] for row in rows]
    assert kinds == [
        "story.changed",
        "story.transitioned",
        "story.commented",
        "deliberation.requested",
        "seat.proposed",
        "seat.proposed",
        "seat.reviewed",
        "deliberation.decided",
        "decision.made",
    ]
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    of_task = await graph.ask("timeline", tenant="local", task_id="task-a", limit=2)
    assert [row["kind"] for row in of_task] == ["seat.reviewed", "deliberation.decided"]


async def test_a_story_contains_its_tasks(graph: CypherGraph) -> None:
    await graph.project(as_recorded(EventLog().completed().events))
    (row,) = await graph.ask("story", tenant="local", story_id="story-1")
    assert (row["story"]["headline"], row["story"]["brief"], row["story"]["state"]) == (
        "Greeting",
        "Greet everybody.",
        "ready",
    )
    assert row["story"]["criteria"] == ["greets the world"]
    assert [task["task_id"] for task in row["tasks"]] == ["task-a", "task-a-check"]
    assert [run["final_state"] for run in row["tasks"][0]["deliberations"]] == ["committed"]
    assert [comment["comment"] for comment in row["comments"]] == ["soon, please"]
    assert [decision["approver"] for decision in row["decisions"]] == ["ann"]


async def test_neighbours_are_limited_by_depth(graph: CypherGraph) -> None:
    await graph.project(as_recorded(EventLog().completed().events))
    (neighbours_row,) = await graph.ask("neighbours", tenant="local", label="Task", id="task-a")
    assert {(node["label"], node["id"]) for node in neighbours_row["neighbours"]} == {
        ("Story", "story-1"),
        ("Plan", "plan-story-1"),
        ("Task", "task-a-check"),
        ("Deliberation", "task-a"),
    }
    assert {
        "type": "DELIBERATED_IN",
        "from": {"label": "Task", "id": "task-a"},
        "to": {"label": "Deliberation", "id": "task-a"},
    } in (neighbours_row["relationships"])
    assert neighbours_row["node"]["properties"]["description"] == "add it"
    assert "title" not in neighbours_row["node"]["properties"]
    (distant_row,) = await graph.ask(
        "neighbours", tenant="local", label="Task", id="task-a", depth=2
    )
    assert len(distant_row["neighbours"]) > len(neighbours_row["neighbours"])
    (limited,) = await graph.ask("neighbours", tenant="local", label="Task", id="task-a", limit=2)
    assert len(limited["neighbours"]) == 2
    assert await graph.ask("neighbours", tenant="local", label="Task", id="nothing") == []


async def test_tenants_do_not_see_each_others_data(graph: CypherGraph) -> None:
    """The same ids, the same commit, the same repository: two servers."""
    await graph.project(as_recorded(EventLog(tenant="one").completed().events))
    await graph.project(as_recorded(EventLog(tenant="two", days=1).received().events, 100))
    questions = {
        "deliberation": {"task_id": "task-a"},
        "provenance": {"commit_sha": delivered_sha()},
        "task_context": {"repository": "sample"},
        "timeline": {"task_id": "task-a"},
    }
    for question, parameters in questions.items():
        assert await graph.ask(question, tenant="one", **parameters)
        assert await graph.ask(question, tenant="two", **parameters) == []
        assert await graph.ask(question, tenant="one/Story", **parameters) == []
    (row,) = await graph.ask("story", tenant="two", story_id="story-1")
    assert row["decisions"] == []
    (neighbourhood,) = await graph.ask(
        "neighbours", tenant="two", label="Story", id="story-1", depth=3
    )
    assert {node["properties"]["tenant"] for node in neighbourhood["neighbours"]} == {"two"}


@pytest.mark.parametrize(
    "text",
    [
        "\N{SNOWMAN} 雪 \N{PILE OF POO}",
        "a\0b",
        "\ud800 alone",
        "'; MATCH (n) DETACH DELETE n //",
        "{uid: $x}",
        "x" * 100_000,
        "",
    ],
    ids=["unicode", "nul", "surrogate", "injection", "braces", "huge", "empty"],
)
async def test_any_text_is_stored_up_to_its_limit(graph: CypherGraph, text: str) -> None:
    event_log = EventLog().received()
    event_log.of_story(EventType.STORY_COMMENTED, comment=text, actor=text)
    event_log.of_story(EventType.STORY_CHANGED, title=text, ac=[text] * 3)
    await graph.project(as_recorded(event_log.events))
    (row,) = await graph.ask("story", tenant="local", story_id="story-1")
    assert len(row["comments"]) == 2
    stored = row["comments"][-1]["comment"]
    assert len(stored) == min(len(text), 2000)
    assert row["story"]["headline"] == (stored or "Greeting")  # an empty field says nothing
    assert row["story"]["criteria"] == ([stored] * 3 if stored else ["greets the world"])
    assert stored[:1] == text[:1] or text[:1] == "\ud800"


async def test_hostile_ids_identify_their_node(graph: CypherGraph) -> None:
    story_id = "x'\"\\/%\N{SNOWMAN}" * 100
    event_log = EventLog(story_id=story_id).received()
    await graph.project(as_recorded(event_log.events))
    (row,) = await graph.ask("story", tenant="local", story_id=story_id)
    assert row["story"]["headline"] == "Greeting"


async def test_errors_about_questions_name_the_valid_values(graph: CypherGraph) -> None:
    questions: list[tuple[str, dict[str, Any], str]] = [
        ("provenence", {}, "did you mean provenance"),
        ("provenance", {}, "needs commit_sha"),
        ("provenance", {"commit_sha": "abc"}, "40 hexadecimal"),
        ("deliberation", {"task_id": "t", "cypher": "MATCH (n)"}, "has no parameter cypher"),
        ("deliberation", {"task_id": 7}, "must be a string, not int"),
        ("task_context", {"limit": "many"}, "not an integer"),
        ("task_context", {"limit": 0}, "allowed are 1 to 1000"),
        ("timeline", {}, "task_id and story_id are missing"),
        ("neighbours", {"label": "Nothing", "id": "x"}, "the labels are Story"),
        ("neighbours", {"label": "Story", "id": "x", "depth": 9}, "allowed are 1 to 3"),
    ]
    for question, parameters, message in questions:
        with pytest.raises(InvalidRequest, match=message):
            await graph.ask(question, tenant="local", **parameters)
    with pytest.raises(InvalidRequest, match="needs tenant"):
        await graph.ask("deliberation", task_id="task-a")


async def test_a_context_contains_the_story_and_its_results(graph: CypherGraph) -> None:
    await graph.project(as_recorded(EventLog("task-a").completed().events))
    await graph.project(as_recorded(EventLog("task-b", "story-2", days=1).completed().events, 100))
    (row,) = await graph.ask("context", tenant="local", story_id="story-2", role="dev")
    assert row["story"] == {
        "story_id": "story-2",
        "headline": "Greeting",
        "state": "ready",
        "rigor": "L1",
    }
    assert row["brief"] == {"brief": "Greet everybody.", "criteria": ["greets the world"]}
    assert [(item["approver"], item["about"]) for item in row["decisions"]] == [("ann", ["task-b"])]
    assert [item["comment"] for item in row["comments"]] == ["soon, please"]
    (summary,) = row["summaries"]
    assert (summary["task_id"], summary["winner"]["paths"], summary["reviews"]) == (
        "task-b",
        [PATH],
        ["reads well"],
    )
    assert [item["plan_id"] for item in row["plan"]] == ["plan-story-2"]
    assert [(item["task_id"], item["after"], item["ends"]) for item in row["tasks"]] == [
        ("task-b", [], ["committed"]),
        ("task-b-check", ["task-b"], []),
    ]
    assert (row["repository"], row["of_story"]) == ("sample", "story-2")
    similar_tasks = await graph.ask(
        "similar", tenant="local", repository="sample", story_id="story-2", role="dev"
    )
    assert [(item["task_id"], item["description"], item["paths"]) for item in similar_tasks] == [
        ("task-a", "add it", [PATH])
    ]
    all_similar = await graph.ask("similar", tenant="local", repository="sample", role="dev")
    assert [item["task_id"] for item in all_similar] == ["task-b", "task-a"]
    assert (
        await graph.ask(
            "similar", tenant="local", repository="sample", role="dev", task_id="task-b", limit=1
        )
        == all_similar[1:]
    )
    assert [(item["from_state"], item["to_state"]) for item in row["milestones"]] == [
        ("draft", "ready")
    ]
    (of_task,) = await graph.ask("context", tenant="local", task_id="task-b", role="dev")
    assert of_task["story"] == row["story"]
    assert (of_task["summaries"], of_task["about"]) == ([], "add it"), (
        "the deliberation itself is excluded"
    )
    (unknown,) = await graph.ask("context", tenant="local", story_id="nothing")
    assert not any(value for value in unknown.values())


async def test_a_context_contains_an_externally_planned_story(graph: CypherGraph) -> None:
    moved = {"from_state": "draft", "to_state": "planning", "event": "plan", "actor": "po"}
    fields = {
        "title": "Greeting",
        "brief": "Greet everybody.",
        "ac": ["greets the world", " "],
        "repository": "sample",
    }
    event_log = EventLog(story_id="story-9")
    event_log.of_story(EventType.STORY_TRANSITIONED, **moved, **fields)
    event_log.of_story(EventType.STORY_CHANGED, brief="Greet everybody, politely.")
    event_log.of_story(
        EventType.STORY_TRANSITIONED,
        from_state="planning",
        to_state="ready",
        event="go",
        actor="po",
    )
    await graph.project(as_recorded(event_log.events))
    (row,) = await graph.ask("context", tenant="local", story_id="story-9", role="dev")
    assert row["story"] == {
        "story_id": "story-9",
        "headline": "Greeting",
        "state": "ready",
        "rigor": None,
    }
    assert row["brief"] == {"brief": "Greet everybody, politely.", "criteria": ["greets the world"]}
    assert row["repository"] == "sample"


async def test_a_task_without_a_story_has_its_repository(graph: CypherGraph) -> None:
    await graph.project(as_recorded(EventLog("task-a").completed().events))
    await graph.project(
        as_recorded(EventLog("task-b", "", days=1).deliberated().decided().events, 100)
    )
    (row,) = await graph.ask("context", tenant="local", task_id="task-b", role="dev")
    assert (row["story"], row["of_story"], row["about"], row["repository"]) == (
        None,
        "",
        "add it",
        "sample",
    )


_ABOUT = {"about", "repository", "of_story"}


async def test_a_context_contains_only_its_scopes(graph: CypherGraph) -> None:
    """The query itself reads only the allowed scopes, whatever the caller requests."""
    await graph.project(as_recorded(EventLog("task-a").completed().events))
    await graph.project(as_recorded(EventLog("task-b", "story-2", days=1).completed().events, 100))
    for phase in scopes().phases:
        for role in ("", *ROLES):
            (row,) = await graph.ask(
                "context",
                tenant="local",
                story_id="story-2",
                role=role,
                phase=phase,
                only=",".join(scopes().worth),
            )
            allowed = set(scopes().allowed_scopes(role, phase)) - {"timeline"}
            noted = {"notes"} if "milestones" in allowed else set[str]()
            assert {name for name, value in row.items() if value} - _ABOUT == (
                allowed - {"similar"}
            ) | noted, (role, phase)
            similar = await graph.ask(
                "similar", tenant="local", repository="sample", role=role, phase=phase
            )
            assert bool(similar) == ("similar" in allowed)
            events = await graph.ask(
                "timeline", tenant="local", story_id="story-2", role=role, phase=phase
            )
            kinds = {event["kind"] for event in events}
            assert ("story.commented" in kinds, "decision.made" in kinds) == (
                "comments" in allowed,
                "decisions" in allowed,
            )
    (scoped,) = await graph.ask(
        "context", tenant="local", story_id="story-2", role="dev", only="plan,tasks"
    )
    assert {name for name, value in scoped.items() if value} - _ABOUT == {"plan", "tasks"}


async def test_a_context_contains_no_data_of_other_tenants(graph: CypherGraph) -> None:
    """The same story, tasks and repository in two tenants."""
    await graph.project(as_recorded(EventLog("task-a", tenant="one").completed().events))
    await graph.project(
        as_recorded(EventLog("task-b", "story-2", tenant="one", days=1).completed().events, 100)
    )
    await graph.project(
        as_recorded(EventLog("task-a", tenant="two", days=2).received().events, 200)
    )
    (first_context,) = await graph.ask("context", tenant="one", story_id="story-1", role="dev")
    assert [item["task_id"] for item in first_context["summaries"]] == ["task-a"]
    for parameters in (
        {"story_id": "story-1"},
        {"story_id": "story-1", "repository": "sample"},
        {"story_id": "story-1", "task_id": "task-b"},
    ):
        (second_context,) = await graph.ask("context", tenant="two", role="dev", **parameters)
        assert (second_context["story"] or {}).get("headline") == "Greeting"
        assert (second_context["summaries"], second_context["decisions"]) == ([], [])
        assert [item["ends"] for item in second_context["tasks"]] == [[], []]
    (none,) = await graph.ask(
        "context", tenant="two/Story", story_id="story-1", task_id="task-a", repository="sample"
    )
    assert not {name for name, value in none.items() if value} - {"repository"}
    assert len(await graph.ask("similar", tenant="one", repository="sample", role="dev")) == 2
    assert await graph.ask("similar", tenant="two", repository="sample", role="dev") == []
