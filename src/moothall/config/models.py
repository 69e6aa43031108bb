"""The models of the settings: the default model `llm`, and the named models `[models.NAME]`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from moothall.config.llm import LlmSettings
from moothall.errors import InvalidRequest

DEFAULT = "default"
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
        "price_reasoning",
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

    def choose(self, requested: str) -> str:
        """Return the name of the requested model, which may be given by name, tier, or its name on
        the server. '' is the default model.

        Raises `InvalidRequest`, which lists the models.
        """
        profile = requested.strip()
        if profile in {"", DEFAULT}:
            return ""
        if profile.lower() in self.named:
            return profile.lower()
        for name, model in self.items():
            if profile.lower() == model.tier or profile == model.model:
                return "" if name == DEFAULT else name
        raise self._unknown(requested)

    def of_role(self, role: str) -> str:
        """Return the name of the model that the seats of a role use by default."""
        return next((name for name, model in self.named.items() if role in model.roles), "")

    def chain(self, name: str) -> tuple[str, ...]:
        """Return the names of a model and its fallback models, in order."""
        return (name or DEFAULT, *self.get(name).fallback)

    def _unknown(self, requested: str) -> InvalidRequest:
        names = ", ".join(
            name + (f" ({model.tier})" if model.tier else "") for name, model in self.items()
        )
        return InvalidRequest(
            f"unknown model_profile {requested[:80]!r}; the settings have: {names}"
        )

    def _check(self) -> None:
        invalid = [name for name in self.named if name == DEFAULT or not _NAME.fullmatch(name)]
        if invalid:
            raise ValueError(
                f"models: {invalid[0]!r} is not a valid name: use small letters, digits, dots and "
                f"dashes, and not {DEFAULT}"
            )
        model_by_role: dict[str, str] = {}
        for name, model in self.items():
            section = "llm" if name == DEFAULT else f"models.{name}"
            for fallback in model.fallback:
                if fallback == name or (fallback != DEFAULT and fallback not in self.named):
                    raise ValueError(
                        f"{section}.fallback names {fallback!r}; there are "
                        f"{', '.join(other for other, _ in self.items() if other != name)}"
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
