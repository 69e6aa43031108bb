"""Model servers: the settings of one, the named models, and the table of known models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from moothall.config.file import Section
from moothall.errors import InvalidRequest

# The table of known models: windows and prices of hosted models, used where neither the settings
# nor the server provide them. `known_models.toml` contains the date and the sources.


_FILE = "known_models.toml"
_DATE = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2})$")
SOURCE = "the table of known models"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A hosted model. Prices are US dollars per million tokens, for prompts of up to `window`
    tokens.
    """

    window: int
    price_in: float
    price_cached: float
    price_out: float


def find_model(base_url: str | None, model: str) -> KnownModel | None:
    """Return a model of a server by its name, which may end with a date. Return None if the model
    is unknown.
    """
    host = urlsplit(base_url or "").hostname
    models = _table().get(host or "", {})
    return models.get(model) or models.get(_DATE.sub("", model))


def checked_on() -> str:
    """Return the date of the table."""
    return str(_document()["checked"])


@cache
def _document() -> Mapping[str, Any]:
    import tomllib

    return tomllib.loads(files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))


@cache
def _table() -> Mapping[str, Mapping[str, KnownModel]]:
    return {
        host: {name: KnownModel(**fields) for name, fields in server["models"].items()}
        for host, server in _document()["servers"].items()
    }


# Model servers.


Role = Literal["dev", "qa", "architect", "devops", "data", "po"]


UNKNOWN_WINDOW = 8192
"""The window in tokens of the local model, and of a model if neither its server nor a setting names
its window.
"""


NATIVE_WINDOW = 131_072
"""The same for a model that calls tools natively. Such models have large windows. If the window is
smaller, a refusal of the server corrects it.
"""


LOCAL_REPLY, LONGEST_REPLY = 1024, 32_768


class LlmSettings(Section):
    """The model server. Without a base URL, the small local model runs on this machine's CPU.
    `models.NAME` adds a model; unset fields are inherited from `llm`.
    """

    base_url: str | None = Field(
        None, description="root of an OpenAI-compatible API, e.g. http://127.0.0.1:8000/v1"
    )
    replicas: tuple[str, ...] = Field(
        (),
        description="further servers of the same model; each deliberation uses one of them, and "
        "the others replace it if it fails",
    )
    model: str = Field("", description="model name; empty: the first model that the server lists")
    tier: Literal["", "small", "medium", "large"] = Field(
        "", description="requests for this tier get the first model that has it"
    )
    fallback: tuple[str, ...] = Field(
        (), description="models that are used while this one is unreachable, in order"
    )
    harness: tuple[str, ...] = Field(
        (),
        description="command of another agent that works on the seats of this model: one that "
        "speaks the Agent Client Protocol, or one with {prompt} in an argument; {model} is the "
        "model's name, {port} the port of its server; empty: our own",
    )
    harness_env: dict[str, str] = Field(
        {},
        description="environment variables of the harness; {port} is replaced by the port of its "
        "model server",
    )
    roles: tuple[Role, ...] = Field(
        (), description="only for models.NAME: roles whose seats use this model by default"
    )
    api_key: SecretStr | None = Field(
        None, description="key of the model server, sent as a bearer token"
    )
    model_path: Path | None = Field(None, description="a GGUF file of your own for the local model")
    models_dir: Path | None = Field(
        None,
        description="folder of the fetched local model, for all data directories; empty: the "
        "user's cache folder",
    )
    reply: Literal["auto", "tools", "json", "blocks"] = Field(
        "auto",
        description="how the model calls tools: natively, in a JSON object, or in tagged blocks; "
        "auto: the first that works in a probe",
    )
    api: Literal["auto", "chat", "responses"] = Field(
        "auto",
        description="/v1/chat/completions or /v1/responses; auto: chat, until the server refuses "
        "a request that needs responses",
    )
    reasoning_effort: str = Field(
        "",
        max_length=32,
        description="how long the model reasons (none, minimal, low, medium, high, xhigh); "
        "empty: the server's default",
    )
    approaches: Literal["auto", "on", "off"] = Field(
        "auto",
        description="ask the model for distinct approaches first, for seats without native tool "
        "calls; auto: except for the local model, which they mislead",
    )
    functions: Literal["auto", "on", "off"] = Field(
        "auto",
        description="if a task names one function, ask only for it, without tools; auto: for the "
        "local model, which handles tools badly",
    )
    seats_in_turn: Literal["auto", "on", "off"] = Field(
        "auto",
        description="fill the seats of a council one after the other until an answer is proven; "
        "auto: for the local model, which is not faster with several at once",
    )
    price_in: float = Field(
        0.0,
        ge=0,
        description="US dollars per million prompt tokens; if this and price_out are 0: the prices "
        "of the table of known models, if it has the model",
    )
    price_out: float = Field(0.0, ge=0, description="US dollars per million completion tokens")
    price_cached: float | None = Field(
        None,
        ge=0,
        description="US dollars per million prompt tokens from the server's cache; empty: price_in",
    )
    temperature: float = Field(
        0.8,
        ge=0,
        le=2,
        description="sampling temperature; the seats of a council get 0.25 to 1.25 times as much",
    )
    max_tokens: int = Field(
        0,
        ge=0,
        description="completion tokens of a call; 0: a quarter of the window, at most 32,768; "
        "for the local model 1,024",
    )
    context_tokens: int = Field(
        0,
        ge=0,
        description="window of the model, to which history is condensed; 0: as the server "
        "reports, else 8,192; for the local model 8,192",
    )
    concurrency: int = Field(
        256, ge=1, description="concurrent calls to one server, which queues what it cannot start"
    )
    wait_seconds: float = Field(
        0.0,
        ge=0,
        description="how long the start waits for a model server that does not answer yet",
    )
    call_seconds: float = Field(
        1800.0,
        gt=0,
        description="maximum duration of one call without retries, because reasoning models take "
        "minutes; an open stream may be silent for a sixth of it",
    )
    retries: int = Field(
        8,
        ge=0,
        description="with growing delays about a minute, enough for a restart of the model server",
    )

    @field_validator("max_tokens", "context_tokens")
    @classmethod
    def _check_tokens(cls, value: int, info: ValidationInfo) -> int:
        minimum = 16 if info.field_name == "max_tokens" else 1024
        if 0 < value < minimum:
            raise ValueError(f"must be 0 (automatic) or at least {minimum}")
        return value

    def with_known_prices(self) -> Self:
        """Return the settings with the prices of the table of known models. Return them unchanged
        if they contain a price or the model is unknown.
        """
        known_model = (
            None if self.price_in or self.price_out else find_model(self.base_url, self.model)
        )
        if known_model is None:
            return self
        cached = known_model.price_cached if self.price_cached is None else self.price_cached
        return self.model_copy(
            update={
                "price_in": known_model.price_in,
                "price_cached": cached,
                "price_out": known_model.price_out,
            }
        )

    @property
    def idle_seconds(self) -> float:
        """The maximum silence on an open stream. Some servers send nothing while the model
        reasons.
        """
        return self.call_seconds / 6

    @property
    def assumed_window(self) -> int:
        """The window to use before the server has been asked for it."""
        return self.context_tokens or UNKNOWN_WINDOW

    def fitted(self, window: int, most_tokens: int = 0) -> Self:
        """Return the settings with a window and a reply length. A setting takes precedence over
        `window`, the window that the server reports, 0 if none. `most_tokens` is the longest reply
        that the server accepts, 0 if unlimited.
        """
        window = self.context_tokens or window or UNKNOWN_WINDOW
        quarter = min(max(window // 4, 256), LONGEST_REPLY)
        tokens = self.max_tokens or (LOCAL_REPLY if self.base_url is None else quarter)
        update = {
            "context_tokens": window,
            "max_tokens": min(tokens, most_tokens) if most_tokens else tokens,
        }
        return self.model_copy(update=update)


# The models of the settings: the default model `llm`, and the named models `[models.NAME]`.


DEFAULT = "default"
AUTO = "auto"
"""The name that requests use for models that are chosen by their results."""
_NAME = re.compile(r"[a-z][a-z0-9._-]{0,63}")
_NEVER_INHERITED = frozenset({"tier", "fallback", "roles", "harness", "harness_env"})
SERVER_FIELDS = frozenset(
    {
        "replicas",
        "model",
        "api_key",
        "api",
        "price_in",
        "price_out",
        "price_cached",
    }
)
"""The fields of `LlmSettings` that belong to one server: another one does not inherit them."""


@dataclass(frozen=True, slots=True)
class Models:
    """The models by name. The names of the default model are '' and `default`; the settings of each
    model in `named` are complete.
    """

    default: LlmSettings = field(default_factory=LlmSettings)
    named: Mapping[str, LlmSettings] = field(default_factory=dict)

    @classmethod
    def of(cls, default: LlmSettings, named: Mapping[str, LlmSettings]) -> Self:
        """Complete the named models with the fields of `default`. Raises `ValueError` for
        inconsistent settings.
        """
        models = cls(default, {name: _overlay(default, model) for name, model in named.items()})
        models._check()
        return models

    def items(self) -> tuple[tuple[str, LlmSettings], ...]:
        """Return names and settings of all models, the default model first."""
        return (DEFAULT, self.default), *self.named.items()

    def with_known_prices(self) -> Models:
        """Return the models with the prices of the table of known models where none is set."""
        named = {name: model.with_known_prices() for name, model in self.named.items()}
        return Models(self.default.with_known_prices(), named)

    def get(self, name: str) -> LlmSettings:
        """Return the settings of a model by a name from `choose`. Raises `InvalidRequest` if the
        settings no longer contain it.
        """
        settings = self.default if name in {"", DEFAULT} else self.named.get(name)
        if settings is None:
            raise self._unknown(name)
        return settings

    def choose(self, model_profile: str) -> str:
        """Return the name of the requested model, which may be given by name, tier, or its name on
        the server. '' is the default model.

        Raises `InvalidRequest`, which lists the models.
        """
        profile = model_profile.strip()
        if profile in {"", DEFAULT}:
            return ""
        if profile.lower() in self.named:
            return profile.lower()
        for name, model in self.items():
            if profile.lower() == model.tier or profile == model.model:
                return "" if name == DEFAULT else name
        raise self._unknown(model_profile)

    def of_role(self, role: str) -> str:
        """Return the name of the model that the seats of a role use by default."""
        return next((name for name, model in self.named.items() if role in model.roles), "")

    def chain(self, name: str) -> tuple[str, ...]:
        """Return the names of a model and its fallback models, in order."""
        return (name or DEFAULT, *self.get(name).fallback)

    def _unknown(self, model_profile: str) -> InvalidRequest:
        names = ", ".join(
            name + (f" ({model.tier})" if model.tier else "") for name, model in self.items()
        )
        hint = (
            "; auto cannot be combined with others" if model_profile.strip().lower() == AUTO else ""
        )
        return InvalidRequest(
            f"unknown model_profile {model_profile[:80]!r}; the settings have: {names}{hint}"
        )

    def _check(self) -> None:
        invalid = [
            name for name in self.named if name in {DEFAULT, AUTO} or not _NAME.fullmatch(name)
        ]
        if invalid:
            raise ValueError(
                f"models: {invalid[0]!r} is not a valid name: use small letters, digits, dots and "
                f"dashes, and neither {DEFAULT} nor {AUTO}"
            )
        model_by_role: dict[str, str] = {}
        for name, model in self.items():
            section = "llm" if name == DEFAULT else f"models.{name}"
            for fallback in model.fallback:
                if fallback == name or (fallback != DEFAULT and fallback not in self.named):
                    raise ValueError(
                        f"{section}.fallback names {fallback!r}, but the models are "
                        f"{', '.join(key for key, _ in self.items() if key != name)}"
                    )
                if 0 < self.get(fallback).context_tokens < model.context_tokens:
                    raise ValueError(
                        f"{section}.fallback: {fallback} has a smaller window (context_tokens), so "
                        "prompts would not fit"
                    )
            if name == DEFAULT and model.roles:
                raise ValueError(
                    "llm.roles: the default model serves every role that no other model names"
                )
            for role in model.roles:
                if role in model_by_role:
                    raise ValueError(
                        f"{section}.roles: {role} already belongs to {model_by_role[role]}"
                    )
                model_by_role[role] = name


def _overlay(default: LlmSettings, model: LlmSettings) -> LlmSettings:
    """Return the settings of a model with unset fields from `default`. A model with a server of its
    own inherits no server fields, in particular no key.
    """
    not_inherited = (
        model.model_fields_set
        | _NEVER_INHERITED
        | (SERVER_FIELDS if "base_url" in model.model_fields_set else frozenset())
    )
    return default.model_copy(update={name: getattr(model, name) for name in not_inherited})
