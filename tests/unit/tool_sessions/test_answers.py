from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.tool import ToolResult, ToolStatus
from moothall.errors import AlreadyExists
from moothall.tool_sessions.session_state import OUTPUT_DROPPED, Answers


def result(name: str, size: int) -> ToolResult:
    return ToolResult(name, "files.read", ToolStatus.SUCCESS, {"content": "x" * size})


def answers_limited_to(most_bytes: int, max_answers: int = 100) -> Answers[str, ToolResult]:
    return Answers(
        most_bytes,
        max_answers,
        size=lambda answer: len(str(answer.output.get("content", ""))),
        slim=lambda answer: replace(answer, output={}, error=OUTPUT_DROPPED),
    )


@given(st.lists(st.integers(min_value=0, max_value=400), min_size=1, max_size=30))
def test_stored_answers_are_bounded_and_no_request_runs_again(sizes: list[int]) -> None:
    async def scenario() -> None:
        answers, total = answers_limited_to(1000), 0
        for number, size in enumerate(sizes):
            name = f"r{number}"
            answers.settle(name, answers.begin(name, f"digest {number}"), result(name, size))
        for number, size in enumerate(sizes):
            answer = await answers.find(f"r{number}", f"digest {number}")
            assert answer is not None
            assert answer.status is ToolStatus.SUCCESS
            assert answer.output == {"content": "x" * size} or answer.error == OUTPUT_DROPPED
            assert answer.output or number < len(sizes) - 1, "the newest one is complete"
            total += len(str(answer.output.get("content", "")))
            with pytest.raises(AlreadyExists):
                await answers.find(f"r{number}", "another")
        assert total <= 1000

    asyncio.run(scenario())


async def test_beyond_the_limit_the_oldest_finished_answer_is_forgotten() -> None:
    answers = answers_limited_to(10**6, max_answers=2)
    running = answers.begin("a", "a")
    for name in ("b", "c"):
        answers.settle(name, answers.begin(name, name), result(name, 1))
    waiting = asyncio.ensure_future(answers.find("a", "a"))
    await asyncio.sleep(0)
    answers.settle("a", running, result("a", 1))
    assert (await waiting) == result("a", 1)
    assert await answers.find("a", "a") is None
    assert await answers.find("c", "c") is not None


async def test_a_failed_request_may_be_repeated() -> None:
    answers = answers_limited_to(1000)
    for error in (ValueError("no"), asyncio.CancelledError()):
        answer = answers.begin("a", "1")
        answers.fail("a", answer, error)
        assert await answers.find("a", "1") is None
        with pytest.raises(type(error)):
            await answer


async def test_observers_without_permission_receive_nothing() -> None:
    def check() -> None:
        raise PermissionError

    answers = answers_limited_to(1000)
    answers.settle("a", answers.begin("a", "1"), result("a", 1))
    with pytest.raises(PermissionError):
        await answers.find("a", "1", check)
