from __future__ import annotations

from moothall.domain.event import Channel
from moothall.events.delivery import (
    MAX_QUEUED,
    Turns,
    is_shared,
    parse_waiting,
    queue_limit,
    waiting_topic,
)


def test_tenants_take_turns_including_late_ones() -> None:
    turns, waiting = Turns(), {"a": 5, "c": 2}
    order = []
    for number in range(9):
        if number == 3:
            waiting["b"] = 2
        tenant = turns.choose(waiting)
        assert tenant is not None
        waiting[tenant] -= 1
        order.append(tenant)
    assert order == ["a", "c", "a", "b", "c", "a", "b", "a", "a"]
    assert turns.choose(waiting) is None


def test_the_topic_of_waiting_work_names_role_and_tenant() -> None:
    topic = waiting_topic("dev", "team-a")
    assert topic == Channel.WORK.of("dev_team-a")
    assert parse_waiting("dev_team-a") == ("dev", "team-a")
    assert parse_waiting("dev") is None
    assert parse_waiting("other_team-a") is None


def test_tenants_share_only_the_queues_of_roles() -> None:
    assert is_shared(Channel.WORK.of("dev"))
    assert not is_shared(waiting_topic("dev", "team-a"))
    assert not is_shared(Channel.CALLS.of("dev"))


def test_as_many_may_queue_as_hosts_soon_take() -> None:
    assert queue_limit(0) == queue_limit(4 * MAX_QUEUED) == MAX_QUEUED
    assert queue_limit(8 * MAX_QUEUED) == 2 * MAX_QUEUED
