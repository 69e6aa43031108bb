"""Prompts in the log: they are read back as sent, and common parts are recorded once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.chat import FunctionCall, Message, Prompts, is_same_conversation

SHARED = "The task and the files of the repository. " * 50
SYSTEM = Message("system", "You are a developer.")
TASK = Message("user", f"{SHARED}Your approach: recursion.")
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(lambda text: text * 30)
_messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    _texts,
    st.lists(st.builds(FunctionCall, st.just(""), _texts, _texts), max_size=2).map(tuple),
    st.sampled_from(["", "call-1"]),
)


@given(st.lists(st.lists(_messages, min_size=1, max_size=5), max_size=6))
def test_a_prompt_is_read_back_as_sent(conversations: list[list[Message]]) -> None:
    writer, reader = Prompts(), Prompts()
    prompts_sent: list[tuple[Message, ...]] = []
    for number, new in enumerate(conversations):
        prompts_sent.append((*(prompts_sent[number // 2] if prompts_sent else ()), *new))
        data = json.loads(
            json.dumps(writer.record(f"seat/propose/0.{number}", prompts_sent[number]))
        )
        prompt = reader.read(f"seat/propose/0.{number}", data)
        assert prompt is not None
        assert prompt.messages == prompts_sent[number]


def test_each_message_of_a_conversation_is_recorded_once() -> None:
    prompts = Prompts()
    messages: tuple[Message, ...] = (SYSTEM, TASK)
    size = 0
    for turn in range(20):
        data = prompts.record(f"seat/propose/0.{turn}", messages)
        size += len(json.dumps(data))
        reply = Message("assistant", "", (FunctionCall("c", "code.shell", '{"command": "ls"}'),))
        messages = (*messages, reply, Message("tool", f"file-{turn}.txt", call_id="c"))
    assert data["of"] == "seat/propose/0.18"
    assert data["kept"] == 40 - 2
    assert size < len(TASK.content) + 20 * 400


def test_seats_share_the_start_of_their_first_message() -> None:
    prompts = Prompts()
    prompts.record("agent-1/propose/0.1", (SYSTEM, TASK))
    data = prompts.record(
        "agent-2/propose/0.1", (SYSTEM, Message("user", f"{SHARED}Your approach: a loop."))
    )
    assert data == {
        "of": "agent-1/propose/0.1",
        "kept": 1,
        "chars": len(f"{SHARED}Your approach: "),
        "messages": [{"role": "user", "content": "a loop."}],
    }


def test_recorded_prompts_are_still_referenced_after_a_restart() -> None:
    data = Prompts().record("seat/propose/0.1", (SYSTEM, TASK))
    restored = Prompts({"seat/propose/0.1": data, "seat/propose/0.2": {"kept": "many"}})
    reply = Message("assistant", "Done.")
    assert restored.record("seat/propose/0.3", (SYSTEM, TASK, reply)) == {
        "of": "seat/propose/0.1",
        "kept": 2,
        "messages": [{"role": "assistant", "content": "Done."}],
    }


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"messages": []},
        {"messages": [{"role": "root", "content": "x"}]},
        {"messages": ["x"]},
        {"of": "unknown", "kept": 1, "messages": []},
        {"of": "seat/propose/0.1", "kept": 3, "messages": []},
        {"of": "seat/propose/0.1", "kept": -1, "messages": []},
        {"of": "seat/propose/0.1", "kept": 1, "chars": 10**9, "messages": [{"role": "user"}]},
        {"of": "seat/propose/0.1", "kept": 2, "chars": 1, "messages": [{"role": "user"}]},
        {"of": "seat/propose/0.1", "kept": 1, "chars": 5, "messages": []},
    ],
)
def test_a_malformed_prompt_is_read_as_missing(data: Any) -> None:
    prompts = Prompts()
    prompts.record("seat/propose/0.1", (SYSTEM, TASK))
    assert prompts.read("seat/propose/0.2", data) is None


RUN = FunctionCall("call-1", "shell", '{"command": "pytest -n 2"}')
EARLIER = (
    Message("system", "Today is 2026-11-29. Work in /tmp/a1b2c3."),
    Message("user", "Fix it"),
    Message("assistant", "", (RUN,)),
    Message("tool", "3 failed in 0.21 s", call_id="call-1"),
)


@pytest.mark.parametrize(
    ("place", "message", "is_same"),
    [
        (0, Message("system", "Today is 2026-11-30. Work in /tmp/d4e5f6."), True),
        (3, Message("tool", "1 error: no space left", call_id="call-7"), True),
        (2, Message("assistant", "", (replace(RUN, call_id="call-7"),)), True),
        (1, Message("user", "Fix that"), False),
        (2, Message("assistant", "", (replace(RUN, arguments='{"command": "ls"}'),)), False),
        (3, Message("user", "3 failed in 0.21 s"), False),
    ],
)
def test_the_same_course_of_another_run(place: int, message: Message, *, is_same: bool) -> None:
    changed = [*EARLIER[:place], message, *EARLIER[place + 1 :]]
    assert is_same_conversation(EARLIER, changed) is is_same
    assert not is_same_conversation(EARLIER, changed[:-1])


def test_long_texts_of_hexadecimal_letters_are_compared_in_linear_time() -> None:
    text = "a" * 1_000_000
    assert not is_same_conversation([Message("user", f"{text}x")], [Message("user", f"{text}y")])
