"""Whole councils under the protocol `tournament`: a second wave, and comparisons in small
groups.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from moothall.config import LimitSettings
from moothall.domain.event import EventType
from moothall.domain.evidence import COMPARISON
from moothall.domain.ids import seat_id
from moothall.testing.model import phase_of, seat_of
from support.council import (
    ONE,
    THREE,
    TWO,
    act,
    answer_with_approaches,
    append,
    by_seat,
    of,
    outcomes,
    review,
)
from support.repos import SAMPLE, SOLUTION

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

PASSING = {
    **SAMPLE,
    "tests/test_utils.py": (
        "from utils import greet\n\n\ndef test_greet():\n    assert greet('A')\n"
    ),
}
"""The sample without a failing test: nothing shows which answer is right."""
WRONG = SOLUTION.replace("Hello, World!", "Goodbye")
OWN_TEST = (
    "from utils import hello_world\n\n\ndef test_more():\n    assert hello_world() == 'Hello, "
    "World!'\n"
)
NOTES = "The function is missing. An answer that says Goodbye is wrong. Write a test first."
SUMMARY = {"approach": "adds a function", "behaviour": "", "left_out": "", "risks": ""}


def _judge(prompt: str, best: str) -> str:
    """Reply to a comparison by ranking the answer that contains `best` first, and to a summary with
    the value that is returned.
    """
    if "Now summarize" in prompt:
        value = re.search(r"return \"([^\"]*)\"", prompt.rpartition("--- answer")[2])
        return json.dumps(
            {**SUMMARY, "behaviour": f"hello_world() returns {value[1] if value else '?'}"}
        )
    answers = re.findall(r"--- answer ([A-Z]) \[\w+\] ---\n(.*?)\n--- end", prompt, re.DOTALL)
    letters = [letter for letter, text in sorted(answers, key=lambda answer: best not in answer[1])]
    return json.dumps({"why": f"only one returns {best}", "order": letters})


async def test_a_second_wave_starts_from_the_original_code_with_notes(council: Any) -> None:
    """Nothing is reproduced in the first wave, so every seat starts on the original code, with
    notes and without patches.
    """
    second = act(
        ("files.append", {"path": "src/utils.py", "content": SOLUTION}),
        ("files.write", {"path": "tests/test_more.py", "content": OWN_TEST}),
    )
    other_answer = append("\n" + SOLUTION)

    def work(body: Any, headers: Any) -> str:
        if phase_of(headers) == "verify":
            return _judge(body["messages"][-1]["content"], "Hello")
        if NOTES in body["messages"][1]["content"]:
            return second if seat_of(headers) == ONE else other_answer
        return append(f"\n\ndef hello_world() -> str:\n    return 'Goodbye {seat_of(headers)}'\n")

    def answer(body: Any, headers: Any) -> Any:
        return (
            NOTES
            if "Write the notes" in body["messages"][-1]["content"]
            else answer_with_approaches(work)(body, headers)
        )

    async with council(answer, files=PASSING) as app:
        events = await app.run(app.deliberation("tournament", 2, max_turns=1, rounds=0))
        first = [call for call in app.server.requests if call.call_id.endswith("/propose/0.1")]
        second_wave = [
            call for call in app.server.requests if call.call_id.endswith("/propose/1.1")
        ]
    assert len(first) == len(second_wave) == 2
    for call in second_wave:
        assert NOTES in call.prompt
        assert "return 'Goodbye" not in call.prompt, "no patch of the first wave is visible"
        assert [message["role"] for message in call.body["messages"]] == ["system", "user"], (
            "the conversation is new"
        )
    revised = of(events, EventType.SEAT_REVISED)
    assert sorted(data["candidate"] for data in revised) == [f"{ONE}.r1", f"{TWO}.r1"]
    assert all("Goodbye" not in data["proposal"]["diff"] for data in revised), (
        "it is based on the original code"
    )
    cross = {
        data["candidate"]: data["evidence"]["verdict"]
        for data in of(events, EventType.CHECK_FINISHED)
        if data.get("cross_author")
    }
    assert cross == {TWO: "failed", f"{TWO}.r1": "passed"}
    assert set(outcomes(events).values()) == {"proposed"}
    (reported,) = [data["report"]["message"] for data in of(events, EventType.EVIDENCE_REPORTED)]
    assert "second wave" in reported


@pytest.mark.parametrize(
    ("setting", "protocol", "waves"),
    [("off", "tournament", 1), ("on", "vote", 2), ("auto", "vote", 1)],
)
async def test_the_setting_decides_about_a_second_wave(
    council: Any, setting: Any, protocol: str, waves: int
) -> None:
    answer = by_seat(one=append(), two=append(WRONG))
    limits = LimitSettings(patience=0, second_wave=setting)
    async with council(answer, files=PASSING, limits=limits) as app:
        await app.run(app.deliberation(protocol, 2, max_turns=1, rounds=0))
        waves_seen = {
            call.call_id.split("/")[3].partition(".")[0]
            for call in app.server.requests
            if "/propose/" in call.call_id
        }
    assert len(waves_seen) == waves


async def test_a_proven_answer_needs_no_second_wave(council: Any) -> None:
    async with council(by_seat(one=append(), two=append(WRONG))) as app:
        await app.run(app.deliberation("tournament", 2, max_turns=1, rounds=0))
        assert not [call for call in app.server.requests if "/propose/1" in call.call_id]


@pytest.mark.parametrize("seats", [3, 6])
async def test_tied_answers_are_compared_in_small_groups(council: Any, seats: int) -> None:
    """Each group is compared twice, in opposite orders; the best of each are compared again.
    Authors are anonymous.
    """
    right = seat_id("dev", seats - 1)

    def work(body: Any, headers: Any) -> str:
        if phase_of(headers) == "verify":
            return _judge(body["messages"][-1]["content"], "Hello, World!")
        seat = seat_of(headers)
        return append(
            SOLUTION if seat == right else SOLUTION.replace("Hello, World!", f"Bye {seat[-1]}")
        )

    limits = LimitSettings(patience=0, second_wave="off")
    async with council(answer_with_approaches(work), files=PASSING, limits=limits) as app:
        events = await app.run(app.deliberation("tournament", seats, max_turns=1, rounds=0))
        calls = [call for call in app.server.requests if call.call_id.split("/")[2] == "verify"]
    summaries = {
        data["candidate"]: data["review"]["score"] for data in of(events, EventType.SEAT_REVIEWED)
    }
    assert len(summaries) == seats
    assert [
        candidate for candidate, score in summaries.items() if score == max(summaries.values())
    ] == [right]
    assert {data["seat"] for data in of(events, EventType.SEAT_REVIEWED)} == {COMPARISON}
    groups = {call.call_id.rpartition("/")[2] for call in calls if ".group" in call.call_id}
    assert len(groups) == (2 if seats == 3 else 6), groups
    assert sum(".summary" in call.call_id for call in calls) == seats
    assert all("agent-dev" not in call.prompt for call in calls)
    compared = [call.prompt for call in calls if ".group" in call.call_id]
    assert all("def hello_world" not in prompt for prompt in compared), (
        "summaries are compared, not patches"
    )


async def test_a_model_that_always_prefers_the_first_answer_decides_nothing(council: Any) -> None:
    def work(body: Any, headers: Any) -> str:
        prompt = body["messages"][-1]["content"]
        if phase_of(headers) == "verify" and "Now compare" in prompt:
            return json.dumps({"why": "the first", "order": ["A", "B"]})
        if phase_of(headers) == "verify":
            return _judge(prompt, "Hello")
        return append(SOLUTION if seat_of(headers) == ONE else WRONG)

    limits = LimitSettings(patience=0, second_wave="off")
    async with council(answer_with_approaches(work), files=PASSING, limits=limits) as app:
        events = await app.run(app.deliberation("tournament", 2, max_turns=1, rounds=0))
    assert of(events, EventType.SEAT_REVIEWED) == []


@pytest.mark.parametrize(("window", "compared"), [(32_768, True), (8192, False)])
async def test_tied_reviews_are_followed_by_a_comparison(
    council: Any, window: int, *, compared: bool
) -> None:
    def work(body: Any, headers: Any) -> str:
        prompt = body["messages"][-1]["content"]
        if phase_of(headers) == "verify" and "Now judge" in prompt:
            return review(7)
        if phase_of(headers) == "verify":
            return _judge(prompt, "Hello, World!")
        return append(WRONG if seat_of(headers) == ONE else SOLUTION)

    async with council(answer_with_approaches(work), files=PASSING, context_tokens=window) as app:
        events = await app.run(app.deliberation("tests_then_verify", 2, max_turns=1, rounds=0))
    scores = {
        data["candidate"]: data["review"]["score"]
        for data in of(events, EventType.SEAT_REVIEWED)
        if data["seat"] == COMPARISON
    }
    assert scores == ({TWO: 1.0, ONE: 0.0} if compared else {})


async def test_an_author_reads_summaries_of_the_other_answers_before_it_revises(
    council: Any,
) -> None:
    with_test = act(
        ("files.append", {"path": "src/utils.py", "content": SOLUTION}),
        ("files.write", {"path": "tests/test_more.py", "content": OWN_TEST}),
    )
    answer = by_seat(
        one=with_test, two=append(WRONG), three=append(WRONG + "\n"), revise=append("\n# more\n")
    )
    async with council(answer, files=PASSING) as app:
        await app.run(app.deliberation("debate", max_turns=1))
        prompts = {
            call.call_id.split("/")[1]: call.prompt
            for call in app.server.requests
            if "/revise/1.1" in call.call_id
        }
    assert set(prompts) == {ONE, TWO, THREE}
    for prompt in prompts.values():
        assert "answer A of a colleague" in prompt
        assert "agent-dev" not in prompt
    summary = prompts[TWO].partition("of a colleague")[2]
    assert "src/utils.py (+" in summary
    assert "Evidence: self-tested" in summary
    assert 'return "' not in summary, (
        "summaries contain no code, not even that printed by a failing test"
    )
    assert "Fails your tests." in prompts[ONE]
    assert "Fails the tests of answer" in prompts[THREE]
