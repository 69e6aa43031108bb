"""A seat that works with native tool calls on a real vLLM. The small model's choices are not
tested; that its calls run is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moothall.domain.event import EventType
from moothall.llm.client import OpenAIModel
from support.council import of, open_council
from support.watching import WatchedModel

pytestmark = pytest.mark.asyncio(loop_scope="session")


TASK = (
    "Look at src/utils.py with the tool view: <tool_call>, then the JSON object, then </tool_call>."
)


async def test_a_seat_calls_tools_and_reads_their_results(
    coder: OpenAIModel, tmp_path: Path
) -> None:
    watched = WatchedModel(coder)
    async with open_council(tmp_path, lambda _b, _h: "", temperature=0.0) as app:
        answerers = replace(app.parts.answerers, model=watched)
        app.parts = replace(app.parts, answerers=answerers)
        events = await app.run(
            app.deliberation("single", 1, description=TASK, seconds=600, max_turns=2)
        )
    (started,) = of(events, EventType.DELIBERATION_STARTED)
    assert (started["reply_mode"], started["models"][0]["window"]) == ("tools", 16_384)
    turns = of(events, EventType.SEAT_TURN)
    assert turns[0]["operations"], watched.calls[0][1]
    first, second, *_ = watched.calls
    ids = [call.call_id for call in first[1].calls]
    assert [message.call_id for message in second[0].messages if message.role == "tool"] == ids
    assert second[1].usage.cached_tokens > 0.8 * first[1].usage.prompt_tokens, (
        "the prefix stays as it was"
    )
