"""Existing tests that expect what the task asks to change: a right answer is not refused for
failing them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from moothall.config import EvidenceSettings
from moothall.domain.event import Event
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.outcome import Outcome
from moothall.testing.model import NativeReply, phase_of, seat_of, step_of
from support.council import ONE, TWO, outcome_from, verdicts
from support.repos import SAMPLE

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

TASK = (
    "parse_port('') should raise ValueError('empty port') instead of returning 0; other ports stay "
    "as they are."
)
BASE = "def parse_port(text):\n    return int(text or 0)\n"
RIGHT = (
    "def parse_port(text):\n    if not text:\n        raise ValueError('empty port')\n    return "
    "int(text)\n"
)
IDLE = BASE.replace("text or 0", "text.strip() or 0")
OLD = (
    "import pytest\n\nfrom ports import parse_port\n\n\ndef test_empty():\n    assert "
    "parse_port('') == 0\n\n\n"
    "def test_number():\n    assert parse_port('80') == 80\n"
)
NEW = OLD.replace(
    "    assert parse_port('') == 0\n",
    "    with pytest.raises(ValueError, match='empty port'):\n        parse_port('')\n",
)
FILES = {
    "src/ports.py": BASE,
    "tests/test_ports.py": OLD,
    "pyproject.toml": SAMPLE["pyproject.toml"],
}
SUPERSEDED = json.dumps(
    {"superseded": [{"test": 1, "why": "the task asks for an error instead of 0"}]}
)
NONE = json.dumps({"superseded": []})
OFF = EvidenceSettings(agents=())
_REPLY = json.dumps(
    {"comment": "", "met": [], "unmet": [1], "score": 5, "why": "", "contradicts": False}
)


def council_of(read: str, **seats: Mapping[str, str]) -> Callable[[Any, Any], Any]:
    """Let each seat (`one`, `two`) write its files and submit; `read` is the reply of the reader of
    changed tests.
    """
    named = {ONE: seats.get("one", {}), TWO: seats.get("two", {})}

    def answer(_body: Any, headers: Any) -> Any:
        if ".superseded." in step_of(headers):
            return read
        if phase_of(headers) in {"critique", "verify"}:
            return _REPLY
        writes = [
            ("write", {"path": path, "content": text})
            for path, text in named[seat_of(headers)].items()
        ]
        return NativeReply((*writes, ("submit", {"summary": "done"})))

    return answer


async def run(native: Any, answer: Any, seats: int = 2) -> tuple[Outcome, list[Event], list[str]]:
    """Return the council's decision, its events, and the prompt of the reader of changed tests."""
    async with native(answer, files=FILES, evidence=OFF) as app:
        d = app.deliberation("vote", seats, description=TASK)
        events = await app.run(d)
        prompts = [call.prompt for call in app.server.requests if ".superseded." in call.call_id]
    return outcome_from(d, events), events, prompts


async def test_a_right_answer_that_breaks_a_superseded_test_wins(native: Any) -> None:
    answer = council_of(
        SUPERSEDED,
        one={"src/ports.py": IDLE},
        two={"src/ports.py": RIGHT, "tests/test_ports.py": NEW},
    )
    outcome, events, prompts = await run(native, answer)
    assert (outcome.winner_id, outcome.evidence_level) == (TWO, EvidenceLevel.SELF_TESTED), (
        outcome.results[0].reasons
    )
    assert verdicts(events)[TWO, "superseded tests"] == "passed"
    reasons = "\n".join(outcome.results[0].reasons)
    assert "it breaks tests that expect what the task asks to change" in reasons
    assert "tests/test_ports.py::test_empty (the task asks for an error instead of 0)" in reasons
    (prompt,) = prompts
    assert "1. tests/test_ports.py::test_empty" in prompt
    assert "raise ValueError('empty port')\n    return int(text)" not in prompt, (
        "no code change is visible"
    )


async def test_an_equivalent_answer_without_a_changed_test_is_excused_too(
    native: Any,
) -> None:
    answer = council_of(
        SUPERSEDED,
        one={"src/ports.py": RIGHT + "\n"},
        two={"src/ports.py": RIGHT, "tests/test_ports.py": NEW},
    )
    outcome, *_ = await run(native, answer)
    first, second = outcome.results
    assert {first.evidence_level, second.evidence_level} == {
        EvidenceLevel.REPRODUCED,
        EvidenceLevel.SELF_TESTED,
    }
    assert (outcome.winner_id, outcome.evidence_level) == (ONE, EvidenceLevel.REPRODUCED)


async def test_a_test_weakened_by_one_author_is_read_again_when_another_changes_it(
    native: Any,
) -> None:
    """The reader rejects the first change, and the second author's right answer is not refused for
    it.
    """
    weak = OLD.replace("    assert parse_port('') == 0\n", "    parse_port\n")
    broken = BASE.replace("int(text or 0)", "int(text or 1)")
    answer = council_of(
        SUPERSEDED,
        one={"src/ports.py": broken, "tests/test_ports.py": weak},
        two={"src/ports.py": RIGHT, "tests/test_ports.py": NEW},
    )

    def answer_reader(body: Any, headers: Any) -> Any:
        weakened = (
            ".superseded." in step_of(headers)
            and "+    parse_port\n" in body["messages"][-1]["content"]
        )
        return NONE if weakened else answer(body, headers)

    outcome, _, prompts = await run(native, answer_reader)
    assert outcome.winner_id == TWO, outcome.results[0].reasons
    assert len(prompts) == 2


@pytest.mark.parametrize("read", [NONE, "no answer at all"])
async def test_without_the_readers_approval_an_existing_test_counts_as_on_the_base(
    native: Any, read: str
) -> None:
    answer = council_of(
        read, one={"src/ports.py": IDLE}, two={"src/ports.py": RIGHT, "tests/test_ports.py": NEW}
    )
    outcome, events, prompts = await run(native, answer)
    assert (outcome.winner_id, outcome.evidence_level) == (ONE, EvidenceLevel.UNPROVEN)
    assert (TWO, "superseded tests") not in verdicts(events)
    assert len(prompts) == 1


async def test_a_deleted_test_is_not_submitted_to_the_reader(native: Any) -> None:
    shortened_tests = OLD.replace("def test_empty():\n    assert parse_port('') == 0\n\n\n", "")
    answer = council_of(
        SUPERSEDED, one={"src/ports.py": RIGHT, "tests/test_ports.py": shortened_tests}
    )
    outcome, _, prompts = await run(native, answer, seats=1)
    assert outcome.winner_id == ""
    assert prompts == []
