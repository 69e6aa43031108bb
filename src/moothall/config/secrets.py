"""What must not leave, beside the secrets among the settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, SecretStr, model_validator

from moothall.config.section import Section


class Secrets(Section):
    """The operator's own values that are taken out of prompts, events, logs, diffs and all else that is recorded."""

    variables: tuple[str, ...] = Field(
        (), description="environment variables whose values are secrets wherever they stand; those that are not set are left out"
    )
    values: SecretStr | None = Field(None, description="more of them, one a line; those of the variables are added")
    values_file: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_variables(cls, given: object) -> object:
        """Read the variables here, so that hosts elsewhere know their values too."""
        names = given.get("variables") if isinstance(given, Mapping) else None
        if not isinstance(given, Mapping) or not isinstance(names, list | tuple):
            return given  # the type's own error says what is right
        found = [os.environ.get(name, "") for name in names if isinstance(name, str)]
        own = given.get("values") or ""
        lines = [own.get_secret_value() if isinstance(own, SecretStr) else str(own), *found]
        return {**given, "values": "\n".join(line for line in lines if line) or None}
