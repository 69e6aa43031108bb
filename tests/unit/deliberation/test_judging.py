"""Whole councils: reviews, revisions, each other's tests. Real HTTP, gateway, git and pytest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moothall.domain.event import EventType
from support.council import (
    ONE,
    THREE,
    TWO,
    act,
    append,
    by_seat,
    of,
    outcomes,
    verdicts,
)
from support.repos import SAMPLE, SOLUTION

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

WRONG = '\n\ndef hello_world() -> str:\n    return "Goodbye"\n'
OTHER = '\n\ndef hello_world() -> str:\n    return "Hello, " + "World!"\n'
OWN_TEST = (
    "from utils import greet, hello_world\n\n\ndef test_more():\n    assert hello_world() == "
    "greet('World')\n"
)


async def test_debate_reviews_and_revises_and_keeps_the_original(council: Any) -> None:
    fix = act(("files.edit", {"path": "src/utils.py", "old": "Goodbye", "new": "Hello, World!"}))
    answer = by_seat(
        one=append(WRONG), two=append(WRONG + "\n"), three=append("\n" + WRONG), revise=fix
    )
    async with council(answer) as app:
        events = await app.run(app.deliberation("debate", max_turns=1))
    reviews = of(events, EventType.SEAT_REVIEWED)
    assert Counter(data["seat"] for data in reviews) == {ONE: 1, TWO: 1, THREE: 1}
    assert Counter(data["candidate"] for data in reviews) == {ONE: 1, TWO: 1, THREE: 1}
    assert all(data["seat"] != data["candidate"] for data in reviews)
    assert {data["candidate"] for data in of(events, EventType.SEAT_REVISED)} == {
        f"{seat}.r1" for seat in (ONE, TWO, THREE)
    }
    results = verdicts(events)
    assert results[ONE, "tests"] == "failed"
    assert results[f"{ONE}.r1", "tests"] == "passed"
    revision = next(
        call for call in app.server.requests if call.call_id == f"task-1/{ONE}/revise/1.1"
    )
    assert "Goodbye" in revision.body["messages"][2]["content"]
    assert "Score 0.7 of 1." in revision.prompt
    assert "agent-dev" not in revision.prompt


async def test_a_case_reported_by_one_run_of_a_slow_base_is_not_lost(council: Any) -> None:
    """A slow base runs once: a time in a case's name is noticed when a candidate seems to lack the
    case.
    """
    async with council(by_seat(one=append())) as app:
        (base,) = app.prepared.runs.values()
        run_of_base = replace(
            base, cases={**base.cases, "tests/test_utils.py::test_at[12:01:03]": "passed"}
        )
        app.prepared = replace(app.prepared, runs={"tests": run_of_base})
        events = await app.run(app.deliberation("vote", 1))
    assert verdicts(events)[ONE, "tests"] == "passed"
    (applies, *_) = of(events, EventType.CHECK_FINISHED)
    assert applies["assessment"]["regressions"] == []
    assert applies["assessment"]["proven"]
    assert sum(name.endswith("-base-tests") for name in app.workspaces.opened) == 1, (
        app.workspaces.opened
    )


async def test_a_case_that_a_candidate_removes_stays_lost(council: Any) -> None:
    tests = {
        "tests/test_more.py": (
            "import pytest, utils\n\n\n@pytest.mark.parametrize('n', utils.NUMBERS)\ndef "
            "test_n(n):\n    assert n\n"
        )
    }
    files = {**SAMPLE, "src/utils.py": f"{SAMPLE['src/utils.py']}\nNUMBERS = (1, 2)\n", **tests}
    async with council(by_seat(one=append(SOLUTION + "\n\nNUMBERS = (1,)\n")), files=files) as app:
        events = await app.run(app.deliberation("vote", 1))
    (applies, *_) = of(events, EventType.CHECK_FINISHED)
    assert applies["assessment"]["regressions"] == ["tests/test_more.py::test_n[2]"]


async def test_tests_then_verify_revises_with_execution_evidence(council: Any) -> None:
    fix = act(("files.edit", {"path": "src/utils.py", "old": "Goodbye", "new": "Hello, World!"}))
    async with council(
        by_seat(one=append(WRONG), two=append(WRONG), three=append(WRONG), revise=fix)
    ) as app:
        events = await app.run(app.deliberation("tests_then_verify", max_turns=1))
    revised = of(events, EventType.SEAT_REVISED)
    assert {data["candidate"] for data in revised} == {f"{seat}.r1" for seat in (ONE, TWO, THREE)}
    assert len({data["proposal"]["diff"] for data in revised}) == 1
    assert of(events, EventType.SEAT_REVIEWED) == []
    call = next(call for call in app.server.requests if call.call_id.split("/")[2] == "revise")
    assert "checks of your proposal on a clean checkout" in call.prompt
    assert "tests: failed (1 of 2 passed)" in call.prompt


async def test_tests_then_verify_revises_nothing_if_a_candidate_is_good(council: Any) -> None:
    async with council(by_seat(one=append(WRONG), two=append(WRONG), three=append())) as app:
        events = await app.run(app.deliberation("tests_then_verify", max_turns=1))
    assert of(events, EventType.SEAT_REVISED) == []
    assert of(events, EventType.SEAT_REVIEWED) == []


async def test_tests_then_verify_reviews_a_tie_and_no_seat_reviews_its_own_answer(
    council: Any,
) -> None:
    async with council(by_seat(one=append(), two=append(OTHER), three=append(WRONG))) as app:
        events = await app.run(app.deliberation("tests_then_verify", max_turns=1))
    reviews = of(events, EventType.SEAT_REVIEWED)
    assert sorted((data["seat"], data["candidate"]) for data in reviews) == [(ONE, TWO), (TWO, ONE)]
    assert reviews[0]["review"]["score"] == 0.7
    calls = [call for call in app.server.requests if call.call_id.split("/")[2] == "verify"]
    assert all("agent-dev" not in call.prompt for call in calls)


async def test_identical_diffs_are_not_a_tie(council: Any) -> None:
    async with council(by_seat(one=append(), two=append(), three=append())) as app:
        events = await app.run(app.deliberation("tests_then_verify"))
    assert of(events, EventType.SEAT_REVIEWED) == []


@pytest.mark.parametrize("protocol", ["vote", "tests_then_verify"])
async def test_peer_review_asks_all_seats(council: Any, protocol: str) -> None:
    async with council(by_seat(one=append(), two=append(OTHER), three=append(WRONG))) as app:
        events = await app.run(app.deliberation(protocol, max_turns=1, peer_review=True))
    reviews = [(data["seat"], data["candidate"]) for data in of(events, EventType.SEAT_REVIEWED)]
    assert sorted(reviews) == [
        (ONE, TWO),
        (ONE, THREE),
        (TWO, ONE),
        (TWO, THREE),
        (THREE, ONE),
        (THREE, TWO),
    ]


async def test_an_invalid_review_is_left_out(council: Any) -> None:
    async with council(
        by_seat(one=append(), two=append(OTHER), three=append(WRONG), review="great work")
    ) as app:
        events = await app.run(app.deliberation("tests_then_verify", max_turns=1))
    assert of(events, EventType.SEAT_REVIEWED) == []
    call_counts = Counter(
        call.call_id for call in app.server.requests if call.call_id.split("/")[2] == "verify"
    )
    assert f"task-1/{ONE}/verify/2.1.2" in call_counts
    assert set(outcomes(events).values()) == {"proposed"}


async def test_tests_of_other_seats_are_scored_and_can_prove_an_answer(council: Any) -> None:
    files = {
        **SAMPLE,
        "tests/test_utils.py": (
            "from utils import greet\n\n\ndef test_greet():\n    assert greet('A')\n"
        ),
    }
    with_test = act(
        ("files.append", {"path": "src/utils.py", "content": SOLUTION}),
        ("files.write", {"path": "tests/test_more.py", "content": OWN_TEST}),
    )
    useless = act(
        ("files.append", {"path": "src/utils.py", "content": OTHER}),
        (
            "files.write",
            {"path": "tests/test_useless.py", "content": "def test_nothing():\n    assert True\n"},
        ),
    )
    async with council(
        by_seat(one=with_test, two=useless, three=append(WRONG)), files=files
    ) as app:
        events = await app.run(app.deliberation("vote", max_turns=1))
    cross = {
        (data["candidate"], data["cross_author"]): data["evidence"]
        for data in of(events, EventType.CHECK_FINISHED)
        if data["evidence"]["check"] == "cross"
    }
    assert {pair: item["verdict"] for pair, item in cross.items()} == {
        (TWO, ONE): "passed",
        (THREE, ONE): "failed",
    }
    assert cross[TWO, ONE]["proven"] is True


@pytest.mark.parametrize(
    ("verdict", "window", "counts"),
    [
        ('{"why": "the task wants World", "contradicts": true}', 32_768, False),
        ('{"why": "it is what the task asks for", "contradicts": false}', 32_768, True),
        ("no verdict at all", 32_768, True),
        ('{"why": "noise", "contradicts": true}', 8192, True),
    ],
    ids=["contradicts", "fits", "unreadable", "a small model is not asked"],
)
async def test_a_reader_drops_tests_that_contradict_the_task(
    council: Any, verdict: str, window: int, *, counts: bool
) -> None:
    files = {
        **SAMPLE,
        "tests/test_utils.py": (
            "from utils import greet\n\n\ndef test_greet():\n    assert greet('A')\n"
        ),
    }
    wrong_test = (
        "from utils import hello_world\n\n\ndef test_more():\n    assert hello_world() == "
        "'Goodbye'\n"
    )
    with_test = act(
        ("files.append", {"path": "src/utils.py", "content": WRONG}),
        ("files.write", {"path": "tests/test_more.py", "content": wrong_test}),
    )

    def answer(body: Any, headers: Any) -> str:
        if "tests that a colleague wrote" in body["messages"][-1]["content"]:
            return verdict
        return str(by_seat(one=with_test, two=append())(body, headers))

    async with council(answer, files=files, context_tokens=window) as app:
        events = await app.run(app.deliberation("vote", 2, max_turns=1))
        calls = [call for call in app.server.requests if ".tests." in call.call_id]
    check_verdicts = verdicts(events)
    assert check_verdicts[ONE, "own tests"] == "passed"
    assert ((TWO, "cross") in check_verdicts) is counts
    assert ((ONE, "contradiction") in check_verdicts) is not counts
    assert len(calls) == (window > 16_000)
    assert not any(
        "Goodbye" in call.prompt and "hello_world() -> str" in call.prompt for call in calls
    ), "it sees no candidate"


async def test_editing_protected_tests_gains_nothing(council: Any) -> None:
    cheat = act(
        (
            "files.write",
            {
                "path": "tests/test_utils.py",
                "content": "def test_hello_world():\n    assert True\n",
            },
        )
    )
    async with council(by_seat(one=cheat)) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=2))
    assert verdicts(events)[ONE, "tests"] == "failed"
    applies = next(data for data in of(events, EventType.CHECK_FINISHED) if "assessment" in data)
    assert applies["assessment"]["proven"] is False


async def test_a_line_flagged_for_a_person_is_shown_and_decides_nothing(
    council: Any,
) -> None:
    async with council(
        by_seat(one=append("\nimport gc\nFOUND = gc.get_objects\n" + SOLUTION))
    ) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=1))
    applies = next(data for data in of(events, EventType.CHECK_FINISHED) if "assessment" in data)
    flagged_lines = ["src/utils.py:9: runs code that cannot be read here"]
    assert applies["evidence"]["look"] == applies["assessment"]["look"] == flagged_lines
    assert applies["assessment"]["proven"]


async def test_failures_in_the_authors_new_tests_are_reported_and_refuse_nothing(
    council: Any,
) -> None:
    red = act(
        ("files.append", {"path": "src/utils.py", "content": SOLUTION}),
        (
            "files.write",
            {"path": "tests/test_more.py", "content": "def test_more():\n    assert False\n"},
        ),
    )
    async with council(by_seat(one=red)) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=1))
    evidence = {
        data["evidence"]["check"]: data["evidence"] for data in of(events, EventType.CHECK_FINISHED)
    }
    assert (evidence["tests"]["verdict"], evidence["tests"]["proven"]) == ("passed", True)
    assert (evidence["own tests"]["failed"], evidence["own tests"]["red"]) == (
        1,
        ["tests/test_more.py::test_more"],
    )


_NEEDS_OTHERS = """import os

def test_a():
    os.environ["MADE"] = "1"

def test_b():
    assert os.environ.pop("MADE")
    import utils
    utils.hello_world()
"""
_EVERY_OTHER_TIME = """from pathlib import Path

def test_b():
    import utils
    utils.hello_world()
    seen = Path({!r})
    seen.write_text(str(int(seen.read_text()) + 1))
    assert int(seen.read_text()) % 2 == 0  # first its seat looks, then the re-check
"""


@pytest.mark.parametrize(("text", "proven"), [(_NEEDS_OTHERS, True), (_EVERY_OTHER_TIME, False)])
async def test_a_case_that_depends_on_earlier_cases_can_prove_and_a_flaky_case_cannot(
    council: Any, tmp_path: Path, text: str, *, proven: bool
) -> None:
    count = tmp_path / "count"
    count.write_text("0", encoding="utf-8")
    files = {**SAMPLE, "tests/test_utils.py": text.format(str(count))}
    async with council(by_seat(one=append()), files=files) as app:
        app.workspaces.forgetful = True
        events = await app.run(app.deliberation("single", 1, max_turns=1))
    applies = next(data for data in of(events, EventType.CHECK_FINISHED) if "assessment" in data)
    assert applies["assessment"]["proven"] is proven, applies
