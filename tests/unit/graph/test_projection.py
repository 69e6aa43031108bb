"""Properties of the projection for any log: order, repeats and malformed events do no harm."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.event import Event, EventType
from moothall.domain.proposal import Proposal
from moothall.graph.projection import PROJECTIONS, write
from moothall.graph.schema import LABELS
from moothall.graph.upserts import Writes, bound_name, clean, group_of, uid
from support.event_log import SEATS, EventLog, proposal_of

WHOLE = EventLog().completed().events
SECOND = EventLog("task-a-r2", days=1).completed().events

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
)
NAMES = sorted({name for event in WHOLE for name in event.data})


def writes_of(events: list[Event]) -> Writes:
    writes = Writes()
    for event in events:
        write(event, writes)
    return writes


def merge_batches(batches: list[list[Event]]) -> Writes:
    """Merge batches like the statements of a store."""
    total = Writes()
    for batch in batches:
        part = writes_of(batch)
        total.nodes |= part.nodes
        total.relations |= part.relations
        for (node, name), (by, properties) in part.groups.items():
            current = total.groups.get((node, name))
            latest = group_of(node.label, name).latest
            if current is None or (current[0] < by if latest else current[0] > by):
                total.groups[node, name] = (by, properties)
    return total


@given(st.data())
def test_order_repeats_and_batches_do_not_change_the_result(data: st.DataObject) -> None:
    events = [*WHOLE, *SECOND]
    repeated = data.draw(
        st.permutations([*events, *data.draw(st.lists(st.sampled_from(events), max_size=10))])
    )
    cuts = sorted(data.draw(st.sets(st.integers(0, len(repeated)), max_size=5)))
    batches = [
        repeated[start:end] for start, end in zip([0, *cuts], [*cuts, len(repeated)], strict=True)
    ]
    assert merge_batches(batches) == writes_of(events)


@given(
    st.sampled_from(sorted(PROJECTIONS)),
    st.dictionaries(st.sampled_from(NAMES), values),
    st.text(max_size=40),
)
def test_malformed_events_raise_no_error(kind: EventType, data: dict[str, Any], time: str) -> None:
    """All written values have the types of the schema."""
    writes = writes_of([Event("id", kind, "x", data, time=time)])
    for (node, name), (_, properties) in writes.groups.items():
        for key, kind_of in group_of(node.label, name).properties.items():
            expected = {
                "text": str,
                "integer": int,
                "float": float,
                "boolean": bool,
                "texts": list,
            }[kind_of]
            assert type(properties[key]) is expected
    for node in writes.nodes:
        node.uid.encode()


@given(st.text(), st.text(), st.text(), st.text())
def test_no_two_tenants_share_a_node(
    first_tenant: str, second_tenant: str, key: str, key_of_other: str
) -> None:
    same_node = bound_name(first_tenant) == bound_name(second_tenant) and bound_name(
        key
    ) == bound_name(key_of_other)
    assert (
        uid("Story", first_tenant, key) == uid("Story", second_tenant, key_of_other)
    ) is same_node


@given(st.text())
def test_names_are_bounded_and_storable(text: str) -> None:
    assert len(bound_name(text)) <= 200
    clean(text).encode()  # no lone surrogate is left
    assert "\0" not in clean(text)


def test_every_event_type_is_projected_or_listed_as_omitted() -> None:
    left_out = {
        EventType.SEAT_TURN,
        EventType.AGENT_PROGRESS,
        EventType.AUDIT_RECORDED,
        EventType.TOOL_REQUESTED,
        EventType.COUNCIL_CREATED,
        EventType.COUNCIL_DELETED,
        EventType.AGENT_REGISTERED,
        EventType.AGENT_UNREGISTERED,
        # Tool sessions are outside of deliberations; the tool calls of workflows are projected
        # individually.
        EventType.WORKFLOW_STARTED,
        EventType.WORKFLOW_STEP,
        EventType.WORKFLOW_FINISHED,
        EventType.GUARD_ALERTED,
        EventType.DELIBERATION_DAMAGED,
        EventType.DELIBERATION_STEERED,
        EventType.DELIBERATION_PAUSED,
        EventType.DELIBERATION_RESUMED,
        EventType.EVIDENCE_REPORTED,
        EventType.STORY_MERGE_REQUESTED,
    }
    assert set(EventType) - PROJECTIONS.keys() == left_out


def test_findings_belong_to_the_proposal_with_their_fingerprint() -> None:
    proposal = proposal_of(SEATS[0])
    assert isinstance(proposal, Proposal)
    keys = {node.key for node in writes_of(WHOLE).nodes if node.label == "Proposal"}
    assert f"task-a/{SEATS[0]}/{proposal.fingerprint}" in keys
    assert len(keys) == len(SEATS), "what was found of a proposal belongs to it"


def test_a_repeated_run_belongs_to_the_same_task() -> None:
    writes = writes_of([*WHOLE, *SECOND])
    assert {node.key for node in writes.nodes if node.label == "Task"} == {
        "task-a",
        "task-a-check",
        "task-a-r2-check",
    }


def test_reserved_property_names_are_not_used() -> None:
    """The embedded store sets these properties itself."""
    for label in LABELS.values():
        assert not {"id", "title", "type", "name"} & set(label.properties)
        assert len(label.properties) == len(set(label.properties)), (
            "groups have no property in common"
        )
