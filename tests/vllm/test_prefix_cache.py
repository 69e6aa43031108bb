"""The prompt tokens that a council costs on a server with a prefix cache: the context is computed
once, not once per seat.

The protocol, its prompts and the client are the real ones; the model's answers are noise that obeys
the schemas.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from moothall.domain.event import EventType
from moothall.domain.task import Constraints
from moothall.llm.client import OpenAIModel
from support.council import CouncilEnvironment, of, open_council
from support.repos import SAMPLE
from support.watching import WatchedModel, block_size, in_common, perfect_prefill, tokenize

pytestmark = pytest.mark.asyncio(loop_scope="session")

SEATS = 5
CONTEXT = 8000
MOST_OVER_PREDICTED = 1.1


def prose(characters: int) -> str:
    """Return text of this length in which no two lines are the same."""
    lines = (
        f"Point {number}: the ledger keeps entry {number * 7919 % 1000} and never its amount twice."
        for number in range(999)
    )
    return "\n".join(lines)[:characters]


def module(characters: int) -> str:
    """Return code of this length."""
    functions = (
        f'\n\ndef rate_{number}(amount: int) -> int:\n    """Return the amount at rate '
        f'{number}."""\n    return amount * {number}\n'
        for number in range(999)
    )
    return "".join(functions)[:characters].rpartition("\n\n\n")[0] + "\n"


TEXT: dict[str, Any] = {
    "repository": None,
    "base_sha": None,
    "protocol": "debate",
    "description": prose(CONTEXT),
    "constraints": Constraints(requirements=("It names a risk.", "It says what it costs.")),
}
CODE: dict[str, Any] = {
    "protocol": "tests_then_verify",
    "description": "Add hello_world() to src/utils.py, near src/rates.py.",
}


@pytest.mark.parametrize("council_options", [TEXT, CODE], ids=["text", "code"])
async def test_a_council_of_five_computes_its_context_once(
    model: OpenAIModel,
    url: str,
    tmp_path: Path,
    council_options: dict[str, Any],
    measured: Callable[[str], None],
) -> None:
    watched = WatchedModel(model)
    files = {**SAMPLE, "src/rates.py": module(CONTEXT)}
    async with open_council(
        tmp_path, lambda _b, _h: "", files=files, context_tokens=16_384, max_tokens=300
    ) as app:
        answerers = replace(app.parts.answerers, model=watched)
        app.parts = replace(app.parts, answerers=answerers)
        await model.reply_mode()  # probed once, by a separate call
        metrics_before = await model.server_metrics()
        events = await deliberate(app, council_options)
        metrics_after = await model.server_metrics()
    assert metrics_before is not None
    assert metrics_after is not None
    assert not metrics_after.missing
    prompts, block = await all_tokens(watched, url)
    usage = [reply.usage for _, reply in watched.calls]
    prompt_tokens = sum(item.prompt_tokens for item in usage)
    computed = prompt_tokens - sum(item.cached_tokens for item in usage)
    predicted = perfect_prefill(prompts, block)
    shared = in_common(prompts)
    measured(
        f"{SEATS} seats, {council_options['protocol']}: {len(prompts)} calls, "
        f"{prompt_tokens} prompt tokens, "
        f"{shared} in common; predicted in blocks of {block} {predicted}, computed {computed} = "
        f"{computed / predicted:.3f} of it; without a cache {prompt_tokens / predicted:.1f}"
    )
    assert (
        prompt_tokens
        == sum(map(len, prompts))
        == delta(metrics_before.prompt_tokens, metrics_after.prompt_tokens)
    )
    assert prompt_tokens - computed == delta(
        metrics_before.cached_tokens, metrics_after.cached_tokens
    )
    assert shared * 5 > CONTEXT  # the context is their common prefix
    assert len(of(events, EventType.SEAT_FINISHED)) == SEATS
    assert computed <= MOST_OVER_PREDICTED * predicted


def delta(before: float | None, after: float | None) -> int:
    assert before is not None
    assert after is not None
    return int(after - before)


async def deliberate(app: CouncilEnvironment, options: dict[str, Any]) -> Any:
    # A new tenant starts with an empty cache, whatever ran before.
    d = app.deliberation(
        seats=SEATS, seconds=600, tenant=f"tenant-{secrets.token_hex(8)}", **options
    )
    return await app.run(d)


async def all_tokens(watched: WatchedModel, url: str) -> tuple[list[list[int]], int]:
    async with aiohttp.ClientSession() as session:
        prompts = [await tokenize(session, url, request.messages) for request, _ in watched.calls]
        return prompts, await block_size(session, url)
