"""The base class of all sections of the settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, SecretStr, model_validator


class Section(BaseModel):
    """A frozen section of the settings without unknown keys. Each secret `name` can also be in a
    file, whose path is the key `name_file`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _read_secret_files(cls, data: Any) -> Any:
        """Replace the key of a file by the secret in it, unless the secret itself is set."""
        if not isinstance(data, dict):
            return data
        read = dict(data)
        for name in secret_fields(cls):
            key = f"{name}_file"
            path = read.get(key) if key in cls.model_fields else read.pop(key, None)
            if path and not read.get(name):
                read[name] = _read_secret(key, Path(path))
        return read


def secret_fields(model: type[BaseModel]) -> Iterator[str]:
    """Yield the names of the fields that are secret."""
    for name, field in model.model_fields.items():
        if SecretStr in (field.annotation, *get_args(field.annotation)):
            yield name


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
