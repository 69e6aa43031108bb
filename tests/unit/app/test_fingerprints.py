"""Settings that keep a command from attaching to the serving process."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from pydantic import SecretStr

from moothall.app import preflight
from moothall.app.server import describe_difference, fingerprints
from moothall.config import LimitSettings, LlmSettings, RaySettings
from moothall.settings import AllSettings


def serving(path: Path, settings: AllSettings, port: int = 50055) -> preflight.Address:  # type: ignore[valid-type]  # created at run time
    preflight.announce(
        path, preflight.Address(4711, "nats://127.0.0.1:1", port, fingerprints(settings))
    )
    address = preflight.find(path)
    assert address is not None
    return address


def test_settings_without_effect_on_results_do_not_differ(tmp_path: Path) -> None:
    address = serving(
        tmp_path, AllSettings(ray=RaySettings(mode="process"), llm=LlmSettings(wait_seconds=9))
    )
    assert describe_difference(AllSettings(), address) == ""


def test_differing_settings_are_named_with_the_way_to_attach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served_settings = AllSettings(
        llm=LlmSettings(model="large"), models={"small": LlmSettings(model="x")}
    )
    address = serving(tmp_path, served_settings)
    monkeypatch.setenv("MOOTHALL_LIMITS__TURNS", "5")
    message = describe_difference(
        AllSettings(data_dir=tmp_path, limits=LimitSettings(turns=5)), address
    )
    assert (
        f"process 4711 serves {tmp_path} with other settings: limits.turns, llm.model, models"
        in message
    )
    assert "To attach to it, unset MOOTHALL_LIMITS__TURNS and set llm.model, models" in message
    assert "--server 127.0.0.1:50055" in message
    assert "MOOTHALL_DATA_DIR" in message
    assert "--server" not in describe_difference(
        AllSettings(), serving(tmp_path, served_settings, port=0)
    )


def test_settings_of_every_kind_of_workspace_and_tool_are_compared(tmp_path: Path) -> None:
    served_settings = {
        "guard": {"policies": tmp_path},
        "http": {"only_allowed": True},
        "jobs": {"image": "registry.example/other:1"},
        "wasm": {"folder": tmp_path},
    }
    address = serving(tmp_path, AllSettings.model_validate(served_settings))
    assert (
        "other settings: guard.policies, http.only_allowed, jobs.image, wasm.folder. "
        in describe_difference(AllSettings(), address)
    )


def test_secrets_and_values_are_not_written(tmp_path: Path) -> None:
    served_settings = AllSettings(
        llm=LlmSettings(
            base_url="http://ada:hidden-word@127.0.0.1:1/v1", api_key=SecretStr("hidden-key")
        )
    )
    address = serving(tmp_path, served_settings)
    assert "hidden" not in json.dumps(asdict(address))
    assert "hidden" not in describe_difference(AllSettings(), address)
