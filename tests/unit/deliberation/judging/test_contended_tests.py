"""The tests of a seat on a busy machine: a time limit proves nothing, a clear failure does."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.judging.author_tests import AuthorTests
from moothall.deliberation.judging.clean_runs import CheckRuns
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.ids import TaskKey
from moothall.domain.proposal import Proposal
from moothall.domain.repository import Base, Prepared, Profile
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.ranking.failures import as_errored
from moothall.testing.bus import MemoryBus

_TESTS = "tests/test_queue.py"
_FIXED, _SLOW = f"{_TESTS}::test_fixed", f"{_TESTS}::test_slow"
_LIMIT = "Timeout >10.0s"
_AUTHOR = Proposal("agent-dev-001", "dev", "", "the author's change", own_tests=(_TESTS,))
_RIVAL = Proposal("agent-dev-002", "dev", "", "another change")


@dataclass
class _Runs:
    """Returns given runs by diff instead of running checks."""

    by_diff: dict[str, CheckRun]
    prepared: Prepared = field(
        default_factory=lambda: Prepared(
            Base("repo", "0" * 40, Profile(checks={"tests": ("pytest",)})), "key", (_TESTS,)
        )
    )

    async def run_checks(self, *_args: object, diff: str = "", **_kwargs: object) -> CheckRuns:
        return CheckRuns({"tests": self.by_diff[diff]})

    async def read_base_text(self, _path: str) -> str:
        return ""


def _tests(base: CheckRun, rival: CheckRun | None = None) -> AuthorTests:
    passed = CheckRun("tests", Verdict.PASSED, {_FIXED: "passed", _SLOW: "passed"})
    runs = _Runs({"": base, _AUTHOR.diff: passed, _RIVAL.diff: rival or passed})
    deliberation = Deliberation(
        task_id=TaskKey("task-1"),
        description="the queue loses its last item",
        role="dev",
        protocol="vote",
        seats=(_AUTHOR.seat, _RIVAL.seat),
        rounds=0,
        deadline=datetime.now(UTC) + timedelta(seconds=60),
        max_turns=1,
        repository=RepositoryRef(id="repo"),
        base_sha="0" * 40,
    )
    return AuthorTests(cast("Any", runs), EventWriter(MemoryBus(), deliberation))


def _contended(*, fixed: str) -> CheckRun:
    return as_errored(
        CheckRun(
            "tests",
            Verdict.FAILED,
            {_FIXED: fixed, _SLOW: "failed"},
            details={_SLOW: _LIMIT},
            contended=True,
        )
    )


async def test_a_case_that_clearly_fails_on_the_base_counts_beside_one_that_hit_a_limit() -> None:
    valid = await _tests(_contended(fixed="failed")).validate(_AUTHOR)
    assert dict(valid.cases) == {"tests": (_FIXED,)}


async def test_no_case_counts_if_its_run_was_stopped() -> None:
    stopped = CheckRun("tests", Verdict.ERRORED, status="memory", cases={_FIXED: "failed"})
    valid = await _tests(stopped).validate(_AUTHOR)
    assert not valid.cases
    assert valid.reason == "their run on the base did not finish"


async def test_a_rival_that_only_hit_a_limit_on_a_busy_machine_gets_no_result() -> None:
    both_fail = CheckRun("tests", Verdict.FAILED, {_FIXED: "failed", _SLOW: "failed"})
    votes = await _tests(both_fail, _contended(fixed="passed")).run_cross_tests([_AUTHOR], [_RIVAL])
    assert votes == {}


async def test_a_rival_that_also_fails_a_case_is_refuted() -> None:
    both_fail = CheckRun("tests", Verdict.FAILED, {_FIXED: "failed", _SLOW: "failed"})
    votes = await _tests(both_fail, _contended(fixed="failed")).run_cross_tests([_AUTHOR], [_RIVAL])
    assert [vote.passed for vote in votes[_RIVAL.candidate]] == [False]
