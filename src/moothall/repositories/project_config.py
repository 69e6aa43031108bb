"""Writing a `.moothall.toml` from a profile. Pure, except for writing the file."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from moothall.domain.repository import Profile
from moothall.errors import AlreadyExists, RepositoryError
from moothall.repositories.detect import setup_commands
from moothall.repositories.profile import CONFIG_FILE, PROTECTED, Commands

_HEAD = (
    "# How Moothall sets this repository up and checks it. Councils read it from the commit that "
    "they work on.\n"
    "# `setup` runs once for each lock file, with the network. `build`, before each check, and "
    "`checks` run without it.\n"
    "# No shell runs any of them.\n"
)


def commands_of(profile: Profile) -> Commands:
    """Return the settings that give the same profile."""
    settings = {
        "setup": profile.setup,
        "build": setup_commands(profile.builds),
        "checks": dict(profile.checks),
        "protected": tuple(pattern for pattern in profile.protected if pattern not in PROTECTED),
        "known_failures": profile.known_failures,
        "advisory": profile.advisory,
        "folders": dict(profile.folders),
        "hidden": {"tests": profile.hidden},
    }
    return Commands.model_validate(
        {name: value for name, value in settings.items() if name in Commands.model_fields}
    )


def to_toml(commands: Commands) -> str:
    """Return the text of a configuration file. A command is written as one line if that splits into
    the same words.
    """
    settings = {
        name: value
        for name, value in commands.model_dump(mode="json").items()
        if value or name in {"setup", "checks"}
    }
    tables = {
        name: _filled(value) for name, value in settings.items() if isinstance(value, Mapping)
    }
    tables = {name: table for name, table in tables.items() if table or name == "checks"}
    lines = [
        f"{name} = {_value(value)}"
        for name, value in settings.items()
        if not isinstance(value, Mapping) and value is not None
    ]
    for name, table in tables.items():
        lines += [
            "",
            f"[{name}]",
            *(f"{_key(key)} = {_command(value)}" for key, value in table.items()),
        ]
    return _HEAD + "\n" + "\n".join(lines) + "\n"


def write_config_file(top: Path, text: str, *, replace: bool) -> Path:
    """Write the file at the top of a work tree and return its path. Raises `AlreadyExists`,
    `RepositoryError`.
    """
    path = top / CONFIG_FILE
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if replace else os.O_EXCL)
    try:
        with os.fdopen(os.open(path, flags, 0o644), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise AlreadyExists(f"{path} is there already; --force overwrites it") from error
    except OSError as error:
        raise RepositoryError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _filled(table: Mapping[str, object]) -> Mapping[str, object]:
    return {key: value for key, value in table.items() if value}


def _value(value: object) -> str:
    if isinstance(value, str):
        return _string(value)
    if not isinstance(value, Sequence):
        return json.dumps(value)
    items = list(_items(value))
    return (
        f"[{', '.join(items)}]"
        if len(", ".join(items)) < 100  # noqa: PLR2004 - a line
        else "[\n" + "".join(f"    {item},\n" for item in items) + "]"
    )


def _items(values: Sequence[object]) -> Iterator[str]:
    for value in values:
        yield _command(value)


def _command(value: object) -> str:
    """Return a command as one line that splits into its words, else as a list."""
    if isinstance(value, list) and "\n" not in (line := shlex.join(map(str, value))):
        return _string(line)
    return _value(value)


def _key(key: str) -> str:
    return (
        key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else _string(key)
    )


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
