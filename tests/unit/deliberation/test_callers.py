"""Numbers of sub-agents: unique within a turn, whoever started them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moothall.deliberation.code_blocks import Caller, SubAgentLimits


def descendants(caller: Caller, limits: SubAgentLimits) -> Iterator[Caller]:
    """Yield all callers that `caller` could start, in each of its turns, to the depth limit."""
    for turn in range(1, (limits.turns if caller.depth else 1) + 1):
        for index in range(1, limits.fan_out + 1):
            child = Caller(caller.depth, caller.number, turn).child(index, limits)
            yield child
            if child.depth < limits.depth:
                yield from descendants(child, limits)


@pytest.mark.parametrize(
    ("depth", "fan_out", "turns"), [(1, 6, 6), (2, 4, 3), (3, 2, 2), (3, 3, 2)]
)
def test_call_numbers_are_unique(depth: int, fan_out: int, turns: int) -> None:
    limits = SubAgentLimits(depth, fan_out, turns)
    agents = list(descendants(Caller(), limits))
    ordinals = [
        agent.turn_offset(limits) + turn for agent in agents for turn in range(1, turns + 1)
    ]
    assert len(ordinals) == len(set(ordinals)) > fan_out
    assert min(ordinals) == 1
