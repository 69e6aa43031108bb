"""A seat claims that the task is already done: a test that passes on the base and that the task
asks for proves it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from moothall.cli.runtime import exit_code
from moothall.config import EvidenceSettings
from moothall.testing.model import NativeReply, phase_of, seat_of, step_of
from support.council import ONE, TWO, outcome_from, verdicts
from support.repos import SAMPLE, SOLUTION

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

UTILS = "src/utils.py"
DONE = {
    **SAMPLE,
    UTILS: SAMPLE[UTILS] + SOLUTION,
    "tests/test_utils.py": (
        "from utils import greet\n\n\ndef test_greet():\n    assert greet('A')\n"
    ),
}
OPEN = {**DONE, UTILS: SAMPLE[UTILS]}
SHOWS = (
    "from utils import hello_world\n\n\ndef test_shown():\n    assert hello_world() == 'Hello, "
    "World!'\n"
)
EMPTY = "def test_shown():\n    assert True\n"
CLAIM = ("submit", {"summary": "Already done: hello_world() is there, and the new test shows it."})
YES, NO = (
    '{"why": "it calls hello_world()", "done": true}',
    '{"why": "it checks nothing", "done": false}',
)


def writes(text: str, path: str = "tests/test_shown.py") -> tuple[str, Mapping[str, str]]:
    return ("write", {"path": path, "content": text})


def script(seats: Mapping[str, tuple[Any, ...]], reader: str) -> Callable[[Any, Any], Any]:
    """Let each seat make its calls in one turn, whatever the turn; the reader of claims replies
    `reader`.
    """

    def answer(body: Any, headers: Any) -> Any:
        if ".claim" in step_of(headers):
            return reader
        if phase_of(headers) in {"critique", "verify"}:
            return (
                '{"comment": "fine", "met": [], "unmet": [1], "score": 5, "why": "", '
                '"contradicts": false}'
            )
        return NativeReply(seats[seat_of(headers)])

    return answer


async def test_a_completed_task_ends_with_the_test_that_shows_it(native: Any) -> None:
    async with native(
        script({ONE: (writes(SHOWS), CLAIM)}, YES), files=DONE, evidence=EvidenceSettings()
    ) as app:
        d = app.deliberation("single", 1)
        events = await app.run(d)
        assert not [call for call in app.server.requests if "/test-writer/" in call.call_id], (
            "there is nothing to test"
        )
    assert verdicts(events)[ONE, "already done"] == "passed"
    outcome = outcome_from(d, events)
    assert (outcome.winner_id, outcome.final_state, exit_code(outcome)) == (ONE, "already_done", 0)
    assert outcome.branch == ""
    assert any("tests/test_shown.py::test_shown" in reason for reason in outcome.results[0].reasons)
    assert not outcome.undecided


@pytest.mark.parametrize(
    ("files", "test", "reader", "words"),
    [
        (OPEN, SHOWS, YES, "fail on the base"),
        (DONE, EMPTY, NO, "it checks nothing"),
        (DONE, SHOWS, "who knows", "did not say"),
    ],
    ids=["its test fails on the base", "the reader says no", "the reader does not say"],
)
async def test_a_claim_without_valid_proof_is_an_unproven_answer(
    native: Any, files: Any, test: str, reader: str, words: str
) -> None:
    async with native(script({ONE: (writes(test), CLAIM, CLAIM)}, reader), files=files) as app:
        d = app.deliberation("single", 1)
        events = await app.run(d)
    outcome = outcome_from(d, events)
    assert outcome.final_state != "already_done"
    assert exit_code(outcome) != 0
    if (ONE, "already done") in verdicts(events):
        start = "Unproven: it changes no code and claims that the task is already done, but"
        assert any(
            reason.startswith(start) and words in reason for reason in outcome.results[0].reasons
        )


async def test_a_change_whose_test_fails_on_the_base_beats_the_claim(native: Any) -> None:
    """The claim's test passes on the base, and its reader is mistaken: the task only seems to be
    done.
    """
    change = ("write", {"path": UTILS, "content": SAMPLE[UTILS] + SOLUTION})
    seats = {
        ONE: (writes(EMPTY), CLAIM),
        TWO: (change, writes(SHOWS, "tests/test_two.py"), ("submit", {"summary": "Added."})),
    }
    async with native(script(seats, YES), files=OPEN) as app:
        d = app.deliberation("vote", 2)
        events = await app.run(d)
    outcome = outcome_from(d, events)
    assert (outcome.winner_id, outcome.final_state) == (TWO, "committed")


async def test_a_claim_beats_a_change_that_no_test_supports(native: Any) -> None:
    change = ("write", {"path": UTILS, "content": DONE[UTILS] + "\n\nEXTRA = 1\n"})
    seats = {ONE: (writes(SHOWS), CLAIM), TWO: (change, ("submit", {"summary": "Added."}))}
    async with native(script(seats, YES), files=DONE) as app:
        d = app.deliberation("vote", 2)
        events = await app.run(d)
    outcome = outcome_from(d, events)
    assert (outcome.winner_id, outcome.final_state) == (ONE, "already_done")


async def test_a_claim_without_a_test_or_with_changed_code_is_ignored(native: Any) -> None:
    """Code was changed too, or there is no test: then it is an ordinary answer, or none."""
    change = ("write", {"path": UTILS, "content": DONE[UTILS] + "\n\nEXTRA = 1\n"})
    async with native(script({ONE: (change, writes(SHOWS), CLAIM)}, YES), files=DONE) as app:
        events = await app.run(app.deliberation("single", 1))
    assert (ONE, "already done") not in verdicts(events)
