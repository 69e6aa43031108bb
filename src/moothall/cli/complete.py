"""Shell completion of values. It must be quick, so it reads only file names and one small file."""

from __future__ import annotations

import os
from pathlib import Path

import click


def roles(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - the signature is click's
    """Complete a role."""
    from moothall.domain.ids import ROLES

    return [role for role in ROLES if role.startswith(incomplete.lower())]


def protocols(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - the signature is click's
    """Complete a protocol."""
    from moothall.domain.protocol import PROTOCOLS

    return [
        name
        for name, protocol in PROTOCOLS.items()
        if name.startswith(incomplete) and not protocol.judges
    ]


def repositories(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - the signature is click's
    """Complete the id of a registered repository."""
    return sorted(
        path.stem
        for path in (_data_dir() / "repositories").glob("[a-z0-9]*.json")
        if path.stem.startswith(incomplete)
    )


def tasks(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - the signature is click's
    """Complete the id of one of the last tasks that this command line saw."""
    try:
        recent = (_data_dir() / _RECENT).read_text(encoding="utf-8").split()
    except OSError:
        return []
    return [task for task in reversed(recent) if task.startswith(incomplete)]


_RECENT = "recent-tasks"
_MAX_RECENT = 100


def remember(data_dir: Path, *task_ids: str) -> None:
    """Remember the ids of tasks that a person may name next, the latest last. Write errors are
    ignored.
    """
    path = data_dir / _RECENT
    try:
        previous = path.read_text(encoding="utf-8").split() if path.exists() else []
        recent = [*(task for task in previous if task not in task_ids), *task_ids][-_MAX_RECENT:]
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text("\n".join(recent) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError:
        return


def _data_dir() -> Path:
    """Return the data directory without loading all settings: from the variable, the file or the
    default.
    """
    from_environment = os.environ.get("MOOTHALL_DATA_DIR")
    if from_environment:
        return Path(from_environment)
    import tomllib

    import platformdirs

    try:
        text = (Path(platformdirs.user_config_dir("moothall")) / "config.toml").read_text(
            encoding="utf-8"
        )
        configured = tomllib.loads(text).get("data_dir")
    except (OSError, ValueError):
        configured = None
    return (
        Path(configured)
        if isinstance(configured, str)
        else Path(platformdirs.user_data_dir("moothall"))
    )
