from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel, SecretStr

from moothall.config.file import REMOVED
from moothall.config.settings import known_variables
from moothall.errors import ConfigurationError
from moothall.settings import AllSettings, load_settings


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("MOOTHALL_LLM__BASEURL", "did you mean MOOTHALL_LLM__BASE_URL?"),
        ("MOOTHALL_LLMS__MODEL", "did you mean MOOTHALL_LLM__MODEL?"),
        ("MOOTHALL_GRPC_PORT", "did you mean MOOTHALL_GRPC__PORT?"),
        ("MOOTHALL_DATADIR", "did you mean MOOTHALL_DATA_DIR?"),
        ("MOOTHALL_ZZZ", "`moothall config` lists all"),
        ("MOOTHALL_LIMITS__CORES", "not a setting; `moothall config` lists all"),
    ],
)
def test_a_mistyped_variable_is_an_error_that_names_the_right_one(
    variable: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "50055")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert f"{variable} is not a setting" in str(caught.value)
    assert message in str(caught.value)


def test_the_value_of_a_variable_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOOTHALL_LLM__APIKEY", "sk-very-secret")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert "very-secret" not in str(caught.value)


def test_variables_of_kubernetes_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "MOOTHALL_SERVICE_HOST": "10.0.0.7",
        "MOOTHALL_SERVICE_PORT": "50055",
        "MOOTHALL_SERVICE_PORT_GRPC": "50055",
        "MOOTHALL_GRPC_PORT": "tcp://10.0.0.7:50055",
        "MOOTHALL_PORT_50055_TCP": "tcp://10.0.0.7:50055",
        "MOOTHALL_PORT_50055_TCP_PROTO": "tcp",
        "MOOTHALL_PORT_50055_TCP_PORT": "50055",
        "MOOTHALL_PORT_50055_TCP_ADDR": "10.0.0.7",
    }.items():
        monkeypatch.setenv(name, value)
    load_settings()


def test_every_setting_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = set(known_variables(AllSettings, "MOOTHALL_"))
    assert {"MOOTHALL_REPOSITORY", "MOOTHALL_LLM__MODEL", "MOOTHALL_LLM"} <= variables
    monkeypatch.setenv("moothall_llm__model", "lower")
    monkeypatch.setenv("MOOTHALL_BUS", '{"replicas": 3}')
    settings = load_settings()
    assert (settings.llm.model, settings.bus.replicas) == ("lower", 3)


def secrets(model: type[BaseModel], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    paths: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            paths += secrets(field.annotation, (*path, name))
        elif SecretStr in (field.annotation, *get_args(field.annotation)):
            paths.append((*path, name))
    return paths


SECRETS = secrets(AllSettings)


def test_the_expected_secrets_exist() -> None:
    assert {("llm", "api_key"), ("bus", "token"), ("grpc", "token"), ("trace", "headers")} <= set(
        SECRETS
    )


@pytest.mark.parametrize("path", SECRETS, ids=".".join)
def test_every_secret_can_come_from_a_file(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    variable = f"MOOTHALL_{'__'.join(path).upper()}"
    monkeypatch.setenv(f"{variable}_FILE", str(file))
    with pytest.raises(ConfigurationError, match=f"{path[-1]}_file .*No such file"):
        load_settings()
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=f"{path[-1]}_file .*is empty"):
        load_settings()
    file.write_text("from-the-file\n", encoding="utf-8")

    def read_settings() -> str:
        section = getattr(load_settings(), path[0])
        secret = getattr(section, path[1])
        assert isinstance(secret, SecretStr)
        return secret.get_secret_value()

    assert read_settings() == "from-the-file"
    assert "from-the-file" not in load_settings().model_dump_json()
    monkeypatch.setenv(variable, "given-itself")
    assert read_settings() == "given-itself"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("limits.counter_proofs", "the checks that it limited no longer exist"),
        ("web.head_seconds", "it is always 20 seconds"),
        ("workspace.image", "use jobs.images"),
    ],
)
def test_a_removed_setting_is_an_error_with_its_replacement(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, _, key = name.rpartition(".")
    file = tmp_path / "m.toml"
    file.write_text(f"[{section}]\n{key} = 1\n", encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(file)
    message = f"was removed: {reason}. Delete it"
    assert f"{file}, line 2: {name} {message}" in str(caught.value)
    variable = f"MOOTHALL_{name.upper().replace('.', '__')}"
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ConfigurationError, match=f"{variable} {re.escape(message)}"):
        load_settings()


def test_no_removed_setting_exists() -> None:
    variables = set(known_variables(AllSettings, ""))
    assert {name for name in REMOVED if name.upper().replace(".", "__") in variables} == set()
