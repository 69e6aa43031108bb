"""Counting tokens with both kinds of servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from moothall.config import LlmSettings
from moothall.domain.text import most_tokens
from moothall.llm.windows import counting
from moothall.testing.model import scripted_model

TEXT = "three short words"


def _vllm(body: Mapping[str, Any]) -> Any:
    assert (body["model"], body["add_special_tokens"]) == ("small", False)
    return {"count": len(body["prompt"].split()), "max_model_len": 8192, "tokens": []}


def _llama(body: Mapping[str, Any]) -> Any:
    return {"tokens": list(range(len(body["content"].split())))}


@pytest.mark.parametrize("tokenize", [_vllm, _llama])
async def test_counts_of_the_server_are_cached(tokenize: Any) -> None:
    async with scripted_model(lambda _b, _h: "", api_key="key") as server:
        server.tokenize = tokenize
        async with counting(
            LlmSettings(model="small"), server.base_url.replace("//", "//key@")
        ) as count:
            assert [await count(TEXT), await count(TEXT), await count("")] == [3, 3, 0]
    assert server.tokenized == 1


@pytest.mark.parametrize(
    "tokenize",
    [
        None,
        lambda _: {},
        lambda _: [1],
        lambda _: {"count": True},
        lambda _: {"count": 0},
        lambda _: {"count": -1},
        lambda _: {"tokens": "x"},
    ],
)
async def test_without_counts_tokens_are_estimated_and_the_server_is_paused(
    tokenize: Any,
) -> None:
    async with scripted_model(lambda _b, _h: "") as server:
        server.tokenize = tokenize
        async with counting(LlmSettings(), server.base_url) as count:
            assert [await count(TEXT), await count(f"{TEXT}.")] == [
                most_tokens(TEXT),
                most_tokens(f"{TEXT}."),
            ]
    assert server.tokenized == 1


async def test_tokens_are_estimated_if_the_server_is_unreachable() -> None:
    async with counting(LlmSettings(), "http://127.0.0.1:9/v1") as count:
        assert await count(TEXT) == most_tokens(TEXT)
