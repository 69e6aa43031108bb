"""What must not leave, beside the secrets among the settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from moothall.config.section import Section


class Secrets(Section):
    """The operator's own values that are taken out of prompts, events, logs, diffs and all else that is recorded."""

    variables: tuple[str, ...] = Field(
        (), description="environment variables whose values are secrets wherever they stand; those that are not set are left out"
    )
    values: SecretStr | None = Field(None, description="more of them, one a line; those of the variables are added")
    values_file: Path | None = None

    @model_validator(mode="after")
    def _read_variables(self) -> Self:
        """Read the variables here, so that hosts elsewhere know their values too."""
        found = [os.environ[name] for name in self.variables if os.environ.get(name)]
        own = [self.values.get_secret_value()] if self.values else []
        if found:
            object.__setattr__(self, "values", SecretStr("\n".join((*own, *found))))  # frozen from now on
        return self
