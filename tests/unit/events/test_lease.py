"""A lease has one holder at a time, despite wrong clocks, a slow bus and stalled processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moothall.errors import BusUnavailable
from moothall.events.lease import BUCKET, Lease
from moothall.testing.bus import MemoryBucket, MemoryBus

SECONDS = 6.0


class World:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Far:
    """A bucket behind an unreliable connection: calls are delayed or lost, and a lost write may
    have been stored.
    """

    def __init__(self, bucket: MemoryBucket, world: World) -> None:
        self._bucket = bucket
        self._world = world
        self.delay = 0.0
        self.lost = ""

    async def get_with_revision(self, key: str) -> tuple[Mapping[str, Any] | None, int]:
        entry = await self._bucket.get_with_revision(key)
        self._world.now += self.delay
        if self.lost == "read":
            raise BusUnavailable("nobody answers")
        return entry

    async def replace(self, key: str, document: Mapping[str, Any], revision: int) -> None:
        self._world.now += self.delay
        if self.lost == "before":
            raise BusUnavailable("nobody answers")
        await self._bucket.replace(key, document, revision)
        self._world.now += self.delay
        if self.lost == "after":
            raise BusUnavailable("nobody answers")


def open_leases(world: World, bucket: MemoryBucket) -> list[tuple[Lease, Far]]:
    remotes = [Far(bucket, world) for _ in range(3)]
    return [(Lease(remote, "graph", SECONDS, clock=world), remote) for remote in remotes]  # type: ignore[arg-type] # it uses no more of a bucket


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.floats(0, 4),
        st.sampled_from([0.0, 0.0, 0.5, 3.0, 7.0]),
        st.sampled_from(["", "", "", "read", "before", "after"]),
        st.sampled_from(["step", "step", "step", "release"]),
    ),
    max_size=40,
)


@given(STEPS)
def test_a_lease_never_has_two_holders(steps: list[tuple[int, float, float, str, str]]) -> None:
    async def run() -> None:
        world, bucket = World(), MemoryBus().bucket(BUCKET)
        leases = open_leases(world, bucket)
        for principal, passes, delay, is_lost, does in steps:
            world.now += passes
            lease, remote = leases[principal]
            remote.delay, remote.lost = delay, is_lost
            with contextlib.suppress(BusUnavailable):
                await (lease.step() if does == "step" else lease.release())
            assert sum(lease.held for lease, _ in leases) <= 1

    asyncio.run(run())


async def test_a_lease_stays_with_its_renewing_holder_and_expires_otherwise() -> None:
    world, bucket = World(), MemoryBus().bucket(BUCKET)
    (first, _), (second, _), _ = open_leases(world, bucket)
    for _ in range(5):
        await first.step()
        await second.step()
        assert first.held
        assert not second.held
        world.now += 2
    world.now += SECONDS  # the first process has ended
    assert not first.held
    await second.step()
    assert second.held
    await first.step()  # it continues too late
    assert not first.held


async def test_a_suspended_holder_knows_that_its_lease_expired() -> None:
    world, bucket = World(), MemoryBus().bucket(BUCKET)
    (first, _), *_ = open_leases(world, bucket)
    await first.step()
    assert first.held
    world.now += SECONDS
    assert not first.held


async def test_a_released_lease_can_be_acquired_immediately() -> None:
    world, bucket = World(), MemoryBus().bucket(BUCKET)
    (first, _), (second, _), _ = open_leases(world, bucket)
    await first.step()
    await second.step()
    await first.release()
    await second.step()
    assert second.held
    assert not first.held


async def test_another_process_takes_over_the_work_when_the_holder_ends() -> None:
    bucket, doing, holders = MemoryBus().bucket(BUCKET), set[str](), list[str]()

    async def work(name: str) -> None:
        assert not doing
        doing.add(name)
        holders.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            doing.discard(name)

    async def until(name: str) -> None:
        async with asyncio.timeout(20):
            while name not in doing:
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        leading = group.create_task(Lease(bucket, "x", 0.3).lead(lambda: work("first")))
        await until("first")
        waiting = group.create_task(Lease(bucket, "x", 0.3).lead(lambda: work("second")))
        leading.cancel()
        await until("second")
        waiting.cancel()
    assert list(dict.fromkeys(holders)) == ["first", "second"]


async def test_a_waiter_continues_when_the_holder_ends() -> None:
    bucket, order = MemoryBus().bucket(BUCKET), list[str]()

    async def second() -> None:
        async with Lease(bucket, "x", 0.3).wait():
            order.append("second")

    async with asyncio.TaskGroup() as group:
        async with Lease(bucket, "x", 0.3).wait():
            waiting = group.create_task(second())
            await asyncio.sleep(1)
            order.append("first")
        await waiting
    assert order == ["first", "second"]


async def test_try_acquire_succeeds_only_if_the_lease_is_free() -> None:
    bucket = MemoryBus().bucket(BUCKET)
    async with (
        Lease(bucket, "x", 30).try_acquire() as first,
        Lease(bucket, "x", 30).try_acquire() as second,
    ):
        assert (first, second) == (True, False)
    async with Lease(bucket, "x", 30).try_acquire() as acquired_again:
        assert acquired_again
