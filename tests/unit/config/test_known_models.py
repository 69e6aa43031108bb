"""The table of known models: its file, its use for prices and windows, and what is not in it."""

from __future__ import annotations

import tomllib
from datetime import UTC, date, datetime
from importlib.resources import files
from pathlib import Path

import pytest
from yarl import URL

from moothall.cli.doctor import price_text
from moothall.config import LlmSettings
from moothall.config.models import Models, checked_on, find_model
from moothall.llm.windows import find_window
from support.documents import table

CLAUDE, OPENAI = "https://api.anthropic.com/v1", "https://api.openai.com/v1"


def test_the_file_is_complete_and_documented() -> None:
    document = tomllib.loads(
        files("moothall.config").joinpath("known_models.toml").read_text(encoding="utf-8")
    )
    assert date(2026, 1, 1) < document["checked"] <= datetime.now(UTC).date()
    docs = Path(__file__).parents[3] / "docs" / "models.md"
    documented = {
        server.strip("`"): [name.strip("`") for name in names.split(", ")]
        for server, names in table("models.md", "host")
    }
    assert documented == {
        server: list(fields["models"]) for server, fields in document["servers"].items()
    }
    for server, fields in document["servers"].items():
        assert fields["source"] in docs.read_text(encoding="utf-8")
        for name, values in fields["models"].items():
            known_model = find_model(f"https://{server}/v1", name)
            assert known_model is not None
            assert known_model.window == values["window"] >= 128_000
            assert (
                0 < known_model.price_cached < known_model.price_in < known_model.price_out < 1000
            )


@pytest.mark.parametrize(
    ("url", "model", "window"),
    [
        (CLAUDE, "claude-haiku-4-5", 200_000),
        (CLAUDE, "claude-haiku-4-5-20251001", 200_000),
        (OPENAI, "gpt-5.4-2026-03-05", 272_000),
        (OPENAI, "gpt-5.4-mini", None),
        (OPENAI, "claude-haiku-4-5", None),
        ("http://127.0.0.1:8000/v1", "gpt-5.4", None),
        (None, "gpt-5.4", None),
        (OPENAI, "", None),
    ],
)
def test_a_model_is_known_only_at_its_own_server(
    url: str | None, model: str, window: int | None
) -> None:
    known_model = find_model(url, model)
    assert (known_model.window if known_model else None) == window


def test_prices_from_the_settings_take_precedence() -> None:
    opus = LlmSettings(base_url=CLAUDE, model="claude-opus-5-5")
    assert opus.price_in == 0
    priced = opus.with_known_prices()
    assert (priced.price_in, priced.price_cached, priced.price_out) == (4.0, 0.2, 20.0)
    custom_settings = LlmSettings(base_url=CLAUDE, model="claude-opus-5-5", price_out=3.0)
    assert custom_settings.with_known_prices() is custom_settings
    assert opus.model_copy(update={"price_cached": 0.0}).with_known_prices().price_cached == 0
    unknown = LlmSettings(base_url=CLAUDE, model="claude-of-tomorrow")
    assert unknown.with_known_prices() is unknown


def test_each_named_model_has_its_own_price() -> None:
    models = Models.of(
        LlmSettings(base_url=CLAUDE, model="claude-opus-5-5"),
        {
            "small": LlmSettings(model="claude-haiku-4-5"),
            "own": LlmSettings(base_url="http://127.0.0.1:8000/v1", model="claude-haiku-4-5"),
        },
    ).with_known_prices()
    assert models.default.price_in == 4
    assert (models.named["small"].price_in, models.named["own"].price_in) == (1, 0)


async def test_the_window_of_a_hosted_model_needs_no_request() -> None:
    async def fetch(*_: object) -> None:
        raise AssertionError("nothing is fetched")

    window_and_source = await find_window(fetch, URL(OPENAI), "gpt-6.1-sol")
    assert window_and_source == (200_000, "the table of known models"), (
        "longer prompts cost too much of a budget"
    )
    assert await find_window(fetch, URL(OPENAI), "gpt-of-tomorrow") == (0, "")


def test_a_price_is_shown_with_its_source() -> None:
    llm = LlmSettings(base_url=CLAUDE, model="claude-haiku-4-5")
    assert price_text(llm) == (
        "$1 for a million prompt tokens ($0.1 from the cache), $5 for a million completion tokens "
        f"(the table of known models, {checked_on()}; llm.price_in and price_out override)"
    )
    assert price_text(llm.model_copy(update={"price_in": 2.5})).startswith("$2.5 for a million")
    assert "no known price" in price_text(llm.model_copy(update={"model": "x"}))
    assert "($0.3 from the cache)" in price_text(llm.model_copy(update={"price_cached": 0.3}))
