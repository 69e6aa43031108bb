"""Steering messages to a running council: read at the next turn, and the same again after a
restart.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from moothall.config import LimitSettings
from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.recorded_model import RecordedModel, Recording
from moothall.domain.budget import Ledger
from moothall.domain.event import EventType, Recorded
from moothall.domain.ids import LOCAL
from moothall.domain.task import DeliberationRequest
from moothall.orchestrator.request_planning import Defaults
from moothall.orchestrator.service import DeliberationService
from moothall.workers.host import Host
from support.council import Thinking, answer_with_approaches, open_council, until
from support.story import Remembering

FRENCH = "Say it in French."


async def test_a_seat_gets_a_steering_message_at_its_next_turn_and_again_after_a_restart(
    tmp_path: Path,
) -> None:
    model = Thinking()
    async with (
        open_council(tmp_path, answer_with_approaches(model)) as app,
        asyncio.TaskGroup() as group,
    ):
        host, deliberations = (
            Host("host", app.bus, Remembering(), app.parts, 4),
            DeliberationService(app.bus, Remembering(), Defaults(LimitSettings())),
        )
        request = DeliberationRequest(
            "Say hello", "dev", task_id="task-1", num_agents=1, protocol="single", about_text=True
        )
        d = await deliberations.submit(request, LOCAL)
        listening = group.create_task(host._listen_for_steering())
        events = [recorded.event async for recorded in app.bus.replay()]
        work = group.create_task(host._handle_work(Recorded(1, events[0])))
        await until(lambda: model.calls == 1)
        await deliberations.steer(d.own_id, FRENCH, LOCAL, key="k")
        await until(lambda: bool(host._running[d.task_id].steering))
        model.go_on.set()
        await work
        listening.cancel()
        prompts = [str(call.body["messages"][-1]["content"]) for call in app.server.requests]
        assert [FRENCH in prompt for prompt in prompts] == [False, True]
        assert "added to the task later, by local" in prompts[1]
        log = [recorded.event async for recorded in app.bus.replay()]
        called = [event for event in log if event.type is EventType.MODEL_CALLED]
        (steering_id,) = [event.id for event in log if event.type is EventType.DELIBERATION_STEERED]
        assert [event.data.get("told") for event in called] == [None, [steering_id]]
        restarted_model = RecordedModel(
            app.parts.answerers.model,
            ledger=Ledger(d.budget),
            events=EventWriter(app.bus, d),
            recording=Recording.of(log),
            settings=app.parts.answerers.llm,
            steering={"later": "and later"},
        )
        message_counts = [
            len(restarted_model.steering_for(str(event.data["call_id"]))) for event in called
        ]
        assert message_counts == [0, 1]
        assert len(restarted_model.steering_for(f"{d.task_id}/{d.seats[0]}/propose/0.9")) == 2, (
            "a call that was never made gets all messages"
        )
