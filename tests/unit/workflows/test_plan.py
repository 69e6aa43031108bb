from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.errors import InvalidRequest
from moothall.workflows.plan import PlanLimits, read_plan, read_yaml
from support.tools import CATALOGUE

ALLOWED = PlanLimits(
    CATALOGUE, lambda tool: "http.post is not granted here" if tool == "http.post" else "", 10, 4, 5
)
READ = {"id": "read", "tool": "files.read", "arguments": {"path": "a.txt"}}
WRITE = {
    "id": "write",
    "tool": "files.write",
    "arguments": {"path": "b.txt", "content": "${steps.read.output.content}"},
}


def plan_of(*steps: dict[str, Any], **fields: Any) -> Any:
    return read_plan({"id": "wf", "steps": list(steps), **fields}, ALLOWED)


def test_a_plan_is_read_as_written() -> None:
    plan = read_plan(
        read_yaml(
            """
            id: copy
            name: copy a file
            parallelism: 2
            steps:
              - {id: read, tool: files.read, arguments: {path: a.txt}}
              - id: write
                tool: files.write
                arguments: {path: b.txt, content: "${steps.read.output.content}"}
                retry: {attempts: 3, seconds: 0.5}
                timeout: 10
                on_failure: compensate
                compensate: {tool: files.delete, arguments: {path: "${steps.write.output.path}"}}
              - {id: test, tool: tests.pytest, needs: [write], accept: any}
              - {id: look, tool: git.status}
            """
        ),
        ALLOWED,
    )
    assert (plan.id, plan.name, plan.parallelism) == ("copy", "copy a file", 2)
    assert {step.id: step.needs for step in plan.steps} == {
        "read": (),
        "write": ("read",),
        "test": ("write",),
        "look": ("test",),
    }
    write = plan.step("write")
    assert (write.attempts, write.pause, write.timeout, write.on_failure) == (
        3,
        0.5,
        10,
        "compensate",
    )
    assert write.compensate is not None
    assert plan.step("test").accept == "any"


def test_steps_follow_the_previous_one_unless_they_declare_needs_or_refer() -> None:
    plan = plan_of(
        READ, {**READ, "id": "b"}, {**WRITE, "id": "c"}, {**READ, "id": "d", "needs": []}
    )
    assert {step.id: step.needs for step in plan.steps} == {
        "read": (),
        "b": ("read",),
        "c": ("read",),
        "d": (),
    }


def test_the_same_document_has_the_same_digest_whatever_its_id() -> None:
    unnamed_plan, read_back = plan_of(READ), read_plan({"steps": [READ]}, ALLOWED)
    assert (unnamed_plan.digest == read_back.digest, read_back.id.startswith("wf-")) == (True, True)
    assert plan_of(READ, name="x").digest != unnamed_plan.digest


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "steps: List should have at least 1"),
        ([{"tool": "files.read"}], "step number 1: id: Field required"),
        ([{**READ, "id": "A b"}], "step A b: id"),
        ([READ, READ], "step read: there are two steps of this id"),
        (
            [{**READ, "tool": "files.raed"}],
            r"step read: there is no tool 'files.raed' \(did you mean 'files.read'\?\)",
        ),
        (
            [{**READ, "tool": "http.post", "arguments": {"url": "https://e.org"}}],
            "step read: http.post is not granted here",
        ),
        (
            [{**READ, "arguments": {"paht": "a"}}],
            r"step read: files.read has no argument 'paht' \(did you mean 'path'\?\)",
        ),
        ([{**READ, "arguments": {}}], "step read: argument 'path' is missing; right is files.read"),
        ([{**READ, "arguments": {"path": 3}}], "step read: path: Input should be a valid string"),
        (
            [
                READ,
                {**WRITE, "arguments": {"path": "b", "content": "${steps.raed.output.content}"}},
            ],
            "did you mean 'read'",
        ),
        (
            [
                READ,
                {**WRITE, "arguments": {"path": "b", "content": "${steps.read.output.contnet}"}},
            ],
            r"step write: .* names no output of files.read \(did you mean 'content'\?\)",
        ),
        (
            [READ, {**WRITE, "arguments": {"path": "b", "content": "${steps.read}"}}],
            "step write: .* is not a reference",
        ),
        (
            [READ, {**WRITE, "arguments": {"path": "b", "content": "${steps.write.output.path}"}}],
            "refer to its own result",
        ),
        ([{**READ, "needs": ["gone"]}], "step read: needs 'gone'"),
        ([{**READ, "needs": ["read"]}], "step read: needs 'read'"),
        (
            [{**READ, "id": "a", "needs": ["b"]}, {**READ, "id": "b", "needs": ["a"]}],
            "these steps depend on each other: . → . → .",
        ),
        ([{**READ, "retry": {"attempts": 6}}], "step read: retry.attempts is 6; at most 5"),
        ([{**READ, "retry": {"attempts": 0}}], "step read: retry.attempts"),
        (
            [{**READ, "on_failure": "panic"}],
            "step read: on_failure: Input should be 'stop', 'continue' or 'compensate'",
        ),
        ([{**READ, "when": "x"}], "step read: when: Extra inputs"),
        ([READ | {"id": f"s{number}"} for number in range(11)], "11 steps; at most 10"),
        (
            [
                READ,
                {
                    **WRITE,
                    "compensate": {
                        "tool": "files.delete",
                        "arguments": {"path": "${steps.later.output.path}"},
                    },
                },
                {**READ, "id": "later", "needs": ["write"]},
            ],
            "step write, compensate: .* may not have finished by then; allowed are read, write",
        ),
        (
            [{**READ, "compensate": {"tool": "files.unlink"}}],
            "step read, compensate: there is no tool",
        ),
    ],
)
def test_errors_are_named_before_anything_runs(steps: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        plan_of(*steps)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "!!python/object:os.system {}", "- x"])
def test_an_invalid_document_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="the workflow is not"):
        read_yaml(text)


@given(
    st.permutations(range(6)), st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=10)
)
def test_steps_of_any_acyclic_plan_follow_their_needs(
    order: list[int], edges: set[tuple[int, int]]
) -> None:
    place = {name: at for at, name in enumerate(order)}
    needs = {
        name: [f"s{a}" for a, b in sorted(edges) if b == name and place[a] < place[b]]
        for name in range(6)
    }
    plan = plan_of(*({**READ, "id": f"s{name}", "needs": needs[name]} for name in range(6)))
    finished: set[str] = set()
    for step in plan.steps:
        assert set(step.needs) <= finished
        finished.add(step.id)
    assert len(finished) == 6


@pytest.mark.parametrize("seconds", [1e300, 1e12, float("inf"), float("nan"), -1])
def test_an_out_of_range_time_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="timeout"):
        plan_of({**READ, "timeout": seconds})
    with pytest.raises(InvalidRequest, match="seconds"):
        plan_of({**READ, "retry": {"seconds": seconds}})
