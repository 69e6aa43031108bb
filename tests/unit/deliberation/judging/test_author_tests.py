"""The definition of passing another seat's tests."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.judging.clean_runs import CleanCheckoutRunner
from moothall.deliberation.judging.evaluator import Evaluator
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.ids import TaskKey
from moothall.domain.proposal import Proposal
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.ranking import rank
from moothall.testing.bus import MemoryBus
from support.repos import Repo, make_repo
from support.workspace import TempWorkspaces

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

_BASE = "def discount(price, percent):\n    return price\n"
_RIGHT = "def discount(price, percent):\n    return price - price * percent // 100\n"
# large ones are not limited
_BREAKING = (
    "def discount(price, percent):\n    return price - price * percent // 100 if percent or price "
    "< 100 else 0\n"
)
_OLD = "from price import discount\n\n\ndef test_nothing():\n    assert discount(10, 0) == 10\n"
_NEW = (
    "from price import discount\n\n\ndef test_percents():\n    assert discount(200, 10) == 180\n\n"
    "\n"
    "def test_large():\n    assert discount(500, 0) == 500\n"
)


async def test_an_answer_that_breaks_behaviour_kept_by_another_seats_tests_is_not_reproduced(
    tmp_path: Path,
) -> None:
    """It passes the case that fails on the base, and fails a new one that passes there: it was
    right before.
    """
    repo = make_repo(
        tmp_path / "repo", {"price.py": _BASE, "tests/test_price.py": _OLD, "conftest.py": ""}
    )
    workspaces = TempWorkspaces(repo, tmp_path)
    prepared = await workspaces.prepare()
    d = Deliberation(
        task_id=TaskKey("task-1"),
        description="discount() takes nothing off: 10 percent off 200 should be 180",
        role="dev",
        protocol="vote",
        seats=("agent-dev-001", "agent-dev-002"),
        rounds=0,
        deadline=datetime.now(UTC) + timedelta(seconds=1200),
        max_turns=1,
        repository=RepositoryRef(id=prepared.base.repository),
        base_sha=prepared.base.sha,
    )
    evaluator = Evaluator(
        CleanCheckoutRunner(d, prepared, workspaces, workspaces.read, asyncio.Semaphore(2)),
        EventWriter(MemoryBus(), d),
    )
    judged = [
        await evaluator.evaluate(
            Proposal("agent-dev-001", "dev", "", _diff(repo, {"price.py": _BREAKING}))
        ),
        await evaluator.evaluate(
            Proposal(
                "agent-dev-002",
                "dev",
                "",
                _diff(repo, {"price.py": _RIGHT, "tests/test_more.py": _NEW}),
                own_tests=("tests/test_more.py",),
            )
        ),
    ]
    first, second = rank(await evaluator.run_cross_tests(judged))
    assert (first.seat, first.level) == ("agent-dev-002", EvidenceLevel.SELF_TESTED), first.reasons
    assert (second.passed_gates, second.level) == (True, EvidenceLevel.UNPROVEN), second.reasons
    # It passes on the base and proves nothing.
    assert not any("test_large" in reason for reason in first.reasons)


def _diff(repo: Repo, files: dict[str, str]) -> str:
    repo.write(files)
    repo.git("add", "--all")
    diff = repo.git("diff", "--cached")
    repo.git("reset", "--quiet", "--hard")
    return f"{diff}\n"
