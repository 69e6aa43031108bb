"""Numbers of sub-agents: unique within a turn, whoever started them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moothall.config import RunnerSettings
from moothall.deliberation.code_blocks import Caller


def below(caller: Caller, settings: RunnerSettings) -> Iterator[Caller]:
    """Yield all callers that `who` could start, in each of their turns, down to the depth limit."""
    for turn in range(1, (settings.agents_turns if caller.depth else 1) + 1):
        for index in range(1, settings.agents_fan_out + 1):
            child = Caller(caller.depth, caller.number, turn).child(index, settings)
            yield child
            if child.depth < settings.agents_depth:
                yield from below(child, settings)


@pytest.mark.parametrize(
    ("depth", "fan_out", "turns"), [(1, 6, 6), (2, 4, 3), (3, 2, 2), (3, 3, 2)]
)
def test_no_two_calls_have_one_number(depth: int, fan_out: int, turns: int) -> None:
    settings = RunnerSettings(agents_depth=depth, agents_fan_out=fan_out, agents_turns=turns)
    agents = list(below(Caller(), settings))
    ordinals = [
        agent.turn_offset(settings) + turn for agent in agents for turn in range(1, turns + 1)
    ]
    assert len(ordinals) == len(set(ordinals)) > fan_out
    assert min(ordinals) == 1
