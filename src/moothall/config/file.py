"""The configuration file, the locations of settings in it, and the process's environment."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import platformdirs
from pydantic import BaseModel

from moothall.config.unknown import describe_unknown
from moothall.errors import ConfigurationError

_HEADER = re.compile(r"\s*\[+\s*([^\[\]]+?)\s*\]+\s*(?:#.*)?")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=")


def default_file() -> Path:
    """Return the path of the configuration file that is read by default if it exists."""
    return Path(platformdirs.user_config_dir("moothall")) / "config.toml"


def find_default_file() -> Path | None:
    """Return the default configuration file, or None if it does not exist."""
    return default_file() if default_file().is_file() else None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file. Raises `ConfigurationError`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"configuration file {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"configuration file {path} is not TOML: {error}") from error


def location_of(path: Path, content: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return `FILE, line N: ` for a setting in the file; '' for a setting from the environment."""
    value: Any = content
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return ""
        value = value[key]
    return f"{path}, line {line_of(path.read_text(encoding='utf-8'), keys)}: "


def line_of(text: str, keys: Sequence[str]) -> int:
    """Return the number of the line with the longest prefix of the keys, or 1."""
    section: list[str] = []
    best_length, best_number = 0, 1
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            section = path = _split_key(header[1])
        elif key := _KEY.match(line):
            path = [*section, *_split_key(key[1])]
        else:
            continue
        if len(path) > best_length and list(keys[: len(path)]) == path:
            best_length, best_number = len(path), number
    return best_number


def describe_unknown_key(settings: type[BaseModel], keys: Sequence[str]) -> str:
    """Return the error message for an unknown key."""
    model: type[BaseModel] | None = settings
    kind: Any = None
    for key in keys[:-1]:
        if get_origin(kind) is Mapping:  # sections by name
            kind = get_args(kind)[1]
        else:
            kind = (
                model.model_fields[key].annotation if model and key in model.model_fields else None
            )
        model = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return describe_unknown(keys, keys[-1], model.model_fields if model else ())


def _split_key(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


# uvloop starts programs by fork(), which runs gRPC's fork handlers. While gRPC was busy, about
# every tenth program died of them before its start (a failed assertion in gRPC's pollers).
# Moothall does not use gRPC in forked children.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def environment() -> Mapping[str, str]:
    """Return the process's environment, for repository credentials that are named by variable."""
    return dict(os.environ)
