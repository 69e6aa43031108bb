"""The context in a council's spans, events and metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from moothall import telemetry
from moothall.config import TraceSettings
from moothall.deliberation.event_writer import _as_json, _output_json
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, FunctionCall, Message
from moothall.domain.event import Event, EventType, request_event_id
from moothall.domain.ids import TaskKey
from moothall.domain.text import scrub
from moothall.telemetry.recording import recording
from moothall.testing.model import Answer, phase_of, seat_of
from support.council import ONE, act, answer_with_approaches, append, finish, open_council, review
from support.repos import SOLUTION

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def by_phase(propose: str) -> Answer:
    def answer(_body: Any, headers: Any) -> Any:
        return (
            review(7)
            if phase_of(headers) in {"critique", "verify"}
            else propose.replace("SEAT", seat_of(headers))
        )

    return answer_with_approaches(answer)


async def deliberate_traced(
    app: Any, d: Any, *, content: bool = False
) -> tuple[list[Event], list[ReadableSpan]]:
    """Deliberate under a caller's trace; return events and spans."""
    exporter = InMemorySpanExporter()
    async with recording(TraceSettings(content=content), "test", exporter=exporter):
        with telemetry.span("deliberation", parent=CALLER):
            events = await app.run(d)
    return events, list(exporter.get_finished_spans())


def spans_named(spans: list[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def parents(spans: list[ReadableSpan]) -> dict[str, set[str]]:
    """Return the names of the parents of the spans of each name."""
    by_id = {span.context.span_id: span.name for span in spans if span.context}
    parent_names: dict[str, set[str]] = {}
    for span in spans:
        parent_names.setdefault(span.name, set()).add(
            by_id.get(span.parent.span_id, "elsewhere") if span.parent else "none"
        )
    return parent_names


@pytest.mark.e2e  # executors that run tests
async def test_one_trace_covers_the_deliberation_and_each_model_and_tool_call(
    tmp_path: Path,
) -> None:
    async with open_council(tmp_path, by_phase(append(SOLUTION))) as app:
        events, spans = await deliberate_traced(app, app.deliberation("vote", seats=2, max_turns=1))
        requests = [(call.call_id, call.headers) for call in app.server.requests]
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {
        CALLER.split("-")[1]
    }
    assert parents(spans) == {
        "deliberation": {"elsewhere"},
        "seat": {"deliberation"},
        "turn": {"seat"},
        "chat": {"deliberation", "turn"},
        "execute_tool": {"turn"},
        "own checks": {"turn"},
        "check": {"deliberation", "seat"},  # those that confirm the first answer come at the end
    }
    assert len(spans_named(spans, "seat")) == 2
    chats = {
        str((span.attributes or {})["moothall.call_id"]): span
        for span in spans_named(spans, "chat")
    }
    assert set(chats) == {call_id for call_id, _ in requests}
    for call_id, headers in requests:  # the server's own spans join the call that it answers
        context = chats[call_id].context
        assert context is not None
        assert headers["traceparent"].split("-")[2] == f"{context.span_id:016x}"
    attributes: dict[str, Any] = dict(chats[f"task-1/{ONE}/propose/0.1"].attributes or {})
    assert attributes["gen_ai.request.model"] == attributes["gen_ai.response.model"] == "scripted"
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.provider.name"] == "openai"
    assert attributes["gen_ai.conversation.id"] == "task-1"
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert attributes["gen_ai.usage.input_tokens"] > 0
    assert attributes["gen_ai.usage.cache_read.input_tokens"] >= 0
    assert not [name for name in attributes if name.endswith(".messages")]
    tool = dict(spans_named(spans, "execute_tool")[0].attributes or {})
    assert tool["gen_ai.operation.name"] == "execute_tool"
    seat = dict(spans_named(spans, "seat")[0].attributes or {})
    assert (seat["gen_ai.operation.name"], seat["gen_ai.conversation.id"]) == (
        "invoke_agent",
        "task-1",
    )
    assert (tool["gen_ai.tool.name"], tool["moothall.tool.status"]) == ("files.append", "success")
    assert tool["moothall.workspace"]
    assert {event.traceparent.split("-")[1] for event in events} == {CALLER.split("-")[1]}


@pytest.mark.e2e  # a dozen runs of pytest
async def test_every_cause_is_an_event_of_the_log(tmp_path: Path) -> None:
    async with open_council(tmp_path, by_phase(append(f"{SOLUTION}# by SEAT\n"))) as app:
        events = await app.run(app.deliberation("debate", seats=2, max_turns=1, rounds=1))
    ids = {event.id for event in events} | {request_event_id(TaskKey("task-1"))}
    kinds = {event.type for event in events}
    assert {EventType.TOOL_FINISHED, EventType.CHECK_FINISHED, EventType.SEAT_REVIEWED} <= kinds
    assert {event.type for event in events if event.causationid not in ids} == set()


async def test_tracing_changes_no_id_and_no_prompt(tmp_path: Path) -> None:
    runs = []
    for number, traced in enumerate((True, False)):
        (tmp_path / str(number)).mkdir()
        async with open_council(
            tmp_path / str(number), by_phase(finish("An old silent pond"))
        ) as app:
            d = app.deliberation("vote", seats=2, repository=None, base_sha=None)
            events = (await deliberate_traced(app, d))[0] if traced else await app.run(d)
            runs.append(
                (
                    {event.id for event in events},
                    sorted(json.dumps(call.body) for call in app.server.requests),
                )
            )
            assert {bool(event.traceparent) for event in events} == {traced}
    assert runs[0] == runs[1]


async def test_prompts_and_answers_are_recorded_if_enabled(tmp_path: Path) -> None:
    secret = "ghp_" + "a" * 36
    async with open_council(tmp_path, by_phase(finish(f"pond {secret}"))) as app:
        d = app.deliberation("single", seats=1, repository=None, base_sha=None)
        _, spans = await deliberate_traced(app, d, content=True)
    attributes = dict(spans_named(spans, "chat")[0].attributes or {})
    messages = json.loads(str(attributes["gen_ai.input.messages"]))
    assert {message["role"] for message in messages} == {"system", "user"}
    assert "hello_world" in messages[-1]["parts"][0]["content"]
    (reply,) = json.loads(str(attributes["gen_ai.output.messages"]))
    assert (reply["role"], reply["finish_reason"]) == ("assistant", "stop")
    assert "pond" in reply["parts"][0]["content"]
    assert secret not in "".join(span.to_json() for span in spans)


async def test_an_unknown_tool_creates_no_label(tmp_path: Path) -> None:
    calls = telemetry.metrics.TOOL_CALLS
    values_before = dict(calls.values)
    hostile = act(("rm -rf / " + "x" * 5000, {}))
    async with open_council(tmp_path, by_phase(hostile)) as app:
        _, spans = await deliberate_traced(app, app.deliberation("single", seats=1, max_turns=1))
    new = {labels for labels, value in calls.values.items() if value != values_before.get(labels)}
    assert new == {("unknown", "invalid")}
    assert {
        str((span.attributes or {})["gen_ai.tool.name"])
        for span in spans_named(spans, "execute_tool")
    } == {"unknown"}


def test_native_calls_follow_the_semantic_conventions() -> None:
    secret = "ghp_" + "a" * 36
    call = FunctionCall("c-1", "view", '{"path": "a.py"}')
    messages = (
        Message("assistant", "I look", calls=(call,)),
        Message("tool", "x = 1", call_id="c-1"),
    )
    reply = ChatReply("", "tool_calls", Usage(), calls=(replace(call, arguments=secret),))
    assert json.loads(_as_json(messages)) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "text", "content": "I look"},
                {
                    "type": "tool_call",
                    "id": "c-1",
                    "name": "view",
                    "arguments": '{"path": "a.py"}',
                },
            ],
        },
        {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": "c-1", "response": "x = 1"}],
        },
    ]
    (document,) = json.loads(_output_json(reply, scrub))
    assert [part["type"] for part in document["parts"]] == ["tool_call"]
    assert secret not in str(document)


async def test_model_calls_are_counted_in_metrics(tmp_path: Path) -> None:
    genai = telemetry.metrics.GENAI_SECONDS, telemetry.metrics.GENAI_TOKENS
    labels = ("chat", "openai", "scripted", "scripted")
    rows = (*labels, ""), (*labels, "input"), (*labels, "output")
    earlier = [sum(genai[0].counts.get(rows[0], [0])[:-1])] + [
        genai[1].counts.get(row, [0])[-1] for row in rows[1:]
    ]
    calls, tokens = telemetry.metrics.MODEL_CALLS, telemetry.metrics.MODEL_TOKENS
    counts_before = (
        calls.values.get(("scripted", "ok"), 0),
        tokens.values.get(("scripted", "prompt"), 0),
    )
    async with open_council(tmp_path, by_phase(finish("pond"))) as app:
        await app.run(app.deliberation("single", seats=1, repository=None, base_sha=None))
        requests = len(app.server.requests)
    assert calls.values["scripted", "ok"] == counts_before[0] + requests
    assert tokens.values["scripted", "prompt"] > counts_before[1]
    assert telemetry.metrics.MODEL_CALLS_IN_FLIGHT.values[()] == 0
    assert sum(genai[0].counts[rows[0]][:-1]) == earlier[0] + requests
    assert genai[1].counts[rows[1]][-1] > earlier[1]
    assert genai[1].counts[rows[2]][-1] > earlier[2]
