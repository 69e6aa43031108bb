from __future__ import annotations

from collections import Counter
from dataclasses import replace

from moothall.workspace.node_sandboxes import Candidate, Heartbeats, choose

IDLE = Candidate("a", cores=2, waiting=0, open=0, seats=0, has_folders=False)


def test_an_idle_node_with_the_folders_is_preferred() -> None:
    nodes = [IDLE, replace(IDLE, name="b", open=1, has_folders=True)]
    assert choose(nodes).name == "b"


def test_a_free_node_without_folders_is_preferred_to_a_full_one_with_them() -> None:
    for full in (replace(IDLE, name="b", open=2), replace(IDLE, name="b", waiting=1)):
        assert choose([replace(full, has_folders=True), IDLE]).name == "a"


def test_seats_of_a_council_are_spread_while_a_node_is_free() -> None:
    seated = replace(IDLE, name="b", seats=1, open=1, cores=8, has_folders=True)
    assert choose([seated, IDLE]).name == "a"
    assert choose([seated, replace(IDLE, waiting=1)]).name == "b"


def test_without_a_free_node_the_load_per_core_decides() -> None:
    small = replace(IDLE, cores=1, open=2)
    large = replace(IDLE, name="b", cores=8, open=9)
    assert choose([small, large]).name == "b"


def test_a_council_of_eight_is_spread_evenly_over_four_nodes() -> None:
    opened: Counter[str] = Counter()
    for _ in range(8):
        nodes = [
            replace(IDLE, name=name, cores=1, open=opened[name], seats=opened[name])
            for name in "abcd"
        ]
        opened[choose(nodes).name] += 1
    assert set(opened.values()) == {2}


def test_a_silent_partner_is_reported_once_after_the_timeout() -> None:
    now = 0.0
    beats = Heartbeats(10, clock=lambda: now)
    beats.record("one")
    now = 6.0
    beats.record("two")
    assert beats.remaining("one") == 4
    now = 10.5
    assert beats.forget_silent() == ["one"]
    assert beats.forget_silent() == []
    beats.record("two")
    now = 20.0
    assert beats.forget_silent() == []
