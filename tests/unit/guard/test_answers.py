from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.tool import ToolResult, ToolStatus
from moothall.guard.answers import Answers


def result(name: str, size: int) -> ToolResult:
    return ToolResult(name, "files.read", ToolStatus.SUCCESS, {"content": "x" * size})


@given(st.lists(st.integers(min_value=0, max_value=400), min_size=1, max_size=30))
def test_what_is_kept_is_bounded_and_nothing_is_run_again(sizes: list[int]) -> None:
    async def scenario() -> None:
        answers = Answers(1000)
        for number, size in enumerate(sizes):
            name = f"r{number}"
            answers.settle(answers.begin(name, f"digest {number}"), result(name, size))
        kept = 0
        for number, size in enumerate(sizes):
            known = answers.find(f"r{number}")
            assert known is not None
            assert known[0] == f"digest {number}"
            told = known[1].result()
            assert told.status is ToolStatus.SUCCESS
            assert told.output == {"content": "x" * size} or "no longer kept" in told.error
            kept += len(told.output.get("content", ""))
        assert kept <= 1000
        assert answers.find(f"r{len(sizes) - 1}")[1].result().output, "the newest is kept whole"  # type: ignore[index] # it is there

    asyncio.run(scenario())


async def test_beyond_a_number_the_oldest_is_forgotten_unless_it_still_runs() -> None:
    answers = Answers(10**6, most=2)
    running = answers.begin("a", "1")
    for name in ("b", "c"):
        answers.settle(answers.begin(name, name), result(name, 1))
    assert answers.find("a") is not None
    answers.settle(running, result("a", 1))
    assert answers.find("a") is None
    assert answers.find("c") is not None


async def test_what_came_to_nothing_may_be_made_again() -> None:
    answers = Answers(1000)
    for error in (ValueError("no"), asyncio.CancelledError()):
        answer = answers.begin("a", "1")
        answers.fail("a", answer, error)
        assert answers.find("a") is None
        with pytest.raises(type(error)):
            await answer
