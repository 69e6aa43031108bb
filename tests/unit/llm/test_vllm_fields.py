"""The extra fields for vLLM, and servers that refuse them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moothall.config import LlmSettings
from moothall.errors import ModelReplyInvalid
from moothall.llm.requests import Dialect, priority_of
from moothall.testing.model import Fault
from moothall.testing.server_contract import FINISH, ask, talking

ADDITIONS = {"cache_salt", "priority"}


def hello(_body: Any, _headers: Any) -> str:
    return "hello"


async def test_vllm_gets_its_extra_fields() -> None:
    async with talking(hello, {"owner": "vllm"}) as (model, server):
        for tenant in ("red", "red", "blue"):
            await model.chat(ask("t/agent-dev-001/critique/1.1", tenant=tenant))
    first, second, third = (call.body for call in server.requests)
    assert first["priority"] == 2
    assert first["cache_salt"] == second["cache_salt"] != third["cache_salt"]
    assert "red" not in first["cache_salt"]


async def test_logprobs_are_requested_only_for_reviews_until_refused() -> None:
    def answer(body: dict[str, Any], _headers: Any) -> str | Fault:
        if body.get("logprobs") and refuses:
            return Fault(
                "status",
                status=400,
                message="Requested sample logprobs of 11, which is greater than max allowed: 5",
            )
        return "hello"

    refuses: list[bool] = []
    async with talking(answer, {"owner": "vllm"}) as (model, server):
        for scored in (False, True):
            await model.chat(replace(ask(), scored=scored))
        refuses.append(True)
        for _ in range(2):
            await model.chat(replace(ask(), scored=True))
    assert [call.body.get("top_logprobs") for call in server.requests] == [None, 11, 11, None, None]


async def test_other_servers_get_only_common_fields() -> None:
    async with talking(hello, {"owner": "openai"}) as (model, server):
        await model.chat(ask())
    assert not ADDITIONS & server.requests[0].body.keys()


async def test_refused_fields_are_not_sent_again(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(body: dict[str, Any], _headers: Any) -> str | Fault:
        if body.get("priority"):
            return Fault(
                "status",
                status=400,
                message="Got priority 4 but Priority scheduling is not enabled",
            )
        return "hello"

    async with talking(answer, {"owner": "vllm"}) as (model, server):
        for _ in range(2):
            assert (await model.chat(ask())).text == "hello"
    assert ["priority" in call.body for call in server.requests] == [True, False, False]
    assert all("cache_salt" in call.body for call in server.requests)
    assert capsys.readouterr().err.count("--scheduling-policy priority") == 1


async def test_a_refusal_for_another_reason_is_raised() -> None:
    async with talking(
        lambda _b, _h: Fault("status", status=400, message="the prompt is too long"),
        {"owner": "vllm"},
    ) as (
        model,
        server,
    ):
        with pytest.raises(ModelReplyInvalid, match="the prompt is too long"):
            await model.chat(ask())
    assert len(server.requests) == 1


async def test_missing_cached_tokens_are_reported_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with talking(hello, {"owner": "vllm"}) as (model, server):
        server.details = False
        for _ in range(2):
            assert (await model.chat(ask())).usage.cached_tokens == 0
    assert capsys.readouterr().err.count("--enable-prompt-tokens-details") == 1


async def test_a_reply_of_white_space_names_the_option_that_helps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with talking(
        lambda _b, _h: Fault("length", text="{" + " \n" * 50), {"owner": "vllm"}
    ) as (model, _):
        await model.chat(ask(schema=FINISH))
    assert "disable_any_whitespace" in capsys.readouterr().err


def test_nearly_finished_work_has_the_highest_priority() -> None:
    phases = ("coach", "verify", "critique", "revise", "propose", "plan")
    places = [priority_of(f"t/-/{phase}/0.1") for phase in phases]
    assert places == sorted(set(places))
    assert priority_of("t/-/derive/0.1") == priority_of("nonsense") == max(places)


def test_extra_fields_are_deterministic() -> None:
    first_fields, second_fields = (
        Dialect(LlmSettings(api_key="k"), ["vllm"]).additions(ask(tenant="red")) for _ in range(2)
    )
    assert (
        first_fields
        == second_fields
        != Dialect(LlmSettings(api_key="other"), ["vllm"]).additions(ask(tenant="red"))
    )
