"""The model of a seat: several in one council, one of them down, and its records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from moothall.config import LimitSettings, LlmSettings, Models
from moothall.deliberation.context import Answerers
from moothall.deliberation.recorded_model import NamedModel, Recording
from moothall.domain.council import Agent, Capabilities, Council, CouncilConfig
from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL
from moothall.domain.task import Deliberation, DeliberationRequest
from moothall.errors import InvalidRequest
from moothall.llm.replicas import open_models
from moothall.orchestrator.request_planning import Defaults, plan_deliberation
from moothall.testing.model import Answer, Fault, ScriptedModel, phase_of, scripted_model
from support.council import (
    ONE,
    THREE,
    TWO,
    CouncilEnvironment,
    act,
    answer_with_approaches,
    append,
    finish,
    of,
    open_council,
    outcomes,
    review,
)
from support.repos import SAMPLE

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MODELS = Models.of(
    LlmSettings(model="qwen"),
    {
        "large": LlmSettings(model="deep", tier="large", roles=("qa",)),
        "quick": LlmSettings(model="tiny", tier="small"),
    },
)
DOWN: Answer = lambda _body, _headers: Fault("status", status=503)  # noqa: E731


def plan(role: str = "dev", council: Council | None = None, **fields: Any) -> Deliberation:
    return plan_deliberation(
        DeliberationRequest("x", role, **fields),
        LOCAL,
        Defaults(LimitSettings(), models=MODELS),
        NOW,
        council,
    )


def test_the_model_of_a_request_takes_precedence_over_seat_council_and_role() -> None:
    seat = Agent(TWO, Capabilities(model_profile="small"))
    council = Council(
        "qa", (Agent(ONE), seat, Agent(THREE)), CouncilConfig(model_profile="default")
    )
    assert (plan().model, plan("qa").model) == ("", "large")
    seat_state = plan("qa", council)
    assert [seat_state.model_of(seat) for seat in seat_state.seats] == ["", "quick", ""]
    assert (
        plan("qa", council, model="LARGE").model,
        plan("qa", council, model="LARGE").seat_models,
    ) == ("large", {})
    assert plan(model="deep").model == "large"


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        InvalidRequest,
        match=r"unknown model_profile 'gpt'; the settings have: default, large \(large\), quick",
    ):
        plan(model="gpt")
    with pytest.raises(InvalidRequest, match="unknown model_profile 'medium'"):
        plan(council=Council("dev", (Agent(ONE, Capabilities(model_profile="medium")),)))


@asynccontextmanager
async def two_models(
    folder: Path,
    first: Answer,
    second: Answer,
    *,
    server: dict[str, Any] | None = None,
    **overrides: Any,
) -> AsyncIterator[tuple[CouncilEnvironment, ScriptedModel]]:
    """Open the environment of a council with a default model and a second one, `large`.

    `overrides` are settings of the second one, and `server` are arguments of its server.
    """
    async with (
        open_council(folder, first) as app,
        scripted_model(second, models=("deep",), **(server or {})) as deep,
    ):
        default = app.parts.answerers.llm.model_copy(update={"model": "scripted"})
        models = Models.of(
            default, {"large": LlmSettings(base_url=deep.base_url, model="deep", **overrides)}
        )
        async with open_models(models, app.server.base_url) as opened:
            named = {name: NamedModel(llm, opened[name]) for name, llm in models.named.items()}
            answerers = Answerers(opened["default"], default, named)
            app.parts = replace(app.parts, answerers=answerers)
            yield app, deep


def about_text(app: CouncilEnvironment, **fields: Any) -> Deliberation:
    return app.deliberation(repository=None, base_sha=None, **fields)


def answer(text: str) -> Answer:
    def reply(_body: Any, headers: Any) -> str:
        return (
            review(5)
            if "/verify/" in headers["X-Request-Id"] or "/critique/" in headers["X-Request-Id"]
            else finish(text)
        )

    return answer_with_approaches(reply)


async def test_each_seat_calls_its_own_model_and_a_replay_calls_none(tmp_path: Path) -> None:
    async with two_models(
        tmp_path, answer("small words"), answer("deep words"), temperature=0.0
    ) as (app, deep):
        d = about_text(app, seat_models={TWO: "large"})
        events = await app.run(d)
        proposals = {
            data["seat"]: data["proposal"]["content"]
            for data in of(events, EventType.SEAT_PROPOSED)
        }
        assert proposals == {ONE: "small words", TWO: "deep words", THREE: "small words"}
        calls = of(events, EventType.MODEL_CALLED)
        assert {
            (call["seat"], call["model"], call.get("profile"))
            for call in calls
            if call["seat"] != "-"
        } == {
            (ONE, "scripted", None),
            (TWO, "deep", "large"),
            (THREE, "scripted", None),
        }
        assert {
            call["sampling"]["temperature"]
            for call in calls
            if call["seat"] == TWO and call["phase"] == "propose"
        } == {0.0}
        requests = len(app.server.requests) + len(deep.requests)
        await app.run(d, Recording.of(events))
        assert len(app.server.requests) + len(deep.requests) == requests == len(calls)


async def test_each_seat_replies_in_the_format_of_its_own_model(tmp_path: Path) -> None:
    def write(_body: Any, headers: Any) -> str:
        return (
            review(6)
            if phase_of(headers) in {"verify", "critique"}
            else "<finish>deep words</finish>"
        )

    async with two_models(
        tmp_path, answer("small words"), write, server={"schemas": False, "owner": "x"}
    ) as (app, deep):
        events = await app.run(about_text(app, seat_models={TWO: "large"}))
    assert outcomes(events) == dict.fromkeys((ONE, TWO, THREE), "proposed")
    (started,) = of(events, EventType.DELIBERATION_STARTED)
    assert started["reply_mode"] == "mixed"
    assert {model["profile"]: model["reply"] for model in started["models"]} == {
        "": "json",
        "large": "blocks",
    }
    assert all("response_format" in call.body for call in app.server.requests)
    assert not any("response_format" in call.body for call in deep.requests)


async def test_if_one_of_two_models_is_down_the_other_seats_decide(tmp_path: Path) -> None:
    async with two_models(tmp_path, answer("words"), DOWN) as (app, _):
        events = await app.run(about_text(app, seat_models={TWO: "large"}))
    assert outcomes(events) == {ONE: "proposed", TWO: "failed MODEL_UNAVAILABLE", THREE: "proposed"}


async def test_a_fallback_model_keeps_every_seat_running_and_is_recorded(
    tmp_path: Path,
) -> None:
    async with two_models(tmp_path, answer("words"), DOWN, fallback=("default",)) as (app, _):
        events = await app.run(about_text(app, seat_models={TWO: "large"}))
    assert set(outcomes(events).values()) == {"proposed"}
    assert {
        (call["model"], call["profile"])
        for call in of(events, EventType.MODEL_CALLED)
        if call["seat"] == TWO
    } == {("scripted", "large")}


async def test_a_model_missing_from_the_settings_is_named(tmp_path: Path) -> None:
    async with two_models(tmp_path, answer("words"), answer("words")) as (app, _):
        events = await app.run(about_text(app, model="gone"))
    (error, *_) = [data["outcome"]["error_message"] for data in of(events, EventType.SEAT_FINISHED)]
    assert error == "the settings here have no model 'gone' any more; they have: large, default"


async def test_a_conversation_too_long_for_the_server_is_shortened_and_continued(
    tmp_path: Path,
) -> None:
    first, refused = [0], []

    def answer(body: dict[str, Any], headers: Any) -> Any:
        size = sum(len(message["content"]) for message in body["messages"])
        if phase_of(headers) != "propose":
            return review(7)
        if not any(message["role"] == "assistant" for message in body["messages"]):
            first[0] = size
            return act(("files.read", {"path": "notes.txt"}))
        if size > first[0] + 1500:
            refused.append(size)
            return Fault(
                "status", status=400, message="This model's maximum context length is 3000 tokens."
            )
        return append()

    files = {**SAMPLE, "notes.txt": "a line of notes\n" * 900}
    async with open_council(tmp_path, answer_with_approaches(answer), files=files) as app:
        events = await app.run(app.deliberation("single", 1))
    assert refused
    assert outcomes(events) == {ONE: "proposed"}


async def test_a_seat_continues_after_an_empty_reply(tmp_path: Path) -> None:
    replies = iter((Fault("empty"), Fault("length", text=""), append()))
    async with open_council(tmp_path, answer_with_approaches(lambda _b, _h: next(replies))) as app:
        events = await app.run(app.deliberation("single", 1))
    assert outcomes(events) == {ONE: "proposed"}
    calls = [data for data in of(events, EventType.MODEL_CALLED) if data["phase"] == "propose"]
    assert [data["finish_reason"] for data in calls] == ["stop", "length", "stop"]
    assert all(data["usage"]["calls"] == 1 for data in calls)
