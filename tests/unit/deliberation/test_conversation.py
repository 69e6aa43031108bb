from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from moothall.config import LlmSettings
from moothall.deliberation.conversation import ToolChat
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, ChatRequest, FunctionCall, Message
from moothall.domain.ids import TaskKey

SOON = datetime.now(UTC) + timedelta(hours=1)


class Parrot:
    """A model that replies with a call, or with notes on request, and records the requests."""

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []
        self.words: tuple[str, ...] = ()

    def steering_for(self, _call_id: str) -> tuple[str, ...]:
        return self.words

    async def request_reply(self, request: ChatRequest) -> ChatReply:
        self.requests.append(request)
        size = sum(len(message.content) for message in request.messages) // 3
        if request.call_id.endswith(".0"):
            return ChatReply(f"notes {len(self.requests)}", "stop", Usage(size, 0, 5, 1))
        return ChatReply(
            "",
            "tool_calls",
            Usage(size, 0, 5, 1),
            calls=(FunctionCall("c", "bash", '{"command": "ls"}'),),
        )


def chat_with(model: Any) -> ToolChat:
    head = (Message("system", "s"), Message("user", "the task"))
    llm = LlmSettings(context_tokens=2_000, max_tokens=500)
    return ToolChat(
        TaskKey("t"), "s", head, model=model, llm=llm, tools=(), temperature=0.2, seed=1
    )


async def take(chat: ToolChat, first: int, last: int) -> None:
    for turn in range(first, last + 1):
        reply = await chat.request_reply(f"propose/0.{turn}", SOON)
        chat.add_turn(reply, [Message("tool", f"{turn}: {'x' * 1_200}", call_id="c")])


async def test_going_back_undoes_compaction_and_steering_messages() -> None:
    model = Parrot()
    chat = chat_with(model)
    await take(chat, 1, 2)
    state = chat.snapshot()
    model.words = ("Mind the spelling.",)
    await take(chat, 3, 8)
    assert any(request.call_id.endswith(".0") for request in model.requests), "it was compacted"
    later_requests = model.requests[2:]
    chat.restore(state)
    model.requests.clear()
    await take(chat, 3, 8)
    assert [request.messages for request in model.requests if request.call_id.endswith(".3")] == [
        request.messages for request in later_requests if request.call_id.endswith(".3")
    ]
    assert [request.call_id for request in model.requests] == [
        request.call_id for request in later_requests
    ]


async def test_a_conversation_stays_within_the_context_window() -> None:
    model = Parrot()
    await take(chat_with(model), 1, 40)
    sizes = [
        sum(len(message.content) for message in request.messages) // 3 for request in model.requests
    ]
    assert max(sizes) < 2_000
    assert (
        model.requests[-1]
        .messages[1]
        .content.startswith("the task\n\nYour notes on the work so far:\nnotes ")
    )
