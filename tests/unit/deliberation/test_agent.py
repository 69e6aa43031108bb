"""One seat: turns, checks, repair, limits. Real HTTP, gateway, git and pytest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moothall.deliberation.context import SeatLimits
from moothall.deliberation.recorded_model import Recording
from moothall.domain.budget import Budget
from moothall.domain.event import EventType
from moothall.testing.model import Fault, phase_of, step_of
from support.council import ONE, act, append, by_seat, finish, of, outcomes
from support.repos import SAMPLE, SOLUTION

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

URL = "http://127.0.0.1:9/v1"  # only its presence counts
WRONG = '\n\ndef hello_world() -> str:\n    return "Goodbye"\n'


def script(*turns: Any) -> Any:
    """Answer the n-th turn with the n-th text, and later turns with the last one."""

    def answer(_body: Any, headers: Any) -> Any:
        turn = int(step_of(headers).split(".")[1])
        return turns[min(turn, len(turns)) - 1]

    return answer


async def test_a_proven_change_ends_the_seat_without_another_call(council: Any) -> None:
    async with council(script(append())) as app:
        events = await app.run(app.deliberation("single", 1))
    assert len(app.server.requests) == 1
    assert outcomes(events) == {ONE: "proposed"}
    (proposed,) = of(events, EventType.SEAT_PROPOSED)
    proposal = proposed["proposal"]
    assert "+def hello_world() -> str:" in proposal["diff"]
    assert [item["tool"] for item in proposal["operations"]] == ["files.append"]
    assert len(proposal["commit_sha"]) == 40
    (turn,) = of(events, EventType.SEAT_TURN)
    assert (turn["turn"], turn["checks"], turn["operations"][0]["status"]) == (
        1,
        {"tests": "passed"},
        "success",
    )
    (tool,) = of(events, EventType.TOOL_FINISHED)
    assert tool["request_id"] == f"task-1/{ONE}/propose/0.1.1"
    checks = {data["evidence"]["check"]: data for data in of(events, EventType.CHECK_FINISHED)}
    assert checks["applies"]["assessment"]["proven"] is True
    assert checks["tests"]["evidence"]["verdict"] == "passed"
    assert app.workspaces.alive == set()


@pytest.mark.parametrize(
    ("url", "window", "limited"), [(URL, 8_192, True), (URL, 32_768, False), (None, 32_768, True)]
)
async def test_strings_of_a_reply_are_limited_for_small_models_only(
    council: Any, url: Any, window: int, *, limited: bool
) -> None:
    async with council(script(append()), base_url=url, context_tokens=window) as app:
        await app.run(app.deliberation("single", 1))
        schema = json.dumps(app.server.requests[0].body["response_format"])
    assert ("maxLength" in schema) is limited


async def test_a_reply_in_the_syntax_of_a_model_family_is_executed(council: Any) -> None:
    content = (
        f"<parameter=path>\nsrc/utils.py\n</parameter>\n<parameter=content>\n{SOLUTION}\n"
        "</parameter>"
    )
    call = f"I add it.\n<tool_call>\n<function=files.append>\n{content}\n</function>\n</tool_call>"
    async with council(script(call)) as app:
        events = await app.run(app.deliberation("single", 1))
    assert len(app.server.requests) == 1
    assert outcomes(events) == {ONE: "proposed"}


async def test_a_new_ignored_file_is_reported_before_the_answer_is_accepted(
    council: Any,
) -> None:
    ignored = {"path": "build/helper.py", "content": "X = 1\n"}
    both_changes = act(
        ("files.append", {"path": "src/utils.py", "content": SOLUTION}), ("files.write", ignored)
    )
    async with council(script(both_changes, finish("Added hello_world()."))) as app:
        events = await app.run(app.deliberation("single", 1))
    assert len(app.server.requests) == 2
    second = app.server.requests[1].prompt
    assert "new files that git ignores: they are left out of your answer" in second
    assert "build/helper.py: a rule" in second
    (proposed,) = of(events, EventType.SEAT_PROPOSED)
    content = (
        "Added hello_world().\n\nLeft out of this answer, since .gitignore names them: "
        "build/helper.py"
    )
    assert proposed["proposal"]["content"] == content
    assert "helper" not in proposed["proposal"]["diff"]


async def test_failing_tests_lead_to_a_repair_turn(council: Any) -> None:
    fix = act(("files.edit", {"path": "src/utils.py", "old": "Goodbye", "new": "Hello, World!"}))
    async with council(script(append(WRONG), fix)) as app:
        events = await app.run(app.deliberation("single", 1))
    second = app.server.requests[1].prompt
    assert "Check tests: failed (1 of 2 passed)" in second
    assert "test_hello_world" in second
    assert "Repair this." in second
    assert [turn["checks"] for turn in of(events, EventType.SEAT_TURN)] == [
        {"tests": "failed"},
        {"tests": "passed"},
    ]
    assert "Hello, World!" in of(events, EventType.SEAT_PROPOSED)[0]["proposal"]["diff"]


async def test_writing_a_path_forbidden_to_the_role_is_refused_even_from_a_test_run(
    council: Any,
) -> None:
    code = (
        "\n\ndef hello_world():\n    import os\n    os.makedirs('.ci', exist_ok=True)\n    "
        "open('.ci/run', 'w').close()\n    return 'x'\n"
    )
    fix = act(
        (
            "files.edit",
            {"path": "src/utils.py", "old": "return 'x'", "new": "return 'Hello, World!'"},
        )
    )
    async with council(script(append(code), fix, fix)) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=3))
    assert "'.ci/run' may not be changed by this role" in app.server.requests[2].prompt
    assert of(events, EventType.SEAT_PROPOSED) == []


async def test_finishing_before_the_tests_pass_is_refused(council: Any) -> None:
    fix = act(("files.edit", {"path": "src/utils.py", "old": "Goodbye", "new": "Hello, World!"}))
    async with council(script(append(WRONG), finish(), fix)) as app:
        await app.run(app.deliberation("single", 1))
    assert "This is not done: tests did not pass." in app.server.requests[2].prompt


async def test_finish_is_offered_only_after_a_change(council: Any) -> None:
    async with council(script(append(WRONG), append("\n"))) as app:
        await app.run(app.deliberation("single", 1, max_turns=2))
    first, second = (
        json.dumps(call.body["response_format"]["json_schema"]["schema"])
        for call in app.server.requests
    )
    assert '"finish"' not in first
    assert '"finish"' in second


async def test_the_tools_of_a_task_replace_those_of_the_role(council: Any, tmp_path: Path) -> None:
    async with council(
        script(append(), act(("files.read", {"path": "src/utils.py"})), finish())
    ) as app:
        events = await app.run(
            app.deliberation("single", 1, max_turns=3, tools=("files.read", "git.push"))
        )
    operations = [item for data in of(events, EventType.SEAT_TURN) for item in data["operations"]]
    assert [(item["tool"], item["status"]) for item in operations][:2] == [
        ("files.append", "blocked"),
        ("files.read", "success"),
    ]
    assert "not granted" in app.server.requests[1].prompt
    assert "files.write" not in app.server.requests[0].prompt
    audited = [
        json.loads(line)
        for file in (tmp_path / "data").rglob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert ("files.append", "blocked") in {(record["tool"], record["status"]) for record in audited}


async def test_actions_stop_at_the_first_failure(council: Any) -> None:
    turn = act(
        ("files.read", {"path": "src/nothing.py"}),
        ("files.append", {"path": "src/utils.py", "content": SOLUTION}),
    )
    async with council(script(turn, append())) as app:
        events = await app.run(app.deliberation("single", 1))
    first = of(events, EventType.SEAT_TURN)[0]
    assert [(item["tool"], item["status"]) for item in first["operations"]] == [
        ("files.read", "error")
    ]
    assert "The 1 actions after it were not run." in app.server.requests[1].prompt


async def test_a_refused_tool_is_reported_to_the_model(council: Any) -> None:
    async with council(script(act(("git.push", {"branch": "main"})), append())) as app:
        events = await app.run(app.deliberation("single", 1))
    turn = of(events, EventType.SEAT_TURN)[0]
    assert turn["operations"][0]["status"] == "blocked"
    [refused] = turn["refused_calls"]
    assert (refused["tool"], refused["status"]) == ("git.push", "blocked")
    assert "not granted" in refused["reason"]
    assert "not granted" in app.server.requests[1].prompt
    assert outcomes(events) == {ONE: "proposed"}


@pytest.mark.parametrize(
    ("reply", "correction"),
    [
        ("I would append the function.", "there is no JSON object"),
        ('{"thought": "x", "actions": [', "JSON is broken"),
        ('{"thought": "x"}', "holds none of actions, finish"),
        ('{"actions": [{"tool": "files.list"}], "python": "print(1)"}', "holds actions and python"),
        ('{"thought": "x", "python": "print(1)"}', "Python is not available"),
        (Fault("length", text='{"thought": "x", "act'), "cut off because it was too long"),
    ],
)
async def test_a_malformed_reply_is_corrected(council: Any, reply: Any, correction: str) -> None:
    async with council(script(reply, append())) as app:
        events = await app.run(app.deliberation("single", 1))
    assert correction in app.server.requests[1].prompt
    assert outcomes(events) == {ONE: "proposed"}


async def test_malformed_replies_are_bounded(council: Any) -> None:
    async with council(script(*(f"no {number}" for number in range(9)))) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=9))
    assert len(app.server.requests) == 4
    assert outcomes(events) == {ONE: "failed MALFORMED_REPLIES"}
    assert of(events, EventType.SEAT_PROPOSED) == []


@pytest.mark.parametrize("limits", [SeatLimits(), SeatLimits(attempts=2)])
async def test_one_unusable_reply_is_shown_with_the_command_that_lists_all(
    council: Any, limits: SeatLimits
) -> None:
    reply = "I would\x1b[2J say\n" + "more and " * 100
    async with council(script(reply), seat_limits=limits) as app:
        d = app.deliberation("single", 1, max_turns=9)
        events = await app.run(d)
    message = of(events, EventType.SEAT_FAILED)[0]["error"]["message"]
    excerpt = message.partition('it replied "')[2].partition('"')[0]
    assert excerpt.startswith("I would [2J say more and more")
    assert len(excerpt) == 120
    assert message.endswith(f"All replies: moothall log tail --task {d.task_id} --json")


async def test_a_seat_that_changes_nothing_never_proposes(council: Any) -> None:
    async with council(script(finish("all good"))) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=9))
    assert outcomes(events) == {ONE: "failed NO_CHANGES"}
    assert of(events, EventType.SEAT_FAILED)[0]["error"]["code"] == "NO_CHANGES"
    assert of(events, EventType.SEAT_PROPOSED) == []


async def test_reading_until_the_turns_run_out_is_not_a_proposal(council: Any) -> None:
    async with council(script(act(("files.read", {"path": "src/utils.py"})))) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=3))
    assert len(app.server.requests) == 3
    assert outcomes(events) == {ONE: "failed OUT_OF_TURNS"}


async def test_an_action_repeated_without_a_change_is_not_offered_again(council: Any) -> None:
    list_turn = act(("files.list", {}))
    async with council(script(list_turn, list_turn, append())) as app:
        await app.run(app.deliberation("single", 1))
    second, third = (json.dumps(call.body["response_format"]) for call in app.server.requests[1:])
    assert "files.list" in second
    assert "files.list" not in third
    assert "You did just that before" in app.server.requests[2].prompt


async def test_failing_work_is_proposed_when_the_turns_run_out(council: Any) -> None:
    async with council(script(append(WRONG), act(("files.list", {})))) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=2))
    assert outcomes(events) == {ONE: "proposed"}
    verdicts = {
        item["evidence"]["check"]: item["evidence"]["verdict"]
        for item in of(events, EventType.CHECK_FINISHED)
    }
    assert verdicts == {"applies": "passed", "tests": "failed"}


async def test_a_server_that_is_down_fails_the_seat(council: Any) -> None:
    async with council(script(Fault("status", status=503))) as app:
        events = await app.run(app.deliberation("single", 1))
    assert outcomes(events) == {ONE: "failed MODEL_UNAVAILABLE"}
    assert of(events, EventType.SEAT_PROPOSED) == []


async def test_a_budget_is_not_overspent(council: Any) -> None:
    async with council(script(append())) as app:
        events = await app.run(app.deliberation("single", 1, budget=Budget(tokens=100)))
    assert app.server.requests == []
    assert outcomes(events) == {ONE: "failed BUDGET_EXCEEDED"}


async def test_a_dead_executor_fails_the_seat(council: Any) -> None:
    async with council(script(append())) as app:
        app.workspaces.broken.add(f"task-1-{ONE}")
        events = await app.run(app.deliberation("single", 1))
    assert outcomes(events) == {ONE: "failed WORKSPACE_FAILED"}


async def test_changes_that_may_not_be_exported_are_reported_and_then_refused(council: Any) -> None:
    link = (
        "\n\nimport os\n\nif not os.path.lexists('link'):\n    os.symlink('/etc/passwd', 'link')\n"
    )
    async with council(script(append(link), append("\n"), act(("files.list", {})))) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=3))
    assert "a symlink may not leave" in app.server.requests[2].prompt
    assert outcomes(events) == {ONE: "failed PATCH_REFUSED"}


async def test_recorded_calls_are_not_repeated(council: Any) -> None:
    async with council(script(append(WRONG), append(SOLUTION))) as app:
        d = app.deliberation("single", 1)
        first = await app.run(d)
        calls = len(app.server.requests)
        repeated = await app.run(d, Recording.of(first))
        assert len(app.server.requests) == calls == 2
    assert [event.id for event in repeated] == [event.id for event in first]
    assert of(repeated, EventType.SEAT_FINISHED)[0]["outcome"]["usage"]["calls"] == 2


async def test_the_same_inputs_give_the_same_requests(council: Any) -> None:
    async with council(script(append(WRONG), append(SOLUTION))) as app:
        await app.run(app.deliberation("single", 1))
        await app.run(app.deliberation("single", 1, task_id="task-2"))
    bodies = [json.dumps(call.body) for call in app.server.requests]
    assert bodies[:2] == bodies[2:]
    assert [call.call_id for call in app.server.requests[:2]] == [
        f"task-1/{ONE}/propose/0.{turn}" for turn in (1, 2)
    ]


async def test_blocks_are_used_if_the_server_supports_no_schema(council: Any) -> None:
    call = json.dumps(
        {"name": "files.append", "args": {"path": "src/utils.py", "content": SOLUTION}}
    )
    async with council(script(f"I append it.\n<tool>{call}</tool>"), schemas=False) as app:
        events = await app.run(app.deliberation("single", 1))
    assert outcomes(events) == {ONE: "proposed"}
    assert "response_format" not in app.server.requests[0].body
    assert "<tool>" in app.server.requests[0].body["messages"][0]["content"]


async def test_a_secret_in_a_file_appears_in_no_prompt_and_no_event(council: Any) -> None:
    secret = "ghp_" + "a1B2" * 9
    files = {
        "src/utils.py": f'TOKEN = "{secret}"\n',
        "tests/test_utils.py": "def test_x():\n    import utils\n    assert utils.x\n",
    }
    async with council(script(act(("files.read", {"path": "src/utils.py"}))), files=files) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=2))
    assert all(secret not in call.prompt for call in app.server.requests)
    assert "[redacted]" in app.server.requests[1].prompt
    assert secret not in json.dumps([dict(event.data) for event in events])


async def test_guides_of_folders_and_skills_are_listed(council: Any) -> None:
    files = {
        **SAMPLE,
        "src/AGENTS.md": "Use tabs.\n",
        "skills/release/SKILL.md": "---\nname: release\ndescription: Make one.\n---\n",
    }
    async with council(script(append()), files=files) as app:
        events = await app.run(app.deliberation("single", 1))
    prompt = app.server.requests[0].prompt
    assert "\nsrc/AGENTS.md\n" in prompt
    assert "release: Make one. [skills/release/SKILL.md]" in prompt
    (started,) = of(events, EventType.DELIBERATION_STARTED)
    assert [guide["path"] for guide in started["guides"]] == [
        "skills/release/SKILL.md",
        "src/AGENTS.md",
    ]


async def test_a_seat_that_appends_the_same_code_again_starts_a_new_attempt(council: Any) -> None:
    """The small model put the same function into the file ten times in a row."""
    async with council(script(append(WRONG), append(WRONG), append())) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=9))
    turns = of(events, EventType.SEAT_TURN)
    assert [(turn["turn"], turn["attempt"], turn["stuck"]) for turn in turns] == [
        (1, 1, ""),
        (2, 1, "the same change as in an earlier turn"),
        (3, 2, ""),
    ]
    first, second, third = app.server.requests
    assert third.body["messages"] == first.body["messages"] != second.body["messages"]
    assert third.body["seed"] not in {first.body["seed"], second.body["seed"]}
    assert third.body["temperature"] > first.body["temperature"]
    diff = of(events, EventType.SEAT_PROPOSED)[0]["proposal"]["diff"]
    assert diff.count("+def hello_world") == 1
    assert "Goodbye" not in diff


async def test_the_same_failing_tests_for_three_turns_start_a_new_attempt(council: Any) -> None:
    turns = [append(f"\n\nX{number} = {number}\n") for number in range(1, 4)]
    async with council(script(*turns, append())) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=9))
    assert [turn["stuck"] for turn in of(events, EventType.SEAT_TURN)] == [
        "",
        "",
        "the same tests failed for 3 turns",
        "",
    ]
    assert "X1" not in of(events, EventType.SEAT_PROPOSED)[0]["proposal"]["diff"]


async def test_a_stuck_seat_ends_after_its_attempts_and_is_not_revised(council: Any) -> None:
    async with council(script(append(WRONG)), seat_limits=SeatLimits(attempts=2)) as app:
        events = await app.run(app.deliberation("tests_then_verify", 1, max_turns=12))
    assert len(app.server.requests) == 4
    assert of(events, EventType.SEAT_TURN)[-1]["stuck"] == "the same change as in an earlier turn"
    assert outcomes(events) == {ONE: "proposed"}


async def test_a_seat_proposes_the_best_of_its_attempts(council: Any) -> None:
    broken = act(("files.write", {"path": "src/utils.py", "content": "nothing = 0\n"}))
    async with council(
        script(append(WRONG), append(WRONG), broken, broken), seat_limits=SeatLimits(attempts=2)
    ) as app:
        events = await app.run(app.deliberation("single", 1, max_turns=9))
    diff = of(events, EventType.SEAT_PROPOSED)[0]["proposal"]["diff"]
    assert "Goodbye" in diff
    assert "nothing = 0" not in diff


async def test_the_worked_example_is_refused_before_it_runs(council: Any) -> None:
    def answer(body: Any, headers: Any) -> Any:
        system = body["messages"][0]["content"]
        copied = next(
            line for line in system.splitlines() if line.startswith("{") and '"actions"' in line
        )
        return copied if step_of(headers) == "0.1" else append()

    async with council(answer) as app:
        events = await app.run(app.deliberation("single", 1))
    assert of(events, EventType.SEAT_TURN)[0]["operations"] == []
    assert [item["tool"] for item in of(events, EventType.TOOL_FINISHED)] == ["files.append"]
    assert "it was not run" in app.server.requests[1].prompt
    assert outcomes(events) == {ONE: "proposed"}


@pytest.mark.e2e  # several runs of pytest
async def test_a_resumed_seat_repeats_its_attempts_identically_without_recorded_calls(
    council: Any,
) -> None:
    turns = (append(WRONG), append(WRONG), append(WRONG + "\n"), append())
    async with council(script(*turns)) as app:
        d = app.deliberation("single", 1, max_turns=9)
        first = await app.run(d)
        calls = len(app.server.requests)
        # Killed after the second turn, and then at the end: recorded calls are not repeated.
        for count in (
            len(first),
            next(n for n, event in enumerate(first) if event.data.get("stuck")) + 1,
        ):
            resumed = await app.run(d, Recording.of(first[:count]))
            assert [event.id for event in resumed] == [event.id for event in first]
    repeated = [call.call_id for call in app.server.requests[calls:]]
    assert repeated == [f"task-1/{ONE}/propose/0.3", f"task-1/{ONE}/propose/0.4"]


@pytest.mark.e2e  # several runs of pytest
async def test_the_recorded_state_of_a_turn_overrides_the_result_of_its_repeated_checks(
    council: Any,
) -> None:
    """A flaky test may fail differently when a turn is repeated: the recorded answers belong to one
    history.
    """
    turns = [append(f"\n\nX{number} = {number}\n") for number in range(1, 4)]
    async with council(script(*turns, append())) as app:
        d = app.deliberation("single", 1, max_turns=9)
        first = await app.run(d)
        recorded = Recording.of(first)
        recording = Recording(
            recorded.answers,
            {
                **recorded.stuck_reasons,
                f"{ONE}/propose/0.3": "",
                f"{ONE}/propose/0.2": "it was so then",
            },
        )
        app.bus.__init__()
        repeated = await app.run(d, recording)
    assert [turn["attempt"] for turn in of(repeated, EventType.SEAT_TURN)] == [1, 1, 2, 2]


BROKEN = (
    '"""Small helpers."""\n\n\ndef greet(name: str) -> str:\n    return "Hello, Ada!"\n\n\n'
    'def hello_world() -> str:\n    return "Hello, World!"\n'
)


@pytest.mark.e2e  # a dozen runs of pytest
async def test_a_slow_suite_runs_nearby_cases_and_those_lost_in_the_re_check(
    council: Any,
) -> None:
    files = {
        **SAMPLE,
        "tests/test_far.py": (
            'from utils import greet\n\n\ndef test_bob():\n    assert greet("Bob") == "Hello, '
            'Bob!"\n'
        ),
    }
    fix = act(
        ("files.edit", {"path": "src/utils.py", "old": '"Hello, Ada!"', "new": 'f"Hello, {name}!"'})
    )

    def answer(_body: Any, headers: Any) -> Any:
        return (
            fix
            if phase_of(headers) == "revise"
            else act(("files.write", {"path": "src/utils.py", "content": BROKEN}))
        )

    async with council(answer, files=files) as app:
        (base,) = app.prepared.runs.values()
        app.prepared = replace(app.prepared, runs={"tests": replace(base, duration_ms=60_000)})
        events = await app.run(app.deliberation("tests_then_verify", 1))
    first, second = app.server.requests
    assert "test_bob" not in first.prompt.partition("files of the repository")[0]
    assert "Passed before and not any more: tests/test_far.py::test_bob" in second.prompt
    assert "assert 'Hello, Ada!' == 'Hello, Bob!'" in second.prompt
    assert [turn["checks"] for turn in of(events, EventType.SEAT_TURN)] == [
        {"tests": "passed"},
        {"tests": "passed"},
    ]
    # Its own tests were only those of utils at first, and later also the lost one.
    calls = [
        cases
        for (_tree, _name, *cases) in app.workspaces.runs
        if any("test_bob" in str(part) for part in cases)
    ]
    assert calls
    assert of(events, EventType.CHECK_FINISHED)[-1]["evidence"]["verdict"] == "passed"


async def test_the_base_is_prepared_and_checked_once_for_all_seats(council: Any) -> None:
    async with council(
        by_seat(one=append(), two=append(WRONG), three=append("\n" + SOLUTION))
    ) as app:
        await app.run(app.deliberation("vote"))
    assert app.workspaces.opened.count("base") == 1
