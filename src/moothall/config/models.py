"""Which model does what: the one of `llm`, and those of `[models.NAME]` beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from moothall.config.parts import LlmSettings
from moothall.errors import InvalidRequest

DEFAULT = "default"
_NAME = re.compile(r"[a-z][a-z0-9._-]{0,63}")
_OWN = frozenset({"tier", "fallback", "roles"})
_OF_SERVER = frozenset(
    {
        "replicas",
        "model",
        "api_key",
        "api_key_file",
        "api",
        "price_in",
        "price_out",
        "price_cached",
        "price_reasoning",
    }
)


@dataclass(frozen=True, slots=True)
class Models:
    """`default` is called '' and `default`; `named` are the others, each whole."""

    default: LlmSettings = field(default_factory=LlmSettings)
    named: Mapping[str, LlmSettings] = field(default_factory=dict)

    @classmethod
    def of(cls, default: LlmSettings, said: Mapping[str, LlmSettings]) -> Self:
        """Lay what each says over `default`. Raises `ValueError` for what cannot be right."""
        models = cls(default, {name: _overlay(default, one) for name, one in said.items()})
        models._check()
        return models

    def items(self) -> tuple[tuple[str, LlmSettings], ...]:
        """Return all by name, `default` first."""
        return (DEFAULT, self.default), *self.named.items()

    def get(self, name: str) -> LlmSettings:
        """Return the settings of a model that `choose` named. Raises `InvalidRequest` where it is
        gone from the settings.
        """
        found = self.default if name in {"", DEFAULT} else self.named.get(name)
        if found is None:
            raise self._unknown(name)
        return found

    def choose(self, wanted: str) -> str:
        """Return the name of the model that a caller means: by its name, its tier, or what its
        server calls it. '' is the default.

        Raises `InvalidRequest` that lists the known ones.
        """
        asked = wanted.strip()
        if asked in {"", DEFAULT}:
            return ""
        if asked.lower() in self.named:
            return asked.lower()
        for name, one in self.items():
            if asked.lower() == one.tier or asked == one.model:
                return "" if name == DEFAULT else name
        raise self._unknown(wanted)

    def of_role(self, role: str) -> str:
        """Return the name of the model that a role's seats use where nobody chose another."""
        return next((name for name, one in self.named.items() if role in one.roles), "")

    def chain(self, name: str) -> tuple[str, ...]:
        """Return a model and those that stand in for it, in order."""
        return (name or DEFAULT, *self.get(name).fallback)

    def _unknown(self, wanted: str) -> InvalidRequest:
        names = ", ".join(
            name + (f" ({one.tier})" if one.tier else "") for name, one in self.items()
        )
        return InvalidRequest(f"unknown model_profile {wanted[:80]!r}; the settings have: {names}")

    def _check(self) -> None:
        if wrong := [name for name in self.named if name == DEFAULT or not _NAME.fullmatch(name)]:
            raise ValueError(
                f"models: {wrong[0]!r} is no name for a model: small letters, digits, dots and "
                f"dashes, and not {DEFAULT}"
            )
        taken: dict[str, str] = {}
        for name, one in self.items():
            where = "llm" if name == DEFAULT else f"models.{name}"
            for other in one.fallback:
                if other == name or (other != DEFAULT and other not in self.named):
                    raise ValueError(
                        f"{where}.fallback names {other!r}; there are "
                        f"{', '.join(n for n, _ in self.items() if n != name)}"
                    )
                if 0 < self.get(other).context_tokens < one.context_tokens:
                    raise ValueError(
                        f"{where}.fallback: {other} has a smaller window (context_tokens), so that "
                        "prompts would not fit"
                    )
            if name == DEFAULT and one.roles:
                raise ValueError(
                    "llm.roles: the default model serves every role that no other names"
                )
            for role in one.roles:
                if role in taken:
                    raise ValueError(f"{where}.roles: {role} is {taken[role]}'s already")
                taken[role] = name


def _overlay(default: LlmSettings, one: LlmSettings) -> LlmSettings:
    """Return what `one` says over `default`. With a server of its own also what belongs to a
    server, its key above all, is its own.
    """
    own = (
        one.model_fields_set
        | _OWN
        | (_OF_SERVER if "base_url" in one.model_fields_set else frozenset())
    )
    return default.model_copy(update={name: getattr(one, name) for name in own})
