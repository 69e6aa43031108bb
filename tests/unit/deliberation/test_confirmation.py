"""Confirmation of answers: the deciding tests run again only on an answer that may win."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moothall.deliberation.judging.further_runs import BaseFailures
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.outcome import Outcome
from moothall.domain.repository import Base, Prepared, Profile
from moothall.domain.tool import Bounds
from moothall.testing.model import phase_of, seat_of
from support.council import ONE, TWO, answer_with_approaches, append, by_seat, outcome_from, review
from support.judged_base import PYTEST, judged_base

OTHER = '\n\ndef hello_world() -> str:\n    return "Hello, " + "World!"\n'
THIRD = '\n\ndef hello_world() -> str:\n    return "Hello, {}!".format("World")\n'
COMMENTED = '\n\ndef hello_world() -> str:\n    # As the task asks.\n    return "Hello, World!"\n'
QUOTED = "\n\ndef hello_world() -> str:\n    return 'Hello, World!'\n"
TWICE = """

def hello_world() -> str:
    from pathlib import Path

    seen = Path({!r})
    seen.write_text(seen.read_text() + "x")
    return "Hello, World!" if len(seen.read_text()) <= 2 else "Goodbye"
"""
PREPARED = Prepared(Base("sample", "a" * 40, Profile()), "key", ())


def _confirmation_workspaces(opened: list[str]) -> list[str]:
    """Return the names of the workspaces in which deciding tests ran again on an answer."""
    return [name for name in opened if "-check-" in name and name.count("-") > 3]


def _levels(outcome: Outcome) -> dict[str, EvidenceLevel]:
    return {result.seat: result.level for result in outcome.results}


@pytest.mark.e2e
async def test_only_the_deciding_ones_of_equal_answers_are_confirmed(council: Any) -> None:
    """The winner is confirmed, and a second one if these two end the work of the third seat."""
    async with council(by_seat(one=append(), two=append(OTHER), three=append(THIRD))) as app:
        deliberation = app.deliberation("vote", max_turns=1)
        outcome = outcome_from(deliberation, await app.run(deliberation))
    names = _confirmation_workspaces(app.workspaces.opened)
    confirmed = len({name.rpartition("-")[0] for name in names})
    kinds = sorted(name.rpartition("-")[2] for name in names)
    assert kinds == ["2"] * confirmed + ["proof"] * confirmed
    assert confirmed in {1, 2}
    assert outcome.proven
    levels = [result.level for result in outcome.results]
    assert levels[0] == EvidenceLevel.PROVEN
    assert levels.count(EvidenceLevel.PROVEN) == confirmed
    for unconfirmed in outcome.results[confirmed:]:
        assert unconfirmed.level == EvidenceLevel.UNPROVEN
        assert any("did not run again" in reason for reason in unconfirmed.reasons), (
            unconfirmed.reasons
        )


@pytest.mark.e2e
async def test_answers_that_differ_only_in_comments_or_quotes_share_the_confirmation_runs(
    council: Any,
) -> None:
    async with council(by_seat(one=append(), two=append(COMMENTED), three=append(QUOTED))) as app:
        deliberation = app.deliberation("vote", max_turns=1)
        outcome = outcome_from(deliberation, await app.run(deliberation))
    assert len(_confirmation_workspaces(app.workspaces.opened)) == 2
    proposed = [result for result in outcome.results if result.diff]
    assert len({result.diff for result in proposed}) >= 2
    assert {result.level for result in proposed} == {EvidenceLevel.PROVEN}


@pytest.mark.e2e
async def test_a_later_answer_shares_the_confirmation_runs_unless_it_adds_tests(
    tmp_path: Path,
) -> None:
    files = {
        "src/utils.py": "def add(a: int, b: int) -> int:\n    return a + b\n",
        "tests/test_utils.py": "from src.utils import hello_world\n\n\ndef test_hello_world():\n"
        '    assert hello_world() == "Hello, World!"\n',
    }
    async with judged_base(tmp_path, files, PYTEST, task="Add hello_world()") as base:
        evaluator = base.evaluator()
        first = await base.confirmed({"src/utils.py": files["src/utils.py"] + QUOTED}, evaluator)
        assert first.level is EvidenceLevel.PROVEN
        changed = {"src/utils.py": files["src/utils.py"] + COMMENTED}
        later_evaluation = await evaluator.evaluate(base.proposal(changed, 2))
        assert later_evaluation.assessment.confirmed
        assert later_evaluation.level is EvidenceLevel.PROVEN
        own_test = {"tests/test_more.py": "def test_nothing():\n    pass\n"}
        with_test = await evaluator.evaluate(base.proposal(changed | own_test, 3))
        assert not with_test.assessment.confirmed


async def _deliberate(council: Any, second_answer: str) -> Outcome:
    """Return the outcome of two seats. Reviews prefer the answer of seat 2."""

    def answer(_body: Any, headers: Any) -> Any:
        if phase_of(headers) == "verify":
            return review(9 if seat_of(headers) == ONE else 3)
        return append() if seat_of(headers) == ONE else append(second_answer)

    async with council(answer_with_approaches(answer)) as app:
        app.workspaces.forgetful = True
        deliberation = app.deliberation("tests_then_verify", 2, max_turns=1)
        return outcome_from(deliberation, await app.run(deliberation))


@pytest.mark.e2e
@pytest.mark.parametrize("second_answer", [OTHER, THIRD])
async def test_an_answer_ranked_first_by_reviews_is_confirmed_at_the_end(
    council: Any, second_answer: str
) -> None:
    outcome = await _deliberate(council, second_answer)
    assert outcome.winner_id == TWO
    assert outcome.proven


@pytest.mark.e2e
async def test_the_next_answer_wins_if_the_first_one_fails_its_confirmation(
    council: Any, tmp_path: Path
) -> None:
    (tmp_path / "seen").touch()
    outcome = await _deliberate(council, TWICE.format(str(tmp_path / "seen")))
    assert outcome.winner_id == ONE
    assert outcome.proven
    assert _levels(outcome)[TWO] is EvidenceLevel.UNPROVEN


def test_a_failure_on_the_base_is_remembered_for_ten_minutes_and_the_same_limits() -> None:
    now = 0.0
    failures = BaseFailures(lambda: now)
    failures.add(PREPARED, "tests", ["a"])
    assert failures.find(PREPARED, "tests", ["a", "b"]) == {"a"}
    assert not failures.find(PREPARED, "lint", ["a"])
    bounded = Prepared(PREPARED.base, "key", (), bounds=Bounds(memory_bytes=1))
    assert not failures.find(bounded, "tests", ["a"])
    now = 601.0
    assert not failures.find(PREPARED, "tests", ["a"])


def test_failures_of_hidden_tests_are_not_shared() -> None:
    failures = BaseFailures()
    failures.add(PREPARED, "hidden", ["a"])
    assert not failures.find(PREPARED, "hidden", ["a"])
