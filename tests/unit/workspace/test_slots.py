from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from moothall.concurrency import TimeLimit
from moothall.processes import try_lock
from moothall.workspace.slots import QueuePlace, Slots, queued, queued_since, slots_folder

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

HOLDS = textwrap.dedent("""
    import asyncio, sys
    from pathlib import Path
    from moothall.workspace.slots import Slots, queued_since

    async def main() -> None:
        slots = Slots(lambda: Path(sys.argv[1]), int(sys.argv[2]))
        with queued_since(float(sys.argv[3])):
            async with slots.hold():
                print("has it", flush=True)
                await asyncio.to_thread(sys.stdin.read)

    asyncio.run(main())
""")


def slots_in(folder: Path, count: int) -> Slots:
    def find() -> Path:
        folder.mkdir(exist_ok=True)
        return folder

    return Slots(find, count)


@asynccontextmanager
async def other_process(
    folder: Path, count: int, since: float
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process that waits for a slot, reports that it has one, and holds it until its input
    ends.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOLDS,
        str(folder),
        str(count),
        str(since),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def has_it(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    assert await process.stdout.readline() == b"has it\n"


async def waits(folder: Path) -> None:
    """Return once another process waits."""
    while not [path for path in folder.glob("waiting-*") if not path.suffix]:
        await asyncio.sleep(0.01)


async def until_locked(path: Path) -> None:
    """Return once the lock of a file has been held at several consecutive checks."""
    locked_count = 0
    while locked_count < 3:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        locked_count = 0 if try_lock(descriptor) else locked_count + 1
        os.close(descriptor)
        await asyncio.sleep(0.02)


async def hold_until(free: asyncio.Event, slots: Slots, *, alone: bool = False) -> None:
    async with slots.hold(alone=alone):
        await free.wait()


async def test_at_most_as_many_commands_run_as_there_are_slots(tmp_path: Path) -> None:
    first_slots, second_slots = slots_in(tmp_path, 2), slots_in(tmp_path, 2)
    running, max_running = 0, 0

    async def work(slots: Slots) -> None:
        nonlocal running, max_running
        async with slots.hold():
            running += 1
            max_running = max(max_running, running)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(work(slots) for slots in (first_slots, second_slots) * 10))
    assert max_running == 2


async def test_the_oldest_deliberation_gets_a_slot_first(tmp_path: Path) -> None:
    slots, order = slots_in(tmp_path, 1), []

    async def work(since: float) -> None:
        with queued_since(since):
            async with slots.hold():
                order.append(since)

    async with slots.hold():
        tasks = [asyncio.create_task(work(since)) for since in (30.0, 10.0, 20.0, 40.0)]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == [10.0, 20.0, 30.0, 40.0]


async def test_an_interactive_command_goes_before_a_recent_deliberation(tmp_path: Path) -> None:
    slots, order, now = slots_in(tmp_path, 1), [], time.time()

    async def work(name: str, place: QueuePlace) -> None:
        with queued(place):
            async with slots.hold():
                order.append(name)

    places = {
        "recent": QueuePlace(now - 60),
        "interactive": QueuePlace(0.0),
        "old": QueuePlace(now - 3600),
        "old, of a tenant with others": QueuePlace(now - 3600, lambda: 3580.0),
    }
    async with slots.hold():
        tasks = [asyncio.create_task(work(*item)) for item in places.items()]
        await asyncio.sleep(0.05)
        assert min(place.waited_seconds for place in places.values()) > 0
    await asyncio.gather(*tasks)
    assert order == ["old", "interactive", "recent", "old, of a tenant with others"]
    assert {place.waited_seconds for place in places.values()} == {0.0}


async def test_an_older_command_of_another_process_gets_a_slot_first(tmp_path: Path) -> None:
    slots, free = slots_in(tmp_path, 1), asyncio.Event()
    free.set()
    async with other_process(tmp_path, 1, 10.0) as process:
        with queued_since(20.0):
            async with slots.hold():
                await waits(tmp_path)
                younger = asyncio.create_task(hold_until(free, slots))
                await asyncio.sleep(0)
            await has_it(process)
            assert not younger.done()
            assert process.stdin is not None
            process.stdin.close()
            await younger


async def test_the_slot_of_a_killed_process_is_freed(tmp_path: Path) -> None:
    slots, free = slots_in(tmp_path, 1), asyncio.Event()
    free.set()
    async with other_process(tmp_path, 1, 10.0) as process:
        await has_it(process)
        mine = asyncio.create_task(hold_until(free, slots))
        await waits(tmp_path)
        assert not mine.done()
        process.kill()
        await mine


async def test_a_stopped_process_does_not_block_others(tmp_path: Path) -> None:
    slots = slots_in(tmp_path, 1)
    async with other_process(tmp_path, 1, 10.0) as process:
        await has_it(process)
        process.send_signal(signal.SIGSTOP)
        long_ago = time.time() - 60
        await asyncio.to_thread(os.utime, tmp_path / "slot-0", (long_ago, long_ago))
        async with slots.hold():
            pass
        async with slots.hold(alone=True):
            pass
        process.send_signal(signal.SIGCONT)


async def test_waiting_for_a_slot_can_be_cancelled(tmp_path: Path) -> None:
    slots = slots_in(tmp_path, 1)
    async with slots.hold():
        for alone in (False, True):
            waiting = asyncio.create_task(hold_until(asyncio.Event(), slots, alone=alone))
            await (until_locked(tmp_path / "alone") if alone else waits(tmp_path))
            waiting.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled()
    async with slots.hold(alone=True):
        pass
    assert not list(tmp_path.glob("waiting-*"))


async def test_an_exclusive_command_waits_for_all_others_and_blocks_them(tmp_path: Path) -> None:
    first_slots, second_slots, steps = slots_in(tmp_path, 2), slots_in(tmp_path, 3), []

    async def hold_exclusively(name: str, slots: Slots) -> None:
        async with slots.hold(alone=True):
            steps.append(f"{name} begins")
            await until_locked(tmp_path / "alone")
            steps.append(f"{name} ends")

    async def hold_shared() -> None:
        async with second_slots.hold():
            steps.append("beside")

    async with second_slots.hold():
        tasks = [
            asyncio.create_task(hold_exclusively("one", first_slots)),
            asyncio.create_task(hold_exclusively("other", second_slots)),
        ]
        await until_locked(tmp_path / "alone")
        tasks.append(asyncio.create_task(hold_shared()))
        await waits(tmp_path)
        assert steps == []
    await asyncio.gather(*tasks)
    assert sorted(steps) == sorted(
        ["one begins", "one ends", "other begins", "other ends", "beside"]
    )
    for name in ("one", "other"):
        assert steps.index(f"{name} ends") == steps.index(f"{name} begins") + 1


async def test_a_released_slot_can_be_used_by_another(tmp_path: Path) -> None:
    slots = slots_in(tmp_path, 1)
    async with slots.hold() as slot:
        slot.release()
        async with slots.hold():
            pass
        await slot.acquire()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), slots.hold():
                pytest.fail("the slot is taken")


async def test_waiting_for_a_slot_does_not_use_up_the_time_limit(tmp_path: Path) -> None:
    slots = slots_in(tmp_path, 1)
    free = asyncio.Event()
    holding = asyncio.create_task(hold_until(free, slots))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(3, free.set)
    async with TimeLimit(2, 60) as limit, slots.hold():
        assert free.is_set()
    assert limit.waited > 0
    await holding
    with pytest.raises(TimeoutError):
        async with TimeLimit(0.1, 60):
            await asyncio.sleep(30)
    async with slots.hold():
        with pytest.raises(TimeoutError):
            async with TimeLimit(0.1, 0.3), slots.hold():
                pytest.fail("the slot is taken")


def test_the_folder_of_slots_belongs_to_the_user(tmp_path: Path) -> None:
    folder = slots_folder(tmp_path / "slots")
    assert folder.stat().st_uid == os.geteuid()
    assert folder.stat().st_mode & 0o077 == 0


async def test_a_deleted_folder_is_created_again(tmp_path: Path) -> None:
    slots = slots_in(tmp_path / "slots", 1)
    for _ in range(2):
        async with slots.hold():
            pass
        async with slots.hold(alone=True):
            pass
        await asyncio.to_thread(shutil.rmtree, tmp_path / "slots")


async def test_commands_run_even_if_slots_cannot_be_counted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    slots = Slots(lambda: tmp_path / "file", 1)
    for alone in (False, True):
        async with slots.hold(alone=alone), slots.hold():
            pass
