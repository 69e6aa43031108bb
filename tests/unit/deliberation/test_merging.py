"""A deliberation that merges commits: one seat, no model call, judged like any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from moothall.config import LimitSettings
from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL
from moothall.domain.repository import Base, Patch
from moothall.domain.task import DeliberationRequest, check_deliberation
from moothall.errors import InvalidRequest, MergeConflict
from moothall.orchestrator.request_planning import Defaults, plan_deliberation
from support.council import CouncilEnvironment, of, open_council, outcomes, verdicts
from support.repos import SAMPLE, SOLUTION

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

COMMITS = ("a" * 40, "b" * 40)


def fail_if_called(_body: Any, _headers: Any) -> Any:
    raise AssertionError("no model is called for a merge")


def merging(app: CouncilEnvironment, diff: str) -> CouncilEnvironment:
    async def merge(base: Base, commits: Sequence[str]) -> Patch:
        assert tuple(commits) == COMMITS
        if diff == "conflict":
            raise MergeConflict("both sides changed the same lines: a.txt")
        return Patch(base.sha, "c" * 40, diff, ("src/utils.py",))

    repositories = replace(app.parts.repositories, merge=merge)
    app.parts = replace(app.parts, repositories=repositories)
    return app


def solving() -> str:
    old = SAMPLE["src/utils.py"]
    assert isinstance(old, str)
    new = old + SOLUTION
    count, new_count = len(old.splitlines()), len(new.splitlines())
    lines = [f" {line}" for line in old.splitlines()] + [
        f"+{line}" for line in new.splitlines()[count:]
    ]
    head = (
        "diff --git a/src/utils.py b/src/utils.py\n--- a/src/utils.py\n+++ b/src/utils.py\n@@ "
        f"-1,{count} +1,{new_count} @@\n"
    )
    return head + "\n".join(lines) + "\n"


async def test_a_merge_is_judged_without_a_model(tmp_path: Path) -> None:
    async with open_council(tmp_path, fail_if_called) as app:
        events = await merging(app, solving()).run(app.deliberation("single", 1, merge=COMMITS))
        assert outcomes(events) == {"agent-dev-001": "proposed"}
        assert verdicts(events)["agent-dev-001", "tests"] == "passed"
        assert of(events, EventType.MODEL_CALLED) == []
        repeated = await app.run(app.deliberation("single", 1, merge=COMMITS))
        assert len(of(repeated, EventType.SEAT_PROPOSED)) == 1


async def test_commits_are_merged_into_the_original_base_with_its_hidden_tests(
    tmp_path: Path,
) -> None:
    bases: list[str] = []

    async def merge(base: Base, _: Sequence[str]) -> Patch:
        bases.append(base.sha)
        return Patch(base.sha, "c" * 40, solving(), ("src/utils.py",))

    async with open_council(tmp_path, fail_if_called) as app:
        repositories = replace(app.parts.repositories, merge=merge)
        app.parts = replace(app.parts, repositories=repositories)
        events = await app.run(app.deliberation("single", 1, merge=COMMITS, base_sha="d" * 40))
    assert bases == ["d" * 40]
    assert verdicts(events)["agent-dev-001", "tests"] == "passed"


@pytest.mark.parametrize(
    ("diff", "end"), [("conflict", "failed MERGE_CONFLICT"), ("", "failed NO_CHANGES")]
)
async def test_a_failed_merge_is_reported(tmp_path: Path, diff: str, end: str) -> None:
    async with open_council(tmp_path, fail_if_called) as app:
        events = await merging(app, diff).run(app.deliberation("single", 1, merge=COMMITS))
        assert outcomes(events) == {"agent-dev-001": end}


def test_only_commits_of_a_repository_are_merged() -> None:
    request = DeliberationRequest("together", "dev", merge=COMMITS)
    d = plan_deliberation(request, LOCAL, Defaults(LimitSettings()), datetime.now(UTC))
    assert len(d.seats) == 1
    with pytest.raises(InvalidRequest, match="invalid merge"):
        check_deliberation(d)
    with pytest.raises(InvalidRequest, match="invalid merge"):
        check_deliberation(replace(d, base_sha="d" * 40, merge=("main",)))
    check_deliberation(replace(d, base_sha="d" * 40))
