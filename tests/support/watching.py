"""A wrapped model that records its prompts, and the number of tokens that it would compute with a
perfect cache.
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
    """A model that forwards every call and records it with its answer."""

    model: ChatModel
    calls: list[tuple[ChatRequest, ChatReply]] = field(default_factory=list)

    async def reply_mode(self) -> ReplyMode:
        """Forward the call."""
        return await self.model.reply_mode()

    async def describe(self) -> ModelDescription:
        """Forward the call."""
        return await self.model.describe()

    async def chat(
        self,
        request: ChatRequest,
        on_text: Callable[[str], None] | None = None,
        *,
        owns_work: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Forward the call, and record the answer."""
        reply = await self.model.chat(request, on_text, owns_work=owns_work)
        self.calls.append((request, reply))
        return reply


async def tokenize(
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
    """Return the number of tokens in a cache block of the vLLM server at `url`; only whole blocks
    are reused.
    """
    async with session.get(f"{url.removesuffix('/v1')}/metrics") as response:
        response.raise_for_status()
        match = re.search(
            r'vllm:cache_config_info\{[^}]*\bblock_size="(\d+)"', await response.text()
        )
    assert match is not None, "the server does not report its cache_config_info"
    return int(match[1])


def perfect_prefill(prompts: Sequence[Sequence[int]], block: int) -> int:
    """Return the number of computed tokens if no whole block is computed twice after the same
    prefix.
    """
    blocks: set[tuple[int, ...]] = set()
    for prompt in prompts:
        blocks.update(tuple(prompt[:end]) for end in range(block, len(prompt) + 1, block))
    return block * len(blocks) + sum(len(prompt) % block for prompt in prompts)


def in_common(prompts: Sequence[Sequence[int]]) -> int:
    """Return the number of tokens in the common prefix of all prompts."""
    columns = zip(*prompts, strict=False)
    return next(
        (place for place, tokens in enumerate(columns) if len(set(tokens)) > 1),
        min(map(len, prompts)),
    )
