"""Compare the settings of this process with those of the process that serves the data directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moothall.app.data_dir_lock import Address
from moothall.config import Settings, environment
from moothall.domain.ids import digest

_SECTIONS = {"llm", "models", "bus", "ray", "workspace", "sandbox", "runner", "limits"}
_IGNORED = {"wait_seconds", "seats_in_turn"}
_MAX_SHOWN = 8


def fingerprints(settings: Settings) -> dict[str, str]:
    """Return a digest of each setting that affects the work, by its name. Secrets are left out."""
    values = settings.model_dump(
        mode="json",
        include=_SECTIONS,
        exclude={"ray": {"mode"}, "llm": _IGNORED, "models": {"__all__": _IGNORED}},
    )
    return {name: digest(repr(value))[:16] for name, value in _leaves(values, "")}


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def describe_difference(settings: Settings, address: Address) -> str:
    """Return which settings differ from those at `address` and how to attach, or an empty
    string.
    """
    own, theirs = fingerprints(settings), address.settings
    names = sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))
    if not names:
        return ""
    variables = {name: f"MOOTHALL_{name.upper().replace('.', '__')}" for name in names}
    unset = [variables[name] for name in names if variables[name] in environment()]
    other = [name for name in names if variables[name] not in environment()]
    steps = [f"unset {_join_names(unset)}"] if unset else []
    if other:
        steps.append(
            f"set {_join_names(other)} as that process has {'it' if len(other) == 1 else 'them'}"
        )
    server = (
        f", or let it work with its own settings: --server 127.0.0.1:{address.grpc_port}"
        if address.grpc_port
        else ""
    )
    return (
        f"process {address.pid} serves {settings.data_dir} with other settings: "
        f"{_join_names(names)}. To attach to it, {' and '.join(steps)}{server}. Otherwise stop it, "
        "or set MOOTHALL_DATA_DIR to another folder"
    )


def _join_names(names: list[str]) -> str:
    return ", ".join(names[:_MAX_SHOWN]) + (
        f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    )
