"""Values for a shell to complete. Quick: nothing is started, and nothing but file names and one
small file is read.
"""

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

    return [protocol for protocol in PROTOCOLS if protocol.startswith(incomplete)]


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
        known = (_data_dir() / _RECENT).read_text(encoding="utf-8").split()
    except OSError:
        return []
    return [task for task in reversed(known) if task.startswith(incomplete)]


_RECENT = "recent-tasks"
_KEPT = 100


def remember(data_dir: Path, *task_ids: str) -> None:
    """Keep the ids of tasks that a person may name next, the latest last. What cannot be written is
    left.
    """
    path = data_dir / _RECENT
    try:
        known = path.read_text(encoding="utf-8").split() if path.exists() else []
        kept = [*(task for task in known if task not in task_ids), *task_ids][-_KEPT:]
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text("\n".join(kept) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError:
        return


def _data_dir() -> Path:
    """As the settings say, without reading them all: the variable, the file, the default."""
    named = os.environ.get("MOOTHALL_DATA_DIR")
    if named:
        return Path(named)
    import tomllib

    import platformdirs

    try:
        text = (Path(platformdirs.user_config_dir("moothall")) / "config.toml").read_text(
            encoding="utf-8"
        )
        said = tomllib.loads(text).get("data_dir")
    except (OSError, ValueError):
        said = None
    return Path(said) if isinstance(said, str) else Path(platformdirs.user_data_dir("moothall"))
