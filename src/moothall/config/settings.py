"""All settings, and where they come from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import platformdirs
from pydantic import BaseModel, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from moothall.config.file import place_of, read_toml, unknown
from moothall.config.hands import Guard, Http, Limits, Runner, Sandbox, Wasm, Workspace
from moothall.config.misspelt import wrong_variables
from moothall.config.outside import Browser, Db, Docker
from moothall.config.parts import Bus, Graph, Grpc, Llm, Log, Metrics, Ray, Trace, Web
from moothall.config.secrets import Secrets
from moothall.errors import ConfigurationError


class Settings(BaseSettings):
    """All of it. Frozen; made once by `load_settings` and handed down."""

    model_config = SettingsConfigDict(
        env_prefix="MOOTHALL_", env_nested_delimiter="__", extra="forbid", frozen=True, nested_model_default_partial_update=True
    )

    data_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir("moothall")))
    repository: str = Field("", description="default repository of a deliberation that names none")
    seed: int = Field(0, ge=0, description="base of all sampling seeds")
    llm: Llm = Llm()
    bus: Bus = Bus()
    ray: Ray = Ray()
    workspace: Workspace = Workspace()
    sandbox: Sandbox = Sandbox()
    runner: Runner = Runner()
    limits: Limits = Limits()
    secrets: Secrets = Secrets()
    guard: Guard = Guard()
    http: Http = Http()
    wasm: Wasm = Wasm()
    db: Db = Db()
    browser: Browser = Browser()
    docker: Docker = Docker()
    grpc: Grpc = Grpc()
    web: Web = Web()
    graph: Graph = Graph()
    log: Log = Log()
    trace: Trace = Trace()
    metrics: Metrics = Metrics()


def secret_values(settings: BaseModel) -> tuple[str, ...]:
    """Return the operator's own secrets: nothing that leaves may carry them. Of a URL its password is one, too."""
    found: list[str] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        for one in value.values() if isinstance(value, Mapping) else (value,):
            if isinstance(one, BaseModel):
                found += secret_values(one)
            elif isinstance(one, SecretStr):
                found += _forms(one.get_secret_value())
    return tuple(found)


def _forms(secret: str) -> Iterator[str]:
    yield secret
    if "\n" in secret:
        yield from (line.strip() for line in secret.splitlines() if line.strip() and not line.startswith("-----"))
    _, mark, rest = secret.partition("://")
    place, at, _ = rest.rpartition("@")
    if mark and at:
        password = place.partition(":")[2]
        yield from dict.fromkeys(form for form in (password, unquote(password)) if form)


def _wrong(error: ValidationError, config: Path | None, from_file: Mapping[str, Any]) -> Iterator[str]:
    """Say of each wrong setting where it stands, and what is wrong."""
    for item in error.errors():
        keys = [str(part) for part in item["loc"]]
        said = unknown(Settings, keys) if item["type"] == "extra_forbidden" else item["msg"]
        colon = "" if item["type"] == "extra_forbidden" else ":"
        yield f"{place_of(config, from_file, keys) if config else ''}{'.'.join(keys)}{colon} {said}"


def load_settings(config: Path | None = None, **overrides: Any) -> Settings:
    """Return the effective settings; raises `ConfigurationError` naming each wrong one."""
    if wrong_names := wrong_variables(Settings, "MOOTHALL_", os.environ):
        raise ConfigurationError("; ".join(wrong_names))
    from_file = read_toml(config) if config else {}

    class Loaded(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *sources: PydanticBaseSettingsSource, **named: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del sources
            return named["init_settings"], named["env_settings"], InitSettingsSource(settings_cls, from_file)

    try:
        loaded = Loaded(**overrides)
    except ValidationError as error:
        raise ConfigurationError(f"settings are wrong: {'; '.join(_wrong(error, config, from_file))}") from error
    except (OSError, SettingsError) as error:
        raise ConfigurationError(f"settings cannot be read: {error}") from error
    return Settings.model_construct(**{name: getattr(loaded, name) for name in Settings.model_fields})
