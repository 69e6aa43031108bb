"""Properties of a real vLLM that our client relies on, beyond the contract: draining queues,
separate caches, clear refusals.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from moothall.config import LlmSettings
from moothall.deliberation.prompts.reply import (
    approaches_schema,
    read_review,
    read_turn,
    review_schema,
    turn_schema,
)
from moothall.domain.chat import Message, ReplySchema
from moothall.errors import (
    ConfigurationError,
    DeadlineExceeded,
    ModelReplyInvalid,
    ModelUnavailable,
)
from moothall.llm.client import OpenAIModel, open_model
from moothall.testing.server_contract import ask
from support.tools import CATALOGUE

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORY = (Message("user", "Tell a very long story."),)
SPECS = tuple(CATALOGUE.values())


async def until_running(model: OpenAIModel, expected: int) -> None:
    """Wait until this many calls run on the server. Its metrics lag on a busy machine."""
    patience = datetime.now(UTC) + timedelta(seconds=60)
    figures: object = None
    while datetime.now(UTC) < patience:
        try:
            figures = current = await model.server_metrics()
        except ModelUnavailable as error:
            figures, current = error, None
        if current is not None and current.running == expected:
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"waited for {expected} running calls; {figures}")


async def test_all_metrics_that_the_client_reads_exist(model: OpenAIModel) -> None:
    await model.chat(ask(max_tokens=4))
    figures = await model.server_metrics()
    assert figures is not None
    assert figures.missing == ()
    assert figures.prompt_tokens


async def test_the_same_seed_gives_the_same_answer_and_another_seed_a_different_one(
    model: OpenAIModel,
) -> None:
    texts = [
        (await model.chat(ask(temperature=0.9, seed=seed, max_tokens=24))).text
        for seed in (5, 5, 6)
    ]
    assert texts[0] == texts[1] != texts[2]


async def test_a_cancelled_call_stops_on_the_server(model: OpenAIModel) -> None:
    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(model.chat(ask(f"t/-/plan/0.{n}", messages=STORY, max_tokens=8000)))
            for n in range(3)
        ]
        await until_running(model, 3)
        for call in calls:
            call.cancel()
    await until_running(model, 0)


async def test_a_call_past_its_deadline_stops_on_the_server(model: OpenAIModel) -> None:
    with pytest.raises(DeadlineExceeded):
        await model.chat(ask(messages=STORY, max_tokens=8000, seconds=1))
    await until_running(model, 0)


async def test_an_answer_is_streamed_in_pieces(model: OpenAIModel) -> None:
    pieces: list[str] = []
    await model.chat(ask(max_tokens=24), pieces.append)
    assert len(pieces) > 3


async def test_many_concurrent_calls_are_all_answered(model: OpenAIModel) -> None:
    calls = (
        ask(f"t/-/plan/0.{n}", seed=n, max_tokens=8, seconds=300, temperature=1.0)
        for n in range(40)
    )
    replies = await asyncio.gather(*map(model.chat, calls))
    assert all(reply.usage.completion_tokens == 8 for reply in replies)


async def test_tenants_do_not_share_a_cache(model: OpenAIModel) -> None:
    red, blue = (f"{name}-{secrets.token_hex(8)}" for name in ("red", "blue"))
    shared = (Message("user", "The moot hall stands on the hill above the river. " * 20),)
    cached = [
        (await model.chat(ask(messages=shared, max_tokens=2, tenant=tenant))).usage.cached_tokens
        for tenant in (red, blue, red, blue)
    ]
    assert cached[:2] == [0, 0]
    assert min(cached[2:]) > 64


async def test_a_turn_schema_with_every_tool_is_obeyed(model: OpenAIModel) -> None:
    complete = 0
    for seed in range(30):
        reply = await model.chat(
            ask(schema=turn_schema(SPECS), max_tokens=1000, temperature=1.0, seed=seed, seconds=300)
        )
        # The output of a model with random weights is often cut at its limit.
        if reply.finish_reason == "stop":
            assert all(action.tool in CATALOGUE for action in read_turn(reply, "json").actions)
            complete += 1
        if complete == 3:
            return
    pytest.fail(f"{complete} of 30 replies were complete")


@pytest.mark.parametrize(
    "schema",
    [review_schema(3), approaches_schema(4), turn_schema(())],
    ids=lambda schema: schema.name,
)
async def test_every_other_schema_is_obeyed(model: OpenAIModel, schema: ReplySchema) -> None:
    reply = await model.chat(
        ask(schema=schema, max_tokens=900, temperature=1.0, seed=3, seconds=300)
    )
    assert reply.finish_reason == "stop"
    document = json.loads(reply.text)
    if schema.name == "review":
        assert read_review(reply, 3).score == pytest.approx(sum(document["scores"]) / 3)
    assert sorted(document) == sorted(schema.schema["properties"])


async def test_a_reviewers_score_includes_token_probabilities(model: OpenAIModel) -> None:
    request = ask(schema=review_schema(3), max_tokens=900, temperature=0.0, seconds=300)
    bare, scored = [await model.chat(replace(request, scored=value)) for value in (False, True)]
    assert (bare.text, bare.digits, bare.earlier_digits) == (scored.text, (), ())
    scores = json.loads(scored.text)["scores"]
    numbers = [*scored.earlier_digits, scored.digits][-3:]
    assert ["".join(token[0][0] for token in number) for number in numbers] == [
        str(score) for score in scores
    ]
    assert all(
        0 < sum(chance for _, chance in token) <= 1.0001 for number in numbers for token in number
    )
    # A model of random weights is sure of nothing: the expected values lie between the numbers.
    assert 0 <= read_review(scored, 3).score <= 10
    assert read_review(bare, 3).score == pytest.approx(sum(scores) / 3)
    assert read_review(scored, 3).score != read_review(bare, 3).score


async def test_string_length_limits_are_obeyed(model: OpenAIModel) -> None:
    bounded = ReplySchema(
        "bounded",
        {
            "type": "object",
            "properties": {"word": {"type": "string", "minLength": 30, "maxLength": 32}},
            "required": ["word"],
            "additionalProperties": False,
        },
    )
    for seed in range(4):
        reply = await model.chat(ask(schema=bounded, max_tokens=400, temperature=1.0, seed=seed))
        assert 30 <= len(json.loads(reply.text)["word"]) <= 32


async def test_a_wrong_model_name_is_reported_with_the_available_ones(
    llm: LlmSettings, url: str
) -> None:
    async with open_model(llm.model_copy(update={"model": "gpt-9"}), url) as client:
        with pytest.raises(ConfigurationError, match=r"no model 'gpt-9'; it has: \S+"):
            await client.chat(ask())


async def test_a_prompt_longer_than_the_context_window_is_refused_at_once(
    model: OpenAIModel,
) -> None:
    with pytest.raises(ModelReplyInvalid, match=r"HTTP 400.*context length"):
        await model.chat(ask(messages=(Message("user", "word " * 60_000),)))
    assert (await model.chat(ask(max_tokens=4))).text


async def test_a_refused_parameter_is_omitted_from_then_on(llm: LlmSettings, url: str) -> None:
    async with open_model(llm, url) as client:
        assert (await client.chat(ask(temperature=-1.0, max_tokens=4))).text
        assert list(client.capabilities.refused) == ["temperature"]
        with pytest.raises(ModelReplyInvalid, match="HTTP 400"):
            await client.chat(ask(max_tokens=-5))
        assert (await client.chat(ask(max_tokens=4))).text


async def test_a_token_limit_beyond_the_window_is_learned(llm: LlmSettings, url: str) -> None:
    async with open_model(llm, url) as client:
        window = (await client.describe()).window
        assert (
            await client.chat(ask(schema=review_schema(1), max_tokens=window + 1, seconds=300))
        ).text
        assert client.capabilities.max_reply_tokens == window
