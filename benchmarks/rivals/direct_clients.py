"""The workload without a framework. With aiohttp, it shows the limit of the machine; with the
OpenAI SDK, the cost of its client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchmarks.rivals import prompts

CallModel = Callable[[str], Awaitable[str]]


async def _deliberate(call_model: CallModel) -> str:
    proposals = dict(
        zip(
            prompts.SEATS,
            await asyncio.gather(*(call_model(prompts.propose(seat)) for seat in prompts.SEATS)),
            strict=True,
        )
    )
    review_calls = (
        call_model(prompts.review(proposals[prompts.reviewed_by(seat)])) for seat in prompts.SEATS
    )
    reviews = {
        prompts.reviewed_by(seat): review
        for seat, review in zip(prompts.SEATS, await asyncio.gather(*review_calls), strict=True)
    }
    revise_calls = (
        call_model(prompts.revise(proposals[seat], reviews[seat])) for seat in prompts.SEATS
    )
    return max(await asyncio.gather(*revise_calls))


def _messages(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": prompts.SYSTEM}, {"role": "user", "content": text}]


@asynccontextmanager
async def open_aiohttp(url: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Use one session without a limit of connections."""
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def call_model(text: str) -> str:
            body = {"model": prompts.MODEL, "messages": _messages(text)}
            async with session.post(f"{url}/chat/completions", json=body) as response:
                document = await response.json()
            return str(document["choices"][0]["message"]["content"])

        yield lambda: _deliberate(call_model)


@asynccontextmanager
async def open_openai(url: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Use one `AsyncOpenAI`, as its README recommends."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key=prompts.KEY) as client:

        async def call_model(text: str) -> str:
            completion = await client.chat.completions.create(
                model=prompts.MODEL, messages=_messages(text)
            )
            return str(completion.choices[0].message.content)

        yield lambda: _deliberate(call_model)
