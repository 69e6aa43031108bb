"""The removal of the oldest deliberations with the nodes that only they use, on every store."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moothall.graph import schema
from moothall.graph.schema import RELATIONS
from moothall.graph.store import CypherGraph, Store
from support.event_log import EventLog, as_recorded, delivered_sha

OF_STORIES = {"Story", "Transition", "Comment", "Note", "Plan", "Task", "Decision"}
STORYS = (
    OF_STORIES
    | {"DELIVERED_IN"}
    | {relation.type for relation in RELATIONS if {relation.start, relation.end} <= OF_STORIES}
)
"""Nodes and relations of stories, which are never removed."""


def event_log_of(days: int) -> EventLog:
    return EventLog(f"task-{days}", f"story-{days}", days=days).completed()


async def test_the_oldest_deliberations_are_removed_with_the_nodes_only_they_use(
    store: Store,
) -> None:
    bounded = CypherGraph(store, keep=2)
    late = (
        EventLog("task-late", "story-late", days=-1).received().deliberated()
    )  # older than all, and not decided
    for event_log in (late, *map(event_log_of, (1, 2, 3, 4))):
        await bounded.project(as_recorded(event_log.events))
    dump = sorted([line async for line in bounded.dump()])
    for days in (1, 2):
        assert not await bounded.ask("deliberation", tenant="local", task_id=f"task-{days}")
        assert not await bounded.ask(
            "provenance", tenant="local", commit_sha=delivered_sha(f"task-{days}")
        )
        assert [
            row["story"]["story_id"]
            for row in await bounded.ask("story", tenant="local", story_id=f"story-{days}")
        ]
        assert not [line for line in dump if line[0] not in STORYS and f"/task-{days}" in line[1]]
    await bounded.clear()
    for event_log in (late, *map(event_log_of, (3, 4))):
        await bounded.project(as_recorded(event_log.events))
    rows_of_latest = sorted([line async for line in bounded.dump()])
    assert [line for line in dump if line[0] not in STORYS] == [
        line for line in rows_of_latest if line[0] not in STORYS
    ]
    assert (
        len(await bounded.ask("provenance", tenant="local", commit_sha=delivered_sha("task-4"))) > 0
    )


async def test_without_a_limit_nothing_is_removed(store: Store) -> None:
    graph = CypherGraph(store)
    for days in (1, 2, 3):
        await graph.project(as_recorded(event_log_of(days).events))
    assert (await graph.counts())["Deliberation"] == 3


@given(st.lists(st.text(), max_size=5))
def test_ids_are_parameters_and_never_part_of_a_statement(uids: list[str]) -> None:
    texts = [cypher for cypher, _ in schema.removal([])]
    assert [cypher for cypher, _ in schema.removal(uids)] == texts
    assert all(parameters.get("uids", uids) == uids for _, parameters in schema.removal(uids))


def test_all_labels_owned_by_a_deliberation_are_removed_with_it() -> None:
    statement = "".join(cypher for cypher, _ in schema.removal([]))
    labels = {r.end for r in RELATIONS if r.start in {"Seat", "Proposal"}} | {"Seat", "ModelCall"}
    for label in labels - {"Agent"}:
        assert f"(n:{label})" in statement, f"{label} would stay for ever"
