"""Where settings come from: the file of them, which one is read and which line of it is wrong; and
the process's environment.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_origin

import platformdirs
from pydantic import BaseModel

from moothall.errors import ConfigurationError

_HEADER = re.compile(r"\s*\[+\s*([^\[\]]+?)\s*\]+\s*(?:#.*)?")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=")


def default_file() -> Path:
    """Return the file that is read where no other one is named and it is there."""
    return Path(platformdirs.user_config_dir("moothall")) / "config.toml"


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a file says. Raises `ConfigurationError`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"configuration file {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"configuration file {path} is not TOML: {error}") from error


def place_of(path: Path, said: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return `FILE, line N: ` of a setting that the file says; '' of one that it does not (it came
    of the environment).
    """
    at: Any = said
    for key in keys:
        if not isinstance(at, Mapping) or key not in at:
            return ""
        at = at[key]
    return f"{path}, line {line_of(path.read_text(encoding='utf-8'), keys)}: "


def line_of(text: str, keys: Sequence[str]) -> int:
    """Return the line that spells the most of the keys, from the first on; 1 where none does."""
    section: list[str] = []
    best, found = 0, 1
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            section = spelt = _parts(header[1])
        elif key := _KEY.match(line):
            spelt = [*section, *_parts(key[1])]
        else:
            continue
        if len(spelt) > best and list(keys[: len(spelt)]) == spelt:
            best, found = len(spelt), number
    return found


def unknown(settings: type[BaseModel], keys: Sequence[str]) -> str:
    """Return what to say of a key that is no setting."""
    model: type[BaseModel] | None = settings
    kind: Any = None
    for key in keys[:-1]:
        if get_origin(kind) is Mapping:  # a section for each name
            kind = get_args(kind)[1]
        else:
            kind = (
                model.model_fields[key].annotation if model and key in model.model_fields else None
            )
        model = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    near = get_close_matches(keys[-1], model.model_fields, n=1) if model else []
    return "is no setting; " + (
        f"did you mean {near[0]}?" if near else "`moothall config` lists all"
    )


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


# uvloop starts programs by fork(), in which gRPC's handlers of a fork run: while gRPC is busy,
# every tenth program or so died of them before it began (a failed assertion in its pollers).
# Nothing of ours uses gRPC in a child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def environment() -> Mapping[str, str]:
    """Return the process's environment, for credentials that a registered repository names by
    variable.
    """
    return dict(os.environ)
