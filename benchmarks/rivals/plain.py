"""No framework at all: three gathers. With aiohttp it is what the machine can do; with the OpenAI
SDK what its client costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchmarks.rivals import words

Ask = Callable[[str], Awaitable[str]]


async def _deliberate(ask: Ask) -> str:
    proposals = dict(
        zip(
            words.SEATS,
            await asyncio.gather(*(ask(words.propose(seat)) for seat in words.SEATS)),
            strict=True,
        )
    )
    requested = (ask(words.review(proposals[words.reviewed_by(seat)])) for seat in words.SEATS)
    reviews = {
        words.reviewed_by(seat): output_text
        for seat, output_text in zip(words.SEATS, await asyncio.gather(*requested), strict=True)
    }
    revised = (ask(words.revise(proposals[seat], reviews[seat])) for seat in words.SEATS)
    return max(await asyncio.gather(*revised))


def _messages(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": words.SYSTEM}, {"role": "user", "content": text}]


@asynccontextmanager
async def open_aiohttp(url: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """One session, as many connections as it takes."""
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(text: str) -> str:
            body = {"model": words.MODEL, "messages": _messages(text)}
            async with session.post(f"{url}/chat/completions", json=body) as response:
                document = await response.json()
            return str(document["choices"][0]["message"]["content"])

        yield lambda: _deliberate(ask)


@asynccontextmanager
async def open_openai(url: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """One `AsyncOpenAI`, as its README has it."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key=words.KEY) as client:

        async def ask(text: str) -> str:
            done = await client.chat.completions.create(model=words.MODEL, messages=_messages(text))
            return str(done.choices[0].message.content)

        yield lambda: _deliberate(ask)
