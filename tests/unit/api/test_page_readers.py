"""Many subscribers of one board: their cost, and the events that they receive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack

import aiohttp
import pytest

from moothall import config
from moothall.api.http.asgi import ServerLimits
from moothall.api.http.server import http_server
from moothall.api.identity import BearerTokens
from moothall.api.web.board_page import reload_delay
from moothall.domain.event import Recorded, Topic
from moothall.stories.board import Board
from moothall.testing.bus import MemoryBus
from support.browsing import DRAFT, Browser
from support.callers import OTHER, TOKEN, TOKENS, api_dependencies, with_parts
from support.deliberation_service import MemoryDeliberations

MANY = 40


class CountingBus(MemoryBus):
    """A bus that counts its followers and reads."""

    follows = reads = 0

    async def follow(
        self, topics: Sequence[Topic] = (), after_seq: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        self.follows += 1
        try:
            async for recorded in super().follow(topics, after_seq):
                yield recorded
        finally:
            self.follows -= 1

    async def replay(
        self, topics: Sequence[Topic] = (), after_seq: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        self.reads += 1
        async for recorded in super().replay(topics, after_seq):
            yield recorded


@pytest.fixture
def bus() -> CountingBus:
    return CountingBus()


@pytest.fixture
async def browser(bus: CountingBus) -> AsyncIterator[Browser]:
    dependencies = with_parts(api_dependencies(MemoryDeliberations()), board=Board(bus))
    settings = config.WebSettings(port=0)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        http_server(
            settings,
            dependencies,
            BearerTokens(TOKENS),
            configured=True,
            limits=ServerLimits(readers=MANY, calls=2),
        ) as served,
        aiohttp.ClientSession(
            cookie_jar=aiohttp.CookieJar(unsafe=True), connector=connector
        ) as http,
    ):
        yield Browser(http, f"http://127.0.0.1:{served.port}", dependencies)


async def listen(browser: Browser, stack: AsyncExitStack) -> aiohttp.ClientResponse:
    stream = await stack.enter_async_context(browser.http.get(f"{browser.url}/changes"))
    assert (stream.status, await stream.content.readline()) == (200, b": the board\n")
    return stream


async def read_change(stream: aiohttp.ClientResponse) -> tuple[int, list[str]]:
    """Return the number of the next change and the stories that changed."""
    async with asyncio.timeout(10):
        while not (line := (await stream.content.readline()).decode()).startswith("id: "):
            assert line
        data = (await stream.content.readline()).decode()
    assert data.startswith("data: ")
    return int(line[4:]), data[6:].split()


async def test_many_readers_share_one_reader_of_the_log(browser: Browser, bus: CountingBus) -> None:
    await browser.sign_in()
    await browser.dependencies.stories.board.create(DRAFT, TOKENS[TOKEN], key="before")
    async with AsyncExitStack() as stack:
        streams = [await listen(browser, stack)]
        reads = bus.reads
        streams += [await listen(browser, stack) for _ in range(MANY - 1)]
        assert (bus.follows, bus.reads) == (1, reads)
        assert (await browser.get("/")).status == 200  # two calls are allowed, and none is running
        refused = await browser.get("/changes")
        assert (
            refused.status,
            f"{MANY} clients are reading events" in refused.text,
            "Retry-After" in refused.headers,
        ) == (
            429,
            True,
            True,
        )
        await browser.dependencies.stories.board.create(DRAFT, TOKENS[TOKEN], key="after")
        assert len({(await read_change(stream))[0] for stream in streams}) == 1
        streams[0].close()
        async with asyncio.timeout(10):
            while (await browser.get("/system/tools")).status != 200:
                await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            while True:  # a disconnected subscriber frees its place
                async with browser.http.get(f"{browser.url}/changes") as stream:
                    if stream.status == 200:
                        break
                await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        while bus.follows:
            await asyncio.sleep(0.01)


async def test_simultaneous_events_are_sent_once(browser: Browser) -> None:
    await browser.sign_in()
    async with AsyncExitStack() as stack:
        stream = await listen(browser, stack)
        cards = [
            await browser.dependencies.stories.board.create(DRAFT, TOKENS[TOKEN], key=str(number))
            for number in range(20)
        ]
        received_events = [await read_change(stream)]
        while received_events[-1][0] != cards[-1].seq:
            received_events.append(await read_change(stream))
        assert len(received_events) < len(cards) / 2
        assert [name for _, names in received_events for name in names] == [
            card.story.id for card in cards
        ]


async def test_all_readers_of_a_change_share_one_read_of_the_log(
    browser: Browser, bus: CountingBus
) -> None:
    await browser.sign_in()
    board, principal = browser.dependencies.stories.board, TOKENS[TOKEN]
    cards = [await board.create(DRAFT, principal, key=str(number)) for number in range(2)]
    await browser.get("/")
    reads_before = bus.reads
    for _ in range(5):
        assert cards[1].story.id in (await browser.get(f"/cards?after={cards[0].seq}")).text
    assert bus.reads == reads_before
    latest = await board.create(DRAFT, principal, key="latest")
    reads_before = bus.reads
    for _ in range(5):
        assert latest.story.id in (await browser.get(f"/cards?after={cards[1].seq}")).text
    assert bus.reads == reads_before + 2  # the first event of the log, and the new ones


async def test_a_reconnecting_client_gets_the_changes_since(browser: Browser) -> None:
    await browser.sign_in()
    board, principal = browser.dependencies.stories.board, TOKENS[TOKEN]
    cards = [await board.create(DRAFT, principal, key=str(number)) for number in range(3)]
    missed = (cards[-1].seq, [card.story.id for card in cards[1:]])
    url = f"{browser.url}/changes?after="
    async with browser.http.get(f"{url}{cards[0].seq}") as stream:
        assert sorted((await read_change(stream))[1]) == sorted(missed[1])
    header = {"Last-Event-ID": str(cards[1].seq)}
    async with browser.http.get(f"{url}{cards[0].seq}", headers=header) as stream:
        assert await read_change(stream) == (cards[-1].seq, [cards[-1].story.id])
    async with browser.http.get(f"{url}{cards[-1].seq}") as stream:
        latest = await board.create(DRAFT, principal, key="latest")
        assert await read_change(stream) == (latest.seq, [latest.story.id])
    assert (await browser.get("/changes?after=-1")).status == 400


def test_updates_are_spread_over_more_time_for_more_listeners() -> None:
    assert max(reload_delay(2) for _ in range(100)) < 0.01
    waits = [reload_delay(1000) for _ in range(1000)]
    assert min(waits) < 0.5
    assert 2 < max(waits) <= 3


async def test_readers_of_one_tenant_receive_nothing_of_another(browser: Browser) -> None:
    await browser.sign_in(OTHER)
    async with AsyncExitStack() as stack:
        stream = await listen(browser, stack)
        await browser.dependencies.stories.board.create(DRAFT, TOKENS[TOKEN], key="theirs")
        own_card = await browser.dependencies.stories.board.create(DRAFT, TOKENS[OTHER], key="own")
        assert await read_change(stream) == (own_card.seq, [own_card.story.id])


async def test_a_reconnected_subscriber_gets_missed_and_new_events_once(
    browser: Browser,
) -> None:
    board, principal = browser.dependencies.stories.board, TOKENS[TOKEN]
    cards = [await board.create(DRAFT, principal, key=str(number)) for number in range(4)]
    current, late = board.watch(None, principal), board.watch(cards[0].seq, principal)
    assert await anext(current) == []
    cards.append(await board.create(DRAFT, principal, key="while it is watched"))
    assert [moment.seq for moment in await anext(current)] == [cards[-1].seq]
    assert [moment.seq for moment in await anext(late)] == [card.seq for card in cards[1:]]
    cards.append(await board.create(DRAFT, principal, key="last"))
    for watching in (current, late):
        assert [moment.seq for moment in await anext(watching)] == [cards[-1].seq]
        await watching.aclose()
