from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.workspace.kubernetes.link import (
    CODE_EXECUTOR,
    CONTROL,
    EXECUTOR,
    FIRST_OF_POD,
    Folders,
    Multiplexer,
    PodLink,
    Streams,
    Transport,
)
from support.pods import Queues


class Lossy(Queues):
    """Queues that lose one data message."""

    def __init__(self, until_loss: int) -> None:
        super().__init__()
        self._until_loss = until_loss

    async def send(self, name: str, data: bytes) -> None:
        if data[:1] == b"d":
            self._until_loss -= 1
            if self._until_loss == 0:
                return
        await super().send(name, data)


@asynccontextmanager
async def trunks(
    queues: Queues, accepted: list[tuple[int, Streams]] | None = None
) -> AsyncIterator[tuple[Multiplexer, Multiplexer]]:
    carrier = Transport(queues.send, queues.listen)
    host = Multiplexer(
        carrier,
        "pod-in",
        "pod-out",
        lambda number, streams: (accepted or []).append((number, streams)),
    )
    if accepted is not None:
        host = Multiplexer(
            carrier, "pod-in", "pod-out", lambda number, streams: accepted.append((number, streams))
        )
    pod = Multiplexer(carrier, "pod-out", "pod-in")
    running = [asyncio.create_task(multiplexer.run()) for multiplexer in (host, pod)]
    try:
        async with asyncio.timeout(20):
            await host.connected.wait()
            await pod.connected.wait()
            yield host, pod
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


async def ends(host: Multiplexer, pod: Multiplexer, number: int) -> tuple[Streams, Streams]:
    return (
        await asyncio.open_connection(sock=await host.open(number)),
        await asyncio.open_connection(sock=await pod.open(number)),
    )


async def close(*streams: Streams) -> None:
    for _, writer in streams:
        writer.close()
        await writer.wait_closed()


@given(
    st.lists(
        st.tuples(st.sampled_from([CONTROL, EXECUTOR]), st.binary(min_size=1, max_size=400_000)),
        min_size=1,
        max_size=6,
    )
)
def test_each_stream_delivers_its_data_completely_and_in_order(
    messages: list[tuple[int, bytes]],
) -> None:
    async def main() -> None:
        async with trunks(Queues()) as (host, pod):
            pairs = {number: await ends(host, pod, number) for number in (CONTROL, EXECUTOR)}

            async def write(number: int) -> None:
                for at, data in messages:
                    if at == number:
                        pairs[number][0][1].write(data)
                        await pairs[number][0][1].drain()
                pairs[number][0][1].close()

            writing = [asyncio.create_task(write(number)) for number in pairs]
            for number, (_, (reader, _)) in pairs.items():
                assert await reader.read(-1) == b"".join(
                    data for at, data in messages if at == number
                )
            await asyncio.wait(writing)
            await close(*(writer for pair in pairs.values() for writer in pair))

    asyncio.run(main())


async def test_a_stream_of_the_pod_is_accepted_once_and_later_frames_are_dropped() -> None:
    accepted: list[tuple[int, Streams]] = []
    async with trunks(Queues(), accepted) as (_, pod):
        theirs = await asyncio.open_connection(sock=await pod.open(FIRST_OF_POD))
        theirs[1].write(b"CONNECT")
        while not accepted:
            await asyncio.sleep(0.01)
        ((number, (reader, writer)),) = accepted
        assert number == FIRST_OF_POD
        assert await reader.readexactly(7) == b"CONNECT"
        writer.write(b"200")
        assert await theirs[0].readexactly(3) == b"200"
        await close((reader, writer))
        assert await theirs[0].read() == b""
        await close(theirs)
        assert len(accepted) == 1


async def test_a_lost_message_ends_all_streams_and_no_wrong_data_is_read() -> None:
    async with trunks(Lossy(2)) as (host, pod):
        (_, ours), (theirs, other_end) = await ends(host, pod, EXECUTOR)
        for piece in (b"one", b"two", b"three"):
            ours.write(piece)
            await ours.drain()
            await asyncio.sleep(0.05)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await theirs.readexactly(11)
        await close((theirs, other_end))
        ours.transport.abort()


async def test_an_ended_trunk_opens_no_stream() -> None:
    async with trunks(Queues()) as (host, _):
        pass
    with pytest.raises(ConnectionError):
        await host.open(EXECUTOR)


async def test_a_link_without_a_host_ends(tmp_path: Path) -> None:
    queues = Queues()
    link = PodLink(Folders(links=tmp_path), {EXECUTOR: "hands"})
    async with asyncio.timeout(20):
        await link.run(Transport(queues.send, queues.listen), "pod", connect_seconds=0.05)
    assert (tmp_path / "hands").is_dir(), "it had begun to listen for its containers"


class Flooding:
    """A link that sends arbitrary messages as fast as the bus accepts them."""

    def __init__(self, queues: Queues) -> None:
        self._queues, self._number = queues, 0

    async def say(self, stream: int, data: bytes) -> None:
        self._number += 1
        await self._queues.send("pod-out", struct.pack("!cII", b"d", self._number, stream) + data)


@pytest.mark.parametrize(
    "stream",
    [EXECUTOR, CODE_EXECUTOR, 7, FIRST_OF_POD],
    ids=["read slowly", "not opened yet", "never opened", "opened by the pod"],
)
async def test_a_link_that_ignores_the_flow_control_window_is_disconnected(stream: int) -> None:
    accepted: list[tuple[int, Streams]] = []
    queues = Queues()
    host = Multiplexer(
        Transport(queues.send, queues.listen),
        "pod-in",
        "pod-out",
        lambda number, streams: accepted.append((number, streams)),
    )
    running = asyncio.create_task(host.run())
    await asyncio.sleep(0)
    opened = await host.open(EXECUTOR)  # nobody reads it
    link = Flooding(queues)
    async with asyncio.timeout(20):
        for _ in range(200):
            await link.say(stream, bytes(100_000))
            await asyncio.sleep(0)
        await running
    assert "exceeded the flow-control window" in host.end_reason
    opened.close()
    for _, (_, writer) in accepted:
        writer.transport.abort()


async def test_an_oversized_message_ends_the_trunk() -> None:
    queues = Queues()
    host = Multiplexer(Transport(queues.send, queues.listen), "pod-in", "pod-out")
    running = asyncio.create_task(host.run())
    await asyncio.sleep(0)
    await Flooding(queues).say(CODE_EXECUTOR, bytes(8_000_000))
    async with asyncio.timeout(20):
        await running
    assert "exceeded the flow-control window" in host.end_reason
