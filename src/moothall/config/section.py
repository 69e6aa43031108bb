"""The base class of all sections of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """A frozen section of the settings without unknown keys. Secrets can also be in files."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _read_secret_files(cls, data: Any) -> Any:
        """Read a secret from the file in `<name>_file` if the secret itself is not set. Each secret
        must have such a field.
        """
        if not isinstance(data, dict):
            return data
        return data | {
            name: _read_secret(f"{name}_file", Path(data[f"{name}_file"]))
            for name in cls.model_fields
            if data.get(f"{name}_file")
            and f"{name}_file" in cls.model_fields
            and not data.get(name)
        }


def _read_secret(name: str, path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"{name} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} {path} is not text") from error
    if not secret:
        raise ValueError(f"{name} {path} is empty")
    return secret
