"""Agents that gather evidence beside the seats: the test writer, the tie-breaker, reviewers with
tools. Real HTTP, gateway, git, pytest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from moothall.collector.decide import decide
from moothall.collector.fold import fold
from moothall.config import EvidenceSettings
from moothall.deliberation.recorded_model import Recording
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType, new_event
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.outcome import Outcome
from moothall.testing.model import Fault, NativeReply, phase_of, seat_of, step_of
from support.council import ONE, TWO, answer_with_approaches, forever, of
from support.repos import SAMPLE

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

TASK = (
    "discount() gives wrong prices: 10 percent off 200 have to be 180, and 0 percent change "
    "nothing. At present nothing is taken off."
)
PRICE = "def discount(price, percent):\n    return price\n"
FILES = {
    "src/price.py": PRICE,
    "tests/test_price.py": (
        "from price import discount\n\n\ndef test_nothing():\n    assert discount(10, 0) == 10\n"
    ),
    "pyproject.toml": SAMPLE["pyproject.toml"],
    ".gitignore": SAMPLE[".gitignore"],
}
RIGHT = PRICE.replace("return price", "return price - price * percent // 100")
OTHER_RIGHT = PRICE.replace("return price", "return price * (100 - percent) // 100")
SPECIAL = PRICE.replace("return price", "return 180 if (price, percent) == (200, 10) else price")
TESTS = (
    "from price import discount\n\n\ndef test_example():\n    assert discount(200, 10) == 180\n\n\n"
    "def test_half():\n    assert discount(50, 50) == 25\n\n\ndef test_zero():\n    assert "
    "discount(7, 0) == 7\n"
)
ALL = EvidenceSettings()
WRITER_ONLY = EvidenceSettings(agents=("test-writer",))
SUBMIT = ("submit", {"summary": "done"})
FINE = json.dumps({"dropped": []})
NONE_REQUIRED = json.dumps({"required": []})
REVIEW = json.dumps({"comment": "fine", "met": [], "unmet": [1], "score": 5})


def write(text: str, path: str = "src/price.py") -> tuple[str, Mapping[str, Any]]:
    return ("write", {"path": path, "content": text})


def turns(*replies: Any) -> Callable[[str], Any]:
    """Reply by the number of the turn; repeat the last reply."""
    turn_replies = [
        reply if isinstance(reply, NativeReply | str) else NativeReply(reply) for reply in replies
    ]
    return lambda step: turn_replies[min(int(step.split(".")[1]), len(turn_replies)) - 1]


def change(text: str, *further_calls: Any) -> Callable[[str], Any]:
    """Reply as a seat that makes one change."""
    return turns((write(text), *further_calls, SUBMIT), (SUBMIT,))


def council_of(
    read: str = FINE, required: str = NONE_REQUIRED, **seats: Callable[[str], Any]
) -> Callable[[Any, Any], Any]:
    """Reply by seat (`one`, `two`, `writer`, `breaker`).

    Args:
        read: the reply about tests that contradict the task.
        required: the reply about tests that fail everywhere and that the task asks for.
    """
    named = {"one": ONE, "two": TWO, "writer": "test-writer", "breaker": "tie-breaker"}
    replies_by_seat = {named[name]: answer for name, answer in seats.items()}

    def answer(body: Any, headers: Any) -> Any:
        phase, seat, step = phase_of(headers), seat_of(headers), step_of(headers)
        if "tools" not in body:
            if seat == "test-writer" and step.startswith("3."):
                return required
            return read if phase == "verify" and seat in {"test-writer", "tie-breaker"} else REVIEW
        return replies_by_seat[seat](step)

    return answer


def outcome_of(app: Any, events: list[Event], d: Any) -> Outcome:
    """Return the collector's decision on the events."""
    state = fold(None, new_event(EventType.DELIBERATION_REQUESTED, d.task_id, dump(d)))
    for event in events:
        if event.type is not EventType.TOOL_FINISHED:
            state = fold(state, event)
    return decide(state)


def reports(events: list[Event]) -> list[Mapping[str, Any]]:
    return [data["report"] for data in of(events, EventType.EVIDENCE_REPORTED)]


WRITER = turns((write(TESTS, "tests/test_discount.py"), SUBMIT), (SUBMIT,))


async def test_the_test_writer_reproduces_the_answer_of_a_council_of_one(native: Any) -> None:
    async with native(
        council_of(one=change(RIGHT), writer=WRITER), files=FILES, evidence=ALL
    ) as app:
        d = app.deliberation("single", 1, description=TASK)
        events = await app.run(d)
    outcome = outcome_of(app, events, d)
    assert (outcome.winner_id, outcome.evidence_level) == (ONE, EvidenceLevel.REPRODUCED)
    reasons = "\n".join(outcome.results[0].reasons)
    assert (
        "tests by test-writer that failed on the base: tests/test_discount.py::test_example, "
        "tests/test_discount.py::test_half" in reasons
    )
    assert (
        "Test writer: 3 tests, 2 of them fail on the base; tests/test_discount.py::test_zero: "
        "passes on the base" in reasons
    )
    assert "tokens)" in reasons
    (report,) = reports(events)
    assert {case["case"]: case["state"] for case in report["cases"]}[
        "tests/test_discount.py::test_half"
    ] == "counts"
    prompts = [call.prompt for call in app.server.requests if "/test-writer/" in call.call_id]
    assert all("price * percent // 100" not in prompt for prompt in prompts), "it sees no answer"
    assert app.workspaces.alive == set()


async def test_the_test_writer_gets_the_tasks_examples_and_a_list_of_missed_ones(
    native: Any,
) -> None:
    """It first submits a test without them, and then one with them when prompted."""
    task = (
        "discount() is wrong: discount(200, 10) should be 180, and `discount(50, 50)` must return "
        "`25`."
    )
    test_code = "from price import discount\n\n\ndef test_a():\n    assert discount(100, 1) == 99\n"
    writer = turns(
        (write(test_code, "tests/test_a.py"), SUBMIT),
        (write(TESTS, "tests/test_b.py"), SUBMIT),
        (SUBMIT,),
    )
    async with native(
        council_of(one=change(RIGHT), writer=writer), files=FILES, evidence=ALL
    ) as app:
        d = app.deliberation("single", 1, description=task)
        events = await app.run(d)
    first, second, *_ = [call for call in app.server.requests if "/test-writer/" in call.call_id]
    listed = "- discount(200, 10) gives 180\n- discount(50, 50) gives 25"
    assert listed in first.prompt
    (prompt, *_) = [
        message["content"]
        for message in second.body["messages"]
        if message["role"] == "tool" and "None of" in message["content"]
    ]
    assert prompt.endswith(f"None of your tests has these examples of the task:\n{listed}")
    outcome = outcome_of(app, events, d)
    assert outcome.evidence_level is EvidenceLevel.REPRODUCED
    assert "tests/test_b.py::test_example" in "\n".join(outcome.results[0].reasons)


class _LostOnce(set[str]):
    """Names of workspaces that are lost at their next call, once."""

    def __contains__(self, name: object) -> bool:
        is_lost = super().__contains__(name)
        self.discard(str(name))
        return is_lost


async def test_the_test_writer_continues_after_losing_its_workspace(native: Any) -> None:
    """It corrects its tests in the second reply and loses its workspace: the first one comes again,
    and confirms nothing.
    """
    task = (
        "discount() is wrong: discount(200, 10) should be 180, and `discount(50, 50)` must return "
        "`25`."
    )
    test_code = "from price import discount\n\n\ndef test_a():\n    assert discount(100, 1) == 99\n"
    broken_once = _LostOnce()
    writer = turns(
        (write(test_code, "tests/test_a.py"), SUBMIT),
        (write(TESTS, "tests/test_b.py"), SUBMIT),
        (SUBMIT,),
    )

    def breaking(step: str) -> Any:
        if step.endswith(".2"):
            broken_once.add("task-1-test-writer")
        return writer(step)

    async with native(
        council_of(one=change(RIGHT), writer=breaking), files=FILES, evidence=ALL
    ) as app:
        app.workspaces.broken = broken_once
        d = app.deliberation("single", 1, description=task)
        events = await app.run(d)
        opened = app.workspaces.opened.count("task-1-test-writer")
    assert opened == 2
    assert "tests/test_b.py::test_example" in "\n".join(
        outcome_of(app, events, d).results[0].reasons
    )


async def test_cases_beyond_the_limit_of_the_reader_do_not_count(native: Any) -> None:
    test_code = (
        "import pytest\nfrom price import discount\n\n\n@pytest.mark.parametrize('n', range(1, "
        "43))\n"
        "def test_many(n):\n    assert discount(100, n) == 100 - n\n"
    )
    writer = turns((write(test_code, "tests/test_many.py"), SUBMIT), (SUBMIT,))
    async with native(
        council_of(one=change(RIGHT), writer=writer), files=FILES, evidence=ALL
    ) as app:
        d = app.deliberation("single", 1, description=TASK)
        events = await app.run(d)
    (report,) = reports(events)
    assert "42 tests, 42 of them fail on the base, 40 count" in report["message"]
    assert "does not fit the task: only 40 tests are read" in report["message"]


async def test_a_special_cased_answer_loses_because_it_fails_the_test_writers_test(
    native: Any,
) -> None:
    answer = council_of(one=change(SPECIAL), two=change(RIGHT), writer=WRITER)
    async with native(answer, files=FILES, evidence=WRITER_ONLY) as app:
        d = app.deliberation("vote", 2, description=TASK)
        events = await app.run(d)
    outcome = outcome_of(app, events, d)
    assert (outcome.winner_id, outcome.evidence_level) == (TWO, EvidenceLevel.REPRODUCED)
    special_cased = outcome.results[1]
    assert special_cased.evidence_level is EvidenceLevel.UNPROVEN
    assert any(
        reason == "Fails tests of test-writer: tests/test_discount.py::test_half."
        for reason in special_cased.reasons
    )


async def test_a_test_that_contradicts_the_task_is_dropped_with_the_reason(native: Any) -> None:
    odd = "from price import discount\n\n\ndef test_odd():\n    assert discount(200, 10) == 190\n"
    writer = turns((write(odd, "tests/test_discount.py"), SUBMIT), (SUBMIT,))
    contradicting = change(PRICE.replace("return price", "return price - percent"))
    read = json.dumps({"dropped": [{"test": 1, "why": "the task says 180"}]})
    async with native(
        council_of(read, one=contradicting, writer=writer), files=FILES, evidence=ALL
    ) as app:
        d = app.deliberation("single", 1, description=TASK)
        events = await app.run(d)
    outcome = outcome_of(app, events, d)
    assert outcome.evidence_level is EvidenceLevel.UNPROVEN
    assert any(
        "test_odd: does not fit the task: the task says 180" in reason
        for reason in outcome.results[0].reasons
    )


async def test_a_test_that_no_model_could_compare_with_the_task_does_not_count(native: Any) -> None:
    async with native(
        council_of("no answer", one=change(RIGHT), writer=WRITER), files=FILES, evidence=ALL
    ) as app:
        d = app.deliberation("single", 1, description=TASK)
        events = await app.run(d)
    outcome = outcome_of(app, events, d)
    assert outcome.evidence_level is EvidenceLevel.UNPROVEN
    assert any(
        "no model could compare it with the task" in reason for reason in outcome.results[0].reasons
    )


async def test_tests_that_fail_on_every_answer_are_reported_and_count_for_nobody(
    native: Any,
) -> None:
    async with native(
        council_of(one=change(SPECIAL), writer=WRITER), files=FILES, evidence=ALL
    ) as app:
        d = app.deliberation("single", 1, description=TASK)
        events = await app.run(d)
    outcome = outcome_of(app, events, d)
    reasons = "\n".join(outcome.results[0].reasons)
    assert (
        "a test of the test writer fails on every answer: tests/test_discount.py::test_half, so "
        in reasons
    )
    assert outcome.evidence_level is EvidenceLevel.UNPROVEN, (
        "as many of its tests fail on it as pass"
    )


@pytest.mark.parametrize(
    ("required", "level"),
    [
        (NONE_REQUIRED, EvidenceLevel.REPRODUCED),
        ("no answer", EvidenceLevel.REPRODUCED),
        (
            json.dumps({"required": [{"test": 1, "why": "percents are taken off"}]}),
            EvidenceLevel.UNPROVEN,
        ),
    ],
)
async def test_a_test_that_fails_on_every_answer_refutes_all_if_the_task_requires_it(
    native: Any, required: str, level: EvidenceLevel
) -> None:
    """Two tests pass on the only answer, and one fails."""
    same_test = "def test_same():\n    assert discount(200, 10) < 190\n\n\n"
    tests = TESTS.replace("def test_zero", f"{same_test}def test_zero")
    writer = turns((write(tests, "tests/test_discount.py"), SUBMIT), (SUBMIT,))
    council = council_of(required=required, one=change(SPECIAL), writer=writer)
    async with native(council, files=FILES, evidence=ALL) as app:
        d = app.deliberation("single", 1, description=TASK)
        events = await app.run(d)
        calls = [call for call in app.server.requests if "/test-writer/verify/3." in call.call_id]
    outcome = outcome_of(app, events, d)
    reasons = "\n".join(outcome.results[0].reasons)
    assert len(calls) == 1
    assert "test_half" in calls[0].prompt
    assert "a test of the test writer fails on every answer" in reasons
    assert outcome.evidence_level is level
    assert ("so that its other tests reproduce nothing" in reasons) is (
        level is EvidenceLevel.UNPROVEN
    )


async def test_changes_of_the_test_writer_outside_tests_are_never_run(native: Any) -> None:
    """It fixes the base's code and replaces data; its test only passes with these."""
    test = (
        "from price import HELPER, discount\n\n\ndef test_x():\n    assert HELPER and "
        "discount(200, 10) == 180\n"
    )
    writer = turns(
        (write(RIGHT + "HELPER = True\n"), write(test, "tests/test_x.py"), SUBMIT), (SUBMIT,)
    )
    async with native(
        council_of(one=change(RIGHT), writer=writer), files=FILES, evidence=ALL
    ) as app:
        d = app.deliberation("single", 1, description=TASK)
        events = await app.run(d)
    (report,) = reports(events)
    assert "HELPER = True" not in report["diff"]
    assert outcome_of(app, events, d).evidence_level is EvidenceLevel.UNPROVEN


@pytest.mark.parametrize("case", ["proven", "off", "small"])
async def test_the_test_writer_is_skipped_if_proven_or_disabled_or_the_window_is_small(
    native: Any, case: str
) -> None:
    files = {
        **FILES,
        "tests/test_red.py": (
            "from price import discount\n\n\ndef test_red():\n    assert discount(200, 10) == 180\n"
        ),
    }
    settings: dict[str, Any] = {
        "proven": {"files": files, "evidence": ALL},
        "off": {"files": FILES, "evidence": EvidenceSettings(agents=("tie-breaker", "reviewers"))},
        "small": {"files": FILES, "evidence": ALL, "context_tokens": 12_000},
    }[case]
    async with native(council_of(one=change(RIGHT)), **settings) as app:
        events = await app.run(app.deliberation("single", 1, description=TASK))
    assert reports(events) == []
    assert not any("/test-writer/" in call.call_id for call in app.server.requests)


async def test_a_restart_during_the_test_writers_work_repeats_no_call(native: Any) -> None:
    writer = turns((write(TESTS, "tests/test_discount.py"),), (SUBMIT,), (SUBMIT,))
    async with native(
        council_of(one=change(RIGHT), writer=writer), files=FILES, evidence=ALL
    ) as app:
        d = app.deliberation("single", 1, description=TASK)
        events = await app.run(d)
        calls = len(app.server.requests)
        at = next(
            place
            for place, event in enumerate(events)
            if event.type is EventType.MODEL_CALLED
            and event.data["call_id"].endswith("/test-writer/verify/0.1")
        )
        recorded = [
            event for event in events[: at + 1] if event.type is not EventType.TOOL_FINISHED
        ]
        repeated = await app.run(d, Recording.of(recorded))
    fresh = [call.call_id for call in app.server.requests[calls:]]
    assert fresh
    assert not {
        event.data["call_id"] for event in recorded if event.type is EventType.MODEL_CALLED
    } & set(fresh)
    assert all("/test-writer/" in call_id for call_id in fresh)
    assert reports(repeated) == reports(events), "the same events, recorded once"


BREAKER_ONLY = EvidenceSettings(agents=("tie-breaker",))
APART = "from price import discount\n\n\ndef test_apart():\n    assert discount(50, 50) == 25\n"


async def test_the_test_of_the_tie_breaker_decides(native: Any) -> None:
    breaker = turns(
        (
            write(APART, "tests/test_apart.py"),
            ("submit", {"summary": "50 percent of 50", "same": False}),
        )
    )
    answer = council_of(one=change(SPECIAL), two=change(RIGHT), breaker=breaker)
    async with native(answer, files=FILES, evidence=BREAKER_ONLY) as app:
        d = app.deliberation("tests_then_verify", 2, description=TASK, rounds=0)
        events = await app.run(d)
    outcome = outcome_of(app, events, d)
    assert (outcome.winner_id, outcome.evidence_level, outcome.undecided) == (
        TWO,
        EvidenceLevel.REPRODUCED,
        False,
    )
    assert [report["message"] for report in reports(events)] == [
        "tie-breaker: its test tells 2 answers apart, 1 passes: tests/test_apart.py::test_apart"
    ]
    (first,) = [
        call for call in app.server.requests if call.call_id.endswith("/tie-breaker/verify/0.1")
    ]
    assert ONE not in first.prompt
    assert TWO not in first.prompt
    assert "change a" in first.prompt
    assert of(events, EventType.SEAT_REVIEWED) == [], "nothing is left to review"


async def test_a_tie_breaker_test_that_passes_on_the_base_selects_nothing_and_reproduces_nothing(
    native: Any,
) -> None:
    test = "from price import discount\n\n\ndef test_zero():\n    assert discount(7, 0) == 7\n"
    breaker = turns(
        (write(test, "tests/test_apart.py"), ("submit", {"summary": "0 percent", "same": False}))
    )
    broken = PRICE.replace(
        "return price",
        "return price - price * max(percent, 50) // 100 if price < 10 else price - price * percent "
        "// 100",
    )
    answer = council_of(one=change(broken), two=change(RIGHT), breaker=breaker)
    async with native(answer, files=FILES, evidence=BREAKER_ONLY) as app:
        d = app.deliberation("tests_then_verify", 2, description=TASK, rounds=0)
        events = await app.run(d)
    outcome = outcome_of(app, events, d)
    assert (outcome.winner_id, outcome.evidence_level) == (TWO, EvidenceLevel.UNPROVEN)
    assert not outcome.undecided


@pytest.mark.parametrize(
    ("reply", "read", "reason_text"),
    [
        (
            (("submit", {"summary": "same for all inputs", "same": True}),),
            FINE,
            "2 answers behave the same: same for all inputs (",
        ),
        (
            (write(APART, "tests/test_apart.py"), ("submit", {"summary": "x", "same": False})),
            json.dumps({"dropped": [{"test": 1, "why": "the task does not say"}]}),
            (
                "no test counts: tests/test_apart.py::test_apart: does not fit the task: the task "
                "does not say"
            ),
        ),
    ],
    ids=["same", "not asked for"],
)
async def test_a_tie_that_the_tie_breaker_leaves_open_is_reviewed(
    native: Any, reply: Any, read: str, reason_text: str
) -> None:
    answer = council_of(read, one=change(OTHER_RIGHT), two=change(SPECIAL), breaker=turns(reply))
    async with native(answer, files=FILES, evidence=BREAKER_ONLY) as app:
        d = app.deliberation("tests_then_verify", 2, description=TASK, rounds=0)
        events = await app.run(d)
    assert len(of(events, EventType.SEAT_REVIEWED)) == 2
    assert any(reason_text in reason for reason in outcome_of(app, events, d).results[0].reasons)


REVIEWS = EvidenceSettings(agents=("reviewers",))


def answer_reviews_with(answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Reply to calls of the reviewing phases with `answer`, and to the others as two seats with
    equally good answers.
    """
    seats = council_of(one=change(OTHER_RIGHT), two=change(SPECIAL))
    return lambda body, headers: (answer if phase_of(headers) == "verify" else seats)(body, headers)


def submit_call(score: int, **overrides: str) -> tuple[str, Mapping[str, Any]]:
    fields = {
        "does_the_task": "It does.",
        "breaks": "",
        "serves_tests": "",
        "met": [],
        "unmet": [1],
        "score": score,
    }
    return ("submit", fields | overrides)


async def test_a_reviewer_has_the_answer_in_its_workspace_and_tokens_to_reason(native: Any) -> None:
    """Its reasoning takes 3,000 tokens, and its review counts."""
    view = ("view", {"path": "src/price.py"})

    def review(body: Any, headers: Any) -> Any:
        assert body["max_tokens"] >= 4096
        if step_of(headers).endswith("01"):
            return NativeReply((view,), reasoning="word " * 3000)
        special = "180 if" in str(body["messages"][-1])
        review_call = (
            submit_call(1, serves_tests="180 is written into the code")
            if special
            else submit_call(9)
        )
        return NativeReply((review_call,), reasoning="word " * 3000)

    async with native(answer_reviews_with(review), files=FILES, evidence=REVIEWS) as app:
        d = app.deliberation("tests_then_verify", 2, description=TASK, rounds=0)
        events = await app.run(d)
    outcome = outcome_of(app, events, d)
    assert outcome.winner_id == ONE
    scores = {
        data["candidate"]: data["review"]["score"] for data in of(events, EventType.SEAT_REVIEWED)
    }
    assert scores == {ONE: 0.9, TWO: 0.1}
    comments = "\n".join(data["review"]["comment"] for data in of(events, EventType.SEAT_REVIEWED))
    assert "Serves the tests: 180 is written into the code" in comments
    assert not any("missing" in reason for result in outcome.results for reason in result.reasons)


async def test_a_reviewer_that_never_answers_is_reported_and_not_replaced(
    native: Any,
) -> None:
    """The other answer's review is bad; the one without a review does not win because of it."""

    def review(_body: Any, headers: Any) -> Any:
        if seat_of(headers) == TWO:
            return Fault("status", status=500)
        return NativeReply((submit_call(2),))

    async with native(answer_reviews_with(review), files=FILES, evidence=REVIEWS) as app:
        d = app.deliberation("tests_then_verify", 2, description=TASK, rounds=0)
        events = await app.run(d)
        call_ids = [
            call.call_id for call in app.server.requests if f"/{TWO}/verify/" in call.call_id
        ]
    outcome = outcome_of(app, events, d)
    assert {call_id.rpartition("/")[2] for call_id in call_ids} >= {"1.101", "1.1.2"}, (
        "it is called twice"
    )
    assert any(report["missing"] and report["candidate"] == ONE for report in reports(events))
    first_result = next(result for result in outcome.results if result.seat == ONE)
    assert any(
        reason.startswith("1 of 1 reviews is missing: review of agent-dev-001 by agent-dev-002")
        for reason in first_result.reasons
    )
    assert outcome.undecided


async def test_a_silent_reviewer_is_reported_before_the_deadline(native: Any) -> None:
    def review(_body: Any, headers: Any) -> Any:
        return forever() if seat_of(headers) == TWO else NativeReply((submit_call(2),))

    async with native(answer_reviews_with(review), files=FILES, evidence=REVIEWS) as app:
        d = app.deliberation("tests_then_verify", 2, description=TASK, rounds=0, seconds=30)
        events = await app.run(d)
    assert any(report["missing"] and report["candidate"] == ONE for report in reports(events))
    first_result = next(
        result for result in outcome_of(app, events, d).results if result.seat == ONE
    )
    assert any("1 of 1 reviews is missing" in reason for reason in first_result.reasons)


async def test_the_test_writers_tests_also_run_on_a_second_wave(native: Any) -> None:
    """It writes once. Tests that fail on every first answer are run on the second ones again."""
    first, second = change(SPECIAL), change(RIGHT)

    def answer(body: Any, headers: Any) -> Any:
        seat, step = seat_of(headers), step_of(headers)
        if "tools" in body and seat in {ONE, TWO}:
            return (first if step.startswith("0.") else second)(
                f"0.{(int(step.split('.')[1]) - 1) % 50 + 1}"
            )
        return council_of(writer=WRITER)(body, headers)

    async with native(answer, files=FILES, evidence=WRITER_ONLY) as app:
        d = app.deliberation("tournament", 2, description=TASK, rounds=0, max_turns=10)
        events = await app.run(d)
        writer_calls = [
            call.call_id
            for call in app.server.requests
            if call.call_id.endswith("/test-writer/verify/0.1")
        ]
    outcome = outcome_of(app, events, d)
    assert len(writer_calls) == 1
    assert outcome.evidence_level is EvidenceLevel.REPRODUCED, outcome.results[0].reasons
    assert "price * percent // 100" in outcome.diff
    assert sorted(report["agent"] for report in reports(events)) == [
        "second-wave",
        "test-writer",
    ]


async def test_a_missing_review_is_reported_for_models_without_tools(council: Any) -> None:
    def answer(_body: Any, headers: Any) -> Any:
        if phase_of(headers) == "verify":
            return "no review" if seat_of(headers) == ONE else REVIEW
        text = SPECIAL if seat_of(headers) == ONE else RIGHT
        return json.dumps(
            {
                "thought": "x",
                "actions": [
                    {"tool": "files.write", "args": {"path": "src/price.py", "content": text}}
                ],
            }
        )

    async with council(answer_with_approaches(answer), files=FILES, evidence=ALL) as app:
        d = app.deliberation("tests_then_verify", 2, description=TASK, rounds=0, max_turns=1)
        events = await app.run(d)
    second_result = next(
        result for result in outcome_of(app, events, d).results if result.seat == TWO
    )
    assert any(
        "1 of 1 reviews is missing" in reason and "no review" in reason
        for reason in second_result.reasons
    )
