"""A seat whose model calls tools natively: calls and answers, submit, limits, compaction. Real
HTTP, gateway, git and pytest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from moothall.config import LimitSettings
from moothall.deliberation.recorded_model import Recording
from moothall.deliberation.seat_setup import TEXT_TURNS
from moothall.domain.event import EventType
from moothall.testing.model import Fault, NativeReply, phase_of, step_of
from support.council import ONE, of, outcomes
from support.repos import SAMPLE, SOLUTION

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

UTILS = "src/utils.py"
RIGHT = ("write", {"path": UTILS, "content": SAMPLE[UTILS] + SOLUTION})
WRONG = ("write", {"path": UTILS, "content": SAMPLE[UTILS] + SOLUTION.replace("Hello", "Goodbye")})
BROKEN = ("write", {"path": UTILS, "content": "def slugify(text):\n    return text\n"})
OWN_TEST = ("write", {"path": "tests/test_own.py", "content": "def test_own():\n    assert True\n"})
SUBMIT = ("submit", {"summary": "Added hello_world()."})


def calls(*tool_calls: tuple[str, Any], text: str = "", **fields: Any) -> NativeReply:
    return NativeReply(tool_calls, text, **fields)


def script(*turns: Any) -> Callable[[Any, Any], Any]:
    """Answer the n-th turn with the n-th reply, and later turns with the last one. Notes are
    "NOTES".
    """

    def answer(_body: Any, headers: Any) -> Any:
        if phase_of(headers) != "propose":
            return '{"comment": "fine", "met": [], "unmet": [1], "score": 5}'
        _, turn, *note = step_of(headers).split(".")
        return "NOTES" if note else turns[min(int(turn), len(turns)) - 1]

    return answer


def answers(app: Any, number: int) -> list[tuple[str, str]]:
    """Return the tool messages of a request, as (call id, text)."""
    messages = app.server.requests[number].body["messages"]
    return [
        (message["tool_call_id"], message["content"])
        for message in messages
        if message["role"] == "tool"
    ]


async def test_a_correct_change_is_submitted_and_proven(native: Any) -> None:
    view = ("view", {"path": UTILS})
    async with native(script(calls(view, text="Look first."), calls(RIGHT), calls(SUBMIT))) as app:
        events = await app.run(app.deliberation("single", 1))
    assert len(app.server.requests) == 3
    assert outcomes(events) == {ONE: "proposed"}
    (proposed,) = of(events, EventType.SEAT_PROPOSED)
    assert proposed["proposal"]["content"] == "Added hello_world()."
    assert "+def hello_world() -> str:" in proposed["proposal"]["diff"]
    turns = of(events, EventType.SEAT_TURN)
    assert [turn["checks"] for turn in turns] == [{}, {}, {"tests": "passed"}]
    assert turns[0]["thought"] == "Look first."
    assert [item["tool"] for turn in turns for item in turn["operations"]] == [
        "files.read",
        "files.write",
    ]
    first = {data["evidence"]["check"]: data for data in of(events, EventType.CHECK_FINISHED)}[
        "applies"
    ]
    assert first["assessment"]["proven"] is True


async def test_sandbox_paths_are_accepted_and_a_folder_is_listed(
    native: Any,
) -> None:
    reply = calls(
        ("view", {"path": "/workspace/src"}),
        ("view", {"path": f"/workspace/{UTILS}"}),
        ("edit", {"path": f"/workspace/{UTILS}", "old": "return", "new": "return  ", "all": True}),
        ("view", {"path": "/etc/passwd"}),
        ("edit", {"path": "src", "old": "a", "new": "b"}),
    )
    async with native(script(reply, calls(RIGHT, SUBMIT))) as app:
        events = await app.run(app.deliberation("single", 1))
    [refused] = of(events, EventType.SEAT_TURN)[0]["refused_calls"]
    assert refused["reason"].startswith("path '/etc/passwd' is absolute")
    folder, file, edited, outside_path, not_a_file = (text for _, text in answers(app, 1))
    assert folder.startswith("src is a folder with ")
    assert "utils.py" in folder.splitlines()
    assert file.startswith(f"{UTILS}, lines 1 to ")
    assert edited.startswith(f"{UTILS}: ")
    assert outside_path.startswith(
        "blocked: path '/etc/passwd' is absolute; paths are relative to the workspace"
    )
    assert not_a_file == "error: 'src' is a folder, not a file"


async def test_each_call_is_answered_by_its_id_and_a_failed_call_stops_no_other(
    native: Any,
) -> None:
    missing = ("edit", {"path": UTILS, "old": "not there", "new": "x"})
    reply = calls(
        missing,
        ("view", {"path": UTILS, "start": 1, "end": 2}),
        ids=("a", "b"),
        reasoning="thinking",
    )
    async with native(script(reply, calls(RIGHT, SUBMIT))) as app:
        await app.run(app.deliberation("single", 1))
    (failed, viewed) = answers(app, 1)
    assert failed[0] == "a"
    assert failed[1].startswith("error: ")
    assert viewed[0] == "b"
    assert viewed[1].startswith(f"{UTILS}, lines 1 to 2 of")
    message = app.server.requests[1].body["messages"][-3]
    assert [call["id"] for call in message["tool_calls"]] == ["a", "b"]
    assert message["reasoning_content"] == "thinking"


async def test_invalid_calls_are_answered_with_the_reason(native: Any) -> None:
    invalid_calls = calls(
        ("frobnicate", {}),
        ("edit", {"path": UTILS}),
        ("view", "{not json"),
        ("view", {"path": UTILS, "start": 9, "end": 2}),
    )
    async with native(script(invalid_calls, calls(RIGHT, SUBMIT))) as app:
        events = await app.run(app.deliberation("single", 1))
    texts = [text for _, text in answers(app, 1)]
    assert texts[0].startswith("error: there is no tool 'frobnicate'; there are: ")
    assert texts[1] == "error: edit needs old and new"
    assert texts[2].startswith("error: the arguments of view are not JSON")
    assert texts[3] == "error: view: end (2) is before start (9)"
    assert outcomes(events) == {ONE: "proposed"}


async def test_advice_of_a_failed_call_names_the_seats_own_tools(native: Any) -> None:
    duplicate_line = ("write", {"path": "a.py", "content": "x = 1\nx = 1\n"})
    edit = {"path": "a.py", "old": "x = 1", "new": "y = 2"}
    first, second = (
        calls(duplicate_line, ("edit", edit), ("view", {"path": 5})),
        calls(("edit", {**edit, "all": True}), RIGHT, SUBMIT),
    )
    async with native(script(first, second)) as app:
        await app.run(app.deliberation("single", 1))
    _, failed, invalid = (text for _, text in answers(app, 1))
    assert failed.endswith("or all=true to replace all")
    assert "view: argument 'path'" in invalid
    assert "files." not in failed + invalid


async def test_problems_of_a_submission_are_shown_and_the_seat_may_fix_them(
    native: Any,
) -> None:
    async with native(script(calls(BROKEN, SUBMIT), calls(RIGHT, SUBMIT))) as app:
        events = await app.run(app.deliberation("single", 1))
    text = answers(app, 1)[-1][1]
    assert "New failures: " in text or "Passed before your change and not after it: " in text
    assert text.endswith("or call submit again without a further change to hand it in as it is.")
    assert len(app.server.requests) == 2
    assert outcomes(events) == {ONE: "proposed"}


async def test_a_second_submit_accepts_unclean_work(native: Any) -> None:
    async with native(script(calls(BROKEN, SUBMIT), calls(SUBMIT))) as app:
        events = await app.run(app.deliberation("single", 1))
    assert len(app.server.requests) == 2
    assert len(of(events, EventType.SEAT_PROPOSED)) == 1


async def test_tests_that_failed_before_do_not_delay_a_submission(native: Any) -> None:
    async with native(script(calls(WRONG, SUBMIT))) as app:
        events = await app.run(app.deliberation("single", 1))
    assert len(app.server.requests) == 1
    assert len(of(events, EventType.SEAT_PROPOSED)) == 1


@pytest.mark.parametrize(
    ("reply", "reminder"),
    [
        ("I am thinking about it.", "Your reply called no tool."),
        ("", "Your reply was empty."),
        (
            NativeReply(text="I am thin", finish_reason="length"),
            "Your reply was cut at the limit of its length",
        ),
        (NativeReply(finish_reason="content_filter"), "The model server withheld your reply."),
    ],
)
async def test_a_reply_without_a_call_is_requested_again(
    native: Any, reply: Any, reminder: str
) -> None:
    async with native(script(reply, calls(RIGHT, SUBMIT))) as app:
        events = await app.run(app.deliberation("single", 1))
    assert reminder in app.server.requests[1].body["messages"][-1]["content"]
    assert outcomes(events) == {ONE: "proposed"}


async def test_changes_in_the_workspace_are_proposed_however_the_seat_ends(native: Any) -> None:
    async with native(script(calls(RIGHT), "", "", "", "")) as app:
        events = await app.run(app.deliberation("single", 1))
    (proposed,) = of(events, EventType.SEAT_PROPOSED)
    assert "+def hello_world() -> str:" in proposed["proposal"]["diff"]


@pytest.mark.parametrize(
    "last",
    [
        calls(("view", {"path": UTILS})),
        Fault("status", status=400, text="no more"),
        Fault("status", status=401, message="the key was revoked"),
        Fault("status", status=500),
    ],
)
async def test_a_change_survives_the_last_turn_and_a_failing_server(native: Any, last: Any) -> None:
    async with native(script(calls(RIGHT), last)) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=2))
    assert len(of(events, EventType.SEAT_PROPOSED)) == 1


async def test_a_seat_that_changes_nothing_proposes_nothing(native: Any) -> None:
    async with native(script(calls(SUBMIT))) as app:
        events = await app.run(app.deliberation("single", 1))
    assert outcomes(events) == {ONE: "failed NO_CHANGES"}
    assert "No file of the repository has changed" in answers(app, 1)[-1][1]


async def test_five_turns_without_progress_are_reported_and_ten_end_the_seat(native: Any) -> None:
    async with native(script(calls(RIGHT), calls(("view", {"path": UTILS})))) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=40))
    warned_turns = [
        index
        for index, call in enumerate(app.server.requests)
        if "repeated earlier calls" in call.prompt
    ]
    assert warned_turns[0] == 7
    assert len(app.server.requests) == 12
    assert len(of(events, EventType.SEAT_PROPOSED)) == 1


async def test_a_long_conversation_is_compacted_to_notes_and_its_last_turns(native: Any) -> None:
    views = [calls(("view", {"path": "long.txt", "start": number})) for number in range(1, 12)]
    files = {**SAMPLE, "long.txt": "x" * 70 + "\n"}
    files["long.txt"] *= 400
    async with native(
        script(*views, calls(RIGHT, SUBMIT)), files=files, context_tokens=20_000, max_tokens=1_000
    ) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=40))
    noted = [call for call in app.server.requests if "replaced by notes" in call.prompt]
    assert noted
    last = app.server.requests[-1].body["messages"]
    assert "Your notes on the work so far:\nNOTES" in last[1]["content"]
    assert app.server.requests[-1].prompt.count("Your notes on the work so far") == 1
    assert len(last) < 2 * len(views)
    assert outcomes(events) == {ONE: "proposed"}


async def test_the_first_prompt_describes_the_test_command_and_earlier_failures(
    native: Any,
) -> None:
    files = {
        **SAMPLE,
        "tests/test_other.py": "def test_other():\n    assert False, 'unrelated'\n",
        "AGENTS.md": "Use tabs.\n",
        "tests/AGENTS.md": "Use pytest.\n",
        "skills/release/SKILL.md": "---\nname: release\ndescription: Make one.\n---\nDo it.\n",
    }
    async with native(script(calls(RIGHT, SUBMIT)), files=files) as app:
        await app.run(app.deliberation("single", 1, max_turns=40))
    system, user = app.server.requests[0].body["messages"]
    assert "Tests that failed before do not count against you." in system["content"]
    assert "Other engineers" not in system["content"]
    assert "other candidates" not in system["content"]
    assert "These failed before you came: tests/test_other.py::test_other." in user["content"]
    assert "assert False" not in user["content"]
    assert "src/ (1 file): utils.py" in user["content"]
    assert "AGENTS.md: how to work in this repository" in user["content"]
    assert "\ntests/AGENTS.md\n" in user["content"]
    assert "release: Make one. [skills/release/SKILL.md]" in user["content"]
    assert "You have at most 40 replies." in user["content"]
    assert app.server.requests[0].body["tools"][-1]["function"]["name"] == "submit"
    (started,) = of(await app.events(), EventType.DELIBERATION_STARTED)
    assert (
        started["reply_mode"],
        started["models"][0]["reply"],
        started["models"][0]["window"],
    ) == ("tools", "tools", 100_000)
    assert started["limits"]["turns"] == 40
    assert started["guides"] == [
        {"path": path, "sha256": sha256(files[path].encode()).hexdigest()}
        for path in ("AGENTS.md", "skills/release/SKILL.md", "tests/AGENTS.md")
    ]


async def test_a_refused_change_gives_its_reason_and_reaches_observers(
    native: Any,
) -> None:
    key = "AKIA" + "Q3EGRIPXCEXAMPKE"
    secret = ("write", {"path": UTILS, "content": SAMPLE[UTILS] + SOLUTION + f"KEY = '{key}'\n"})
    async with native(script(calls(secret, SUBMIT), calls(RIGHT, SUBMIT))) as app:
        events = await app.run(app.deliberation("single", 1))
    message = answers(app, 1)[-1][1]
    assert re.fullmatch(
        r"Your change cannot be accepted: .*\w\. Change that, then submit again\.", message
    )
    assert [turn.get("refused", "") in message for turn in of(events, EventType.SEAT_TURN)] == [
        True,
        True,
    ]
    assert [bool(turn.get("refused")) for turn in of(events, EventType.SEAT_TURN)] == [True, False]
    assert outcomes(events) == {ONE: "proposed"}


async def test_steering_messages_are_read_once(native: Any) -> None:
    async with native(script(calls(("view", {"path": UTILS})), calls(RIGHT, SUBMIT))) as app:
        app.parts.control.steering["event-1"] = "Please mind the spelling."
        await app.run(app.deliberation("single", 1))
    assert [call.prompt.count("Please mind the spelling.") for call in app.server.requests] == [
        1,
        1,
    ]


async def test_a_resumed_run_repeats_no_call(native: Any) -> None:
    reply = calls(("view", {"path": UTILS}), reasoning="thinking")
    async with native(script(reply, calls(RIGHT, SUBMIT))) as app:
        d = app.deliberation("single", 1)
        events = await app.run(d)
        requests = len(app.server.requests)
        resumed = await app.run(d, Recording.of(events))
        assert len(app.server.requests) == requests
    assert len(of(resumed, EventType.SEAT_PROPOSED)) == 1


def test_limits_have_the_documented_default_of_turns() -> None:
    assert (LimitSettings().turns, TEXT_TURNS) == (100, 12)


async def test_a_conversation_rejected_as_too_long_is_compacted_and_sent_again(
    native: Any,
) -> None:
    refused = Fault(
        "status",
        status=400,
        message="This model's maximum context length is 12000 tokens, your messages are longer.",
    )
    steps: list[str] = []
    view = calls(("view", {"path": UTILS}))

    def answer(_body: Any, headers: Any) -> Any:
        steps.append(step_of(headers))
        if steps.count("0.4") == 1 and steps[-1] == "0.4":
            return refused
        return script(view, view, view, calls(RIGHT, SUBMIT))(_body, headers)

    async with native(answer) as app:
        events = await app.run(app.deliberation("single", 1))
    assert steps[3:6] == ["0.4", "0.4.0", "0.4"], "refused, notes, once more"
    assert "Your notes on the work so far:\nNOTES" in app.server.requests[5].prompt
    assert app.server.requests[5].body["max_tokens"] <= 3_000
    assert outcomes(events) == {ONE: "proposed"}
