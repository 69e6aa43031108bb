from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from moothall.api import protobuf
from moothall.domain.budget import Budget, Usage
from moothall.domain.event import EventType, new_event
from moothall.domain.evidence import Evidence, Verdict
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.proposal import Operation, Review, SeatOutcome, SeatStatus
from moothall.domain.task import Constraints, DeliberationRequest, Fork, RepositoryRef
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb


def result(
    seat: str = "agent-dev-001",
    *,
    revision: int = 0,
    content: str = "text",
    evidence: tuple[Evidence, ...] = (),
) -> Result:
    return Result(
        rank=1 + revision,
        seat=seat,
        role="dev",
        score=0.75,
        reasons=("proven", "smaller diff"),
        passed_gates=True,
        proven=True,
        evidence=evidence,
        reviews=(Review("agent-dev-002", "agent-dev-001", 0.5, ("met",), ("unmet",), "fine"),),
        content=content,
        diff="diff --git a b",
        commit_sha="abc",
        revision=revision,
        operations=(Operation("files.edit", "d1", "success", 7),),
        created_at_ms=12,
    )


def test_a_request_with_four_fields_is_enough() -> None:
    deliberation_request = protobuf.read_request(
        pb.DeliberateRequest(
            task_description="Add hello_world()", role="DEV", rounds=1, num_agents=3
        )
    )
    assert deliberation_request == DeliberationRequest(
        description="Add hello_world()", role="DEV", rounds=1, num_agents=3
    )


def test_missing_rounds_are_distinguished_from_none() -> None:
    assert protobuf.read_request(pb.DeliberateRequest()).rounds is None
    assert protobuf.read_request(pb.DeliberateRequest(rounds=0)).rounds == 0


def test_every_field_of_a_request_is_read() -> None:
    deliberation_request = protobuf.read_request(
        pb.DeliberateRequest(
            task_description="t",
            role="qa",
            constraints=pb.TaskConstraints(
                rubric="r",
                requirements=["a", "b"],
                metadata={"k": "v"},
                max_iterations=4,
                timeout_seconds=60,
            ),
            num_agents=2,
            task_id="task-1",
            repository=common_pb2.Repository(id="i", url="u", ref="main"),
            protocol="vote",
            budget=common_pb2.Budget(tokens=1, seconds=2, calls=3, cost_usd=0.5),
            adaptive=True,
            follows="task-0",
            fork=common_pb2.Fork(task_id="task-0", turn=3, seat="1", words="w"),
        )
    )
    assert deliberation_request == DeliberationRequest(
        description="t",
        role="qa",
        constraints=Constraints("r", ("a", "b"), {"k": "v"}, 4, 60),
        num_agents=2,
        task_id="task-1",
        repository=RepositoryRef("i", "u", "main"),
        protocol="vote",
        budget=Budget(1, 2, 3, 0.5),
        adaptive=True,
        follows="task-0",
        fork=Fork("task-0", 3, "1", "w"),
    )
    assert (
        protobuf.read_request(protobuf.request_message(deliberation_request))
        == deliberation_request
    )
    assert protobuf.read_request(pb.DeliberateRequest()).fork is None


def test_an_empty_repository_is_none() -> None:
    assert (
        protobuf.read_request(pb.DeliberateRequest(repository=common_pb2.Repository())).repository
        is None
    )


@pytest.mark.parametrize("status", DeliberationStatus)
def test_every_status_has_its_enum_value(status: DeliberationStatus) -> None:
    assert (
        pb.DeliberationStatus.Name(protobuf.status_message(status))
        == f"DELIBERATION_STATUS_{status}"
    )


def test_checks_are_sorted_into_their_fields_and_missing_ones_stay_unset() -> None:
    suite = protobuf.check_suite(
        (
            Evidence("tests", Verdict.PASSED, passed=3, duration_ms=9, proven=True),
            Evidence("lint", Verdict.FAILED, output="a.py:1 unused\n\nb.py:2 unused\n"),
        ),
        all_passed=False,
    )
    assert not suite.HasField("policy")
    assert not suite.HasField("dryrun")
    assert (suite.lint.passed, suite.lint.error_count, list(suite.lint.errors)) == (
        False,
        2,
        ["a.py:1 unused", "b.py:2 unused"],
    )
    (tests,) = suite.additional_checks
    assert (tests.check_type, tests.passed, tests.score) == ("tests", True, 1.0)
    assert dict(tests.details) == {"verdict": "passed", "duration_ms": "9", "proven": "true"}
    assert not suite.all_passed


@pytest.mark.parametrize("verdict", [Verdict.FAILED, Verdict.ERRORED, Verdict.MISSING])
@pytest.mark.parametrize("check", ["lint", "policy", "tests"])
def test_only_the_verdict_passed_counts_as_passed(check: str, verdict: Verdict) -> None:
    suite = protobuf.check_suite((Evidence(check, verdict),), all_passed=False)
    parts = [
        part
        for name in ("lint", "policy")
        if suite.HasField(name)
        for part in [getattr(suite, name)]
    ]
    assert [part.passed for part in [*parts, *suite.additional_checks]] == [False]


@pytest.mark.parametrize(
    ("output", "errors", "warnings"),
    [
        ("src/a.js\n  1:5  warning  Unexpected console\n  2:1  error  Missing semicolon\n", 1, 1),
        (
            (
                "a.py:3:0: W0611: Unused import os\na.py:4:0: E0602: Undefined variable\na.py:9:1: "
                "F821 undefined\n"
            ),
            2,
            1,
        ),
        ("warning: unused variable: `x`\n --> src/lib.rs:3:5\n", 0, 1),
    ],
)
def test_linter_warnings_are_counted_separately(output: str, errors: int, warnings: int) -> None:
    failed = protobuf.check_suite(
        (Evidence("lint", Verdict.FAILED, output=output),), all_passed=False
    ).lint
    assert (failed.error_count, failed.warning_count) == (errors, warnings)
    passed = protobuf.check_suite(
        (Evidence("lint", Verdict.PASSED, output=output),), all_passed=True
    ).lint
    assert (passed.error_count, passed.warning_count, list(passed.errors)) == (0, warnings, [])


@pytest.mark.parametrize(("verdict", "code"), [(Verdict.PASSED, 0), (Verdict.FAILED, 1)])
def test_the_dry_run_reports_whether_the_change_applies_to_a_clean_base(
    verdict: Verdict, code: int
) -> None:
    suite = protobuf.check_suite(
        (Evidence("applies", verdict, output="error: patch failed: a.py:1"),), all_passed=False
    )
    assert (suite.dryrun.passed, suite.dryrun.exit_code, suite.dryrun.message) == (
        not code,
        code,
        verdict.value,
    )
    assert suite.dryrun.output == "error: patch failed: a.py:1"
    assert [check.check_type for check in suite.additional_checks] == ["applies"], (
        "the field that older clients read"
    )


def test_a_policy_check_is_shown_with_its_violations() -> None:
    suite = protobuf.check_suite(
        (Evidence("policy", Verdict.FAILED, output="no network"),), all_passed=False
    )
    assert (suite.policy.passed, list(suite.policy.violations)) == (False, ["no network"])


def test_a_complete_outcome_is_converted() -> None:
    outcome = Outcome(
        "task-1",
        DeliberationStatus.COMPLETED,
        role="dev",
        winner_id="agent-dev-001",
        proven=True,
        results=(
            result(evidence=(Evidence("tests", Verdict.PASSED, 3, 0, 1, 20, "ok", proven=True),)),
        ),
        seats=(
            SeatOutcome(
                "agent-dev-002",
                SeatStatus.FAILED,
                "MODEL_UNAVAILABLE",
                "down",
                Usage(1, 0, 2, 3, 0.1),
            ),
        ),
        usage=Usage(10, 5, 20, 2, 0.25),
        duration_ms=1234,
        branch="moothall/task-1",
        final_state="committed",
    )
    waited, polled = protobuf.deliberate_response(outcome), protobuf.result_response(outcome)
    for answer in (waited, polled):
        assert (answer.task_id, answer.winner_id, answer.proven, answer.branch) == (
            "task-1",
            "agent-dev-001",
            True,
            "moothall/task-1",
        )
        assert answer.usage == common_pb2.Usage(
            prompt_tokens=10, cached_tokens=5, completion_tokens=20, calls=2, cost_usd=0.25
        )
        assert answer.metadata.tags == {"final_state": "committed", "role": "dev"}
        assert (answer.seats[0].status, answer.seats[0].error_code) == (
            "failed",
            "MODEL_UNAVAILABLE",
        )
        (first,) = answer.results
        assert (first.rank, first.score, list(first.reasons)) == (
            1,
            0.75,
            ["proven", "smaller diff"],
        )
        assert first.checks.all_passed
        assert first.evidence[0] == common_pb2.Evidence(
            check="tests",
            verdict="passed",
            passed=3,
            skipped=1,
            duration_ms=20,
            output="ok",
            proven=True,
        )
        assert first.reviews[0] == common_pb2.Review(
            reviewer_id="agent-dev-002", score=0.5, met=["met"], unmet=["unmet"], comment="fine"
        )
        assert (first.proposal.diff, first.proposal.commit_sha) == ("diff --git a b", "abc")
        assert [operation.tool for operation in first.proposal.operations] == ["files.edit"]


def test_revisions_are_the_earlier_contents_of_the_same_seat_oldest_first() -> None:
    ranked = [
        result(revision=2, content="third"),
        result("agent-dev-002", content="other"),
        result(content="first"),
    ]
    ranked.append(result(revision=1, content="second"))
    newest, unrevised, oldest, middle = protobuf.result_messages(ranked)
    assert list(newest.proposal.revisions) == ["first", "second"]
    assert list(middle.proposal.revisions) == ["first"]
    assert list(unrevised.proposal.revisions) == list(oldest.proposal.revisions) == []


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(1 - 2**53, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_the_data_of_an_event_is_converted(data: dict[str, Any]) -> None:
    message = protobuf.event_message(new_event(EventType.SEAT_TURN, "task-1", data))
    assert json_format.MessageToDict(message)["data"] == data


@pytest.mark.parametrize("nested", ["list", "map"])
def test_data_that_no_struct_can_hold_is_sent_as_text(nested: str) -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep] if nested == "list" else {"more": deep}
    message = protobuf.event_message(
        new_event(EventType.SEAT_TURN, "task-1", {"deep": deep, "big": 10**4000, "fine": 1})
    )
    assert message.data["fine"] == 1
    assert "[left out]" in str(message.data["deep"])
    assert message.data["big"] == str(10**4000)
