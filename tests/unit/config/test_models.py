"""The models of the settings: inheritance from `llm`, and inconsistent settings."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from moothall.config import secret_values
from moothall.config.models import Role
from moothall.domain.ids import ROLES
from moothall.errors import ConfigurationError
from moothall.settings import load_settings

BASE = (
    '[llm]\nbase_url = "http://127.0.0.1:1/v1"\napi_key = "key-of-the-first"\nretries = 2\n'
    "price_in = 3.0\n"
)


def load(folder: Path, text: str) -> object:
    file = folder / "m.toml"
    file.write_text(BASE + text, encoding="utf-8")
    return load_settings(file)


def test_a_model_inherits_unset_fields_from_llm(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text(
        f"{BASE}[models.warm]\ntemperature = 1.5\n[models.large]\nbase_url = "
        '"http://127.0.0.1:2/v1"\ntier = "large"\n'
    )
    settings = load_settings(file)
    warm, large = settings.models["warm"], settings.models["large"]
    assert (warm.base_url, warm.retries, warm.temperature, warm.price_in) == (
        "http://127.0.0.1:1/v1",
        2,
        1.5,
        3.0,
    )
    assert warm.api_key is not None, "the same server"
    assert (large.base_url, large.retries, large.api_key, large.price_in) == (
        "http://127.0.0.1:2/v1",
        2,
        None,
        0.0,
    )


def test_models_can_come_from_the_environment_and_their_keys_are_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "MOOTHALL_MODELS",
        '{"large": {"base_url": "http://127.0.0.1:2/v1", "api_key": "key-of-the-large"}}',
    )
    settings = load_settings()
    assert "key-of-the-large" in secret_values(settings)
    assert "key-of-the-large" not in str(settings.model_dump_json())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[models.Large]\n", "is not a valid name"),
        ("[models.default]\n", "is not a valid name"),
        (
            '[models.a]\nfallback = ["b"]\n',
            r"models\.a\.fallback names 'b', but the models are default",
        ),
        ('[models.a]\nfallback = ["a"]\n', r"models\.a\.fallback names 'a'"),
        (
            (
                "[models.b]\ncontext_tokens = 8192\n[models.a]\ncontext_tokens = 9000\nfallback = "
                '["b"]\n'
            ),
            "b has a smaller window",
        ),
        ('[models.a]\nroles = ["qa"]\n[models.b]\nroles = ["qa"]\n', "qa already belongs to a"),
        ('[models.a]\nroles = ["chef"]\n', r"models\.a\.roles"),
        (
            "[models.a]\ntemprature = 1\n",
            r"line 7: models\.a\.temprature is not a setting; did you mean temperature\?",
        ),
    ],
)
def test_inconsistent_models_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(tmp_path, text)


def test_the_roles_of_the_settings_match_the_domain() -> None:
    assert get_args(Role) == ROLES
