"""A model that is watched: what it was asked, and how many tokens a perfect cache would have had it
compute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from moothall.domain.chat import ChatReply, ChatRequest, Message, ModelDescription, ReplyMode
from moothall.ports import ChatModel


@dataclass
class WatchedModel:
    """Passes every call on and keeps it with its answer."""

    model: ChatModel
    calls: list[tuple[ChatRequest, ChatReply]] = field(default_factory=list)

    async def reply_mode(self) -> ReplyMode:
        """Pass on."""
        return await self.model.reply_mode()

    async def describe(self) -> ModelDescription:
        """Pass on."""
        return await self.model.describe()

    async def chat(
        self,
        request: ChatRequest,
        on_text: Callable[[str], None] | None = None,
        *,
        owns_work: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Pass on, and keep the answer."""
        reply = await self.model.chat(request, on_text, owns_work=owns_work)
        self.calls.append((request, reply))
        return reply


async def tokenized(
    session: aiohttp.ClientSession, url: str, messages: Sequence[Message]
) -> list[int]:
    """Return a prompt's tokens as the vLLM server at `url` counts them."""
    body = {
        "messages": [{"role": m.role, "content": m.content} for m in messages],
        "add_generation_prompt": True,
    }
    async with session.post(f"{url.removesuffix('/v1')}/tokenize", json=body) as response:
        response.raise_for_status()
        tokens: list[int] = (await response.json())["tokens"]
        return tokens


async def block_size(session: aiohttp.ClientSession, url: str) -> int:
    """Return how many tokens a block of the cache of the vLLM server at `url` holds; only whole
    blocks are found again.
    """
    async with session.get(f"{url.removesuffix('/v1')}/metrics") as response:
        response.raise_for_status()
        found = re.search(
            r'vllm:cache_config_info\{[^}]*\bblock_size="(\d+)"', await response.text()
        )
    assert found is not None, "this server does not say its cache_config_info"
    return int(found[1])


def perfect_prefill(prompts: Sequence[Sequence[int]], block: int) -> int:
    """Return how many tokens are computed if no whole block of tokens is computed twice after the
    same beginning.
    """
    seen: set[tuple[int, ...]] = set()
    for prompt in prompts:
        seen.update(tuple(prompt[:end]) for end in range(block, len(prompt) + 1, block))
    return block * len(seen) + sum(len(prompt) % block for prompt in prompts)


def in_common(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many tokens all prompts begin with."""
    together = zip(*prompts, strict=False)
    return next(
        (place for place, tokens in enumerate(together) if len(set(tokens)) > 1),
        min(map(len, prompts)),
    )
