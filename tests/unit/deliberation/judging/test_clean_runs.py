"""Checks on a clean checkout that hit a time limit on a busy machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from moothall.deliberation.judging.clean_runs import CleanCheckoutRunner
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.ids import TaskKey
from moothall.domain.repository import Base, Prepared, Profile
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.errors import NotFound
from moothall.sandbox_runtime.processes import BUSY

BASE = CheckRun("tests", Verdict.PASSED, {"a": "passed"})
STOPPED = CheckRun(
    "tests",
    Verdict.FAILED,
    {"a": "failed"},
    details={"a": f"hit the limit of 10 s{BUSY}"},
    contended=True,
)


@dataclass
class _Workspaces:
    """Workspaces whose checks return `runs` in order; `checked` records the workspace and `alone`
    of each.
    """

    runs: list[CheckRun]
    checked: list[tuple[int, bool]] = field(default_factory=list)
    opened: int = 0

    @asynccontextmanager
    async def open(self, *_: Any, **__: Any) -> AsyncIterator[_Workspaces]:
        self.opened += 1
        yield self

    async def check(self, *_: Any, alone: bool = False, **__: Any) -> CheckRun:
        self.checked.append((self.opened, alone))
        return self.runs.pop(0)


async def judge(
    runs: Sequence[CheckRun], base: CheckRun = BASE
) -> tuple[CheckRun, list[tuple[int, bool]]]:
    async def read(*_: Any) -> str:
        raise NotFound("nothing is read")

    workspaces = _Workspaces(list(runs))
    prepared = Prepared(
        Base("r", "c" * 40, Profile(checks={"tests": ("x",)})), "key", (), {"tests": base}
    )
    end = datetime.now(UTC) + timedelta(seconds=60)
    d = Deliberation(
        TaskKey("t-1"),
        "Add",
        "dev",
        "vote",
        ("s1",),
        0,
        end,
        1,
        repository=RepositoryRef(id="r"),
        base_sha="c" * 40,
    )
    fresh = CleanCheckoutRunner(d, prepared, workspaces, read, asyncio.Semaphore(1))  # type: ignore[arg-type]  # only some fields
    return (await fresh.run_checks({"tests": ()}, "check")).runs["tests"], workspaces.checked


async def test_a_contended_timeout_is_rerun_alone_in_a_separate_workspace() -> None:
    passed = CheckRun("tests", Verdict.PASSED, {"a": "passed"})
    assert await judge([STOPPED, passed]) == (passed, [(1, False), (2, True)])


async def test_a_rerun_that_fails_alone_is_a_failure() -> None:
    failed = CheckRun(
        "tests", Verdict.FAILED, {"a": "failed"}, details={"a": "hit the limit of 10 s"}
    )
    assert await judge([STOPPED, failed]) == (failed, [(1, False), (2, True)])


async def test_a_rerun_that_is_contended_again_is_errored() -> None:
    run, checked = await judge([STOPPED, STOPPED])
    assert (run.verdict, run.cases) == (Verdict.ERRORED, {"a": "errored"})
    assert checked == [(1, False), (2, True)]


async def test_other_failures_are_not_rerun() -> None:
    failed = CheckRun(
        "tests", Verdict.FAILED, {"a": "failed"}, details={"a": "assert 5 == 2"}, contended=True
    )
    assert await judge([failed]) == (failed, [(1, False)])
